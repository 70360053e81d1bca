//! Convolutions: windows unrolled into columns of a matrix, a block at a time, and one matmul for
//! each block. Windows of one element are columns already; few filters a group are summed directly.

mod integers;

use super::depthwise::Windows;
use super::gemm::batched;
use super::matrix::{Matrix, MatrixMut, Size, Strides};
use super::packed::{Packed, Panels};
use super::simd::{Kernel, dispatch, mul_add};
use super::tile::TileMut;
use super::view::{check_size, elements};
use super::window::Grid;
use crate::cpu::scratch;
use crate::error::Result;
use crate::threads::{self, chunks, chunks_mut};
use pulp::Simd;

pub use super::window::Geometry;
pub(crate) use integers::{Filters, are_packed, conv_integers};

/// Elements of unrolled windows that a thread holds at a time.
const UNROLLED: usize = 1 << 17;

/// With fewer filters a group than this, a matmul is not worth unrolling for.
const FEW: usize = 4;

/// Elements of planes that are computed, or followed up, at a time, about.
const SOME: usize = 1 << 13;

/// Sizes of a convolution `x[n, g·c, inner…], w[g·m, c, kernel…] → y[n, g·m, outer…]`, or of its
/// transpose `x[n, g·c, outer…], w[g·c, m, kernel…] → y[n, g·m, inner…]`.
#[derive(Debug, Clone, Copy)]
pub struct Conv<'a> {
    /// n.
    pub images: usize,
    /// g.
    pub groups: usize,
    /// c.
    pub channels: usize,
    /// m.
    pub filters: usize,
    /// The spatial axes.
    pub geometry: Geometry<'a>,
}

struct Lens {
    x: usize,
    w: usize,
    y: usize,
}

impl Conv<'_> {
    fn check(&self, lens: Lens, grid: &Grid, transposed: bool, bias: Option<&[f32]>) -> Result<()> {
        let &Self { images, groups, channels, filters, .. } = self;
        let (from, to) = match transposed {
            false => (grid.inner(), grid.outer()),
            true => (grid.outer(), grid.inner()),
        };
        let check = |what, shape: &[usize], found| check_size(what, elements(what, shape)?, found);
        check("length of the images", &[images, groups, channels, from], lens.x)?;
        check("length of the filters", &[groups, channels, filters, grid.taps()], lens.w)?;
        check("length of a convolution", &[images, groups, filters, to], lens.y)?;
        let count = elements("the filters", &[groups, filters])?;
        check_size("length of a convolution's bias", count, bias.map_or(count, <[f32]>::len))
    }
}

/// One group's part of one image: its operands, and what its filters begin with.
struct Part<'a, T> {
    x: &'a [T],
    w: &'a [T],
    bias: Option<&'a [T]>,
    channels: usize,
    filters: usize,
    grid: &'a Grid,
}

/// A convolution over contiguous operands.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if a slice is not as long as its shape;
/// [`Error::Unsupported`](crate::Error::Unsupported) beyond three spatial axes.
pub fn conv(
    y: &mut [f32],
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    conv: Conv<'_>,
) -> Result<()> {
    conv_then(y, x, w, bias, conv, |_, _| {})
}

