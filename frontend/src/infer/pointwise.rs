//! Pointwise operations.

use super::take::{class, dtype, required};
use super::{DTypeClass, InferError, dims};
use crate::dtype::DType;
use crate::op::{Binary, Unary};
use crate::types::TensorType;

type Inputs<'a> = [Option<&'a TensorType>];

pub(super) fn unary(op: Unary, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs, 1)?;
    let (takes, gives) = unary_types(op, x.dtype);
    class(0, x, takes)?;
    Ok(TensorType::new(gives, x.shape.clone()))
}

/// What a unary function takes, and what it gives for elements of type `x`.
fn unary_types(op: Unary, x: DType) -> (DTypeClass, DType) {
    match op {
        Unary::Abs | Unary::Neg | Unary::Sign | Unary::Relu | Unary::Shrink { .. } => {
            (DTypeClass::Number, x)
        }
        Unary::Reciprocal
        | Unary::Sqrt
        | Unary::Exp
        | Unary::Log
        | Unary::Floor
        | Unary::Ceil
        | Unary::Round
        | Unary::Sin
        | Unary::Cos
        | Unary::Tan
        | Unary::Asin
        | Unary::Acos
        | Unary::Atan
        | Unary::Sinh
        | Unary::Cosh
        | Unary::Tanh
        | Unary::Asinh
        | Unary::Acosh
        | Unary::Atanh
        | Unary::Erf
        | Unary::Sigmoid
        | Unary::Gelu
        | Unary::GeluTanh
        | Unary::Swish { .. }
        | Unary::Softplus
        | Unary::Softsign
        | Unary::Mish
        | Unary::HardSwish
        | Unary::HardSigmoid { .. }
        | Unary::LeakyRelu { .. }
        | Unary::Elu { .. }
        | Unary::Celu { .. }
        | Unary::Selu { .. }
        | Unary::ThresholdedRelu { .. } => (DTypeClass::Float, x),
        Unary::Not => (DTypeClass::Exactly(DType::Bool), x),
        Unary::BitNot => (DTypeClass::Integer, x),
        Unary::IsNan | Unary::IsInf { .. } => (DTypeClass::Float, DType::Bool),
    }
}

pub(super) fn binary(op: Binary, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [a, b] = required(inputs, 2)?;
    let (takes, gives) = binary_types(op, a.dtype);
    if let Some(takes) = takes {
        class(0, a, takes)?;
    }
    if op == Binary::Pow {
        class(1, b, DTypeClass::Number)?;
    } else {
        dtype(1, b, a.dtype)?;
    }
    Ok(TensorType::new(gives, dims::broadcast(&a.shape, &b.shape)?))
}

/// What a binary function takes (`None`: everything), and what it gives for elements of type `a`.
fn binary_types(op: Binary, a: DType) -> (Option<DTypeClass>, DType) {
    match op {
        Binary::Add
        | Binary::Sub
        | Binary::Mul
        | Binary::Div
        | Binary::Mod
        | Binary::Rem
        | Binary::Pow
        | Binary::Min
        | Binary::Max => (Some(DTypeClass::Number), a),
        Binary::And | Binary::Or | Binary::Xor => (Some(DTypeClass::Exactly(DType::Bool)), a),
        Binary::BitAnd
        | Binary::BitOr
        | Binary::BitXor
        | Binary::ShiftLeft
        | Binary::ShiftRight => (Some(DTypeClass::Integer), a),
        Binary::Equal => (None, DType::Bool),
        Binary::Less | Binary::LessOrEqual | Binary::Greater | Binary::GreaterOrEqual => {
            (Some(DTypeClass::Number), DType::Bool)
        }
    }
}

pub(super) fn select(inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [condition, a, b] = required(inputs, 3)?;
    dtype(0, condition, DType::Bool)?;
    dtype(2, b, a.dtype)?;
    let values = dims::broadcast(&a.shape, &b.shape)?;
    Ok(TensorType::new(a.dtype, dims::broadcast(&condition.shape, &values)?))
}

pub(super) fn cast(to: DType, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs, 1)?;
    Ok(TensorType::new(to, x.shape.clone()))
}

pub(super) fn bit_cast(to: DType, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs, 1)?;
    class(0, x, DTypeClass::Bits(to.file_bits()))?;
    Ok(TensorType::new(to, x.shape.clone()))
}
