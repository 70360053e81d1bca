//! Convolutions of integers, modulo their width: windows unrolled into columns, and matmuls of bytes for those of each
//! group; few filters a group are summed directly.

use super::super::copy::copy_between;
use super::super::int8::{PackedIntegers, multiply_integers};
use super::super::matmul::Matrix;
use super::super::simd::{Kernel, dispatch};
use super::super::view::{check_size, elements};
use super::super::window::Grid;
use super::{Conv, FEW, Part, matrix, planes, width};
use crate::cpu::scratch;
use crate::error::Result;
use crate::threads::{self, chunks_mut};
use pulp::Simd;
use std::sync::Arc;

/// Filters.
#[derive(Clone, Copy)]
pub(crate) enum Filters<'a> {
    /// `w[g·m, c, kernel…]`.
    Plain(&'a [i32]),
    /// For each group a matrix of which each is a column.
    Packed(&'a [Arc<PackedIntegers>]),
}

/// Whether so many filters a group are multiplied by as a packed matrix.
pub(crate) fn are_packed(filters: usize) -> bool {
    filters >= FEW
}

/// As [`conv`](super::conv), of integers modulo their width.
///
/// # Errors
/// As [`conv`](super::conv).
pub(crate) fn conv_integers(
    y: &mut [i32],
    x: &[i32],
    filters: Filters<'_>,
    bias: Option<&[i32]>,
    conv: Conv<'_>,
) -> Result<()> {
    let grid = Grid::new(conv.geometry)?;
    let Conv { images, groups, channels, filters: each, .. } = conv;
    let check = |what, shape: &[usize], found| check_size(what, elements(what, shape)?, found);
    check("length of the images", &[images, groups, channels, grid.inner()], x.len())?;
    check("length of a convolution", &[images, groups, each, grid.outer()], y.len())?;
    let count = elements("the filters", &[groups, each])?;
    check_size("length of a convolution's bias", count, bias.map_or(count, <[i32]>::len))?;
    let depth = elements("a filter", &[channels, grid.taps()])?;
    if let Filters::Plain(w) = filters {
        check("length of the filters", &[count, depth], w.len())?;
    }
    if y.is_empty() {
        return Ok(());
    }
    match filters {
        Filters::Plain(w) if !are_packed(each) => direct(y, x, w, conv, &grid),
        Filters::Plain(w) => {
            let packed = w.chunks_exact((each * depth).max(1)).map(|w| {
                let (data, at) = matrix(w, 0, 1, depth);
                PackedIntegers::new(Matrix { data, at }, depth, each).map(Arc::new)
            });
            let packed: Vec<_> = packed.collect::<Result<_>>()?;
            unrolled(y, x, &packed, conv, &grid)?;
        }
        Filters::Packed(packed) => unrolled(y, x, packed, conv, &grid)?,
    }
    if let Some(bias) = bias {
        threads::each(4, chunks_mut(y, grid.outer()), |plane, y| {
            let bias = bias[plane % count];
            dispatch(Add(y, bias));
        });
    }
    Ok(())
}

/// Filter by filter, row by row.
fn direct(y: &mut [i32], x: &[i32], w: &[i32], conv: Conv<'_>, grid: &Grid) {
    let (plane, size, taps) = (grid.outer(), grid.inner(), grid.taps());
    let some = planes(y.len() / plane, plane);
    threads::each(1, chunks_mut(y, some * plane), |number, y| {
        for (i, y) in y.chunks_exact_mut(plane).enumerate() {
            let number = number * some + i;
            let (part, filter) = (number / conv.filters, number % (conv.groups * conv.filters));
            y.fill(0);
            for channel in 0..conv.channels {
                let x = &x[(part * conv.channels + channel) * size..][..size];
                let w = &w[(filter * conv.channels + channel) * taps..][..taps];
                dispatch(Direct { y, x, w, grid });
            }
        }
    });
}

/// Group by group, by matmuls of blocks of unrolled windows.
fn unrolled(
    y: &mut [i32],
    x: &[i32],
    packed: &[Arc<PackedIntegers>],
    conv: Conv<'_>,
    grid: &Grid,
) -> Result<()> {
    let Conv { images, groups, channels, filters, .. } = conv;
    let (windows, depth) = (grid.outer(), channels * grid.taps());
    check_size("groups of packed filters", groups, packed.len())?;
    let in_place = grid.is_identity();
    let most = width(depth, windows);
    let mut columns = scratch::take::<i32>(if in_place { 0 } else { depth * most })?;
    let mut sums = scratch::take::<i32>(most * filters)?;
    let size = x.len() / (images * groups);
    for (part, y) in y.chunks_exact_mut(filters * windows).enumerate() {
        let packed = &packed[part % groups];
        check_size("columns of packed filters", filters, packed.sizes().1)?;
        let x = &x[part * size..][..size];
        let part = Part { x, w: &[], bias: None, channels, filters, grid };
        for first in (0..windows).step_by(most) {
            let width = most.min(windows - first);
            if !in_place {
                part.unroll(&mut columns[..depth * width], first, width, true);
            }
            // Windows are rows.
            let (data, at) = match in_place {
                true => matrix(x, first, 1, windows),
                false => matrix(&columns[..], 0, 1, width),
            };
            let sums = &mut sums[..width * filters];
            multiply_integers(depth, Matrix { data, at }, packed, sums)?;
            let (to, from) = ([windows as isize, 1], [1, filters as isize]);
            copy_between(y, first, &to, &[filters, width], sums, 0, &from)?;
        }
    }
    Ok(())
}

struct Add<'a>(&'a mut [i32], i32);

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        self.0.iter_mut().for_each(|y| *y = y.wrapping_add(self.1));
    }
}

/// Adds one channel's windows, weighted.
struct Direct<'a> {
    y: &'a mut [i32],
    x: &'a [i32],
    w: &'a [i32],
    grid: &'a Grid,
}

impl Kernel for Direct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Self { y, x, w, grid } = self;
        let step = grid.step();
        grid.sweep(|window, count, inner, tap| {
            let (y, w) = (&mut y[window..window + count], w[tap]);
            if step == 1 {
                let x = &x[inner..inner + count];
                y.iter_mut().zip(x).for_each(|(y, &x)| *y = y.wrapping_add(w.wrapping_mul(x)));
            } else {
                let x = x[inner..].iter().step_by(step);
                y.iter_mut().zip(x).for_each(|(y, &x)| *y = y.wrapping_add(w.wrapping_mul(x)));
            }
        });
    }
}
