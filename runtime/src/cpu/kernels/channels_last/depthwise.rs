//! A filter of its own for each channel: windows summed for vectors of channels.

use super::{Images, Moves, vectors};
use crate::cpu::kernels::finish::{Finish, leave_finished, unrolled};
use crate::cpu::kernels::packed::{self, Packed, Panels};
use crate::cpu::kernels::simd::{Kernel, dispatch};
use crate::cpu::kernels::tile::TileMut;
use crate::cpu::kernels::view::check_reach;
use crate::cpu::scratch::{self, Numbers};
use crate::error::Result;
use crate::threads;
use pulp::Simd;

/// Elements of a tile, about: it is in cache when it is followed up.
const SOME: usize = 1 << 13;

/// Windows that are summed at a time.
const TOGETHER: usize = 4;

/// Images whose channels are side by side.
pub(super) struct Channels<'a> {
    pub(super) data: Numbers<'a, f32>,
    pub(super) offset: usize,
    pub(super) inner: [usize; 2],
    pub(super) channels: usize,
    /// Of images, rows and columns.
    pub(super) distances: [isize; 3],
    pub(super) moves: Moves,
}

impl<'a> Channels<'a> {
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) for images that leave their slice, and
    /// [`Error::Memory`](crate::Error::Memory).
    pub(super) fn new(x: Images<'a>, moves: &Moves) -> Result<Self> {
        check_reach("the images", x.data.len(), x.offset, x.shape.into_iter().zip(x.strides))?;
        let [_, channels, rows, columns] = x.shape;
        let mut own = Self {
            data: Numbers::Lent(x.data),
            offset: x.offset,
            inner: [rows, columns],
            channels,
            distances: [x.strides[0], x.strides[2], x.strides[3]],
            moves: *moves,
        };
        if x.strides[1] != 1 && channels > 1 {
            let mut copied = scratch::take::<f32>(x.shape.iter().product())?;
            super::copy(&mut copied, x, [0; 2], own.inner);
            let line = (columns * channels) as isize;
            own.data = Numbers::Own(copied);
            own.offset = 0;
            own.distances = [rows as isize * line, line, channels as isize];
        }
        Ok(own)
    }

    /// Sums and those of a column's elements times weights, if the column is one of the image. Vectors of channels may be
    /// read whole.
    #[inline(always)]
    fn add_inside<S: Simd, const V: usize>(
        &self,
        simd: S,
        sums: [S::f32s; V],
        (base, column): (isize, isize),
        w: &[S::f32s; V],
    ) -> [S::f32s; V] {
        if column as usize >= self.inner[1] {
            return sums;
        }
        add(simd, sums, &self.data[(base + column * self.distances[2]) as usize..], w)
    }
}

/// Rows of windows to a tile, in windows, and all channels.
pub(super) fn tile(windows: usize, channels: usize, moves: &Moves) -> (usize, usize) {
    let line = moves.outer[1].max(1);
    let lines = windows / line;
    let fair = lines.div_ceil(4 * threads::count());
    let some = (SOME / (line * channels).max(1)).clamp(1, fair.max(1));
    (some * line, channels)
}

/// A tile of y, which begins at this window, the first of its row. `bias` is as long as panels are wide.
pub(super) fn run(
    x: &Channels<'_>,
    filters: &Packed,
    (bias, finish): (&[f32], Finish<'_>),
    place: [usize; 2],
    y: &mut TileMut<'_, f32>,
) {
    dispatch(Tile::new(x, filters, (bias, finish), place, y));
}

pub(super) struct Tile<'a, 'b, 'c> {
    x: &'a Channels<'a>,
    w: Panels<'a>,
    bias: &'a [f32],
    finish: Finish<'a>,
    first: usize,
    y: &'b mut TileMut<'c, f32>,
}

impl<'a, 'b, 'c> Tile<'a, 'b, 'c> {
    pub(super) fn new(
        x: &'a Channels<'a>,
        filters: &'a Packed,
        (bias, finish): (&'a [f32], Finish<'a>),
        [first, _]: [usize; 2],
        y: &'b mut TileMut<'c, f32>,
    ) -> Self {
        Self { x, w: filters.panels(), bias, finish, first, y }
    }
}

