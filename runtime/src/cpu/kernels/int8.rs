//! Matmuls of integers that differ by less than a byte holds, as those of quantised models do: in `i32`, modulo its
//! width, and exactly what [`matmul_integers`](super::integer::matmul_integers) gives.
//!
//! A row of A is bytes `u` of 0 to 255 and an offset, a column of B bytes `s` of -128 to 127 and another. Of
//! `Σ (u + o)(s + c) = Σ us + o Σs + c Σ(u + o)` the first sum is what vector units multiply fast; the others are known
//! from a row and from a column alone. [`PackedIntegers`] has the bytes of B in panels, four rows of it side by side.

mod chain;
mod images;
mod units;
mod windows;

pub(crate) use chain::{Finish, Operand, QUOTIENT_LIMIT, Results, STEPS, Step, Steps, is_divisor};
pub(crate) use images::{Images, deep, multiply_windows};
pub(crate) use windows::{Bytes as ImagesOfBytes, Windows};

use super::integer::matmul_integers;
use super::matrix::{Matrix, MatrixMut, Size, Strides};
use super::packed::{Packed, tile};
use super::simd::{Kernel, dispatch};
use super::tile::{Cut, Grid, TileMut};
use super::view::{check_reach, check_size};
use crate::cpu::scratch::{self, Buffer};
use crate::error::{Error, Result};
use crate::threads::{self, chunks_mut};
use bytemuck::{Pod, Zeroable, cast_slice_mut, try_cast_slice};
use chain::Sums;
use pulp::Simd;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use units::{Dots, TALL, Unit, Work, pairs_fit};

/// Neighbours in a column that are multiplied at a time.
const DEEP: usize = 4;

/// Columns of a line.
const LANES: usize = 16;

/// Lines of a panel's row, at most.
const LINES: usize = 3;

/// Words behind those of a row of A: what was subtracted from its elements, and their sum. A row is whole lines of memory.
const BEHIND: usize = 16;

/// Multiplications that a thread takes at least, where several share a matmul.
const SHARE: usize = 1 << 19;

/// Elements of A that a thread takes at least, where several make bytes of them.
const ELEMENTS: usize = 1 << 14;

const _: () = assert!(Packed::COLUMNS == LINES * LANES);

/// Four rows of 16 columns, a column's bytes side by side.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([i8; LANES * DEEP]);

/// The words of a row, or the lines of a column, of this depth: a unit's tiles are filled up with zeros.
fn groups(depth: usize) -> usize {
    depth.div_ceil(DEEP).next_multiple_of(Unit::best().step())
}

/// A matrix of integers to multiply by.
#[derive(PartialEq)]
pub(crate) struct PackedIntegers {
    depth: usize,
    columns: usize,
    elements: Elements,
}

#[derive(PartialEq)]
enum Elements {
    /// Panels of columns, a panel's lines from its first rows to its last; what fills them up is zero.
    Bytes {
        lines: Vec<Line>,
        /// For each column the sum of its bytes, and what was subtracted from its elements.
        sums: Vec<i32>,
        offsets: Vec<i32>,
        /// Whether anything was.
        moved: bool,
        /// Whether [pairs](pairs_fit) of the bytes fit.
        fits: bool,
    },
    /// Row by row, where those of a column differ by more than a byte holds.
    Wide(Vec<i32>),
}

impl fmt::Debug for PackedIntegers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedIntegers[{}, {}]", self.depth, self.columns)
    }
}

impl PackedIntegers {
    /// The bytes that a matrix of these sizes takes at most; `None` if they are too many to count.
    pub(crate) fn bytes(depth: usize, columns: usize) -> Option<usize> {
        let depth = depth.checked_add(2)?.checked_next_multiple_of(DEEP * Unit::best().step())?;
        columns.checked_next_multiple_of(LANES)?.checked_mul(depth)?.checked_mul(size_of::<i32>())
    }

