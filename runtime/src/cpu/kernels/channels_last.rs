//! Convolutions and poolings of images whose channels are side by side, `x[n, h, w, c] → y[n, h, w, m]`.
//!
//! An element of the windows is a run of channels wherever it stands, so a convolution is a matmul of windows by
//! prepacked filters whose rows of A are read in place, run by run: nothing is unrolled. Images of few channels, and
//! those that lie in another order, are copied once with their borders; a run is then a row of a window. Planes of few
//! channels stay planes. Windows of 3 × 3 that move by one are transformed where that saves multiplications.

mod depthwise;
mod matmul;
mod planes;
mod pool;
pub(crate) mod winograd;

pub(crate) use pool::{largest, pool};

use super::finish::Finish;
use super::matrix::{Matrix, Strides};
use super::packed::Packed;
use super::tile::{Cut, Grid, TileMut};
use super::view::{check_reach, check_size};
use super::window::Geometry;
use crate::cpu::scratch::{self, Buffer, Numbers};
use crate::error::{Error, Result};
use crate::threads::{self, chunks_mut};
use pulp::Simd;
use smallvec::SmallVec;

/// Images of fewer channels are copied, where windows have several columns.
const FEW: usize = 16;

/// Filters of a block when weights are turned.
const TURNED: usize = 16;

/// Images `[n, c, h, w]`, however they lie.
#[derive(Clone, Copy)]
pub(crate) struct Images<'a, T = f32> {
    pub(crate) data: &'a [T],
    pub(crate) offset: usize,
    /// Sizes and strides of images, channels, rows and columns.
    pub(crate) shape: [usize; 4],
    pub(crate) strides: [isize; 4],
}

/// How windows move along rows and columns.
#[derive(Clone, Copy)]
pub(crate) struct Moves {
    pub(crate) outer: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) strides: [usize; 2],
    pub(crate) dilations: [usize; 2],
    pub(crate) before: [i64; 2],
}

impl Moves {
    /// Those of one or two axes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for others.
    pub(crate) fn new(on: Geometry<'_>) -> Result<Self> {
        fn two<T: Copy>(values: &[T], single: T) -> Result<[T; 2]> {
            match *values {
                [one] => Ok([single, one]),
                [a, b] => Ok([a, b]),
                _ => Err(Error::Unsupported { what: "windows of this rank" }),
            }
        }
        Ok(Self {
            outer: two(on.outer, 1)?,
            kernel: two(on.kernel, 1)?,
            strides: two(on.strides, 1)?,
            dilations: two(on.dilations, 1)?,
            before: two(on.before, 0)?,
        })
    }

    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Rows and columns that all windows together stand on, with their borders.
    pub(super) fn reach(&self) -> Result<[usize; 2]> {
        let along = |axis: usize| {
            let all = self.outer[axis].saturating_sub(1).checked_mul(self.strides[axis])?;
            let own = (self.kernel[axis] - 1).checked_mul(self.dilations[axis])?;
            all.checked_add(own)?.checked_add(1)
        };
        let large = Error::TooLarge { what: "a window" };
        along(0).zip(along(1)).map(|(rows, columns)| [rows, columns]).ok_or(large)
    }
}

/// The elements of windows: where runs of them lie.
struct Windows<'a> {
    data: Numbers<'a, f32>,
    /// What a run outside of its image is.
    zeros: Buffer<f32>,
    /// Elements of a run.
    run: usize,
    /// For each run of a window its row and column from the window's first.
    steps: SmallVec<[[isize; 2]; 64]>,
    inner: [usize; 2],
    outer: [usize; 2],
    strides: [isize; 2],
    before: [isize; 2],
    /// The first element, and the distances of images, rows and columns.
    offset: usize,
    distances: [isize; 3],
    /// The distance of windows, where each is one run and they lie one after the other.
    apart: Option<usize>,
}

/// A window's image and first place.
#[derive(Clone, Copy, Default)]
struct Place {
    image: isize,
    row: isize,
    column: isize,
}

