//! Losses over classes.

use super::{Row, row};
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Op, ReduceOp, Unary};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("NegativeLogLikelihoodLoss", 12, |c| {
        let scores = c.input(0)?;
        Ok(vec![likelihood_loss(c, scores)?])
    }),
    row("SoftmaxCrossEntropyLoss", 12, |c| {
        let scores = c.input(0)?;
        let log = c.add(Op::Softmax { axis: 1, log: true }, &[scores])?;
        Ok(vec![likelihood_loss(c, log)?, log])
    }),
];

/// The negated logarithm of the target's probability, weighted by class, then summed or averaged.
fn likelihood_loss(c: &mut Context<'_, '_>, log: ValueId) -> Result<ValueId, OpError> {
    let (target, weight) = (c.input(1)?, c.optional(2));
    let ignored = match c.int("ignore_index") {
        Some(index) => {
            let index = c.scalar_like(target, index as f64)?;
            Some(c.binary(Binary::Equal, target, index)?)
        }
        None => None,
    };
    // An ignored target may be no class at all: it reads class 0 and then counts nothing.
    let class = match ignored {
        Some(ignored) => {
            let zero = c.scalar_like(target, 0.0)?;
            c.select(ignored, zero, target)?
        }
        None => target,
    };
    let place = c.unsqueeze(class, &[1])?;
    let picked = c.add(Op::GatherElements { axis: 1 }, &[log, place])?;
    let picked = c.squeeze(picked, 1)?;
    let mut loss = c.unary(Unary::Neg, picked)?;
    let weights = weights(c, loss, class, weight, ignored)?;
    if let Some(weights) = weights {
        loss = c.times(loss, weights)?;
        if let Some(ignored) = ignored {
            let zero = c.scalar_like(loss, 0.0)?;
            loss = c.select(ignored, zero, loss)?;
        }
    }
    let axes: Vec<usize> = (0..c.rank(loss)).collect();
    match (c.string("reduction"), weights) {
        (Some("none"), _) => Ok(loss),
        (Some("sum"), _) => c.reduce(ReduceOp::Sum, loss, axes, false),
        (None | Some("mean"), None) => c.reduce(ReduceOp::Mean, loss, axes, false),
        (None | Some("mean"), Some(weights)) => {
            let sum = c.reduce(ReduceOp::Sum, loss, axes.clone(), false)?;
            let total = c.reduce(ReduceOp::Sum, weights, axes, false)?;
            c.over(sum, total)
        }
        (Some(_), _) => Err(c.invalid("`reduction` must be none, sum or mean")),
    }
}

/// What each target counts: its class's weight, and nothing where it is ignored. `None`: all count one.
fn weights(
    c: &mut Context<'_, '_>,
    like: ValueId,
    class: ValueId,
    weight: Option<ValueId>,
    ignored: Option<ValueId>,
) -> Result<Option<ValueId>, OpError> {
    let weight = match weight {
        Some(weight) => c.add(Op::Gather { axis: 0 }, &[weight, class])?,
        None => c.scalar_like(like, 1.0)?,
    };
    match ignored {
        Some(ignored) => {
            let zero = c.scalar_like(like, 0.0)?;
            Ok(Some(c.select(ignored, zero, weight)?))
        }
        None => Ok(Some(weight).filter(|&weight| c.rank(weight) > 0)),
    }
}
