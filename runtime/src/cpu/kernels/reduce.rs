//! Reductions over any axes. Sums are pairwise over blocks, so that their error grows with the
//! logarithm of the length; the order of additions depends on the shape alone, never on the number
//! of threads.

use super::copy::copy_strided;
use super::simd::{Fold, Kernel, dispatch, fold};
use super::view::{Axes, check_size, elements, row_major};
use crate::cpu::scratch;
use crate::error::{Error, Result};
use crate::threads::{self, chunks, chunks_mut, items_mut};
use pulp::Simd;

/// The elements of a row that are folded without splitting.
const BLOCK: usize = 4096;

/// The rows that a column reduction folds without splitting.
const ROWS: usize = 64;

/// Columns that a thread folds at least, where several share a matrix.
const WIDE: usize = 256;

/// Work of fewer elements than this stays on one thread.
const PARALLEL: usize = 1 << 15;

/// What is reduced to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// Σ x; 0 of nothing.
    Sum,
    /// Σ x / n; NaN of nothing.
    Mean,
    /// The largest; NaN if any is NaN; -∞ of nothing.
    Max,
    /// The smallest; NaN if any is NaN; ∞ of nothing.
    Min,
    /// Π x; 1 of nothing.
    Prod,
    /// Σ x²; 0 of nothing.
    SumSquare,
    /// Σ |x|; 0 of nothing.
    L1,
}

trait Reducer: Fold + Default + Send + Sync {
    /// [`Fold::step`] of one element.
    fn scalar(a: f32, x: f32) -> f32;
    /// The result from the accumulator and the number of elements.
    #[inline(always)]
    fn finish(a: f32, _: usize) -> f32 {
        a
    }
}

macro_rules! reducers {
    ($($name:ident: $init:expr,
        |$a:ident, $x:ident| $scalar:expr,
        |$simd:ident, $acc:ident, $v:ident| $vector:expr, $join:expr,
        |$b:ident, $c:ident| $merge:expr
        $(, |$sum:ident, $n:ident| $finish:expr)?;)*) => {$(
        #[derive(Clone, Copy, Default)]
        struct $name;
        impl Fold for $name {
            const INIT: f32 = $init;
            #[inline(always)]
            fn step<S: Simd>(self, $simd: S, $acc: S::f32s, $v: S::f32s) -> S::f32s { $vector }
            #[inline(always)]
            fn join<S: Simd>(self, $simd: S, $acc: S::f32s, $v: S::f32s) -> S::f32s { $join }
            #[inline(always)]
            fn merge($b: f32, $c: f32) -> f32 { $merge }
        }
        impl Reducer for $name {
            #[inline(always)]
            fn scalar($a: f32, $x: f32) -> f32 { $scalar }
            $(#[inline(always)]
            fn finish($sum: f32, $n: usize) -> f32 { $finish })?
        }
    )*};
}

reducers! {
    Sum: 0.0, |a, x| a + x, |s, a, x| s.add_f32s(a, x), s.add_f32s(a, x), |a, b| a + b;
    Mean: 0.0, |a, x| a + x, |s, a, x| s.add_f32s(a, x), s.add_f32s(a, x), |a, b| a + b, |a, n| a / n as f32;
    Max: f32::NEG_INFINITY,
        |a, x| if x > a || x.is_nan() { x } else { a },
        |s, a, x| keep_nan(s, s.less_than_or_equal_f32s(x, a), a, x),
        keep_nan(s, s.less_than_or_equal_f32s(x, a), a, x),
        |a, b| Self::scalar(a, b);
    Min: f32::INFINITY,
        |a, x| if x < a || x.is_nan() { x } else { a },
        |s, a, x| keep_nan(s, s.less_than_or_equal_f32s(a, x), a, x),
        keep_nan(s, s.less_than_or_equal_f32s(a, x), a, x),
        |a, b| Self::scalar(a, b);
    Prod: 1.0, |a, x| a * x, |s, a, x| s.mul_f32s(a, x), s.mul_f32s(a, x), |a, b| a * b;
    SumSquare: 0.0, |a, x| a + x * x, |s, a, x| s.mul_add_e_f32s(x, x, a), s.add_f32s(a, x), |a, b| a + b;
    L1: 0.0, |a, x| a + x.abs(), |s, a, x| s.add_f32s(a, s.abs_f32s(x)), s.add_f32s(a, x),
        |a, b| a + b;
}

