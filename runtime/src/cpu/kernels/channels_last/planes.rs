//! Images of few channels whose rows lie whole, as a network's first convolution has them: some neighbouring windows are
//! summed for vectors of filters, and read the planes as they are.

use super::{Images, Moves, vectors};
use crate::cpu::kernels::finish::{Finish, leave_finished, unrolled};
use crate::cpu::kernels::packed::{self, Packed, Panels};
use crate::cpu::kernels::simd::{Kernel, dispatch};
use crate::cpu::kernels::tile::TileMut;
use crate::cpu::scratch::{self, Buffer};
use crate::error::{Error, Result};
use crate::threads::{self, chunks_mut};
use pulp::Simd;

/// Windows that are summed at a time by 32 registers: with three vectors of filters their sums fill three quarters of them.
const MOST: usize = 8;

/// The same by 16 registers, with two vectors of filters.
const FEWER: usize = 6;

/// Elements that a thread copies at least.
const COPIED: usize = 1 << 13;

/// Planes with their borders.
pub(super) struct Planes {
    data: Buffer<f32>,
    channels: usize,
    /// Rows and columns of a plane.
    shape: [usize; 2],
    moves: Moves,
}

impl Planes {
    /// Whether images and windows are such, and vectors long enough for it to be worth it.
    pub(super) fn fit(x: &Images<'_>, moves: &Moves) -> bool {
        let [_, channels, _, _] = x.shape;
        let steps = matches!(moves.strides[1], 1 | 2 | 4);
        let windows = steps && moves.kernel[1] > 1 && moves.outer[1] >= MOST;
        let whole = x.strides[3] == 1 && x.strides[1] != 1;
        windows && whole && channels < super::FEW && packed::lanes() >= 8
    }

    /// # Errors
    /// [`Error::TooLarge`] and [`Error::Memory`].
    pub(super) fn new(x: Images<'_>, moves: &Moves) -> Result<Self> {
        let [images, channels, height, width] = x.shape;
        let shape @ [rows, columns] = moves.reach()?;
        let planes = images.checked_mul(channels).and_then(|planes| planes.checked_mul(rows));
        let size = planes.and_then(|rows| rows.checked_mul(columns));
        let size = size.ok_or(Error::TooLarge { what: "the copied images" })?;
        let mut data = scratch::take::<f32>(size)?;
        // The columns of a line that the image has, and where the first of them is in it.
        let [top, left] = moves.before;
        let end = (width as i64 + left).clamp(0, columns as i64) as usize;
        let first = (left.max(0) as usize).min(end);
        let skipped = first as i64 - left;
        let lines = chunks_mut(&mut data, columns);
        threads::each(COPIED / columns + 1, lines, |number, line| {
            let (plane, row) = (number / rows, (number % rows) as i64 - top);
            if !(0..height as i64).contains(&row) {
                return line.fill(0.0);
            }
            let (image, channel) = ((plane / channels) as isize, (plane % channels) as isize);
            let start = image * x.strides[0] + channel * x.strides[1] + row as isize * x.strides[2];
            let start = x.offset as isize + start + skipped as isize;
            line[..first].fill(0.0);
            line[first..end].copy_from_slice(&x.data[start as usize..][..end - first]);
            line[end..].fill(0.0);
        });
        Ok(Self { data, channels, shape, moves: *moves })
    }
}

/// A tile of y, which begins at this window, the first of its row. `bias` is as long as panels are wide.
pub(super) fn run(
    x: &Planes,
    filters: &Packed,
    (bias, finish): (&[f32], Finish<'_>),
    first: usize,
    y: &mut TileMut<'_, f32>,
) {
    dispatch(Tile::new(x, filters, (bias, finish), first, y));
}

pub(super) struct Tile<'a, 'b, 'c> {
    x: &'a Planes,
    w: Panels<'a>,
    bias: &'a [f32],
    finish: Finish<'a>,
    first: usize,
    y: &'b mut TileMut<'c, f32>,
}

impl<'a, 'b, 'c> Tile<'a, 'b, 'c> {
    pub(super) fn new(
        x: &'a Planes,
        filters: &'a Packed,
        (bias, finish): (&'a [f32], Finish<'a>),
        first: usize,
        y: &'b mut TileMut<'c, f32>,
    ) -> Self {
        Self { x, w: filters.panels(), bias, finish, first, y }
    }
}

impl Kernel for Tile<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        if const { S::REGISTER_COUNT < 32 } {
            match self.x.moves.strides[1] {
                1 => self.lines::<S, FMA, FEWER, 1, FEWER>(simd),
                2 => self.lines::<S, FMA, FEWER, 2, { 2 * FEWER - 1 }>(simd),
                _ => self.lines::<S, FMA, FEWER, 4, { 4 * FEWER - 3 }>(simd),
            }
        } else {
            match self.x.moves.strides[1] {
                1 => self.lines::<S, FMA, MOST, 1, MOST>(simd),
                2 => self.lines::<S, FMA, MOST, 2, { 2 * MOST - 1 }>(simd),
                _ => self.lines::<S, FMA, MOST, 4, { 4 * MOST - 3 }>(simd),
            }
        }
    }
}

