//! Convolutions of images of bytes: matmuls whose rows are filters and whose columns are windows, so that results lie as
//! images do.
//!
//! Images are copied once, with their borders, and the phases of a stride apart: then an element of neighbouring windows
//! is a run of bytes, wherever it stands in the window, and windows go on from one row of results to the next by way of a
//! few that are dropped. Terms of a sum stand in the order of the window's elements, all channels of each.

use super::units::{Dots, Unit, Words, Work};
use super::{DEEP, LANES, LINES, Line, PackedIntegers, Right, groups};
use crate::cpu::kernels::conv::Conv;
use crate::cpu::kernels::view::{check_size, elements};
use crate::cpu::scratch::{self, Buffer};
use crate::error::Result;
use crate::threads::{self, chunks_mut};
use bytemuck::cast_slice_mut;
use smallvec::SmallVec;
use std::ops::Range;

/// Bytes of images that a thread copies at least, where several do.
const COPIED: usize = 1 << 15;

/// Windows of a panel.
const WINDOWS: usize = LINES * LANES;

/// The channels of each element of a window, filled up to whole words.
pub(crate) fn deep(channels: usize) -> usize {
    channels.next_multiple_of(DEEP)
}

/// One spatial axis of the copies.
struct Axis {
    inner: usize,
    outer: usize,
    stride: usize,
    before: i64,
    /// What the elements of a window leave when they are divided by the stride, each once.
    phases: SmallVec<[usize; 4]>,
    /// Places of each phase.
    size: usize,
    /// For each element of a window the number of its phase, and the first place.
    taps: SmallVec<[(usize, usize); 12]>,
}

impl Axis {
    fn new(conv: &Conv<'_>, axis: usize) -> Self {
        let on = &conv.geometry;
        let (stride, dilation) = (on.strides[axis].max(1), on.dilations[axis].max(1));
        let mut phases: SmallVec<[usize; 4]> = SmallVec::new();
        let taps = (0..on.kernel[axis]).map(|tap| {
            let (place, phase) = (tap * dilation / stride, tap * dilation % stride);
            let known = phases.iter().position(|&own| own == phase);
            let number = known.unwrap_or_else(|| {
                phases.push(phase);
                phases.len() - 1
            });
            (number, place)
        });
        let taps: SmallVec<[_; 12]> = taps.collect();
        let reach = taps.last().map_or(0, |&(_, place)| place);
        let (inner, outer) = (on.inner[axis], on.outer[axis]);
        Self { inner, outer, stride, before: on.before[axis], phases, size: outer + reach, taps }
    }

    /// One element, and nothing beside it.
    fn single() -> Self {
        let (phases, taps) = (SmallVec::from_elem(0, 1), SmallVec::from_elem((0, 0), 1));
        Self { inner: 1, outer: 1, stride: 1, before: 0, phases, size: 1, taps }
    }

    /// The place in the image that a place of a phase is, if it is inside.
    fn source(&self, phase: usize, place: usize) -> Option<usize> {
        let at = (place * self.stride + phase) as i128 - i128::from(self.before);
        usize::try_from(at).ok().filter(|&at| at < self.inner)
    }
}

/// Images of bytes, copied for the windows of a convolution.
pub(crate) struct Images {
    bytes: Buffer<u8>,
    columns: Axis,
    channels: usize,
    /// Bytes of a channel.
    channel: usize,
    /// For each element of the windows its first byte within a channel.
    taps: SmallVec<[usize; 12]>,
    /// The byte that stands for zero.
    zero: u8,
}

impl Images {
    /// Copies images `x[n, g·c, inner…]` of bytes, or with `signed` of bytes of -128 to 127, of which this one stands for
    /// zero. `None` for more than two spatial axes, and for a zero that is no such byte.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if there are not as many bytes, and
    /// [`Error::TooLarge`](crate::Error::TooLarge) and [`Error::Memory`](crate::Error::Memory).
    pub(crate) fn new(x: &[u8], conv: &Conv<'_>, zero: i32, signed: bool) -> Result<Option<Self>> {
        let on = &conv.geometry;
        let zero = u8::try_from(if signed { zero.saturating_add(128) } else { zero });
        let (rank, Ok(zero)) = (on.inner.len(), zero) else { return Ok(None) };
        let lens = [on.outer, on.kernel, on.strides, on.dilations].map(<[usize]>::len);
        let known = (1..=2).contains(&rank) && lens == [rank; 4] && on.before.len() == rank;
        if !known || on.kernel.contains(&0) {
            return Ok(None);
        }
        let rows = if rank == 2 { Axis::new(conv, 0) } else { Axis::single() };
        let columns = Axis::new(conv, rank - 1);
        let parts = elements("the images", &[conv.images, conv.groups])?;
        let from = elements("the images", &[rows.inner, columns.inner])?;
        let shape = [parts, conv.channels, from];
        check_size("length of the images", elements("the images", &shape)?, x.len())?;
        let phases = rows.phases.len() * columns.phases.len();
        let plane = elements("the copied images", &[rows.size, columns.size])?;
        let channel = elements("the copied images", &[phases, plane])?;
        let all = elements("the copied images", &[parts, deep(conv.channels), channel])?;
        // The last panel may read beyond the last window.
        let mut bytes = scratch::take::<u8>(all + WINDOWS)?;
        bytes[all..].fill(0);
        let place = |(number, first): (usize, usize), (own, column): (usize, usize)| {
            (number * columns.phases.len() + own) * plane + first * columns.size + column
        };
        let of_row = |&row: &(usize, usize)| columns.taps.iter().map(move |&tap| place(row, tap));
        let taps = rows.taps.iter().flat_map(of_row).collect();
        let flip = if signed { 0x80 } else { 0 };
        let planes = chunks_mut(&mut bytes[..all], channel.max(1));
        threads::each(COPIED / channel.max(1) + 1, planes, |number, to| {
            let (part, own) = (number / deep(conv.channels), number % deep(conv.channels));
            if own >= conv.channels {
                return to.fill(0);
            }
            let from = &x[(part * conv.channels + own) * from..][..from];
            copy_plane(to, from, [&rows, &columns], zero, flip);
        });
        Ok(Some(Self { bytes, columns, channels: conv.channels, channel, taps, zero }))
    }

