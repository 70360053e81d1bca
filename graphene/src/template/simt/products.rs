//! A thread's products of a stage: what it reads of the operands, and in which order it multiplies.

use super::own::{Own, WIDE};
use crate::build::Builder;
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{Kind, Operand, TensorId};
use crate::layout::Tiler;
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};

impl Own {
    /// Adds the products of a stage, four steps along K at a time; of A, from the step `skipped` of
    /// four on.
    pub(in crate::template) fn multiply(
        &self,
        k: &mut Builder,
        acc: TensorId,
        a: TensorId,
        skipped: &Expr,
        b: TensorId,
    ) -> Result<()> {
        let [rows, columns] = self.part;
        k.for_("four", 0..self.sides[1].depth / WIDE, 1, true, |k, four| {
            let four = Expr::from(four);
            let along = skipped.clone() + &four;
            let [a, b] = [self.near(k, 0, a, &along)?, self.near(k, 1, b, &four)?];
            k.for_("kk", 0..WIDE, 1, true, |k, kk| {
                let row = |k: &mut Builder, i: Expr, back: bool| {
                    k.for_("j", 0..columns, 1, true, |k, j| {
                        let j = if back { Expr::from(columns - 1) - j } else { Expr::from(j) };
                        let ins = [
                            Operand::at(a, [i.clone(), kk.into()]),
                            Operand::at(b, [j.clone(), kk.into()]),
                        ];
                        k.spec(Kind::MATMUL_ADD, Operand::at(acc, [i, j]), ins, self.one)
                    })
                };
                // Along one row there, along the next back: of one step along K each product but the first reads what the one
                // before it did, of A or of B, and registers are read less often.
                k.for_("pair", 0..rows / 2, 1, true, |k, pair| {
                    let i = Expr::from(pair) * 2;
                    row(k, i.clone(), false)?;
                    row(k, i + 1, true)
                })?;
                if rows % 2 == 0 { Ok(()) } else { row(k, Expr::from(rows - 1), false) }
            })
        })
    }

    /// Four steps along K of an operand's own rows or columns, in registers: `[rows,4]`.
    fn near(&self, k: &mut Builder, i: usize, from: TensorId, four: &Expr) -> Result<TensorId> {
        let (side, own) = (self.sides[i], self.part[i]);
        let strides = if side.transposed { [1, own] } else { [WIDE, 1] };
        let view = View::buffer(&[leaf(own, strides[0]), leaf(WIDE, strides[1])]);
        let near = k.allocate("near", view, Scalar::F32, Memory::Registers, None)?;
        let pieces = if side.transposed { [WIDE, 1] } else { [1, WIDE] }.map(Tiler::Size);
        let to = k.tile(near, "near_pieces", &pieces)?;
        let from = k.tile(from, "pieces", &side.pieces(WIDE))?;
        let vector = |k: &mut Builder, of, at: [Expr; 2]| {
            let piece = k.index(of, "piece", at)?;
            k.reshape(piece, "piece", 0, &[&[(WIDE, 1)]])
        };
        let (outer, inner) = if side.transposed { (own / WIDE, WIDE) } else { (own, 1) };
        k.for_("piece", 0..outer, 1, true, |k, piece| {
            k.for_("deep", 0..inner, 1, true, |k, deep| {
                let (piece, deep) = (Expr::from(piece), Expr::from(deep));
                let (across, along) = if side.transposed {
                    let first = self.position(i, &(piece.clone() * WIDE));
                    (first.div(&Expr::from(WIDE)), four.clone() * WIDE + &deep)
                } else {
                    (self.position(i, &piece), four.clone())
                };
                let from = vector(k, from, side.order(across, along))?;
                let to = vector(k, to, [piece, deep])?;
                k.spec(Kind::Move, to, from, self.one)
            })
        })?;
        Ok(near)
    }
}
