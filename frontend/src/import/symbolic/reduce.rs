//! Reductions and scans in symbols.

use super::{Abstract, Affine, coordinates, position, uniform_of};
use crate::dim::Dim;
use crate::op::{CumulativeOp, ReduceOp};
use crate::types::TensorType;

pub(in crate::import) fn reduce(
    x: &Abstract,
    op: ReduceOp,
    axes: &[usize],
    result: &TensorType,
) -> Option<Abstract> {
    match x {
        Abstract::Elements { shape, items } => reduce_items(shape, items, op, axes, result),
        Abstract::Affine(affine) => {
            let value = reduce_affine(affine, op, axes)?;
            Some(uniform_of(result, value))
        }
    }
}

fn reduce_items(
    shape: &[usize],
    items: &[Dim],
    op: ReduceOp,
    axes: &[usize],
    result: &TensorType,
) -> Option<Abstract> {
    let kept: Vec<usize> =
        shape.iter().enumerate().map(|(i, &n)| if axes.contains(&i) { 1 } else { n }).collect();
    let mut sums: Vec<Option<Dim>> = vec![None; kept.iter().product()];
    for (i, item) in items.iter().enumerate() {
        let mut place = coordinates(i, shape);
        for &axis in axes {
            place[axis] = 0;
        }
        let sum = &mut sums[position(&place, &kept)];
        *sum = Some(match (sum.take(), op) {
            (None, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min) => item.clone(),
            (Some(sum), ReduceOp::Sum) => sum + item,
            (Some(sum), ReduceOp::Prod) => sum * item,
            (Some(sum), ReduceOp::Max) => sum.maximum(item),
            (Some(sum), ReduceOp::Min) => sum.minimum(item),
            _ => return None,
        });
    }
    let empty = match op {
        ReduceOp::Sum => Some(Dim::from(0)),
        ReduceOp::Prod => Some(Dim::from(1)),
        _ => None,
    };
    let items = sums.into_iter().map(|sum| sum.or_else(|| empty.clone())).collect::<Option<_>>()?;
    Some(Abstract::Elements { shape: result.known_shape()?, items })
}

/// The one value that all reduced elements have.
fn reduce_affine(affine: &Affine, op: ReduceOp, axes: &[usize]) -> Option<Dim> {
    let rest = (0..affine.dims.len()).filter(|axis| !axes.contains(axis));
    if !rest.into_iter().all(|axis| affine.strides[axis] == 0) {
        return None;
    }
    let count = axes.iter().map(|&axis| &affine.dims[axis]).product::<Dim>();
    match op {
        ReduceOp::Sum if affine.is_uniform() => Some(&affine.offset * &count),
        ReduceOp::Mean if affine.is_uniform() => Some(affine.offset.clone()),
        ReduceOp::Max if count.lower_bound()? >= 1 => Some(affine.range()?.1),
        ReduceOp::Min if count.lower_bound()? >= 1 => Some(affine.range()?.0),
        _ => None,
    }
}

pub(in crate::import) fn cumulative(
    x: &Abstract,
    op: CumulativeOp,
    axis: usize,
    exclusive: bool,
    reverse: bool,
) -> Option<Abstract> {
    if op == CumulativeOp::Prod {
        return None;
    }
    match x {
        Abstract::Elements { shape, items } => {
            let mut sums = vec![Dim::from(0); items.len()];
            let inner: usize = shape[axis + 1..].iter().product();
            let order: Vec<usize> = match reverse {
                false => (0..items.len()).collect(),
                true => (0..items.len()).rev().collect(),
            };
            for i in order {
                let at = coordinates(i, shape)[axis];
                let before = match reverse {
                    false => (at > 0).then(|| i - inner),
                    true => (at + 1 < shape[axis]).then(|| i + inner),
                };
                let so_far = before.map_or(Dim::from(0), |before| match exclusive {
                    true => &sums[before] + &items[before],
                    false => sums[before].clone(),
                });
                sums[i] = if exclusive { so_far } else { so_far + &items[i] };
            }
            Some(Abstract::Elements { shape: shape.clone(), items: sums })
        }
        Abstract::Affine(affine) if affine.is_uniform() => {
            let value = &affine.offset;
            let first = if exclusive { Dim::from(0) } else { value.clone() };
            let mut sums = affine.clone();
            sums.strides[axis] = value.clone();
            sums.offset = first;
            if reverse {
                let last = &affine.dims[axis] - &Dim::from(1);
                sums.offset = sums.offset + value * last;
                sums.strides[axis] = -value;
            }
            Some(Abstract::of_affine(sums))
        }
        Abstract::Affine(_) => None,
    }
}
