//! Windows on images of bytes whose channels are side by side, as rows to multiply by filters.
//!
//! A row of a window is a run of bytes, and a window some of them, which are copied one after the other for the windows of
//! a tile. Windows of one element that lie evenly are rows where they are. Images with a border, of channels that are no
//! whole words, or in another order are copied once.

use super::{BEHIND, Left, PackedIntegers, Rows, TALL, deep, groups};
use crate::cpu::kernels::channels_last::Moves;
use crate::cpu::kernels::view::check_reach;
use crate::cpu::scratch::{self, Numbers};
use crate::error::{Error, Result};
use crate::threads::{self, chunks_mut};
use bytemuck::cast_slice_mut;
use smallvec::SmallVec;
use std::ops::Range;

/// Bytes that a thread copies at least, where several do.
const COPIED: usize = 1 << 15;

/// Runs of at most so many bytes are copied as if they had as many.
const SHORT: usize = 64;

/// Images `[n, c, h, w]` of bytes, however they lie.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) offset: usize,
    /// Sizes and strides of images, channels, rows and columns.
    pub(crate) shape: [usize; 4],
    pub(crate) strides: [isize; 4],
    /// What stands for zero, and whether bytes are of -128 to 127.
    pub(crate) zero: i32,
    pub(crate) signed: bool,
}

/// The windows of a convolution.
pub(crate) struct Windows<'a> {
    bytes: Numbers<'a, u8>,
    /// The first byte, and the distances of images, rows and columns.
    offset: usize,
    distances: [usize; 3],
    outer: [usize; 2],
    strides: [usize; 2],
    images: usize,
    /// Bytes of a run, and the first one of each run of a window.
    run: usize,
    steps: SmallVec<[usize; 16]>,
    zero: i32,
}

impl<'a> Windows<'a> {
    /// # Errors
    /// [`Error::OutOfBounds`] for images that leave their slice, [`Error::Unsupported`] for a zero that is no byte,
    /// [`Error::TooLarge`] and [`Error::Memory`].
    pub(crate) fn new(x: Bytes<'a>, moves: &Moves) -> Result<Self> {
        check_reach("the images", x.data.len(), x.offset, x.shape.into_iter().zip(x.strides))?;
        let [images, channels, rows, columns] = x.shape;
        let zero = if x.signed { x.zero.saturating_add(128) } else { x.zero };
        let border = u8::try_from(zero)
            .map_err(|_| Error::Unsupported { what: "a zero point that is no such byte" })?;
        let reach = moves.reach()?;
        let inside = moves.before == [0; 2] && reach[0] <= rows && reach[1] <= columns;
        let [of_image, of_channel, of_row, of_column] = x.strides;
        let forward = x.strides.iter().all(|&stride| stride >= 0);
        let whole = of_channel == 1 && channels == deep(channels);
        let in_place = whole && forward && inside && !x.signed;
        let deep = deep(channels);
        let (bytes, offset, distances) = match in_place {
            true => {
                let distances = [of_image, of_row, of_column].map(|stride| stride as usize);
                (Numbers::Lent(x.data), x.offset, distances)
            }
            false => {
                let line = reach[1].checked_mul(deep);
                let size = line.and_then(|line| line.checked_mul(reach[0])?.checked_mul(images));
                let size = size.ok_or(Error::TooLarge { what: "the copied images" })?;
                let mut copied = scratch::take::<u8>(size)?;
                copy(&mut copied, x, (moves.before, reach), border);
                let line = reach[1] * deep;
                (Numbers::Own(copied), 0, [reach[0] * line, line, deep])
            }
        };
        let [high, wide] = moves.kernel;
        let whole = moves.dilations[1] == 1 && distances[2] == deep;
        let runs = if whole { 1 } else { wide };
        let steps = (0..high).flat_map(|row| (0..runs).map(move |column| [row, column]));
        let step = |[row, column]: [usize; 2]| {
            row * moves.dilations[0] * distances[1] + column * moves.dilations[1] * distances[2]
        };
        Ok(Self {
            bytes,
            offset,
            distances,
            outer: moves.outer,
            strides: moves.strides,
            images,
            run: if whole { wide * deep } else { deep },
            steps: steps.map(step).collect(),
            zero,
        })
    }

    /// Their number.
    pub(crate) fn count(&self) -> usize {
        self.images * self.outer[0] * self.outer[1]
    }

    /// Terms of a sum.
    pub(crate) fn depth(&self) -> usize {
        self.run * self.steps.len()
    }

    /// Words that some windows are gathered in.
    pub(crate) fn words(&self, windows: usize) -> usize {
        (windows + TALL) * (groups(self.depth()) + BEHIND)
    }