/// `a` where `stays` or where it is NaN, else `x`.
#[inline(always)]
fn keep_nan<S: Simd>(simd: S, stays: S::m32s, a: S::f32s, x: S::f32s) -> S::f32s {
    let next = simd.select_f32s(stays, a, x);
    simd.select_f32s(simd.equal_f32s(a, a), next, a)
}

/// Reduces `src`, contiguous and row-major of `shape`, over `axes` into `dst`, contiguous of the
/// axes that are left, in their order. No axes reduce nothing: each element is a row of one.
///
/// # Errors
/// [`Error::Axis`] if an axis is out of range or named twice; [`Error::Mismatch`] if a slice is not
/// as long as its shape.
pub fn reduce(
    op: Reduce,
    dst: &mut [f32],
    src: &[f32],
    shape: &[usize],
    axes: &[usize],
) -> Result<()> {
    match op {
        Reduce::Sum => reduce_by::<Sum>(dst, src, shape, axes),
        Reduce::Mean => reduce_by::<Mean>(dst, src, shape, axes),
        Reduce::Max => reduce_by::<Max>(dst, src, shape, axes),
        Reduce::Min => reduce_by::<Min>(dst, src, shape, axes),
        Reduce::Prod => reduce_by::<Prod>(dst, src, shape, axes),
        Reduce::SumSquare => reduce_by::<SumSquare>(dst, src, shape, axes),
        Reduce::L1 => reduce_by::<L1>(dst, src, shape, axes),
    }
}

/// Reduces one row on the calling thread, unless it is very long: the building block of fused loops.
pub fn reduce_row(op: Reduce, row: &[f32]) -> f32 {
    fn of<R: Reducer>(row: &[f32]) -> f32 {
        R::finish(row_of::<R>(row), row.len())
    }
    match op {
        Reduce::Sum => of::<Sum>(row),
        Reduce::Mean => of::<Mean>(row),
        Reduce::Max => of::<Max>(row),
        Reduce::Min => of::<Min>(row),
        Reduce::Prod => of::<Prod>(row),
        Reduce::SumSquare => of::<SumSquare>(row),
        Reduce::L1 => of::<L1>(row),
    }
}

fn reduce_by<R: Reducer>(
    dst: &mut [f32],
    src: &[f32],
    shape: &[usize],
    axes: &[usize],
) -> Result<()> {
    let mut reduced: Axes<bool> = shape.iter().map(|_| false).collect();
    for &axis in axes {
        match reduced.get_mut(axis) {
            Some(seen @ false) => *seen = true,
            _ => return Err(Error::Axis { axis, rank: shape.len() }),
        }
    }
    check_size("length of the reduction's source", elements("the source", shape)?, src.len())?;
    let sizes = |which: bool| -> Axes<usize> {
        let axes = shape.iter().zip(&reduced).filter(|&(_, &r)| r == which);
        axes.map(|(&size, _)| size).collect()
    };
    let (kept, n) = (sizes(false), elements("the reduced axes", &sizes(true))?);
    let len = elements("the destination", &kept)?;
    check_size("length of the reduction's destination", len, dst.len())?;
    if src.is_empty() {
        dst.fill(R::finish(R::INIT, n));
        return Ok(());
    }
    match merged(shape, &reduced)[..] {
        [] | [(_, false)] => rows::<R>(dst, src, 1)?,
        [(_, true)] | [(_, false), (_, true)] => rows::<R>(dst, src, n)?,
        [(axis, true), (inner, false)] | [(_, false), (axis, true), (inner, false)] => {
            columns::<R>(dst, src, axis, inner)?;
        }
        _ => {
            // Several separate axes: bring them to the back, then fold rows.
            let strides = row_major(shape);
            let (back, front): (Axes<usize>, Axes<usize>) =
                (0..shape.len()).partition(|&i| reduced[i]);
            let order = || front.iter().chain(&back).copied();
            let permuted: Axes<usize> = order().map(|i| shape[i]).collect();
            let strides: Axes<isize> = order().map(|i| strides[i]).collect();
            let mut rows_of = scratch::take::<f32>(src.len())?;
            copy_strided(&mut rows_of, &permuted, src, 0, &strides)?;
            rows::<R>(dst, &rows_of, n)?;
        }
    }
    Ok(())
}

