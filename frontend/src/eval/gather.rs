//! Elements addressed by indices.

use super::error::EvalError;
use super::number::{Number, bits, elements, from_bits, integers, reserve, with_bits, with_number};
use super::walk::{split_at_axis, strides, walk, walk_indices};
use crate::dtype::DType;
use crate::op::Combine;
use crate::tensor::Tensor;

/// Indices along an axis of `size`, counted from the front.
fn checked_index(index: i128, axis: usize, size: usize) -> Result<usize, EvalError> {
    let from_front = if index < 0 { index + size as i128 } else { index };
    if (0..size as i128).contains(&from_front) {
        return Ok(from_front as usize);
    }
    let index = index.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    Err(EvalError::Index { index, axis, size })
}

fn checked_axis(x: &Tensor, axis: usize) -> Result<usize, EvalError> {
    let size = x.shape().get(axis).copied();
    size.ok_or_else(|| EvalError::shape("there is no such axis", &[x.shape(), &[axis]]))
}

/// [`crate::op::Op::Gather`].
pub(super) fn gather(x: &Tensor, indices: &Tensor, axis: usize) -> Result<Tensor, EvalError> {
    let size = checked_axis(x, axis)?;
    let mut rows = Vec::new();
    for index in integers(indices)? {
        rows.push(checked_index(index, axis, size)?);
    }
    let mut shape = x.shape()[..axis].to_vec();
    shape.extend(indices.shape());
    shape.extend(&x.shape()[axis + 1..]);
    if elements(&shape)? == 0 {
        return Ok(Tensor::zeros(x.dtype(), shape)?);
    }
    let (outer, _, inner) = split_at_axis(x.shape(), axis);
    with_bits!(x.dtype(), B => {
        let from = bits::<B>(x);
        let mut values = reserve(&shape)?;
        for block in 0..outer {
            for row in &rows {
                values.extend_from_slice(&from[(block * size + row) * inner..][..inner]);
            }
        }
        from_bits(x.dtype(), shape, values)
    })
}

/// For each element of `indices`, the place in `x` that it addresses along the axis.
fn element_places(x: &Tensor, indices: &Tensor, axis: usize) -> Result<Vec<usize>, EvalError> {
    let size = checked_axis(x, axis)?;
    let fits = x.shape().len() == indices.shape().len()
        && (0..x.shape().len()).all(|i| i == axis || indices.shape()[i] <= x.shape()[i]);
    if !fits {
        let what = "indices fit into the tensor except along the axis";
        return Err(EvalError::shape(what, &[x.shape(), indices.shape()]));
    }
    let index = integers(indices)?;
    let mut moved = strides(x.shape());
    let stride = moved[axis] as usize;
    moved[axis] = 0;
    let own = strides(indices.shape());
    let mut places = reserve(indices.shape())?;
    let mut refused = None;
    walk(indices.shape(), [&own, &moved], [0, 0], |[i, offset]| {
        match checked_index(index[i], axis, size) {
            Ok(row) => places.push(offset + row * stride),
            Err(error) => refused = refused.take().or(Some(error)),
        }
    });
    refused.map_or(Ok(places), Err)
}

/// [`crate::op::Op::GatherElements`].
pub(super) fn gather_elements(
    x: &Tensor,
    indices: &Tensor,
    axis: usize,
) -> Result<Tensor, EvalError> {
    let places = element_places(x, indices, axis)?;
    with_bits!(x.dtype(), B => {
        let from = bits::<B>(x);
        let values: Vec<B> = places.iter().map(|&place| from[place]).collect();
        from_bits(x.dtype(), indices.shape().to_vec(), values)
    })
}

/// Slices of x that the last dim of `indices` addresses: their places, and their number of elements.
fn slice_places(
    x: &Tensor,
    indices: &Tensor,
    batch_dims: usize,
) -> Result<(Vec<usize>, usize), EvalError> {
    let what = "indices do not address the tensor";
    let refuse = || EvalError::shape(what, &[x.shape(), indices.shape()]);
    let (&depth, lead) = indices.shape().split_last().ok_or_else(refuse)?;
    let addressed = batch_dims.checked_add(depth).filter(|&end| end <= x.shape().len());
    let addressed = addressed.ok_or_else(refuse)?;
    if lead.len() < batch_dims || lead[..batch_dims] != x.shape()[..batch_dims] {
        return Err(refuse());
    }
    let index = integers(indices)?;
    let from = strides(x.shape());
    let inner = if x.is_empty() { 0 } else { x.shape()[addressed..].iter().product() };
    let mut places = reserve(lead)?;
    let mut refused = None;
    let mut row = 0;
    walk_indices(lead, |place| {
        let mut offset = 0;
        for axis in 0..batch_dims {
            offset += place[axis] * from[axis] as usize;
        }
        for (i, &index) in index[row * depth..][..depth].iter().enumerate() {
            let axis = batch_dims + i;
            match checked_index(index, axis, x.shape()[axis]) {
                Ok(index) => offset += index * from[axis] as usize,
                Err(error) => refused = refused.take().or(Some(error)),
            }
        }
        row += 1;
        places.push(offset);
    });
    refused.map_or(Ok((places, inner)), Err)
}

