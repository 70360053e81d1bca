//! Groups of operations over rows, in one launch.
//!
//! The domain has rows of trailing axes. A body of pointwise operations, folds of whole rows (reductions, softmax,
//! norms) and lookups of rows in tables becomes a [`RowProgram`]: stages that a thread runs over one block of rows
//! after the other, every value of a block in memory that stays in cache. Each tensor is read and written once.
//!
//! In reading order: `compile` makes the stages from a body, `bind` gives them sizes, `run` runs them, `fold` is what
//! is done with one row, and `read` how elements come and go.

mod bind;
mod compile;
mod fold;
mod read;
mod run;

pub(crate) use bind::BoundRows;
pub(crate) use read::RowInput;

use super::loops::{Class, Loop};
use fold::Fold;
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;

/// A compiled body over rows.
#[derive(Clone, Debug)]
pub(crate) struct RowProgram {
    /// The domain.
    shape: Vec<Dim>,
    /// The first axis within a row.
    axis: usize,
    /// In an order in which they can run.
    stages: Vec<Stage>,
    /// Values that later stages read.
    slots: Vec<(Class, Level)>,
    /// What each output of the body has of a row.
    outputs: Vec<Level>,
}

/// What a value has of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    /// All its elements.
    Full,
    /// One number.
    Row,
}

/// A value that a stage reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// The body's input of this number.
    Input(usize),
    /// What an earlier stage made.
    Slot(usize),
}

/// Where a stage puts a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    /// Where later stages read it.
    Slot(usize),
    /// The body's output of this number.
    Output(usize),
}

/// One step over a block of rows.
#[derive(Clone, Debug)]
enum Stage {
    /// Pointwise operations over all elements, or over one number a row.
    Loop { level: Level, program: Loop, reads: Vec<Source>, writes: Vec<Target> },
    /// Each row to a row or to one number.
    Fold { fold: Fold, source: (Source, DType), results: Vec<(DType, Vec<Target>)> },
    /// Rows of a table (an input) at indices (another).
    Lookup { table: usize, indices: usize, dtype: DType, writes: Vec<Target> },
}

impl RowProgram {
    /// The name in profiles.
    pub(crate) fn name(&self) -> &'static str {
        let looks_up = self.stages.iter().any(|stage| matches!(stage, Stage::Lookup { .. }));
        if looks_up { "embedding" } else { "rows" }
    }
}
