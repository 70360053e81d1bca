//! Normalisations.

use super::error::EvalError;
use super::number::{filled, from_reals, reals, reserve};
use super::softmax::{HalfType, softmax_by_steps};
use super::walk::{broadcast_strides, split_at_axis, walk};
use crate::dtype::DType;
use crate::tensor::Tensor;

/// [`crate::op::Op::Softmax`].
pub(super) fn softmax(x: &Tensor, axis: usize, log: bool) -> Result<Tensor, EvalError> {
    let (dtype, shape) = (x.dtype(), x.shape().to_vec());
    require_real(x)?;
    if axis >= shape.len() {
        return Err(EvalError::shape("there is no such axis", &[&shape, &[axis]]));
    }
    if x.is_empty() {
        return Ok(x.clone());
    }
    let (outer, size, inner) = split_at_axis(&shape, axis);
    let mut values = reals(x)?;
    let mut row = filled(&[size], 0.0)?;
    let half = if log { None } else { HalfType::of(dtype) };
    for block in 0..outer {
        for column in 0..inner {
            let place = |i: usize| (block * size + i) * inner + column;
            for (i, value) in row.iter_mut().enumerate() {
                *value = values[place(i)];
            }
            match half {
                Some(half) => round_softmax_row(half, &mut row),
                None => softmax_row(&mut row, log),
            }
            for (i, &value) in row.iter().enumerate() {
                values[place(i)] = value;
            }
        }
    }
    from_reals(dtype, shape, &values, true)
}

/// [`softmax_by_steps`] of a row in the reference's form, which holds the type's values as exactly.
fn round_softmax_row(half: HalfType, row: &mut [f64]) {
    let mut steps: Vec<f32> = row.iter().map(|&x| x as f32).collect();
    softmax_by_steps(half, &mut steps);
    row.iter_mut().zip(steps).for_each(|(x, step)| *x = step.into());
}

/// The softmax of a row in place, or its logarithm. A row of -∞ becomes NaN.
pub(super) fn softmax_row(row: &mut [f64], log: bool) {
    let largest = row.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value -= largest;
        sum += libm::exp(*value);
    }
    for value in row {
        *value = if log { *value - libm::log(sum) } else { libm::exp(*value) / sum };
    }
}

fn require_real(x: &Tensor) -> Result<(), EvalError> {
    if x.dtype().is_float() { Ok(()) } else { Err(EvalError::Unsupported(x.dtype())) }
}

/// Rows and their length for a normalisation from `axis` on.
fn rows(x: &Tensor, axis: usize) -> Result<(usize, usize), EvalError> {
    require_real(x)?;
    if axis > x.shape().len() {
        return Err(EvalError::shape("there is no such axis", &[x.shape(), &[axis]]));
    }
    let product = |sizes: &[usize]| sizes.iter().fold(1_usize, |p, &n| p.saturating_mul(n));
    Ok((product(&x.shape()[..axis]), product(&x.shape()[axis..])))
}

/// An operand as reals under the whole shape of x.
fn spread(operand: Option<&Tensor>, x: &Tensor) -> Result<Option<Vec<f64>>, EvalError> {
    let Some(operand) = operand else { return Ok(None) };
    let refuse =
        || EvalError::shape("an operand does not broadcast", &[x.shape(), operand.shape()]);
    let strides = broadcast_strides(operand.shape(), x.shape()).ok_or_else(refuse)?;
    let values = reals(operand)?;
    let mut result = reserve(x.shape())?;
    walk(x.shape(), [&strides], [0], |[i]| result.push(values[i]));
    Ok(Some(result))
}

/// [`crate::op::Op::LayerNorm`].
pub(super) fn layer_norm(
    x: &Tensor,
    scale: Option<&Tensor>,
    bias: Option<&Tensor>,
    axis: usize,
    epsilon: f32,
) -> Result<Vec<Tensor>, EvalError> {
    let (outer, size) = rows(x, axis)?;
    let (scale, bias) = (spread(scale, x)?, spread(bias, x)?);
    let mut statistics_shape = x.shape().to_vec();
    statistics_shape[axis..].fill(1);
    let mut means = filled(&statistics_shape, f64::NAN)?;
    let mut deviations = means.clone();
    let mut values = reals(x)?;
    if !values.is_empty() {
        for row in 0..outer {
            let elements = &mut values[row * size..][..size];
            let mean = elements.iter().sum::<f64>() / size as f64;
            let square = |x: &f64| (x - mean) * (x - mean);
            let variance = elements.iter().map(square).sum::<f64>() / size as f64;
            let inverse = 1.0 / (variance + f64::from(epsilon)).sqrt();
            for value in elements {
                *value = (*value - mean) * inverse;
            }
            means[row] = mean;
            deviations[row] = inverse;
        }
    }
    multiply(&mut values, scale.as_deref());
    if let Some(bias) = bias {
        values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    }
    let statistics = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    Ok(vec![
        from_reals(x.dtype(), x.shape().to_vec(), &values, true)?,
        from_reals(statistics, statistics_shape.clone(), &means, true)?,
        from_reals(statistics, statistics_shape, &deviations, true)?,
    ])
}

/// [`crate::op::Op::RmsNorm`].
pub(super) fn rms_norm(
    x: &Tensor,
    scale: Option<&Tensor>,
    axis: usize,
    epsilon: f32,
) -> Result<Tensor, EvalError> {
    let (outer, size) = rows(x, axis)?;
    let scale = spread(scale, x)?;
    let mut values = reals(x)?;
    if !values.is_empty() {
        for row in 0..outer {
            let elements = &mut values[row * size..][..size];
            let mean = elements.iter().map(|x| x * x).sum::<f64>() / size as f64;
            let root = (mean + f64::from(epsilon)).sqrt();
            elements.iter_mut().for_each(|value| *value /= root);
        }
    }
    multiply(&mut values, scale.as_deref());
    from_reals(x.dtype(), x.shape().to_vec(), &values, true)
}

fn multiply(values: &mut [f64], factors: Option<&[f64]>) {
    if let Some(factors) = factors {
        values.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
    }
}
