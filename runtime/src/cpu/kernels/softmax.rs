//! Softmax and its logarithm. A row whose largest element is -∞ gives NaN, as the definition does;
//! terms below 10⁻³⁷ of the largest count as 0.

use super::math;
use super::simd::{Kernel, dispatch, max, sum};
use super::view::{check_size, elements};
use crate::cpu::scratch;
use crate::error::Result;
use crate::threads::{self, Parts as _, chunks, chunks_mut};
use graphene_frontend::eval::{HalfType, softmax_by_steps};
use pulp::Simd;

/// Tensors smaller than this run on the calling thread.
const PARALLEL: usize = 1 << 13;

/// The columns that the strided form holds in L1 at a time.
const COLUMNS: usize = 64;

/// The exponentials of a row that its logarithm holds at a time.
const BLOCK: usize = 256;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Softmax {
    /// eˣ / Σ eˣ.
    Plain,
    /// x - log Σ eˣ.
    Log,
}

/// Rows of so many elements, one after the other.
struct Rows<'a>(Softmax, &'a mut [f32], usize);

impl Kernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Rows(kind, rows, n) = self;
        for row in rows.chunks_exact_mut(n.max(1)) {
            let top = max(simd, row);
            match kind {
                Softmax::Plain => {
                    for x in row.iter_mut() {
                        *x = math::exp_flushed::<FMA>(*x - top);
                    }
                    let scale = 1.0 / sum(simd, row);
                    for x in row {
                        *x *= scale;
                    }
                }
                Softmax::Log => {
                    let mut total = 0.0;
                    for part in row.chunks(BLOCK) {
                        let mut block = [0f32; BLOCK];
                        for (e, &x) in block.iter_mut().zip(part) {
                            *e = math::exp_flushed::<FMA>(x - top);
                        }
                        total += sum(simd, &block);
                    }
                    let log = total.ln();
                    for x in row {
                        // The largest comes off first: it may be so large that top + log is top.
                        *x = *x - top - log;
                    }
                }
            }
        }
    }
}

/// Columns `first..` of `[axis, inner]`, at most [`COLUMNS`] of them, gathered to the front of
/// `block`.
struct Columns<'a>(Softmax, &'a mut [f32], usize);

impl Kernel for Columns<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Columns(kind, block, width) = self;
        let mut top = [f32::NEG_INFINITY; COLUMNS];
        for row in block.chunks_exact(width) {
            for (top, &x) in top.iter_mut().zip(row) {
                *top = if x > *top { x } else { *top };
            }
        }
        let mut sum = [0f32; COLUMNS];
        for row in block.chunks_exact_mut(width) {
            for ((sum, &top), x) in sum.iter_mut().zip(&top).zip(row) {
                let shifted = *x - top;
                let e = math::exp_flushed::<FMA>(shifted);
                *sum += e;
                *x = match kind {
                    Softmax::Plain => e,
                    Softmax::Log => shifted,
                };
            }
        }
        for sum in &mut sum {
            *sum = match kind {
                Softmax::Plain => 1.0 / *sum,
                Softmax::Log => math::log::<FMA>(*sum),
            };
        }
        for row in block.chunks_exact_mut(width) {
            for (x, &by) in row.iter_mut().zip(&sum) {
                *x = match kind {
                    Softmax::Plain => *x * by,
                    Softmax::Log => *x - by,
                };
            }
        }
    }
}

/// Softmax of one contiguous row in place, on the calling thread: the building block of fused loops.
pub fn softmax_row(kind: Softmax, row: &mut [f32]) {
    let n = row.len();
    dispatch(Rows(kind, row, n));
}

/// Softmax over the middle axis of `[outer, axis, inner]`, both sides contiguous.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if a slice is not as long as the shape.
pub fn softmax(
    kind: Softmax,
    dst: &mut [f32],
    src: &[f32],
    [outer, axis, inner]: [usize; 3],
) -> Result<()> {
    let len = elements("the softmax", &[outer, axis, inner])?;
    check_size("length of the softmax's source", len, src.len())?;
    check_size("length of the softmax's destination", len, dst.len())?;
    if len == 0 {
        return Ok(());
    }
    let size = axis * inner;
    let part = part(len, size);
    let parts = (chunks_mut(dst, part), chunks(src, part));
    if inner == 1 {
        threads::each(1, parts, |_, (dst, src)| {
            dst.copy_from_slice(src);
            dispatch(Rows(kind, dst, axis));
        });
        return Ok(());
    }
    // For each part the columns that are in hand.
    let block = axis * COLUMNS.min(inner);
    let mut blocks = scratch::take::<f32>(parts.len() * block)?;
    let parts = (parts.0, parts.1, chunks_mut(&mut blocks, block));
    threads::each(1, parts, |_, (dst, src, block)| {
        for (dst, src) in dst.chunks_exact_mut(size).zip(src.chunks_exact(size)) {
            softmax_columns(kind, dst, src, inner, block);
        }
    });
    Ok(())
}

