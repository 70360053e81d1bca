//! How a row comes and is kept, and passes over it.

use super::Rows;
use super::row::{Kept, Row, Source};
use crate::schedule::{copy, each, neighbours, pointwise, store, vector, widen};
use crate::{Builder, Expr, Result, Scalar, TensorId, Test};

/// Which of a thread's vectors: of all of its row, and of those in registers.
pub(super) struct At {
    row: Expr,
    own: Expr,
}

impl Row<'_> {
    /// Brings the row, if it is kept, or in parts.
    pub(super) fn bring(&mut self, k: &mut Builder) -> Result {
        if let Some(blocks) = &self.blocks {
            return self.bring_part(k, blocks);
        }
        let Some(held) = self.template.held else { return Ok(()) };
        let n = self.template.vector;
        let sources = [&self.ins[..], &self.late].concat();
        let mut raws = self.load(k, &sources, (&0.into(), held))?;
        let late = raws.split_off(self.ins.len());
        let row = vector(k, "row", held * n, Scalar::F32)?;
        self.each(k, (&0.into(), held), |k, at| {
            let ins = self.values(k, &self.ins, &raws, at)?;
            let to = self.part(k, row, at, n)?;
            pointwise(k, &self.template.prologue, &[to], &ins)?;
            self.keep(k, to, at)
        })?;
        self.kept = Some(Kept { row, late });
        Ok(())
    }

    /// Some of the thread's vectors of each operand in registers, of its type.
    fn load(
        &self,
        k: &mut Builder,
        sources: &[Source],
        some: (&Expr, i64),
    ) -> Result<Vec<TensorId>> {
        let raw =
            |source: &Source| vector(k, "raw", some.1 * self.count(source), source.access.scalar);
        let raws = sources.iter().map(raw).collect::<Result<Vec<_>>>()?;
        // All loads come before what waits for the first of them.
        self.each(k, some, |k, at| {
            for (source, &raw) in sources.iter().zip(&raws) {
                let from = self.view(k, source, at)?;
                let to = self.part(k, raw, at, self.count(source))?;
                self.fetch(k, source, to, from)?;
            }
            Ok(())
        })?;
        Ok(raws)
    }

    /// `body` for so many of the thread's vectors, from the first on, where there is one: within the rows and the columns.
    pub(super) fn each(
        &self,
        k: &mut Builder,
        (first, count): (&Expr, i64),
        body: impl FnOnce(&mut Builder, &At) -> Result,
    ) -> Result {
        k.for_("i", Expr::from(0)..count.into(), 1, true, |k, i| {
            let at = At { row: first.clone() + i, own: i.into() };
            let vector = self.view(k, &self.outs[0], &at)?;
            k.if_(Test::Inside(vector.into()), |k| body(k, &at))
        })
    }

    /// Stores the prologue's value.
    fn keep(&self, k: &mut Builder, value: TensorId, at: &At) -> Result {
        let Some((sum, _)) = &self.sum else { return Ok(()) };
        let to = self.view(k, sum, at)?;
        store(k, to, value, sum.access.contiguous())
    }

    /// `body` for each of the thread's vectors: its place, its elements' registers, which hold the prologue's values, and
    /// what was loaded of `late`. `first`: the first pass over a row that is not kept.
    pub(super) fn pass(
        &self,
        k: &mut Builder,
        first: bool,
        late: &[Source],
        body: impl FnOnce(&mut Builder, &At, TensorId, &[TensorId]) -> Result,
    ) -> Result {
        let Rows { vector: n, held, .. } = *self.template;
        if let (Some(kept), Some(held)) = (&self.kept, held) {
            return self.each(k, (&0.into(), held), |k, at| {
                let part = self.part(k, kept.row, at, n)?;
                body(k, at, part, &kept.late)
            });
        }
        // Parts come to shared memory before the first pass.
        let shared = self.shared.filter(|_| !first || self.blocks.is_some());
        let ins = if shared.is_none() { &self.ins[..] } else { &[] };
        self.chunks(k, |k, some| {
            let raws = self.load(k, &[ins, late].concat(), some)?;
            let (raws, late) = raws.split_at(ins.len());
            self.each(k, some, |k, at| {
                let value = vector(k, "row", n, Scalar::F32)?;
                match shared {
                    Some(shared) => {
                        self.pieces(k, [shared, value], at, |k, [of, to]| copy(k, to, of, true))?;
                    }
                    None => {
                        let ins = self.values(k, ins, raws, at)?;
                        pointwise(k, &self.template.prologue, &[value], &ins)?;
                    }
                }
                if first {
                    self.keep(k, value, at)?;
                    if let (Some(to), None) = (self.shared, shared) {
                        self.pieces(k, [to, value], at, |k, [to, of]| copy(k, to, of, true))?;
                    }
                }
                body(k, at, value, late)
            })
        })
    }

    /// `body` for each chunk of the thread's vectors: the first, and how many.
    pub(super) fn chunks(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder, (&Expr, i64)) -> Result,
    ) -> Result {
        let Rows { vector, threads, ahead, parts, .. } = *self.template;
        let chunk = vector * threads * ahead;
        let chunks = match parts {
            1 => self.columns.ceil_div(chunk),
            _ => Expr::from(self.template.padded() / chunk),
        };
        k.for_("chunk", Expr::from(0)..chunks, 1, false, |k, chunk| {
            body(k, (&(Expr::from(chunk) * ahead), ahead))
        })
    }

    /// `body` for each piece of 16 bytes of the thread's vector in shared memory and in a register: pieces of all threads lie
    /// one after the other, so that no two need the same bank.
    pub(super) fn pieces(
        &self,
        k: &mut Builder,
        [shared, value]: [TensorId; 2],
        at: &At,
        body: impl FnOnce(&mut Builder, [TensorId; 2]) -> Result,
    ) -> Result {
        let Rows { vector: n, threads, .. } = *self.template;
        let piece = n.min(4);
        each(k, n / piece, |k, p| {
            let place = (at.row.clone() * (n / piece) + &p) * threads + &self.teams.at[1];
            let shared = neighbours(k, shared, [place], piece, "shared_piece")?;
            let value = neighbours(k, value, [p], piece, "piece")?;
            body(k, [shared, value])
        })
    }

    /// A thread's vectors of some operands in single precision, from the registers that they were loaded to.
    pub(super) fn values(
        &self,
        k: &mut Builder,
        sources: &[Source],
        raws: &[TensorId],
        at: &At,
    ) -> Result<Vec<TensorId>> {
        let value = |(source, &raw): (&Source, &TensorId)| {
            let raw = self.part(k, raw, at, self.count(source))?;
            widen(k, raw)
        };
        sources.iter().zip(raws).map(value).collect()
    }

    /// Loads a vector of an operand; of a table, if it has the row that is asked for.
    fn fetch(&self, k: &mut Builder, source: &Source, to: TensorId, from: TensorId) -> Result {
        let load = |k: &mut Builder| copy(k, to, from, source.access.contiguous());
        match source.row {
            Some(_) => k.if_(Test::Inside(from.into()), load),
            None => load(k),
        }
    }

    /// How many different elements a vector of an operand has.
    fn count(&self, source: &Source) -> i64 {
        if source.access.repeats() { 1 } else { self.template.vector }
    }

    /// The thread's vector of an operand: neighbouring threads have neighbouring ones.
    pub(super) fn view(&self, k: &mut Builder, source: &Source, at: &At) -> Result<TensorId> {
        let n = self.template.vector;
        let mut at = at.row.clone() * self.template.threads + &self.teams.at[1];
        if let Some(blocks) = &self.blocks {
            at = at + &blocks.first;
        }
        let row = source.row.as_ref().unwrap_or(&self.row);
        let view = neighbours(k, source.param, [row.clone(), at], n, "vector")?;
        if self.count(source) == n {
            return Ok(view);
        }
        neighbours(k, view, [0.into()], 1, "first")
    }

    /// A vector of `n` among a thread's registers.
    fn part(&self, k: &mut Builder, of: TensorId, at: &At, n: i64) -> Result<TensorId> {
        neighbours(k, of, [at.own.clone()], n, "part")
    }
}
