//! Views of weights as matrices, and how they are prepacked.

use super::kernels::bf16::PackedBf16;
use super::kernels::channels_last::{Form, pack_filters, winograd};
use super::kernels::conv::are_packed;
use super::kernels::int8::{PackedIntegers, deep};
use super::kernels::matmul::{Matrix, Strides, widened};
use super::kernels::packed::Packed;
use super::kernels::rnn::Cell;
use super::kernels::view::row_major;
use super::prepacked::PackedWeight;
use super::scratch::Numbers;
use crate::bind::BoundOperand;
use crate::error::{Error, Result};
use bytemuck::cast_slice;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{RnnAttrs, RnnCell};
use half::f16;
use std::ops::Range;
use std::sync::Arc;

/// A view of a weight as a matrix.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct WeightMatrix {
    pub(crate) at: BoundOperand,
    pub(crate) elements: Elements,
}

/// What a matrix is prepacked as.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Elements {
    /// Numbers that are multiplied in single precision.
    Reals,
    /// Numbers of bf16.
    Bf16,
    /// Integers of 32 bits.
    Integers,
}

impl WeightMatrix {
    fn sizes(&self) -> [usize; 2] {
        sizes(&self.at, self.elements == Elements::Integers)
    }

    /// Prepacked, without its numbers.
    pub(crate) fn outline(&self) -> PackedWeight {
        let [depth, columns] = self.sizes();
        match self.elements {
            Elements::Reals => PackedWeight::Reals(Arc::new(Packed::outline(depth, columns))),
            Elements::Bf16 => PackedWeight::Bf16(Arc::new(PackedBf16::outline(depth, columns))),
            Elements::Integers => {
                PackedWeight::Integers(Arc::new(PackedIntegers::outline(depth, columns)))
            }
        }
    }

    pub(crate) fn packed_bytes(&self) -> u64 {
        let [depth, columns] = self.sizes();
        let bytes = match self.elements {
            Elements::Reals => Packed::bytes(depth, columns),
            Elements::Bf16 => PackedBf16::bytes(depth, columns),
            Elements::Integers => PackedIntegers::bytes(depth, columns),
        };
        bytes.map_or(u64::MAX, |bytes| bytes as u64)
    }

    /// Prepacked; `bytes` are those of its buffer, integers of 32 bits or of 8 that are the same.
    ///
    /// # Errors
    /// As [`pack`].
    pub(crate) fn packed(&self, bytes: &[u8], dtype: DType) -> Result<PackedWeight> {
        Ok(match self.elements {
            Elements::Reals => PackedWeight::Reals(Arc::new(pack(&self.at, bytes, dtype)?)),
            Elements::Bf16 => {
                let data = &numbers(&self.at, bytes, dtype)?;
                let [depth, columns] = self.sizes();
                let b = Matrix { data, at: strides(&self.at) };
                PackedWeight::Bf16(Arc::new(PackedBf16::new(b, depth, columns)?))
            }
            Elements::Integers => {
                let at = &self.at;
                let packed = match dtype {
                    DType::I8 => pack_integers::<i8>(at, cast_slice(bytes)),
                    DType::U8 => pack_integers::<u8>(at, bytes),
                    _ => pack_integers::<i32>(at, cast_slice(bytes)),
                };
                PackedWeight::Integers(Arc::new(packed?))
            }
        })
    }
}

/// Filters `[g·m, c, kernel…]` of a convolution of integers as matrices of m columns, one for each group; `None` where
/// they are so few that they are read as they lie. Where images are of bytes, of at most two spatial axes, the rows are the
/// channels of each element of the windows.
pub(crate) fn filters(
    weight: &BoundOperand,
    groups: usize,
    bytes: bool,
) -> Option<Vec<BoundOperand>> {
    let (&count, rest) = weight.shape.split_first()?;
    let (each, depth) = (count.checked_div(groups)?, rest.iter().product::<usize>());
    let axes = row_major(&weight.shape).into_iter().zip(&weight.strides).zip(&weight.shape);
    let is_row_major = axes.into_iter().all(|((a, &b), &size)| size == 1 || a == b);
    let by_taps = bytes && (2..=3).contains(&rest.len());
    let taps: usize = rest.iter().skip(1).product();
    let (shape, strides) = match by_taps {
        true => (vec![taps, rest[0], each], vec![1, taps as isize, depth as isize]),
        false => (vec![depth, each], vec![1, depth as isize]),
    };
    let of = |group: usize| BoundOperand {
        buffer: weight.buffer,
        offset: weight.offset + group * each * depth,
        shape: shape.clone(),
        strides: strides.clone(),
    };
    let packs = are_packed(each) && (by_taps || !bytes);
    (packs && is_row_major && depth > 0).then(|| (0..groups).map(of).collect())
}