/// The axes without those of size 1, neighbours of one kind merged: (size, whether reduced).
fn merged(shape: &[usize], reduced: &[bool]) -> Axes<(usize, bool)> {
    let mut out: Axes<(usize, bool)> = Axes::new();
    for (&size, &reduced) in shape.iter().zip(reduced).filter(|&(&size, _)| size != 1) {
        match out.last_mut() {
            Some((merged, kind)) if *kind == reduced => *merged *= size,
            _ => out.push((size, reduced)),
        }
    }
    out
}

struct Row<'a, R>(&'a [f32], R);

impl<R: Reducer> Kernel for Row<'_, R> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) -> f32 {
        fold(simd, self.1, self.0)
    }
}

struct Singles<'a, R>(&'a mut [f32], &'a [f32], R);

impl<R: Reducer> Kernel for Singles<'_, R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        for (y, &x) in self.0.iter_mut().zip(self.1) {
            *y = R::finish(R::scalar(R::INIT, x), 1);
        }
    }
}

/// Rows that are so many elements apart.
struct AddRows<'a, R>(&'a mut [f32], &'a [f32], usize, R);

impl<R: Reducer> Kernel for AddRows<'_, R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        for row in self.1.chunks(self.2) {
            for (y, &x) in self.0.iter_mut().zip(row) {
                *y = R::scalar(*y, x);
            }
        }
    }
}

struct Merge<'a, R>(&'a mut [f32], &'a [f32], R);

impl<R: Reducer> Kernel for Merge<'_, R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        for (y, &x) in self.0.iter_mut().zip(self.1) {
            *y = R::merge(*y, x);
        }
    }
}

/// Each row of `n` elements to one.
fn rows<R: Reducer>(dst: &mut [f32], src: &[f32], n: usize) -> Result<()> {
    if n == 1 {
        let parts = (chunks_mut(dst, PARALLEL), chunks(src, PARALLEL));
        threads::each(1, parts, |_, (dst, src)| dispatch(Singles(dst, src, R::default())));
        return Ok(());
    }
    if n >= PARALLEL && dst.len() < threads::count() {
        // Few rows, each by all threads: the pieces of a row, then what they came to.
        let mut pieces = scratch::take::<f32>(n.div_ceil(BLOCK))?;
        for (y, row) in dst.iter_mut().zip(src.chunks_exact(n)) {
            let parts = (items_mut(&mut pieces), chunks(row, BLOCK));
            threads::each(PARALLEL / BLOCK, parts, |_, (to, piece)| *to = row_of::<R>(piece));
            *y = R::finish(pairwise::<R>(&pieces), n);
        }
        return Ok(());
    }
    let least = (PARALLEL / n).max(1);
    threads::each(least, (items_mut(dst), chunks(src, n)), |_, (y, row)| {
        *y = R::finish(row_of::<R>(row), n);
    });
    Ok(())
}

/// The result of a row from those of its blocks, as [`row_of`] has it.
fn pairwise<R: Reducer>(blocks: &[f32]) -> f32 {
    match blocks {
        [] => R::INIT,
        [block] => *block,
        _ => {
            let (low, high) = blocks.split_at(half(blocks.len(), 1));
            R::merge(pairwise::<R>(low), pairwise::<R>(high))
        }
    }
}

/// About half of so many, in whole blocks.
fn half(len: usize, block: usize) -> usize {
    len.div_ceil(block).div_ceil(2) * block
}

