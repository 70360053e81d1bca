//! A warp's matmul by tensor cores: fragments of operands from shared memory, and sums in registers.

use super::{Near, Runs, TiledMma, place_of};
use crate::template::fragments::{QuadPairs, multiply_16, spot};
use crate::template::{matmul::registers, split_k::Visit, stage::Side};
use crate::{
    Builder, Expr, Kind, Operand, Result, Scalar, TensorId, ThreadsId, Tiler, Unary, Var, choose,
    needs,
};

/// The extents of a matmul that share their operands' fragments: two instructions.
pub(super) const INSTRUCTION: [i64; 3] = [16, 16, 16];

/// How a block's warps share a tile, and where the own lane stands.
pub(crate) struct Warps {
    sides: [Side; 2],
    warp: ThreadsId,
    /// The own warp's row and column of warps.
    pub(crate) at: [Expr; 2],
    pub(crate) lane: Expr,
    /// Its row and its pair of columns in sums of 16×16.
    pub(crate) spot: [Expr; 2],
    /// Who multiplies where no warps do.
    quads: Option<QuadPairs>,
    /// Sixteens of rows and of columns that a warp has.
    own: [i64; 2],
}

impl Warps {
    /// Of tiles of `sides`, arranged so; where there are several times as many warps, also which of these times the own one
    /// belongs to.
    pub(crate) fn arranged(
        k: &mut Builder,
        block: ThreadsId,
        sides: [Side; 2],
        layout: choose::Warps,
    ) -> Result<(Warps, Expr)> {
        let product = [sides[0].size, sides[1].size];
        let own = [0, 1].map(|i| product[i] / (16 * layout.along[i]));
        let whole = |i: usize| own[i] * 16 * layout.along[i] == product[i];
        let shared = (0..2).all(|i| own[i] >= 1 && own[i] % sides[i].matrices == 0 && whole(i));
        needs(shared, "a tile that warps share by sixteens", (layout, product))?;
        let warps = k.tile(block, "warps", &[Tiler::Size(32)])?;
        let [number, lane] = k.indices(warps, ["warp", "lane"])?;
        let warp = k.index(warps, "warp", [&number])?;
        let (number, count) = (Expr::from(number), layout.along[0] * layout.along[1]);
        let (times, at) = (number.div(count), place_of(layout, &number.rem(count)));
        let lane = Expr::from(lane);
        let by_quads = k.arch().multiplies_by_quad_pairs() && sides[0].scalar != Scalar::F32;
        let quads = by_quads.then(|| QuadPairs::new(k, warp)).transpose()?;
        let spot = spot(k.arch(), &lane);
        Ok((Warps { sides, warp, at, lane, spot, quads, own }, times))
    }

    /// All 16×16 parts of an operand at the step `along` K: `[16s].[eights of its side, of K].[pair]`.
    fn matrices(&self, k: &mut Builder, i: usize, of: TensorId, along: &Expr) -> Result<TensorId> {
        let side = self.sides[i];
        // Transposed as they are loaded, a lane's pairs are columns of what is stored.
        let pair = if side.transposed { [(2, 1), (1, 0)] } else { [(1, 0), (2, 1)] };
        let levels: [&[(i64, i64)]; 3] = [&[(self.own[i], 8)], &[(2, 4), (2, 2)], &pair];
        let to = registers(k, "near", &levels, side.scalar)?;
        let rows = k.tile(of, "eights", &side.pieces(8))?;
        // Lane 8i + r holds the address of row r of the i-th of 2×2 matrices: of B by its side, of A by its depth.
        let row = self.lane.rem(8);
        let (fast, slow) = (self.lane.div(8).rem(2), self.lane.div(16));
        // Registers of A run down its rows first (PTX, `mma.m16n8k16`): loaded in that order, none has to move.
        let (of_side, of_depth) = if side.right { (slow, fast) } else { (fast, slow) };
        k.unroll("part", self.own[i], |k, part| {
            let sixteens = self.sixteens(i, part);
            let (across, depth) = (sixteens * 2 + &of_side, along.clone() * 2 + &of_depth);
            let at = match side.transposed {
                true => side.order(across, depth * 8 + &row),
                false => side.order(across * 8 + &row, depth),
            };
            let row = k.index(rows, "row", at)?;
            let mut to = k.index(to, "matrices", [part])?;
            if !side.right {
                to = k.reshape(to, "down", 0, &[&[(2, 2)], &[(2, 1)]])?;
            }
            k.spec(Kind::Move, to, row, self.warp)
        })?;
        Ok(to)
    }

