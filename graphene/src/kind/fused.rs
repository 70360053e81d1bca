//! Expressions over whole tensors: a [`Program`] of [`Term`]s, which are those of [`Function`]s and some
//! that move or fold dimensions.
//!
//! ```
//! use graphene_ir::kernel::{Fused, Kind, Unary};
//!
//! let sums = Fused::input(0).matmul(Fused::input(1));
//! let layer = (sums + Fused::input(2)).unary(Unary::Gelu);
//! assert_eq!(Kind::Fused(layer).to_string(), "Fused{gelu(matmul(%0, %1) + %2)}");
//! ```

use std::collections::BTreeSet;

use crate::convert::from;
use crate::function::{Node, Program, Value, operands};
use crate::{Binary, Expr, Function, Number, Step};

/// An expression for each of a spec's outputs, over its operands.
pub type Fused = Program<Term>;

/// A part of an expression: a tensor. Dimensions are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Term {
    /// The operand of a number, a number, or a function of each element. Parts broadcast as in ONNX: dimensions
    /// are aligned at the last, and those of 1 repeat.
    Step(Step),
    /// What the output of this number held before.
    Old(usize),
    /// An integer that the kernel knows.
    Index(Expr),
    /// Of each element its coordinate along a dimension.
    Position(usize, Value),
    /// A matmul of the last two dimensions.
    MatMul(Value, Value),
    /// A part of a fold. The dimensions stay, as ones of 1.
    Fold(Fold, usize, Value),
    /// A scan.
    Scan(Scan, Value),
    /// Other dimensions: each is an old one, or a new one of 1; those that are left out are of 1.
    Dims(Vec<Option<usize>>, Value),
    /// A dimension becomes two, of which the inner one has this size.
    Split(usize, Expr, Value),
    /// A dimension and the next become one.
    Merge(usize, Value),
    /// So many coordinates of a dimension from the first one on: first, count.
    Slice(usize, Expr, Expr, Value),
    /// Windows along a dimension, which counts them then; the elements of each are a new last dimension.
    Window(usize, Window, Value),
    /// The parts along the first dimension of a table that an index says. Negative indices count from the
    /// end, and others than there are mean the first or the last part.
    Gather(Value, Value),
    /// The states of so many steps along a new first dimension, after the one that is given first. Of a state, of the step's
    /// number and of what else is given the expression makes the next state, of the same shape.
    Steps(Expr, Box<Fused>, Vec<Value>),
}

/// What elements along some dimensions become.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fold {
    /// What folds them.
    pub monoid: Monoid,
    /// The dimensions.
    pub along: Vec<usize>,
}

/// An associative operation, and what is made of its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Monoid {
    /// A function of two numbers that has a neutral one.
    Of(Binary),
    /// The maximum, and Σ exp(x - maximum).
    Softmax,
    /// The mean, and the mean of the squares of differences from it.
    Welford,
}

/// What becomes of each element and those before it along a dimension.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scan {
    /// What combines them.
    pub op: Binary,
    /// The dimension.
    pub along: usize,
    /// Whether the element itself is left out.
    pub exclusive: bool,
    /// Whether it goes from the end to the beginning.
    pub reverse: bool,
}

/// Windows along a dimension: element `r` of window `o` is that at `o·stride + r·dilation - before`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Window {
    /// How many there are.
    pub count: Expr,
    /// The elements of one.
    pub size: i64,
    /// The distance of two windows.
    pub stride: i64,
    /// The distance of a window's elements.
    pub dilation: i64,
    /// How far before the first element the first window begins.
    pub before: i64,
    /// What stands outside.
    pub fill: Number,
}

impl Monoid {
    /// The names of its parts; of a single one none.
    pub fn parts(self) -> &'static [&'static str] {
        match self {
            Monoid::Of(_) => &[""],
            Monoid::Softmax => &["max", "sum"],
            Monoid::Welford => &["mean", "variance"],
        }
    }
}

/// A term's operands, as it is borrowed.
macro_rules! operands_of {
    ($term:expr) => {
        match $term {
            Term::Step(step) => operands!(step).collect::<Vec<_>>(),
            Term::Old(_) | Term::Index(_) => Vec::new(),
            Term::MatMul(x, y) | Term::Gather(x, y) => vec![x, y],
            Term::Steps(_, _, all) => all.into_iter().collect(),
            Term::Position(_, x)
            | Term::Fold(_, _, x)
            | Term::Scan(_, x)
            | Term::Dims(_, x)
            | Term::Split(_, _, x)
            | Term::Merge(_, x)
            | Term::Slice(_, _, _, x)
            | Term::Window(_, _, x) => vec![x],
        }
        .into_iter()
    };
}