    /// The best instructions that may multiply its bytes, if it is of bytes.
    pub(crate) fn algorithm(&self) -> Option<&'static str> {
        self.right().is_ok().then(|| Unit::best().name())
    }

    /// The bytes that it takes.
    pub(crate) fn held_bytes(&self) -> u64 {
        (match &self.elements {
            Elements::Bytes { lines, sums, offsets, .. } => {
                size_of_val(&lines[..]) + size_of_val(&sums[..]) + size_of_val(&offsets[..])
            }
            Elements::Wide(elements) => size_of_val(&elements[..]),
        }) as u64
    }

    /// Its rows and columns.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.depth, self.columns)
    }

    /// A matrix of these sizes without its numbers, by which kernels can be chosen but nothing multiplied.
    pub(crate) fn outline(depth: usize, columns: usize) -> Self {
        Self { depth, columns, elements: Elements::Wide(Vec::new()) }
    }

    /// Packs a matrix.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a batch, [`Error::OutOfBounds`] if the view leaves its slice, and [`Error::Memory`].
    pub(crate) fn new<T: Copy + Into<i32>>(
        b: Matrix<'_, T>,
        depth: usize,
        columns: usize,
    ) -> Result<Self> {
        check_size("rank of a packed matrix's batch", 0, b.at.batch.len())?;
        let axes = [(depth, b.at.row), (columns, b.at.column)];
        check_reach("the packed matrix", b.data.len(), b.at.offset, axes)?;
        let row = |row: usize| Some(b.at.offset as isize + row as isize * b.at.row);
        Self::of_rows(b.data, (0..depth).map(row), b.at.column, columns)
    }

    /// Packs filters `[m, c, taps]`, of which each is contiguous and begins `apart` elements behind the one before, as a matrix
    /// whose rows are the channels of each element of the windows, [`deep`] many.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if a filter leaves the slice, and [`Error::Memory`].
    pub(crate) fn of_filters<T: Copy + Into<i32>>(
        w: &[T],
        (offset, apart): (usize, isize),
        [filters, channels, taps]: [usize; 3],
    ) -> Result<Self> {
        let axes = [(filters, apart), (channels * taps, 1)];
        check_reach("the filters", w.len(), offset, axes)?;
        let place = |tap, channel| (offset + tap + channel * taps) as isize;
        let row = |tap, channel| (channel < channels).then(|| place(tap, channel));
        let rows =
            (0..taps).flat_map(|tap| (0..deep(channels)).map(move |channel| row(tap, channel)));
        Self::of_rows(w, rows, apart, filters)
    }

    /// Packs rows that begin at these places, and whose elements are this far apart; those without a place are zero.
    fn of_rows<T: Copy + Into<i32>>(
        data: &[T],
        rows: impl Iterator<Item = Option<isize>>,
        across: isize,
        columns: usize,
    ) -> Result<Self> {
        let rows: Vec<Option<isize>> = rows.collect();
        let depth = rows.len();
        let at = |row: usize, column: usize| match rows[row] {
            Some(start) => data[(start + column as isize * across) as usize].into(),
            None => 0,
        };
        let range = |column: usize| {
            let mut range = (i32::MAX, i32::MIN);
            for row in 0..depth {
                let x = at(row, column);
                range = (range.0.min(x), range.1.max(x));
            }
            range
        };
        let ranges: Vec<(i32, i32)> = (0..columns).map(range).collect();
        let all = || (0..depth).flat_map(|row| (0..columns).map(move |column| at(row, column)));
        let is_narrow = |&(low, high): &(i32, i32)| i64::from(high) - i64::from(low) <= 255;
        if !ranges.iter().all(is_narrow) {
            let mut elements = memory::<i32>(depth * columns)?;
            elements.iter_mut().zip(all()).for_each(|(to, x)| *to = x);
            return Ok(Self { depth, columns, elements: Elements::Wide(elements) });
        }
        let offset = |&(low, high): &(i32, i32)| {
            if low >= -128 && high <= 127 || depth == 0 { 0 } else { low.wrapping_add(128) }
        };
        let offsets: Vec<i32> = ranges.iter().map(offset).collect();
        let (groups, vectors) = (groups(depth), columns.div_ceil(LANES));
        let mut lines = memory::<Line>(groups * vectors)?;
        let mut sums = vec![0_i32; columns];
        for (first, panel) in
            (0..vectors).step_by(LINES).zip(lines.chunks_mut((LINES * groups).max(1)))
        {
            let wide = LINES.min(vectors - first);
            for row in 0..depth {
                let (lines, place) = (&mut panel[row / DEEP * wide..][..wide], row % DEEP);
                let from = first * LANES;
                let own = from..columns.min((first + wide) * LANES);
                let of_columns = sums[own.clone()].iter_mut().zip(&offsets[own]);
                for (own, (sum, &offset)) in of_columns.enumerate() {
                    let x = at(row, from + own).wrapping_sub(offset);
                    lines[own / LANES].0[own % LANES * DEEP + place] = x as i8;
                    *sum = sum.wrapping_add(x);
                }
            }
        }
        let moved = offsets.iter().any(|&offset| offset != 0);
        let fits = pairs_fit(&lines);
        let elements = Elements::Bytes { lines, sums, offsets, moved, fits };
        Ok(Self { depth, columns, elements })
    }

    /// Whether anything was subtracted from its elements.
    pub(crate) fn is_moved(&self) -> bool {
        matches!(self.elements, Elements::Bytes { moved: true, .. })
    }

    /// The unit to multiply by it with, of a machine that has this one.
    fn unit(&self, unit: Unit) -> Unit {
        let fits = matches!(self.elements, Elements::Bytes { fits: true, .. });
        if fits { unit.for_pairs_that_fit() } else { unit }
    }

    fn right(&self) -> Result<Right<'_>> {
        match &self.elements {
            &Elements::Bytes { ref lines, ref sums, ref offsets, moved, .. } => {
                Ok(Right { lines, sums, offsets: moved.then_some(&offsets[..]) })
            }
            Elements::Wide(_) => Err(Error::Unsupported { what: "a matrix of wide integers" }),
        }
    }

    /// The elements, row by row.
    fn wide(&self) -> Result<Vec<i32>> {
        let (lines, offsets) = match &self.elements {
            Elements::Wide(elements) => return Ok(elements.clone()),
            Elements::Bytes { lines, offsets, .. } => (lines, offsets),
        };
        let (groups, vectors) = (groups(self.depth), self.columns.div_ceil(LANES));
        let mut elements = memory::<i32>(self.depth * self.columns)?;
        for (place, to) in elements.iter_mut().enumerate() {
            let (row, column) = (place / self.columns, place % self.columns);
            let vector = column / LANES;
            let first = vector / LINES * LINES;
            let line = first * groups + row / DEEP * LINES.min(vectors - first) + vector - first;
            let byte = lines[line].0[column % LANES * DEEP + row % DEEP];
            *to = offsets[column].wrapping_add(byte.into());
        }
        Ok(elements)
    }
}

