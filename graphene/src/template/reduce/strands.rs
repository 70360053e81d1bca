//! Along a middle axis: every thread has a vector of neighbouring columns, a block several strands of
//! rows.

use super::Reduce;
use super::own::Own;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Cond, Expr};
use crate::kernel::{Kind, Operand, TensorId, ThreadsId};
use crate::layout::{Layout, Tiler};
use crate::schedule::pointwise::{each, number, vector};
use crate::schedule::vectors::{Runs, neighbours, part};
use crate::tensor::{Memory, Scalar};

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