from! {
    Step => Term: |step| Term::Step(step);
}

impl Node for Term {
    fn operands(&self) -> impl Iterator<Item = Value> {
        operands_of!(self).copied()
    }

    fn operands_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        operands_of!(self)
    }

    fn input(&self) -> Option<usize> {
        if let Term::Step(step) = self { step.input() } else { None }
    }
}

impl Fused {
    /// What an output held before.
    pub fn old(output: usize) -> Fused {
        Program::leaf(Term::Old(output))
    }

    /// An integer that the kernel knows.
    pub fn index(value: impl Into<Expr>) -> Fused {
        Program::leaf(Term::Index(value.into()))
    }

    /// A function of these, one after the other; its further inputs are operands.
    pub fn of(function: &Function, parts: &[Fused]) -> Fused {
        function.map(|step| step.clone().into()).after(&Fused::all(parts.iter().cloned()))
    }

    /// The same of the inputs that it uses, and which they are.
    pub fn over_used(&self) -> (Fused, Vec<usize>) {
        let used: BTreeSet<usize> = self.used().collect();
        let place = |input| used.iter().position(|of| *of == input).unwrap_or(input);
        let parts = (0..self.inputs()).map(|input| Fused::input(place(input)));
        (self.after(&Fused::all(parts)), used.into_iter().collect())
    }

    /// A matmul.
    pub fn matmul(self, other: Fused) -> Fused {
        Program::combine(&[self, other], |x| Term::MatMul(x[0], x[1]))
    }

    /// A part of a fold.
    pub fn fold(self, fold: &Fold, part: usize) -> Fused {
        self.then(|x| Term::Fold(fold.clone(), part, x))
    }

    /// A fold by a function of two numbers.
    pub fn folded(self, op: Binary, along: impl Into<Vec<usize>>) -> Fused {
        self.fold(&Fold { monoid: Monoid::Of(op), along: along.into() }, 0)
    }

    /// A scan.
    pub fn scan(self, scan: &Scan) -> Fused {
        self.then(|x| Term::Scan(scan.clone(), x))
    }

    /// Other dimensions.
    pub fn dims(self, dims: impl Into<Vec<Option<usize>>>) -> Fused {
        self.then(|x| Term::Dims(dims.into(), x))
    }

    /// Each element's coordinate along a dimension.
    pub fn position(self, dim: usize) -> Fused {
        self.then(|x| Term::Position(dim, x))
    }

    /// A dimension in two, the inner one of this size.
    pub fn split(self, dim: usize, size: impl Into<Expr>) -> Fused {
        self.then(|x| Term::Split(dim, size.into(), x))
    }

    /// A dimension and the next as one.
    pub fn merge(self, dim: usize) -> Fused {
        self.then(|x| Term::Merge(dim, x))
    }

    /// `count` coordinates of a dimension from `first` on.
    pub fn slice(self, dim: usize, first: impl Into<Expr>, count: impl Into<Expr>) -> Fused {
        self.then(|x| Term::Slice(dim, first.into(), count.into(), x))
    }

    /// Windows along a dimension.
    pub fn window(self, dim: usize, window: Window) -> Fused {
        self.then(|x| Term::Window(dim, window, x))
    }

    /// The parts of this table that an index says.
    pub fn gather(self, index: Fused) -> Fused {
        Program::combine(&[self, index], |x| Term::Gather(x[0], x[1]))
    }

    /// The states of so many steps, of which this is the first.
    pub fn steps_of(self, count: impl Into<Expr>, next: Fused, given: &[Fused]) -> Fused {
        let all = [&[self], given].concat();
        Program::combine(&all, |x| Term::Steps(count.into(), Box::new(next.ordered()), x.to_vec()))
    }

    /// A term of the first output.
    pub(crate) fn then(self, term: impl FnOnce(Value) -> Term) -> Fused {
        Program::combine(&[self], |x| term(x[0]))
    }

    /// The numbers in it that the kernel's variables decide.
    pub(crate) fn exprs(&self) -> Vec<&Expr> {
        let each = self.steps().iter().flat_map(|term| match term {
            Term::Index(value) | Term::Split(_, value, _) => vec![value],
            Term::Slice(_, first, count, _) => vec![first, count],
            Term::Window(_, window, _) => vec![&window.count],
            Term::Steps(count, next, _) => [vec![count], next.exprs()].concat(),
            _ => Vec::new(),
        });
        each.collect()
    }
}
