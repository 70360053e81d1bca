//! Whether a view stays within what it looks at.

use crate::error::{Error, Result};

/// The size of an axis, and the distance between two of its elements.
pub(crate) type Axis = (usize, isize);

/// Checks that `offset` plus any index of `axes` lies in `0..len`. A view without elements reaches
/// nothing.
///
/// # Errors
/// [`Error::OutOfBounds`], naming `what`.
pub(crate) fn check_reach(
    what: &'static str,
    len: usize,
    offset: usize,
    axes: impl IntoIterator<Item = Axis>,
) -> Result<()> {
    let (mut low, mut high) = (offset as i128, offset as i128);
    for (size, stride) in axes {
        if size == 0 {
            return Ok(());
        }
        // Neither product overflows: both factors fit in 64 bits; nor does the sum of a few.
        let extent = (size as i128 - 1) * stride as i128;
        if extent < 0 {
            low = low.saturating_add(extent);
        } else {
            high = high.saturating_add(extent);
        }
    }
    if low < 0 {
        return Err(Error::OutOfBounds { what, needed: low, len });
    }
    if high >= len as i128 {
        return Err(Error::OutOfBounds { what, needed: high, len });
    }
    Ok(())
}
