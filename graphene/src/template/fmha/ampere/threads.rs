//! Products of single precision, by IEEE fused multiply-adds of single threads.
//!
//! A lane has its scores as a warp's tensor cores would give them, four elements of queries and keys
//! at a time. Weights go through shared memory, where the lanes of a quad read all of their rows'; of
//! the values a lane has fours of columns.

use super::{Block, Products};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Kind, Operand, TensorId};
use crate::layout::{Swizzle, Tiler};
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};

/// Elements that a thread reads at once.
const WIDE: i64 = 4;

/// The weights in shared memory: `[rows, keys]`.
pub(super) struct Threads {
    weights: TensorId,
}

impl Threads {
    pub(super) fn new(k: &mut Builder, block: &Block<'_>) -> Result<Threads> {
        let fmha = block.fmha;
        let (rows, keys) = (fmha.rows(), fmha.keys);
        let view = View::buffer(&[leaf(rows, fmha.panel(keys)), fmha.panels(rows, keys)]);
        // Half a warp writes 32 bytes of each of four rows at once.
        let swizzle = Some(Swizzle::new(if fmha.panel(keys) == 32 { 2 } else { 1 }, 5, 2)?);
        let weights = k.allocate("sP", view, Scalar::F32, Memory::Shared, swizzle)?;
        Ok(Threads { weights })
    }

    /// Four elements of a row of shared memory, in registers.
    fn four(
        &self,
        k: &mut Builder,
        block: &Block<'_>,
        rows: TensorId,
        [row, four]: [Expr; 2],
    ) -> Result<TensorId> {
        let view = View::buffer(&[leaf(WIDE, 1)]);
        let near = k.allocate("four", view, Scalar::F32, Memory::Registers, None)?;
        let from = k.index(rows, "from", [row, four])?;
        let from = k.reshape(from, "from", 0, &[&[(WIDE, 1)]])?;
        k.spec(Kind::Move, near, from, block.one)?;
        Ok(near)
    }

    /// Of the own two rows of queries or of weights, four elements each.
    fn rows(
        &self,
        k: &mut Builder,
        block: &Block<'_>,
        fours: TensorId,
        four: &Expr,
    ) -> Result<[TensorId; 2]> {
        let row = |half: i64| block.warp_at.clone() * 16 + &block.row + half * 8;
        Ok([
            self.four(k, block, fours, [row(0), four.clone()])?,
            self.four(k, block, fours, [row(1), four.clone()])?,
        ])
    }
}

/// A matrix in fours along its rows.
fn fours(k: &mut Builder, of: TensorId) -> Result<TensorId> {
    k.tile(of, "fours", &[Tiler::Size(1), Tiler::Size(WIDE)])
}

impl Products for Threads {
    fn begin(&self, _: &mut Builder, _: &Block<'_>) -> Result<()> {
        Ok(())
    }

    fn keys(&self, k: &mut Builder, block: &Block<'_>, keys: TensorId) -> Result<()> {
        let queries = k.index(block.shared[0], "of_block", [0])?;
        let (queries, keys) = (fours(k, queries)?, fours(k, keys)?);
        let one = block.one;
        k.for_("four", 0..block.fmha.head_width() / WIDE, 1, false, |k, four| {
            let four = Expr::from(four);
            let rows = self.rows(k, block, queries, &four)?;
            k.for_("j", 0..block.fmha.keys / 8, 1, true, |k, j| {
                k.for_("p", 0..2, 1, true, |k, p| {
                    let key = Expr::from(j) * 8 + block.column.clone() * 2 + p;
                    let key = self.four(k, block, keys, [key, four.clone()])?;
                    k.for_("kk", 0..WIDE, 1, true, |k, kk| {
                        for (half, row) in [0, 1].into_iter().zip(&rows) {
                            let half = Expr::from(half);
                            let pair = k.index(block.scores, "pair", [half, j.into()])?;
                            let ins = [Operand::at(*row, [kk]), Operand::at(key, [kk])];
                            k.spec(Kind::MATMUL_ADD, Operand::at(pair, [p]), ins, one)?;
                        }
                        Ok(())
                    })
                })
            })
        })
    }

    fn weights(&self, k: &mut Builder, block: &Block<'_>) -> Result<()> {
        let to = k.tile(self.weights, "pairs", &[Tiler::Size(1), Tiler::Size(2)])?;
        k.for_("j", 0..block.fmha.keys / 8, 1, true, |k, j| {
            k.for_("half", 0..2, 1, true, |k, half| {
                let row = block.warp_at.clone() * 16 + &block.row + Expr::from(half) * 8;
                let to = k.index(to, "to", [row, Expr::from(j) * 4 + &block.column])?;
                let to = k.reshape(to, "to", 0, &[&[(2, 1)]])?;
                k.spec(Kind::Move, to, Operand::at(block.scores, [half, j]), block.one)
            })
        })
    }

    fn left(&self) -> [Option<TensorId>; 2] {
        [None, Some(self.weights)]
    }

    fn values(&self, k: &mut Builder, block: &Block<'_>, values: TensorId) -> Result<()> {
        let (weights, values) = (fours(k, self.weights)?, fours(k, values)?);
        let one = block.one;
        k.for_("four", 0..block.fmha.keys / WIDE, 1, false, |k, four| {
            let four = Expr::from(four);
            let rows = self.rows(k, block, weights, &four)?;
            k.for_("kk", 0..WIDE, 1, true, |k, kk| {
                k.for_("f", 0..block.fmha.value_width() / 16, 1, true, |k, f| {
                    let key = four.clone() * WIDE + kk;
                    let own = Expr::from(f) * WIDE + &block.column;
                    let value = self.four(k, block, values, [key, own])?;
                    k.for_("pair", 0..2, 1, true, |k, pair| {
                        k.for_("p", 0..2, 1, true, |k, p| {
                            for (half, row) in [0, 1].into_iter().zip(&rows) {
                                let half = Expr::from(half);
                                let j = Expr::from(f) * 2 + pair;
                                let sums = k.index(block.sums, "sums", [half, j])?;
                                let at = Expr::from(pair) * 2 + p;
                                let ins = [Operand::at(*row, [kk]), Operand::at(value, [at])];
                                k.spec(Kind::MATMUL_ADD, Operand::at(sums, [p]), ins, one)?;
                            }
                            Ok(())
                        })
                    })
                })
            })
        })
    }

    fn column(&self, block: &Block<'_>, pair: &Var) -> Expr {
        let two = Expr::from(2);
        let (four, pair) = (Expr::from(pair).div(&two), Expr::from(pair).rem(&two));
        four * 8 + block.column.clone() * 2 + pair
    }
}
