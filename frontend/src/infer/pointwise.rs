//! Pointwise operations.

use super::take::{class, dtype, required};
use super::{DTypeClass, InferError, dims};
use crate::dtype::DType;
use crate::op::{Binary, FunctionClass, Unary};
use crate::types::TensorType;

type Inputs<'a> = [Option<&'a TensorType>];

pub(super) fn unary(op: Unary, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    let dtype = result(op.info().class, x)?;
    Ok(TensorType::new(dtype, x.shape.clone()))
}

pub(super) fn binary(op: Binary, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [a, b] = required(inputs)?;
    let result = result(op.info().class, a)?;
    if op == Binary::Pow {
        class(1, b, DTypeClass::Number)?;
    } else {
        dtype(1, b, a.dtype)?;
    }
    Ok(TensorType::new(result, dims::broadcast(&a.shape, &b.shape)?))
}

/// The element type that a function gives whose first argument this is.
fn result(function: FunctionClass, first: &TensorType) -> Result<DType, InferError> {
    if let Some(takes) = function.takes() {
        class(0, first, takes)?;
    }
    Ok(function.gives(first.dtype))
}

pub(super) fn select(inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [condition, a, b] = required(inputs)?;
    dtype(0, condition, DType::Bool)?;
    dtype(2, b, a.dtype)?;
    let values = dims::broadcast(&a.shape, &b.shape)?;
    Ok(TensorType::new(a.dtype, dims::broadcast(&condition.shape, &values)?))
}

pub(super) fn cast(to: DType, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    Ok(TensorType::new(to, x.shape.clone()))
}

pub(super) fn bit_cast(to: DType, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    class(0, x, DTypeClass::Bits(to.file_bits()))?;
    Ok(TensorType::new(to, x.shape.clone()))
}
