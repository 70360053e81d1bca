//! A warp's products: fragments of operands from shared memory, and sums in registers.

use crate::build::Builder;
use crate::choose::{Warps, warps};
use crate::error::{Error, Result};
use crate::index::Expr;
use crate::kernel::{Kind, Number, Operand, TensorId, ThreadsId};
use crate::layout::Tiler;
use crate::template::epilogue::{Across, Attached, Run};
use crate::template::product::leaf;
use crate::template::stage::Side;
use crate::tensor::{Memory, Scalar, View};

/// The extents of a product that share their operands' fragments: two instructions.
const INSTRUCTION: [i64; 3] = [16, 16, 16];

/// How a block's warps share a tile, and where the own lane stands.
pub(in crate::template) struct Fragments {
    pub(super) sides: [Side; 2],
    pub(super) warp: ThreadsId,
    /// Each thread on its own.
    pub(in crate::template) one: ThreadsId,
    /// The own warp's row and column of warps.
    pub(in crate::template) at: [Expr; 2],
    pub(in crate::template) lane: Expr,
    /// Sixteens of rows and of columns that a warp has.
    pub(in crate::template) own: [i64; 2],
}

impl Fragments {
    /// The bytes of an operand that lanes read together along the contiguous axis.
    pub(in crate::template) fn chunk(scalar: Scalar, transposed: bool) -> i64 {
        // Of single precision across K, a warp reads eight neighbours of each of four rows.
        if transposed && scalar == Scalar::F32 { 32 } else { 16 }
    }

    pub(in crate::template) fn new(
        k: &mut Builder,
        block: ThreadsId,
        sides: [Side; 2],
        count: i64,
    ) -> Result<Fragments> {
        let product = [sides[0].size, sides[1].size, sides[0].depth];
        let layout = warps(count, product, INSTRUCTION);
        Fragments::arranged(k, block, sides, layout).map(|(fragments, _)| fragments)
    }

    /// Warps as they are laid out; where there are several times as many, also which of these times
    /// the own one belongs to.
    pub(in crate::template) fn arranged(
        k: &mut Builder,
        block: ThreadsId,
        sides: [Side; 2],
        layout: Warps,
    ) -> Result<(Fragments, Expr)> {
        let product = [sides[0].size, sides[1].size];
        let own = [0, 1].map(|i| product[i] / (16 * layout.along[i]));
        if (0..2).any(|i| own[i] < 1 || own[i] * 16 * layout.along[i] != product[i]) {
            let message = format!("{layout:?} do not share {product:?} by sixteens");
            return Err(Error::Kernel(message));
        }
        let one = k.scalar(block, "one")?;
        let warps = k.tile(block, "warps", &[Tiler::Size(32)])?;
        let [number, lane] = k.indices(warps, ["warp", "lane"])?;
        let warp = k.index(warps, "warp", [&number])?;
        let [rows, columns] = layout.along.map(Expr::from);
        let number = Expr::from(number);
        let count = rows.clone() * &columns;
        let (times, number) = (number.div(&count), number.rem(&count));
        let at = if layout.rows_first {
            [number.rem(&rows), number.div(&rows)]
        } else {
            [number.div(&columns), number.rem(&columns)]
        };
        Ok((Fragments { sides, warp, one, at, lane: lane.into(), own }, times))
    }

    /// Registers for the sums: `[16s of rows, 8s of columns].[half].[pair]`.
    pub(in crate::template) fn allocate(&self, k: &mut Builder) -> Result<TensorId> {
        let [rows, columns] = [self.own[0], 2 * self.own[1]];
        let view = View::levels_of(&[
            vec![leaf(rows, 4 * columns), leaf(columns, 4)],
            vec![leaf(2, 2)],
            vec![leaf(2, 1)],
        ]);
        k.allocate("acc", view, Scalar::F32, Memory::Registers, None)
    }

    /// Sets the sums to 0.
    pub(in crate::template) fn reset(&self, k: &mut Builder, acc: TensorId) -> Result<()> {
        k.for_("i", 0..self.own[0], 1, true, |k, i| {
            k.for_("j", 0..2 * self.own[1], 1, true, |k, j| {
                let sums = k.index(acc, "sums", [i, j])?;
                for half in 0..2 {
                    let pair = k.index(sums, "pair", [half])?;
                    for p in 0..2 {
                        k.spec(Kind::Init(Number(0.0)), Operand::at(pair, [p]), (), self.one)?;
                    }
                }
                Ok(())
            })
        })
    }

    /// Adds the products of a stage; of A, from the step `skipped` of 16 along K on.
    pub(in crate::template) fn multiply(
        &self,
        k: &mut Builder,
        acc: TensorId,
        a: TensorId,
        skipped: &Expr,
        b: TensorId,
    ) -> Result<()> {
        let single = self.sides[0].scalar == Scalar::F32;
        // TF32's instructions are eight deep.
        let deep = if single { 8 } else { 16 };
        k.for_("kk", 0..self.sides[1].depth / deep, 1, true, |k, kk| {
            let along = [skipped.clone() * (16 / deep) + Expr::from(kk), Expr::from(kk)];
            let mut near = [a, b];
            for (i, from) in near.iter_mut().enumerate() {
                *from = if single {
                    self.words(k, i, *from, &along[i])?
                } else {
                    self.matrices(k, i, *from, &along[i])?
                };
            }
            let [a, b] = near;
            k.for_("i", 0..self.own[0], 1, true, |k, i| {
                let a = k.index(a, "rows", [i])?;
                k.for_("j", 0..self.own[1], 1, true, |k, j| {
                    let b = k.index(b, "columns", [j])?;
                    let b = k.tile(b, "eights", &[Tiler::Size(1), Tiler::Whole])?;
                    for half in 0..2 {
                        let b = Operand::at(b, [half, 0]);
                        let to = [Expr::from(i), Expr::from(j) * 2 + half];
                        k.spec(Kind::MATMUL_ADD, Operand::at(acc, to), [a.into(), b], self.warp)?;
                    }
                    Ok(())
                })
            })
        })
    }

    /// Goes through the own lane's pairs of sums. `origin` is the row of the tile's first sum, and its
    /// column in pairs.
    pub(in crate::template) fn each_pair(
        &self,
        k: &mut Builder,
        acc: TensorId,
        epilogue: &Attached,
        batch: Option<&Expr>,
        origin: &[Expr; 2],
        body: impl Fn(&mut Builder, TensorId, &Run, &Across) -> Result<()>,
    ) -> Result<()> {
        let four = Expr::from(4);
        let (row, pair) = (self.lane.div(&four), self.lane.rem(&four));
        k.for_("j", 0..2 * self.own[1], 1, true, |k, j| {
            let eights = self.at[1].clone() * (2 * self.own[1]) + Expr::from(j);
            let column = origin[1].clone() + eights * 4 + &pair;
            let across = epilogue.across(k, &column, 2, self.one)?;
            k.for_("i", 0..self.own[0], 1, true, |k, i| {
                let sums = k.index(acc, "sums", [i, j])?;
                for half in 0..2 {
                    let sixteens = self.at[0].clone() * self.own[0] + Expr::from(i);
                    let row = origin[0].clone() + sixteens * 16 + &row + 8 * half;
                    let run = Run { batch: batch.cloned(), row, column: column.clone(), n: 2 };
                    let sums = k.index(sums, "pair", [half])?;
                    body(k, sums, &run, &across)?;
                }
                Ok(())
            })
        })
    }
}
