//! Operations in symbols: our own, not ONNX's, so that every operator that expands into them takes part.

use super::Builder;
use crate::dim::Dim;
use crate::graph::ValueId;
use crate::import::symbolic::{
    Abstract, Affine, exact_integers, movement, pointwise, reduce, uniform_of,
};
use crate::op::{Binary, Op, Unary};
use crate::types::TensorType;

/// The elements of the only output of `op`, which has type `result`, if they are known in symbols.
pub(super) fn evaluate(
    builder: &mut Builder,
    op: &Op,
    inputs: &[Option<ValueId>],
    result: &TensorType,
) -> Option<Abstract> {
    let elements = evaluate_op(builder, op, inputs, result)?;
    let exact = exact_integers(result.dtype);
    let fits = |dim: &Dim| dim.known().is_none_or(|x| x.unsigned_abs() <= exact.unsigned_abs());
    let fits = match &elements {
        Abstract::Elements { items, .. } => items.iter().all(fits),
        Abstract::Affine(affine) => fits(&affine.offset),
    };
    (fits && elements.dims() == result.shape).then_some(elements)
}

fn evaluate_op(
    builder: &mut Builder,
    op: &Op,
    inputs: &[Option<ValueId>],
    result: &TensorType,
) -> Option<Abstract> {
    let value = |i: usize| inputs.get(i).copied().flatten();
    match op {
        Op::Iota(n) => Some(Abstract::of_affine(Affine {
            dims: vec![n.clone()],
            strides: vec![Dim::from(1)],
            offset: Dim::from(0),
        })),
        Op::Size(dim) => Some(Abstract::scalar(dim.clone())),
        Op::Unary(unary @ (Unary::Floor | Unary::Ceil)) => {
            let x = value(0)?;
            match quotient(builder, x) {
                Some((a, b)) => pointwise::rounded_quotient(*unary, &a, &b, result),
                None => pointwise::unary(*unary, &builder.fact(x)?),
            }
        }
        Op::Unary(unary) => pointwise::unary(*unary, &builder.fact(value(0)?)?),
        Op::Binary(binary) => {
            let (a, b) = (builder.fact(value(0)?)?, builder.fact(value(1)?)?);
            pointwise::binary(*binary, &a, &b, builder.ty(value(0)?).dtype, result)
        }
        Op::Select => {
            let condition = builder.fact(value(0)?)?;
            let (a, b) = (builder.fact(value(1)?)?, builder.fact(value(2)?)?);
            pointwise::select(&condition, &a, &b, result)
        }
        Op::Cast { to, saturate: _ } => {
            let x = value(0)?;
            if to.is_integer()
                && let Some((a, b)) = quotient(builder, x)
            {
                // Truncation is rounding down where nothing is negative, which the division demands.
                return pointwise::rounded_quotient(Unary::Floor, &a, &b, result);
            }
            pointwise::cast(&builder.fact(x)?, *to)
        }
        Op::Reshape(_) => movement::reshape(&builder.fact(value(0)?)?, result),
        Op::Transpose(perm) => movement::transpose(&builder.fact(value(0)?)?, perm),
        Op::Expand(_) => movement::expand(&builder.fact(value(0)?)?, result),
        Op::Slice(axes) => movement::slice(&builder.fact(value(0)?)?, axes),
        Op::Concat { axis } => {
            let parts: Option<Vec<_>> = inputs.iter().map(|v| builder.fact((*v)?)).collect();
            movement::concat(&parts?, *axis, result)
        }
        Op::Gather { axis } => {
            let x = builder.fact(value(0)?)?;
            if let Some(uniform) = x.uniform() {
                return Some(uniform_of(result, uniform));
            }
            movement::gather(&x, &builder.fact(value(1)?)?, *axis, result)
        }
        Op::GatherElements { .. } | Op::GatherNd { .. } => {
            Some(uniform_of(result, builder.fact(value(0)?)?.uniform()?))
        }
        Op::Reduce { op, axes, keep: _ } => {
            reduce::reduce(&builder.fact(value(0)?)?, *op, axes, result)
        }
        Op::Cumulative { op, axis, exclusive, reverse } => {
            reduce::cumulative(&builder.fact(value(0)?)?, *op, *axis, *exclusive, *reverse)
        }
        _ => None,
    }
}

/// The operands of the division of real numbers behind a value that is no integer itself.
fn quotient(builder: &mut Builder, value: ValueId) -> Option<(Abstract, Abstract)> {
    if !builder.ty(value).dtype.is_float() || builder.fact(value).is_some() {
        return None;
    }
    let node = builder.graph.node(value.node);
    let (Op::Binary(Binary::Div), [Some(a), Some(b)]) = (node.op(), node.inputs()) else {
        return None;
    };
    let (a, b) = (*a, *b);
    Some((builder.fact(a)?, builder.fact(b)?))
}
