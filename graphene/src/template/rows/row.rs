//! How a row comes, is kept, what each normalisation folds it into, and how the result goes.

use super::{Norm, Rows};
use crate::schedule::together::ThreadGroups;
use crate::schedule::{computed, copy, each, neighbours, number, pointwise, store, vector, widen};
use crate::template::access::Access;
use crate::{
    Binary, Builder, Expr, Function, Fused, Header, Kind, Operand, Result, Scalar, TensorId, Test,
    Unary,
};

/// The own team's row.
pub(super) struct Row<'a> {
    pub(super) template: &'a Rows,
    pub(super) teams: ThreadGroups,
    pub(super) row: Expr,
    pub(super) columns: Expr,
    pub(super) ins: Vec<Source>,
    /// Where the prologue's value is stored, and the own row of that.
    pub(super) sum: Option<(Source, TensorId)>,
    /// What is read once the row is normalised.
    pub(super) late: Vec<Source>,
    /// At least one.
    pub(super) outs: Vec<Source>,
    /// The row of each of the prologue's inputs.
    pub(super) given: Vec<TensorId>,
    /// All of a thread's vectors in registers; none where each pass goes through the row in chunks.
    pub(super) kept: Option<Kept>,
    /// The prologue's values in shared memory, where these chunks are read again; none where they come and are computed again.
    pub(super) shared: Option<TensorId>,
}

/// A row in registers.
pub(super) struct Kept {
    row: TensorId,
    /// What is read late.
    late: Vec<TensorId>,
}

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

/// Which of a thread's vectors: of all of its row, and of those in registers.
struct At {
    row: Expr,
    own: Expr,
}

/// A statistic of a row: the register that holds it, and what it is of the row's operands.
#[derive(Debug, Clone)]
struct Statistic {
    /// A number in single precision.
    register: TensorId,
    meaning: Fused,
}

/// What becomes of a total.
enum Then {
    /// It is divided by the number of columns.
    Mean,
    /// 1/√(mean + ε)
    InverseRoot,
    /// A function of it.
    Of(Unary),
    Nothing,
}

