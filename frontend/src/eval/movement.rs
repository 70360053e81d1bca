//! Operations that move elements and do not look at them.

use super::error::EvalError;
use super::number::{bits, elements, filled, from_bits, reserve, with_bits};
use super::walk::{broadcast_strides, split_at_axis, strides, walk};
use crate::dtype::DType;
use crate::memory::{Block, shared};
use crate::op::PadMode;
use crate::tensor::Tensor;
use std::sync::Arc;

/// [`crate::op::Op::BitCast`].
pub(super) fn bit_cast(x: &Tensor, to: DType) -> Result<Tensor, EvalError> {
    if x.dtype().size() != to.size() || x.dtype().file_bits() != to.file_bits() {
        return Err(EvalError::Mismatch { expected: x.dtype(), actual: to });
    }
    Ok(Tensor::new(to, x.shape().to_vec(), x.shared_bytes().clone())?)
}

/// [`crate::op::Op::Reshape`].
pub(super) fn reshape(x: &Tensor, shape: Vec<usize>) -> Result<Tensor, EvalError> {
    if elements(&shape)? != x.len() {
        return Err(EvalError::shape("a reshape keeps the elements", &[x.shape(), &shape]));
    }
    Ok(x.reshaped(shape)?)
}

/// [`crate::op::Op::Transpose`].
pub(super) fn transpose(x: &Tensor, perm: &[usize]) -> Result<Tensor, EvalError> {
    let mut seen = perm.to_vec();
    seen.sort_unstable();
    if !seen.iter().copied().eq(0..x.shape().len()) {
        return Err(EvalError::shape("a transpose names every axis once", &[x.shape(), perm]));
    }
    let from = strides(x.shape());
    let shape = perm.iter().map(|&axis| x.shape()[axis]).collect();
    let moved: Vec<_> = perm.iter().map(|&axis| from[axis]).collect();
    strided(x, shape, &moved, 0)
}

/// [`crate::op::Op::Expand`].
pub(super) fn expand(x: &Tensor, shape: Vec<usize>) -> Result<Tensor, EvalError> {
    let refuse = || EvalError::shape("an operand does not broadcast", &[x.shape(), &shape]);
    let moved = broadcast_strides(x.shape(), &shape).ok_or_else(refuse)?;
    strided(x, shape, &moved, 0)
}

/// A range of [`crate::op::Op::Slice`] with its sizes known.
pub(super) struct Range {
    pub(super) axis: usize,
    pub(super) start: i64,
    pub(super) len: usize,
    pub(super) step: i64,
}

/// [`crate::op::Op::Slice`].
pub(super) fn slice(x: &Tensor, ranges: &[Range]) -> Result<Tensor, EvalError> {
    let mut shape = x.shape().to_vec();
    let mut moved = strides(x.shape());
    let from = moved.clone();
    let mut start = 0_isize;
    for range in ranges {
        let Some(&size) = x.shape().get(range.axis) else {
            return Err(EvalError::shape("a slice names an axis", &[x.shape()]));
        };
        shape[range.axis] = range.len;
        if range.len == 0 {
            continue;
        }
        let span = i128::from(range.step) * (range.len as i128 - 1);
        for index in [i128::from(range.start), i128::from(range.start) + span] {
            if !(0..size as i128).contains(&index) {
                let index = index.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
                return Err(EvalError::Index { index, axis: range.axis, size });
            }
        }
        start += from[range.axis].wrapping_mul(range.start as isize);
        moved[range.axis] = from[range.axis].wrapping_mul(range.step as isize);
    }
    strided(x, shape, &moved, start)
}

/// The elements of x at `start + Σ index · stride`; the offsets are in range.
pub(super) fn strided(
    x: &Tensor,
    shape: Vec<usize>,
    strides: &[isize],
    start: isize,
) -> Result<Tensor, EvalError> {
    with_bits!(x.dtype(), B => {
        let from = bits::<B>(x);
        let mut values = reserve(&shape)?;
        walk(&shape, [strides], [start], |[i]| values.push(from[i]));
        from_bits(x.dtype(), shape, values)
    })
}

