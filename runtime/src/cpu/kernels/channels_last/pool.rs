//! Windows folded, all channels of one at a time.

use super::{Images, Moves};
use crate::cpu::kernels::pool::{Pool, larger};
use crate::cpu::kernels::simd::{Kernel, dispatch};
use crate::cpu::kernels::view::{check_reach, check_size};
use crate::error::{Error, Result};
use crate::threads::{self, chunks_mut};
use pulp::Simd;

/// Elements that a thread takes at least, where several do.
const SOME: usize = 1 << 12;

/// Folds the windows on images whose channels are side by side to `y[n, h, w, c]`.
///
/// # Errors
/// [`Error::Mismatch`] for a `y` of another length, [`Error::OutOfBounds`] for images that leave their slice, and
/// [`Error::Unsupported`] for channels that are not side by side, and for powers.
pub(crate) fn pool(kind: Pool, y: &mut [f32], x: Images<'_>, moves: &Moves) -> Result<()> {
    match kind {
        Pool::Max => folded(y, x, moves, f32::NEG_INFINITY, larger),
        Pool::Sum => folded(y, x, moves, 0.0, |y, x| y + x),
        Pool::Powers(_) => Err(Error::Unsupported { what: "a pooling of such images" }),
    }
}

/// The largest of each window, likewise, of integers; `least` of nothing.
///
/// # Errors
/// As [`pool`].
pub(crate) fn largest<T: Copy + Ord + Send + Sync>(
    y: &mut [T],
    x: Images<'_, T>,
    moves: &Moves,
    least: T,
) -> Result<()> {
    folded(y, x, moves, least, T::max)
}

fn folded<T: Copy + Send + Sync>(
    y: &mut [T],
    x: Images<'_, T>,
    moves: &Moves,
    init: T,
    f: impl Fn(T, T) -> T + Copy + Sync,
) -> Result<()> {
    check_reach("the images", x.data.len(), x.offset, x.shape.into_iter().zip(x.strides))?;
    let [images, channels, _, _] = x.shape;
    check_size(
        "length of a pooling",
        images * channels * moves.outer[0] * moves.outer[1],
        y.len(),
    )?;
    if x.strides[1] != 1 && channels > 1 {
        return Err(Error::Unsupported { what: "a pooling of such images" });
    }
    let line = moves.outer[1] * channels;
    threads::each(SOME / line.max(1) + 1, chunks_mut(y, line), |number, y| {
        dispatch(Line { number, y, x, moves, init, f });
    });
    Ok(())
}

/// A row of windows.
struct Line<'a, T, F> {
    number: usize,
    y: &'a mut [T],
    x: Images<'a, T>,
    moves: &'a Moves,
    init: T,
    f: F,
}

impl<T: Copy, F: Fn(T, T) -> T> Kernel for Line<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Self { number, y, x, moves, init, f } = self;
        let [_, channels, rows, columns] = x.shape;
        let (image, line) = (number / moves.outer[0], number % moves.outer[0]);
        let first = |axis: usize, at: usize| {
            (at * moves.strides[axis]) as isize - moves.before[axis] as isize
        };
        y.fill(init);
        for (window, y) in y.chunks_exact_mut(channels).enumerate() {
            for down in 0..moves.kernel[0] {
                let row = first(0, line) + (down * moves.dilations[0]) as isize;
                for across in 0..moves.kernel[1] {
                    let column = first(1, window) + (across * moves.dilations[1]) as isize;
                    if row as usize >= rows || column as usize >= columns {
                        continue;
                    }
                    let at = x.offset as isize
                        + image as isize * x.strides[0]
                        + row * x.strides[2]
                        + column * x.strides[3];
                    let x = &x.data[at as usize..][..channels];
                    y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(*y, x));
                }
            }
        }
    }
}
