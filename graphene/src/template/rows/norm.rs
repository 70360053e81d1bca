//! The passes of each normalisation.

use super::Norm;
use super::row::{Kept, Order, Row};
use crate::build::Builder;
use crate::error::Result;
use crate::function::Function;
use crate::kernel::{Binary, Fused, Kind, TensorId, Unary};
use crate::schedule::pointwise::{number, pointwise, vector};
use crate::tensor::Scalar;

impl Row<'_> {
    /// Brings the row, computes its statistics, and stores the result.
    pub(super) fn normalise(&self, k: &mut Builder) -> Result<()> {
        let kept = self.bring(k)?;
        match self.template.norm {
            Norm::None => self.leave(k, &kept, &Function::identity(), &[]),
            Norm::Layer => self.layer(k, &kept),
            Norm::Rms => self.rms(k, &kept),
            Norm::Softmax => self.softmax(k, &kept),
            Norm::LogSoftmax => self.log_softmax(k, &kept),
        }
    }

    fn layer(&self, k: &mut Builder, kept: &Kept) -> Result<()> {
        let [x, mean] = [0, 1].map(Function::input);
        let sum = self.fold(k, kept, Binary::Add, &x, &[], Order::First)?;
        let mean_value = self.mean(k, &sum)?;
        let difference = x - mean;
        let square = difference.clone() * difference;
        let squares = self.fold(k, kept, Binary::Add, &square, &[&mean_value], Order::Later)?;
        let inverse = self.inverse_root(k, &squares)?;
        let [mean, inverted] = [0, 1].map(|number| self.statistic(number));
        let normal = (Function::identity() - mean) * inverted;
        self.leave(k, kept, &normal, &[&mean_value, &inverse])
    }

    fn rms(&self, k: &mut Builder, kept: &Kept) -> Result<()> {
        let x = Function::identity();
        let square = x.clone() * x.clone();
        let squares = self.fold(k, kept, Binary::Add, &square, &[], Order::First)?;
        let inverse = self.inverse_root(k, &squares)?;
        self.leave(k, kept, &(x * self.statistic(0)), &[&inverse])
    }

    fn softmax(&self, k: &mut Builder, kept: &Kept) -> Result<()> {
        let x = Function::identity();
        let most = self.fold(k, kept, Binary::Max, &x, &[], Order::First)?;
        let power = |most: Function| (Function::identity() - most).unary(Unary::Exp);
        let powers = power(Function::input(1));
        // What is kept need not be computed again.
        let (order, left) = match kept {
            Kept::Registers(..) => (Order::Replaces, x),
            Kept::Memory => (Order::Later, power(self.statistic(1))),
        };
        let sum = self.fold(k, kept, Binary::Add, &powers, &[&most], order)?;
        let inverse = self.apply(k, &Function::identity().unary(Unary::Rcp), &sum)?;
        let stats = [&inverse, &most];
        let used = if order == Order::Replaces { 1 } else { 2 };
        self.leave(k, kept, &(left * self.statistic(0)), &stats[..used])
    }

    fn log_softmax(&self, k: &mut Builder, kept: &Kept) -> Result<()> {
        let [x, most] = [0, 1].map(Function::input);
        let most_value = self.fold(k, kept, Binary::Max, &x, &[], Order::First)?;
        let power = (x.clone() - most).unary(Unary::Exp);
        let sum = self.fold(k, kept, Binary::Add, &power, &[&most_value], Order::Later)?;
        let log = self.apply(k, &Function::identity().unary(Unary::Log), &sum)?;
        let [most, logarithm] = [0, 1].map(|number| self.statistic(number));
        self.leave(k, kept, &(x - most - logarithm), &[&most_value, &log])
    }

    /// A sum over the row, divided by the number of columns.
    fn mean(&self, k: &mut Builder, sum: &Statistic) -> Result<Statistic> {
        let columns = number(k, "count", Scalar::F32)?;
        k.alone(Kind::Index(self.columns.clone()), columns, ())?;
        let mean = number(k, "mean", Scalar::F32)?;
        k.binary(Binary::Div, mean, [sum.register, columns])?;
        let count = Fused::index(self.columns.clone());
        let meaning = sum.meaning.clone().binary(Binary::Div, count);
        Ok(Statistic { register: mean, meaning })
    }

    /// 1/√(mean + ε) of a sum of squares.
    fn inverse_root(&self, k: &mut Builder, squares: &Statistic) -> Result<Statistic> {
        let mean = self.mean(k, squares)?;
        let function = (Function::identity() + self.template.epsilon.0).unary(Unary::Rsqrt);
        self.apply(k, &function, &mean)
    }

    /// A function of one register.
    fn apply(&self, k: &mut Builder, function: &Function, of: &Statistic) -> Result<Statistic> {
        let register = vector(k, "statistic", 1, Scalar::F32)?;
        pointwise(k, function, &[register], &[of.register])?;
        let meaning = Fused::of(function, std::slice::from_ref(&of.meaning));
        Ok(Statistic { register, meaning })
    }
}

/// A statistic of a row: the register that holds it, and what it is of the row's operands.
#[derive(Debug, Clone)]
pub(super) struct Statistic {
    /// A number in single precision.
    pub(super) register: TensorId,
    pub(super) meaning: Fused,
}