impl<'a> Windows<'a> {
    /// # Errors
    /// [`Error::OutOfBounds`] for images that leave their slice, [`Error::TooLarge`] and [`Error::Memory`].
    fn new(x: Images<'a>, moves: &Moves) -> Result<Self> {
        let [images, channels, rows, columns] = x.shape;
        let axes = x.shape.into_iter().zip(x.strides);
        check_reach("the images", x.data.len(), x.offset, axes)?;
        let [high, wide] = moves.kernel;
        let in_place = x.strides[1] == 1 || channels == 1;
        let whole = moves.dilations[1] == 1 && (channels < FEW || !in_place);
        let copies = !in_place || whole && wide > 1;
        let runs = if copies && whole { 1 } else { wide };
        let steps = (0..high).flat_map(|row| (0..runs).map(move |column| (row, column)));
        let step = |(row, column): (usize, usize)| {
            [row * moves.dilations[0], column * moves.dilations[1]].map(|size| size as isize)
        };
        let steps = steps.map(step).collect();
        let run = if copies && whole { wide * channels } else { channels };
        let mut windows = Self {
            data: Numbers::Lent(x.data),
            zeros: scratch::zeros(run)?,
            run,
            steps,
            inner: [rows, columns],
            outer: moves.outer,
            strides: moves.strides.map(|stride| stride as isize),
            before: moves.before.map(|before| before as isize),
            offset: x.offset,
            distances: [x.strides[0], x.strides[2], x.strides[3]],
            apart: None,
        };
        if copies {
            let [rows, columns] = moves.reach()?;
            let line = columns.checked_mul(channels);
            let size = line.and_then(|line| line.checked_mul(rows)?.checked_mul(images));
            let size = size.ok_or(Error::TooLarge { what: "the copied images" })?;
            let mut copied = scratch::take::<f32>(size)?;
            copy(&mut copied, x, moves.before, [rows, columns]);
            windows.data = Numbers::Own(copied);
            windows.inner = [rows, columns];
            windows.before = [0; 2];
            windows.offset = 0;
            let line = columns * channels;
            windows.distances = [(rows * line) as isize, line as isize, channels as isize];
        }
        windows.apart = windows.apart();
        Ok(windows)
    }

    fn apart(&self) -> Option<usize> {
        let [of_image, of_row, of_column] = self.distances;
        let [rows, columns] = self.inner.map(|size| size as isize);
        let still = self.strides == [1; 2] && self.before == [0; 2] && self.outer == self.inner;
        let row_by_row = of_row == columns * of_column && of_image == rows * of_row;
        let whole = self.steps.len() == 1 && still && row_by_row;
        usize::try_from(of_column).ok().filter(|_| whole)
    }

    /// Where windows begin, from this one on.
    #[inline(always)]
    fn places(&self, first: usize, places: &mut [Place]) {
        let [rows, columns] = self.outer;
        let (mut place, [mut line, mut column]) =
            (self.place(first), [first / columns % rows, first % columns]);
        for to in places {
            *to = place;
            (column, place.column) = (column + 1, place.column + self.strides[1]);
            if column == columns {
                (column, place.column) = (0, -self.before[1]);
                (line, place.row) = (line + 1, place.row + self.strides[0]);
            }
            if line == rows {
                (line, place.row) = (0, -self.before[0]);
                place.image += self.distances[0];
            }
        }
    }

    /// Where a window begins.
    #[inline(always)]
    fn place(&self, window: usize) -> Place {
        let [rows, columns] = self.outer;
        let (line, column) = (window / columns, window % columns);
        Place {
            image: self.offset as isize + (line / rows) as isize * self.distances[0],
            row: (line % rows) as isize * self.strides[0] - self.before[0],
            column: column as isize * self.strides[1] - self.before[1],
        }
    }

    /// A run of a window on these images.
    #[inline(always)]
    fn run<'b>(&'b self, x: &'b [f32], place: Place, [row, column]: [isize; 2]) -> &'b [f32] {
        let (row, column) = (place.row + row, place.column + column);
        if (row as usize) < self.inner[0] && (column as usize) < self.inner[1] {
            let at = place.image + row * self.distances[1] + column * self.distances[2];
            &x[at as usize..][..self.run]
        } else {
            &self.zeros
        }
    }
}