/// Filters `[m, c, kernel…]` of a convolution whose images have their channels innermost as a matrix `[kernel, c, m]`; of a
/// group for each channel `[kernel, m]`. Those that are transformed have a kernel of two axes, `[3, 3, c, m]`.
pub(crate) fn images(weight: &BoundOperand, form: Form) -> Option<Vec<BoundOperand>> {
    let [filters, channels, ref kernel @ ..] = weight.shape[..] else { return None };
    let taps: usize = kernel.iter().product();
    let axes = row_major(&weight.shape).into_iter().zip(&weight.strides).zip(&weight.shape);
    let is_row_major = axes.into_iter().all(|((a, &b), &size)| size == 1 || a == b);
    let (of_channel, of_filter) = (taps as isize, (taps * channels) as isize);
    let (shape, strides) = match form {
        Form::Depthwise => (vec![taps, filters], vec![1, of_channel]),
        Form::Windows => (vec![taps, channels, filters], vec![1, of_channel, of_filter]),
        Form::Winograd => (vec![3, 3, channels, filters], vec![3, 1, of_channel, of_filter]),
    };
    let BoundOperand { buffer, offset, .. } = *weight;
    is_row_major.then(|| vec![BoundOperand { buffer, offset, shape, strides }])
}

/// A weight as one matrix, if it is one.
pub(crate) fn single(mut weight: BoundOperand) -> Option<BoundOperand> {
    let lead = weight.shape.len().checked_sub(2)?;
    weight.strides.drain(..lead);
    let one = weight.shape.drain(..lead).all(|size| size == 1);
    one.then_some(weight)
}

/// The kernel's cell.
pub(crate) fn cell(cell: RnnCell) -> Cell {
    match cell {
        RnnCell::Lstm { input_forget } => Cell::Lstm { input_forget },
        RnnCell::Gru { linear_before_reset } => Cell::Gru { linear_before_reset },
        RnnCell::Plain => Cell::Plain,
    }
}

/// A recurrent layer's weights `[d, gates·h, k]` as matrices `[k, columns]`, one for each direction and range of
/// gates; `None` for other shapes.
pub(crate) fn directions(
    weight: &BoundOperand,
    parts: &[Range<usize>],
    attrs: &RnnAttrs,
) -> Option<Vec<BoundOperand>> {
    let (&[count, rows, depth], &[apart, down, across]) = (&weight.shape[..], &weight.strides[..])
    else {
        return None;
    };
    if rows != cell(attrs.cell).gates() * attrs.hidden {
        return None;
    }
    let of = |direction: usize, gates: &Range<usize>| {
        let first = direction as isize * apart + (gates.start * attrs.hidden) as isize * down;
        BoundOperand {
            buffer: weight.buffer,
            offset: (weight.offset as isize + first) as usize,
            shape: vec![depth, gates.len() * attrs.hidden],
            strides: vec![across, down],
        }
    };
    let each = |direction| parts.iter().map(move |gates| of(direction, gates));
    Some((0..count).flat_map(each).collect())
}

fn sizes(matrix: &BoundOperand, integers: bool) -> [usize; 2] {
    match matrix.shape[..] {
        [taps, channels, filters] if integers => [taps * deep(channels), filters],
        [taps, channels, filters] => [taps * channels, filters],
        [_, _, channels, filters] => [winograd::PATCH * channels, filters],
        _ => [matrix.shape[0], matrix.shape[1]],
    }
}

/// Packs a matrix of integers; `elements` are those of its buffer.
///
/// # Errors
/// As [`PackedIntegers::new`].
fn pack_integers<T: Copy + Into<i32>>(
    matrix: &BoundOperand,
    elements: &[T],
) -> Result<PackedIntegers> {
    let (data, at) = (&elements[matrix.span()], strides(matrix));
    if let [taps, channels, filters] = matrix.shape[..] {
        let first = (at.offset, matrix.strides[2]);
        return PackedIntegers::of_filters(data, first, [filters, channels, taps]);
    }
    let [depth, columns] = sizes(matrix, true);
    PackedIntegers::new(Matrix { data, at }, depth, columns)
}

/// Packs a matrix of numbers that are multiplied in single precision; `bytes` are those of its buffer.
///
/// # Errors
/// As [`Packed::new`], and [`Error::Unsupported`] for other elements.
pub(crate) fn pack(matrix: &BoundOperand, bytes: &[u8], dtype: DType) -> Result<Packed> {
    let elements = numbers(matrix, bytes, dtype)?;
    if let [_, _, channels, filters] = matrix.shape[..] {
        return winograd::pack(&elements, [filters, channels]);
    }
    if let [taps, channels, filters] = matrix.shape[..] {
        return pack_filters(&elements, [filters, channels, taps], false);
    }
    let [depth, columns] = sizes(matrix, false);
    Packed::new(Matrix { data: &elements, at: strides(matrix) }, depth, columns)
}

/// The numbers of a matrix's span in single precision.
fn numbers<'a>(matrix: &BoundOperand, bytes: &'a [u8], dtype: DType) -> Result<Numbers<'a, f32>> {
    let span = matrix.span();
    Ok(match dtype {
        DType::F32 => Numbers::Lent(&cast_slice(bytes)[span]),
        DType::F16 => Numbers::Own(widened::<f16>(&cast_slice(bytes)[span])?),
        DType::BF16 => Numbers::Own(widened::<half::bf16>(&cast_slice(bytes)[span])?),
        _ => return Err(Error::Unsupported { what: "an element type" }),
    })
}

/// Where a matrix lies in its span.
fn strides(matrix: &BoundOperand) -> Strides<'static> {
    let offset = matrix.offset.saturating_sub(matrix.span().start);
    Strides { offset, batch: &[], row: matrix.strides[0], column: matrix.strides[1] }
}
