//! What a thread does: vectors of rows are folded into totals, and those stored.

use super::Reduce;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Cond, Expr};
use crate::kernel::{Binary, Fused, Kind, Number, Operand, TensorId, Test, ThreadsId};
use crate::layout::{Layout, Tiler};
use crate::schedule::pointwise::{each, number, pointwise, store, vector};
use crate::schedule::together::ThreadGroups;
use crate::schedule::vectors::{Runs, neighbours, part};
use crate::tensor::{Memory, Scalar};

/// What the parts of the kernel share.
pub(super) struct Own<'a> {
    pub(super) template: &'a Reduce,
    pub(super) ins: Vec<TensorId>,
    pub(super) out: TensorId,
    pub(super) one: ThreadsId,
    pub(super) reduced: Expr,
    /// The first step along the reduced axis, and the distance to the next.
    pub(super) steps: [Expr; 2],
}

impl Own<'_> {
    /// Rows of `[outer, reduced]`: each by a team.
    pub(super) fn rows(&self, k: &mut Builder, teams: &ThreadGroups, block: Expr) -> Result<()> {
        let Reduce { op, vector: n, threads, .. } = *self.template;
        let row = Expr::from(k.let_("row", block * self.template.teams + &teams.at[0])?);
        let own = [row.clone()];
        let ins = self.tiles(k, &[Some((1, row.clone())), None])?;
        let out = part(k, self.out, "result", &[Some((1, row))])?;
        let of_row = self.total(n * threads);
        let kind = Kind::Fused(self.template.result(of_row.clone(), &self.reduced));
        k.decompose(Header::new(kind, out, ins.clone(), teams.team), |k| {
            let total = vector(k, "total", 1, Scalar::F32)?;
            k.decompose(Header::new(Kind::Fused(of_row), total, ins, teams.team), |k| {
                self.neutral(k, total, 1)?;
                let steps = self.reduced.ceil_div(&Expr::from(n * threads));
                let [first, step] = self.steps.clone();
                let runs = Runs { n, end: self.reduced.clone(), written_out: false };
                k.for_("step", first..steps, step, false, |k, i| {
                    let at = Expr::from(i) * threads + &teams.at[1];
                    let view =
                        |k: &mut Builder, n: i64, at: &Expr| self.view(k, self.ins[0], n, &own, at);
                    runs.within(k, &at, view, |k, run| {
                        let values = self.values(k, run.n, &own, &run.at)?;
                        each(k, run.n, |k, e| {
                            let total = Operand::at(total, [0]);
                            k.spec(Kind::Reduction(op), total, Operand::at(values, [e]), self.one)
                        })
                    })
                })?;
                let register = k.index(total, "total", [0])?;
                teams.fold(k, op, register)
            })?;
            k.if_(Cond::equal(teams.at[1].clone(), 0), |k| {
                k.if_(Test::Inside(out.into()), |k| self.leave(k, out, total, 1, true))
            })
        })
    }

    /// The inputs' elements of a tile.
    pub(super) fn tiles(
        &self,
        k: &mut Builder,
        tiles: &[Option<(i64, Expr)>],
    ) -> Result<Vec<TensorId>> {
        self.ins.iter().map(|&of| part(k, of, "tile", tiles)).collect()
    }

    /// The total of a tile, of which the own part has so many neighbours in turn.
    pub(super) fn total(&self, neighbours: i64) -> Fused {
        let part = || [neighbours.into(), self.steps[0].clone(), self.steps[1].clone()];
        self.template.total(self.template.parts.then(part))
    }

    /// The function's values of a vector of the inputs.
    pub(super) fn values(
        &self,
        k: &mut Builder,
        n: i64,
        row: &[Expr],
        at: &Expr,
    ) -> Result<TensorId> {
        let mut ins = Vec::new();
        for (&of, access) in self.ins.iter().zip(&self.template.ins) {
            let from = self.view(k, of, n, row, at)?;
            ins.push(access.load(k, from, n, Scalar::F32, self.one)?);
        }
        let values = vector(k, "values", n, Scalar::F32)?;
        pointwise(k, &self.template.function, &[values], &ins, n, self.one)?;
        Ok(values)
    }

    /// A vector of a row.
    pub(super) fn view(
        &self,
        k: &mut Builder,
        of: TensorId,
        n: i64,
        row: &[Expr],
        at: &Expr,
    ) -> Result<TensorId> {
        neighbours(k, of, row.iter().chain([at]).cloned(), n, "vector")
    }

    /// Totals to begin with.
    pub(super) fn neutral(&self, k: &mut Builder, total: TensorId, n: i64) -> Result<()> {
        let neutral = Number(self.template.op.neutral().unwrap_or(0.0));
        each(k, n, |k, e| k.spec(Kind::Init(neutral), Operand::at(total, [e]), (), self.one))
    }

    /// Stores totals, or adds them to what is there.
    pub(super) fn leave(
        &self,
        k: &mut Builder,
        to: TensorId,
        total: TensorId,
        n: i64,
        contiguous: bool,
    ) -> Result<()> {
        let kind = Kind::Fused(self.template.result(Fused::input(0), &self.reduced));
        k.decompose(Header::new(kind, to, total, self.one), |k| {
            self.finish(k, to, total, n, contiguous)
        })
    }

    fn finish(
        &self,
        k: &mut Builder,
        to: TensorId,
        total: TensorId,
        n: i64,
        contiguous: bool,
    ) -> Result<()> {
        let mut ins = vec![total];
        if self.template.finish.inputs() > 1 {
            let count = number(k, "count", Scalar::F32)?;
            k.spec(Kind::Index(self.reduced.clone()), count, (), self.one)?;
            ins.push(count);
        }
        let result = vector(k, "result", n, Scalar::F32)?;
        pointwise(k, &self.template.finish, &[result], &ins, n, self.one)?;
        if !self.template.parts {
            return store(k, to, result, n, contiguous, self.one);
        }
        each(k, n, |k, e| {
            let (to, result) = (Operand::at(to, [&e]), Operand::at(result, [e]));
            k.spec(Kind::Reduction(Binary::Add), to, result, self.one)
        })
    }
}

