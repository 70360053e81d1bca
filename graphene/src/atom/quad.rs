//! Matmuls by the quad pairs of a warp, as Volta's tensor cores compute them (Graphene, Figure 6).
//!
//! A quad pair is four lanes and those sixteen further on: `[(4,2):(1,16)]`. A warp has four, which
//! go through the instruction together, each with a matmul of its own. Of the sums a thread holds two
//! rows of two pairs of columns, which is why their tensor is `[2,4]` and not a row.

use super::matrix::{accumulate, gather};
use super::{A, Atom, B, D, Fault, Progress, Site, Step, Warp, When, asm::mma, given};
use crate::Feature;
use crate::fragment::{QUAD_4X8_B, QUAD_4X8_B_ROW, QUAD_8X4_A, QUAD_8X8_C, QUAD_8X8_C_PAIRS};

#[rustfmt::skip]
pub(super) const ATOMS: &[Atom] = &[
    quads("mma.m8n8k4", "[2,4].fp32.RF <- MatMul+=<<<[(4,2):(1,16)]>>>([4:1].fp16.RF, [4:1].fp16.RF)", |_| Ok(())),
    quads("mma.m8n8k4.pairs", "[2].[2].[2].fp32.RF <- MatMul+=<<<[(4,2):(1,16)]>>>([4:1].fp16.RF, [4:1].fp16.RF)", |s| given(!has_row(s), "a lane's values of B are a row")),
    quads("mma.m8n8k4.row", "[2].[2].[2].fp32.RF <- MatMul+=<<<[(4,2):(1,16)]>>>([4:1].fp16.RF, [4:1].fp16.RF)", |s| given(has_row(s), "they are a column")),
];

const fn quads(name: &'static str, pattern: &'static str, when: When) -> Atom {
    Atom::new(name, pattern, meaning, |site, code| {
        // Registers are pairs of columns, then rows, then the other pairs.
        let sums = (0..8).map(|i| match (i % 2, i / 2 % 2, i / 4, is_by_pairs(site)) {
            (pair, row, eight, true) => code.element(D, &[eight, row, pair]),
            (pair, row, eight, false) => code.element(D, &[row, 2 * eight + pair]),
        });
        let [a, b] = [A, B].map(|of| [0, 2].map(|k| code.word(of, &[k])).to_vec());
        let of_b = if has_row(site) { "row" } else { "col" };
        mma(&format!("m8n8k4.row.{of_b}.f32.f16.f16.f32"), sums.collect(), a, b)
    })
    .needs(&[Feature::QuadPairs])
    .align(&[4, 4, 4])
    .when(when)
}

fn is_by_pairs(site: &Site<'_>) -> bool {
    site.dims(D).len() == 3
}

/// Whether a lane's values of B are neighbours in a row: `[1,4]`.
fn has_row(site: &Site<'_>) -> bool {
    let level = site.operand(B).view.levels().last();
    level.is_some_and(|level| level.rank() == 2 && level.modes()[0].size().is(1))
}

fn meaning(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    if warp.lanes().len() < 32 {
        return Err(Fault::Divergence("quad pairs of the warp are absent".to_owned()));
    }
    for pair in 0..4 {
        let lane = |thread| 4 * pair + thread % 4 + 16 * (thread / 4);
        let lanes: Vec<(usize, usize)> = (0..8).map(|thread| (lane(thread), thread)).collect();
        if lanes.iter().any(|&(lane, thread)| warp.rank(lane) != thread as i64) {
            let text = format!("lanes of pair {pair} are no quad pair of the spec's");
            return Err(Fault::Invalid(text));
        }
        let a = gather(warp, A, &lanes, &QUAD_8X4_A, |x| x)?;
        let of_b = if has_row(site) { &QUAD_4X8_B_ROW } else { &QUAD_4X8_B };
        let b = gather(warp, B, &lanes, of_b, |x| x)?;
        let sums = if is_by_pairs(site) { &QUAD_8X8_C_PAIRS } else { &QUAD_8X8_C };
        accumulate(warp, &lanes, sums, [&a, &b], false)?;
    }
    Ok(Progress::Done)
}
