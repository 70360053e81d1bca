//! Fewer modes for the same function.

use super::{IntTuple, Layout};
use crate::error::{Error, Result};

/// The layout with the fewest modes that is the same function on `[0,size)`; depth at most 1.
pub fn coalesce(layout: &Layout) -> Result<Layout> {
    let mut merged: Vec<(i64, i64)> = Vec::new();
    for (size, stride) in layout.leaves() {
        if size == 1 {
            continue;
        }
        match merged.last_mut() {
            Some(last) if continues(*last, stride) => last.0 *= size,
            Some(_) | None => merged.push((size, stride)),
        }
    }
    Layout::flat(&merged)
}

/// Coalesces each part of `layout` that stands at a leaf of `profile`; the integers in `profile`
/// do not matter, and modes beyond its rank stay as they are.
pub fn coalesce_by(layout: &Layout, profile: &IntTuple) -> Result<Layout> {
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

/// The same leaves without their nesting.
pub fn flatten(layout: &Layout) -> Result<Layout> {
    Layout::flat(&layout.leaves())
}

/// Whether a mode of this stride goes on where `(size, stride)` ends.
pub(super) fn continues(last: (i64, i64), stride: i64) -> bool {
    i128::from(last.0) * i128::from(last.1) == i128::from(stride)
}
