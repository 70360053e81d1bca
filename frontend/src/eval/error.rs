//! Why an evaluation stops.

use crate::dim::{Dim, DimError};
use crate::dtype::DType;
use crate::tensor::TensorError;
use crate::types::TensorType;

/// Why a graph or an operation has no value.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum EvalError {
    /// An operation of a graph failed.
    #[error("{op} `{node}`: {source}")]
    Node {
        /// The node's name.
        node: String,
        /// The operation's name.
        op: &'static str,
        /// What failed.
        source: Box<EvalError>,
    },
    /// Not as many tensors as the graph has inputs.
    #[error("{expected} inputs expected, {actual} given")]
    InputCount {
        /// Inputs of the graph.
        expected: usize,
        /// Tensors given.
        actual: usize,
    },
    /// A tensor does not have the type of its input.
    #[error("input `{name}` takes {expected}, but {actual} was given")]
    Input {
        /// The input's name.
        name: String,
        /// The input's type.
        expected: Box<TensorType>,
        /// The tensor's type.
        actual: Box<TensorType>,
    },
    /// A tensor gives a symbol a size that it cannot have.
    #[error("input `{name}`: {source}")]
    InputSize {
        /// The input's name.
        name: String,
        /// The refusal.
        source: DimError,
    },
    /// An operand that the operation needs was left out.
    #[error("operand {0} is missing")]
    Missing(usize),
    /// The operation is not defined for elements of this type.
    #[error("not defined for elements of {0}")]
    Unsupported(DType),
    /// Two operands must have equal element types.
    #[error("elements of {expected} expected, found {actual}")]
    Mismatch {
        /// The first operand's type.
        expected: DType,
        /// The other's.
        actual: DType,
    },
    /// Shapes of operands do not fit each other or the attributes.
    #[error("{what} (shapes {shapes:?})")]
    Shape {
        /// The rule that is broken.
        what: &'static str,
        /// The operands' shapes.
        shapes: Vec<Vec<usize>>,
    },
    /// An attribute has no meaning for the operands.
    #[error("{0}")]
    Attribute(&'static str),
    /// An index lies outside of its axis.
    #[error("index {index} is out of range for axis {axis} of size {size}")]
    Index {
        /// The index as given.
        index: i64,
        /// The axis.
        axis: usize,
        /// Elements along the axis.
        size: usize,
    },
    /// A size came out below zero.
    #[error("size `{dim}` is {value}")]
    Size {
        /// The expression.
        dim: Dim,
        /// Its value.
        value: i64,
    },
    /// The memory for a tensor of this shape is not to be had.
    #[error("no memory for a tensor of shape {0:?}")]
    Memory(Vec<usize>),
    /// A result is not of the type that was inferred for it.
    #[error("a result is {actual}, inferred was {expected}")]
    Output {
        /// The inferred type.
        expected: Box<TensorType>,
        /// The result's type.
        actual: Box<TensorType>,
    },
    /// Bodies of control flow are nested deeper than this.
    #[error("control flow is nested deeper than {0}")]
    Depth(usize),
    /// A dimension has no value.
    #[error(transparent)]
    Dim(#[from] DimError),
    /// A tensor cannot be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl EvalError {
    /// A broken rule about shapes.
    pub(super) fn shape(what: &'static str, shapes: &[&[usize]]) -> Self {
        Self::Shape { what, shapes: shapes.iter().map(|shape| shape.to_vec()).collect() }
    }
}
