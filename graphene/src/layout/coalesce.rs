//! Fewer modes for the same function.

use super::{Int, IntTuple, Layout, Leaf, Stride};
use crate::{Error, Result};

/// The layout with the fewest modes that is the same function on `[0,size)`; depth at most 1.
pub fn coalesce<I: Int>(layout: &Layout<I>) -> Result<Layout<I>> {
    Layout::flat(merged(&layout.leaves())?)
}

/// Modes of more than one coordinate, those that continue one another as one.
pub(super) fn merged<I: Int>(leaves: &[&Leaf<I>]) -> Result<Vec<Leaf<I>>> {
    let mut merged: Vec<Leaf<I>> = Vec::new();
    for &leaf in leaves.iter().filter(|leaf| !leaf.size.equals(1)) {
        match merged.last_mut() {
            Some(last) if continues(last, &leaf.stride) => {
                last.size = last.size.times(&leaf.size)?
            }
            _ => merged.push(leaf.clone()),
        }
    }
    Ok(merged)
}

/// Coalesces each part that stands at a leaf of `profile`, whose integers do not matter. Modes beyond its rank stay.
pub fn coalesce_by<I: Int>(layout: &Layout<I>, profile: &IntTuple) -> Result<Layout<I>> {
    let IntTuple::Tuple(parts) = profile else { return coalesce(layout) };
    let modes = reached("coalesce", layout, parts)?.iter().enumerate();
    let part = |(i, mode): (usize, &Layout<I>)| match parts.get(i) {
        Some(part) => coalesce_by(mode, part),
        None => Ok(mode.clone()),
    };
    Layout::tuple(modes.map(part).collect::<Result<_>>()?)
}

/// The modes of a layout, of which a tuple must not have more.
pub(super) fn reached<'a, I: Int, T>(
    op: &'static str,
    layout: &'a Layout<I>,
    parts: &[T],
) -> Result<&'a [Layout<I>]> {
    if parts.len() > layout.rank() {
        return Err(Error::Rank { op, modes: parts.len(), rank: layout.rank() });
    }
    Ok(layout.modes())
}

/// The same leaves without their nesting: a leaf, or a tuple of leaves.
pub fn flatten<I: Int>(layout: &Layout<I>) -> Result<Layout<I>> {
    if layout.as_leaf().is_some() {
        return Ok(layout.clone());
    }
    let leaf = |leaf: &Leaf<I>| Layout::leaf(leaf.size.clone(), leaf.stride.clone());
    Layout::tuple(layout.leaves().into_iter().map(leaf).collect())
}

/// Whether a mode of this stride goes on where `last` ends.
pub(super) fn continues<I: Int>(last: &Leaf<I>, stride: &Stride<I>) -> bool {
    last.stride.times(&last.size).is_ok_and(|end| end == *stride)
}
