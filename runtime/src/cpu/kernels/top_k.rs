//! Where along an axis the largest elements are, or the smallest, in order.

use super::number::Number;
use super::view::{check_size, elements};
use crate::cpu::scratch;
use crate::error::{Error, Result};
use crate::threads::{self, chunks_mut};
use std::cmp::Ordering;

/// Elements that a thread orders at least.
const LEAST: usize = 1 << 12;

/// Writes to `ranks`, for each column of `src`, contiguous of `[outer, size, inner]`, which of the middle axis' elements
/// are the `k` largest, descending, or the smallest, ascending: the columns one after the other, in the order of `[outer,
/// inner]`. NaN is larger than all numbers; of equal ones the first comes first.
///
/// # Errors
/// [`Error::Mismatch`] if a slice is not as long as its shape, or the axis has not as many elements; [`Error::Memory`].
pub(crate) fn top_k<N: Number>(
    ranks: &mut [usize],
    src: &[N],
    [outer, size, inner]: [usize; 3],
    k: usize,
    largest: bool,
) -> Result<()> {
    check_size("length of the operand", elements("it", &[outer, size, inner])?, src.len())?;
    check_size("length of the result", elements("it", &[outer, k, inner])?, ranks.len())?;
    if k > size {
        return Err(Error::Mismatch { what: "elements along the axis", expected: k, found: size });
    }
    if ranks.is_empty() {
        return Ok(());
    }
    let mut orders = scratch::take::<usize>(threads::count() * size)?;
    let least = LEAST.div_ceil(size);
    threads::try_each_within(&mut orders, least, chunks_mut(ranks, k), |order, column, to| {
        let column = column / inner * size * inner + column % inner;
        let value = |i: usize| src[column + i * inner];
        let before = |&a: &usize, &b: &usize| -> Ordering {
            let order = value(a).order(value(b));
            (if largest { order.reverse() } else { order }).then(a.cmp(&b))
        };
        order.iter_mut().enumerate().for_each(|(i, own)| *own = i);
        if k < size {
            order.select_nth_unstable_by(k, before);
        }
        order[..k].sort_unstable_by(before);
        to.copy_from_slice(&order[..k]);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::top_k;

    #[test]
    fn ranks_are_of_the_largest_or_smallest() {
        let nan = f64::NAN;
        let x = [1.0, 3.0, nan, 3.0, -1.0];
        let ranks = |k, largest| {
            let mut ranks = vec![9; k];
            top_k(&mut ranks, &x, [1, 5, 1], k, largest).unwrap();
            ranks
        };
        assert_eq!(ranks(3, true), [2, 1, 3]);
        assert_eq!(ranks(5, true), [2, 1, 3, 0, 4]);
        assert_eq!(ranks(4, false), [4, 0, 1, 3]);
        assert_eq!(ranks(0, false), [0; 0]);
        let mut columns = [9; 4];
        top_k(&mut columns, &[5_u64, 1, 2, u64::MAX, 4, 4], [1, 3, 2], 2, true).unwrap();
        assert_eq!(columns, [0, 2, 1, 2]);
        assert!(top_k(&mut [0; 3], &[1_i64, 2], [1, 2, 1], 3, true).is_err());
        top_k::<i64>(&mut [], &[], [0, 2, 1], 1, true).unwrap();
    }
}
