//! Matrix products, convolutions and poolings.

use super::take::{class, dtype, length, optional, positive, rank, required};
use super::{Count, DTypeClass, InferError, dims};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::op::{ConvAttrs, PoolAttrs, PoolKind};
use crate::types::TensorType;

type Inputs<'a> = [Option<&'a TensorType>];

pub(super) fn mat_mul(inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [a, b] = required(inputs)?;
    class(0, a, DTypeClass::Number)?;
    dtype(1, b, a.dtype)?;
    rank(0, a, Count::AtLeast(2))?;
    rank(1, b, Count::AtLeast(2))?;
    let (a_leading, a_matrix) = a.shape.split_at(a.rank() - 2);
    let (b_leading, b_matrix) = b.shape.split_at(b.rank() - 2);
    dims::join(&a_matrix[1], &b_matrix[0])?;
    let mut shape = dims::broadcast(a_leading, b_leading)?;
    shape.extend([a_matrix[0].clone(), b_matrix[1].clone()]);
    Ok(TensorType::new(a.dtype, shape))
}

pub(super) fn wide_mat_mul(inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    wide(inputs, mat_mul(inputs)?)
}

pub(super) fn wide_conv(attrs: &ConvAttrs, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    wide(inputs, conv(attrs, inputs)?)
}

/// The same in single precision, of operands that are in it or in half.
fn wide(inputs: &Inputs<'_>, narrow: TensorType) -> Result<TensorType, InferError> {
    let [a, _] = required(inputs)?;
    if !matches!(a.dtype, DType::F16 | DType::BF16) {
        dtype(0, a, DType::F32)?;
    }
    Ok(TensorType::new(DType::F32, narrow.shape))
}

pub(super) fn conv(attrs: &ConvAttrs, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x, w] = required(inputs)?;
    check_conv(attrs, x, w)?;
    let group = Dim::from(attrs.group);
    dims::join(&x.shape[1], &(&w.shape[1] * &group))?;
    let channels = &w.shape[0];
    divides(channels, attrs.group)?;
    check_bias(inputs, x.dtype, channels)?;
    let mut shape = vec![x.shape[0].clone(), channels.clone()];
    for (i, size) in x.shape[2..].iter().enumerate() {
        let padding = Dim::from(attrs.pads_before[i]) + Dim::from(attrs.pads_after[i]);
        let span = size + padding - window(&w.shape[2 + i], attrs.dilations[i]);
        shape.push(span.floor_div(&Dim::from(attrs.strides[i]))? + Dim::from(1));
    }
    Ok(TensorType::new(x.dtype, shape))
}

pub(super) fn conv_transpose(
    attrs: &ConvAttrs,
    output_padding: &[usize],
    inputs: &Inputs<'_>,
) -> Result<TensorType, InferError> {
    let [x, w] = required(inputs)?;
    check_conv(attrs, x, w)?;
    length("output_padding", output_padding.len(), x.rank() - 2)?;
    divides(&dims::join(&x.shape[1], &w.shape[0])?, attrs.group)?;
    let channels = &w.shape[1] * &Dim::from(attrs.group);
    check_bias(inputs, x.dtype, &channels)?;
    let mut shape = vec![x.shape[0].clone(), channels];
    for (i, size) in x.shape[2..].iter().enumerate() {
        let steps = Dim::from(attrs.strides[i]) * (size - &Dim::from(1));
        let padding = Dim::from(attrs.pads_before[i]) + Dim::from(attrs.pads_after[i]);
        let window = window(&w.shape[2 + i], attrs.dilations[i]);
        shape.push(steps + Dim::from(output_padding[i]) + window - padding);
    }
    Ok(TensorType::new(x.dtype, shape))
}

/// What a convolution and its transpose ask of their inputs alike.
fn check_conv(attrs: &ConvAttrs, x: &TensorType, w: &TensorType) -> Result<(), InferError> {
    class(0, x, DTypeClass::Number)?;
    dtype(1, w, x.dtype)?;
    rank(0, x, Count::AtLeast(3))?;
    rank(1, w, Count::Exactly(x.rank()))?;
    let spatial = x.rank() - 2;
    length("strides", attrs.strides.len(), spatial)?;
    length("dilations", attrs.dilations.len(), spatial)?;
    length("pads_before", attrs.pads_before.len(), spatial)?;
    length("pads_after", attrs.pads_after.len(), spatial)?;
    positive("strides", &attrs.strides)?;
    positive("dilations", &attrs.dilations)?;
    positive("group", &[attrs.group])
}

fn check_bias(inputs: &Inputs<'_>, expected: DType, channels: &Dim) -> Result<(), InferError> {
    let Some(bias) = optional(inputs, 2) else { return Ok(()) };
    dtype(2, bias, expected)?;
    rank(2, bias, Count::Exactly(1))?;
    dims::join(&bias.shape[0], channels).map(|_| ())
}

fn divides(channels: &Dim, group: usize) -> Result<(), InferError> {
    match (channels.known(), i64::try_from(group)) {
        (None, Ok(_)) => Ok(()),
        (Some(channels), Ok(group)) if channels % group == 0 => Ok(()),
        _ => Err(InferError::Attribute { name: "group", reason: "does not divide the channels" }),
    }
}

/// Elements from a window's first to its last: `dilation·(kernel - 1) + 1`.
fn window(kernel: &Dim, dilation: usize) -> Dim {
    Dim::from(dilation) * (kernel - &Dim::from(1)) + Dim::from(1)
}

pub(super) fn pool(attrs: &PoolAttrs, inputs: &Inputs<'_>) -> Result<Vec<TensorType>, InferError> {
    let [x] = required(inputs)?;
    let (takes, indices) = match attrs.kind {
        PoolKind::Max { indices } => (DTypeClass::Number, indices.is_some()),
        PoolKind::Average { .. } | PoolKind::Lp { .. } => (DTypeClass::Float, false),
    };
    class(0, x, takes)?;
    rank(0, x, Count::AtLeast(3))?;
    let spatial = x.rank() - 2;
    length("kernel", attrs.kernel.len(), spatial)?;
    length("strides", attrs.strides.len(), spatial)?;
    length("dilations", attrs.dilations.len(), spatial)?;
    length("pads_before", attrs.pads_before.len(), spatial)?;
    length("pads_after", attrs.pads_after.len(), spatial)?;
    positive("kernel", &attrs.kernel)?;
    positive("strides", &attrs.strides)?;
    positive("dilations", &attrs.dilations)?;
    let mut shape = x.shape[..2].to_vec();
    for (i, size) in x.shape[2..].iter().enumerate() {
        shape.push(pooled(attrs, i, size)?);
    }
    let y = TensorType::new(x.dtype, shape);
    let places = indices.then(|| TensorType::new(DType::I64, y.shape.clone()));
    Ok([Some(y), places].into_iter().flatten().collect())
}

/// The number of windows along spatial axis `i` of this size.
fn pooled(attrs: &PoolAttrs, i: usize, size: &Dim) -> Result<Dim, InferError> {
    let stride = Dim::from(attrs.strides[i]);
    let start = size + &Dim::from(attrs.pads_before[i]);
    let window = window(&Dim::from(attrs.kernel[i]), attrs.dilations[i]);
    let span = &start + &Dim::from(attrs.pads_after[i]) - window + &stride;
    if !attrs.ceil {
        return Ok(span.floor_div(&stride)?);
    }
    // ⌈span / stride⌉ windows, or as many as start before the padding after: ⌈start / stride⌉. The division
    // is monotone, so the numerators are compared, which two constants apart decide at once.
    Ok(span.minimum(&start).ceil_div(&stride)?)
}