    /// The own 16×4 parts of an operand at the step of eight `along` K, as quad pairs have them: `[16s, fours of K].[four]`.
    fn fours(
        &self,
        k: &mut Builder,
        quads: &QuadPairs,
        (i, from): (usize, TensorId),
        along: &Expr,
    ) -> Result<TensorId> {
        let side = self.sides[i];
        let across = side.right && side.transposed;
        let levels: [&[(i64, i64)]; 2] = [&[(self.own[i], 8), (2, 4)], &QuadPairs::four(across)];
        let near = registers(k, "near", &levels, side.scalar)?;
        k.unroll_both([("part", self.own[i]), ("four", 2)], |k, [part, four]| {
            let to = k.index(near, "four", [part, four])?;
            let to = k.reshape(to, "four", 0, &[&[(4, 1)]])?;
            let (sixteens, four) = (self.sixteens(i, part), along.clone() * 2 + four);
            let own = sixteens.clone() * 16 + if side.right { &quads.column } else { &quads.row };
            if side.transposed && !side.right {
                return k.unroll("step", 4, |k, step| {
                    let at = side.order(own.clone(), four.clone() * 4 + step);
                    k.move_(Operand::at(to, [step]), Operand::at(from, at))
                });
            }
            let at = match across {
                true => side.order(sixteens * 4 + &quads.four, four * 4 + &quads.step),
                false => side.order(own, four),
            };
            let piece = side.piece_of(k, from, 4, at)?;
            k.move_(to, piece)
        })?;
        Ok(near)
    }

    /// Where in the tile the own sixteen of a number is.
    fn sixteens(&self, i: usize, part: &Var) -> Expr {
        let (side, own) = (self.sides[i], self.own[i]);
        let [first, part] = side.of_matrix(part.into(), [own, side.size / 16]);
        first + self.at[i].clone() * (own / side.matrices) + part
    }

    /// The 16×8 parts of an operand in single precision, rounded to TF32: `[16s].[eights, fours of K]`.
    fn words(&self, k: &mut Builder, i: usize, from: TensorId, along: &Expr) -> Result<TensorId> {
        let side = self.sides[i];
        let to = registers(k, "near", &[&[(self.own[i], 4)], &[(2, 2), (2, 1)]], Scalar::F32)?;
        let (row, column) = (self.lane.div(4), self.lane.rem(4));
        k.unroll("part", self.own[i], |k, part| {
            let sixteens = self.sixteens(i, part);
            let to = k.index(to, "part", [part])?;
            [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().try_for_each(|(eight, four)| {
                let across = sixteens.clone() * 16 + &row + 8 * eight;
                let depth = along.clone() * 8 + &column + 4 * four;
                let from = Operand::at(from, side.order(across, depth));
                let to = Operand::at(to, [eight, four]);
                k.move_(to.clone(), from)?;
                k.unary(Unary::Tf32, to.clone(), to)
            })
        })?;
        Ok(to)
    }
}

impl TiledMma for Warps {
    fn own_part(&self) -> ([i64; 2], [Expr; 2]) {
        let size = [0, 1].map(|i| 16 * self.own[i] / self.sides[i].matrices);
        (size, self.at.clone())
    }