/// Copies images with their borders, channels innermost.
fn copy(to: &mut [f32], x: Images<'_>, before: [i64; 2], [rows, columns]: [usize; 2]) {
    let [_, channels, height, width] = x.shape;
    let line = (columns * channels).max(1);
    threads::each((1 << 13) / line + 1, chunks_mut(to, line), |number, line| {
        let (image, row) = (number / rows, (number % rows) as i64 - before[0]);
        let inside = usize::try_from(row).is_ok_and(|row| row < height);
        if !inside {
            return line.fill(0.0);
        }
        let place = |column: usize| column as i64 - before[1];
        let is_inside = |column: &usize| (0..width as i64).contains(&place(*column));
        let first = (0..columns).find(is_inside).unwrap_or(columns);
        let end = first + (first..columns).take_while(is_inside).count();
        line[..first * channels].fill(0.0);
        line[end * channels..].fill(0.0);
        let start = x.offset as isize + image as isize * x.strides[0] + row as isize * x.strides[2];
        for channel in 0..channels {
            let start = start + channel as isize * x.strides[1];
            let own = line[first * channels..end * channels].iter_mut();
            for (column, to) in own.skip(channel).step_by(channels).enumerate() {
                let column = place(first + column) as isize;
                *to = x.data[(start + column * x.strides[3]) as usize];
            }
        }
    });
}

/// Filters `w[m, c, taps]` as [`convolve`] takes them: rows are the channels of each element of a window; or, with
/// `depthwise`, `w[c, 1, taps]` with the elements of a window as rows.
///
/// # Errors
/// As [`Packed::new`].
pub(crate) fn pack_filters(
    w: &[f32],
    [filters, channels, taps]: [usize; 3],
    depthwise: bool,
) -> Result<Packed> {
    check_size("length of the filters", filters * channels * taps, w.len())?;
    let (deep, across) = (channels * taps, (channels * taps) as isize);
    let strides = |row, column| Strides { offset: 0, batch: &[], row, column };
    if taps == 1 || depthwise {
        return Packed::new(Matrix { data: w, at: strides(1, across) }, deep, filters);
    }
    let mut turned = scratch::take::<f32>(w.len())?;
    for first in (0..filters).step_by(TURNED) {
        let some = first..filters.min(first + TURNED);
        for (place, row) in (0..deep).map(|place| (place, place % taps * channels + place / taps)) {
            let to = &mut turned[row * filters..][some.clone()];
            let from = some.clone().map(|filter| w[filter * deep + place]);
            to.iter_mut().zip(from).for_each(|(to, x)| *to = x);
        }
    }
    let at = strides(filters as isize, 1);
    Packed::new(Matrix { data: &turned, at }, deep, filters)
}

/// The first `V` vectors of a slice.
#[inline(always)]
fn vectors<S: Simd, const V: usize>(elements: &[f32]) -> [S::f32s; V] {
    let (vectors, _) = S::as_simd_f32s(&elements[..V * S::F32_LANES]);
    std::array::from_fn(|i| vectors[i])
}

/// How windows and filters are multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// Windows as they are, of one group.
    Windows,
    /// A group for each channel.
    Depthwise,
    /// Transformed, of one group: windows of 3 × 3 that move by one.
    Winograd,
}

impl Form {
    /// The name in profiles.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Windows => "implicit GEMM",
            Self::Depthwise => "direct",
            Self::Winograd => "Winograd",
        }
    }
}

