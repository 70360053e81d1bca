//! Pooling: windows folded row by row.

use super::simd::{Kernel, dispatch};
use super::view::{check_size, elements};
use super::window::Grid;
use crate::error::Result;
use crate::threads::{self, chunks_mut};
use pulp::Simd;

pub use super::window::Geometry;

/// What a window is folded to. What lies outside of the inner side takes no part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pool {
    /// The largest element; NaN if any is NaN; -∞ of nothing.
    Max,
    /// Σ x.
    Sum,
    /// Σ |x|ᵖ.
    Powers(i64),
}

fn checked(y: usize, x: usize, planes: usize, grid: &Grid) -> Result<()> {
    let shape = [planes, grid.inner()];
    check_size("length of the pooled planes", elements("a pooling", &shape)?, x)?;
    let shape = [planes, grid.outer()];
    check_size("length of a pooling", elements("a pooling", &shape)?, y)
}

/// Folds the windows on each plane of `x[planes, inner…]` to `y[planes, outer…]`.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if a slice is not as long as its shape;
/// [`Error::Unsupported`](crate::Error::Unsupported) beyond three spatial axes.
pub fn pool(pool: Pool, y: &mut [f32], x: &[f32], planes: usize, on: Geometry<'_>) -> Result<()> {
    let grid = Grid::new(on)?;
    checked(y.len(), x.len(), planes, &grid)?;
    each_plane(y, x, &grid, |_, y, x| match pool {
        Pool::Max => dispatch(Fold { y, x, grid: &grid, init: f32::NEG_INFINITY, f: larger }),
        Pool::Sum => dispatch(Fold { y, x, grid: &grid, init: 0.0, f: |y, x| y + x }),
        Pool::Powers(1) => {
            dispatch(Fold { y, x, grid: &grid, init: 0.0, f: |y, x: f32| y + x.abs() })
        }
        Pool::Powers(2) => dispatch(Fold { y, x, grid: &grid, init: 0.0, f: |y, x| y + x * x }),
        Pool::Powers(p) => {
            let f = |y, x: f32| y + x.abs().powf(p as f32);
            dispatch(Fold { y, x, grid: &grid, init: 0.0, f });
        }
    });
    Ok(())
}

/// As [`pool`] of [`Pool::Max`], and the place of each element in the flattened `x` (of equal ones the
/// first), -1 for windows of nothing.
///
/// # Errors
/// As [`pool`]; `places` must be as long as `y`.
pub fn max_pool(
    y: &mut [f32],
    places: &mut [i64],
    x: &[f32],
    planes: usize,
    on: Geometry<'_>,
) -> Result<()> {
    let grid = Grid::new(on)?;
    checked(y.len(), x.len(), planes, &grid)?;
    check_size("length of a pooling's places", y.len(), places.len())?;
    let (size, step) = (grid.outer().max(1), grid.step());
    let parts = (chunks_mut(y, size), chunks_mut(places, size));
    threads::each(1, parts, |plane, (y, places)| {
        let first = plane * grid.inner();
        y.fill(f32::NEG_INFINITY);
        places.fill(-1);
        grid.sweep(|window, count, inner, _| {
            for i in 0..count {
                let from = first + inner + i * step;
                let (new, best, place) = (x[from], &mut y[window + i], &mut places[window + i]);
                if *place == -1 || new > *best || (new.is_nan() && !best.is_nan()) {
                    (*best, *place) = (new, from as i64);
                }
            }
        });
    });
    Ok(())
}

/// As [`pool`] of [`Pool::Max`], of integers; `least` of nothing.
///
/// # Errors
/// As [`pool`].
pub fn max_of_integers<T: Copy + Ord + Send + Sync>(
    y: &mut [T],
    x: &[T],
    planes: usize,
    on: Geometry<'_>,
    least: T,
) -> Result<()> {
    let grid = Grid::new(on)?;
    checked(y.len(), x.len(), planes, &grid)?;
    each_plane(y, x, &grid, |_, y, x| dispatch(Fold { y, x, grid: &grid, init: least, f: T::max }));
    Ok(())
}

fn each_plane<T: Send + Sync>(
    y: &mut [T],
    x: &[T],
    grid: &Grid,
    f: impl Fn(usize, &mut [T], &[T]) + Sync,
) {
    if y.is_empty() {
        return;
    }
    let size = grid.inner();
    let planes = chunks_mut(y, grid.outer());
    threads::each(1, planes, |plane, y| f(plane, y, &x[plane * size..][..size]));
}

#[inline(always)]
pub(super) fn larger(y: f32, x: f32) -> f32 {
    if x > y || x.is_nan() { x } else { y }
}

struct Fold<'a, T, F> {
    y: &'a mut [T],
    x: &'a [T],
    grid: &'a Grid,
    init: T,
    f: F,
}

impl<T: Copy, F: Fn(T, T) -> T> Kernel for Fold<'_, T, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Fold { y, x, grid, init, f } = self;
        y.fill(init);
        let step = grid.step();
        grid.sweep(|window, count, inner, _| {
            let y = &mut y[window..window + count];
            if step == 1 {
                let x = &x[inner..inner + count];
                y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(*y, x));
            } else {
                let x = x[inner..].iter().step_by(step);
                y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(*y, x));
            }
        });
    }
}