fn memory<T: Zeroable>(len: usize) -> Result<Vec<T>> {
    let bytes = len.saturating_mul(size_of::<T>());
    bytemuck::allocation::try_zeroed_vec(len).map_err(|()| Error::Memory { bytes })
}

/// Rows of A as bytes.
pub(crate) struct Left {
    /// For each row its bytes in fours, what was subtracted from its elements, and their sum. There are rows beyond the
    /// last one, of any bytes, to whole tiles.
    words: Buffer<u32>,
    groups: usize,
}

impl Left {
    /// The words of a row of `k` bytes, and memory for `m` such rows.
    fn memory(k: usize, m: usize) -> Result<(usize, Buffer<u32>)> {
        let groups = groups(k);
        Ok((groups, scratch::take((m + TALL) * (groups + BEHIND))?))
    }

    /// `None` if elements of a row differ by more than a byte holds.
    fn new(k: usize, a: Matrix<'_, i32>, m: usize) -> Result<Option<Self>> {
        let (groups, mut words) = Self::memory(k, m)?;
        let fits = AtomicBool::new(true);
        if let (1, Ok(across)) = (a.at.row, usize::try_from(a.at.column))
            && k > 1
        {
            // Rows side by side: so many at a time that lines of memory are read whole.
            let rows = chunks_mut(&mut words[..m * (groups + BEHIND)], LANES * (groups + BEHIND));
            threads::each((ELEMENTS / LANES / k).max(1), rows, |number, to| {
                let data = &a.data[a.at.offset + number * LANES..];
                if !dispatch(NarrowColumns { data, across, k, groups, to }) {
                    fits.store(false, Ordering::Relaxed);
                }
            });
            return Ok(fits.into_inner().then_some(Self { words, groups }));
        }
        let rows = chunks_mut(&mut words[..m * (groups + BEHIND)], groups + BEHIND);
        threads::try_each((ELEMENTS / k.max(1)).max(1), rows, |row, to| {
            let start = (a.at.offset as isize + row as isize * a.at.row) as usize;
            let narrow = match a.at.column {
                1 => dispatch(Narrow { row: &a.data[start..start + k], to }),
                across => {
                    let mut row = scratch::take::<i32>(k)?;
                    let place = |i: usize| (start as isize + i as isize * across) as usize;
                    row.iter_mut().enumerate().for_each(|(i, x)| *x = a.data[place(i)]);
                    dispatch(Narrow { row: &row, to })
                }
            };
            if !narrow {
                fits.store(false, Ordering::Relaxed);
            }
            Ok(())
        })?;
        Ok(fits.into_inner().then_some(Self { words, groups }))
    }