impl Tile<'_, '_, '_> {
    /// All rows of windows, which step over `STEP` columns; `N` of them stand on `SPAN` columns together.
    #[inline(always)]
    fn lines<S: Simd, const FMA: bool, const N: usize, const STEP: usize, const SPAN: usize>(
        mut self,
        simd: S,
    ) {
        let [rows, columns] = self.x.moves.outer;
        let (height, _) = self.y.sizes();
        let width = packed::width(S::F32_LANES);
        let plane = self.x.shape[0] * self.x.shape[1];
        for at in (0..height).step_by(columns) {
            let number = (self.first + at) / columns;
            let image = number / rows * self.x.channels * plane;
            let line = image + number % rows * self.x.moves.strides[0] * self.x.shape[1];
            for column in (0..columns).step_by(N) {
                // The last windows are summed together with some before them, a second time.
                let column = column.min(columns - N);
                let (from, window) = (line + column * STEP, at + column);
                for filter in (0..self.w.columns).step_by(width) {
                    let vectors = width.min(self.w.columns - filter).div_ceil(S::F32_LANES);
                    let own = vectors * S::F32_LANES;
                    let panel = &self.w.elements[filter * self.w.depth..][..self.w.depth * own];
                    let (panel, _) = S::as_simd_f32s(panel);
                    let at = (from, window, filter);
                    match vectors {
                        1 => self.group::<S, FMA, N, STEP, SPAN, 1>(simd, at, panel),
                        2 => self.group::<S, FMA, N, STEP, SPAN, 2>(simd, at, panel),
                        _ => {
                            self.group::<S, FMA, N, STEP, SPAN, { packed::VECTORS }>(
                                simd, at, panel,
                            );
                        }
                    }
                }
            }
        }
    }

    /// Some windows, from this place of the first plane on, for some filters.
    #[inline(always)]
    fn group<
        S: Simd,
        const FMA: bool,
        const N: usize,
        const STEP: usize,
        const SPAN: usize,
        const V: usize,
    >(
        &mut self,
        simd: S,
        (from, window, filter): (usize, usize, usize),
        panel: &[S::f32s],
    ) {
        let Planes { data, channels, shape: [rows, columns], moves } = self.x;
        let (panel, _) = panel.as_chunks::<V>();
        let row = Row {
            taps: moves.kernel[1],
            dilation: moves.dilations[1],
            channels: *channels,
            plane: rows * columns,
        };
        let mut sums = [vectors::<S, V>(&self.bias[filter..]); N];
        for (number, panel) in panel.chunks_exact(row.taps * row.channels).enumerate() {
            let x = &data[from + number * moves.dilations[0] * columns..];
            sums = add::<S, N, STEP, SPAN, V>(simd, sums, x, &row, panel);
        }
        const { assert!(N <= MOST && MOST == 8) }
        unrolled!(i in [0 1 2 3 4 5 6 7] => if i < N {
            let number = (self.first + window + i) * self.w.columns + filter;
            let row = self.y.row(window + i);
            let end = row.len().min(filter + V * S::F32_LANES);
            let (row, finish) = (&mut row[filter..end], (self.finish, number));
            leave_finished::<S, FMA, V>(simd, row, sums[i], false, finish);
        });
    }
}

/// A row of windows' elements: its taps and the distance between them, and channels and the distance between those.
struct Row {
    taps: usize,
    dilation: usize,
    channels: usize,
    plane: usize,
}

/// Sums and those of a row's elements times weights. They are given and taken by value, so that they stay in registers.
#[inline(always)]
fn add<S: Simd, const N: usize, const STEP: usize, const SPAN: usize, const V: usize>(
    simd: S,
    sums: [[S::f32s; V]; N],
    x: &[f32],
    row: &Row,
    panel: &[[S::f32s; V]],
) -> [[S::f32s; V]; N] {
    let mut own = sums;
    let mut weights = panel.iter();
    for tap in 0..row.taps {
        for (channel, w) in (0..row.channels).zip(&mut weights) {
            let x = x[tap * row.dilation + channel * row.plane..].first_chunk::<SPAN>();
            let x = x.expect("planes reach as far as windows do");
            for (i, sums) in own.iter_mut().enumerate() {
                let x = simd.splat_f32s(x[i * STEP]);
                for (sum, &w) in sums.iter_mut().zip(w) {
                    *sum = simd.mul_add_e_f32s(x, w, *sum);
                }
            }
        }
    }
    own
}