    /// Some windows where they lie, if they are rows that [`Rows::in_place`] takes.
    pub(crate) fn in_place(&self, rows: &Range<usize>, b: &PackedIntegers) -> Option<Rows<'_>> {
        let [of_image, of_row, of_column] = self.distances;
        let ([high, wide], [down, across]) = (self.outer, self.strides);
        let pitch = across * of_column;
        let even = (wide == 1 || down * of_row == wide * pitch || high == 1)
            && (self.images == 1 || of_image == high * wide * pitch);
        let data = self.bytes.get(self.offset + rows.start * pitch..)?;
        let sizes = [rows.len(), self.run, pitch];
        let single = even && self.steps.len() == 1;
        single.then(|| Rows::in_place(data, sizes, self.zero, b)).flatten()
    }

    /// Some windows one after the other, to be multiplied by this matrix.
    pub(crate) fn gather<'b>(
        &self,
        rows: Range<usize>,
        b: &PackedIntegers,
        words: &'b mut [u32],
    ) -> Rows<'b> {
        let groups = groups(self.depth());
        let pitch = groups + BEHIND;
        for (row, to) in rows.zip(words.chunks_exact_mut(pitch)) {
            self.fill(row, groups, b, to);
        }
        Rows { words, groups, pitch, offset: None }
    }

    /// All of them, by all threads.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn all(&self, b: &PackedIntegers) -> Result<Left> {
        let (groups, mut words) = Left::memory(self.depth(), self.count())?;
        let pitch = groups + BEHIND;
        let rows = chunks_mut(&mut words[..self.count() * pitch], pitch);
        let least = COPIED / self.depth().max(1) + 1;
        threads::each(least, rows, |row, to| self.fill(row, groups, b, to));
        Ok(Left { words, groups })
    }

    fn fill(&self, row: usize, groups: usize, b: &PackedIntegers, to: &mut [u32]) {
        let [high, wide] = self.outer;
        let (line, column) = (row / wide, row % wide);
        let place = self.offset
            + line / high * self.distances[0]
            + line % high * self.strides[0] * self.distances[1]
            + column * self.strides[1] * self.distances[2];
        let (words, behind) = to.split_at_mut(groups);
        let bytes = cast_slice_mut::<u32, u8>(words);
        for (number, step) in self.steps.iter().enumerate() {
            let (to, from) = (&mut bytes[number * self.run..], &self.bytes[place + step..]);
            match (to.first_chunk_mut::<SHORT>(), from.first_chunk()) {
                // With what follows: runs after it lie over that, and what is behind the last is multiplied by zeros.
                (Some(to), Some(from)) if self.run <= SHORT => *to = *from,
                _ => to[..self.run].copy_from_slice(&from[..self.run]),
            }
        }
        let bytes = &bytes[..self.depth()];
        let offset = 0_i32.wrapping_sub(self.zero);
        // The sum is read where elements of the matrix were moved.
        let sum: i32 = match b.is_moved() {
            true => bytes.iter().map(|&x| i32::from(x)).sum(),
            false => 0,
        };
        let sum = sum.wrapping_add(offset.wrapping_mul(bytes.len() as i32));
        behind[..2].copy_from_slice(&[offset as u32, sum as u32]);
    }
}

/// Copies images with their borders, channels innermost and filled up.
fn copy(to: &mut [u8], x: Bytes<'_>, (before, reach): ([i64; 2], [usize; 2]), border: u8) {
    let [_, channels, height, width] = x.shape;
    let [of_image, of_channel, of_row, of_column] = x.strides;
    let (deep, flip) = (deep(channels), if x.signed { 0x80 } else { 0 });
    let line = (reach[1] * deep).max(1);
    threads::each(COPIED / line + 1, chunks_mut(to, line), |number, line| {
        let (image, row) = (number / reach[0], (number % reach[0]) as i64 - before[0]);
        if !usize::try_from(row).is_ok_and(|row| row < height) {
            return line.fill(border);
        }
        let first = (before[1].max(0) as usize).min(reach[1]);
        let start = (-before[1]).max(0) as usize;
        let count = width.saturating_sub(start).min(reach[1] - first);
        line[..first * deep].fill(border);
        line[(first + count) * deep..].fill(border);
        let line = &mut line[first * deep..][..count * deep];
        let at = x.offset as isize
            + image as isize * of_image
            + row as isize * of_row
            + start as isize * of_column;
        let whole = of_channel == 1 && channels == deep && of_column == deep as isize;
        if whole && !x.signed {
            return line.copy_from_slice(&x.data[at as usize..][..count * deep]);
        }
        if channels < deep {
            line.fill(border);
        }
        for channel in 0..channels {
            let at = at + channel as isize * of_channel;
            for (column, to) in line[channel..].iter_mut().step_by(deep).enumerate() {
                *to = x.data[(at + column as isize * of_column) as usize] ^ flip;
            }
        }
    });
}
