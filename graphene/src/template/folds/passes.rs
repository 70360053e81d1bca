//! What a team does with its row: it goes through the columns for every total, and for the results.

use super::{Folds, Out, Total};
use crate::schedule::together::ThreadGroups;
use crate::schedule::{computed, each, neighbours, number, part, store};
use crate::{
    Builder, Cond, Expr, Function, Fused, Header, Kind, Operand, Result, Scalar, TensorId, Test,
};

/// The own team's row.
pub(super) struct Row<'a> {
    pub(super) template: &'a Folds,
    pub(super) ins: &'a [TensorId],
    pub(super) outs: &'a [TensorId],
    pub(super) teams: ThreadGroups,
    /// Sizes of all axes.
    pub(super) sizes: &'a [Expr],
    pub(super) row: Expr,
    pub(super) columns: Expr,
    /// An input of all axes.
    pub(super) whole: TensorId,
}

impl Row<'_> {
    /// The totals, one after the other, and the results.
    pub(super) fn all(&self, k: &mut Builder) -> Result {
        let outs = self.own(k, self.outs)?;
        let ins = self.own(k, self.ins)?;
        let kind = Kind::Fused(self.template.meaning(self.sizes.len(), &self.columns));
        let header = Header::new(kind, outs, ins.clone(), self.teams.team);
        k.decompose(header, |k| self.row(k, &ins))
    }

    /// The own row of operands.
    fn own(&self, k: &mut Builder, of: &[TensorId]) -> Result<Vec<TensorId>> {
        let row = split(&self.row, &self.sizes[..self.template.kept]);
        let own = |&of: &TensorId| {
            let rank = k.tensor_of(of)?.view.axes().len();
            let mut tiles: Vec<_> = row.iter().map(|at| Some((1, at.clone()))).collect();
            tiles.resize(rank, None);
            part(k, of, "own_row", &tiles)
        };
        of.iter().map(own).collect()
    }

    fn row(&self, k: &mut Builder, own: &[TensorId]) -> Result {
        let mut count = None;
        if self.template.totals.iter().any(|total| total.finish.used().any(|input| input == 1)) {
            let number = *count.insert(number(k, "count", Scalar::F32)?);
            k.alone(Kind::Index(self.columns.clone()), number, ())?;
        }
        let mut totals = Vec::new();
        let mut meanings: Vec<Fused> = Vec::new();
        for total in &self.template.totals {
            let rank = self.sizes.len();
            let [folded, meaning] = self.template.total(total, rank, &self.columns, &meanings);
            meanings.push(meaning);
            let value = number(k, "total", Scalar::F32)?;
            let (fused, used) = folded.over_used();
            let used: Vec<TensorId> = used.into_iter().map(|input| own[input]).collect();
            let header = Header::new(Kind::Fused(fused), value, used, self.teams.team);
            k.decompose(header, |k| self.total(k, total, &totals, value))?;
            // Where nothing counts columns, nothing reads their number.
            let count = count.unwrap_or(value);
            let ins: Vec<TensorId> = [value, count].iter().chain(&totals).copied().collect();
            totals.extend(computed(k, &total.finish, ("finished", 1, Scalar::F32), &ins)?);
        }
        let is_whole = |out: &(&Out, TensorId)| out.0.access.strides.len() == self.sizes.len();
        let outs = self.template.outs.iter().zip(self.outs.iter().copied());
        let (whole, rows): (Vec<_>, Vec<_>) = outs.partition(is_whole);
        if !whole.is_empty() {
            let n = self.template.vector;
            self.pass(k, |k, at| {
                whole.into_iter().try_for_each(|out| self.leave(k, out, &totals, (at, n)))
            })?;
        }
        k.if_(Cond::equal(self.teams.at[1].clone(), 0), |k| {
            rows.into_iter().try_for_each(|out| {
                let first = Expr::from(0);
                let inside = self.view(k, out.1, (&first, 1))?;
                k.if_(Test::Inside(inside.into()), |k| self.leave(k, out, &totals, (&first, 1)))
            })
        })
    }

    /// `body` for each of the thread's vectors, where there are such.
    fn pass(&self, k: &mut Builder, body: impl FnOnce(&mut Builder, &Expr) -> Result) -> Result {
        let n = self.template.vector;
        let steps = self.columns.ceil_div(n * self.teams.size);
        k.for_("i", Expr::from(0)..steps, 1, false, |k, i| {
            let at = Expr::from(i) * self.teams.size + &self.teams.at[1];
            let inside = self.view(k, self.whole, (&at, n))?;
            k.if_(Test::Inside(inside.into()), |k| body(k, &at))
        })
    }

    fn total(&self, k: &mut Builder, of: &Total, before: &[TensorId], to: TensorId) -> Result {
        let n = self.template.vector;
        k.init(to, of.op.neutral().unwrap_or(0.0))?;
        self.pass(k, |k, at| {
            let values = self.values(k, &of.function, before, (at, n))?;
            each(k, n, |k, e| k.reduce(of.op, to, Operand::at(values, [e])))
        })?;
        self.teams.fold(k, of.op, to)
    }

    /// Stores so many elements of a result.
    fn leave(
        &self,
        k: &mut Builder,
        (out, to): (&Out, TensorId),
        totals: &[TensorId],
        at: (&Expr, i64),
    ) -> Result {
        let values = self.values(k, &out.function, totals, at)?;
        let to = self.view(k, to, at)?;
        store(k, to, values, at.1 > 1 && out.access.contiguous())
    }

    /// A function's values, in registers: of so many elements of each input that it uses, and of the totals.
    fn values(
        &self,
        k: &mut Builder,
        function: &Function,
        totals: &[TensorId],
        (at, n): (&Expr, i64),
    ) -> Result<TensorId> {
        let mut ins = [self.ins, totals].concat();
        let used: Vec<usize> = function.used().collect();
        // Nothing reads the others.
        for (i, access) in self.template.ins.iter().enumerate().filter(|(i, _)| used.contains(i)) {
            let count = if access.strides.len() == self.sizes.len() { n } else { 1 };
            let from = self.view(k, ins[i], (at, count))?;
            ins[i] = access.load(k, from, Scalar::F32)?;
        }
        Ok(computed(k, function, ("values", n, Scalar::F32), &ins)?[0])
    }

    /// A vector `[n]` of an operand, in the own row.
    fn view(&self, k: &mut Builder, of: TensorId, (at, n): (&Expr, i64)) -> Result<TensorId> {
        let (kept, rank) = (self.template.kept, k.tensor_of(of)?.view.axes().len());
        let mut coordinates = split(&self.row, &self.sizes[..kept]);
        if rank > kept {
            let mut reduced = self.sizes[kept..].to_vec();
            if let Some(last) = reduced.last_mut() {
                *last = last.div(n);
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
