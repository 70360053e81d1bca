//! Matmuls by the quad pairs of a warp, as Volta's tensor cores compute them (Graphene, Figure 6).
//!
//! A quad pair is four lanes and those sixteen further on: `[(4,2):(1,16)]`. A warp has four, which
//! go through the instruction together, each with a matmul of its own. Of the sums a thread holds two
//! rows of two pairs of columns, which is why their tensor is `[2,4]` and not a row.

use super::asm::mma;
use super::matrix::{accumulate, gather};
use super::{A, Atom, B, D, Fault, Progress, Site, Step, Warp};
use crate::arch::Feature;
use crate::fragment::{QUAD_4X8_B, QUAD_8X4_A, QUAD_8X8_C};

pub(super) const ATOMS: &[Atom] = &[Atom::new(
    "mma.m8n8k4",
    "[2,4].fp32.RF <- MatMul+=<<<[(4,2):(1,16)]>>>([4:1].fp16.RF, [4:1].fp16.RF)",
    meaning,
    |_, code| {
        let sums = SUMS.iter().map(|sum| code.element(D, sum)).collect();
        let [a, b] = [A, B].map(|of| [0, 2].map(|k| code.word(of, &[k])).to_vec());
        mma("m8n8k4.row.col.f32.f16.f16.f32", sums, a, b)
    },
)
.needs(&[Feature::QuadPairs])
.align(&[4, 4, 4])];

/// A thread's sums in the order of its registers: pairs of columns, then rows, then the other pairs.
const SUMS: [[i64; 2]; 8] = [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]];

fn meaning(_: &Site<'_>, warp: &mut dyn Warp) -> Step {
    if warp.lanes().len() < 32 {
        return Err(Fault::Divergence("quad pairs of the warp are absent".to_owned()));
    }
    for pair in 0..4 {
        let lanes: Vec<(usize, usize)> =
            (0..8).map(|thread| (lane(pair, thread), thread)).collect();
        if lanes.iter().any(|&(lane, thread)| warp.rank(lane) != thread as i64) {
            let text = format!("lanes of pair {pair} are no quad pair of the spec's");
            return Err(Fault::Invalid(text));
        }
        let a = gather(warp, A, &lanes, &QUAD_8X4_A, |x| x)?;
        let b = gather(warp, B, &lanes, &QUAD_4X8_B, |x| x)?;
        accumulate(warp, &lanes, &QUAD_8X8_C, [&a, &b], false)?;
    }
    Ok(Progress::Done)
}

/// The lane of a warp that a thread of a quad pair is.
fn lane(pair: usize, thread: usize) -> usize {
    4 * pair + thread % 4 + 16 * (thread / 4)
}