/// [`crate::op::Op::GatherNd`].
pub(super) fn gather_nd(
    x: &Tensor,
    indices: &Tensor,
    batch_dims: usize,
) -> Result<Tensor, EvalError> {
    let (places, inner) = slice_places(x, indices, batch_dims)?;
    let (&depth, lead) = indices.shape().split_last().unwrap_or((&0, &[]));
    let mut shape = lead.to_vec();
    shape.extend(&x.shape()[batch_dims + depth..]);
    with_bits!(x.dtype(), B => {
        let from = bits::<B>(x);
        let mut values = reserve(&shape)?;
        if inner > 0 {
            for place in places {
                values.extend_from_slice(&from[place..][..inner]);
            }
        }
        from_bits(x.dtype(), shape, values)
    })
}

/// [`crate::op::Op::ScatterElements`].
pub(super) fn scatter_elements(
    x: &Tensor,
    indices: &Tensor,
    updates: &Tensor,
    axis: usize,
    combine: Combine,
) -> Result<Tensor, EvalError> {
    let places = element_places(x, indices, axis)?;
    if indices.shape() != updates.shape() {
        let what = "updates have the shape of the indices";
        return Err(EvalError::shape(what, &[indices.shape(), updates.shape()]));
    }
    scatter(x, updates, &places, 1, combine)
}

/// [`crate::op::Op::ScatterNd`].
pub(super) fn scatter_nd(
    x: &Tensor,
    indices: &Tensor,
    updates: &Tensor,
    combine: Combine,
) -> Result<Tensor, EvalError> {
    let (places, inner) = slice_places(x, indices, 0)?;
    let (&depth, lead) = indices.shape().split_last().unwrap_or((&0, &[]));
    if !updates.shape().iter().eq(lead.iter().chain(&x.shape()[depth..])) {
        let what = "updates have the shape of what the indices address";
        return Err(EvalError::shape(what, &[x.shape(), indices.shape(), updates.shape()]));
    }
    scatter(x, updates, &places, inner, combine)
}

/// x with runs of `inner` updates combined at the places.
fn scatter(
    x: &Tensor,
    updates: &Tensor,
    places: &[usize],
    inner: usize,
    combine: Combine,
) -> Result<Tensor, EvalError> {
    let (dtype, shape) = (x.dtype(), x.shape().to_vec());
    if updates.dtype() != dtype {
        return Err(EvalError::Mismatch { expected: dtype, actual: updates.dtype() });
    }
    if combine == Combine::Replace {
        return with_bits!(dtype, B => {
            let mut values = reserve(&shape)?;
            values.extend_from_slice(bits::<B>(x));
            combine_at(&mut values, bits::<B>(updates), places, inner, |_, new| new);
            from_bits(dtype, shape, values)
        });
    }
    with_number!(dtype, N => {
        let mut values = N::decode(x)?;
        let updates = N::decode(updates)?;
        let meet: fn(N, N) -> N = match combine {
            Combine::Replace => |_, new| new,
            Combine::Add => Number::plus,
            Combine::Mul => Number::times,
            Combine::Min => Number::smaller,
            Combine::Max => Number::larger,
        };
        combine_at(&mut values, &updates, places, inner, meet);
        N::encode(dtype, shape, values)
    })
}

fn combine_at<T: Copy>(
    values: &mut [T],
    updates: &[T],
    places: &[usize],
    inner: usize,
    meet: impl Fn(T, T) -> T,
) {
    if inner == 0 {
        return;
    }
    for (&place, run) in places.iter().zip(updates.chunks_exact(inner)) {
        for (value, &update) in values[place..][..inner].iter_mut().zip(run) {
            *value = meet(*value, update);
        }
    }
}

/// [`crate::op::Op::NonZero`].
pub(super) fn non_zero(x: &Tensor) -> Result<Tensor, EvalError> {
    let rank = x.shape().len();
    let mut places = Vec::new();
    with_number!(x.dtype(), N => {
        let values = N::decode(x)?;
        let mut position = 0;
        walk_indices(x.shape(), |index| {
            if values[position] != N::ZERO {
                places.push(index.to_vec());
            }
            position += 1;
        });
    });
    let shape = vec![rank, places.len()];
    let mut values: Vec<i64> = reserve(&shape)?;
    for axis in 0..rank {
        values.extend(places.iter().map(|place| place[axis] as i64));
    }
    from_bits(DType::I64, shape, values)
}
