//! The sums of a step: a block's rows of the batch by its units, all sums of a unit with one thread.
//!
//! Columns stand by eights of units: eight units of the first sum, the same of the second, …; so what a
//! thread has of one sum are the same units as of the others.

use super::Recurrent;
use crate::template::tiled_mma::{Near, TiledMma, Warps, place_of};
use crate::template::{matmul::registers, stage::Side};
use crate::{
    Builder, Expr, Fused, Kind, Layout, Memory, Operand, Result, Scalar, TensorId, ThreadsId,
    Tiler, choose, choose::in_registers, needs, schedule::neighbours,
};

/// Elements that a thread reads at once from shared memory, in single precision.
const WIDE: i64 = 4;

/// A warp's threads along rows and along columns, in single precision.
const LANES: [i64; 2] = [8, 4];

/// How a block's warps share the sums.
pub(super) struct Sums {
    pub(super) who: Who,
    /// The tiles of both operands, of all of a stage's depth.
    pub(super) sides: [Side; 2],
    /// Sums of a unit.
    pub(super) gates: i64,
    /// Rows and eights of units that a thread has a part of.
    pub(super) rows: i64,
    pub(super) eights: i64,
    /// The warp's row and column of warps, and which part of the depth it multiplies.
    pub(super) at: [Expr; 2],
    pub(super) lane: Expr,
    pub(super) slice: Expr,
    pub(super) slices: i64,
    pub(super) warps: choose::Warps,
    pub(super) block: ThreadsId,
}

pub(super) enum Who {
    /// By tensor cores: a thread has pairs of neighbouring units.
    Warps(Box<Warps>),
    /// By fused multiply-adds: a thread has every fourth unit.
    Threads,
}

impl Sums {
    /// Bytes that lanes read together.
    pub(super) const CHUNK: i64 = 16;

    pub(super) fn new(k: &mut Builder, block: ThreadsId, layer: &Recurrent) -> Result<Sums> {
        let (sides, gates) = (layer.sides(), layer.sums());
        let Recurrent { warps: along, slices, .. } = *layer;
        let single = sides[0].scalar == Scalar::F32;
        let warps = choose::Warps { along, rows_first: true };
        let least = if single { [LANES[0], 8 * gates] } else { [16, 8 * gates] };
        let product = [sides[0].size, sides[1].size];
        let deep = if single { WIDE } else { 16 };
        let shared = (0..2).all(|i| along[i] >= 1 && product[i] % (least[i] * along[i]) == 0);
        let shared = shared && slices >= 1 && sides[0].depth % (slices * deep) == 0;
        needs(shared, "sums that warps share", (product, least, along, slices))?;
        let own = [0, 1].map(|i| product[i] / (least[i] * along[i]));
        let part = sides.map(|side| Side { depth: side.depth / slices, ..side });
        let (who, at, lane, slice, rows) = if single {
            let tiles = k.tile(block, "warps", &[Tiler::Size(32)])?;
            let [number, lane] = k.indices(tiles, ["warp", "lane"])?;
            let (number, count) = (Expr::from(number), along[0] * along[1]);
            let (slice, at) = (number.div(count), place_of(warps, &number.rem(count)));
            (Who::Threads, at, Expr::from(lane), slice, own[0])
        } else {
            let (fragments, slice) = Warps::arranged(k, block, part, warps)?;
            let (at, lane) = (fragments.at.clone(), fragments.lane.clone());
            (Who::Warps(Box::new(fragments)), at, lane, slice, 2 * own[0])
        };
        let eights = own[1];
        let sums = Sums { who, sides, gates, rows, eights, at, lane, slice, slices, warps, block };
        needs(in_registers(sums.count() * 32, 32), "sums that fit registers", sums.count())?;
        Ok(sums)
    }

    /// Neighbouring units of a run.
    pub(super) fn run(&self) -> i64 {
        if let Who::Warps(_) = self.who { 2 } else { 1 }
    }

    /// Runs that a thread has in a row.
    pub(super) fn runs(&self) -> i64 {
        self.eights * 2 / self.run()
    }

    /// Sums that a thread has in a row.
    fn columns(&self) -> i64 {
        2 * self.eights * self.gates
    }

    /// Sums that a thread has.
    pub(super) fn count(&self) -> i64 {
        self.rows * self.columns()
    }

