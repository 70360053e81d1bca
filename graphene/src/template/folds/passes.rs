//! What a team does with its row: it goes through the columns for every total, and for the results.

use super::{Folds, Out, Total};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::function::Function;
use crate::index::{Cond, Expr};
use crate::kernel::{Fused, Kind, Number, Operand, TensorId, Test};
use crate::schedule::pointwise::{each, number, pointwise, store, vector};
use crate::schedule::together::ThreadGroups;
use crate::schedule::vectors::{neighbours, part};
use crate::tensor::Scalar;

/// The own team's row.
pub(super) struct Row<'a> {
    pub(super) template: &'a Folds,
    pub(super) ins: Vec<TensorId>,
    pub(super) outs: Vec<TensorId>,
    pub(super) teams: ThreadGroups,
    /// Sizes of all axes.
    pub(super) sizes: Vec<Expr>,
    pub(super) row: Expr,
    pub(super) columns: Expr,
    /// An input of all axes.
    pub(super) whole: TensorId,
}

impl Row<'_> {
    /// The totals, one after the other, and the results.
    pub(super) fn all(&self, k: &mut Builder) -> Result<()> {
        let outs = self.own(k, &self.outs)?;
        let ins = self.own(k, &self.ins)?;
        let kind = Kind::Fused(self.template.meaning(self.sizes.len(), &self.columns));
        let header = Header::new(kind, outs, ins.clone(), self.teams.team);
        k.decompose(header, |k| self.row(k, &ins))
    }

    /// The own row of operands.
    fn own(&self, k: &mut Builder, of: &[TensorId]) -> Result<Vec<TensorId>> {
        let row = split(&self.row, &self.sizes[..self.template.kept]);
        let mut all = Vec::new();
        for &of in of {
            let rank = k.tensor_of(of)?.view.axes().len();
            let mut tiles: Vec<_> = row.iter().map(|at| Some((1, at.clone()))).collect();
            tiles.resize(rank, None);
            all.push(part(k, of, "own_row", &tiles)?);
        }
        Ok(all)
    }

    fn row(&self, k: &mut Builder, own: &[TensorId]) -> Result<()> {
        let mut count = None;
        if self.template.totals.iter().any(|total| total.finish.used().any(|input| input == 1)) {
            let number = number(k, "count", Scalar::F32)?;
            k.alone(Kind::Index(self.columns.clone()), number, ())?;
            count = Some(number);
        }
        let mut totals = Vec::new();
        let mut meanings: Vec<Fused> = Vec::new();
        for total in &self.template.totals {
            let [folded, meaning] =
                self.template.total(total, self.sizes.len(), &self.columns, &meanings);
            meanings.push(meaning);
            let value = number(k, "total", Scalar::F32)?;
            let (fused, used) = folded.over_used();
            let used: Vec<TensorId> = used.into_iter().map(|input| own[input]).collect();
            let header = Header::new(Kind::Fused(fused), value, used, self.teams.team);
            k.decompose(header, |k| self.total(k, total, &totals, value))?;
            // Where nothing counts columns, nothing reads their number.
            let count = count.unwrap_or(value);
            let ins: Vec<TensorId> = [value, count].iter().chain(&totals).copied().collect();
            let finished = vector(k, "finished", 1, Scalar::F32)?;
            pointwise(k, &total.finish, &[finished], &ins)?;
            totals.push(finished);
        }
        let whole = self.sizes.len();
        let is_whole = |out: &&(&Out, &TensorId)| out.0.access.strides.len() == whole;
        let outs: Vec<(&Out, &TensorId)> = self.template.outs.iter().zip(&self.outs).collect();
        if outs.iter().any(|out| is_whole(&out)) {
            self.pass(k, |k, at| {
                for (out, to) in outs.iter().filter(is_whole) {
                    self.leave(k, out, **to, &totals, at, self.template.vector)?;
                }
                Ok(())
            })?;
        }
        k.if_(Cond::equal(self.teams.at[1].clone(), 0), |k| {
            for (out, to) in outs.iter().filter(|out| !is_whole(out)) {
                let at = Expr::from(0);
                let inside = self.view(k, **to, out.access.strides.len(), &at, 1)?;
                k.if_(Test::Inside(inside.into()), |k| self.leave(k, out, **to, &totals, &at, 1))?;
            }
            Ok(())
        })
    }

    /// `body` for each of the thread's vectors, where there are such.
    fn pass(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder, &Expr) -> Result<()>,
    ) -> Result<()> {
        let n = self.template.vector;
        let steps = self.columns.ceil_div(&Expr::from(n * self.teams.size));
        k.for_("i", Expr::from(0)..steps, 1, false, |k, i| {
            let at = Expr::from(i) * self.teams.size + &self.teams.at[1];
            let inside = self.view(k, self.whole, self.sizes.len(), &at, n)?;
            k.if_(Test::Inside(inside.into()), |k| body(k, &at))
        })
    }

    fn total(
        &self,
        k: &mut Builder,
        total: &Total,
        before: &[TensorId],
        register: TensorId,
    ) -> Result<()> {
        let n = self.template.vector;
        let neutral = Number(total.op.neutral().unwrap_or(0.0));
        k.alone(Kind::Init(neutral), register, ())?;
        self.pass(k, |k, at| {
            let ins = self.read(k, &total.function, before, at, n)?;
            let values = vector(k, "values", n, Scalar::F32)?;
            pointwise(k, &total.function, &[values], &ins)?;
            each(k, n, |k, e| k.reduce(total.op, register, Operand::at(values, [e])))
        })?;
        self.teams.fold(k, total.op, register)
    }

    /// Stores a result's vector.
    fn leave(
        &self,
        k: &mut Builder,
        out: &Out,
        to: TensorId,
        totals: &[TensorId],
        at: &Expr,
        n: i64,
    ) -> Result<()> {
        let ins = self.read(k, &out.function, totals, at, n)?;
        let values = vector(k, "values", n, Scalar::F32)?;
        pointwise(k, &out.function, &[values], &ins)?;
        let to = self.view(k, to, out.access.strides.len(), at, n)?;
        store(k, to, values, n > 1 && out.access.contiguous())
    }

    /// A function's inputs, in registers: a vector of each input that it uses, and the totals.
    fn read(
        &self,
        k: &mut Builder,
        function: &Function,
        totals: &[TensorId],
        at: &Expr,
        n: i64,
    ) -> Result<Vec<TensorId>> {
        let mut ins = Vec::new();
        let used: Vec<usize> = function.used().collect();
        for (i, (&of, access)) in self.ins.iter().zip(&self.template.ins).enumerate() {
            if !used.contains(&i) {
                // Nothing reads it.
                ins.push(of);
                continue;
            }
            let rank = access.strides.len();
            let count = if rank == self.sizes.len() { n } else { 1 };
            let from = self.view(k, of, rank, at, count)?;
            ins.push(access.load(k, from, Scalar::F32)?);
        }
        ins.extend(totals);
        Ok(ins)
    }

    /// A vector `[n]` of an operand of `rank` axes, in the own row.
    fn view(
        &self,
        k: &mut Builder,
        of: TensorId,
        rank: usize,
        at: &Expr,
        n: i64,
    ) -> Result<TensorId> {
        let kept = self.template.kept;
        let mut coordinates = split(&self.row, &self.sizes[..kept]);
        if rank > kept {
            let mut reduced = self.sizes[kept..].to_vec();
            if let Some(last) = reduced.last_mut() {
                *last = last.div(&Expr::from(n));
            }
            coordinates.extend(split(at, &reduced));
        }
        // Along the rows' axes alone there are single elements.
        neighbours(k, of, coordinates, if rank > kept { n } else { 1 }, "vector")
    }
}

/// The coordinates of a row-major place among axes of these sizes.
fn split(place: &Expr, sizes: &[Expr]) -> Vec<Expr> {
    let mut rest = place.clone();
    let mut coordinates = Vec::new();
    for size in sizes.iter().skip(1).rev() {
        coordinates.push(rest.rem(size));
        rest = rest.div(size);
    }
    coordinates.push(rest);
    coordinates.reverse();
    coordinates
}
