//! Products by the quad pairs of a warp, as Volta's tensor cores compute them (Graphene, Figure 6).
//!
//! A quad pair is four lanes and those sixteen further on: `[(4,2):(1,16)]`. A warp has four, which
//! go through the instruction together, each with a product of its own. Of the sums a thread holds two
//! rows of two pairs of columns, which is why their tensor is `[2,4]` and not a row.

use super::asm::{asm, group};
use super::matrix::{accumulate, gather};
use super::{Atom, Fault, Progress, Proxy, Site, Step, Warp};
use crate::arch::Feature;
use crate::error::Result;
use crate::fragment::{QUAD_4X8_B, QUAD_8X4_A, QUAD_8X8_C};
use crate::kernel::Kernel;
use crate::text::parse;

const D: usize = 0;
const A: usize = 1;
const B: usize = 2;

pub(super) const ATOMS: &[Atom] = &[Atom {
    name: "mma.m8n8k4",
    pattern: "[2,4].fp32.RF <- MatMul<<<[(4,2):(1,16)]>>>([4:1].fp16.RF, [4:1].fp16.RF)",
    needs: &[Feature::QuadPairs],
    align: &[4, 4, 4],
    when: super::always,
    proxy: Proxy::Generic,
    meaning: mma,
    cuda: |_, code| {
        let outs: Vec<_> = SUMS.iter().map(|sum| ("+f", code.element(D, sum))).collect();
        let ins = [(A, 0), (A, 2), (B, 0), (B, 2)].map(|(of, k)| ("r", code.word(of, &[k])));
        let text = format!(
            "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {}, {}, {}, {};",
            group(0, 8),
            group(8, 2),
            group(10, 2),
            group(0, 8)
        );
        asm(&text, &outs, &ins)
    },
    example: quad_pairs,
}];

/// A thread's sums in the order of its registers: pairs of columns, then rows, then the other pairs.
const SUMS: [[i64; 2]; 8] = [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]];

fn mma(_: &Site<'_>, warp: &mut dyn Warp) -> Step {
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

/// Four products of 8×4 by 4×8, one by each quad pair: of different rows of A with the same B.
fn quad_pairs() -> Result<Kernel> {
    parse(
        "kernel quad_pairs sm_70 ()
%A:[32,4:4,1].fp16.GL
%B:[4,8:8,1].fp16.GL
%C:[32,8:8,1].fp32.GL
#grid:[1:1].block
#warp:[32:1].thread
%C <- Spec<<<#grid,#warp>>>(%A,%B) {
  #one:[].thread = #warp.scalar()
  #pairs:[4:4].[(4,2):(1,16)].thread = #warp.tile((4,2):(1,16))
  @pair, (@quad, @half) = #pairs.indices()
  #pair:[(4,2):(1,16)].thread = #pairs[@pair]
  %a:[4:1].fp16.RF
  %b:[4:1].fp16.RF
  %d:[2,4:4,1].fp32.RF
  for(@i = 0; @i < 4; @i += 1) unroll {
    %a[@i] <- Move<<<#grid,#one>>>(%A[8*@pair + @quad + 4*@half, @i])
    %b[@i] <- Move<<<#grid,#one>>>(%B[@i, @quad + 4*@half])
  }
  for(@i = 0; @i < 8; @i += 1) unroll {
    %d[@i/4, @i%4] <- Init<0.5><<<#grid,#one>>>()
  }
  %d <- MatMul<<<#grid,#pair>>>(%a, %b)
  for(@i = 0; @i < 8; @i += 1) unroll {
    @row = 8*@pair + @quad%2 + 2*(@i/4) + 4*@half
    %C[@row, @i%2 + 2*(@quad/2) + 4*(@i%4/2)] <- Move<<<#grid,#one>>>(%d[@i/4, @i%4])
  }
}",
    )
}
