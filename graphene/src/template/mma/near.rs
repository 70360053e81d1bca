//! Fragments of operands, from shared memory to registers.

use super::Fragments;
use crate::build::Builder;
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{Kind, Operand, TensorId, Unary};
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};

impl Fragments {
    /// All 16×16 parts of an operand at the step `along` K: `[16s].[eights of its side, of K].[pair]`.
    pub(super) fn matrices(
        &self,
        k: &mut Builder,
        i: usize,
        from: TensorId,
        along: &Expr,
    ) -> Result<TensorId> {
        let side = self.sides[i];
        // Transposed as they are loaded, a lane's pairs are columns of what is stored.
        let pair =
            if side.transposed { [leaf(2, 1), leaf(1, 0)] } else { [leaf(1, 0), leaf(2, 1)] };
        let view = View::levels_of(&[
            vec![leaf(self.own[i], 8)],
            vec![leaf(2, 4), leaf(2, 2)],
            pair.to_vec(),
        ]);
        let to = k.allocate("near", view, side.scalar, Memory::Registers, None)?;
        let rows = k.tile(from, "eights", &side.pieces(8))?;
        // Lane 8i + r holds the address of row r of the i-th of 2×2 matrices: of the side, of K.
        let [sixteen, eight] = [16, 8].map(Expr::from);
        let row = self.lane.rem(&eight);
        let (of_side, of_depth) = (self.lane.div(&sixteen), self.lane.div(&eight).rem(&2.into()));
        k.for_("part", 0..self.own[i], 1, true, |k, part| {
            let sixteens = self.at[i].clone() * self.own[i] + Expr::from(part);
            let eights = [sixteens * 2 + &of_side, along.clone() * 2 + &of_depth];
            let [across, depth] = eights;
            let at = if side.transposed {
                side.order(across, depth * 8 + &row)
            } else {
                side.order(across * 8 + &row, depth)
            };
            let row = k.index(rows, "row", at)?;
            k.spec(Kind::Move, Operand::at(to, [part]), row, self.warp)
        })?;
        Ok(to)
    }

    /// The 16×8 parts of an operand in single precision, rounded to TF32: `[16s].[eights, fours of K]`.
    pub(super) fn words(
        &self,
        k: &mut Builder,
        i: usize,
        from: TensorId,
        along: &Expr,
    ) -> Result<TensorId> {
        let side = self.sides[i];
        let view = View::levels_of(&[vec![leaf(self.own[i], 4)], vec![leaf(2, 2), leaf(2, 1)]]);
        let to = k.allocate("near", view, Scalar::F32, Memory::Registers, None)?;
        let four = Expr::from(4);
        let (row, column) = (self.lane.div(&four), self.lane.rem(&four));
        k.for_("part", 0..self.own[i], 1, true, |k, part| {
            let sixteens = self.at[i].clone() * self.own[i] + Expr::from(part);
            let to = k.index(to, "part", [part])?;
            for (eight, four) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let across = sixteens.clone() * 16 + &row + 8 * eight;
                let depth = along.clone() * 8 + &column + 4 * four;
                let from = Operand::at(from, side.order(across, depth));
                let to = Operand::at(to, [eight, four]);
                k.spec(Kind::Move, to.clone(), from, self.one)?;
                k.spec(Kind::Unary(Unary::Tf32), to.clone(), to, self.one)?;
            }
            Ok(())
        })?;
        Ok(to)
    }
}
