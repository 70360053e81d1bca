//! The sums of a step: a block's rows of the batch by its units, all sums of a unit with one thread.
//!
//! Columns stand by eights of units: eight units of the first sum, the same of the second, …; so what a
//! thread has of one sum are the same units as of the others.

use crate::build::Builder;
use crate::choose::{Warps, in_registers};
use crate::error::{Error, Result};
use crate::index::{Cond, Expr, Relation};
use crate::kernel::{Binary, Kind, Number, Operand, TensorId, ThreadsId};
use crate::schedule::pointwise::{each, number};
use crate::template::mma::Fragments;
use crate::template::product::leaf;
use crate::template::stage::Side;
use crate::tensor::{Memory, Scalar, Shape, Tile, View};

/// Elements that a thread reads at once from shared memory, in single precision.
const WIDE: i64 = 4;

/// A warp's threads along rows and along columns, in single precision.
const LANES: [i64; 2] = [8, 4];

/// How a block's warps share the sums.
pub(super) struct Sums {
    who: Who,
    /// The tiles of both operands, of all of a stage's depth.
    sides: [Side; 2],
    /// Sums of a unit.
    gates: i64,
    /// Rows and eights of units that a thread has a part of.
    pub(super) rows: i64,
    eights: i64,
    /// The warp's row and column of warps, and which part of the depth it multiplies.
    at: [Expr; 2],
    lane: Expr,
    slice: Expr,
    slices: i64,
    warps: Warps,
    /// Each thread on its own.
    pub(super) one: ThreadsId,
    block: ThreadsId,
}

enum Who {
    /// By tensor cores: a thread has pairs of neighbouring units.
    Warps(Fragments),
    /// By fused multiply-adds: a thread has every fourth unit.
    Threads,
}

impl Sums {
    /// Bytes that lanes read together.
    pub(super) const CHUNK: i64 = 16;

    pub(super) fn new(
        k: &mut Builder,
        block: ThreadsId,
        sides: [Side; 2],
        gates: i64,
        along: [i64; 2],
        slices: i64,
    ) -> Result<Sums> {
        let single = sides[0].scalar == Scalar::F32;
        let warps = Warps { along, rows_first: true };
        let least = if single { [LANES[0], 8 * gates] } else { [16, 8 * gates] };
        let product = [sides[0].size, sides[1].size];
        let deep = if single { WIDE } else { 16 };
        if (0..2).any(|i| along[i] < 1 || product[i] % (least[i] * along[i]) != 0)
            || slices < 1
            || sides[0].depth % (slices * deep) != 0
        {
            let message = format!("{slices} times {warps:?} do not share {product:?} by {least:?}");
            return Err(Error::Kernel(message));
        }
        let own = [0, 1].map(|i| product[i] / (least[i] * along[i]));
        let one = k.scalar(block, "one")?;
        let part = sides.map(|side| Side { depth: side.depth / slices, ..side });
        let (who, at, lane, slice, rows) = if single {
            let tiles = k.tile(block, "warps", &[Tile::of(32)])?;
            let [number, lane] = k.indices(tiles, ["warp", "lane"])?;
            let (number, rows) = (Expr::from(number), Expr::from(along[0]));
            let count = Expr::from(along[0] * along[1]);
            let (slice, number) = (number.div(&count), number.rem(&count));
            let at = [number.rem(&rows), number.div(&rows)];
            (Who::Threads, at, Expr::from(lane), slice, own[0])
        } else {
            let (fragments, slice) = Fragments::arranged(k, block, part, warps)?;
            let (at, lane) = (fragments.at.clone(), fragments.lane.clone());
            (Who::Warps(fragments), at, lane, slice, 2 * own[0])
        };
        let sums = Sums {
            who,
            sides,
            gates,
            rows,
            eights: own[1],
            at,
            lane,
            slice,
            slices,
            warps,
            one,
            block,
        };
        if !in_registers(sums.count() * 32, 32) {
            return Err(Error::Kernel("a thread has too many sums".to_owned()));
        }
        Ok(sums)
    }

    /// Neighbouring units of a run.
    pub(super) fn run(&self) -> i64 {
        match self.who {
            Who::Warps(_) => 2,
            Who::Threads => 1,
        }
    }

    /// Runs that a thread has in a row.
    pub(super) fn runs(&self) -> i64 {
        self.eights * 2 / self.run()
    }

    /// Sums that a thread has.
    fn count(&self) -> i64 {
        self.rows * self.eights * 2 * self.gates
    }

    /// The place in the block's tile of the own row of this number.
    pub(super) fn row(&self, number: &Expr) -> Expr {
        let (two, four, eight) = (Expr::from(2), Expr::from(4), Expr::from(8));
        let warp = self.at[0].clone();
        match self.who {
            Who::Warps(_) => {
                let sixteen = warp * (self.rows / 2) + number.div(&two);
                sixteen * 16 + self.lane.div(&four) + number.rem(&two) * 8
            }
            Who::Threads => (warp * self.rows + number) * LANES[0] + self.lane.rem(&eight),
        }
    }

