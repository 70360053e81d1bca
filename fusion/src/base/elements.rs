//! Which elements templates compute with.

use graphene_frontend::dtype::DType;

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