fn row_of<R: Reducer>(row: &[f32]) -> f32 {
    if row.len() <= BLOCK {
        return dispatch(Row(row, R::default()));
    }
    let (low, high) = row.split_at(half(row.len(), BLOCK));
    R::merge(row_of::<R>(low), row_of::<R>(high))
}

/// The middle axis of `[outer, axis, inner]`.
fn columns<R: Reducer>(dst: &mut [f32], src: &[f32], axis: usize, inner: usize) -> Result<()> {
    // Each level of halves needs another row.
    let levels = axis.div_ceil(ROWS).next_power_of_two().ilog2() as usize;
    let least = (PARALLEL / (axis * inner)).max(1);
    if dst.len() / inner >= threads::count() || inner < WIDE {
        let mut spare = scratch::take::<f32>(dst.len() * levels)?;
        if levels == 0 {
            let parts = (chunks_mut(dst, inner), chunks(src, axis * inner));
            threads::each(least, parts, |_, (dst, src)| {
                fold_columns::<R>(dst, src, inner, &mut [])
            });
            return Ok(());
        }
        let spare = chunks_mut(&mut spare, inner * levels);
        let parts = (chunks_mut(dst, inner), chunks(src, axis * inner), spare);
        threads::each(least, parts, |_, (dst, src, spare)| {
            fold_columns::<R>(dst, src, inner, spare);
        });
        return Ok(());
    }
    // Few matrices of long rows: each by all threads, in bands of columns.
    let mut spare = scratch::take::<f32>(inner * levels.max(1))?;
    let band = inner.div_ceil(inner / WIDE).next_multiple_of(16);
    for (dst, src) in dst.chunks_exact_mut(inner).zip(src.chunks_exact(axis * inner)) {
        let parts = (chunks_mut(dst, band), chunks_mut(&mut spare, band * levels.max(1)));
        let least = (PARALLEL / (axis * band)).max(1);
        threads::each(least, parts, |number, (dst, spare)| {
            fold_columns::<R>(dst, &src[number * band..], inner, spare);
        });
    }
    Ok(())
}

/// Columns of rows that are `pitch` apart, of which the last may be shorter, to one row.
fn fold_columns<R: Reducer>(dst: &mut [f32], src: &[f32], pitch: usize, spare: &mut [f32]) {
    let count = src.len().div_ceil(pitch);
    columns_of::<R>(dst, src, pitch, count, spare);
    for y in dst {
        *y = R::finish(*y, count);
    }
}

fn columns_of<R: Reducer>(
    dst: &mut [f32],
    src: &[f32],
    pitch: usize,
    count: usize,
    spare: &mut [f32],
) {
    if count <= ROWS {
        dst.fill(R::INIT);
        return dispatch(AddRows(dst, src, pitch, R::default()));
    }
    let low = half(count, ROWS);
    let (other, spare) = spare.split_at_mut(dst.len());
    columns_of::<R>(dst, &src[..low * pitch], pitch, low, spare);
    columns_of::<R>(other, &src[low * pitch..], pitch, count - low, spare);
    dispatch(Merge(dst, other, R::default()));
}

#[cfg(test)]
mod tests {
    use super::{Reduce, reduce};
    use crate::error::Error;

    const ALL: [Reduce; 7] = [
        Reduce::Sum,
        Reduce::Mean,
        Reduce::Max,
        Reduce::Min,
        Reduce::Prod,
        Reduce::SumSquare,
        Reduce::L1,
    ];

    fn exact(op: Reduce, x: &[f64]) -> f64 {
        match op {
            Reduce::Sum => x.iter().sum(),
            Reduce::Mean => x.iter().sum::<f64>() / x.len() as f64,
            Reduce::Max => x.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Reduce::Min => x.iter().copied().fold(f64::INFINITY, f64::min),
            Reduce::Prod => x.iter().product(),
            Reduce::SumSquare => x.iter().map(|x| x * x).sum(),
            Reduce::L1 => x.iter().map(|x| x.abs()).sum(),
        }
    }

