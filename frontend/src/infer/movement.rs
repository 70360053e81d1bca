//! Operations that move elements: reshape, transpose, slice, gather, scatter and their kin.

use super::dims::{at_most, broadcasts_to, join, join_shapes, never_equal};
use super::take::{all, axis as check_axis, class, dim, dtype, length, optional, rank, required};
use super::{Count, DTypeClass, InferError};
use crate::dim::Dim;
use crate::op::{Combine, PadMode, SliceAxis};
use crate::types::TensorType;

type Inputs<'a> = [Option<&'a TensorType>];

pub(super) fn reshape(shape: &[Dim], inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    let result = TensorType::new(x.dtype, shape.to_vec());
    let (from, to) = (x.elements(), result.elements());
    // Products that saturated say nothing.
    if from == to && from != i64::MAX {
        return Ok(result);
    }
    if never_equal(&from, &to) {
        return Err(InferError::Elements { from: x.clone(), to: result.shape });
    }
    Err(InferError::Unresolved { a: from, b: to })
}

pub(super) fn transpose(perm: &[usize], inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    length("perm", perm.len(), x.rank())?;
    let mut seen = vec![false; x.rank()];
    for &axis in perm {
        check_axis(axis, x.rank())?;
        if std::mem::replace(&mut seen[axis], true) {
            return Err(InferError::Axis { axis, rank: x.rank() });
        }
    }
    Ok(TensorType::new(x.dtype, perm.iter().map(|&axis| x.shape[axis].clone()).collect()))
}

pub(super) fn expand(shape: &[Dim], inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    broadcasts_to(&x.shape, shape)?;
    Ok(TensorType::new(x.dtype, shape.to_vec()))
}

pub(super) fn slice(axes: &[SliceAxis], inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    let mut shape = x.shape.clone();
    let mut seen = vec![false; x.rank()];
    for SliceAxis { axis, start, len, step } in axes {
        let size = dim(&x.shape, *axis)?;
        if std::mem::replace(&mut seen[*axis], true) {
            return Err(InferError::Axis { axis: *axis, rank: x.rank() });
        }
        if *step == 0 {
            return Err(InferError::Attribute { name: "step", reason: "must not be zero" });
        }
        // An empty range may stand anywhere; of all others both ends must be in range.
        if len.lower_bound().is_some_and(|len| len > 0) {
            let last = start + &((len - &Dim::from(1)) * Dim::from(*step));
            let limit = size - &Dim::from(1);
            for end in [start, &last] {
                at_most(end, &limit)?;
                at_most(&Dim::from(0), end)?;
            }
        }
        shape[*axis] = len.clone();
    }
    Ok(TensorType::new(x.dtype, shape))
}

pub(super) fn concat(axis: usize, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let types = all(inputs)?;
    let Some((first, rest)) = types.split_first() else {
        return Err(InferError::Arity { expected: Count::AtLeast(1), actual: 0 });
    };
    let mut shape = first.shape.clone();
    check_axis(axis, shape.len())?;
    for (i, ty) in rest.iter().enumerate() {
        dtype(i + 1, ty, first.dtype)?;
        rank(i + 1, ty, Count::Exactly(shape.len()))?;
        for (j, (joined, dim)) in shape.iter_mut().zip(&ty.shape).enumerate() {
            *joined = if j == axis { &*joined + dim } else { join(joined, dim)? };
        }
    }
    Ok(TensorType::new(first.dtype, shape))
}

pub(super) fn pad(
    mode: PadMode,
    before: &[Dim],
    after: &[Dim],
    inputs: &Inputs<'_>,
) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    length("before", before.len(), x.rank())?;
    length("after", after.len(), x.rank())?;
    if let Some(value) = optional(inputs, 1) {
        dtype(1, value, x.dtype)?;
        rank(1, value, Count::Exactly(0))?;
    }
    let mut shape = Vec::with_capacity(x.rank());
    for (axis, size) in x.shape.iter().enumerate() {
        let padded = &before[axis] + size + &after[axis];
        if mode != PadMode::Constant && *size == 0 && padded != 0 {
            return Err(InferError::Empty { input: 0, axis });
        }
        shape.push(padded);
    }
    Ok(TensorType::new(x.dtype, shape))
}