    /// The place among the block's units of the own run of this number, in runs.
    pub(super) fn unit(&self, number: &Expr) -> Expr {
        let (two, four, eight) = (Expr::from(2), Expr::from(4), Expr::from(8));
        let first = self.at[1].clone() * self.eights;
        match self.who {
            Who::Warps(_) => (first + number) * 4 + self.lane.rem(&four),
            Who::Threads => {
                let half = number.rem(&two) * LANES[1];
                (first + number.div(&two)) * 8 + half + self.lane.div(&eight)
            }
        }
    }

    /// Registers for the sums.
    pub(super) fn allocate(&self, k: &mut Builder) -> Result<TensorId> {
        match &self.who {
            Who::Warps(fragments) => fragments.clear(k),
            Who::Threads => {
                let view = Shape::rows([self.rows, 2 * self.eights * self.gates]);
                k.allocate("acc", view, Scalar::F32, Memory::Registers, None)
            }
        }
    }

    /// The sums of a run in a row: `[run]`.
    pub(super) fn of(
        &self,
        k: &mut Builder,
        acc: TensorId,
        [row, run]: [&Expr; 2],
        gate: i64,
    ) -> Result<TensorId> {
        let two = Expr::from(2);
        match self.who {
            Who::Warps(_) => {
                let sums =
                    k.index(acc, "sums", [row.div(&two), run.clone() * self.gates + gate])?;
                k.index(sums, "pair", [row.rem(&two)])
            }
            Who::Threads => {
                let column = (run.div(&two) * self.gates + gate) * 2 + run.rem(&two);
                let single = k.tile(acc, "single", &[Tile::of(1), Tile::of(1)])?;
                let single = k.index(single, "single", [row.clone(), column])?;
                k.reshape(single, "sum", 0, &[&[(1, 1)]])
            }
        }
    }

    /// `body` for each own row and run.
    pub(super) fn each(
        &self,
        k: &mut Builder,
        body: impl Fn(&mut Builder, [&Expr; 2]) -> Result<()>,
    ) -> Result<()> {
        k.for_("i", 0..self.rows, 1, true, |k, row| {
            k.for_("j", 0..self.runs(), 1, true, |k, run| {
                body(k, [&Expr::from(row), &Expr::from(run)])
            })
        })
    }

    /// Registers for a number of each own unit in each own row: `[row, run].[unit]`.
    pub(super) fn state(&self, k: &mut Builder, name: &str) -> Result<TensorId> {
        let (runs, run) = (self.runs(), self.run());
        let outer = vec![leaf(self.rows, runs * run), leaf(runs, run)];
        let view = View::levels_of(&[outer, vec![leaf(run, 1)]]);
        k.allocate(name, view, Scalar::F32, Memory::Registers, None)
    }

    /// Registers for a number of each sum of each own unit: `[run, sum].[unit]`.
    pub(super) fn of_columns(&self, k: &mut Builder, name: &str) -> Result<TensorId> {
        let run = self.run();
        let outer = vec![leaf(self.runs(), self.gates * run), leaf(self.gates, run)];
        let view = View::levels_of(&[outer, vec![leaf(run, 1)]]);
        k.allocate(name, view, Scalar::F32, Memory::Registers, None)
    }

    /// Sets the sums to what each column begins with; where the depth is shared, to 0 but for one.
    pub(super) fn begin(&self, k: &mut Builder, acc: TensorId, first: TensorId) -> Result<()> {
        let set = |k: &mut Builder| {
            self.each(k, |k, at| {
                for gate in 0..self.gates {
                    let to = self.of(k, acc, at, gate)?;
                    let from = k.index(first, "first", [at[1].clone(), Expr::from(gate)])?;
                    each(k, self.run(), |k, e| {
                        k.spec(Kind::Move, Operand::at(to, [&e]), Operand::at(from, [&e]), self.one)
                    })?;
                }
                Ok(())
            })
        };
        if self.slices == 1 {
            return set(k);
        }
        self.clear(k, acc)?;
        k.if_(Cond::equal(self.slice.clone(), 0), set)
    }

    /// Begins with the last sum of each unit anew; what the sums of other slices have been added to
    /// stays.
    pub(super) fn begin_last(&self, k: &mut Builder, acc: TensorId, first: TensorId) -> Result<()> {
        let last = self.gates - 1;
        self.of_first(k, |k| {
            self.each(k, |k, at| {
                let to = self.of(k, acc, at, last)?;
                let from = k.index(first, "first", [at[1].clone(), Expr::from(last)])?;
                each(k, self.run(), |k, e| {
                    k.spec(Kind::Move, Operand::at(to, [&e]), Operand::at(from, [&e]), self.one)
                })
            })
        })?;
        if self.slices == 1 {
            return Ok(());
        }
        k.if_(Cond::new(self.slice.clone(), Relation::AtLeast, 1), |k| self.clear(k, acc))
    }

