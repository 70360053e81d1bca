//! What each normalisation folds a row into, and how the result goes.

use super::shared_by::Blocks;
use super::{Norm, Rows};
use crate::schedule::together::ThreadGroups;
use crate::schedule::{computed, copy, each, number, pointwise, store, vector};
use crate::template::access::Access;
use crate::{
    Binary, Builder, Expr, Function, Fused, Header, Kind, Operand, Result, Scalar, TensorId, Unary,
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
    /// The blocks that share the row, if there are several.
    pub(super) blocks: Option<Blocks>,
}

/// A row in registers.
pub(super) struct Kept {
    pub(super) row: TensorId,
    /// What is read late.
    pub(super) late: Vec<TensorId>,
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
                let keeps = self.kept.is_some() || self.blocks.is_some();
                let left = if keeps { x.clone() } else { power };
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
        let together = self.blocks.as_ref().map(|blocks| blocks.together);
        let header = Header::new(kind, outs, self.given.clone(), self.teams.team).on(together);
        let Rows { vector: n, norm, .. } = *self.template;
        // Powers take the elements' place where they are kept.
        let powers = norm == Norm::Softmax && !first;
        let replaces = powers && self.kept.is_some();
        let shared = self.shared.filter(|_| powers && self.blocks.is_some());
        k.decompose(header, |k| {
            k.init(register, op.neutral().unwrap_or(0.0))?;
            self.pass(k, first, &[], |k, at, part, _| {
                let value = if replaces { part } else { vector(k, "value", n, Scalar::F32)? };
                let stats = stats.iter().map(|statistic| statistic.register);
                let ins: Vec<TensorId> = [part].into_iter().chain(stats).collect();
                pointwise(k, function, &[value], &ins)?;
                if let Some(shared) = shared {
                    self.pieces(k, [shared, value], at, |k, [to, of]| copy(k, to, of, true))?;
                }
                each(k, n, |k, e| k.reduce(op, register, Operand::at(value, [e])))
            })?;
            self.teams.fold(k, op, register)?;
            match &self.blocks {
                Some(blocks) => blocks.fold(k, (op, stats.len()), (register, &self.teams.at[1])),
                None => Ok(()),
            }
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
}