/// How [`conv`] computes these sizes, for profiles.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) beyond three spatial axes.
pub(crate) fn algorithm(conv: Conv<'_>) -> Result<&'static str> {
    let grid = Grid::new(conv.geometry)?;
    Ok(match grid.is_identity() {
        _ if conv.filters < FEW => "direct",
        true => "GEMM",
        false => "im2col",
    })
}

/// As [`conv`], and `then(first, elements)` runs on each part of `y` right after it is computed, while it
/// may be in cache; `first` is the part's first element. Parts are disjoint, cover `y`, and are visited by
/// several threads in any order.
///
/// # Errors
/// As [`conv`].
pub fn conv_then(
    y: &mut [f32],
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    conv: Conv<'_>,
    then: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<()> {
    let grid = Grid::new(conv.geometry)?;
    conv.check(Lens { x: x.len(), w: w.len(), y: y.len() }, &grid, false, bias)?;
    if conv.filters < FEW && !y.is_empty() {
        return few(y, x, w, bias, conv, &grid, then);
    }
    let depth = conv.channels * grid.taps();
    let columns = if grid.is_identity() { 0 } else { unrolled(depth, grid.outer()) };
    let memory = Panels::len(depth, width(depth, grid.outer())) + columns.next_multiple_of(16);
    each_part(y, conv, conv.filters * grid.outer(), memory, |part, y, memory, spread| {
        let first = part * y.len();
        let part = part_of(part, x, w, bias, conv, &grid);
        part.unrolled(y, memory, spread);
        if spread {
            let some = planes(conv.filters, grid.outer());
            let len = some * grid.outer();
            threads::each(1, chunks_mut(y, len), |number, y| {
                part.add_bias(number * some, y);
                then(first + number * len, y);
            });
        } else {
            part.add_bias(0, y);
            then(first, y);
        }
        Ok(())
    })
}

/// Planes that are computed, or followed up, at a time: enough elements for that to be worth a call, and as many parts
/// as threads share well.
fn planes(count: usize, plane: usize) -> usize {
    (SOME / plane.max(1)).min(count.div_ceil(4 * threads::count())).max(1)
}

/// A convolution of few filters a group, plane by plane.
fn few(
    y: &mut [f32],
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    conv: Conv<'_>,
    grid: &Grid,
    then: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<()> {
    let plane = grid.outer();
    // More channels are summed one by one.
    let windows = if conv.channels == 1 { Windows::new(conv.geometry) } else { None };
    let some = planes(y.len() / plane, plane);
    let each = windows.as_ref().map_or(0, |windows| windows.len().next_multiple_of(16));
    let mut memory = scratch::zeros::<f32>(each * threads::count())?;
    threads::try_each_within(&mut memory, 1, chunks_mut(y, some * plane), |memory, number, y| {
        for (i, y) in y.chunks_exact_mut(plane).enumerate() {
            let number = number * some + i;
            let (part, filter) = (number / conv.filters, number % conv.filters);
            let part = part_of(part, x, w, bias, conv, grid);
            match &windows {
                Some(windows) => {
                    let w = &part.w[filter * grid.taps()..][..grid.taps()];
                    windows.sum(y, part.x, w, part.bias(filter), memory);
                }
                None => part.direct(y, filter),
            }
        }
        then(number * some * plane, y);
        Ok(())
    })
}

/// The transpose of a convolution over contiguous operands.
///
/// # Errors
/// As [`conv`].
pub fn conv_transpose(
    y: &mut [f32],
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    conv: Conv<'_>,
) -> Result<()> {
    let grid = Grid::new(conv.geometry)?;
    conv.check(Lens { x: x.len(), w: w.len(), y: y.len() }, &grid, true, bias)?;
    let unrolled = unrolled(conv.filters * grid.taps(), grid.outer());
    each_part(y, conv, conv.filters * grid.inner(), unrolled, |part, y, columns, spread| {
        part_of(part, x, w, bias, conv, &grid).transposed(y, columns, spread)
    })
}

/// Runs every image's groups: spread over the threads if there are enough, else each by all threads. `run` has
/// `unrolled` elements to work in.
fn each_part(
    y: &mut [f32],
    conv: Conv<'_>,
    size: usize,
    unrolled: usize,
    run: impl Fn(usize, &mut [f32], &mut [f32], bool) -> Result<()> + Sync,
) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    let spread = conv.images * conv.groups < threads::count();
    if spread {
        let mut columns = scratch::take::<f32>(unrolled)?;
        let mut parts = y.chunks_exact_mut(size).enumerate();
        return parts.try_for_each(|(part, y)| run(part, y, &mut columns, true));
    }
    let mut columns = scratch::take::<f32>(unrolled * threads::count())?;
    threads::try_each_within(&mut columns, 1, chunks_mut(y, size), |columns, part, y| {
        run(part, y, columns, false)
    })
}

fn part_of<'a>(
    part: usize,
    x: &'a [f32],
    w: &'a [f32],
    bias: Option<&'a [f32]>,
    conv: Conv<'_>,
    grid: &'a Grid,
) -> Part<'a, f32> {
    let Conv { images, groups, channels, filters, .. } = conv;
    let (group, each) = (part % groups, x.len() / (images * groups));
    let weights = w.len() / groups;
    Part {
        x: &x[part * each..][..each],
        w: &w[group * weights..][..weights],
        bias: bias.map(|bias| &bias[group * filters..][..filters]),
        channels,
        filters,
        grid,
    }
}

