//! What is done with each unit: what it begins with, the cell, and where its numbers lie.

use super::steps::Context;
use crate::build::Builder;
use crate::error::Result;
use crate::function::Function;
use crate::index::{Cond, Expr};
use crate::kernel::{Binary, Kind, Number, Operand, TensorId};
use crate::schedule::pointwise::{each, load_inside, pointwise, store_inside, vector};
use crate::schedule::vectors::neighbours;
use crate::tensor::Scalar;

impl Context<'_> {
    /// What all sums begin with: the biases of both sides.
    pub(super) fn biases(&self, k: &mut Builder) -> Result<()> {
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

    /// Loads the constants of the own units.
    pub(super) fn constants(&self, k: &mut Builder) -> Result<()> {
        let (Some(to), Some(from)) = (self.constants, self.tensors.constants) else {
            return Ok(());
        };
        let n = self.sums.run();
        k.for_("j", 0..self.sums.runs(), 1, true, |k, run| {
            for constant in (0..self.layer.cell.constants).map(|number| Expr::from(number as i64)) {
                let to = k.index(to, "constant", [&run.into(), &constant])?;
                let from = self.view(k, from, &[constant], &run.into())?;
                let value = load_inside(k, from, n, self.wide(), self.one)?;
                each(k, n, |k, e| {
                    k.spec(Kind::Move, Operand::at(to, [&e]), Operand::at(value, [&e]), self.one)
                })?;
            }
            Ok(())
        })
    }

    /// What a unit begins with.
    pub(super) fn begin(
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
    pub(super) fn hand(
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

    /// The cell of complete sums, in a step that is the element `now` of the sequence, and the element `to`
    /// of h.
    pub(super) fn leave(
        &self,
        k: &mut Builder,
        [step, now, to]: [&Expr; 3],
        tile: &Expr,
    ) -> Result<()> {
        let (n, layer) = (self.sums.run(), self.layer);
        self.sums.each(k, |k, at| {
            let mut ins = Vec::new();
            for gate in 0..layer.sums() {
                ins.push(self.sums.of(k, self.acc, at, gate)?);
            }
            let mut h = vector(k, "h", n, Scalar::F32)?;
            let mut outs = vec![h];
            if let Some(own) = self.own {
                let own = k.index(own, "own", at)?;
                ins.push(own);
                // Where a sequence may have ended, the state may have to stay.
                outs.push(if layer.ragged { vector(k, "next", n, Scalar::F32)? } else { own });
            }
            if let Some(kept) = self.kept {
                ins.push(k.index(kept, "kept", at)?);
            }
            for number in (0..layer.cell.constants).map(|number| Expr::from(number as i64)) {
                let Some(constants) = self.constants else { continue };
                ins.push(k.index(constants, "constant", [at[1], &number])?);
            }
            pointwise(k, &layer.cell.function, &outs, &ins, n, self.one)?;
            if let Some(ragged) = &self.ragged {
                let (given, held) = self.go_on(k, ragged, now, at, &outs)?;
                if let Some(every) = self.tensors.given {
                    let to = self.place(k, every, std::slice::from_ref(now), tile, at)?;
                    store_inside(k, to, given, n, self.wide(), self.one)?;
                }
                h = held;
            }
            let to = self.place(k, self.tensors.y, std::slice::from_ref(to), tile, at)?;
            store_inside(k, to, h, n, self.wide(), self.one)?;
            let Some(last) = self.tensors.last_h else { return Ok(()) };
            k.if_(Cond::equal(step.clone() + 1, &self.steps), |k| {
                let to = self.place(k, last, &[], tile, at)?;
                store_inside(k, to, h, n, self.wide(), self.one)
            })
        })
    }

    /// An own run of a tensor `[…, direction, batch, hidden]`.
    pub(super) fn place(
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
        at.push(self.units.clone() * (self.layer.units / n) + self.sums.unit(run));
        neighbours(k, of, at, n, "run")
    }
}
