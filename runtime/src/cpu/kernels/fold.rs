//! Reductions of numbers of any form over any axes: each result takes its elements in row-major order, as in the
//! reference evaluator.

use super::view::{Axes, check_size, elements};
use crate::error::Result;
use crate::threads::{self, chunks_mut};

/// Elements that a thread takes at least.
const LEAST: usize = 1 << 14;

/// Sizes and strides of some axes, and places in them by number.
#[derive(Default)]
struct Space(Axes<(usize, usize)>);

impl Space {
    fn len(&self) -> usize {
        self.0.iter().map(|&(size, _)| size).product()
    }

    fn place(&self, mut number: usize) -> usize {
        let mut place = 0;
        for &(size, stride) in self.0.iter().rev() {
            place += number % size * stride;
            number /= size;
        }
        place
    }
}

/// Writes to `dst`, contiguous of the shape without the axes, what `meet` makes of the elements of `src`, contiguous of
/// `shape`, along them: from `initial` on, with the number of the result. The axes are ascending.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if a slice is not as long as its shape.
pub(crate) fn fold<N: Copy + Sync, A: Copy + Send + Sync>(
    dst: &mut [A],
    src: &[N],
    shape: &[usize],
    axes: &[usize],
    initial: A,
    meet: impl Fn(A, N, usize) -> A + Sync,
) -> Result<()> {
    check_size("length of the operand", elements("the operand", shape)?, src.len())?;
    let (mut kept, mut folded, mut stride) = (Space::default(), Space::default(), 1);
    let mut sizes: Axes<(bool, usize, usize)> = Axes::new();
    for (axis, &size) in shape.iter().enumerate().rev() {
        let is_folded = axes.contains(&axis);
        match sizes.last_mut() {
            // Neighbours of one kind are one axis.
            Some((own, merged, _)) if *own == is_folded => *merged *= size,
            _ => sizes.push((is_folded, size, stride)),
        }
        stride *= size;
    }
    // Along the last axis elements, or results, lie side by side.
    let mut side_by_side = (1, 1);
    for (number, &(is_folded, size, stride)) in sizes.iter().enumerate() {
        match (number, is_folded) {
            (0, true) => side_by_side.0 = size,
            (0, false) => side_by_side.1 = size,
            (_, true) => folded.0.insert(0, (size, stride)),
            (_, false) => kept.0.insert(0, (size, stride)),
        }
    }
    let (run, width) = side_by_side;
    check_size("length of the result", kept.len() * width, dst.len())?;
    dst.fill(initial);
    if src.is_empty() {
        return Ok(());
    }
    let count = folded.len();
    let least = (LEAST / (count * run * width)).max(1);
    threads::each(least, chunks_mut(dst, width), |number, results| {
        let base = kept.place(number);
        for place in (0..count).map(|number| base + folded.place(number)) {
            let first = number * width;
            if width == 1 {
                let row = &src[place..][..run];
                results[0] = row.iter().fold(results[0], |result, &x| meet(result, x, first));
            } else {
                let row = results.iter_mut().zip(&src[place..][..width]).enumerate();
                row.for_each(|(i, (result, &x))| *result = meet(*result, x, first + i));
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::fold;

    #[test]
    fn elements_meet_over_any_axes() {
        let x: Vec<i64> = (0..24).collect();
        let sum = |axes: &[usize], len: usize| {
            let mut dst = vec![0; len];
            fold(&mut dst, &x, &[2, 3, 4], axes, 100, |sum, x, _| sum + x).map(|()| dst)
        };
        assert_eq!(sum(&[0, 1, 2], 1).unwrap(), [376]);
        assert_eq!(sum(&[0], 12).unwrap()[..3], [112, 114, 116]);
        assert_eq!(sum(&[1], 8).unwrap()[..2], [112, 115]);
        assert_eq!(sum(&[2], 6).unwrap()[..2], [106, 122]);
        assert_eq!(sum(&[0, 2], 3).unwrap(), [160, 192, 224]);
        assert_eq!(sum(&[], 24).unwrap()[..2], [100, 101]);
        assert!(sum(&[2], 5).is_err());
        let mut none = [0; 2];
        fold(&mut none, &[0_i64; 0], &[2, 0], &[1], 7, |sum, x, _| sum + x).unwrap();
        assert_eq!(none, [7, 7]);
    }
}