/// What a form reads of the images.
#[allow(clippy::large_enum_variant)] // There is one for a convolution, on the stack.
enum Way<'a> {
    Windows(Windows<'a>),
    Planes(planes::Planes),
    Depthwise(depthwise::Channels<'a>),
    Winograd(depthwise::Channels<'a>),
}

/// A tile of `y`: its first row and column, and how many it has of each.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) column: usize,
    pub(crate) columns: usize,
}

/// A convolution into `y[n·h·w, m]`, as bytes of f32, by filters that were packed for this form. Sums begin with the bias,
/// and are finished before they are stored. `then(part, tile)` runs on each tile of it right after it is computed, while it may
/// be in cache.
///
/// # Errors
/// [`Error::Mismatch`] for sizes that disagree, and as [`Windows::new`].
pub(crate) fn convolve(
    y: &mut [u8],
    x: Images<'_>,
    filters: &Packed,
    (bias, finish): (Option<&[f32]>, Finish<'_>),
    (moves, form): (&Moves, Form),
    then: impl Fn(Part, &mut TileMut<'_, u8>) + Sync,
) -> Result<()> {
    let (depth, columns) = filters.sizes();
    let rows = x.shape[0] * moves.outer[0] * moves.outer[1];
    let channels = x.shape[1];
    check_size("length of a convolution", rows * columns * size_of::<f32>(), y.len())?;
    let deep = match form {
        Form::Windows => moves.taps() * channels,
        Form::Depthwise => moves.taps(),
        Form::Winograd => winograd::PATCH * channels,
    };
    check_size("rows of packed filters", deep, depth)?;
    check_size("filters of a bias", columns, bias.map_or(columns, <[f32]>::len))?;
    let all = rows * columns;
    check_size("elements of a residual", all, finish.residual.map_or(all, <[f32]>::len))?;
    if form == Form::Depthwise {
        check_size("filters of single channels", channels, columns)?;
    }
    if y.is_empty() {
        return Ok(());
    }
    // A bias as long as panels are wide.
    let mut first = scratch::zeros::<f32>(columns.next_multiple_of(Packed::COLUMNS))?;
    if let Some(bias) = bias {
        first[..columns].copy_from_slice(bias);
    }
    if form == Form::Winograd {
        let moved = [moves.kernel, moves.strides, moves.dilations] != [[3; 2], [1; 2], [1; 2]];
        if moved || !channels.is_multiple_of(16) {
            return Err(Error::Unsupported { what: "other windows, transformed" });
        }
    }
    let way = match form {
        Form::Windows if planes::Planes::fit(&x, moves) => {
            check_reach("the images", x.data.len(), x.offset, x.shape.into_iter().zip(x.strides))?;
            Way::Planes(planes::Planes::new(x, moves)?)
        }
        Form::Windows => Way::Windows(Windows::new(x, moves)?),
        Form::Depthwise => Way::Depthwise(depthwise::Channels::new(x, moves)?),
        Form::Winograd => Way::Winograd(depthwise::Channels::new(x, moves)?),
    };
    // Transformed windows are cut image by image.
    let ((tall, wide), matrices, each) = match way {
        Way::Windows(_) => (matmul::tile([rows, columns], depth), 1, 0),
        Way::Planes(_) | Way::Depthwise(_) => (depthwise::tile(rows, columns, moves), 1, 0),
        Way::Winograd(_) => {
            let (images, each) = (x.shape[0], winograd::memory(moves, channels));
            (winograd::tile(moves, images, columns), images, each)
        }
    };
    let of_matrix = rows / matrices;
    let grid = Grid { matrices, rows: of_matrix, tall, wide: Some([columns, wide]) };
    let tile = TileMut::new(y, columns * size_of::<f32>());
    let cut = Cut::new(grid, [(tile, size_of::<f32>())]);
    let cut = cut.ok_or(Error::Unsupported { what: "an output of another shape" })?;
    let mut memory = scratch::take::<f32>(each * threads::count())?;
    let work = rows.saturating_mul(columns).saturating_mul(depth);
    let least = if work < matmul::PARALLEL { usize::MAX } else { 1 };
    threads::try_each_within(&mut memory, least, cut, |memory, _, (block, mut tiles)| {
        for tile in &mut tiles {
            let mut c = tile
                .typed::<f32>()
                .ok_or(Error::Unsupported { what: "elements that are not aligned" })?;
            let at = [block.row, block.column];
            let ends = (&first[..], finish);
            match &way {
                Way::Windows(windows) => matmul::run(windows, filters, ends, at, &mut c),
                Way::Planes(planes) => planes::run(planes, filters, ends, block.row, &mut c),
                Way::Depthwise(channels) => depthwise::run(channels, filters, ends, at, &mut c),
                Way::Winograd(channels) => {
                    winograd::run(channels, filters, ends, block, memory, &mut c);
                }
            }
            let row = block.matrix * of_matrix + block.row;
            let own = block.columns.unwrap_or(columns);
            then(Part { row, rows: block.rows, column: block.column, columns: own }, tile);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