    /// Those of `m` rows of bytes, less a number that they all are moved by; `signed` if they are of -128 to 127.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if A leaves its slice, and [`Error::Memory`].
    pub(crate) fn of_bytes(
        k: usize,
        a: Matrix<'_, u8>,
        m: usize,
        zero: i32,
        signed: bool,
    ) -> Result<Self> {
        check_reach("A", a.data.len(), a.at.offset, [(m, a.at.row), (k, a.at.column)])?;
        let (groups, mut words) = Self::memory(k, m)?;
        let rows = chunks_mut(&mut words[..m * (groups + BEHIND)], groups + BEHIND);
        threads::each((ELEMENTS / k.max(1)).max(1), rows, |row, to| {
            let start = (a.at.offset as isize + row as isize * a.at.row) as usize;
            dispatch(RowOfBytes { data: a.data, start, across: a.at.column, k, zero, signed, to });
        });
        Ok(Self { words, groups })
    }

    /// Its rows.
    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows { words: &self.words, groups: self.groups, pitch: self.groups + BEHIND, offset: None }
    }
}

/// Rows of bytes to multiply.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    words: &'a [u32],
    /// Words of a row, and from one to the next.
    groups: usize,
    pitch: usize,
    /// What was subtracted from all elements, if nothing else stands behind a row.
    offset: Option<i32>,
}

impl<'a> Rows<'a> {
    /// `m` rows of `k` bytes less a number where they lie, each so many bytes after the one before, if there are as many as
    /// whole tiles need and a matrix of bytes that are not moved is multiplied by.
    pub(crate) fn in_place(
        data: &'a [u8],
        [m, k, pitch]: [usize; 3],
        zero: i32,
        b: &PackedIntegers,
    ) -> Option<Self> {
        let need = (m.next_multiple_of(TALL).checked_sub(1)?).checked_mul(pitch)?.checked_add(k)?;
        let whole = groups(k).checked_mul(DEEP) == Some(k) && pitch.is_multiple_of(DEEP);
        if !whole || b.right().ok()?.offsets.is_some() {
            return None;
        }
        let words = try_cast_slice(data.get(..need)?).ok()?;
        let (groups, pitch) = (k / DEEP, pitch / DEEP);
        Some(Self { words, groups, pitch, offset: Some(0_i32.wrapping_sub(zero)) })
    }

    /// A row's bytes in fours.
    fn row(self, row: usize) -> &'a [u32] {
        &self.words[row * self.pitch..][..self.groups]
    }

    /// How many rows there are from this one on, with those that memory has behind the last.
    fn after(self, row: usize) -> usize {
        let words = self.words.len().saturating_sub(row * self.pitch);
        words.checked_sub(self.groups).map_or(0, |words| words / self.pitch.max(1) + 1)
    }

    /// What was subtracted from a row's elements, and their sum.
    fn of_row(self, row: usize) -> [i32; 2] {
        if let Some(offset) = self.offset {
            return [offset, 0];
        }
        let at = row * self.pitch + self.groups;
        [self.words[at] as i32, self.words[at + 1] as i32]
    }
}

/// Takes bytes of a row over.
struct RowOfBytes<'a> {
    data: &'a [u8],
    start: usize,
    /// From one element to the next.
    across: isize,
    k: usize,
    zero: i32,
    signed: bool,
    to: &'a mut [u32],
}

