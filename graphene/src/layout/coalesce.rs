//! Fewer modes for the same function.

use super::{Int, IntTuple, Layout, Leaf, Stride};
use crate::error::{Error, Result};

/// The layout with the fewest modes that is the same function on `[0,size)`; depth at most 1.
pub fn coalesce<I: Int>(layout: &Layout<I>) -> Result<Layout<I>> {
    let mut merged: Vec<Leaf<I>> = Vec::new();
    for leaf in layout.leaves().into_iter().filter(|leaf| !leaf.size.equals(1)) {
        match merged.last_mut() {
            Some(last) if continues(last, &leaf.stride) => {
                last.size = last.size.times(&leaf.size)?
            }
            Some(_) | None => merged.push(leaf.clone()),
        }
    }
    Layout::flat(merged)
}

/// Coalesces each part of `layout` that stands at a leaf of `profile`; the integers in `profile`
/// do not matter, and modes beyond its rank stay as they are.
pub fn coalesce_by<I: Int>(layout: &Layout<I>, profile: &IntTuple) -> Result<Layout<I>> {
    let parts = match profile {
        IntTuple::Int(_) => return coalesce(layout),
        IntTuple::Tuple(parts) => parts,
    };
    let modes = layout.modes();
    if parts.len() > modes.len() {
        return Err(Error::Rank { op: "coalesce", modes: parts.len(), rank: modes.len() });
    }
    let mut result = Vec::with_capacity(modes.len());
    for (i, mode) in modes.iter().enumerate() {
        result.push(match parts.get(i) {
            Some(part) => coalesce_by(mode, part)?,
            None => mode.clone(),
        });
    }
    Layout::tuple(result)
}

/// The same leaves without their nesting: a leaf, or a tuple of leaves.
pub fn flatten<I: Int>(layout: &Layout<I>) -> Result<Layout<I>> {
    match layout.as_leaf() {
        Some(_) => Ok(layout.clone()),
        None => Layout::tuple(layout.leaves().into_iter().map(Layout::from).collect()),
    }
}

/// Whether a mode of this stride goes on where `last` ends.
pub(super) fn continues<I: Int>(last: &Leaf<I>, stride: &Stride<I>) -> bool {
    last.stride.times(&last.size).is_ok_and(|end| end == *stride)
}
