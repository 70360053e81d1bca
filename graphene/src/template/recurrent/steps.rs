//! What a block does in each step, and how rows and weights come.

use super::{Direction, Own, Ragged, Recurrent, Tensors, Totals, meaning};
use crate::schedule::{Ahead, GridBarrier, multistage, within};
use crate::template::stage::{Movers, Side};
use crate::template::{matmul::Edges, tiled_mma::Near};
use crate::{Builder, Cond, Expr, Header, Kind, Operand, Result, TensorId, ThreadsId, Tiler, Var};

pub(super) struct Context<'a> {
    pub(super) layer: &'a Recurrent,
    pub(super) tensors: Tensors,
    pub(super) steps: Expr,
    pub(super) totals: Totals,
    pub(super) sides: [Side; 2],
    pub(super) movers: Movers<'a>,
    /// The blocks of the same rows and direction.
    pub(super) members: ThreadsId,
    pub(super) block: ThreadsId,
    /// The direction, and the block's units' number.
    pub(super) direction: Expr,
    pub(super) units: Expr,
    /// Which rows of the batch, at first those that come first.
    pub(super) tile: Expr,
    /// Stages of the input or h, and of those weights that do not stay.
    pub(super) rows: TensorId,
    pub(super) weights: Option<TensorId>,
    /// W and R, where they stay.
    pub(super) resident: [Option<TensorId>; 2],
    pub(super) own: Option<TensorId>,
    pub(super) kept: Option<TensorId>,
    pub(super) ragged: Option<Ragged>,
    pub(super) constants: Option<TensorId>,
}

/// Rows of a tensor: the coordinates of each by its number in a tile.
type Rows<'a> = (TensorId, &'a dyn Fn(&Expr) -> Vec<Expr>);

