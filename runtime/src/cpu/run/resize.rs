//! Resizing by interpolation.

use super::{Io, around, by_size, required_input, with_row_major};
use crate::bind::{BoundOperand, BoundStep};
use crate::cpu::kernels::copy::copy_strided;
use crate::cpu::kernels::interpolate::interpolate;
use crate::cpu::kernels::number::{decode, encode, limits};
use crate::cpu::kernels::view::check_size;
use crate::cpu::scratch::{self, Few};
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::{Taps, resize_taps};
use graphene_frontend::op::ResizeAttrs;
use graphene_fusion::program::Step;

/// For each axis where its places take their values from; none for an axis that stays as it is.
pub(crate) type AllTaps = Vec<Option<Vec<Taps>>>;

/// Where the elements of a resized tensor take their values from; nowhere if there are none.
///
/// # Errors
/// [`Error::Unsupported`] for a resize of nothing to something.
pub(crate) fn all_taps(step: &Step, bound: &BoundStep, attrs: &ResizeAttrs) -> Result<AllTaps> {
    let (from, to) = (&bound.inputs[required_input(step, 0)?].shape, &bound.outputs[0].shape);
    match (to.contains(&0), from.contains(&0)) {
        (true, _) => Ok(Vec::new()),
        (false, true) => Err(Error::Unsupported { what: "a resize of nothing" }),
        (false, false) => Ok(resize_taps(from, to, attrs).map_err(Box::new)?),
    }
}

/// Runs a resize in double precision, one axis after the other, and rounds once.
pub(crate) fn run_resize(step: &Step, mut io: Io<'_>, taps: &AllTaps, outside: f32) -> Result<()> {
    if io.outputs.iter().any(|output| output.operand.shape.contains(&0)) {
        return Ok(());
    }
    let (bytes, operand, dtype) = io.input(required_input(step, 0)?)?;
    let mut shape: Few<usize> = operand.shape.iter().copied().collect();
    let mut values = scratch::take::<f64>(shape.iter().product())?;
    let mut dense = scratch::take::<u8>(values.len() * dtype.size())?;
    by_size!(dtype.size(), densely(&mut dense, bytes, operand))?;
    decode(dtype, &dense, &mut values);
    for (axis, taps) in taps.iter().enumerate() {
        let Some(taps) = taps else { continue };
        let sizes = around(&shape, axis);
        shape[axis] = taps.len();
        let mut resized = scratch::take::<f64>(shape.iter().product())?;
        interpolate(&mut resized, &values, sizes, taps, outside.into())?;
        values = resized;
    }
    with_row_major(&mut io.outputs, |results| {
        results.into_iter().try_for_each(|result| store(dtype, &values, result))
    })
}

fn densely<T: Pod + Default + Send + Sync>(
    dense: &mut [u8],
    bytes: &[u8],
    from: &BoundOperand,
) -> Result<()> {
    let (to, source) = (cast_slice_mut::<u8, T>(dense), cast_slice(bytes));
    copy_strided(to, &from.shape, source, from.offset, &from.strides)
}

/// Integers are the nearest of their type.
fn store(dtype: DType, values: &[f64], to: &mut [u8]) -> Result<()> {
    check_size("bytes of a resized tensor", values.len() * dtype.size(), to.len())?;
    if dtype.is_float() {
        encode(dtype, values, to);
        return Ok(());
    }
    let (low, high) = limits(dtype);
    let mut nearest = scratch::take::<i64>(values.len())?;
    for (to, x) in nearest.iter_mut().zip(values) {
        *to = (x.round_ties_even() as i128).clamp(low, high) as i64;
    }
    encode(dtype, &nearest, to);
    Ok(())
}