    /// Terms of a sum, with those that fill up words.
    pub(crate) fn depth(&self) -> usize {
        self.taps.len() * deep(self.channels)
    }

    /// The lines of memory that [`multiply_windows`] works in.
    pub(crate) fn lines(&self) -> usize {
        self.depth() / DEEP * LINES
    }
}

/// A channel's phases, one after the other.
fn copy_plane(to: &mut [u8], from: &[u8], [rows, columns]: [&Axis; 2], zero: u8, flip: u8) {
    let mut lines = to.chunks_exact_mut(columns.size.max(1));
    for &of_rows in &rows.phases {
        for &of_columns in &columns.phases {
            for (row, line) in (0..rows.size).zip(&mut lines) {
                let Some(row) = rows.source(of_rows, row) else {
                    line.fill(zero);
                    continue;
                };
                let from = &from[row * columns.inner..][..columns.inner];
                let inside = |place: &usize| columns.source(of_columns, *place).is_some();
                let first = (0..columns.size).find(inside).unwrap_or(columns.size);
                let Some(start) = columns.source(of_columns, first) else {
                    line.fill(zero);
                    continue;
                };
                let count = from[start..].len().div_ceil(columns.stride).min(columns.size - first);
                line[..first].fill(zero);
                line[first + count..].fill(zero);
                let line = &mut line[first..first + count];
                match columns.stride {
                    1 => line.iter_mut().zip(&from[start..]).for_each(|(to, &x)| *to = x ^ flip),
                    stride => {
                        let from = from[start..].iter().step_by(stride);
                        line.iter_mut().zip(from).for_each(|(to, &x)| *to = x ^ flip);
                    }
                }
            }
        }
    }
}

/// For some filters, columns of a packed matrix, and the windows of some rows of results: their sums, a filter's after the
/// other's, and its bias. The first filter's number is a multiple of 16.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a matrix that is not of bytes,
/// [`Error::Mismatch`](crate::Error::Mismatch) for one of another depth.
pub(crate) fn multiply_windows(
    (images, part): (&Images, usize),
    packed: &PackedIntegers,
    (filters, rows): (Range<usize>, Range<usize>),
    bias: Option<&[i32]>,
    lines: &mut [Line],
    to: &mut [i32],
) -> Result<()> {
    multiply_windows_with(Unit::best(), (images, part), packed, (filters, rows), bias, lines, to)
}

pub(super) fn multiply_windows_with(
    unit: Unit,
    (images, part): (&Images, usize),
    packed: &PackedIntegers,
    (filters, rows): (Range<usize>, Range<usize>),
    bias: Option<&[i32]>,
    lines: &mut [Line],
    to: &mut [i32],
) -> Result<()> {
    check_size("rows of packed filters", images.depth(), packed.depth)?;
    check_size("lines of a panel", images.lines(), lines.len())?;
    let right = packed.right()?;
    let columns = packed.columns;
    let unit = packed.unit(unit);
    unit.run(Sums { images, part, right, columns, filters, rows, bias, lines, to });
    Ok(())
}

struct Sums<'a> {
    images: &'a Images,
    part: usize,
    right: Right<'a>,
    columns: usize,
    filters: Range<usize>,
    rows: Range<usize>,
    bias: Option<&'a [i32]>,
    lines: &'a mut [Line],
    to: &'a mut [i32],
}

/// Windows of a panel that were asked for: the first one's place in it, that in a filter's sums, and their number.
type Runs = SmallVec<[(usize, usize, usize); 12]>;

