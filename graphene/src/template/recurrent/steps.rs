//! What a block does: before the steps, in each of them, and with each unit.

use super::sums::Sums;
use super::{Direction, Own, Recurrent, Tensors};
use crate::build::Builder;
use crate::error::Result;
use crate::function::Function;
use crate::index::{Cond, Expr, Var};
use crate::kernel::{Binary, Group, Kind, Number, Operand, TensorId, ThreadsId};
use crate::schedule::pointwise::{each, load_inside, pointwise, store_inside, vector};
use crate::schedule::{GridBarrier, multistage};
use crate::template::product::Edges;
use crate::template::stage::{Movers, Side};
use crate::tensor::{Scalar, Tile};

/// What the parts of the kernel share.
pub(super) struct Context<'a> {
    pub(super) layer: &'a Recurrent,
    pub(super) tensors: Tensors,
    pub(super) steps: Expr,
    pub(super) sums: Sums,
    pub(super) sides: [Side; 2],
    pub(super) movers: Movers<'a>,
    pub(super) block: ThreadsId,
    pub(super) one: ThreadsId,
    /// The direction, and the block's units' number.
    pub(super) direction: Expr,
    pub(super) units: Expr,
    /// Stages of the input or h, and of those weights that do not stay.
    pub(super) rows: TensorId,
    pub(super) weights: Option<TensorId>,
    /// W and R, where they stay.
    pub(super) resident: [Option<TensorId>; 2],
    pub(super) acc: TensorId,
    pub(super) own: Option<TensorId>,
    pub(super) kept: Option<TensorId>,
    pub(super) first: TensorId,
    pub(super) parts: Option<TensorId>,
}