    /// `[16s of rows, 8s of columns].[half].[pair]`
    fn allocate(&self, k: &mut Builder) -> Result<TensorId> {
        let [rows, columns] = [self.own[0], 2 * self.own[1]];
        let sums: &[(i64, i64)] = &[(rows, 4 * columns), (columns, 4)];
        registers(k, "acc", &[sums, &[(2, 2)], &[(2, 1)]], Scalar::F32)
    }

    fn reset(&self, k: &mut Builder, acc: TensorId) -> Result {
        k.unroll_both([("i", self.own[0]), ("j", 2 * self.own[1])], |k, [i, j]| {
            (0..2).try_for_each(|half| {
                let pair = self.run(k, acc, half, [i, j].map(Expr::from))?;
                (0..2).try_for_each(|p| k.init(Operand::at(pair, [p]), 0.0))
            })
        })
    }

    fn multiply(&self, k: &mut Builder, near: Near, skipped: &Expr) -> Result {
        let single = self.sides[0].scalar == Scalar::F32;
        // TF32's instructions are eight deep, two of quad pairs as well.
        let deep = if single || self.quads.is_some() { 8 } else { 16 };
        k.unroll("kk", self.sides[1].depth / deep, |k, kk| {
            let mut held = |i: usize, of: TensorId, along: Expr| match &self.quads {
                Some(quads) => self.fours(k, quads, (i, of), &along),
                None if single => self.words(k, i, of, &along),
                None => self.matrices(k, i, of, &along),
            };
            let a = held(0, near.a, skipped.clone() * (16 / deep) + kk)?;
            let b = held(1, near.b, kk.into())?;
            if let Some(quads) = &self.quads {
                let sixteens = k.tile(near.c, "sixteens", &[Tiler::Size(1), Tiler::Size(2)])?;
                return k.unroll_both([("i", self.own[0]), ("j", self.own[1])], |k, [i, j]| {
                    k.unroll("four", 2, |k, four| {
                        let ins = [k.index(a, "row", [i, four])?, k.index(b, "column", [j, four])?];
                        k.spec(Kind::MATMUL_ADD, Operand::at(sixteens, [i, j]), ins, quads.pair)
                    })
                });
            }
            k.unroll("i", self.own[0], |k, i| {
                let a = k.index(a, "rows", [i])?;
                k.unroll("j", self.own[1], |k, j| {
                    let b = k.index(b, "columns", [j])?;
                    (0..2).try_for_each(|half| {
                        let to = Operand::at(near.c, [Expr::from(i), Expr::from(j) * 2 + half]);
                        multiply_16(k, to, a, (b, half), self.warp)
                    })
                })
            })
        })
    }

    fn each_pair(&self, k: &mut Builder, acc: TensorId, visit: Visit<'_>) -> Result {
        let [rows, columns] = [self.own[0], 2 * self.own[1]];
        k.unroll_both([("i", rows), ("j", columns)], |k, [i, j]| {
            let sums = k.index(acc, "sums", [i, j])?;
            k.unroll("half", 2, |k, half| {
                let pair = k.index(sums, "pair", [half])?;
                let eights = Expr::from(i) * columns + Expr::from(j);
                visit(k, pair, eights * 2 + Expr::from(half))
            })
        })
    }

    fn runs(&self) -> Runs {
        Runs { n: 2, columns: 2 * self.own[1], rows: ("i", self.own[0]), eights: 2 }
    }

    fn row(&self, i: &Var) -> Expr {
        (self.at[0].clone() * self.own[0] + i) * 16 + &self.spot[0]
    }

    fn column(&self, j: &Expr) -> Expr {
        let eights = 2 * self.own[1] / self.sides[1].matrices;
        (self.at[1].clone() * eights + j) * 4 + &self.spot[1]
    }

    fn run(&self, k: &mut Builder, acc: TensorId, half: i64, at: [Expr; 2]) -> Result<TensorId> {
        let sums = k.index(acc, "sums", at)?;
        k.index(sums, "pair", [half])
    }
}