impl Work for Sums<'_> {
    #[inline(always)]
    fn run<D: Dots>(mut self, unit: D) {
        let (width, wanted) = (self.images.columns.size, self.images.columns.outer);
        let end = (self.rows.len() - 1) * width + wanted;
        for first in (0..end).step_by(WINDOWS) {
            let own = WINDOWS.min(end - first);
            let of_row = |row: usize| {
                let (start, end) =
                    ((row * width).max(first), (row * width + wanted).min(first + own));
                let place = row * wanted + start - row * width;
                (start < end).then(|| (start - first, place, end - start))
            };
            let runs: Runs = (first / width..self.rows.len())
                .map_while(|row| (row * width < first + own).then(|| of_row(row)))
                .flatten()
                .collect();
            match own.div_ceil(LANES) {
                1 => self.panel::<D, 1>(unit, first, &runs),
                2 => self.panel::<D, 2>(unit, first, &runs),
                _ => self.panel::<D, LINES>(unit, first, &runs),
            }
        }
    }
}

impl Sums<'_> {
    #[inline(always)]
    fn panel<D: Dots, const W: usize>(&mut self, unit: D, first: usize, runs: &Runs) {
        self.gather::<W>(first);
        let mut filter = self.filters.start;
        while filter < self.filters.end {
            filter += match D::ROWS {
                8.. => self.block::<D, 8, W>(unit, filter, runs),
                2 => self.block::<D, 2, W>(unit, filter, runs),
                _ => self.block::<D, 1, W>(unit, filter, runs),
            };
        }
    }

    /// Brings windows into the panel.
    #[inline(always)]
    fn gather<const W: usize>(&mut self, first: usize) {
        let images = self.images;
        let (deep, channel) = (deep(images.channels), images.channel);
        let base = self.part * deep * channel + self.rows.start * images.columns.size + first;
        let (panel, _) = self.lines.as_chunks_mut::<W>();
        let words =
            images.taps.iter().flat_map(|tap| (0..deep).step_by(DEEP).map(move |c| (tap, c)));
        for ((tap, first), lines) in words.zip(panel) {
            let at = base + tap + first * channel;
            let row = |i: usize| &images.bytes[at + i * channel..][..W * LANES];
            let [a, b, c, d] = [row(0), row(1), row(2), row(3)];
            let to: &mut [u32] = cast_slice_mut(lines);
            for (i, to) in to[..W * LANES].iter_mut().enumerate() {
                let [a, b, c, d] = [a[i], b[i], c[i], d[i]].map(u32::from);
                *to = (a | b << 8 | c << 16 | d << 24).to_le();
            }
        }
    }

    /// Some filters; gives their number.
    #[inline(always)]
    fn block<D: Dots, const H: usize, const W: usize>(
        &mut self,
        unit: D,
        filter: usize,
        runs: &Runs,
    ) -> usize {
        let (panel, _) = self.lines.as_chunks::<W>();
        let panel = &panel[..self.images.depth() / DEEP];
        let groups = groups(self.images.depth());
        let (vector, vectors) = (filter / LANES, self.columns.div_ceil(LANES));
        let of_panel = vector / LINES * LINES;
        let across = LINES.min(vectors - of_panel);
        let lines = &self.right.lines[of_panel * groups..][..across * groups];
        let words = Words { lines, across, line: vector - of_panel, column: filter % LANES };
        let mut dots = [[[0_i32; LANES]; W]; H];
        unit.turned(words, panel, &mut dots);
        let columns = self.rows.len() * self.images.columns.outer;
        let zero_point = i32::from(self.images.zero) - D::ZERO_POINT;
        for (own, dots) in (filter..self.filters.end).zip(&mut dots) {
            let dots = dots.as_flattened_mut();
            let bias = self.bias.map_or(0, |bias| bias[own]);
            let more = bias.wrapping_sub(zero_point.wrapping_mul(self.right.sums[own]));
            if let Some(offsets) = self.right.offsets {
                add_moved(dots, panel.as_flattened(), (self.images, W), offsets[own]);
            }
            let to = &mut self.to[(own - self.filters.start) * columns..][..columns];
            for &(from, place, count) in runs {
                let dots = &dots[from..from + count];
                let to = &mut to[place..place + count];
                to.iter_mut().zip(dots).for_each(|(to, &dot)| *to = dot.wrapping_add(more));
            }
        }
        H
    }
}

/// Adds what elements of a filter are moved by times the elements of each window, less their zero points.
fn add_moved(dots: &mut [i32], panel: &[Line], (images, across): (&Images, usize), offset: i32) {
    if offset == 0 {
        return;
    }
    let zeros = i32::from(images.zero).wrapping_mul(images.depth() as i32);
    for (line, dots) in dots.chunks_exact_mut(LANES).enumerate() {
        let mut totals = [0_i32.wrapping_sub(zeros); LANES];
        for own in panel.iter().skip(line).step_by(across) {
            let (bytes, _) = own.0.as_chunks::<DEEP>();
            for (total, bytes) in totals.iter_mut().zip(bytes) {
                *total = bytes.iter().fold(*total, |sum, &x| sum.wrapping_add((x as u8).into()));
            }
        }
        for (dot, total) in dots.iter_mut().zip(totals) {
            *dot = dot.wrapping_add(offset.wrapping_mul(total));
        }
    }
}
