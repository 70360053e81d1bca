//! Comparing dims: broadcast, joined, or held against a limit.

use super::InferError;
use crate::dim::Dim;

/// Whether no sizes of the symbols make the two equal.
pub(super) fn never_equal(a: &Dim, b: &Dim) -> bool {
    let difference = a - b;
    difference.lower_bound().is_some_and(|low| low > 0)
        || difference.upper_bound().is_some_and(|high| high < 0)
}

/// The plainer of two dims that are one size: no size is negative, so beside `n - 1`, `max(0, n - 1)` is `n - 1`.
fn same<'a>(a: &'a Dim, b: &'a Dim) -> Option<&'a Dim> {
    let is = |dim: &Dim, plain: &Dim| dim == plain || *dim == plain.maximum(&Dim::from(0));
    if is(b, a) { Some(a) } else { Some(b).filter(|b| is(a, b)) }
}

/// Of two dims that must be equal, the one that says more.
pub(super) fn join(a: &Dim, b: &Dim) -> Result<Dim, InferError> {
    if let Some(dim) = same(a, b) {
        return Ok(dim.clone());
    }
    if never_equal(a, b) {
        return Err(InferError::Dims { a: a.clone(), b: b.clone() });
    }
    match (a.known(), b.known()) {
        (Some(_), _) => Ok(a.clone()),
        (None, Some(_)) => Ok(b.clone()),
        (None, None) => Err(unresolved(a, b)),
    }
}

/// Two shapes whose dims must be equal, joined.
pub(super) fn join_shapes(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, InferError> {
    if a.len() != b.len() {
        return Err(InferError::Dims { a: Dim::from(a.len()), b: Dim::from(b.len()) });
    }
    a.iter().zip(b).map(|(a, b)| join(a, b)).collect()
}

/// The shape that two shapes broadcast to, aligned at their ends.
pub(super) fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, InferError> {
    let rank = a.len().max(b.len());
    let one = Dim::from(1);
    let at = |shape: &[Dim], axis: usize| match (axis + shape.len()).checked_sub(rank) {
        Some(axis) => shape[axis].clone(),
        None => one.clone(),
    };
    let meet = |axis| match broadcast_dims(&at(a, axis), &at(b, axis)) {
        Ok(dim) => Ok(dim),
        Err(InferError::Dims { .. }) => Err(InferError::Broadcast { a: a.to_vec(), b: b.to_vec() }),
        Err(error) => Err(error),
    };
    (0..rank).map(meet).collect()
}

fn broadcast_dims(a: &Dim, b: &Dim) -> Result<Dim, InferError> {
    let one = Dim::from(1);
    if let Some(dim) = same(a, b) {
        return Ok(dim.clone());
    }
    if *b == one {
        return Ok(a.clone());
    }
    if *a == one {
        return Ok(b.clone());
    }
    if never_equal(a, b) && never_equal(a, &one) && never_equal(b, &one) {
        return Err(InferError::Dims { a: a.clone(), b: b.clone() });
    }
    match (a.known(), b.known()) {
        (Some(_), _) => Ok(a.clone()),
        (None, Some(_)) => Ok(b.clone()),
        (None, None) => Err(unresolved(a, b)),
    }
}

/// Refuses a shape that does not broadcast to `target` as it is.
pub(super) fn broadcasts_to(shape: &[Dim], target: &[Dim]) -> Result<(), InferError> {
    let refuse = || InferError::Broadcast { a: shape.to_vec(), b: target.to_vec() };
    let skip = target.len().checked_sub(shape.len()).ok_or_else(refuse)?;
    for (dim, target) in shape.iter().zip(&target[skip..]) {
        let one = Dim::from(1);
        if same(dim, target).is_some() || *dim == one {
            continue;
        }
        if never_equal(dim, target) && never_equal(dim, &one) {
            return Err(refuse());
        }
        if dim.known().is_none() && target.known().is_none() {
            return Err(unresolved(dim, target));
        }
    }
    Ok(())
}

/// Refuses a dim that is larger than the limit for all sizes.
pub(super) fn at_most(dim: &Dim, limit: &Dim) -> Result<(), InferError> {
    if (dim - limit).lower_bound().is_some_and(|over| over > 0) {
        return Err(InferError::Exceeds { dim: dim.clone(), limit: limit.clone() });
    }
    Ok(())
}

/// The error for dims that only sizes can compare.
pub(super) fn unresolved(a: &Dim, b: &Dim) -> InferError {
    InferError::Unresolved { a: a.clone(), b: b.clone() }
}
