//! Products in single precision, by the fused multiply-adds of single threads.

use super::sums::{LANES, Sums, WIDE};
use crate::build::Builder;
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{Kind, Operand, TensorId};
use crate::layout::Tiler;
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};

impl Sums {
    /// In single precision: four steps along the depth at a time.
    pub(super) fn add(&self, k: &mut Builder, acc: TensorId, near: [TensorId; 2]) -> Result<()> {
        let columns = 2 * self.eights * self.gates;
        let counts = [self.rows, columns];
        k.for_("four", 0..self.sides[0].depth / self.slices / WIDE, 1, false, |k, four| {
            let mut own = near;
            for (i, tile) in own.iter_mut().enumerate() {
                let first = self.at[i].clone() * (counts[i] * LANES[i]) + self.lane_of(i);
                *tile = self.fours(k, i, *tile, counts[i], &first, &Expr::from(four))?;
            }
            k.for_("kk", 0..WIDE, 1, true, |k, kk| {
                k.for_("i", 0..counts[0], 1, true, |k, i| {
                    k.for_("j", 0..counts[1], 1, true, |k, j| {
                        let ins = [Operand::at(own[0], [i, kk]), Operand::at(own[1], [j, kk])];
                        k.spec(Kind::MATMUL_ADD, Operand::at(acc, [i, j]), ins, self.one)
                    })
                })
            })
        })
    }

    fn lane_of(&self, i: usize) -> Expr {
        let eight = Expr::from(LANES[0]);
        if i == 0 { self.lane.rem(&eight) } else { self.lane.div(&eight) }
    }

    /// Four steps of an operand's own rows or columns in registers: `[count,4]`.
    fn fours(
        &self,
        k: &mut Builder,
        i: usize,
        from: TensorId,
        count: i64,
        first: &Expr,
        four: &Expr,
    ) -> Result<TensorId> {
        let side = self.sides[i];
        let view = View::buffer(&[leaf(count, WIDE), leaf(WIDE, 1)]);
        let to = k.allocate("near", view, Scalar::F32, Memory::Registers, None)?;
        let to_pieces = k.tile(to, "near_pieces", &[Tiler::Size(1), Tiler::Size(WIDE)])?;
        let pieces = k.tile(from, "pieces", &side.pieces(WIDE))?;
        k.for_("piece", 0..count, 1, true, |k, piece| {
            let at = side.order(Expr::from(piece) * LANES[i] + first, four.clone());
            let from = k.index(pieces, "piece", at)?;
            let from = k.reshape(from, "piece", 0, &[&[(WIDE, 1)]])?;
            let to = k.index(to_pieces, "to", [Expr::from(piece), Expr::from(0)])?;
            let to = k.reshape(to, "to", 0, &[&[(WIDE, 1)]])?;
            k.spec(Kind::Move, to, from, self.one)
        })?;
        Ok(to)
    }
}