impl Row<'_> {
    /// Brings the row, computes its statistics, one after the other, and stores the result.
    pub(super) fn normalise(mut self, k: &mut Builder) -> Result {
        self.bring(k)?;
        // An element, and the first two statistics.
        let [x, first, second] = [0, 1, 2].map(Function::input);
        let (difference, square) = (x.clone() - first.clone(), |x: Function| x.clone() * x);
        let power = difference.clone().unary(Unary::Exp);
        let [add, max] = [Binary::Add, Binary::Max];
        let (folds, result) = match self.template.norm {
            Norm::None => (vec![], x),
            Norm::Layer => {
                let squares = (add, square(difference.clone()), Then::InverseRoot);
                (vec![(add, x, Then::Mean), squares], difference * second)
            }
            Norm::Rms => (vec![(add, square(x.clone()), Then::InverseRoot)], x * first),
            Norm::Softmax => {
                let sum = (add, power.clone(), Then::Of(Unary::Rcp));
                // What is kept need not be computed again.
                let left = if self.kept.is_some() { x.clone() } else { power };
                (vec![(max, x, Then::Nothing), sum], left * second)
            }
            Norm::LogSoftmax => {
                let sum = (add, power, Then::Of(Unary::Log));
                (vec![(max, x, Then::Nothing), sum], difference - second)
            }
        };
        let mut stats = Vec::new();
        for (op, function, then) in folds {
            let total = self.fold(k, op, &function, &stats)?;
            stats.push(self.then(k, &then, total)?);
        }
        self.leave(k, &result, &stats)
    }

    fn then(&self, k: &mut Builder, then: &Then, total: Statistic) -> Result<Statistic> {
        let x = Function::identity();
        let (function, of) = match then {
            Then::Nothing => return Ok(total),
            Then::Mean => return self.mean(k, &total),
            Then::InverseRoot => {
                ((x + self.template.epsilon.0).unary(Unary::Rsqrt), self.mean(k, &total)?)
            }
            Then::Of(op) => (x.unary(*op), total),
        };
        let register = computed(k, &function, ("statistic", 1, Scalar::F32), &[of.register])?[0];
        Ok(Statistic { register, meaning: Fused::of(&function, &[of.meaning]) })
    }

    /// A sum over the row, divided by the number of columns.
    fn mean(&self, k: &mut Builder, sum: &Statistic) -> Result<Statistic> {
        let columns = number(k, "count", Scalar::F32)?;
        k.alone(Kind::Index(self.columns.clone()), columns, ())?;
        let register = number(k, "mean", Scalar::F32)?;
        k.binary(Binary::Div, register, [sum.register, columns])?;
        let count = Fused::index(self.columns.clone());
        Ok(Statistic { register, meaning: sum.meaning.clone() / count })
    }

    /// Brings the row, if it is kept.
    fn bring(&mut self, k: &mut Builder) -> Result {
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
    fn each(
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
    fn pass(
        &self,
        k: &mut Builder,
        first: bool,
        late: &[Source],
        body: impl FnOnce(&mut Builder, &At, TensorId, &[TensorId]) -> Result,
    ) -> Result {
        let Rows { vector: n, threads, held, ahead, .. } = *self.template;
        if let (Some(kept), Some(held)) = (&self.kept, held) {
            return self.each(k, (&0.into(), held), |k, at| {
                let part = self.part(k, kept.row, at, n)?;
                body(k, at, part, &kept.late)
            });
        }
        let chunks = self.columns.ceil_div(n * threads * ahead);
        let ins = if first || self.shared.is_none() { &self.ins[..] } else { &[] };
        k.for_("chunk", Expr::from(0)..chunks, 1, false, |k, chunk| {
            let some = (&(Expr::from(chunk) * ahead), ahead);
            let raws = self.load(k, &[ins, late].concat(), some)?;
            let (raws, late) = raws.split_at(ins.len());
            self.each(k, some, |k, at| {
                let value = vector(k, "row", n, Scalar::F32)?;
                match self.shared {
                    Some(shared) if !first => {
                        self.pieces(k, [shared, value], at, |k, [of, to]| copy(k, to, of, true))?;
                    }
                    _ => {
                        let ins = self.values(k, ins, raws, at)?;
                        pointwise(k, &self.template.prologue, &[value], &ins)?;
                    }
                }
                if first {
                    self.keep(k, value, at)?;
                    if let Some(shared) = self.shared {
                        self.pieces(k, [shared, value], at, |k, [to, of]| copy(k, to, of, true))?;
                    }
                }
                body(k, at, value, late)
            })
        })
    }

    /// `body` for each piece of 16 bytes of the thread's vector in shared memory and in a register: pieces of all threads lie
    /// one after the other, so that no two need the same bank.
    fn pieces(
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

    /// Folds `function` of each element (input 0) and of the statistics before (the inputs after it) over the row.
    fn fold(
        &self,
        k: &mut Builder,
        op: Binary,
        function: &Function,
        stats: &[Statistic],
    ) -> Result<Statistic> {
        let (register, first) = (number(k, "total", Scalar::F32)?, stats.is_empty());
        let value = Fused::of(&self.template.prologue, &[]);
        let parts = stats.iter().map(|statistic| statistic.meaning.clone());
        let parts: Vec<Fused> = std::iter::once(value.clone()).chain(parts).collect();
        let meaning = Fused::of(function, &parts).folded(op, [1]);
        let (mut outs, mut results) = (vec![register], vec![meaning.clone()]);
        if let (None, true, Some((_, stored))) = (&self.kept, first, &self.sum) {
            outs.push(*stored);
            results.push(value);
        }
        let kind = Kind::Fused(Fused::all(results));
        let header = Header::new(kind, outs, self.given.clone(), self.teams.team);
        let Rows { vector: n, norm, .. } = *self.template;
        // Powers take the elements' place where they are kept.
        let replaces = norm == Norm::Softmax && !first && self.kept.is_some();
        k.decompose(header, |k| {
            k.init(register, op.neutral().unwrap_or(0.0))?;
            self.pass(k, first, &[], |k, _, part, _| {
                let value = if replaces { part } else { vector(k, "value", n, Scalar::F32)? };
                let stats = stats.iter().map(|statistic| statistic.register);
                let ins: Vec<TensorId> = [part].into_iter().chain(stats).collect();
                pointwise(k, function, &[value], &ins)?;
                each(k, n, |k, e| k.reduce(op, register, Operand::at(value, [e])))
            })?;
            self.teams.fold(k, op, register)
        })?;
        Ok(Statistic { register, meaning })
    }

    /// Stores `function` of each element and of all statistics, scaled, shifted and after the epilogue.
    fn leave(&self, k: &mut Builder, function: &Function, stats: &[Statistic]) -> Result {
        // The late operands follow the element; the statistics follow them.
        let count = self.late.len();
        let given = std::iter::once(0).chain(count + 1..=count + stats.len());
        let function = function.after(&Function::all(given.map(Function::input)));
        let given = std::iter::once(function).chain((1..=count).map(Function::input));
        let function = self.template.finish().after(&Function::all(given));
        self.pass(k, false, &self.late, |k, at, part, late| {
            let late = self.values(k, &self.late, late, at)?;
            let stats = stats.iter().map(|statistic| statistic.register);
            let ins: Vec<TensorId> = [part].into_iter().chain(late).chain(stats).collect();
            let of = ("result", self.template.vector, Scalar::F32);
            let results = computed(k, &function, of, &ins)?;
            for (out, &result) in self.outs.iter().zip(&results) {
                let to = self.view(k, out, at)?;
                store(k, to, result, out.access.contiguous())?;
            }
            Ok(())
        })
    }

    /// A thread's vectors of some operands in single precision, from the registers that they were loaded to.
    fn values(
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
    fn view(&self, k: &mut Builder, source: &Source, at: &At) -> Result<TensorId> {
        let n = self.template.vector;
        let at = at.row.clone() * self.template.threads + &self.teams.at[1];
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
