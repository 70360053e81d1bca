//! The operands of a normalisation, and which kernels there are.

use super::Rows;
use crate::build::Builder;
use crate::error::{Error, Result};
use crate::function::Function;
use crate::index::Expr;
use crate::kernel::TensorId;
use crate::layout::Layout;
use crate::schedule::together::Teams;
use crate::template::access::Access;
use crate::template::gather::Place;
use crate::tensor::Scalar;

impl Rows {
    /// The number of rows of each input that is a table, which is a symbol: `x0_rows`.
    pub(super) fn tables(&self, k: &mut Builder) -> Result<Vec<Option<Expr>>> {
        let each = |(i, place): (usize, &Place)| match place {
            Place::Same => Ok(None),
            Place::Index(_) | Place::Repeated => Ok(Some(k.symbol(&format!("x{i}_rows"))?.into())),
        };
        self.places.iter().enumerate().map(each).collect()
    }

    /// The tensor of indices of each input that has one: `i0`.
    pub(super) fn indices(&self, k: &mut Builder, rows: &Expr) -> Result<Vec<Option<TensorId>>> {
        let each = |(i, place): (usize, &Place)| match place {
            Place::Same | Place::Repeated => Ok(None),
            Place::Index(scalar) => {
                k.param(&format!("i{i}"), [Layout::of(rows.clone(), 1)], *scalar).map(Some)
            }
        };
        self.places.iter().enumerate().map(each).collect()
    }

    /// All operands with their names.
    pub(super) fn operands(&self) -> Vec<(String, Access)> {
        let line = |name: &str, scalar: Option<Scalar>| {
            scalar.map(|scalar| (name.to_owned(), Access::line(scalar, 2)))
        };
        let named = |name: &'static str, first: usize, all: &[Access]| -> Vec<(String, Access)> {
            let all = all.iter().enumerate();
            all.map(|(i, access)| (format!("{name}{}", first + i), access.clone())).collect()
        };
        let sum = self.sum.iter().map(|access| ("sum".to_owned(), access.clone()));
        named("x", 0, &self.ins)
            .into_iter()
            .chain(sum)
            .chain(line("scale", self.scale))
            .chain(line("shift", self.shift))
            .chain(named("e", 1, &self.extras))
            .chain([("y".to_owned(), self.out.clone())])
            .chain(named("y", 1, &self.more))
            .collect()
    }

    /// How many operands are read late: scale, shift, and the epilogue's.
    pub(super) fn extras_end(&self) -> usize {
        usize::from(self.scale.is_some()) + usize::from(self.shift.is_some()) + self.extras.len()
    }

    /// What becomes of a normalised value, input 0: it is scaled, shifted, and the epilogue applied.
    /// The other inputs are the scale, the shift and the epilogue's, those that there are.
    pub(super) fn finish(&self) -> Function {
        let mut inputs = (1..).map(Function::input);
        let mut next = || inputs.next().unwrap_or_default();
        let mut value = Function::identity();
        if self.scale.is_some() {
            value = value * next();
        }
        if self.shift.is_some() {
            value = value + next();
        }
        let extras: Vec<Function> = self.extras.iter().map(|_| next()).collect();
        self.epilogue.after(&Function::all(std::iter::once(value).chain(extras)))
    }

    /// Where all of the epilogue's outputs go.
    pub(super) fn results(&self) -> impl Iterator<Item = &Access> {
        std::iter::once(&self.out).chain(&self.more)
    }

    /// Whether there is such a kernel.
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        Teams::check(self.threads, self.teams)?;
        let operands = self.operands();
        if operands.iter().any(|(_, access)| access.strides.len() != 2) {
            return refuse("operands are matrices");
        }
        if self.ins.is_empty() || self.prologue.inputs() != self.ins.len() {
            return refuse("the prologue has other inputs");
        }
        if !self.places.is_empty() && self.places.len() != self.ins.len() {
            return refuse("each input has its place, or none has");
        }
        if self.epilogue.inputs() != self.extras.len() + 1 {
            return refuse("the epilogue has other inputs");
        }
        if self.prologue.outputs().len() != 1 {
            return refuse("the prologue has one output");
        }
        if self.epilogue.outputs().len() != 1 + self.more.len() {
            return refuse("the epilogue has an output for each result");
        }
        if !(1..=16).contains(&self.vector) || self.held.is_some_and(|held| held < 1) {
            return refuse("a vector has 1 to 16 elements, a thread a vector");
        }
        let reach = self.held.map(|held| held * self.threads * self.vector);
        match self.columns {
            Some(columns) if columns < 1 || columns % self.vector != 0 => {
                refuse("vectors divide the columns")
            }
            Some(columns) if reach.is_some_and(|reach| reach < columns) => {
                refuse("the team holds no row")
            }
            // A launch is refused unless rows of the result start at multiples of a vector.
            None if self.vector > 1
                && !self
                    .results()
                    .all(|out| out.packed_rows() && out.scalar.bytes() * self.vector <= 16) =>
            {
                refuse("vectors divide the columns where rows of the result are packed")
            }
            Some(_) | None => Ok(()),
        }
    }
}
