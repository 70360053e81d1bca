//! Which elements templates compute with, and the numbers that they hold.

use graphene_frontend::{DType, Graph, NodeId, Tensor, ValueId};
use graphene_ir::target::Target;
use graphene_ir::template::multistage::By;
use graphene_ir::tensor::Scalar;
use half::{bf16, f16};

/// The element types with which templates compute matmuls and rows: in f32.
pub(crate) fn is_real(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The type of the first operand; of a matmul and a convolution, both have it.
pub(crate) fn operand_type(graph: &Graph, id: NodeId) -> Option<DType> {
    graph.node(id).input(0).map(|value| graph.ty(value).dtype)
}

/// Whether a GPU's threads multiply such elements, rather than its matrix units.
pub(crate) fn is_by_threads(target: &Target, dtype: DType) -> bool {
    let scalar = match dtype {
        DType::I32 => Scalar::I32,
        DType::F32 => Scalar::F32,
        // No threads do in any other type.
        _ => return false,
    };
    By::is_threads(scalar, target.tf32)
}

/// Whether templates compute expressions of these elements beside matmuls and rows.
pub(crate) fn is_plain(dtype: DType) -> bool {
    is_real(dtype)
        || matches!(dtype, DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64)
        || matches!(dtype, DType::U8 | DType::U16 | DType::U32)
}

/// The number that all elements of a tensor are, of types that hold numbers which rules or kernels ask for.
pub(crate) fn splat(tensor: &Tensor) -> Option<f64> {
    fn same<T: PartialEq + Copy>(all: &[T], to: impl Fn(T) -> f64) -> Option<f64> {
        let (first, rest) = all.split_first()?;
        rest.iter().all(|x| x == first).then(|| to(*first))
    }
    match tensor.dtype() {
        DType::F32 => same::<f32>(tensor.as_slice().ok()?, f64::from),
        DType::F64 => same::<f64>(tensor.as_slice().ok()?, |x| x),
        DType::F16 => same::<f16>(tensor.as_slice().ok()?, f64::from),
        DType::BF16 => same::<bf16>(tensor.as_slice().ok()?, f64::from),
        DType::I32 => same::<i32>(tensor.as_slice().ok()?, f64::from),
        DType::I64 => same::<i64>(tensor.as_slice().ok()?, |x| x as f64),
        DType::U8 => same::<u8>(tensor.as_slice().ok()?, f64::from),
        DType::I8 => same::<i8>(tensor.as_slice().ok()?, f64::from),
        DType::Bool => same::<u8>(tensor.bytes(), f64::from),
        _ => None,
    }
}

/// The number that a constant of one element is.
pub(crate) fn number_of(graph: &Graph, value: ValueId) -> Option<f64> {
    graph.constant(value).filter(|tensor| tensor.len() == 1).and_then(splat)
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
