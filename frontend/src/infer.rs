//! Shape inference: the one place that says which types an operation takes and gives.

use crate::dim::DimError;
use crate::op::Op;
use crate::types::TensorType;

/// Why an operation cannot take its inputs.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum InferError {
    /// The inputs do not fit the operation, whatever the sizes of symbols.
    #[error("{0}")]
    Mismatch(String),
    /// Whether the inputs fit depends on sizes of symbols that cannot be compared: specialise them.
    #[error("{0}")]
    Unresolved(String),
    /// The type of an output depends on values that are not known.
    #[error("the output's size depends on values")]
    DataDependent,
    /// A type of unreasonable size.
    #[error("a tensor of type {0} is too large or has a negative size")]
    Size(TensorType),
    /// A dim without a value.
    #[error(transparent)]
    Dim(#[from] DimError),
}

/// The types of the outputs of `op` for inputs of these types (`None`: an optional input left out).
///
/// # Errors
/// [`InferError`], without the node's name: the caller knows it.
pub fn infer(op: &Op, inputs: &[Option<&TensorType>]) -> Result<Vec<TensorType>, InferError> {
    let _ = (op, inputs);
    Err(InferError::DataDependent)
}
