//! Reductions, running reductions, and selections along an axis.

use super::take::{axis as check_axis, class, required};
use super::{DTypeClass, InferError, dims};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::op::ReduceOp;
use crate::types::TensorType;

type Inputs<'a> = [Option<&'a TensorType>];

pub(super) fn reduce(
    op: ReduceOp,
    axes: &[usize],
    keep: bool,
    inputs: &Inputs<'_>,
) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    match op {
        ReduceOp::Max | ReduceOp::Min => {}
        ReduceOp::Sum
        | ReduceOp::Mean
        | ReduceOp::Prod
        | ReduceOp::L1
        | ReduceOp::L2
        | ReduceOp::SumSquare
        | ReduceOp::LogSum
        | ReduceOp::LogSumExp => class(0, x, DTypeClass::Number)?,
    }
    for (i, &axis) in axes.iter().enumerate() {
        check_axis(axis, x.rank())?;
        if i > 0 && axes[i - 1] >= axis {
            return Err(InferError::Axis { axis, rank: x.rank() });
        }
    }
    Ok(TensorType::new(x.dtype, reduced(&x.shape, axes, keep)))
}

/// The shape left by a reduction over the axes.
fn reduced(shape: &[Dim], axes: &[usize], keep: bool) -> Vec<Dim> {
    let left = |(axis, dim): (usize, &Dim)| match (axes.contains(&axis), keep) {
        (false, _) => Some(dim.clone()),
        (true, true) => Some(Dim::from(1)),
        (true, false) => None,
    };
    shape.iter().enumerate().filter_map(left).collect()
}

pub(super) fn arg_reduce(
    axis: usize,
    keep: bool,
    inputs: &Inputs<'_>,
) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    class(0, x, DTypeClass::Number)?;
    check_axis(axis, x.rank())?;
    let result = TensorType::new(DType::I64, reduced(&x.shape, &[axis], keep));
    if x.shape[axis] == 0 && !result.shape.iter().any(|dim| *dim == 0) {
        return Err(InferError::Empty { input: 0, axis });
    }
    Ok(result)
}

pub(super) fn cumulative(axis: usize, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    class(0, x, DTypeClass::Number)?;
    check_axis(axis, x.rank())?;
    Ok(x.clone())
}

pub(super) fn top_k(
    k: &Dim,
    axis: usize,
    inputs: &Inputs<'_>,
) -> Result<Vec<TensorType>, InferError> {
    let [x] = required(inputs)?;
    class(0, x, DTypeClass::Number)?;
    check_axis(axis, x.rank())?;
    dims::at_most(k, &x.shape[axis])?;
    let mut shape = x.shape.clone();
    shape[axis] = k.clone();
    Ok(vec![TensorType::new(x.dtype, shape.clone()), TensorType::new(DType::I64, shape)])
}