impl Kernel for RowOfBytes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Self { data, start, across, k, zero, signed, to } = self;
        let flip = if signed { 0x80 } else { 0 };
        let (words, rest) = to.split_at_mut(to.len() - BEHIND);
        let (bytes, filling) = cast_slice_mut::<u32, u8>(words).split_at_mut(k);
        if across == 1 {
            bytes.iter_mut().zip(&data[start..]).for_each(|(to, &x)| *to = x ^ flip);
        } else {
            let place = |i: usize| (start as isize + i as isize * across) as usize;
            bytes.iter_mut().enumerate().for_each(|(i, to)| *to = data[place(i)] ^ flip);
        }
        filling.fill(0);
        let sum: i32 = bytes.iter().map(|&x| i32::from(x)).sum();
        let offset = 0_i32.wrapping_sub(zero).wrapping_sub(flip.into());
        let sum = sum.wrapping_add(offset.wrapping_mul(k as i32));
        rest[..2].copy_from_slice(&[offset as u32, sum as u32]);
    }
}

/// Makes bytes of a row, if it can.
struct Narrow<'a> {
    row: &'a [i32],
    to: &'a mut [u32],
}

impl Kernel for Narrow<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) -> bool {
        let Self { row, to } = self;
        let (mut low, mut high, mut sum) = (i32::MAX, i32::MIN, 0_i32);
        for &x in row {
            (low, high, sum) = (low.min(x), high.max(x), sum.wrapping_add(x));
        }
        let offset = if low >= 0 && high <= 255 || row.is_empty() { 0 } else { low };
        if i64::from(high) - i64::from(low) > 255 {
            return false;
        }
        let (bytes, rest) = to.split_at_mut(to.len() - BEHIND);
        rest[..2].copy_from_slice(&[offset as u32, sum as u32]);
        let (bytes, filling) = cast_slice_mut::<u32, u8>(bytes).split_at_mut(row.len());
        bytes.iter_mut().zip(row).for_each(|(to, &x)| *to = x.wrapping_sub(offset) as u8);
        filling.fill(0);
        true
    }
}

/// Makes bytes of at most 16 rows that lie side by side, if it can.
struct NarrowColumns<'a> {
    data: &'a [i32],
    /// From one column to the next.
    across: usize,
    k: usize,
    groups: usize,
    to: &'a mut [u32],
}

impl Kernel for NarrowColumns<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) -> bool {
        let Self { data, across, k, groups, to } = self;
        let pitch = groups + BEHIND;
        let rows = to.len() / pitch;
        let (mut low, mut high, mut sum) = ([i32::MAX; LANES], [i32::MIN; LANES], [0_i32; LANES]);
        for column in 0..k {
            let column = &data[column * across..][..rows];
            let ranges = low.iter_mut().zip(&mut high).zip(&mut sum);
            for (&x, ((low, high), sum)) in column.iter().zip(ranges) {
                (*low, *high, *sum) = ((*low).min(x), (*high).max(x), sum.wrapping_add(x));
            }
        }
        let mut offsets = [0_i32; LANES];
        let ranges = low.iter().zip(&high).zip(&sum);
        for ((row, offset), ((&low, &high), &sum)) in
            to.chunks_exact_mut(pitch).zip(&mut offsets).zip(ranges)
        {
            if i64::from(high) - i64::from(low) > 255 {
                return false;
            }
            *offset = if low >= 0 && high <= 255 { 0 } else { low };
            row[groups..][..2].copy_from_slice(&[*offset as u32, sum as u32]);
        }
        // Four columns make a word of each row.
        for group in 0..groups {
            let mut words = [0_u32; LANES];
            for column in (group * DEEP..k).take(DEEP) {
                let place = column % DEEP * 8;
                let column = &data[column * across..][..rows];
                for ((word, &x), &offset) in words.iter_mut().zip(column).zip(&offsets) {
                    *word |= (x.wrapping_sub(offset) as u32 & 255) << place;
                }
            }
            words
                .iter()
                .take(rows)
                .enumerate()
                .for_each(|(i, &word)| to[i * pitch + group] = word.to_le());
        }
        true
    }
}

/// C = A·B, row-major, with `k` columns in A, spread over the cores where there is enough to do.
///
/// # Errors
/// [`Error::Mismatch`] for an A with a batch or with other columns than B has rows, or a C without whole rows;
/// [`Error::OutOfBounds`] if A leaves its slice; [`Error::Memory`].
pub(crate) fn multiply_integers(
    k: usize,
    a: Matrix<'_, i32>,
    b: &PackedIntegers,
    c: &mut [i32],
) -> Result<()> {
    multiply_with(Unit::best(), k, a, b, c)
}

