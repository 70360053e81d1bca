//! Where strided views reach, checked once before a loop starts.

use crate::error::{Error, Result};
use smallvec::SmallVec;

pub(crate) use crate::reach::{Axis, check_reach};

/// One value an axis; more than eight of them need memory of their own.
pub(crate) type Axes<T> = SmallVec<[T; 8]>;

/// Checks that no two indices of `axes` are at one place: sorted by stride, each axis must step over
/// all that the shorter ones reach. (Layouts that interleave without colliding otherwise exist; no
/// tensor program has them.)
///
/// # Errors
/// [`Error::Overlap`], naming `what`.
pub(crate) fn check_disjoint(
    what: &'static str,
    axes: impl IntoIterator<Item = Axis>,
) -> Result<()> {
    let mut axes: Axes<Axis> = axes.into_iter().collect();
    if axes.iter().any(|&(size, _)| size == 0) {
        return Ok(());
    }
    axes.retain(|&mut (size, _)| size > 1);
    axes.sort_unstable_by_key(|&(_, stride)| stride.unsigned_abs());
    let mut reach = 0i128;
    for (size, stride) in axes {
        let stride = (stride as i128).abs();
        if stride <= reach {
            return Err(Error::Overlap { what });
        }
        reach = reach.saturating_add((size as i128 - 1) * stride);
    }
    Ok(())
}

/// The number of elements of a shape.
///
/// # Errors
/// [`Error::TooLarge`], naming `what`, if it passes `usize::MAX`.
pub(crate) fn elements(what: &'static str, shape: &[usize]) -> Result<usize> {
    if shape.contains(&0) {
        return Ok(0);
    }
    let product = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    product.ok_or(Error::TooLarge { what })
}

/// Checks that two sizes agree.
///
/// # Errors
/// [`Error::Mismatch`], naming `what`.
pub(crate) fn check_size(what: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Mismatch { what, expected, found }) }
}

/// The strides of a row-major shape, in elements. The product of the sizes must fit `isize`, which
/// [`elements`] of any existing slice does; sizes of zero count as one.
pub(crate) fn row_major(shape: &[usize]) -> Axes<isize> {
    let mut strides: Axes<isize> = SmallVec::from_elem(1_isize, shape.len());
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i].max(1) as isize);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::{check_disjoint, check_reach, elements};

    #[test]
    fn reach_counts_negative_strides() {
        assert!(check_reach("x", 6, 5, [(2, -3), (3, -1)]).is_ok());
        assert!(check_reach("x", 6, 4, [(2, -3), (3, -1)]).is_err());
        assert!(check_reach("x", 6, 0, [(2, 3), (3, 1)]).is_ok());
        assert!(check_reach("x", 5, 0, [(2, 3), (3, 1)]).is_err());
        assert!(check_reach("x", 0, 9, [(0, 3), (3, 1)]).is_ok());
        assert!(check_reach("x", 0, 0, []).is_err());
        assert!(check_reach("x", 9, 0, [(usize::MAX, isize::MAX), (usize::MAX, 7)]).is_err());
        assert!(check_reach("x", 9, 0, [(usize::MAX, isize::MIN), (usize::MAX, -7)]).is_err());
    }

    #[test]
    fn disjoint_means_nested() {
        assert!(check_disjoint("x", [(2, 3), (3, 1)]).is_ok());
        assert!(check_disjoint("x", [(3, 1), (2, -3)]).is_ok());
        assert!(check_disjoint("x", [(2, 2), (3, 1)]).is_err());
        assert!(check_disjoint("x", [(2, 0), (3, 1)]).is_err());
        assert!(check_disjoint("x", [(1, 0), (3, 1)]).is_ok());
        assert!(check_disjoint("x", [(2, 0), (0, 1)]).is_ok());
    }

    #[test]
    fn element_counts_do_not_overflow() {
        assert_eq!(elements("x", &[]), Ok(1));
        assert_eq!(elements("x", &[usize::MAX, 2, 0]), Ok(0));
        assert!(elements("x", &[usize::MAX, 2]).is_err());
    }
}
