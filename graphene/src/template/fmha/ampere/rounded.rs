//! Products of single precision rounded to TF32, by the warps' tensor cores: `mma.m16n8k8`.
//!
//! Sums over keys take them in any order. A lane has the weights of two neighbouring keys; the
//! instruction wants those of two that are four apart. So of each eight keys the second of a pair
//! stands where the fourth after the first would, among weights and values alike.

use super::{Block, Products};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Kind, Operand, TensorId, Unary};
use crate::layout::Tiler;
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};

/// The weights, rounded: `[8s of keys].[rows eight apart, pair]`.
pub(super) struct Rounded {
    weights: TensorId,
}

impl Rounded {
    pub(super) fn new(k: &mut Builder, block: &Block<'_>) -> Result<Rounded> {
        let of = vec![leaf(2, 2), leaf(2, 1)];
        let view = View::levels_of(&[vec![leaf(block.fmha.keys / 8, 4)], of]);
        let weights = k.allocate("weights", view, Scalar::F32, Memory::Registers, None)?;
        Ok(Rounded { weights })
    }
}

/// An element of shared memory, rounded, in a register.
fn word(
    k: &mut Builder,
    block: &Block<'_>,
    to: Operand,
    from: TensorId,
    at: [Expr; 2],
) -> Result<()> {
    k.spec(Kind::Move, to.clone(), Operand::at(from, at), block.one)?;
    k.spec(Kind::Unary(Unary::Tf32), to.clone(), to, block.one)
}

/// The own lane's two words of an 8×8 part of the right operand, from where `at` says for each.
fn right(
    k: &mut Builder,
    block: &Block<'_>,
    from: TensorId,
    at: impl Fn(i64) -> [Expr; 2],
) -> Result<TensorId> {
    let view = View::buffer(&[leaf(2, 1)]);
    let b = k.allocate("b", view, Scalar::F32, Memory::Registers, None)?;
    for i in 0..2 {
        word(k, block, Operand::at(b, [i]), from, at(i))?;
    }
    Ok(b)
}

impl Products for Rounded {
    fn begin(&self, _: &mut Builder, _: &Block<'_>) -> Result<()> {
        Ok(())
    }

    fn keys(&self, k: &mut Builder, block: &Block<'_>, keys: TensorId) -> Result<()> {
        let queries = k.index(block.shared[0], "of_block", [0])?;
        let columns = k.tile(block.scores, "columns", &[Tiler::Whole, Tiler::Size(1)])?;
        // Of wider heads, more would be asked for at once than there are registers for.
        let unroll = block.fmha.head_width() <= 64;
        k.for_("kk", 0..block.fmha.head_width() / 8, 1, unroll, |k, kk| {
            let depth = |four: i64| Expr::from(kk) * 8 + &block.column + 4 * four;
            let view = View::buffer(&[leaf(2, 2), leaf(2, 1)]);
            let a = k.allocate("a", view, Scalar::F32, Memory::Registers, None)?;
            for (half, four) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let row = block.warp_at.clone() * 16 + &block.row + 8 * half;
                word(k, block, Operand::at(a, [half, four]), queries, [row, depth(four)])?;
            }
            k.for_("n", 0..block.fmha.keys / 8, 1, true, |k, n| {
                let key = Expr::from(n) * 8 + &block.row;
                let b = right(k, block, keys, |four| [key.clone(), depth(four)])?;
                let scores = Operand::at(columns, [Expr::from(0), n.into()]);
                k.spec(Kind::MATMUL_ADD, scores, [a, b], block.warp)
            })
        })
    }

    fn weights(&self, k: &mut Builder, block: &Block<'_>) -> Result<()> {
        k.for_("j", 0..block.fmha.keys / 8, 1, true, |k, j| {
            let to = k.index(self.weights, "to", [j])?;
            k.for_("half", 0..2, 1, true, |k, half| {
                let pair = k.index(block.scores, "pair", [half, j])?;
                k.for_("p", 0..2, 1, true, |k, p| {
                    let (to, from) = (Operand::at(to, [half, p]), Operand::at(pair, [p]));
                    k.spec(Kind::Unary(Unary::Tf32), to, from, block.one)
                })
            })
        })
    }

    fn left(&self) -> [Option<TensorId>; 2] {
        [None, Some(self.weights)]
    }

    fn values(&self, k: &mut Builder, block: &Block<'_>, values: TensorId) -> Result<()> {
        let columns = k.tile(block.sums, "columns", &[Tiler::Whole, Tiler::Size(1)])?;
        k.for_("kk", 0..block.fmha.keys / 8, 1, true, |k, kk| {
            let a = k.index(self.weights, "a", [kk])?;
            let key = |p: i64| Expr::from(kk) * 8 + block.column.clone() * 2 + p;
            k.for_("n", 0..block.fmha.value_width() / 8, 1, true, |k, n| {
                let column = Expr::from(n) * 8 + &block.row;
                let b = right(k, block, values, |p| [key(p), column.clone()])?;
                let sums = Operand::at(columns, [Expr::from(0), n.into()]);
                k.spec(Kind::MATMUL_ADD, sums, [a, b], block.warp)
            })
        })
    }

    fn column(&self, block: &Block<'_>, pair: &Var) -> Expr {
        Expr::from(pair) * 4 + &block.column
    }
}
