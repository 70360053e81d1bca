//! Steps of training.

use super::helpers::Outputs;
use super::{Row, Run, TensorsFn};
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Unary};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    training("Adagrad", |c| each(c, 2, adagrad)),
    training("Adam", |c| each(c, 3, adam)),
    training("Momentum", |c| each(c, 2, momentum)),
];

const fn training(op: &'static str, run: TensorsFn) -> Row {
    Row { domain: "ai.onnx.preview.training", op, since: 1, run: Run::Tensors(run) }
}

/// A step for one tensor: learning rate, step count, gradient, then the tensor and its states, which it moves.
type Step =
    fn(&mut Context<'_, '_>, ValueId, ValueId, ValueId, &mut [ValueId]) -> Result<(), OpError>;

/// Inputs are the rate, the count, then all tensors, all gradients, all first states, and so on; outputs are all
/// new tensors, all new first states, and so on.
fn each(c: &mut Context<'_, '_>, kept: usize, step: Step) -> Outputs {
    let (rate, count) = (c.input(0)?, c.input(1)?);
    let tensors = c.input_count().saturating_sub(2) / (kept + 1);
    if tensors * (kept + 1) + 2 != c.input_count() {
        return Err(c.invalid("tensors, gradients and states must be equally many"));
    }
    let mut outputs = vec![rate; tensors * kept];
    for i in 0..tensors {
        let gradient = c.input(2 + tensors + i)?;
        let mut values = vec![c.input(2 + i)?];
        for state in 1..kept {
            values.push(c.input(2 + (state + 1) * tensors + i)?);
        }
        // The gradient of the norm of the tensor is added.
        let decay = c.scaled(values[0], f64::from(c.float_or("norm_coefficient", 0.0)))?;
        let gradient = c.plus(gradient, decay)?;
        let rate = c.cast_to(rate, c.dtype(values[0]))?;
        step(c, rate, count, gradient, &mut values)?;
        for (state, value) in values.into_iter().enumerate() {
            outputs[state * tensors + i] = value;
        }
    }
    Ok(outputs)
}

fn adagrad(
    c: &mut Context<'_, '_>,
    rate: ValueId,
    count: ValueId,
    gradient: ValueId,
    values: &mut [ValueId],
) -> Result<(), OpError> {
    let count = c.cast_to(count, c.dtype(gradient))?;
    let decay = c.scaled(count, f64::from(c.float_or("decay_factor", 0.0)))?;
    let decay = c.shifted(decay, 1.0)?;
    let rate = c.over(rate, decay)?;
    let square = c.times(gradient, gradient)?;
    values[1] = c.plus(values[1], square)?;
    let root = c.unary(Unary::Sqrt, values[1])?;
    let root = c.shifted(root, f64::from(c.float_or("epsilon", 0.0)))?;
    let move_by = c.times(rate, gradient)?;
    let move_by = c.over(move_by, root)?;
    values[0] = c.minus(values[0], move_by)?;
    Ok(())
}

fn adam(
    c: &mut Context<'_, '_>,
    rate: ValueId,
    count: ValueId,
    gradient: ValueId,
    values: &mut [ValueId],
) -> Result<(), OpError> {
    let alpha = f64::from(c.float_or("alpha", 0.9));
    let beta = f64::from(c.float_or("beta", 0.999));
    let square = c.times(gradient, gradient)?;
    for (i, keep, new) in [(1, alpha, gradient), (2, beta, square)] {
        let (old, new) = (c.scaled(values[i], keep)?, c.scaled(new, 1.0 - keep)?);
        values[i] = c.plus(old, new)?;
    }
    // The first steps are corrected for states that begin at zero.
    let first = c.scalar(DType::I64, 0.0)?;
    let begun = c.binary(Binary::Greater, count, first)?;
    let steps = c.cast_to(count, c.dtype(gradient))?;
    let left = |c: &mut Context<'_, '_>, base: f64| -> Result<ValueId, OpError> {
        let (base, one) = (c.scalar_like(steps, base)?, c.scalar_like(steps, 1.0)?);
        let power = c.binary(Binary::Pow, base, steps)?;
        c.minus(one, power)
    };
    let (first, second) = (left(c, alpha)?, left(c, beta)?);
    let root = c.unary(Unary::Sqrt, second)?;
    let correction = c.over(root, first)?;
    let adjusted = c.times(rate, correction)?;
    let rate = c.select(begun, adjusted, rate)?;
    let root = c.unary(Unary::Sqrt, values[2])?;
    let root = c.shifted(root, f64::from(c.float_or("epsilon", 0.0)))?;
    let move_by = c.times(rate, values[1])?;
    let move_by = c.over(move_by, root)?;
    let moved = c.minus(values[0], move_by)?;
    let after = f64::from(c.float_or("norm_coefficient_post", 0.0));
    values[0] = c.scaled(moved, 1.0 - after)?;
    Ok(())
}

fn momentum(
    c: &mut Context<'_, '_>,
    rate: ValueId,
    count: ValueId,
    gradient: ValueId,
    values: &mut [ValueId],
) -> Result<(), OpError> {
    let alpha = f64::from(c.float_or("alpha", 0.0));
    let beta = f64::from(c.float_or("beta", 0.0));
    // The first step takes the gradient whole.
    let zero = c.scalar(DType::I64, 0.0)?;
    let begun = c.binary(Binary::Greater, count, zero)?;
    let scaled = c.scaled(gradient, beta)?;
    let taken = c.select(begun, scaled, gradient)?;
    let old = c.scaled(values[1], alpha)?;
    values[1] = c.plus(old, taken)?;
    let direction = match c.string("mode") {
        Some("nesterov") => {
            let ahead = c.scaled(values[1], alpha)?;
            c.plus(gradient, ahead)?
        }
        None | Some("standard") => values[1],
        Some(_) => return Err(c.invalid("`mode` must be standard or nesterov")),
    };
    let move_by = c.times(rate, direction)?;
    values[0] = c.minus(values[0], move_by)?;
    Ok(())
}
