//! Linear models.

use super::super::helpers::Outputs;
use super::scores::Transform;
use super::{Labels, MAX_CLASSES, floats, largest, list, samples, table};
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Value};
use crate::op::Binary;

/// x·coefficientsᵀ + intercepts: a column a row of coefficients.
fn scores(
    c: &mut Context<'_, '_>,
    x: ValueId,
    coefficients: &[f32],
    intercepts: &[f32],
    rows: usize,
) -> Result<ValueId, OpError> {
    let x = samples(c, x, DType::F32)?;
    let coefficients = table(c, coefficients, rows)?;
    let coefficients = c.transpose(coefficients, vec![1, 0])?;
    let scores = c.mat_mul(x, coefficients)?;
    if intercepts.is_empty() {
        return Ok(scores);
    }
    let intercepts = list(c, intercepts)?;
    c.plus(scores, intercepts)
}

pub(super) fn regressor(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let transform = Transform::named(c)?;
    let targets = match usize::try_from(c.int_or("targets", 1)) {
        Ok(targets @ 1..=MAX_CLASSES) => targets,
        _ => {
            let found = c.int_or("targets", 1);
            return Err(c.invalid(format!("targets must be 1 to {MAX_CLASSES}; got {found}")));
        }
    };
    let intercepts = c.floats("intercepts").unwrap_or_default();
    if !intercepts.is_empty() && intercepts.len() != targets {
        let found = intercepts.len();
        return Err(c.invalid(format!("needs {targets} intercepts or none; got {found}")));
    }
    let scores = scores(c, x, floats(c, "coefficients")?, intercepts, targets)?;
    Ok(vec![transform.apply(c, scores, targets)?])
}

/// A row of coefficients a class, or one row for the second of two.
pub(super) fn classifier(c: &mut Context<'_, '_>) -> Result<Vec<Value>, OpError> {
    let x = c.input(0)?;
    let transform = Transform::named(c)?;
    let labels = Labels::of(c, "classlabels_ints")?;
    let intercepts = floats(c, "intercepts")?;
    let rows = intercepts.len();
    let scores = scores(c, x, floats(c, "coefficients")?, intercepts, rows)?;
    let (class, scores) = match rows {
        1 if labels.len() == 2 => {
            let zero = c.scalar_like(scores, 0.0)?;
            let second = c.binary(Binary::Greater, scores, zero)?;
            let second = c.squeeze(second, 1)?;
            (c.cast(second, DType::I64)?, transform.pair(c, scores, true)?)
        }
        _ if rows == labels.len() => (largest(c, scores)?, transform.apply(c, scores, rows)?),
        _ => {
            let why = format!("needs {} intercepts, one a class; got {rows}", labels.len());
            return Err(c.invalid(why));
        }
    };
    Ok(vec![labels.at(c, class)?, scores.into()])
}
