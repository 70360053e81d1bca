//! Layer normalisation and its root-mean-square form, over the last axis.

use super::simd::{Fold, Kernel, dispatch, fold, mul_add, sum};
use super::view::check_size;
use crate::error::Result;
use crate::threads::{self, chunks_mut, items_mut};
use pulp::Simd;

/// Tensors smaller than this run on the calling thread.
const PARALLEL: usize = 1 << 13;

/// Which normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Norm {
    /// (x - mean) / √(variance + ε).
    Layer,
    /// x / √(mean of squares + ε).
    Rms,
}

/// What a normalisation multiplies by and adds, and its ε.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    /// One factor for each element of a row; none is a factor of 1.
    pub scale: Option<&'a [f32]>,
    /// One summand for each element of a row; none is 0.
    pub bias: Option<&'a [f32]>,
    /// Added to the variance.
    pub epsilon: f32,
}

impl Affine<'_> {
    fn check(&self, n: usize) -> Result<()> {
        check_size("length of the norm's scale", n, self.scale.map_or(n, <[f32]>::len))?;
        check_size("length of the norm's bias", n, self.bias.map_or(n, <[f32]>::len))
    }
}

/// Σ (x - mean)².
#[derive(Clone, Copy)]
struct Squares(f32);

impl Fold for Squares {
    const INIT: f32 = 0.0;
    #[inline(always)]
    fn neutral(self) -> f32 {
        self.0
    }
    #[inline(always)]
    fn step<S: Simd>(self, simd: S, acc: S::f32s, x: S::f32s) -> S::f32s {
        let x = simd.sub_f32s(x, simd.splat_f32s(self.0));
        simd.mul_add_e_f32s(x, x, acc)
    }
    #[inline(always)]
    fn join<S: Simd>(self, simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.add_f32s(a, b)
    }
    #[inline(always)]
    fn merge(a: f32, b: f32) -> f32 {
        a + b
    }
}

struct Row<'a>(Norm, &'a mut [f32], Affine<'a>);

impl Kernel for Row<'_> {
    type Output = (f32, f32);
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) -> (f32, f32) {
        let Row(norm, row, Affine { scale, bias, epsilon }) = self;
        let n = row.len() as f32;
        let mean = match norm {
            Norm::Layer => sum(simd, row) / n,
            Norm::Rms => 0.0,
        };
        let variance = fold(simd, Squares(mean), row) / n;
        let inverse = 1.0 / (variance + epsilon).sqrt();
        match (scale, bias) {
            (Some(scale), Some(bias)) => {
                for ((x, &s), &b) in row.iter_mut().zip(scale).zip(bias) {
                    *x = mul_add::<FMA>((*x - mean) * inverse, s, b);
                }
            }
            (Some(scale), None) => {
                row.iter_mut().zip(scale).for_each(|(x, &s)| *x = (*x - mean) * inverse * s);
            }
            (None, Some(bias)) => {
                row.iter_mut().zip(bias).for_each(|(x, &b)| *x = (*x - mean) * inverse + b);
            }
            (None, None) => row.iter_mut().for_each(|x| *x = (*x - mean) * inverse),
        }
        (mean, inverse)
    }
}

/// Normalises one row in place on the calling thread and returns its mean (0 for
/// [`Norm::Rms`]) and the inverse of its deviation: the building block of fused loops. Elements
/// beyond the length of `scale` or `bias` stay as they are.
pub fn norm_row(norm: Norm, row: &mut [f32], affine: Affine<'_>) -> (f32, f32) {
    dispatch(Row(norm, row, affine))
}

