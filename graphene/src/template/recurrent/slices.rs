//! What units keep, what their sums begin with, and how those of several slices of the depth meet.

use super::sums::{Sums, Who};
use crate::schedule::{each, moved, neighbours};
use crate::template::matmul::registers;
use crate::{
    Binary, Builder, Cond, Expr, Kind, Layout, Memory, Operand, Relation, Result, Scalar, TensorId,
};
use std::ops::Range;

/// The sums of a step as registers hold them.
pub(super) struct Totals {
    pub(super) sums: Sums,
    pub(super) acc: TensorId,
    /// What each column begins with.
    pub(super) first: TensorId,
    /// Those of other slices of the depth, in shared memory.
    pub(super) parts: Option<TensorId>,
}

impl Sums {
    /// Registers for a number of each own unit in each own row: `[row, run].[unit]`.
    pub(super) fn state(&self, k: &mut Builder, name: &str) -> Result<TensorId> {
        let (runs, run) = (self.runs(), self.run());
        registers(k, name, &[&[(self.rows, runs * run), (runs, run)], &[(run, 1)]], Scalar::F32)
    }

    /// Registers for so many numbers of each own unit: `[run, number].[unit]`.
    pub(super) fn of_columns(&self, k: &mut Builder, name: &str, count: i64) -> Result<TensorId> {
        let run = self.run();
        let outer = [(self.runs(), count * run), (count, run)];
        registers(k, name, &[&outer, &[(run, 1)]], Scalar::F32)
    }

    /// Shared memory for parts of the sums, where the depth is shared.
    pub(super) fn parts(&self, k: &mut Builder) -> Result<Option<TensorId>> {
        if self.slices == 1 {
            return Ok(None);
        }
        let warps = self.warps.along[0] * self.warps.along[1];
        let view = Layout::rows([self.slices - 1, warps, self.count(), 32]);
        k.allocate("parts", view, Scalar::F32, Memory::Shared, None).map(Some)
    }
}

impl Totals {
    /// `body` for each own row and run, these gates, and the run's sums.
    fn each_sum(
        &self,
        k: &mut Builder,
        gates: Range<i64>,
        body: impl Fn(&mut Builder, [&Expr; 2], i64, TensorId) -> Result,
    ) -> Result {
        self.sums.each(k, |k, at| {
            gates.clone().try_for_each(|gate| {
                let sums = self.sums_of(k, at, gate)?;
                body(k, at, gate, sums)
            })
        })
    }

    /// The sums of a run in a row: `[run]`.
    fn sums_of(&self, k: &mut Builder, [row, run]: [&Expr; 2], gate: i64) -> Result<TensorId> {
        let (acc, gates) = (self.acc, self.sums.gates);
        match self.sums.who {
            Who::Warps(_) => {
                let sums = k.index(acc, "sums", [row.div(2), run.clone() * gates + gate])?;
                k.index(sums, "pair", [row.rem(2)])
            }
            Who::Threads => {
                let column = (run.div(2) * gates + gate) * 2 + run.rem(2);
                neighbours(k, acc, [row.clone(), column], 1, "sum")
            }
        }
    }

    /// The sums of all gates of a run in a row.
    pub(super) fn all_of(&self, k: &mut Builder, at: [&Expr; 2]) -> Result<Vec<TensorId>> {
        (0..self.sums.gates).map(|gate| self.sums_of(k, at, gate)).collect()
    }

    /// Sets sums to what each column begins with.
    fn set(&self, k: &mut Builder, gates: Range<i64>) -> Result {
        self.each_sum(k, gates, |k, at, gate, to| {
            let from = k.index(self.first, "first", [at[1].clone(), Expr::from(gate)])?;
            each(k, self.sums.run(), |k, e| k.move_(Operand::at(to, [&e]), Operand::at(from, [&e])))
        })
    }

    /// Sets the sums to what each column begins with; where the depth is shared, to 0 but for one.
    pub(super) fn begin_sums(&self, k: &mut Builder) -> Result {
        if self.sums.slices > 1 {
            self.clear(k)?;
        }
        self.of_first(k, |k| self.set(k, 0..self.sums.gates))
    }

    /// Begins with the last sum of each unit anew; what the sums of other slices have been added to stays.
    pub(super) fn begin_last(&self, k: &mut Builder) -> Result {
        let Sums { gates, slices, .. } = self.sums;
        self.of_first(k, |k| self.set(k, gates - 1..gates))?;
        if slices > 1 { self.of_others(k, |k| self.clear(k)) } else { Ok(()) }
    }

    fn clear(&self, k: &mut Builder) -> Result {
        self.each_sum(k, 0..self.sums.gates, |k, _, _, to| {
            each(k, self.sums.run(), |k, e| k.init(Operand::at(to, [&e]), 0.0))
        })
    }

    /// What only threads do that have complete sums.
    pub(super) fn of_first(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder) -> Result,
    ) -> Result {
        let first = Cond::equal(self.sums.slice.clone(), 0);
        if self.sums.slices == 1 { body(k) } else { k.if_(first, body) }
    }

    /// What the threads of all slices but the first do.
    fn of_others(&self, k: &mut Builder, body: impl FnOnce(&mut Builder) -> Result) -> Result {
        k.if_(Cond::new(self.sums.slice.clone(), Relation::AtLeast, 1), body)
    }

    /// Adds the parts of all slices to those of the first, and goes on with the threads of that one.
    pub(super) fn add_up(&self, k: &mut Builder, body: impl Fn(&mut Builder) -> Result) -> Result {
        let (Some(parts), sums) = (self.parts, &self.sums) else { return body(k) };
        let warp = sums.at[1].clone() * sums.warps.along[0] + &sums.at[0];
        let place = |slice: Expr, at: [&Expr; 2], gate: i64, e: Expr| {
            let element = at[0].clone() * sums.runs() + at[1];
            let element = (element * sums.gates + gate) * sums.run() + e;
            Operand::at(parts, [slice, warp.clone(), element, sums.lane.clone()])
        };
        self.of_others(k, |k| {
            self.each_sum(k, 0..sums.gates, |k, at, gate, from| {
                each(k, sums.run(), |k, e| {
                    let slice = (sums.slice.clone() - 1).max(0);
                    k.move_(place(slice, at, gate, e.clone()), Operand::at(from, [e]))
                })
            })
        })?;
        k.spec(Kind::Sync, (), (), sums.block)?;
        self.of_first(k, |k| {
            self.each_sum(k, 0..sums.gates, |k, at, gate, to| {
                each(k, sums.run(), |k, e| {
                    (0..sums.slices - 1).try_for_each(|slice| {
                        let from = place(Expr::from(slice), at, gate, e.clone());
                        let part = moved(k, "part", Scalar::F32, from)?;
                        k.reduce(Binary::Add, Operand::at(to, [&e]), part)
                    })
                })
            })?;
            body(k)
        })
    }
}