/// Where windows of a row begin: the image, and the row of their first elements.
#[derive(Clone, Copy)]
struct Line {
    image: isize,
    row: isize,
    /// The row's first window within the tile.
    at: usize,
}

impl Kernel for Tile<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Moves { kernel: [_, taps], strides: [_, step], dilations: [_, dilation], .. } =
            self.x.moves;
        // Without vectors nothing is gained by knowing the taps when this is compiled.
        if const { S::F32_LANES > 1 } {
            match (taps, step, dilation) {
                (3, 1, 1) => return self.lines::<S, FMA, 3, 1>(simd),
                (5, 1, 1) => return self.lines::<S, FMA, 5, 1>(simd),
                (5, 2, 1) => return self.lines::<S, FMA, 5, 2>(simd),
                (7, 1, 1) => return self.lines::<S, FMA, 7, 1>(simd),
                _ => {}
            }
        }
        self.lines::<S, FMA, 0, 0>(simd);
    }
}

impl Tile<'_, '_, '_> {
    /// All rows of windows, of so many columns and so far from each other; any, if `TAPS` is 0.
    #[inline(always)]
    fn lines<S: Simd, const FMA: bool, const TAPS: usize, const STEP: usize>(mut self, simd: S) {
        let x = self.x;
        let [rows, columns] = x.moves.outer;
        let (height, _) = self.y.sizes();
        for at in (0..height).step_by(columns) {
            let number = (self.first + at) / columns;
            let row = (number % rows * x.moves.strides[0]) as isize - x.moves.before[0] as isize;
            let image = x.offset as isize + (number / rows) as isize * x.distances[0];
            let line = Line { image, row, at };
            let width = packed::width(S::F32_LANES);
            for channel in (0..x.channels).step_by(width) {
                let vectors = width.min(x.channels - channel).div_ceil(S::F32_LANES);
                let own = vectors * S::F32_LANES;
                let panel = &self.w.elements[channel * self.w.depth..][..self.w.depth * own];
                let (panel, _) = S::as_simd_f32s(panel);
                match vectors {
                    1 => self.line::<S, FMA, 1, TAPS, STEP>(simd, line, channel, panel),
                    2 => self.line::<S, FMA, 2, TAPS, STEP>(simd, line, channel, panel),
                    _ => self.line::<S, FMA, { packed::VECTORS }, TAPS, STEP>(
                        simd, line, channel, panel,
                    ),
                }
            }
        }
    }

    /// A row of windows, for some channels.
    #[inline(always)]
    fn line<S: Simd, const FMA: bool, const V: usize, const TAPS: usize, const STEP: usize>(
        &mut self,
        simd: S,
        line: Line,
        channel: usize,
        panel: &[S::f32s],
    ) {
        let (panel, _) = panel.as_chunks::<V>();
        let moves = &self.x.moves;
        let columns = moves.outer[1];
        let (stride, before) = (moves.strides[1] as isize, moves.before[1] as isize);
        let reach = ((moves.kernel[1] - 1) * moves.dilations[1]) as isize;
        // The last place from which vectors end within the images.
        let last = self.x.data.len() as isize - (V * S::F32_LANES) as isize;
        let down = ((moves.kernel[0] - 1) * moves.dilations[0]) as isize;
        let below = (line.row + down).clamp(0, self.x.inner[0] as isize - 1);
        let end = line.image + below * self.x.distances[1] + channel as isize;
        // Whether vectors of any column that windows stand on end within the images.
        let whole = end + (self.x.inner[1] as isize - 1) * self.x.distances[2] <= last;
        let mut column = 0;
        while column < columns {
            // The last windows are summed together with some before them, a second time.
            let first = column.min(columns.saturating_sub(TOGETHER));
            let start = first as isize * stride - before;
            let ahead = start + (TOGETHER as isize - 1) * stride + reach;
            let inside = start >= 0
                && ahead < self.x.inner[1] as isize
                && end + ahead * self.x.distances[2] <= last;
            let left = columns - first;
            if !(whole || inside && left >= TOGETHER) {
                let sums = self.single::<S, V>(simd, line, (column, channel), panel);
                self.leave::<S, FMA, V>(simd, line.at + column, channel, sums);
                column += 1;
                continue;
            }
            let (at, count) = ((first, channel), left.min(TOGETHER));
            let place = (line.at + first, count, channel);
            if const { TAPS > 0 } {
                if inside {
                    let sums = self.known::<S, V, TAPS, STEP, true>(simd, line, at, panel);
                    self.leave_all::<S, FMA, V>(simd, place, sums);
                } else {
                    let sums = self.known::<S, V, TAPS, STEP, false>(simd, line, at, panel);
                    self.leave_all::<S, FMA, V>(simd, place, sums);
                }
            } else if inside && left >= TOGETHER {
                let sums = self.inside::<S, V>(simd, line, at, panel);
                self.leave_all::<S, FMA, V>(simd, place, sums);
            } else {
                let sums = self.edge::<S, V>(simd, line, at, panel);
                self.leave_all::<S, FMA, V>(simd, place, sums);
            }
            column = first + count;
        }
    }

    /// [`TOGETHER`] windows side by side, of so many columns and so far from each other; `INSIDE` says that all columns
    /// that they stand on are the image's. Beyond the row's last window, sums are of no use. Vectors of channels may be read whole.
    #[inline(always)]
    fn known<S: Simd, const V: usize, const TAPS: usize, const STEP: usize, const INSIDE: bool>(
        &self,
        simd: S,
        line: Line,
        (column, channel): (usize, usize),
        panel: &[[S::f32s; V]],
    ) -> [[S::f32s; V]; TOGETHER] {
        const MOST: usize = 11;
        let x = self.x;
        let (elements, outside) = (&*x.data, [0.0; packed::WIDEST]);
        let first = (column * STEP) as isize - x.moves.before[1] as isize;
        let mut sums = [vectors::<S, V>(&self.bias[channel..]); TOGETHER];
        for (row, taps) in self.rows(line, panel) {
            let base = line.image + row * x.distances[1] + channel as isize;
            let mut columns: [&[f32]; MOST] = [&outside; MOST];
            unrolled!(i in [0 1 2 3 4 5 6 7 8 9 10] => if i < (TOGETHER - 1) * STEP + TAPS {
                let column = first + i as isize;
                if INSIDE || (column as usize) < x.inner[1] {
                    let at = (base + column * x.distances[2]) as usize;
                    columns[i] = &elements[at..][..V * S::F32_LANES];
                }
            });
            let taps = taps.first_chunk::<TAPS>().expect("a row of windows has its columns");
            unrolled!(tap in [0 1 2 3 4 5 6] => if tap < TAPS {
                unrolled!(i in [0 1 2 3] => {
                    sums[i] = add(simd, sums[i], columns[i * STEP + tap], &taps[tap]);
                });
            });
        }
        sums
    }

    /// Some windows side by side, all columns that they stand on the image's. Vectors of channels may be read whole.
    #[inline(always)]
    fn inside<S: Simd, const V: usize>(
        &self,
        simd: S,
        line: Line,
        (column, channel): (usize, usize),
        panel: &[[S::f32s; V]],
    ) -> [[S::f32s; V]; TOGETHER] {
        let x = self.x;
        let (moves, elements) = (&x.moves, &*x.data);
        let start = vectors::<S, V>(&self.bias[channel..]);
        let [mut a, mut b, mut c, mut d] = [start; TOGETHER];
        let apart = (moves.strides[1] as isize * x.distances[2]) as usize;
        let width = V * S::F32_LANES;
        for (row, taps) in self.rows(line, panel) {
            let first = (column * moves.strides[1]) as isize - moves.before[1] as isize;
            let base = line.image + row * x.distances[1] + channel as isize;
            for (tap, w) in taps.iter().enumerate() {
                let column = first + (tap * moves.dilations[1]) as isize;
                let at = (base + column * x.distances[2]) as usize;
                let from = &elements[at..][..(TOGETHER - 1) * apart + width];
                a = add(simd, a, from, w);
                b = add(simd, b, &from[apart..], w);
                c = add(simd, c, &from[2 * apart..], w);
                d = add(simd, d, &from[3 * apart..], w);
            }
        }
        [a, b, c, d]
    }

    /// The same wherever the windows stand; beyond the row's last one, sums are of no use. Vectors of channels may be read whole.
    #[inline(always)]
    fn edge<S: Simd, const V: usize>(
        &self,
        simd: S,
        line: Line,
        (column, channel): (usize, usize),
        panel: &[[S::f32s; V]],
    ) -> [[S::f32s; V]; TOGETHER] {
        let x = self.x;
        let moves = &x.moves;
        let start = vectors::<S, V>(&self.bias[channel..]);
        let [mut a, mut b, mut c, mut d] = [start; TOGETHER];
        let stride = moves.strides[1] as isize;
        for (row, taps) in self.rows(line, panel) {
            let first = column as isize * stride - moves.before[1] as isize;
            let base = line.image + row * x.distances[1] + channel as isize;
            for (tap, w) in taps.iter().enumerate() {
                let first = first + (tap * moves.dilations[1]) as isize;
                a = x.add_inside(simd, a, (base, first), w);
                b = x.add_inside(simd, b, (base, first + stride), w);
                c = x.add_inside(simd, c, (base, first + 2 * stride), w);
                d = x.add_inside(simd, d, (base, first + 3 * stride), w);
            }
        }
        [a, b, c, d]
    }

    /// A window, wherever it stands.
    #[inline(always)]
    fn single<S: Simd, const V: usize>(
        &self,
        simd: S,
        line: Line,
        (column, channel): (usize, usize),
        panel: &[[S::f32s; V]],
    ) -> [S::f32s; V] {
        let (x, width) = (self.x, V * S::F32_LANES);
        let moves = &x.moves;
        let mut sums = vectors::<S, V>(&self.bias[channel..]);
        for (row, taps) in self.rows(line, panel) {
            let first = (column * moves.strides[1]) as isize - moves.before[1] as isize;
            let base = line.image + row * x.distances[1] + channel as isize;
            for (tap, w) in taps.iter().enumerate() {
                let column = first + (tap * moves.dilations[1]) as isize;
                if column as usize >= x.inner[1] {
                    continue;
                }
                let from = &x.data[(base + column * x.distances[2]) as usize..];
                if from.len() >= width {
                    sums = add(simd, sums, from, w);
                } else {
                    let mut whole = [0.0; packed::WIDEST];
                    whole[..from.len()].copy_from_slice(from);
                    sums = add(simd, sums, &whole, w);
                }
            }
        }
        sums
    }

    /// The rows of windows that are inside, and their elements of the filters.
    #[inline(always)]
    fn rows<'p, T>(&self, line: Line, panel: &'p [T]) -> impl Iterator<Item = (isize, &'p [T])> {
        let (down, below) = (self.x.moves.dilations[0], self.x.inner[0]);
        let rows = panel.chunks_exact(self.x.moves.kernel[1]).enumerate();
        let rows = rows.map(move |(number, taps)| (line.row + (number * down) as isize, taps));
        rows.filter(move |&(row, _)| (row as usize) < below)
    }

    /// Leaves the sums of so many windows from this one on.
    #[inline(always)]
    fn leave_all<S: Simd, const FMA: bool, const V: usize>(
        &mut self,
        simd: S,
        (first, count, channel): (usize, usize, usize),
        sums: [[S::f32s; V]; TOGETHER],
    ) {
        unrolled!(i in [0 1 2 3] => if i < count {
            self.leave::<S, FMA, V>(simd, first + i, channel, sums[i]);
        });
    }

    #[inline(always)]
    fn leave<S: Simd, const FMA: bool, const V: usize>(
        &mut self,
        simd: S,
        window: usize,
        channel: usize,
        sums: [S::f32s; V],
    ) {
        let number = (self.first + window) * self.x.channels + channel;
        let row = self.y.row(window);
        let end = row.len().min(channel + V * S::F32_LANES);
        let finish = (self.finish, number);
        leave_finished::<S, FMA, V>(simd, &mut row[channel..end], sums, false, finish);
    }
}

/// Sums and those of elements times weights. They are given and taken by value, so that they stay in registers.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Numbers that the compiler knows: vectors of sums stay in registers.
fn add<S: Simd, const V: usize>(
    simd: S,
    mut sums: [S::f32s; V],
    x: &[f32],
    w: &[S::f32s; V],
) -> [S::f32s; V] {
    let (x, _) = S::as_simd_f32s(&x[..V * S::F32_LANES]);
    for i in 0..V {
        sums[i] = simd.mul_add_e_f32s(x[i], w[i], sums[i]);
    }
    sums
}