impl Context<'_> {
    /// All steps of the tile of rows of the batch.
    pub(super) fn all_steps(&self, k: &mut Builder) -> Result {
        if let Some(own) = self.own {
            let Tensors { first_h, first_c, .. } = self.tensors;
            self.begin(k, own, if self.layer.cell.own == Own::Cell { first_c } else { first_h })?;
        }
        if let Some(ragged) = &self.ragged {
            self.begin_ragged(k, ragged)?;
        }
        // Of h that is no result as it is, two steps are kept in turn.
        let all = self.layer.results[0] && !self.layer.ragged;
        let element = |step: &Expr| if all { self.time(step) } else { step.rem(2) };
        let last = |step: &Expr| element(&(step.clone() - 1).max(0));
        let steps = meaning::Steps::new(self, k)?;
        let carry = k.carry("step", (&self.steps, &1.into()), |_, step| {
            let step = Expr::from(step);
            Ok(vec![steps.carried(&step, &last(&step))])
        })?;
        k.for_carrying("step", Expr::from(0)..self.steps.clone(), (1, false), carry, |k, step| {
            let step = Expr::from(step);
            let now = Expr::from(k.let_("now", self.time(&step))?);
            let to = if all { now.clone() } else { element(&step) };
            let before = Expr::from(k.let_("before", last(&step))?);
            let header = steps.step(k, [&step, &now, &to, &before])?;
            k.decompose(header, |k| self.step(k, [&step, &now, &to, &before]))
        })?;
        let (Some(own), Some(to)) = (self.own, self.tensors.last_c) else { return Ok(()) };
        self.totals.of_first(k, |k| {
            self.totals.sums.each(k, |k, at| {
                let own = k.index(own, "own", at)?;
                self.put(k, [own, to], (None, at))
            })
        })
    }

    /// A step, the element `now` of the sequence: the element `to` of h, of the one `before`.
    fn step(&self, k: &mut Builder, [step, now, to, before]: [&Expr; 4]) -> Result {
        self.totals.begin_sums(k)?;
        let x = |row: &Expr| vec![now.clone(), self.row(row)];
        self.matmuls(k, 0, |k, to| self.fill(k, 0, (self.tensors.x, &x), to))?;
        self.add_state(k, step, before)?;
        if let (Some(function), Some(reset)) = (&self.layer.cell.reset, self.tensors.reset) {
            self.totals.add_up(k, |k| self.hand(k, function, reset))?;
            self.arrive(k)?;
            self.totals.begin_last(k)?;
            if let Some(barrier) = self.barrier() {
                barrier.wait(k, &(step.clone() * 2 + 1))?;
            }
            let row = |row: &Expr| vec![self.direction.clone(), self.row(row)];
            self.matmuls(k, 1, |k, to| self.fill(k, 0, (reset, &row), to))?;
        }
        self.totals.add_up(k, |k| self.leave(k, [step, now, to]))?;
        self.arrive(k)
    }

    /// Where the blocks of the same rows and direction meet, if there are several.
    fn barrier(&self) -> Option<GridBarrier<'_>> {
        Some(GridBarrier {
            counter: Operand::at(self.tensors.counter?, [&self.direction, &self.tile]),
            members: self.layer.members(),
            meetings: self.steps.clone() * self.layer.cell.meetings(),
            block: self.block,
            thread: self.movers.thread,
        })
    }

    fn arrive(&self, k: &mut Builder) -> Result {
        match self.barrier() {
            Some(barrier) => barrier.arrive(k),
            None => k.spec(Kind::Sync, (), (), self.block),
        }
    }

    /// Adds the matmuls of the last step's h, once that is there.
    fn add_state(&self, k: &mut Builder, step: &Expr, before: &Expr) -> Result {
        let (later, barrier) = (|| Cond::less(0, step), self.barrier());
        let times = step.clone() * self.layer.cell.meetings();
        let row = |row: &Expr| vec![before.clone(), self.direction.clone(), self.row(row)];
        let last: Rows<'_> = (self.tensors.y, &row);
        let Some(given) = self.tensors.first_h else {
            return k.if_(later(), |k| {
                match barrier {
                    Some(barrier) => barrier.wait(k, &times)?,
                    None => k.spec(Kind::Sync, (), (), self.block)?,
                }
                self.matmuls(k, 1, |k, to| self.fill(k, 0, last, to))
            });
        };
        if let Some(barrier) = barrier {
            k.if_(later(), |k| barrier.wait(k, &times))?;
        }
        k.spec(Kind::Sync, (), (), self.block)?;
        let row = |row: &Expr| vec![self.direction.clone(), self.row(row)];
        self.matmuls(k, 1, |k, to| {
            k.if_(Cond::equal(step.clone(), 0), |k| self.fill(k, 0, (given, &row), to))?;
            k.if_(later(), |k| self.fill(k, 0, last, to))
        })
    }

    /// Which of the sequence's elements a step is.
    fn time(&self, step: &Expr) -> Expr {
        let back = || (self.steps.clone() - 1 - step).max(0);
        match self.layer.direction {
            Direction::Forward => step.clone(),
            Direction::Reverse => back(),
            Direction::Both => {
                // The second direction runs back; what is not negative must be seen to be so.
                let forward = (Expr::from(1) - &self.direction).max(0);
                (step.clone() * forward + back() * &self.direction).max(0)
            }
        }
    }

    pub(super) fn row(&self, row: &Expr) -> Expr {
        self.tile.clone() * self.layer.rows + row
    }

    /// Whether all of a run lies within, or none.
    pub(super) fn wide(&self) -> bool {
        self.layer.edges == Edges::Bulk
    }

    /// Begins to bring the weights that stay for all steps. The copies join the group of the input's
    /// first rows, for which all threads wait before the first matmul.
    pub(super) fn bring_resident(&self, k: &mut Builder) -> Result {
        for i in 0..2 {
            let Some(resident) = self.resident[i] else { continue };
            k.for_("chunk", 0..self.layer.chunks(i), 1, false, |k, chunk| {
                let to = k.index(resident, "to", [chunk])?;
                self.bring_weights(k, i, (&chunk.into(), to))
            })?;
        }
        Ok(())
    }

    /// Adds matmuls with W or R, of rows of which `bring` brings a chunk of the depth to a stage.
    fn matmuls(
        &self,
        k: &mut Builder,
        i: usize,
        bring: impl Fn(&mut Builder, (&Expr, TensorId)) -> Result,
    ) -> Result {
        let chunks = self.layer.chunks(i);
        let weights = self.weights.filter(|_| self.resident[i].is_none());
        let ahead = Ahead::new(k, self.layer.stages, self.block)?;
        let fetch = |k: &mut Builder, chunk: &Expr, stage: &Var| {
            within(k, chunk, chunks, |k| {
                let to = k.index(self.rows, "stage", [stage])?;
                bring(k, (chunk, to))?;
                let Some(weights) = weights else { return Ok(()) };
                let to = k.index(weights, "stage", [stage])?;
                self.bring_weights(k, i, (chunk, to))
            })
        };
        multistage(k, &ahead, &Expr::from(chunks), (None, &fetch), |k, chunk, stage| {
            let a = k.index(self.rows, "a", [stage])?;
            let b = match (self.resident[i], weights) {
                (Some(resident), _) => k.index(resident, "b", [chunk])?,
                (None, Some(weights)) => k.index(weights, "b", [stage])?,
                (None, None) => return Ok(()),
            };
            let header = Header::new(self.totals.sums.kind(), self.totals.acc, [a, b], self.block);
            let near = Near { c: self.totals.acc, a, b, threads: self.block };
            k.decompose(header, |k| self.totals.sums.multiply(k, near))
        })
    }

    /// Brings a tile of W or R: zeros where a sum has no gate of it.
    fn bring_weights(&self, k: &mut Builder, i: usize, to: (&Expr, TensorId)) -> Result {
        let layer = self.layer;
        let (sums, units) = (layer.sums(), self.units.clone() * layer.units);
        let at = |column: &Expr| {
            let sum = column.div(8).rem(sums);
            let unit = column.div(sums * 8) * 8 + column.rem(8);
            let (mut gate, mut beyond) = (Expr::from(0), Expr::from(0));
            for (number, gates) in layer.cell.sums.iter().enumerate() {
                // 1 for this sum, else 0.
                let from = |least: i64| sum.div(least.max(1)).min(1);
                let least = number as i64;
                let above = if least + 1 < sums { from(least + 1) } else { 0.into() };
                let is = if least == 0 { Expr::from(1) - above } else { from(least) - above };
                match gates[i] {
                    Some(own) => gate = gate + is * own,
                    None => beyond = beyond + is * layer.hidden,
                }
            }
            let all = layer.cell.sums.iter().enumerate().all(|(s, g)| g[i] == Some(s as i64));
            vec![
                self.direction.clone(),
                if all { sum } else { gate },
                units.clone() + unit + beyond,
            ]
        };
        self.fill(k, 1, (self.tensors.weights[i], &at), to)
    }

    /// Brings a tile of rows: a chunk of the depth.
    fn fill(&self, k: &mut Builder, i: usize, from: Rows<'_>, to: (&Expr, TensorId)) -> Result {
        let ((from, at), (chunk, to)) = (from, to);
        let (side, movers) = (self.sides[i], self.movers);
        let piece = side.piece(movers.edges);
        let axes = k.tensor_of(from)?.view.axes().len();
        let mut tiles = vec![Tiler::Size(1); axes];
        tiles[axes - 1] = Tiler::Size(piece);
        let from = k.tile(from, "from_pieces", &tiles)?;
        side.each_piece(k, to, movers, |[row, place]| {
            let along = chunk.clone() * (side.depth / piece) + &place;
            (from, at(&row).into_iter().chain([along]).collect())
        })
    }
}
