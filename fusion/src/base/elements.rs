//! Which elements templates compute with, and the numbers that they hold.

use graphene_frontend::dtype::DType;
use graphene_frontend::tensor::Tensor;
use half::{bf16, f16};

/// The element types with which templates compute matmuls and rows: in f32.
pub(crate) fn is_real(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Whether templates compute expressions of these elements beside matmuls and rows.
pub(crate) fn is_plain(dtype: DType) -> bool {
    is_real(dtype)
        || matches!(dtype, DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64)
        || matches!(dtype, DType::U8 | DType::U16 | DType::U32)
}

/// The largest finite number of a type that is computed with as real numbers.
pub(crate) fn largest(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F64 => Some(f64::MAX),
        DType::F32 => Some(f64::from(f32::MAX)),
        DType::F16 => Some(f64::from(f16::MAX)),
        DType::BF16 => Some(f64::from(bf16::MAX)),
        _ => None,
    }
}

/// A number as a tensor of such a type.
pub(crate) fn number(dtype: DType, number: f64) -> Option<Tensor> {
    match dtype {
        DType::F64 => Some(Tensor::scalar(number)),
        DType::F32 => Some(Tensor::scalar(number as f32)),
        DType::F16 => Some(Tensor::scalar(f16::from_f64(number))),
        DType::BF16 => Some(Tensor::scalar(bf16::from_f64(number))),
        _ => None,
    }
}
