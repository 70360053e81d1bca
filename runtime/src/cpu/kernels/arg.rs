//! Where along an axis the largest elements are, or the smallest.

use super::view::{check_size, elements};
use crate::cpu::scratch;
use crate::error::{Error, Result};
use crate::threads::{self, chunks, chunks_mut};
use bytemuck::Pod;

/// Work of fewer elements than this stays on one thread.
const PARALLEL: usize = 1 << 15;

/// Writes to `dst`, contiguous of `[outer, inner]`, for each of its places which of the middle axis' elements of `src`,
/// contiguous of `[outer, size, inner]`, is the largest, or the smallest if not `largest`. NaN counts as either; of equal
/// ones the first is taken, or the `last`.
///
/// # Errors
/// [`Error::Unsupported`] if the axis is empty; [`Error::Mismatch`] if a slice is not as long as its shape.
pub fn arg_reduce<T: Pod + PartialOrd + Send + Sync>(
    dst: &mut [i64],
    src: &[T],
    [outer, size, inner]: [usize; 3],
    largest: bool,
    last: bool,
) -> Result<()> {
    if size == 0 {
        return Err(Error::Unsupported { what: "the largest or smallest of no elements" });
    }
    check_size(
        "length of the operand",
        elements("the operand", &[outer, size, inner])?,
        src.len(),
    )?;
    check_size("length of the result", elements("the result", &[outer, inner])?, dst.len())?;
    if dst.is_empty() {
        return Ok(());
    }
    match (largest, last) {
        (true, false) => each::<T, true, false>(dst, src, size, inner),
        (true, true) => each::<T, true, true>(dst, src, size, inner),
        (false, false) => each::<T, false, false>(dst, src, size, inner),
        (false, true) => each::<T, false, true>(dst, src, size, inner),
    }
}

fn each<T: Pod + PartialOrd + Send + Sync, const LARGEST: bool, const LAST: bool>(
    dst: &mut [i64],
    src: &[T],
    size: usize,
    inner: usize,
) -> Result<()> {
    let least = PARALLEL.div_ceil(size * inner);
    // What is best so far: of rows that lie whole it needs no memory.
    let mut best = scratch::take::<T>(if inner == 1 { 0 } else { dst.len() })?;
    let blocks = (chunks_mut(dst, inner), chunks(src, size * inner));
    if inner == 1 {
        threads::each(least, blocks, |_, (places, row)| {
            places[0] = of_row::<T, LARGEST, LAST>(row) as i64
        });
        return Ok(());
    }
    let blocks = (blocks.0, blocks.1, chunks_mut(&mut best, inner));
    threads::each(least, blocks, |_, (places, rows, best)| {
        let (first, others) = rows.split_at(inner);
        best.copy_from_slice(first);
        places.fill(0);
        for (row, number) in others.chunks(inner).zip(1..) {
            for ((place, best), &new) in places.iter_mut().zip(&mut *best).zip(row) {
                if beats::<T, LARGEST, LAST>(new, *best) {
                    (*place, *best) = (number, new);
                }
            }
        }
    });
    Ok(())
}

fn of_row<T: Copy + PartialOrd, const LARGEST: bool, const LAST: bool>(row: &[T]) -> usize {
    let (mut place, mut best) = (0, row[0]);
    for (number, &new) in row.iter().enumerate().skip(1) {
        if beats::<T, LARGEST, LAST>(new, best) {
            (place, best) = (number, new);
        }
    }
    place
}

/// Whether an element is taken rather than one before it.
#[inline(always)]
fn beats<T: Copy + PartialOrd, const LARGEST: bool, const LAST: bool>(new: T, old: T) -> bool {
    let further = if LARGEST { new > old } else { new < old };
    further || (LAST && new == old) || (is_nan(new) && (LAST || !is_nan(old)))
}

#[inline(always)]
fn is_nan<T: PartialOrd>(x: T) -> bool {
    x.partial_cmp(&x).is_none()
}

#[cfg(test)]
mod tests {
    use super::arg_reduce;

    #[test]
    fn places_are_of_the_largest_or_smallest() {
        let nan = f32::NAN;
        let rows = [
            [1.0, 3.0, 2.0, 3.0],
            [-1.0, -3.0, -3.0, 0.0],
            [nan, 9.0, nan, -9.0],
            [f32::NEG_INFINITY; 4],
        ];
        let places = |largest, last| {
            let mut dst = [9; 4];
            arg_reduce(&mut dst, rows.as_flattened(), [4, 4, 1], largest, last).unwrap();
            // The same by columns.
            let columns: Vec<f32> = (0..16).map(|i| rows[i % 4][i / 4]).collect();
            let mut across = [9; 4];
            arg_reduce(&mut across, &columns, [1, 4, 4], largest, last).unwrap();
            assert_eq!(dst, across);
            dst
        };
        assert_eq!(places(true, false), [1, 3, 0, 0]);
        assert_eq!(places(true, true), [3, 3, 2, 3]);
        assert_eq!(places(false, false), [0, 1, 0, 0]);
        assert_eq!(places(false, true), [0, 2, 2, 3]);
    }

    #[test]
    fn nothing_has_no_largest() {
        assert!(arg_reduce(&mut [0; 2], &[0.0; 0], [2, 0, 1], true, false).is_err());
        assert!(arg_reduce(&mut [0; 2], &[1.0; 3], [2, 2, 1], true, false).is_err());
        assert!(arg_reduce(&mut [0; 3], &[1.0; 4], [2, 2, 1], true, false).is_err());
        arg_reduce(&mut [], &[0.0; 0], [0, 3, 2], true, false).unwrap();
        arg_reduce(&mut [], &[0.0; 0], [2, 3, 0], true, false).unwrap();
    }
}