impl Context<'_> {
    /// Brings what stays for all steps: weights, and what the sums begin with.
    pub(super) fn prepare(&self, k: &mut Builder) -> Result<()> {
        for i in 0..2 {
            let Some(resident) = self.resident[i] else { continue };
            k.for_("chunk", 0..self.layer.chunks(i), 1, false, |k, chunk| {
                let to = k.index(resident, "to", [chunk])?;
                self.bring_weights(k, i, &Expr::from(chunk), to)
            })?;
        }
        if self.resident.iter().any(Option::is_some) {
            k.spec(Kind::Commit(Group::Copy), (), (), self.one)?;
            k.spec(Kind::WaitGroup(Group::Copy, 0, false), (), (), self.one)?;
            k.spec(Kind::Sync, (), (), self.block)?;
        }
        let n = self.sums.run();
        k.for_("j", 0..self.sums.runs(), 1, true, |k, run| {
            for (sum, gates) in self.layer.cell.sums.iter().enumerate() {
                let to = k.index(self.first, "first", [Expr::from(run), Expr::from(sum as i64)])?;
                each(k, n, |k, e| {
                    k.spec(Kind::Init(Number(0.0)), Operand::at(to, [e]), (), self.one)
                })?;
                for (part, gate) in gates.iter().enumerate() {
                    let (Some(bias), Some(gate)) = (self.tensors.bias, gate) else { continue };
                    let at = [Expr::from(part as i64), Expr::from(*gate)];
                    let from = self.view(k, bias, &at, &Expr::from(run))?;
                    let value = load_inside(k, from, n, self.wide(), self.one)?;
                    each(k, n, |k, e| {
                        let (to, value) = (Operand::at(to, [&e]), Operand::at(value, [&e]));
                        k.spec(Kind::Reduction(Binary::Add), to, value, self.one)
                    })?;
                }
            }
            Ok(())
        })
    }

    /// All steps of a tile of rows of the batch.
    pub(super) fn tile(&self, k: &mut Builder, tile: &Expr, thread: &Var) -> Result<()> {
        let counter = self.tensors.counter;
        let counter = counter.map(|of| Operand::at(of, [self.direction.clone(), tile.clone()]));
        let barrier = counter.map(|counter| GridBarrier {
            counter,
            members: self.layer.members(),
            meetings: self.steps.clone() * self.layer.cell.meetings(),
            block: self.block,
            one: self.one,
            thread,
        });
        let first = match self.layer.cell.own {
            Own::Nothing => None,
            Own::Cell => self.tensors.first_c,
            Own::Hidden => self.tensors.first_h,
        };
        if let Some(own) = self.own {
            self.begin(k, own, first, tile)?;
        }
        k.for_("step", Expr::from(0)..self.steps.clone(), 1, false, |k, step| {
            let step = Expr::from(step);
            let now = Expr::from(k.let_("now", self.time(&step))?);
            // Of h that is no result, two steps are kept in turn.
            let (mut to, mut from) = (now.clone(), (step.clone() - 1).max(Expr::from(0)));
            if self.layer.results[0] {
                from = self.time(&from);
            } else {
                (to, from) = (step.rem(&2.into()), from.rem(&2.into()));
            }
            let before = Expr::from(k.let_("before", from)?);
            self.sums.begin(k, self.acc, self.first)?;
            let x = |row: &Expr| vec![now.clone(), self.row(tile, row)];
            self.products(k, 0, &|k, body| body(k, self.tensors.x, &x))?;
            self.add_state(k, barrier.as_ref(), &step, &before, tile)?;
            let arrive = |k: &mut Builder| match &barrier {
                Some(barrier) => barrier.arrive(k),
                None => k.spec(Kind::Sync, (), (), self.block),
            };
            if let (Some(function), Some(reset)) = (&self.layer.cell.reset, self.tensors.reset) {
                let hand = |k: &mut Builder| self.hand(k, function, reset, tile);
                self.sums.complete(k, self.acc, self.parts, hand)?;
                arrive(k)?;
                self.sums.begin_last(k, self.acc, self.first)?;
                if let Some(barrier) = &barrier {
                    barrier.wait(k, &(step.clone() * 2 + 1))?;
                }
                let row = |row: &Expr| vec![self.direction.clone(), self.row(tile, row)];
                self.products(k, 1, &|k, body| body(k, reset, &row))?;
            }
            self.sums.complete(k, self.acc, self.parts, |k| self.leave(k, &step, &to, tile))?;
            arrive(k)
        })?;
        match (self.own, self.tensors.last_c) {
            (Some(own), Some(to)) => self.sums.of_first(k, |k| {
                self.sums.each(k, |k, at| {
                    let own = k.index(own, "own", at)?;
                    let to = self.place(k, to, &[], tile, at)?;
                    store_inside(k, to, own, self.sums.run(), self.wide(), self.one)
                })
            }),
            _ => Ok(()),
        }
    }

    /// Adds the products of the last step's h, once that is there.
    fn add_state(
        &self,
        k: &mut Builder,
        barrier: Option<&GridBarrier<'_>>,
        step: &Expr,
        before: &Expr,
        tile: &Expr,
    ) -> Result<()> {
        let later = || Cond::less(0, step);
        let times = step.clone() * self.layer.cell.meetings();
        let row = |row: &Expr| vec![before.clone(), self.direction.clone(), self.row(tile, row)];
        let Some(given) = self.tensors.first_h else {
            return k.if_(later(), |k| {
                match barrier {
                    Some(barrier) => barrier.wait(k, &times)?,
                    None => k.spec(Kind::Sync, (), (), self.block)?,
                }
                self.products(k, 1, &|k, body| body(k, self.tensors.y, &row))
            });
        };
        if let Some(barrier) = barrier {
            k.if_(later(), |k| barrier.wait(k, &times))?;
        }
        k.spec(Kind::Sync, (), (), self.block)?;
        let first = |row: &Expr| vec![self.direction.clone(), self.row(tile, row)];
        self.products(k, 1, &|k, body| {
            k.if_(Cond::equal(step.clone(), 0), |k| body(k, given, &first))?;
            k.if_(later(), |k| body(k, self.tensors.y, &row))
        })
    }

    /// Adds products with W or R, of rows that `source` hands to a body.
    fn products(&self, k: &mut Builder, i: usize, source: &Source<'_>) -> Result<()> {
        let layer = self.layer;
        let chunks = Expr::from(layer.chunks(i));
        multistage(
            k,
            layer.stages,
            &chunks,
            self.block,
            |k, chunk, stage| {
                k.if_(Cond::less(chunk, &chunks), |k| {
                    let to = k.index(self.rows, "stage", [stage])?;
                    source(k, &|k, from, at| self.fill(k, 0, from, at, chunk, to))?;
                    match (self.resident[i], self.weights) {
                        (None, Some(weights)) => {
                            let to = k.index(weights, "stage", [stage])?;
                            self.bring_weights(k, i, chunk, to)
                        }
                        _ => Ok(()),
                    }
                })
            },
            |k, chunk, stage| {
                let a = k.index(self.rows, "a", [stage])?;
                let b = match (self.resident[i], self.weights) {
                    (None, Some(weights)) => k.index(weights, "b", [stage])?,
                    (Some(resident), _) => k.index(resident, "b", [chunk])?,
                    (None, None) => return Ok(()),
                };
                self.sums.multiply(k, self.acc, [a, b])
            },
        )
    }

    /// Brings a tile of W or R: zeros where a sum has no gate of it.
    fn bring_weights(&self, k: &mut Builder, i: usize, chunk: &Expr, to: TensorId) -> Result<()> {
        let layer = self.layer;
        let (eight, sums) = (Expr::from(8), Expr::from(layer.sums()));
        let units = self.units.clone() * layer.units;
        let at = |column: &Expr| {
            let sum = column.div(&eight).rem(&sums);
            let unit = column.div(&(sums.clone() * 8)) * 8 + column.rem(&eight);
            let mut gate = Expr::from(0);
            let mut beyond = Expr::from(0);
            for (number, gates) in layer.cell.sums.iter().enumerate() {
                // 1 for this sum, else 0.
                let from = |least: i64| sum.div(&Expr::from(least.max(1))).min(Expr::from(1));
                let least = number as i64;
                let above = if least + 1 < layer.sums() { from(least + 1) } else { 0.into() };
                let is = if least == 0 { Expr::from(1) - above } else { from(least) - above };
                match gates[i] {
                    Some(own) => gate = gate + is * own,
                    None => beyond = beyond + is * layer.hidden,
                }
            }
            let all = layer.cell.sums.iter().enumerate().all(|(s, g)| g[i] == Some(s as i64));
            let gate = if all { sum } else { gate };
            vec![self.direction.clone(), gate, units.clone() + unit + beyond]
        };
        self.fill(k, 1, self.tensors.weights[i], &at, chunk, to)
    }

    /// Brings a tile of rows; `at` are the coordinates of a row, by its number in the tile.
    fn fill(
        &self,
        k: &mut Builder,
        i: usize,
        from: TensorId,
        at: &dyn Fn(&Expr) -> Vec<Expr>,
        chunk: &Expr,
        to: TensorId,
    ) -> Result<()> {
        let (side, movers) = (self.sides[i], self.movers);
        let piece = side.piece(movers.edges);
        let axes = k.tensor_of(from)?.view.axes().len();
        let mut tiles = vec![Tile::of(1); axes];
        tiles[axes - 1] = Tile::of(piece);
        let from = k.tile(from, "from_pieces", &tiles)?;
        let to = k.tile(to, "to_pieces", &side.pieces(piece))?;
        let per_row = Expr::from(side.depth / piece);
        let all = side.size * side.depth / piece;
        let count = (all + movers.threads - 1) / movers.threads;
        k.for_("e", 0..count, 1, count <= 16, |k, e| {
            let linear = Expr::from(e) * movers.threads + Expr::from(movers.thread);
            let (row, place) = (linear.div(&per_row), linear.rem(&per_row));
            let body = |k: &mut Builder| {
                let along = chunk.clone() * &per_row + &place;
                let coordinates: Vec<Expr> = at(&row).into_iter().chain([along]).collect();
                let from = k.index(from, "from", coordinates)?;
                let from = k.reshape(from, "from", 0, &[&[(piece, 1)]])?;
                let to = k.index(to, "to", side.order(row.clone(), place.clone()))?;
                let to = k.reshape(to, "to", 0, &[&[(piece, 1)]])?;
                side.bring(k, from, to, piece, movers.one)
            };
            if all % movers.threads == 0 {
                body(k)
            } else {
                k.if_(Cond::less(row.clone(), side.size), body)
            }
        })
    }

    /// What a unit begins with.
    fn begin(
        &self,
        k: &mut Builder,
        own: TensorId,
        first: Option<TensorId>,
        tile: &Expr,
    ) -> Result<()> {
        let n = self.sums.run();
        self.sums.each(k, |k, at| {
            let own = k.index(own, "own", at)?;
            let Some(first) = first else {
                return each(k, n, |k, e| {
                    k.spec(Kind::Init(Number(0.0)), Operand::at(own, [e]), (), self.one)
                });
            };
            let from = self.place(k, first, &[], tile, at)?;
            let value = load_inside(k, from, n, self.wide(), self.one)?;
            each(k, n, |k, e| {
                k.spec(Kind::Move, Operand::at(own, [&e]), Operand::at(value, [&e]), self.one)
            })
        })
    }

    /// What others read of complete sums, the second time in a step.
    fn hand(
        &self,
        k: &mut Builder,
        function: &Function,
        reset: TensorId,
        tile: &Expr,
    ) -> Result<()> {
        let n = self.sums.run();
        self.sums.each(k, |k, at| {
            let mut ins = Vec::new();
            for gate in 0..self.layer.sums() {
                ins.push(self.sums.of(k, self.acc, at, gate)?);
            }
            if let Some(own) = self.own {
                ins.push(k.index(own, "own", at)?);
            }
            let read = vector(k, "read", n, Scalar::F32)?;
            let mut outs = vec![read];
            if let Some(kept) = self.kept {
                outs.push(k.index(kept, "kept", at)?);
            }
            pointwise(k, function, &outs, &ins, n, self.one)?;
            let to = self.place(k, reset, &[], tile, at)?;
            store_inside(k, to, read, n, self.wide(), self.one)
        })
    }

    /// The cell of complete sums.
    fn leave(&self, k: &mut Builder, step: &Expr, now: &Expr, tile: &Expr) -> Result<()> {
        let (n, layer) = (self.sums.run(), self.layer);
        self.sums.each(k, |k, at| {
            let mut ins = Vec::new();
            for gate in 0..layer.sums() {
                ins.push(self.sums.of(k, self.acc, at, gate)?);
            }
            let h = vector(k, "h", n, Scalar::F32)?;
            let mut outs = vec![h];
            if let Some(own) = self.own {
                let own = k.index(own, "own", at)?;
                ins.push(own);
                outs.push(own);
            }
            if let Some(kept) = self.kept {
                ins.push(k.index(kept, "kept", at)?);
            }
            pointwise(k, &layer.cell.function, &outs, &ins, n, self.one)?;
            let to = self.place(k, self.tensors.y, std::slice::from_ref(now), tile, at)?;
            store_inside(k, to, h, n, self.wide(), self.one)?;
            let Some(last) = self.tensors.last_h else { return Ok(()) };
            k.if_(Cond::equal(step.clone() + 1, &self.steps), |k| {
                let to = self.place(k, last, &[], tile, at)?;
                store_inside(k, to, h, n, self.wide(), self.one)
            })
        })
    }

    /// Which of the sequence's elements a step is.
    fn time(&self, step: &Expr) -> Expr {
        let back = || (self.steps.clone() - 1 - step).max(Expr::from(0));
        match self.layer.direction {
            Direction::Forward => step.clone(),
            Direction::Reverse => back(),
            Direction::Both => {
                // The second direction runs back; what is not negative must be seen to be so.
                let forward = (Expr::from(1) - &self.direction).max(Expr::from(0));
                (step.clone() * forward + back() * &self.direction).max(Expr::from(0))
            }
        }
    }

    fn row(&self, tile: &Expr, row: &Expr) -> Expr {
        tile.clone() * self.layer.rows + row
    }

    /// Whether all of a run lies within, or none.
    fn wide(&self) -> bool {
        self.layer.edges == Edges::Bulk
    }

    /// An own run of a tensor `[…, direction, batch, hidden]`.
    fn place(
        &self,
        k: &mut Builder,
        of: TensorId,
        before: &[Expr],
        tile: &Expr,
        [row, run]: [&Expr; 2],
    ) -> Result<TensorId> {
        let row = self.row(tile, &self.sums.row(row));
        let at: Vec<Expr> = before.iter().cloned().chain([self.direction.clone(), row]).collect();
        self.run_of(k, of, at, run)
    }

    /// An own run of a tensor `[direction, …, hidden]`.
    fn view(&self, k: &mut Builder, of: TensorId, at: &[Expr], run: &Expr) -> Result<TensorId> {
        let at = [std::slice::from_ref(&self.direction), at].concat();
        self.run_of(k, of, at, run)
    }

    fn run_of(
        &self,
        k: &mut Builder,
        of: TensorId,
        mut at: Vec<Expr>,
        run: &Expr,
    ) -> Result<TensorId> {
        let n = self.sums.run();
        let mut tiles = vec![Tile::of(1); at.len()];
        tiles.push(Tile::of(n));
        at.push(self.units.clone() * (self.layer.units / n) + self.sums.unit(run));
        let tiled = k.tile(of, "tiled", &tiles)?;
        let run = k.index(tiled, "run", at)?;
        k.reshape(run, "run", 0, &[&[(n, 1)]])
    }
}

/// Where rows come from: hands a tensor, and the coordinates of a row by its number, to a body.
type Source<'a> = dyn Fn(&mut Builder, &Body<'_>) -> Result<()> + 'a;
type Body<'a> = dyn Fn(&mut Builder, TensorId, &dyn Fn(&Expr) -> Vec<Expr>) -> Result<()> + 'a;
