//! What is computed of rows, as an expression over the operands.

use super::{Norm, Rows};
use crate::index::Expr;
use crate::kernel::{Binary, Fold, Fused, Monoid, TensorId, Unary};
use crate::template::gather::Place;

impl Rows {
    /// What is stored: the prologue's value, if it is, and the results. Inputs are the prologue's, what is read
    /// late, and the indices. Without the sizes of tables it is that of a single row: tables are repeated already.
    pub(super) fn meaning(&self, tables: &[Option<Expr>], columns: &Expr) -> Fused {
        let late: Vec<Fused> =
            (self.ins.len()..).take(self.extras_end()).map(Fused::input).collect();
        let value = self.value(tables);
        let normal = self.normal(value.clone(), columns);
        let results = Fused::of(&self.finish(), &[&[normal], &late[..]].concat());
        Fused::all(self.sum.iter().map(|_| value.clone()).chain([results]))
    }

    /// The prologue's value.
    fn value(&self, tables: &[Option<Expr>]) -> Fused {
        let mut indices = (self.ins.len() + self.extras_end()..).map(Fused::input);
        let each = |input: usize| {
            let x = Fused::input(input);
            match (self.places.get(input), tables.get(input)) {
                (Some(Place::Index(_)), _) => match indices.next() {
                    Some(index) => x.gather(index),
                    None => x,
                },
                (Some(Place::Repeated), Some(Some(size))) => {
                    // The number of each row of the result.
                    let row = Fused::old(0).position(0).slice(1, 0, 1).merge(0);
                    x.gather(row.binary(Binary::Rem, Fused::index(size.clone())))
                }
                (Some(Place::Same | Place::Repeated) | None, _) => x,
            }
        };
        let ins: Vec<Fused> = (0..self.ins.len()).map(each).collect();
        Fused::of(&self.prologue, &ins)
    }

    /// The normalised values.
    fn normal(&self, x: Fused, columns: &Expr) -> Fused {
        let part =
            |monoid: Monoid, part: usize| x.clone().fold(&Fold { monoid, along: vec![1] }, part);
        let inverse_root = |mean: Fused| {
            mean.binary(Binary::Add, Fused::number(self.epsilon.0)).unary(Unary::Rsqrt)
        };
        let softmax = |which: usize| part(Monoid::Softmax, which);
        let shifted = x.clone().binary(Binary::Sub, softmax(0));
        match self.norm {
            Norm::None => x,
            Norm::Layer => {
                let difference = x.clone().binary(Binary::Sub, part(Monoid::Welford, 0));
                difference.binary(Binary::Mul, inverse_root(part(Monoid::Welford, 1)))
            }
            Norm::Rms => {
                let squares = x.clone().binary(Binary::Mul, x.clone()).folded(Binary::Add, [1]);
                let mean = squares.binary(Binary::Div, Fused::index(columns.clone()));
                x.binary(Binary::Mul, inverse_root(mean))
            }
            Norm::Softmax => shifted.unary(Unary::Exp).binary(Binary::Div, softmax(1)),
            Norm::LogSoftmax => shifted.binary(Binary::Sub, softmax(1).unary(Unary::Log)),
        }
    }
}

/// A statistic of a row: the register that holds it, and what it is of the row's operands.
#[derive(Debug, Clone)]
pub(super) struct Statistic {
    /// A number in single precision.
    pub(super) register: TensorId,
    pub(super) meaning: Fused,
}