pub(super) fn gather(axis: usize, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x, indices] = required(inputs)?;
    check_axis(axis, x.rank())?;
    class(1, indices, DTypeClass::Index)?;
    let shape = [&x.shape[..axis], &indices.shape, &x.shape[axis + 1..]].concat();
    Ok(TensorType::new(x.dtype, shape))
}

pub(super) fn gather_elements(axis: usize, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x, indices] = required(inputs)?;
    element_indices(axis, x, indices)?;
    Ok(TensorType::new(x.dtype, indices.shape.clone()))
}

/// Indices that address single elements along an axis, all others being places in `x` themselves.
fn element_indices(axis: usize, x: &TensorType, indices: &TensorType) -> Result<(), InferError> {
    check_axis(axis, x.rank())?;
    class(1, indices, DTypeClass::Index)?;
    rank(1, indices, Count::Exactly(x.rank()))?;
    for (i, (index, size)) in indices.shape.iter().zip(&x.shape).enumerate() {
        if i != axis {
            at_most(index, size)?;
        }
    }
    Ok(())
}

pub(super) fn gather_nd(batch_dims: usize, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x, indices] = required(inputs)?;
    class(1, indices, DTypeClass::Index)?;
    if batch_dims >= indices.rank() || batch_dims >= x.rank() {
        return Err(InferError::Axis { axis: batch_dims, rank: indices.rank().min(x.rank()) });
    }
    let (tuples, addressed) = index_tuples(indices, x.rank() - batch_dims)?;
    let mut shape = join_shapes(&x.shape[..batch_dims], &tuples[..batch_dims])?;
    shape.extend_from_slice(&tuples[batch_dims..]);
    shape.extend_from_slice(&x.shape[batch_dims + addressed..]);
    Ok(TensorType::new(x.dtype, shape))
}

/// The leading dims of indices whose last dim holds tuples, and how many axes a tuple addresses.
fn index_tuples(indices: &TensorType, most: usize) -> Result<(&[Dim], usize), InferError> {
    let Some((last, leading)) = indices.shape.split_last() else {
        return Err(InferError::Rank { input: 1, expected: Count::AtLeast(1), actual: 0 });
    };
    let addressed = last.known().ok_or_else(|| InferError::UnresolvedRank(last.clone()))?;
    match usize::try_from(addressed) {
        Ok(n) if (1..=most).contains(&n) => Ok((leading, n)),
        _ => Err(InferError::Exceeds { dim: last.clone(), limit: Dim::from(most) }),
    }
}

pub(super) fn scatter_elements(
    axis: usize,
    combine: Combine,
    inputs: &Inputs<'_>,
) -> Result<TensorType, InferError> {
    let [x, indices, updates] = required(inputs)?;
    combined(combine, x, updates)?;
    element_indices(axis, x, indices)?;
    join_shapes(&indices.shape, &updates.shape)?;
    Ok(x.clone())
}

pub(super) fn scatter_nd(combine: Combine, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x, indices, updates] = required(inputs)?;
    combined(combine, x, updates)?;
    class(1, indices, DTypeClass::Index)?;
    let (leading, addressed) = index_tuples(indices, x.rank())?;
    let expected = [leading, &x.shape[addressed..]].concat();
    rank(2, updates, Count::Exactly(expected.len()))?;
    join_shapes(&expected, &updates.shape)?;
    Ok(x.clone())
}

fn combined(combine: Combine, x: &TensorType, updates: &TensorType) -> Result<(), InferError> {
    dtype(2, updates, x.dtype)?;
    match combine {
        Combine::Replace => Ok(()),
        Combine::Add | Combine::Mul | Combine::Min | Combine::Max => {
            class(0, x, DTypeClass::Number)
        }
    }
}
