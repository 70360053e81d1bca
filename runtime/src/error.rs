//! What can go wrong in the runtime.

use graphene_frontend::dim::{Dim, DimError};
use graphene_frontend::eval::EvalError;
use graphene_frontend::infer::InferError;
use graphene_frontend::tensor::TensorError;
use graphene_fusion::program::BufferId;

/// An error of the runtime.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A view reaches an element outside the slice that it looks at.
    #[error("{what} reaches element {needed}, but the slice holds {len}")]
    OutOfBounds {
        /// The operand.
        what: &'static str,
        /// The element reached (negative where a stride leads below the slice's start).
        needed: i128,
        /// The number of elements in the slice.
        len: usize,
    },
    /// Two sizes that must agree do not.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// What was measured.
        what: &'static str,
        /// The size that the other operands ask for.
        expected: usize,
        /// The size found.
        found: usize,
    },
    /// The layout of an output gives two of its elements one place, so that the result would depend
    /// on the order of writing.
    #[error("{what} writes an element more than once")]
    Overlap {
        /// The operand.
        what: &'static str,
    },
    /// A size does not fit its integer type.
    #[error("{what} is too large")]
    TooLarge {
        /// What was measured.
        what: &'static str,
    },
    /// A size came out below zero.
    #[error("the size `{dim}` is negative: {size}")]
    Negative {
        /// The expression.
        dim: Dim,
        /// What it comes to.
        size: i64,
    },
    /// More memory is needed than was allowed for.
    #[error("{needed} bytes of memory are needed, and there are {limit}")]
    Exceeds {
        /// Bytes needed for the arena, the inputs and the outputs.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// An index is outside `-size..size`.
    #[error("index {index} is outside an axis of size {size}")]
    Index {
        /// The index as given.
        index: i64,
        /// The size of the axis.
        size: usize,
    },
    /// An axis is outside the shape or is named twice.
    #[error("axis {axis} of a shape of rank {rank} is out of range or named twice")]
    Axis {
        /// The axis as given.
        axis: usize,
        /// The rank of the shape.
        rank: usize,
    },
    /// A kernel was asked for what it does not do.
    #[error("{what} cannot be run")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// Two buffers of one step share memory: a defect of the plan.
    #[error("buffer {buffer} shares memory with another of its step")]
    Shared {
        /// One of the two.
        buffer: BufferId,
    },
    /// The system gave no memory.
    #[error("{bytes} bytes of memory are not to be had")]
    Memory {
        /// The bytes asked for.
        bytes: usize,
    },
    /// Another number of inputs than the program has.
    #[error("the program takes {expected} inputs, but {found} were given")]
    InputCount {
        /// The program's inputs.
        expected: usize,
        /// The inputs given.
        found: usize,
    },
    /// An input of another type or shape than bound.
    #[error("input {name:?} must be {expected}, but is {found}")]
    Input {
        /// Its name.
        name: String,
        /// Type and shape under the bound sizes.
        expected: String,
        /// Type and shape given.
        found: String,
    },
    /// A dimension without a size.
    #[error(transparent)]
    Dim(#[from] DimError),
    /// An operation does not take its inputs at the bound sizes.
    #[error(transparent)]
    Infer(#[from] Box<InferError>),
    /// Bytes and a shape that make no tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The reference evaluator refused.
    #[error(transparent)]
    Eval(#[from] Box<EvalError>),
    /// An error at a step or buffer of the program.
    #[error("{place}: {error}")]
    At {
        /// The step's or buffer's name.
        place: String,
        /// What went wrong.
        error: Box<Error>,
    },
}

/// The runtime's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The error with the step or buffer at which it arose.
    pub(crate) fn at(self, place: &str) -> Self {
        Self::At { place: place.to_owned(), error: Box::new(self) }
    }
}

impl From<EvalError> for Error {
    fn from(error: EvalError) -> Self {
        Self::Eval(Box::new(error))
    }
}

impl From<InferError> for Error {
    fn from(error: InferError) -> Self {
        match error {
            InferError::Dim(error) => Self::Dim(error),
            error => Self::Infer(Box::new(error)),
        }
    }
}