fn matrix<T>(data: T, offset: usize, row: usize, column: usize) -> (T, Strides<'static>) {
    (data, Strides { offset, batch: &[], row: row as isize, column: column as isize })
}

impl Part<'_, f32> {
    fn bias(&self, filter: usize) -> f32 {
        self.bias.map_or(0.0, |bias| bias[filter])
    }

    /// One filter's plane, summed row by row.
    fn direct(&self, y: &mut [f32], filter: usize) {
        y.fill(self.bias(filter));
        let (size, taps) = (self.grid.inner(), self.grid.taps());
        for channel in 0..self.channels {
            let w = &self.w[(filter * self.channels + channel) * taps..][..taps];
            dispatch(Direct { y, x: &self.x[channel * size..][..size], w, grid: self.grid });
        }
    }

    /// All filters by matmuls of blocks of unrolled windows, which are brought into panels: filters are read as they lie.
    fn unrolled(&self, y: &mut [f32], memory: &mut [f32], spread: bool) {
        let (taps, windows) = (self.grid.taps(), self.grid.outer());
        let depth = self.channels * taps;
        let in_place = self.grid.is_identity();
        let most = width(depth, windows);
        let (panels, columns) = memory.split_at_mut(Panels::len(depth, most));
        for first in (0..windows).step_by(most) {
            let width = most.min(windows - first);
            if !in_place {
                self.unroll(&mut columns[..depth * width], first, width, spread);
            }
            let (data, at) = match in_place {
                true => matrix(self.x, first, windows, 1),
                false => matrix(&columns[..], 0, width, 1),
            };
            let (w, w_at) = matrix(self.w, 0, depth, 1);
            let (a, b) = (Matrix { data: w, at: w_at }, Matrix { data, at });
            let [_, rest] = TileMut::new(y, windows).split_columns(first);
            let [mut c, _] = rest.split_columns(width);
            match spread {
                true => Panels::spread(b, [depth, width], panels).multiply_spread(a, c),
                false => Panels::new(b, [depth, width], panels).multiply(a, &mut c),
            }
        }
    }

    /// Adds the bias to planes from that of a filter on.
    fn add_bias(&self, filter: usize, planes: &mut [f32]) {
        if let Some(bias) = self.bias {
            let planes = planes.chunks_exact_mut(self.grid.outer());
            planes.zip(&bias[filter..]).for_each(|(plane, &bias)| dispatch(AddScalar(plane, bias)));
        }
    }

    /// Matmuls of blocks of places, whose columns are added where their windows stand.
    fn transposed(&self, y: &mut [f32], columns: &mut [f32], spread: bool) -> Result<()> {
        let (size, taps, places) = (self.grid.inner(), self.grid.taps(), self.grid.outer());
        for (filter, plane) in y.chunks_exact_mut(size).enumerate() {
            plane.fill(self.bias(filter));
        }
        let height = self.filters * taps;
        let width = width(height, places);
        for first in (0..places).step_by(width) {
            let width = width.min(places - first);
            let columns = &mut columns[..height * width];
            let (w, w_at) = matrix(self.w, 0, 1, height);
            let (x, x_at) = matrix(self.x, first, places, 1);
            let (to, to_at) = matrix(&mut columns[..], 0, width, 1);
            batched(
                Size { batch: &[], m: height, n: width, k: self.channels },
                1.0,
                Matrix { data: w, at: w_at },
                Matrix { data: x, at: x_at },
                MatrixMut { data: to, at: to_at },
                spread,
            )?;
            let planes = (chunks_mut(y, size), chunks(columns, width * taps));
            let least = if spread { 1 } else { self.filters };
            threads::each(least, planes, |_, (plane, lines)| {
                dispatch(Roll { plane, lines, first, width, grid: self.grid });
            });
        }
        Ok(())
    }
}

