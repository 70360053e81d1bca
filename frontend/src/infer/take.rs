//! Taking inputs: how many there are, what they hold, how many dims they have.

use super::{Count, DTypeClass, InferError};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::types::TensorType;

/// The first `N` inputs, all of which must be there.
pub(super) fn required<'a, const N: usize>(
    inputs: &[Option<&'a TensorType>],
) -> Result<[&'a TensorType; N], InferError> {
    if let Some(input) = (0..N).find(|&input| optional(inputs, input).is_none()) {
        return Err(InferError::Missing { input });
    }
    Ok(std::array::from_fn(|i| inputs[i].expect("just seen to be there")))
}

/// Refuses another number of inputs than `expected`.
pub(super) fn count(inputs: &[Option<&TensorType>], expected: Count) -> Result<(), InferError> {
    if expected.contains(inputs.len()) {
        return Ok(());
    }
    Err(InferError::Arity { expected, actual: inputs.len() })
}

/// All inputs, each of which must be there.
pub(super) fn all<'a>(
    inputs: &[Option<&'a TensorType>],
) -> Result<Vec<&'a TensorType>, InferError> {
    let take =
        |(input, ty): (usize, &Option<&'a TensorType>)| ty.ok_or(InferError::Missing { input });
    inputs.iter().enumerate().map(take).collect()
}

/// An optional input.
pub(super) fn optional<'a>(
    inputs: &[Option<&'a TensorType>],
    input: usize,
) -> Option<&'a TensorType> {
    inputs.get(input).copied().flatten()
}

/// Refuses element types outside of `expected`.
pub(super) fn class(input: usize, ty: &TensorType, expected: DTypeClass) -> Result<(), InferError> {
    if expected.contains(ty.dtype) {
        return Ok(());
    }
    Err(InferError::DType { input, expected, actual: ty.dtype })
}

/// Refuses element types other than `expected`.
pub(super) fn dtype(input: usize, ty: &TensorType, expected: DType) -> Result<(), InferError> {
    class(input, ty, DTypeClass::Exactly(expected))
}

/// Refuses ranks outside of `expected`.
pub(super) fn rank(input: usize, ty: &TensorType, expected: Count) -> Result<(), InferError> {
    if expected.contains(ty.rank()) {
        return Ok(());
    }
    Err(InferError::Rank { input, expected, actual: ty.rank() })
}

/// Refuses an axis that is not below the rank.
pub(super) fn axis(axis: usize, rank: usize) -> Result<(), InferError> {
    if axis < rank { Ok(()) } else { Err(InferError::Axis { axis, rank }) }
}

/// The size of `shape` along `axis`, or why there is none.
pub(super) fn dim(shape: &[Dim], axis: usize) -> Result<&Dim, InferError> {
    shape.get(axis).ok_or(InferError::Axis { axis, rank: shape.len() })
}

/// Refuses an attribute whose number of entries is not `expected`.
pub(super) fn length(name: &'static str, actual: usize, expected: usize) -> Result<(), InferError> {
    if actual == expected {
        return Ok(());
    }
    Err(InferError::Attribute { name, reason: "has not as many entries as there are axes" })
}

/// Refuses an attribute with a zero in it.
pub(super) fn positive(name: &'static str, entries: &[usize]) -> Result<(), InferError> {
    if entries.iter().all(|&entry| entry > 0) {
        return Ok(());
    }
    Err(InferError::Attribute { name, reason: "must be positive" })
}
