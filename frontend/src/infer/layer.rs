//! Normalisations, attention, recurrent layers and interpolation.

use super::dims::{broadcasts_to, join, unresolved};
use super::take::{axis as check_axis, class, dtype, length, optional, rank, required};
use super::{Count, DTypeClass, InferError};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::op::{CoordinateTransform, ResizeAttrs, RnnAttrs, RnnCell, RnnDirection};
use crate::types::TensorType;

type Inputs<'a> = [Option<&'a TensorType>];

pub(super) fn softmax(axis: usize, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    class(0, x, DTypeClass::Float)?;
    check_axis(axis, x.rank())?;
    Ok(x.clone())
}

pub(super) fn layer_norm(axis: usize, inputs: &Inputs<'_>) -> Result<Vec<TensorType>, InferError> {
    let [x] = required(inputs)?;
    check_norm(axis, x, inputs)?;
    let dtype = if x.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let mut shape = x.shape.clone();
    shape[axis..].fill(Dim::from(1));
    let statistic = TensorType::new(dtype, shape);
    Ok(vec![x.clone(), statistic.clone(), statistic])
}

pub(super) fn rms_norm(axis: usize, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    check_norm(axis, x, inputs)?;
    Ok(x.clone())
}

/// Checks `x` and every further input, each of which broadcasts to the normalised dims.
fn check_norm(axis: usize, x: &TensorType, inputs: &Inputs<'_>) -> Result<(), InferError> {
    class(0, x, DTypeClass::Float)?;
    check_axis(axis, x.rank())?;
    for input in 1..inputs.len() {
        if let Some(factor) = optional(inputs, input) {
            dtype(input, factor, x.dtype)?;
            broadcasts_to(&factor.shape, &x.shape[axis..])?;
        }
    }
    Ok(())
}

pub(super) fn attention(inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [q, k, v] = required(inputs)?;
    for (input, ty) in [q, k, v].into_iter().enumerate() {
        class(input, ty, DTypeClass::Float)?;
        dtype(input, ty, q.dtype)?;
        rank(input, ty, Count::Exactly(4))?;
    }
    let batch = join(&join(&q.shape[0], &k.shape[0])?, &v.shape[0])?;
    let (heads, groups) = (&q.shape[1], join(&k.shape[1], &v.shape[1])?);
    divides(&groups, heads)?;
    let keys = join(&k.shape[2], &v.shape[2])?;
    join(&q.shape[3], &k.shape[3])?;
    if let Some(mask) = optional(inputs, 3) {
        class(3, mask, DTypeClass::Mask)?;
        broadcasts_to(&mask.shape, &[batch.clone(), heads.clone(), q.shape[2].clone(), keys])?;
    }
    let shape = vec![batch, heads.clone(), q.shape[2].clone(), v.shape[3].clone()];
    Ok(TensorType::new(q.dtype, shape))
}

/// Refuses heads of keys that do not divide the heads of queries.
fn divides(groups: &Dim, heads: &Dim) -> Result<(), InferError> {
    let refuse = || Err(InferError::Dims { a: groups.clone(), b: heads.clone() });
    match (groups.known(), heads.known()) {
        (Some(0), _) => refuse(),
        (Some(g), Some(h)) if h.checked_rem(g) != Some(0) => refuse(),
        _ if heads.exact_div(groups).is_some() => Ok(()),
        _ => Err(unresolved(groups, heads)),
    }
}

pub(super) fn rnn(attrs: &RnnAttrs, inputs: &Inputs<'_>) -> Result<Vec<TensorType>, InferError> {
    let (gates, functions) = match attrs.cell {
        RnnCell::Lstm { .. } => (4, 3),
        RnnCell::Gru { .. } => (3, 2),
        RnnCell::Plain => (1, 1),
    };
    let directions = match attrs.direction {
        RnnDirection::Forward | RnnDirection::Reverse => 1_usize,
        RnnDirection::Bidirectional => 2,
    };
    if attrs.activations.len() != directions * functions {
        let reason = "has not as many functions as gates ask for";
        return Err(InferError::Attribute { name: "activations", reason });
    }
    let [x, w, r] = required(inputs)?;
    class(0, x, DTypeClass::Float)?;
    rank(0, x, Count::Exactly(3))?;
    rank(1, w, Count::Exactly(3))?;
    rank(2, r, Count::Exactly(3))?;
    let (d, h) = (Dim::from(directions), Dim::from(attrs.hidden));
    let batch = x.shape[1].clone();
    let rows = Dim::from(gates) * &h;
    let state = [d.clone(), batch.clone(), h.clone()];
    let expected: [&[Dim]; 7] = [
        &[d.clone(), rows.clone(), x.shape[2].clone()],
        &[d.clone(), rows.clone(), h.clone()],
        &[d.clone(), Dim::from(2) * rows],
        std::slice::from_ref(&batch),
        &state,
        &state,
        &[d.clone(), Dim::from(3) * &h],
    ];
    for (input, shape) in (1..).zip(expected) {
        let Some(ty) = optional(inputs, input) else { continue };
        dtype(input, ty, if input == 4 { DType::I32 } else { x.dtype })?;
        rank(input, ty, Count::Exactly(shape.len()))?;
        super::dims::join_shapes(&ty.shape, shape)?;
    }
    let y = TensorType::new(x.dtype, vec![x.shape[0].clone(), d, batch, h]);
    let last = TensorType::new(x.dtype, state.to_vec());
    let mut outputs = vec![y, last.clone()];
    if matches!(attrs.cell, RnnCell::Lstm { .. }) {
        outputs.push(last);
    }
    Ok(outputs)
}

pub(super) fn resize(attrs: &ResizeAttrs, inputs: &Inputs<'_>) -> Result<TensorType, InferError> {
    let [x] = required(inputs)?;
    class(0, x, DTypeClass::Number)?;
    length("sizes", attrs.sizes.len(), x.rank())?;
    length("scales", attrs.scales.len(), x.rank())?;
    if attrs.transform == CoordinateTransform::CropAndResize {
        length("roi", attrs.roi.len(), x.rank())?;
    }
    for (axis, (from, to)) in x.shape.iter().zip(&attrs.sizes).enumerate() {
        if *from == 0 && *to != 0 {
            return Err(InferError::Empty { input: 0, axis });
        }
    }
    Ok(TensorType::new(x.dtype, attrs.sizes.clone()))
}
