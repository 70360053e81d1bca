//! Where a row's vectors lie in the operands and in registers, and how they are read.

use super::row::Row;
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{TensorId, Test};
use crate::layout::Tiler;
use crate::schedule::pointwise::{copy, vector, widen};
use crate::schedule::vectors::neighbours;
use crate::template::access::Access;

/// An operand in global memory.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// The matrix.
    pub(super) param: TensorId,
    /// How it lies.
    pub(super) access: Access,
    /// Which of its rows is taken; `None`: the own one.
    pub(super) row: Option<Expr>,
}

impl Row<'_> {
    /// Vectors of some operands, in single precision.
    pub(super) fn read(
        &self,
        k: &mut Builder,
        sources: &[Source],
        i: &Var,
    ) -> Result<Vec<TensorId>> {
        let mut read = Vec::new();
        for source in sources {
            let from = self.view(k, source, i)?;
            let n = self.count(source);
            let raw = vector(k, "raw", n, source.access.scalar)?;
            self.fetch(k, source, raw, from)?;
            read.push(widen(k, raw, n, self.teams.one)?);
        }
        Ok(read)
    }

    /// Loads a vector of an operand; of a table, if it has the row that is asked for.
    pub(super) fn fetch(
        &self,
        k: &mut Builder,
        source: &Source,
        to: TensorId,
        from: TensorId,
    ) -> Result<()> {
        let n = self.count(source);
        let contiguous = source.access.contiguous();
        let load = |k: &mut Builder| copy(k, to, from, n, contiguous, self.teams.one);
        match source.row {
            Some(_) => k.if_(Test::Inside(from.into()), load),
            None => load(k),
        }
    }

    /// What is done where there is a vector: within the rows and the columns.
    pub(super) fn inside(
        &self,
        k: &mut Builder,
        i: &Var,
        body: impl FnOnce(&mut Builder) -> Result<()>,
    ) -> Result<()> {
        let vector = self.view(k, &self.outs[0], i)?;
        k.if_(Test::Inside(vector.into()), body)
    }

    /// How many different elements a vector of an operand has.
    pub(super) fn count(&self, source: &Source) -> i64 {
        if source.access.repeats() { 1 } else { self.template.vector }
    }

    /// The thread's `i`-th vector of an operand: neighbouring threads have neighbouring ones.
    pub(super) fn view(&self, k: &mut Builder, source: &Source, i: &Var) -> Result<TensorId> {
        let n = self.template.vector;
        let at = Expr::from(i) * self.template.threads + &self.teams.at[1];
        let row = source.row.as_ref().unwrap_or(&self.row);
        let view = neighbours(k, source.param, [row.clone(), at], n, "vector")?;
        if self.count(source) == n {
            return Ok(view);
        }
        let first = k.tile(view, "first", &[Tiler::Size(1)])?;
        k.index(first, "first", [0])
    }

    /// The `i`-th vector of `n` among a thread's registers.
    pub(super) fn part(&self, k: &mut Builder, of: TensorId, i: &Var, n: i64) -> Result<TensorId> {
        let parts = k.tile(of, "parts", &[Tiler::Size(n)])?;
        k.index(parts, "part", [i])
    }
}