impl Own<'_> {
    /// Columns of `[outer, reduced, inner]`: a vector of neighbours by each thread, rows in strands.
    pub(super) fn columns(
        &self,
        k: &mut Builder,
        block: ThreadsId,
        outer: Expr,
        columns: Expr,
    ) -> Result<()> {
        let Reduce { op, vector: n, threads, teams, .. } = *self.template;
        let [thread] = k.indices(block, ["thread_of_block"])?;
        let strand: Expr = k.let_("strand", Expr::from(&thread).div(&threads.into()))?.into();
        let across: Expr = k.let_("across", Expr::from(&thread).rem(&threads.into()))?.into();
        let column: Expr = k.let_("vector_at", columns.clone() * threads + &across)?.into();
        let end = k.tensor_of(self.out)?.view.axes()[1].size.clone();
        let runs = Runs { n, end, written_out: true };
        let across_block = Some((threads * n, columns));
        let ins = self.tiles(k, &[Some((1, outer.clone())), None, across_block.clone()])?;
        let out = part(k, self.out, "y_tile", &[Some((1, outer.clone())), across_block])?;
        let kind = Kind::Fused(self.template.result(self.total(teams), &self.reduced));
        k.decompose(Header::new(kind, out, ins, block), |k| {
            let total = vector(k, "total", n, Scalar::F32)?;
            self.neutral(k, total, n)?;
            let steps = self.reduced.ceil_div(&Expr::from(teams));
            let [first, step] = self.steps.clone();
            k.for_("step", first..steps, step, false, |k, i| {
                let row = [outer.clone(), Expr::from(i) * teams + &strand];
                let view =
                    |k: &mut Builder, n: i64, at: &Expr| self.view(k, self.ins[0], n, &row, at);
                runs.within(k, &column, view, |k, run| {
                    let values = self.values(k, run.n, &row, &run.at)?;
                    each(k, run.n, |k, e| {
                        let of = run.element.clone().unwrap_or(e.clone());
                        let (total, value) = (Operand::at(total, [of]), Operand::at(values, [e]));
                        k.spec(Kind::Reduction(op), total, value, self.one)
                    })
                })
            })?;
            if teams > 1 {
                self.meet(k, block, total, [&strand, &across])?;
            }
            let view = |k: &mut Builder, n: i64, at: &Expr| {
                neighbours(k, self.out, [outer.clone(), at.clone()], n, "result")
            };
            let contiguous = self.template.out.contiguous();
            k.if_(Cond::equal(strand, 0), |k| {
                runs.within(k, &column, view, |k, run| {
                    let own = match run.element {
                        None => total,
                        Some(e) => {
                            let single = k.tile(total, "single", &[Tiler::Size(1)])?;
                            k.index(single, "single", [e])?
                        }
                    };
                    self.leave(k, run.view, own, run.n, contiguous)
                })
            })
        })
    }

    /// Adds the totals of all strands to those of the first, through shared memory.
    fn meet(
        &self,
        k: &mut Builder,
        block: ThreadsId,
        total: TensorId,
        [strand, across]: [&Expr; 2],
    ) -> Result<()> {
        let Reduce { op, vector: n, threads, teams, .. } = *self.template;
        let view = Layout::rows([teams, n, threads]);
        let shared = k.allocate("parts", view, Scalar::F32, Memory::Shared, None)?;
        let place = |strand: Expr, e: Expr| Operand::at(shared, [strand, e, across.clone()]);
        each(k, n, |k, e| {
            let own = Operand::at(total, [&e]);
            k.spec(Kind::Move, place(strand.clone(), e), own, self.one)
        })?;
        k.spec(Kind::Sync, (), (), block)?;
        k.if_(Cond::equal(strand.clone(), 0), |k| {
            k.for_("other", 1..teams, 1, false, |k, other| {
                each(k, n, |k, e| {
                    let value = number(k, "value", Scalar::F32)?;
                    let from = place(other.into(), e.clone());
                    k.spec(Kind::Move, value, from, self.one)?;
                    k.spec(Kind::Reduction(op), Operand::at(total, [e]), value, self.one)
                })
            })
        })
    }
}