    fn check_reduce(shape: &[usize], axes: &[usize]) {
        let len: usize = shape.iter().product();
        let src: Vec<f32> = (0..len).map(|i| ((i * 7919) % 1013) as f32 * 2e-3 - 1.02).collect();
        let kept: Vec<usize> = (0..shape.len()).filter(|i| !axes.contains(i)).collect();
        let out: usize = kept.iter().map(|&i| shape[i]).product();
        let mut groups: Vec<Vec<f64>> = vec![Vec::new(); out];
        for (place, &x) in src.iter().enumerate() {
            let (mut rest, mut index) = (place, vec![0; shape.len()]);
            for i in (0..shape.len()).rev() {
                (index[i], rest) = (rest % shape[i], rest / shape[i]);
            }
            let to = kept.iter().fold(0, |to, &i| to * shape[i] + index[i]);
            groups[to].push(x.into());
        }
        for op in ALL {
            let mut dst = vec![9.0; out];
            reduce(op, &mut dst, &src, shape, axes).unwrap();
            for (&got, group) in dst.iter().zip(&groups) {
                let want = exact(op, group);
                let magnitude: f64 = match op {
                    Reduce::Prod => want.abs() * group.len() as f64 + 1e-30,
                    Reduce::Max | Reduce::Min => 0.0,
                    Reduce::Mean => 2.0,
                    Reduce::Sum | Reduce::SumSquare | Reduce::L1 => 2.0 * group.len() as f64,
                };
                let same = (want.is_nan() && got.is_nan()) || f64::from(got) == want;
                let near = (f64::from(got) - want).abs() <= 3e-7 * magnitude;
                assert!(same || near, "{op:?} {shape:?} {axes:?}: {got} {want}");
            }
        }
    }

    #[test]
    fn every_pattern_of_axes() {
        check_reduce(&[], &[]);
        check_reduce(&[7], &[]);
        check_reduce(&[7], &[0]);
        check_reduce(&[5, 33], &[1]);
        check_reduce(&[5, 33], &[0]);
        check_reduce(&[3, 4, 5, 6], &[1, 2]);
        check_reduce(&[3, 4, 5, 6], &[0, 2]);
        check_reduce(&[3, 4, 5, 6], &[3, 1]);
        check_reduce(&[3, 4, 5, 6], &[0, 1, 2, 3]);
        check_reduce(&[3, 1, 5, 1], &[1, 3]);
        check_reduce(&[100_003], &[0]);
        check_reduce(&[1000, 77], &[0]);
        check_reduce(&[77, 1000], &[1]);
        check_reduce(&[4, 300, 65], &[1]);
        check_reduce(&[3, 0, 5], &[1]);
        check_reduce(&[0, 5], &[1]);
        check_reduce(&[100_003], &[]);
    }

    #[test]
    fn long_sums_keep_their_digits() {
        let x = vec![0.1f32; 1 << 22];
        let mut y = [0.0];
        reduce(Reduce::Sum, &mut y, &x, &[1 << 22], &[0]).unwrap();
        let want = f64::from(0.1f32) * f64::from(1 << 22);
        // On the narrowest vectors 256 additions a lane in a block, 4 of lanes, 10 of blocks.
        assert!((f64::from(y[0]) / want - 1.0).abs() < 270.0 * f64::from(f32::EPSILON) / 2.0);
    }

    #[test]
    fn nan_reaches_the_extremes() {
        let mut x = vec![1.0f32; 300];
        x[170] = f32::NAN;
        let mut y = [0.0];
        for op in ALL {
            reduce(op, &mut y, &x, &[300], &[0]).unwrap();
            assert!(y[0].is_nan(), "{op:?}");
        }
    }

    #[test]
    fn bad_axes_are_refused() {
        let mut y = [0.0; 2];
        let mut check = |axes: &[usize]| reduce(Reduce::Sum, &mut y, &[0.0; 4], &[2, 2], axes);
        assert_eq!(check(&[2]), Err(Error::Axis { axis: 2, rank: 2 }));
        assert_eq!(check(&[0, 0]), Err(Error::Axis { axis: 0, rank: 2 }));
        assert!(matches!(check(&[0, 1]), Err(Error::Mismatch { .. })));
    }
}
