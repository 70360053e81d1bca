//! What is done with each unit, also of sequences of several lengths: what it begins with, the cell, and where its numbers lie.

use super::{Context, Own, Recurrent, Sums, meaning::Dim};
use crate::schedule::{each, load_inside, neighbours, number, pointwise, store_inside, vector};
use crate::template::matmul::tile_of;
use crate::{
    Binary, Builder, Cond, Expr, Function, Header, Kind, Layout, Memory, Operand, Result, Scalar,
    TensorId, Tiler,
};

/// An own row and run of a tensor `[direction, batch, hidden]`, or of its element of this number.
type At<'a> = (Option<&'a Expr>, [&'a Expr; 2]);

impl Context<'_> {
    /// What all sums begin with: the biases of both sides.
    pub(super) fn biases(&self, k: &mut Builder) -> Result {
        let n = self.totals.sums.run();
        k.unroll("j", self.totals.sums.runs(), |k, run| {
            for (sum, gates) in self.layer.cell.sums.iter().enumerate() {
                let to =
                    k.index(self.totals.first, "first", [Expr::from(run), Expr::from(sum as i64)])?;
                each(k, n, |k, e| k.init(Operand::at(to, [e]), 0.0))?;
                for (part, gate) in gates.iter().enumerate() {
                    let (Some(bias), Some(gate)) = (self.tensors.bias, gate) else { continue };
                    let at = vec![self.direction.clone(), (part as i64).into(), (*gate).into()];
                    let from = self.run_of(k, bias, at, &run.into())?;
                    let value = load_inside(k, from, self.wide())?;
                    each(k, n, |k, e| {
                        k.reduce(Binary::Add, Operand::at(to, [&e]), Operand::at(value, [&e]))
                    })?;
                }
            }
            Ok(())
        })
    }

    pub(super) fn constants(&self, k: &mut Builder) -> Result {
        let Some((to, from)) = self.constants.zip(self.tensors.constants) else { return Ok(()) };
        let n = self.totals.sums.run();
        k.unroll("j", self.totals.sums.runs(), |k, run| {
            for constant in (0..self.layer.cell.constants).map(|number| Expr::from(number as i64)) {
                let to = k.index(to, "constant", [&run.into(), &constant])?;
                let at = vec![self.direction.clone(), constant];
                let from = self.run_of(k, from, at, &run.into())?;
                let value = load_inside(k, from, self.wide())?;
                each(k, n, |k, e| k.move_(Operand::at(to, [&e]), Operand::at(value, [&e])))?;
            }
            Ok(())
        })
    }

    /// What a unit begins with.
    pub(super) fn begin(&self, k: &mut Builder, own: TensorId, first: Option<TensorId>) -> Result {
        let n = self.totals.sums.run();
        let fill = |k: &mut Builder| {
            self.totals.sums.each(k, |k, at| {
                let own = k.index(own, "own", at)?;
                let Some(first) = first else {
                    return each(k, n, |k, e| k.init(Operand::at(own, [e]), 0.0));
                };
                let from = self.place(k, first, (None, at))?;
                let value = load_inside(k, from, self.wide())?;
                each(k, n, |k, e| k.move_(Operand::at(own, [&e]), Operand::at(value, [&e])))
            })
        };
        let Some(first) = first else { return fill(k) };
        let from = self.part(k, first, &[Dim::Directions, Dim::Rows, Dim::All])?;
        k.decompose(Header::new(Kind::Move, own, from, self.block).on(self.members), fill)
    }

    /// What others read of complete sums, the second time in a step.
    pub(super) fn hand(&self, k: &mut Builder, function: &Function, reset: TensorId) -> Result {
        let n = self.totals.sums.run();
        self.totals.sums.each(k, |k, at| {
            let mut ins = self.totals.all_of(k, at)?;
            if let Some(own) = self.own {
                ins.push(k.index(own, "own", at)?);
            }
            let read = vector(k, "read", n, Scalar::F32)?;
            let mut outs = vec![read];
            if let Some(kept) = self.kept {
                outs.push(k.index(kept, "kept", at)?);
            }
            pointwise(k, function, &outs, &ins)?;
            self.put(k, [read, reset], (None, at))
        })
    }

    /// The cell of complete sums, in a step that is the element `now` of the sequence, and the element `to` of h.
    pub(super) fn leave(&self, k: &mut Builder, [step, now, to]: [&Expr; 3]) -> Result {
        let (n, layer) = (self.totals.sums.run(), self.layer);
        self.totals.sums.each(k, |k, at| {
            let mut ins = self.totals.all_of(k, at)?;
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
            pointwise(k, &layer.cell.function, &outs, &ins)?;
            if let Some(ragged) = &self.ragged {
                let (given, held) = self.go_on(k, ragged, now, at, &outs)?;
                if let Some(every) = self.tensors.given {
                    self.put(k, [given, every], (Some(now), at))?;
                }
                h = held;
            }
            self.put(k, [h, self.tensors.y], (Some(to), at))?;
            let Some(last) = self.tensors.last_h else { return Ok(()) };
            let ends = Cond::equal(step.clone() + 1, &self.steps);
            k.if_(ends, |k| self.put(k, [h, last], (None, at)))
        })
    }

    /// Stores numbers of an own run in a tensor.
    pub(super) fn put(&self, k: &mut Builder, [from, to]: [TensorId; 2], at: At<'_>) -> Result {
        let to = self.place(k, to, at)?;
        store_inside(k, to, from, self.wide())
    }

    /// An own run of a tensor.
    fn place(&self, k: &mut Builder, of: TensorId, at: At<'_>) -> Result<TensorId> {
        let (before, [row, run]) = at;
        let row = self.row(&self.totals.sums.row(row));
        let at = before.cloned().into_iter().chain([self.direction.clone(), row]);
        self.run_of(k, of, at.collect(), run)
    }

    /// An own run of a tensor `[…, hidden]`.
    fn run_of(&self, k: &mut Builder, of: TensorId, at: Vec<Expr>, run: &Expr) -> Result<TensorId> {
        let n = self.totals.sums.run();
        let unit = self.units.clone() * (self.layer.units / n) + self.totals.sums.unit(run);
        neighbours(k, of, at.into_iter().chain([unit]), n, "run")
    }

    /// What the rows of a tile begin with; beyond the batch they have no length.
    pub(super) fn begin_ragged(&self, k: &mut Builder, ragged: &Ragged) -> Result {
        if let Some(held) = ragged.held {
            self.begin(k, held, self.tensors.first_h)?;
        }
        let Some(lengths) = self.tensors.lengths else { return Ok(()) };
        let lengths = k.tile(lengths, "lengths", &[Tiler::Size(1)])?;
        k.unroll("i", self.totals.sums.rows, |k, row| {
            let at = self.row(&self.totals.sums.row(&row.into()));
            let from = k.index(lengths, "length", [at])?;
            let length = load_inside(k, from, false)?;
            let to = Operand::at(ragged.lengths, [row]);
            k.move_(to, Operand::at(length, [0]))
        })
    }

    /// What a run gives, and its h, after the element `now` of the sequence: the cell's results, if it has that element.
    fn go_on(
        &self,
        k: &mut Builder,
        ragged: &Ragged,
        now: &Expr,
        at: [&Expr; 2],
        results: &[TensorId],
    ) -> Result<(TensorId, TensorId)> {
        let n = self.totals.sums.run();
        let time = number(k, "time", Scalar::F32)?;
        k.alone(Kind::Index(now.clone()), time, ())?;
        let lengths = k.tile(ragged.lengths, "own_length", &[Tiler::Size(1)])?;
        let length = k.index(lengths, "own_length", [at[0]])?;
        let own = self.own.map(|own| k.index(own, "own", at)).transpose()?;
        let held = ragged.held.map(|held| k.index(held, "held", at)).transpose()?;
        let given = vector(k, "given", n, Scalar::F32)?;
        let goes_on = || Function::input(0).binary(Binary::Less, Function::input(1));
        let (mut ins, mut outs) = (vec![time, length, results[0]], vec![given]);
        let mut functions = vec![goes_on().select(Function::input(2), 0.0)];
        let mut keep = |next: usize, state: TensorId, ins: &mut Vec<TensorId>| {
            functions.push(goes_on().select(Function::input(next), Function::input(ins.len())));
            ins.push(state);
            outs.push(state);
        };
        // h and the own state, of which one may be all that there is.
        if let Some(held) = held {
            keep(2, held, &mut ins);
        }
        if let (Some(own), Some(&next)) = (own, results.get(1)) {
            ins.push(next);
            keep(ins.len() - 1, own, &mut ins);
        }
        pointwise(k, &Function::all(functions), &outs, &ins)?;
        Ok((given, outs[1]))
    }

    /// What threads keep from step to step: h before it is rounded (0), an LSTM's c (1).
    pub(super) fn states(&self) -> impl Iterator<Item = (usize, TensorId)> {
        let own = self.own.map(|own| (usize::from(self.layer.cell.own == Own::Cell), own));
        let held = self.ragged.as_ref().and_then(|ragged| ragged.held);
        own.into_iter().chain(held.map(|held| (0, held)))
    }

    /// The part of a tensor that belongs to the tile of rows, and the own direction.
    pub(super) fn part(&self, k: &mut Builder, of: TensorId, dims: &[Dim<'_>]) -> Result<TensorId> {
        let part = |dim: &Dim<'_>| match dim {
            Dim::Directions => (Tiler::Size(1), self.direction.clone()),
            Dim::Rows => (Tiler::Size(self.layer.rows), self.tile.clone()),
            Dim::All => (Tiler::Whole, Expr::from(0)),
            Dim::At(at) => (Tiler::Size(1), (*at).clone()),
        };
        let (tiles, at): (Vec<Tiler>, Vec<Expr>) = dims.iter().map(part).unzip();
        tile_of(k, of, "of_tile", &tiles, &at)
    }
}

/// What a thread keeps of sequences that have lengths of their own.
pub(super) struct Ragged {
    /// The lengths of the own rows, in single precision, which holds them as they are up to 2²⁴: `[row]`.
    lengths: TensorId,
    /// h of the own units, where that is not their own state: `[row, run].[unit]`.
    pub(super) held: Option<TensorId>,
}

impl Ragged {
    pub(super) fn new(k: &mut Builder, layer: &Recurrent, sums: &Sums) -> Result<Ragged> {
        let view = Layout::rows([sums.rows]);
        let lengths = k.allocate("own_lengths", view, Scalar::F32, Memory::Registers, None)?;
        let held = layer.cell.own != Own::Hidden;
        let held = held.then(|| sums.state(k, "held")).transpose()?;
        Ok(Ragged { lengths, held })
    }
}
