//! Reductions over any axes. Sums are pairwise over blocks, so that their error grows with the
//! logarithm of the length; the order of additions depends on the shape alone, never on the number
//! of threads.

use super::copy::copy_strided;
use super::simd::{Fold, Kernel, dispatch, fold};
use super::view::{check_size, elements, row_major};
use crate::error::{Error, Result};
use pulp::Simd;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

/// The elements of a row that are folded without splitting.
const BLOCK: usize = 4096;

/// The rows that a column reduction folds without splitting.
const ROWS: usize = 64;

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
    let mut reduced = vec![false; shape.len()];
    for &axis in axes {
        match reduced.get_mut(axis) {
            Some(seen @ false) => *seen = true,
            _ => return Err(Error::Axis { axis, rank: shape.len() }),
        }
    }
    check_size("length of the reduction's source", elements("the source", shape)?, src.len())?;
    let sizes = |which: bool| -> Vec<usize> {
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
        [] | [(_, false)] => rows::<R>(dst, src, 1),
        [(_, true)] | [(_, false), (_, true)] => rows::<R>(dst, src, n),
        [(axis, true), (inner, false)] | [(_, false), (axis, true), (inner, false)] => {
            columns::<R>(dst, src, axis, inner);
        }
        _ => {
            // Several separate axes: bring them to the back, then fold rows.
            let strides = row_major(shape);
            let (back, front): (Vec<usize>, Vec<usize>) =
                (0..shape.len()).partition(|&i| reduced[i]);
            let order = || front.iter().chain(&back).copied();
            let permuted: Vec<usize> = order().map(|i| shape[i]).collect();
            let strides: Vec<isize> = order().map(|i| strides[i]).collect();
            let mut rows_of = vec![0.0; src.len()];
            copy_strided(&mut rows_of, &permuted, src, 0, &strides)?;
            rows::<R>(dst, &rows_of, n);
        }
    }
    Ok(())
}

/// The axes without those of size 1, neighbours of one kind merged: (size, whether reduced).
fn merged(shape: &[usize], reduced: &[bool]) -> Vec<(usize, bool)> {
    let mut out: Vec<(usize, bool)> = Vec::new();
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

struct AddRows<'a, R>(&'a mut [f32], &'a [f32], R);

impl<R: Reducer> Kernel for AddRows<'_, R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        for row in self.1.chunks_exact(self.0.len()) {
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
fn rows<R: Reducer>(dst: &mut [f32], src: &[f32], n: usize) {
    if n == 1 {
        let least = PARALLEL;
        let parts = dst.par_chunks_mut(least).zip(src.par_chunks(least));
        return parts.for_each(|(dst, src)| dispatch(Singles(dst, src, R::default())));
    }
    let least = (PARALLEL / n).max(1);
    let parts = dst.par_iter_mut().zip(src.par_chunks_exact(n)).with_min_len(least);
    parts.for_each(|(y, row)| *y = R::finish(row_of::<R>(row), n));
}

fn row_of<R: Reducer>(row: &[f32]) -> f32 {
    if row.len() <= BLOCK {
        return dispatch(Row(row, R::default()));
    }
    let (low, high) = row.split_at((row.len() / 2).next_multiple_of(BLOCK));
    let (low, high) = if row.len() >= PARALLEL {
        rayon::join(|| row_of::<R>(low), || row_of::<R>(high))
    } else {
        (row_of::<R>(low), row_of::<R>(high))
    };
    R::merge(low, high)
}

/// The middle axis of `[outer, axis, inner]`.
fn columns<R: Reducer>(dst: &mut [f32], src: &[f32], axis: usize, inner: usize) {
    let least = (PARALLEL / (axis * inner)).max(1);
    let parts = dst.par_chunks_exact_mut(inner).zip(src.par_chunks_exact(axis * inner));
    parts.with_min_len(least).for_each(|(dst, src)| {
        columns_of::<R>(dst, src);
        for y in dst {
            *y = R::finish(*y, axis);
        }
    });
}

fn columns_of<R: Reducer>(dst: &mut [f32], src: &[f32]) {
    let count = src.len() / dst.len();
    if count <= ROWS {
        dst.fill(R::INIT);
        return dispatch(AddRows(dst, src, R::default()));
    }
    let (low, high) = src.split_at((count / 2).next_multiple_of(ROWS) * dst.len());
    let mut other = vec![R::INIT; dst.len()];
    if src.len() >= PARALLEL {
        rayon::join(|| columns_of::<R>(dst, low), || columns_of::<R>(&mut other, high));
    } else {
        columns_of::<R>(dst, low);
        columns_of::<R>(&mut other, high);
    }
    dispatch(Merge(dst, &other, R::default()));
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