    /// The place in the block's tile of the own row of this number.
    pub(super) fn row(&self, number: &Expr) -> Expr {
        let warp = self.at[0].clone();
        match &self.who {
            Who::Warps(fragments) => {
                let sixteen = warp * (self.rows / 2) + number.div(2);
                sixteen * 16 + &fragments.spot[0] + number.rem(2) * 8
            }
            Who::Threads => (warp * self.rows + number) * LANES[0] + self.lane.rem(8),
        }
    }

    /// The place among the block's units of the own run of this number, in runs.
    pub(super) fn unit(&self, number: &Expr) -> Expr {
        let first = self.at[1].clone() * self.eights;
        match &self.who {
            Who::Warps(fragments) => (first + number) * 4 + &fragments.spot[1],
            Who::Threads => {
                let half = number.rem(2) * LANES[1];
                (first + number.div(2)) * 8 + half + self.lane.div(8)
            }
        }
    }

    pub(super) fn allocate(&self, k: &mut Builder) -> Result<TensorId> {
        match &self.who {
            Who::Warps(fragments) => fragments.allocate(k),
            Who::Threads => {
                let view = Layout::rows([self.rows, self.columns()]);
                k.allocate("acc", view, Scalar::F32, Memory::Registers, None)
            }
        }
    }

    /// `body` for each own row and run.
    pub(super) fn each(
        &self,
        k: &mut Builder,
        body: impl Fn(&mut Builder, [&Expr; 2]) -> Result,
    ) -> Result {
        k.unroll("i", self.rows, |k, row| {
            k.unroll("j", self.runs(), |k, run| body(k, [&Expr::from(row), &Expr::from(run)]))
        })
    }

    /// What becomes of sums and a stage: each slice of it has sums of its own.
    pub(super) fn kind(&self) -> Kind {
        if self.slices == 1 {
            return Kind::MATMUL_ADD;
        }
        let depth = self.sides[0].depth / self.slices;
        let rows = Fused::input(0).split(1, depth).dims([1, 0, 2].map(Some));
        let matmul = rows.matmul(Fused::input(1).split(0, depth));
        Kind::Fused(matmul + Fused::old(0))
    }

    pub(super) fn multiply(&self, k: &mut Builder, near: Near) -> Result {
        let mut own = [near.a, near.b];
        if self.slices > 1 {
            for (tile, side) in own.iter_mut().zip(&self.sides) {
                let depth = side.depth / self.slices;
                let slices =
                    k.tile(*tile, "slices", &side.order(Tiler::Whole, Tiler::Size(depth)))?;
                *tile = k.index(slices, "slice", side.order(Expr::from(0), self.slice.clone()))?;
            }
        }
        let [a, b] = own;
        match &self.who {
            Who::Warps(fragments) => fragments.multiply(k, Near { a, b, ..near }, &0.into()),
            Who::Threads => self.add(k, near.c, own),
        }
    }

    /// In single precision: four steps along the depth at a time.
    fn add(&self, k: &mut Builder, acc: TensorId, near: [TensorId; 2]) -> Result {
        k.for_("four", 0..self.sides[0].depth / self.slices / WIDE, 1, false, |k, four| {
            let four = Expr::from(four);
            let own = [self.fours(k, 0, near[0], &four)?, self.fours(k, 1, near[1], &four)?];
            k.unroll("kk", WIDE, |k, kk| {
                k.unroll_both([("i", self.rows), ("j", self.columns())], |k, [i, j]| {
                    let ins = [Operand::at(own[0], [i, kk]), Operand::at(own[1], [j, kk])];
                    k.fma(Operand::at(acc, [i, j]), ins)
                })
            })
        })
    }

    /// Four steps of an operand's own rows or columns in registers: `[count,4]`.
    fn fours(&self, k: &mut Builder, i: usize, from: TensorId, four: &Expr) -> Result<TensorId> {
        let (side, count) = (self.sides[i], [self.rows, self.columns()][i]);
        let lane = [self.lane.rem(LANES[0]), self.lane.div(LANES[0])][i].clone();
        let first = self.at[i].clone() * (count * LANES[i]) + lane;
        let to = registers(k, "near", &[&[(count, WIDE), (WIDE, 1)]], Scalar::F32)?;
        k.unroll("piece", count, |k, piece| {
            let at = side.order(Expr::from(piece) * LANES[i] + &first, four.clone());
            let from = side.piece_of(k, from, WIDE, at)?;
            let to = neighbours(k, to, [Expr::from(piece), Expr::from(0)], WIDE, "to")?;
            k.move_(to, from)
        })?;
        Ok(to)
    }
}
