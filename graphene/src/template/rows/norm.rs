//! What each normalisation folds a row into, and the result.

use super::{Norm, Row};
use crate::schedule::{computed, number};
use crate::{Binary, Builder, Function, Fused, Kind, Result, Scalar, TensorId, Unary};

/// A statistic of a row: the register that holds it, and what it is of the row's operands.
#[derive(Debug, Clone)]
pub(super) struct Statistic {
    /// A number in single precision.
    pub(super) register: TensorId,
    pub(super) meaning: Fused,
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
}