fn multiply_with(
    unit: Unit,
    k: usize,
    a: Matrix<'_, i32>,
    b: &PackedIntegers,
    c: &mut [i32],
) -> Result<()> {
    let n = b.columns;
    let m = c.len().checked_div(n).unwrap_or(0);
    check_size("rank of the left operand's batch", 0, a.at.batch.len())?;
    check_size("columns of the left operand", b.depth, k)?;
    check_size("elements of the matmul", m * n, c.len())?;
    if k == 0 || c.is_empty() {
        c.fill(0);
        return Ok(());
    }
    check_reach("the left operand", a.data.len(), a.at.offset, [(m, a.at.row), (k, a.at.column)])?;
    let bytes = match b.right() {
        Ok(right) => Left::new(k, a, m)?.map(|left| (left, right)),
        Err(_) => None,
    };
    let Some((left, right)) = bytes else {
        let data = &b.wide()?[..];
        let at = |row: usize| Strides { offset: 0, batch: &[], row: row as isize, column: 1 };
        let size = Size { batch: &[], m, n, k };
        return matmul_integers(
            size,
            a,
            Matrix { data, at: at(n) },
            MatrixMut { data: c, at: at(n) },
        );
    };
    let unit = b.unit(unit);
    let most = m.saturating_mul(n).saturating_mul(k) / SHARE;
    let wanted =
        if threads::count() == 1 { 1 } else { most.min(threads::TASKS * threads::count()) };
    let (tall, wide) = tile([m, n], wanted);
    let grid = Grid { matrices: 1, rows: m, tall, wide: Some([n, wide]) };
    let cut =
        Cut::new(grid, [(TileMut::new(c, n), 1)]).expect("the grid has the sizes of the tile");
    threads::each(if most < 2 { usize::MAX } else { 1 }, cut, |_, (block, tiles)| {
        for tile in tiles {
            let [row, column] = [block.row, block.column];
            let left = left.rows();
            unit.run(MatMul { left, right, row, column, columns: n, to: To::Sums(tile) });
        }
    });
    Ok(())
}

/// Where a tile of a matmul goes.
pub(crate) enum To<'a> {
    /// As it is.
    Sums(TileMut<'a, i32>),
    Finished(Finish<'a>),
}

impl To<'_> {
    /// Rows and columns.
    fn sizes(&self) -> (usize, usize) {
        match self {
            Self::Sums(tile) => tile.sizes(),
            Self::Finished(finish) => finish.to.sizes(),
        }
    }
}

/// A tile of C = A·B, which begins at this row and column, on the calling thread.
///
/// # Errors
/// [`Error::Unsupported`] for a B that is not of bytes, and for one whose elements were moved if sums are finished.
pub(crate) fn multiply_tile(
    left: Rows<'_>,
    b: &PackedIntegers,
    row: usize,
    column: usize,
    to: To<'_>,
) -> Result<()> {
    let right = b.right()?;
    if right.offsets.is_some() && matches!(to, To::Finished(_)) {
        return Err(Error::Unsupported { what: "sums of moved elements in a chain" });
    }
    let unit = b.unit(Unit::best());
    unit.run(MatMul { left, right, row, column, columns: b.columns, to });
    Ok(())
}

/// The bytes of B.
#[derive(Clone, Copy)]
struct Right<'a> {
    lines: &'a [Line],
    sums: &'a [i32],
    /// If any is not zero.
    offsets: Option<&'a [i32]>,
}

/// A tile of C, which begins at this row and column.
struct MatMul<'a> {
    left: Rows<'a>,
    right: Right<'a>,
    row: usize,
    column: usize,
    /// Those of B.
    columns: usize,
    to: To<'a>,
}

impl Work for MatMul<'_> {
    #[inline(always)]
    fn run<D: Dots>(mut self, unit: D) {
        let vectors = self.columns.div_ceil(LANES);
        let (_, columns) = self.to.sizes();
        for to in (0..columns).step_by(LINES * LANES) {
            let first = (self.column + to) / LANES;
            let wide = LINES.min(vectors - first);
            let groups = self.left.groups;
            let panel = &self.right.lines[first * groups..][..wide * groups];
            match wide {
                1 => self.panel::<D, 1>(unit, panel, to),
                2 => self.panel::<D, 2>(unit, panel, to),
                _ => self.panel::<D, LINES>(unit, panel, to),
            }
        }
    }
}