impl<T: Copy + Default + Send + Sync> Part<'_, T> {
    /// Windows `first..first + width` as columns: row `channel·taps + tap` holds that element of each.
    fn unroll(&self, columns: &mut [T], first: usize, width: usize, spread: bool) {
        let (size, taps) = (self.grid.inner(), self.grid.taps());
        let step = self.grid.step();
        let row = |(row, line): (usize, &mut [T])| {
            let plane = &self.x[row / taps * size..][..size];
            let mut done = 0;
            self.grid.runs(row % taps, first, first + width, |at, count, inner| {
                line[done..at].fill(T::default());
                let to = &mut line[at..at + count];
                if step == 1 {
                    to.copy_from_slice(&plane[inner..inner + count]);
                } else {
                    let from = plane[inner..].iter().step_by(step);
                    to.iter_mut().zip(from).for_each(|(to, &from)| *to = from);
                }
                done = at + count;
            });
            line[done..].fill(T::default());
        };
        if spread {
            threads::each(16, chunks_mut(columns, width), |number, line| row((number, line)));
        } else {
            columns.chunks_exact_mut(width).enumerate().for_each(row);
        }
    }
}

/// Elements of the windows unrolled at a time, at most.
fn unrolled(depth: usize, windows: usize) -> usize {
    depth * width(depth, windows)
}

/// Windows unrolled at a time.
fn width(depth: usize, windows: usize) -> usize {
    (UNROLLED / depth.max(1)).max(64).next_multiple_of(Packed::COLUMNS).min(windows).max(1)
}

struct AddScalar<'a>(&'a mut [f32], f32);

impl Kernel for AddScalar<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        self.0.iter_mut().for_each(|y| *y += self.1);
    }
}

/// Adds one channel's windows, weighted.
struct Direct<'a> {
    y: &'a mut [f32],
    x: &'a [f32],
    w: &'a [f32],
    grid: &'a Grid,
}

impl Kernel for Direct<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Direct { y, x, w, grid } = self;
        let step = grid.step();
        grid.sweep(|window, count, inner, tap| {
            let (y, w) = (&mut y[window..window + count], w[tap]);
            if step == 1 {
                let x = &x[inner..inner + count];
                y.iter_mut().zip(x).for_each(|(y, &x)| *y = mul_add::<FMA>(w, x, *y));
            } else {
                let x = x[inner..].iter().step_by(step);
                y.iter_mut().zip(x).for_each(|(y, &x)| *y = mul_add::<FMA>(w, x, *y));
            }
        });
    }
}

/// Adds lines of unrolled windows, one for each element of the window, where they stand.
struct Roll<'a> {
    plane: &'a mut [f32],
    lines: &'a [f32],
    first: usize,
    width: usize,
    grid: &'a Grid,
}

impl Kernel for Roll<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Roll { plane, lines, first, width, grid } = self;
        let step = grid.step();
        for (tap, line) in lines.chunks_exact(width).enumerate() {
            grid.runs(tap, first, first + width, |at, count, inner| {
                let line = &line[at..at + count];
                if step == 1 {
                    let to = &mut plane[inner..inner + count];
                    to.iter_mut().zip(line).for_each(|(y, &x)| *y += x);
                } else {
                    let to = plane[inner..].iter_mut().step_by(step);
                    to.zip(line).for_each(|(y, &x)| *y += x);
                }
            });
        }
    }
}