/// Normalises each row of `n` elements of `src` into `dst`; without `src`, those of `dst` in place. `stats`, where given,
/// receives the mean and the inverse deviation of every row.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if lengths differ, are not a multiple of `n`, or
/// `stats` has not one element for each row.
pub fn norm(
    norm: Norm,
    dst: &mut [f32],
    src: Option<&[f32]>,
    n: usize,
    affine: Affine<'_>,
    stats: Option<(&mut [f32], &mut [f32])>,
) -> Result<()> {
    let len = dst.len();
    check_size("length of the norm's destination", src.map_or(len, <[f32]>::len), len)?;
    affine.check(n)?;
    // Rows of no elements are as many as there are statistics of them.
    let given = stats.as_ref().map_or(0, |(mean, _)| mean.len());
    let rows = len.checked_div(n).unwrap_or(given);
    check_size("length of the norm's source", rows * n, len)?;
    if let Some((mean, inverse)) = &stats {
        check_size("length of the norm's means", rows, mean.len())?;
        check_size("length of the norm's inverse deviations", rows, inverse.len())?;
    }
    if len == 0 {
        // The mean of nothing is no number.
        if let Some((mean, inverse)) = stats {
            mean.fill(f32::NAN);
            inverse.fill(f32::NAN);
        }
        return Ok(());
    }
    let one = |row: usize, to: &mut [f32]| {
        if let Some(src) = src {
            to.copy_from_slice(&src[row * n..][..n]);
        }
        norm_row(norm, to, affine)
    };
    let least = if len < PARALLEL { rows } else { (PARALLEL / 2 / n).max(1) };
    let dst = chunks_mut(dst, n);
    match stats {
        None => threads::each(least, dst, |row, to| {
            one(row, to);
        }),
        Some((mean, inverse)) => {
            let parts = (dst, items_mut(mean), items_mut(inverse));
            threads::each(least, parts, |row, (to, mean, inverse)| {
                (*mean, *inverse) = one(row, to);
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Affine, Norm, norm};

    fn check_norm(kind: Norm, rows: usize, n: usize, scaled: bool, biased: bool) {
        let src: Vec<f32> =
            (0..rows * n).map(|i| ((i * 7919) % 1013) as f32 * 0.01 + 3.0).collect();
        let scale: Vec<f32> = (0..n).map(|i| 1.0 + (i % 5) as f32 * 0.1).collect();
        let bias: Vec<f32> = (0..n).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect();
        let affine = Affine {
            scale: scaled.then_some(&scale[..]),
            bias: biased.then_some(&bias[..]),
            epsilon: 1e-5,
        };
        let (mut dst, mut means) = (vec![0.0; rows * n], vec![0.0; rows]);
        let mut inverses = vec![0.0; rows];
        norm(kind, &mut dst, Some(&src), n, affine, Some((&mut means, &mut inverses))).unwrap();
        let mut again = src.clone();
        norm(kind, &mut again, None, n, affine, None).unwrap();
        assert_eq!(dst, again);
        for row in 0..rows {
            let x: Vec<f64> = src[row * n..][..n].iter().map(|&x| x.into()).collect();
            let mean = match kind {
                Norm::Layer => x.iter().sum::<f64>() / n as f64,
                Norm::Rms => 0.0,
            };
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
            let inverse = 1.0 / (variance + 1e-5).sqrt();
            assert!((f64::from(means[row]) - mean).abs() < 1e-5);
            assert!((f64::from(inverses[row]) - inverse).abs() < 1e-5 * inverse);
            for (i, x) in x.iter().enumerate() {
                let s = if scaled { f64::from(scale[i]) } else { 1.0 };
                let b = if biased { f64::from(bias[i]) } else { 0.0 };
                let want = (x - mean) * inverse * s + b;
                let got = f64::from(dst[row * n + i]);
                assert!((got - want).abs() < 1e-5, "{kind:?} {rows}x{n}: {got} {want}");
            }
        }
    }

    #[test]
    fn every_form_and_odd_sizes() {
        for kind in [Norm::Layer, Norm::Rms] {
            for (rows, n) in [(0, 4), (1, 3), (5, 17), (7, 768), (40, 1000), (3, 64)] {
                for (scaled, biased) in [(true, true), (true, false), (false, true), (false, false)]
                {
                    check_norm(kind, rows, n, scaled, biased);
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let none = Affine { scale: None, bias: None, epsilon: 0.0 };
        let mut dst = [0.0; 6];
        assert!(norm(Norm::Layer, &mut dst, Some(&[0.0; 6]), 4, none, None).is_err());
        assert!(norm(Norm::Layer, &mut dst, Some(&[0.0; 6]), 0, none, None).is_err());
        assert!(norm(Norm::Layer, &mut dst, Some(&[0.0; 5]), 5, none, None).is_err());
        let short = Affine { scale: Some(&[1.0; 2]), ..none };
        assert!(norm(Norm::Layer, &mut dst, Some(&[0.0; 6]), 3, short, None).is_err());
        assert!(norm(Norm::Rms, &mut [], Some(&[]), 0, none, None).is_ok());
    }
}
