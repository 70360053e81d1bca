//! Running sums and products along an axis.

use super::view::{check_size, elements};
use crate::error::Result;
use crate::threads::{self, chunks_mut};

/// Elements that a thread takes at least.
const LEAST: usize = 1 << 14;

/// What runs along the axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cumulative<T> {
    /// What comes before all elements.
    pub(crate) initial: T,
    /// Takes in an element.
    pub(crate) meet: fn(T, T) -> T,
    /// Element i takes in those before it only.
    pub(crate) exclusive: bool,
    /// Runs from the end.
    pub(crate) reverse: bool,
}

/// Replaces the elements of `[outer, size, inner]` by what runs along the middle axis.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if the slice is not as long as its shape.
pub(crate) fn cumulative<T: Copy + Send + Sync>(
    of: Cumulative<T>,
    x: &mut [T],
    [outer, size, inner]: [usize; 3],
) -> Result<()> {
    let len = elements("running sums", &[outer, size, inner])?;
    check_size("length of running sums", len, x.len())?;
    let block = size.saturating_mul(inner);
    let least = LEAST.checked_div(block).unwrap_or(0).max(1);
    threads::each(least, chunks_mut(x, if len == 0 { 0 } else { block }), |_, x| {
        for column in 0..inner {
            let mut running = of.initial;
            for i in 0..size {
                let i = if of.reverse { size - 1 - i } else { i };
                let value = &mut x[column + i * inner];
                let next = (of.meet)(running, *value);
                *value = if of.exclusive { running } else { next };
                running = next;
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Cumulative, cumulative};

    #[test]
    fn sums_run_along_the_axis() {
        let run = |exclusive, reverse, sizes| {
            let mut x = [1, 2, 3, 4, 5, 6];
            let meet = |a: i32, b: i32| a + b;
            cumulative(Cumulative { initial: 0, meet, exclusive, reverse }, &mut x, sizes).unwrap();
            x
        };
        assert_eq!(run(false, false, [1, 6, 1]), [1, 3, 6, 10, 15, 21]);
        assert_eq!(run(true, false, [2, 3, 1]), [0, 1, 3, 0, 4, 9]);
        assert_eq!(run(false, true, [1, 3, 2]), [9, 12, 8, 10, 5, 6]);
        assert_eq!(run(true, true, [1, 2, 3]), [4, 5, 6, 0, 0, 0]);
    }
}