    /// Sets the sums to 0.
    fn clear(&self, k: &mut Builder, acc: TensorId) -> Result<()> {
        self.each(k, |k, at| {
            for gate in 0..self.gates {
                let to = self.of(k, acc, at, gate)?;
                each(k, self.run(), |k, e| {
                    k.spec(Kind::Init(Number(0.0)), Operand::at(to, [&e]), (), self.one)
                })?;
            }
            Ok(())
        })
    }

    /// Adds the products of a stage.
    pub(super) fn multiply(
        &self,
        k: &mut Builder,
        acc: TensorId,
        near: [TensorId; 2],
    ) -> Result<()> {
        let mut own = near;
        if self.slices > 1 {
            for (tile, side) in own.iter_mut().zip(&self.sides) {
                let depth = side.depth / self.slices;
                let slices = k.tile(*tile, "slices", &side.order(Tile::Whole, Tile::of(depth)))?;
                *tile = k.index(slices, "slice", side.order(Expr::from(0), self.slice.clone()))?;
            }
        }
        match &self.who {
            Who::Warps(fragments) => fragments.multiply(k, acc, own[0], &Expr::from(0), own[1]),
            Who::Threads => self.add(k, acc, own),
        }
    }

    /// In single precision: four steps along the depth at a time.
    fn add(&self, k: &mut Builder, acc: TensorId, near: [TensorId; 2]) -> Result<()> {
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
                        k.spec(Kind::MatMul, Operand::at(acc, [i, j]), ins, self.one)
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
        let to_pieces = k.tile(to, "near_pieces", &[Tile::of(1), Tile::of(WIDE)])?;
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

    /// What only threads do that have complete sums.
    pub(super) fn of_first(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder) -> Result<()>,
    ) -> Result<()> {
        if self.slices == 1 { body(k) } else { k.if_(Cond::equal(self.slice.clone(), 0), body) }
    }

    /// Shared memory for parts of the sums, where the depth is shared.
    pub(super) fn parts(&self, k: &mut Builder) -> Result<Option<TensorId>> {
        if self.slices == 1 {
            return Ok(None);
        }
        let warps = self.warps.along[0] * self.warps.along[1];
        let view = Shape::rows([self.slices - 1, warps, self.count(), 32]);
        k.allocate("parts", view, Scalar::F32, Memory::Shared, None).map(Some)
    }

    /// Adds the parts of all slices to those of the first, and goes on with the threads of that one.
    pub(super) fn complete(
        &self,
        k: &mut Builder,
        acc: TensorId,
        parts: Option<TensorId>,
        body: impl Fn(&mut Builder) -> Result<()>,
    ) -> Result<()> {
        let Some(parts) = parts else { return body(k) };
        let warp = self.at[1].clone() * self.warps.along[0] + &self.at[0];
        let place = |slice: Expr, at: [&Expr; 2], gate: i64, e: Expr| {
            let element = at[0].clone() * self.runs() + at[1];
            let element = (element * self.gates + gate) * self.run() + e;
            Operand::at(parts, [slice, warp.clone(), element, self.lane.clone()])
        };
        k.if_(Cond::new(self.slice.clone(), Relation::AtLeast, 1), |k| {
            self.each(k, |k, at| {
                for gate in 0..self.gates {
                    let from = self.of(k, acc, at, gate)?;
                    each(k, self.run(), |k, e| {
                        let slice = (self.slice.clone() - 1).max(Expr::from(0));
                        let to = place(slice, at, gate, e.clone());
                        k.spec(Kind::Move, to, Operand::at(from, [e]), self.one)
                    })?;
                }
                Ok(())
            })
        })?;
        k.spec(Kind::Sync, (), (), self.block)?;
        k.if_(Cond::equal(self.slice.clone(), 0), |k| {
            self.each(k, |k, at| {
                for gate in 0..self.gates {
                    let to = self.of(k, acc, at, gate)?;
                    each(k, self.run(), |k, e| {
                        for slice in 0..self.slices - 1 {
                            let part = number(k, "part", Scalar::F32)?;
                            let from = place(Expr::from(slice), at, gate, e.clone());
                            k.spec(Kind::Move, part, from, self.one)?;
                            let to = Operand::at(to, [&e]);
                            let add = Kind::Reduction(Binary::Add);
                            k.spec(add, to, part, self.one)?;
                        }
                        Ok(())
                    })?;
                }
                Ok(())
            })?;
            body(k)
        })
    }
}