/// [`crate::op::Op::Concat`].
pub(super) fn concat(xs: &[&Tensor], axis: usize) -> Result<Tensor, EvalError> {
    let first = xs.first().ok_or(EvalError::Missing(0))?;
    let mut shape = first.shape().to_vec();
    if axis >= shape.len() {
        return Err(EvalError::shape("a concatenation names an axis", &[first.shape()]));
    }
    shape[axis] = 0;
    for x in xs {
        if x.dtype() != first.dtype() {
            return Err(EvalError::Mismatch { expected: first.dtype(), actual: x.dtype() });
        }
        let fits = x.shape().len() == shape.len()
            && (0..shape.len()).all(|i| i == axis || x.shape()[i] == shape[i]);
        if !fits {
            let what = "concatenated tensors differ along one axis only";
            return Err(EvalError::shape(what, &[first.shape(), x.shape()]));
        }
        shape[axis] = shape[axis].saturating_add(x.shape()[axis]);
    }
    let total = elements(&shape)?;
    if total == 0 {
        return Ok(Tensor::zeros(first.dtype(), shape)?);
    }
    let (outer, _, inner) = split_at_axis(&shape, axis);
    let size = first.dtype().size();
    let refuse = |_| EvalError::Memory(shape.clone());
    // Merged weights are made by this.
    let mut block = Block::zeroed(total * size).map_err(refuse)?;
    let mut rest = block.bytes_mut();
    for number in 0..outer {
        for x in xs {
            let length = x.shape()[axis] * inner * size;
            let (to, after) = rest.split_at_mut(length);
            to.copy_from_slice(&x.bytes()[number * length..][..length]);
            rest = after;
        }
    }
    Ok(Tensor::new(first.dtype(), shape, shared(&Arc::new(block)))?)
}

/// [`crate::op::Op::Pad`].
pub(super) fn pad(
    x: &Tensor,
    value: Option<&Tensor>,
    mode: PadMode,
    before: &[i64],
    after: &[i64],
) -> Result<Tensor, EvalError> {
    let rank = x.shape().len();
    if before.len() != rank || after.len() != rank {
        return Err(EvalError::shape("a padding has an entry an axis", &[x.shape()]));
    }
    if let Some(value) = value {
        if value.dtype() != x.dtype() {
            return Err(EvalError::Mismatch { expected: x.dtype(), actual: value.dtype() });
        }
        if value.len() != 1 {
            return Err(EvalError::shape("a padding has one value", &[value.shape()]));
        }
    }
    let mut shape = Vec::new();
    for ((&size, &before), &after) in x.shape().iter().zip(before).zip(after) {
        let padded = size as i128 + i128::from(before) + i128::from(after);
        let what = "a padding cuts more than there is";
        let padded = usize::try_from(padded).map_err(|_| EvalError::shape(what, &[x.shape()]))?;
        shape.push(padded);
    }
    if elements(&shape)? == 0 {
        return Ok(Tensor::zeros(x.dtype(), shape)?);
    }
    let sources = pad_sources(x.shape(), &shape, mode, before)?;
    let from = strides(x.shape());
    with_bits!(x.dtype(), B => {
        let fill = value.map_or(0, |value| bits::<B>(value)[0]);
        let mut values = filled(&shape, fill)?;
        let elements = bits::<B>(x);
        copy_sources(&sources, &from, 0, 0, &mut |at, offset| values[at] = elements[offset]);
        from_bits(x.dtype(), shape, values)
    })
}

/// For every axis of [`crate::op::Op::Pad`] from one shape to another, where each place of the result comes from; `None`
/// where the padding's value stands.
///
/// # Errors
/// [`EvalError::Shape`] if elements are to be repeated and there are none.
pub fn pad_sources(
    from: &[usize],
    to: &[usize],
    mode: PadMode,
    before: &[i64],
) -> Result<Vec<Vec<Option<usize>>>, EvalError> {
    let mut sources = Vec::new();
    for ((&size, &padded), &before) in from.iter().zip(to).zip(before) {
        if size == 0 && padded > 0 && mode != PadMode::Constant {
            return Err(EvalError::shape("nothing to pad with", &[from]));
        }
        let mut places = reserve(&[padded])?;
        places.extend((0..padded as i64).map(|place| source(place - before, size as i64, mode)));
        sources.push(places);
    }
    Ok(sources)
}

/// Calls `copy` for every place of the result that has a source, recursing over the axes.
fn copy_sources(
    sources: &[Vec<Option<usize>>],
    strides: &[isize],
    at: usize,
    offset: usize,
    copy: &mut impl FnMut(usize, usize),
) {
    let (Some((places, rest)), Some((&stride, inner))) =
        (sources.split_first(), strides.split_first())
    else {
        return copy(at, offset);
    };
    for (i, place) in places.iter().enumerate() {
        if let Some(place) = place {
            let at = at * places.len() + i;
            copy_sources(rest, inner, at, offset + place * stride as usize, copy);
        }
    }
}

/// The index of the element that stands at `place`, counted from the first element of x.
fn source(place: i64, size: i64, mode: PadMode) -> Option<usize> {
    let inside = match mode {
        PadMode::Constant => Some(place).filter(|place| (0..size).contains(place)),
        PadMode::Edge => Some(place.clamp(0, (size - 1).max(0))),
        PadMode::Wrap => place.checked_rem_euclid(size),
        PadMode::Reflect if size == 1 => Some(0),
        PadMode::Reflect => {
            let period = 2 * size - 2;
            let folded = place.checked_rem_euclid(period);
            folded.map(|folded| if folded < size { folded } else { period - folded })
        }
    };
    inside.map(|index| index as usize)
}