impl MatMul<'_> {
    #[inline(always)]
    fn panel<D: Dots, const V: usize>(&mut self, unit: D, panel: &[Line], to: usize) {
        let (panel, _) = panel.as_chunks::<V>();
        let (rows, _) = self.to.sizes();
        let mut row = 0;
        while row < rows {
            row += match (rows - row).min(D::ROWS) {
                1 => self.block::<D, 1, V>(unit, row, panel, to),
                2 | 3 => self.block::<D, 2, V>(unit, row, panel, to),
                4..=7 => self.block::<D, 4, V>(unit, row, panel, to),
                8..TALL => self.block::<D, 8, V>(unit, row, panel, to),
                _ if self.left.after(self.row + row) < TALL => {
                    self.block::<D, 8, V>(unit, row, panel, to)
                }
                _ => self.tall::<D, V>(unit, row, panel, to),
            };
        }
    }

    /// Some rows of a panel; gives their number.
    #[inline(always)]
    fn block<D: Dots, const H: usize, const V: usize>(
        &mut self,
        unit: D,
        row: usize,
        panel: &[[Line; V]],
        to: usize,
    ) -> usize {
        let left: [&[u32]; H] =
            std::array::from_fn(|i| &self.left.row(self.row + row + i)[..panel.len()]);
        let mut dots = [[[0_i32; LANES]; V]; H];
        unit.dots(left, panel, &mut dots);
        self.write(unit, &dots, row, to);
        H
    }

    /// Rows of a panel that fill a unit's tiles, or nearly; gives their number.
    #[inline(always)]
    fn tall<D: Dots, const V: usize>(
        &mut self,
        unit: D,
        row: usize,
        panel: &[[Line; V]],
        to: usize,
    ) -> usize {
        let (rows, _) = self.to.sizes();
        let pitch = self.left.pitch;
        let left = &self.left.words[(self.row + row) * pitch..];
        let mut dots = [[[0_i32; LANES]; V]; 2 * TALL];
        // Tiles may reach beyond the last row, but not beyond the memory.
        let most = (self.left.after(self.row + row) / TALL * TALL).min(2 * TALL);
        let own = (rows - row).min(most);
        unit.tall((left, pitch), panel, &mut dots[..own.next_multiple_of(TALL)]);
        self.write(unit, &dots[..own], row, to);
        own
    }

    /// Writes rows of dot products, from a row and a column of the tile on, with what belongs to offsets.
    #[inline(always)]
    fn write<D: Dots, const V: usize>(
        &mut self,
        unit: D,
        dots: &[[[i32; LANES]; V]],
        row: usize,
        to: usize,
    ) {
        let tile = match &mut self.to {
            To::Sums(tile) => tile,
            To::Finished(finish) => {
                let (left, sums) = ((self.left, self.row + row), self.right.sums);
                let dots = dots.as_flattened();
                let (column, zero_point) = (to, D::ZERO_POINT);
                return unit.finish(
                    finish,
                    &Sums { dots, across: V, row, column, left, sums, zero_point },
                );
            }
        };
        for (dots, row) in dots.iter().zip(row..) {
            let [offset, total] = self.left.of_row(self.row + row);
            let offset = offset.wrapping_add(D::ZERO_POINT);
            let line = &mut tile.row(row)[to..];
            let first = self.column + to;
            let sums = &self.right.sums[first..first + line.len().min(V * LANES)];
            let add = |dot: i32, sum: i32| dot.wrapping_add(offset.wrapping_mul(sum));
            let ((whole, rest), (of_whole, of_rest)) =
                (line.as_chunks_mut::<LANES>(), sums.as_chunks::<LANES>());
            for ((y, dots), sums) in whole.iter_mut().zip(dots).zip(of_whole) {
                // All are read before one is written, so that this is done by vectors.
                *y = std::array::from_fn(|i| add(dots[i], sums[i]));
            }
            if let Some(dots) = dots.get(whole.len()) {
                let own = rest.iter_mut().zip(dots).zip(of_rest);
                own.for_each(|((y, &dot), &sum)| *y = add(dot, sum));
            }
            if let Some(offsets) = self.right.offsets {
                let offsets = &offsets[first..first + sums.len()];
                for (y, &offset) in line.iter_mut().zip(offsets) {
                    *y = y.wrapping_add(offset.wrapping_mul(total));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