/// Softmax of 16-bit values over the middle axis of `[outer, axis, inner]`, both sides contiguous and widened. It is
/// rounded after each step by the reference's own function, so that both give the same bits.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if a slice is not as long as the shape.
pub(crate) fn softmax_half(
    half: HalfType,
    dst: &mut [f32],
    src: &[f32],
    [outer, axis, inner]: [usize; 3],
) -> Result<()> {
    let len = elements("the softmax", &[outer, axis, inner])?;
    check_size("length of the softmax's source", len, src.len())?;
    check_size("length of the softmax's destination", len, dst.len())?;
    if len == 0 {
        return Ok(());
    }
    let size = axis * inner;
    let part = part(len, size);
    let parts = (chunks_mut(dst, part), chunks(src, part));
    let mut rows = scratch::take::<f32>(parts.len() * axis)?;
    let parts = (parts.0, parts.1, chunks_mut(&mut rows, axis));
    threads::each(1, parts, |_, (dst, src, row)| {
        for (dst, src) in dst.chunks_exact_mut(size).zip(src.chunks_exact(size)) {
            for column in 0..inner {
                let from = src[column..].iter().step_by(inner);
                row.iter_mut().zip(from).for_each(|(y, &x)| *y = x);
                softmax_by_steps(half, row);
                dst[column..].iter_mut().step_by(inner).zip(&*row).for_each(|(y, &x)| *y = x);
            }
        }
    });
    Ok(())
}

/// How many elements a thread takes at a time: whole blocks of `size`.
fn part(len: usize, size: usize) -> usize {
    if len >= PARALLEL { (PARALLEL / 2).div_ceil(size) * size } else { len }
}

fn softmax_columns(kind: Softmax, dst: &mut [f32], src: &[f32], inner: usize, block: &mut [f32]) {
    for first in (0..inner).step_by(COLUMNS) {
        let width = COLUMNS.min(inner - first);
        let block = &mut block[..src.len() / inner * width];
        for (to, row) in block.chunks_exact_mut(width).zip(src.chunks_exact(inner)) {
            to.copy_from_slice(&row[first..first + width]);
        }
        dispatch(Columns(kind, block, width));
        for (row, block) in dst.chunks_exact_mut(inner).zip(block.chunks_exact(width)) {
            row[first..first + width].copy_from_slice(block);
        }
    }
}

/// The softmax of double precision along the middle axis of `[outer, size, inner]`, in place, or its logarithm. A row of -∞
/// becomes NaN.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if the slice is not as long as its shape.
pub(crate) fn softmax_f64(
    x: &mut [f64],
    [outer, size, inner]: [usize; 3],
    log: bool,
) -> Result<()> {
    check_size("length of the operand", elements("it", &[outer, size, inner])?, x.len())?;
    let block = size.saturating_mul(inner);
    let least = (1_usize << 12).checked_div(block).unwrap_or(0).max(1);
    threads::each(least, chunks_mut(x, block), |_, x| {
        for column in 0..inner {
            let places = || (column..block).step_by(inner);
            let largest = places().fold(f64::NEG_INFINITY, |largest, i| largest.max(x[i]));
            let mut sum = 0.0;
            for i in places() {
                x[i] -= largest;
                sum += libm::exp(x[i]);
            }
            for i in places() {
                x[i] = if log { x[i] - libm::log(sum) } else { libm::exp(x[i]) / sum };
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Softmax, softmax, softmax_row};

    fn check_softmax(shape: [usize; 3]) {
        let [outer, axis, inner] = shape;
        let len = outer * axis * inner;
        let src: Vec<f32> = (0..len).map(|i| ((i * 7919) % 1013) as f32 * 0.03 - 15.0).collect();
        for kind in [Softmax::Plain, Softmax::Log] {
            let mut dst = vec![9.0; len];
            softmax(kind, &mut dst, &src, shape).unwrap();
            for o in 0..outer {
                for i in 0..inner {
                    let place = |a: usize| (o * axis + a) * inner + i;
                    let x: Vec<f64> = (0..axis).map(|a| f64::from(src[place(a)])).collect();
                    let top = x.iter().copied().fold(f64::MIN, f64::max);
                    let sum: f64 = x.iter().map(|x| (x - top).exp()).sum();
                    for (a, x) in x.iter().enumerate() {
                        let got = f64::from(dst[place(a)]);
                        let (want, bound) = match kind {
                            // Half an ulp of x - top, at most 30, is 1e-6 of the result.
                            Softmax::Plain => ((x - top).exp() / sum, 2e-6 * (x - top).exp()),
                            Softmax::Log => (x - top - sum.ln(), 5e-6),
                        };
                        assert!((got - want).abs() <= bound, "{shape:?} {got} {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_and_columns_of_odd_sizes() {
        let shapes = [[1, 1, 1], [3, 17, 1], [2, 128, 1], [100, 129, 1], [2, 5, 3], [3, 70, 67]];
        shapes.into_iter().for_each(check_softmax);
        check_softmax([40, 16, 130]);
        check_softmax([3, 0, 5]);
        assert!(softmax(Softmax::Plain, &mut [0.0; 2], &[0.0; 3], [1, 3, 1]).is_err());
    }

    #[test]
    fn infinities() {
        const INF: f32 = f32::INFINITY;
        let mut row = [-INF; 5];
        softmax_row(Softmax::Plain, &mut row);
        assert!(row.iter().all(|x| x.is_nan()));
        let mut row = [-INF, 1.0, 1.0, -INF];
        softmax_row(Softmax::Plain, &mut row);
        assert_eq!(row, [0.0, 0.5, 0.5, 0.0]);
        let mut row = [1e30, 0.0, f32::MIN];
        softmax_row(Softmax::Plain, &mut row);
        assert_eq!(row, [1.0, 0.0, 0.0]);
        let mut row = [0.0, f32::NAN];
        softmax_row(Softmax::Plain, &mut row);
        assert!(row.iter().all(|x| x.is_nan()));
        let mut columns = [0.0; 4];
        softmax(Softmax::Plain, &mut columns, &[-INF, 0.0, -INF, 0.0], [1, 2, 2]).unwrap();
        assert!(columns[0].is_nan() && columns[2].is_nan());
        assert_eq!((columns[1], columns[3]), (0.5, 0.5));
    }
}
