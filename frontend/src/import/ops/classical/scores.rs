//! What becomes of scores at last.

use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Op, ReduceOp, Unary};
use std::f64::consts::SQRT_2;

/// What is done with scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transform {
    Nothing,
    Softmax,
    Logistic,
    /// Softmax over the scores that are not zero.
    SoftmaxZero,
    /// The quantile of the normal distribution.
    Probit,
}

/// In the order of their numbers in `TreeEnsemble`: ONNX's, of which onnxruntime 1.32 exchanges 1 and 2.
const NAMES: [(&str, Transform); 5] = [
    ("NONE", Transform::Nothing),
    ("SOFTMAX", Transform::Softmax),
    ("LOGISTIC", Transform::Logistic),
    ("SOFTMAX_ZERO", Transform::SoftmaxZero),
    ("PROBIT", Transform::Probit),
];

impl Transform {
    /// That of the attribute `post_transform`, by name.
    pub(super) fn named(c: &Context<'_, '_>) -> Result<Self, OpError> {
        let name = c.string("post_transform").unwrap_or("NONE");
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, transform)| *transform).ok_or_else(|| unknown(c, name))
    }

    /// That of the attribute `post_transform`, by number.
    pub(super) fn numbered(c: &Context<'_, '_>) -> Result<Self, OpError> {
        let number = c.int_or("post_transform", 0);
        let found = usize::try_from(number).ok().and_then(|number| NAMES.get(number));
        found.map(|(_, transform)| *transform).ok_or_else(|| unknown(c, &number.to_string()))
    }

    /// The scores of the columns of each row, transformed. A single score is left as it is but for the quantile.
    pub(super) fn apply(
        self,
        c: &mut Context<'_, '_>,
        scores: ValueId,
        columns: usize,
    ) -> Result<ValueId, OpError> {
        match self {
            Self::Nothing => Ok(scores),
            Self::Probit => probit(c, scores),
            Self::Logistic | Self::Softmax | Self::SoftmaxZero if columns == 1 => Ok(scores),
            Self::Logistic => c.unary(Unary::Sigmoid, scores),
            Self::Softmax => c.add(Op::Softmax { axis: 1, log: false }, &[scores]),
            Self::SoftmaxZero => softmax_zero(c, scores),
        }
    }

    /// The two scores of a classifier that computes one, that of the second class: what is left of one, or the negative.
    pub(super) fn pair(
        self,
        c: &mut Context<'_, '_>,
        score: ValueId,
        of_one: bool,
    ) -> Result<ValueId, OpError> {
        let (first, second) = match self {
            Self::Logistic => {
                let negative = c.unary(Unary::Neg, score)?;
                (c.unary(Unary::Sigmoid, negative)?, c.unary(Unary::Sigmoid, score)?)
            }
            Self::Probit => return Err(c.unsupported("PROBIT of a single score of two classes")),
            Self::Nothing | Self::Softmax | Self::SoftmaxZero => {
                let first = c.unary(Unary::Neg, score)?;
                (if of_one { c.shifted(first, 1.0)? } else { first }, score)
            }
        };
        c.concat(1, &[first, second])
    }
}

fn unknown(c: &Context<'_, '_>, name: &str) -> OpError {
    let known: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
    c.invalid(format!("post_transform must be one of {}; got {name}", known.join(", ")))
}

fn softmax_zero(c: &mut Context<'_, '_>, x: ValueId) -> Result<ValueId, OpError> {
    let size = c.unary(Unary::Abs, x)?;
    let least = c.scalar_like(x, 1e-7)?;
    let counts = c.binary(Binary::Greater, size, least)?;
    let most = c.reduce(ReduceOp::Max, x, vec![1], true)?;
    let powers = c.minus(x, most)?;
    let powers = c.unary(Unary::Exp, powers)?;
    let zero = c.scalar_like(x, 0.0)?;
    let powers = c.select(counts, powers, zero)?;
    let sum = c.reduce(ReduceOp::Sum, powers, vec![1], true)?;
    c.over(powers, sum)
}

/// √2·erf⁻¹(2x - 1), the inverse by Winitzki's approximation with the constants that onnxruntime has.
fn probit(c: &mut Context<'_, '_>, x: ValueId) -> Result<ValueId, OpError> {
    const A: f64 = 0.147;
    #[allow(clippy::approx_constant)] // onnxruntime's own.
    const PI: f64 = 3.14159;
    let y = c.scaled(x, 2.0)?;
    let y = c.shifted(y, -1.0)?;
    let square = c.times(y, y)?;
    let rest = c.unary(Unary::Neg, square)?;
    let rest = c.shifted(rest, 1.0)?;
    let log = c.unary(Unary::Log, rest)?;
    let half = c.scaled(log, 0.5)?;
    let half = c.shifted(half, 2.0 / (PI * A))?;
    let square = c.times(half, half)?;
    let share = c.scaled(log, 1.0 / A)?;
    let root = c.minus(square, share)?;
    let root = c.unary(Unary::Sqrt, root)?;
    let root = c.minus(root, half)?;
    let root = c.unary(Unary::Sqrt, root)?;
    let sign = c.unary(Unary::Sign, y)?;
    let inverse = c.times(sign, root)?;
    c.scaled(inverse, SQRT_2)
}
