//! Matmuls by prepacked weights of bf16, summed in single precision.
//!
//! [`PackedBf16`] has two neighbours of a column in a word, as AMX's `tdpbf16ps` multiplies them, and AVX-512's `vdpbf16ps`.
//! Machines with these round A to bf16 as well, block by block. Others make single precision of B again, panel by panel, and
//! multiply by what [`packed`](super::packed) does; A is not rounded then.

mod units;

use super::matmul::Matrix;
use super::packed::{self, HEIGHT, Lines, Packed, Panels, check_tile, in_rows, lanes};
use super::simd::{Kernel, dispatch};
use super::tile::TileMut;
use super::view::{check_reach, check_size};
use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable, cast_slice, cast_slice_mut};
use half::bf16;
use pulp::Simd;
use std::fmt;
use std::ops::Range;
use units::{Instructions, TALL, Tiles, Unit};

/// Neighbours in a column that are multiplied at a time.
const DEEP: usize = 2;

/// Columns of a line.
const LANES: usize = 16;

/// Lines of a panel's row, at most.
const LINES: usize = 3;

/// Words of a column that are gone through at a time, at most: as many bytes as of single precision.
const DEPTH: usize = packed::DEPTH;

const _: () = assert!(Packed::COLUMNS == LINES * LANES);

/// Two rows of 16 columns, a column's two numbers in a word, the first one in its lower half; or 32 numbers of a row of A.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u32; LANES]);

/// A matrix in panels of columns, as [`Packed`], of bf16. What fills up its depth, to as much as the machine multiplies at once,
/// and the last panel is zero.
#[derive(PartialEq)]
pub(crate) struct PackedBf16 {
    depth: usize,
    columns: usize,
    lines: Lines,
}

impl fmt::Debug for PackedBf16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedBf16[{}, {}]", self.depth, self.columns)
    }
}

impl PackedBf16 {
    /// How such matrices are multiplied by, for profiles: by the instruction for it, or made single precision of panel by panel.
    pub(crate) fn algorithm() -> &'static str {
        Unit::best().map_or("widened", Unit::name)
    }

    /// The bytes that a matrix of these sizes takes; `None` if they are too many to count.
    pub(crate) fn bytes(depth: usize, columns: usize) -> Option<usize> {
        groups(depth).checked_mul(columns.div_ceil(LANES))?.checked_mul(size_of::<Line>())
    }

    /// The bytes that it takes.
    pub(crate) fn held_bytes(&self) -> u64 {
        size_of_val(self.lines()) as u64
    }

    /// A matrix of these sizes without its numbers, by which kernels can be chosen but nothing multiplied.
    pub(crate) fn outline(depth: usize, columns: usize) -> Self {
        Self { depth, columns, lines: Lines::none() }
    }

    /// Rounds a matrix to bf16, ties to even, and packs it.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a batch, [`Error::OutOfBounds`] if the view leaves its slice, and [`Error::Memory`].
    pub(crate) fn new(b: Matrix<'_, f32>, depth: usize, columns: usize) -> Result<Self> {
        check_size("rank of a packed matrix's batch", 0, b.at.batch.len())?;
        let axes = [(depth, b.at.row), (columns, b.at.column)];
        check_reach("the packed matrix", b.data.len(), b.at.offset, axes)?;
        let bytes = Self::bytes(depth, columns);
        let bytes = bytes.ok_or(Error::TooLarge { what: "a packed matrix" })?;
        let mut lines = Lines::zeroed(bytes)?;
        dispatch(Pack { b, depth, columns, lines: cast_slice_mut(lines.numbers_mut()) });
        Ok(Self { depth, columns, lines })
    }

    fn lines(&self) -> &[Line] {
        cast_slice(self.lines.numbers())
    }

    /// The panel that begins at a column which is a multiple of a panel's.
    fn panel(&self, column: usize) -> Panel<'_> {
        let (groups, across) = (groups(self.depth), self.columns.div_ceil(LANES));
        let first = column / LANES;
        let wide = LINES.min(across - first);
        let (lines, after) = self.lines()[first * groups..].split_at(wide * groups);
        Panel { lines, wide, after }
    }
}

/// Some columns of a packed matrix.
#[derive(Clone, Copy)]
struct Panel<'a> {
    lines: &'a [Line],
    /// Lines of a row.
    wide: usize,
    /// The panels behind it.
    after: &'a [Line],
}

/// Brings a matrix into panels of zeros.
struct Pack<'a> {
    b: Matrix<'a, f32>,
    depth: usize,
    columns: usize,
    lines: &'a mut [Line],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Self { b, depth, columns, lines } = self;
        let panels = lines.chunks_mut((LINES * groups(depth)).max(1));
        for (first, panel) in (0..columns).step_by(LINES * LANES).zip(panels) {
            let own = (LINES * LANES).min(columns - first);
            let wide = own.div_ceil(LANES);
            for row in 0..depth {
                let words: &mut [u32] = cast_slice_mut(&mut panel[row / DEEP * wide..][..wide]);
                let shift = row % DEEP * 16;
                let from = row as isize * b.at.row + first as isize * b.at.column;
                let from = b.at.offset as isize + from;
                let words = &mut words[..own];
                if b.at.column == 1 {
                    let from = &b.data[from as usize..][..own];
                    words.iter_mut().zip(from).for_each(|(word, &x)| *word |= bits(x) << shift);
                    continue;
                }
                for (column, word) in words.iter_mut().enumerate() {
                    let x = b.data[(from + column as isize * b.at.column) as usize];
                    *word |= bits(x) << shift;
                }
            }
        }
    }
}

/// A number rounded to bf16.
#[inline(always)]
fn bits(x: f32) -> u32 {
    bf16::from_f32(x).to_bits().into()
}

/// The numbers of a word, that of its lower half first.
#[inline(always)]
fn pair(word: u32) -> [f32; DEEP] {
    [word << 16, word & 0xffff_0000].map(f32::from_bits)
}

/// Lines that [`multiply`] works in, for A of at most so many rows.
pub(crate) fn memory(rows: usize, b: &PackedBf16) -> usize {
    memory_of(Unit::best(), rows, b.depth)
}

fn memory_of(unit: Option<Unit>, rows: usize, depth: usize) -> usize {
    match unit {
        Some(unit) => rows.min(HEIGHT).next_multiple_of(unit.rows()) * pitch(depth),
        None => Panels::len(depth, Packed::COLUMNS) / LANES,
    }
}

/// Words of a column that the best unit multiplies at once.
fn step() -> usize {
    Unit::best().map_or(1, Unit::step)
}

/// Words of a column of this depth: steps are filled up with zeros.
fn groups(depth: usize) -> usize {
    depth.div_ceil(DEEP).next_multiple_of(step())
}

/// Words of a column that are gone through at a time: blocks are about as deep as each other.
fn deep(depth: usize) -> usize {
    let groups = groups(depth);
    groups.div_ceil(groups.div_ceil(DEPTH).max(1)).next_multiple_of(step()).max(1)
}

/// Lines from one row of a block of A to the next. One more than there need be: rows do not crowd the same places of a cache.
fn pitch(depth: usize) -> usize {
    deep(depth).div_ceil(LANES) + 1
}

/// C = A·B on the calling thread, as [`packed::multiply`], in memory of as many lines as [`memory`] says.
///
/// # Errors
/// As for [`packed::multiply`], and [`Error::Mismatch`] for less memory.
pub(crate) fn multiply(
    k: usize,
    a: Matrix<'_, f32>,
    b: &PackedBf16,
    column: usize,
    c: &mut TileMut<'_, f32>,
    memory: &mut [Line],
) -> Result<()> {
    multiply_by(Unit::best(), k, a, b, column, c, memory)
}

fn multiply_by(
    unit: Option<Unit>,
    k: usize,
    a: Matrix<'_, f32>,
    b: &PackedBf16,
    column: usize,
    c: &mut TileMut<'_, f32>,
    memory: &mut [Line],
) -> Result<()> {
    let (m, n) = c.sizes();
    if m == 0 || n == 0 {
        return Ok(());
    }
    check_tile(k, a, [b.depth, b.columns], column, c)?;
    let need = memory_of(unit, m, k);
    let found = memory.len();
    let memory = memory.get_mut(..need);
    let memory =
        memory.ok_or(Error::Mismatch { what: "lines of memory", expected: need, found })?;
    in_rows(k, m, a, |a| match unit {
        _ if k == 0 => (0..m).for_each(|row| c.row(row).fill(0.0)),
        Some(unit) => {
            let [groups, deep, pitch] = [groups(k), deep(k), pitch(k)];
            unit.run(MatMul { a, b, groups, deep, pitch, column, c, left: memory });
        }
        None => widened(a, b, column, c.whole(), cast_slice_mut(memory)),
    })
}

/// C = A·B in single precision, a panel of B at a time.
fn widened(
    a: Matrix<'_, f32>,
    b: &PackedBf16,
    column: usize,
    c: TileMut<'_, f32>,
    memory: &mut [f32],
) {
    let (mut rest, mut first) = (c, column);
    while rest.sizes().1 > 0 {
        let [mut c, after] = rest.split_columns(Packed::COLUMNS);
        let sizes = [b.depth, b.columns.min(first + Packed::COLUMNS) - first];
        dispatch(Widen { panel: b.panel(first), sizes, to: memory });
        Panels::of(sizes, memory, lanes()).multiply(a, &mut c);
        (rest, first) = (after, first + Packed::COLUMNS);
    }
}

/// Makes panels of single precision of one of bf16.
struct Widen<'a> {
    panel: Panel<'a>,
    sizes: [usize; 2],
    to: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Self { panel, sizes: [depth, columns], to } = self;
        let width = packed::width(S::F32_LANES);
        for (first, to) in (0..columns).step_by(width).zip(to.chunks_mut(width * depth)) {
            let wide = width.min((columns - first).next_multiple_of(S::F32_LANES));
            let rows = panel.lines.chunks_exact(panel.wide);
            for (lines, rows) in rows.zip(to[..wide * depth].chunks_mut(DEEP * wide)) {
                let words = &cast_slice::<Line, u32>(lines)[first..first + wide];
                let (upper, lower) = rows.split_at_mut(wide);
                upper.iter_mut().zip(words).for_each(|(to, &word)| *to = pair(word)[0]);
                lower.iter_mut().zip(words).for_each(|(to, &word)| *to = pair(word)[1]);
            }
        }
    }
}

/// A tile of C = A·B, which begins at this column of B; rows of A are contiguous.
struct MatMul<'a, 'b, 'c> {
    a: Matrix<'a, f32>,
    b: &'a PackedBf16,
    /// Words of a column, those of a block of them, and lines from one row of a block of A to the next.
    groups: usize,
    deep: usize,
    pitch: usize,
    column: usize,
    c: &'b mut TileMut<'c, f32>,
    /// Memory for a block of A.
    left: &'b mut [Line],
}

impl MatMul<'_, '_, '_> {
    #[inline(always)]
    fn run(mut self, unit: Instructions<'_>) {
        let ((height, _), depth) = (self.c.sizes(), self.b.depth);
        let (groups, deep) = (self.groups, self.deep);
        for top in (0..height).step_by(HEIGHT) {
            let rows = top..height.min(top + HEIGHT);
            for start in (0..groups).step_by(deep) {
                let own = start..groups.min(start + deep);
                let numbers = own.start * DEEP..depth.min(own.end * DEEP);
                for (row, to) in rows.clone().zip(self.left.chunks_exact_mut(self.pitch)) {
                    let first = self.a.at.offset + row * self.a.at.row as usize;
                    let row = &self.a.data[first..][numbers.clone()];
                    unit.narrow_row(row, to);
                }
                self.panels(unit, rows.clone(), own);
            }
        }
    }

    /// Some rows times all panels, over these words of a column.
    #[inline(always)]
    fn panels(&mut self, unit: Instructions<'_>, rows: Range<usize>, own: Range<usize>) {
        let (_, columns) = self.c.sizes();
        for to in (0..columns).step_by(LINES * LANES) {
            let Panel { lines, wide, after } = self.b.panel(self.column + to);
            let lines = &lines[own.start * wide..own.end * wide];
            // What comes from afar while this panel is multiplied.
            let next = cast_slice(&after[(own.start * wide).min(after.len())..]);
            match wide {
                1 => self.panel::<1>(unit, rows.clone(), own.start > 0, (lines, next), to),
                2 => self.panel::<2>(unit, rows.clone(), own.start > 0, (lines, next), to),
                _ => self.panel::<LINES>(unit, rows.clone(), own.start > 0, (lines, next), to),
            }
        }
    }

    #[inline(always)]
    fn panel<const V: usize>(
        &mut self,
        unit: Instructions<'_>,
        rows: Range<usize>,
        adds: bool,
        (lines, next): (&[Line], &[u32]),
        to: usize,
    ) {
        let (panel, _) = lines.as_chunks::<V>();
        if let Some(tiles) = unit.tiles() {
            return self.tall::<V>(tiles, rows, adds, panel, to);
        }
        // Words that are asked for with each row of the panel.
        let each = (lines.len() * LANES).div_ceil(rows.len().div_ceil(8));
        let pace = if next.is_empty() { 0 } else { each.div_ceil(panel.len()) };
        let mut row = rows.start;
        while row < rows.end {
            let (first, left) = (row - rows.start, rows.end - row);
            let next = (&next[(first / 8 * each).min(next.len())..], pace);
            let place = (first, row, to);
            row += match left {
                1 => self.block::<1, V>(unit, place, left, adds, panel, next),
                2 => self.block::<2, V>(unit, place, left, adds, panel, next),
                3 | 4 => self.block::<4, V>(unit, place, left, adds, panel, next),
                _ => self.block::<8, V>(unit, place, left, adds, panel, next),
            };
        }
    }

    /// At most `H` rows of a block of A times a panel; gives their number. Rows that are not there are computed as the last
    /// one and left out.
    #[inline(always)]
    fn block<const H: usize, const V: usize>(
        &mut self,
        unit: Instructions<'_>,
        (first, row, to): (usize, usize, usize),
        left: usize,
        adds: bool,
        panel: &[[Line; V]],
        next: (&[u32], usize),
    ) -> usize {
        let (count, pitch) = (left.min(H), self.pitch);
        let rows: [&[u32]; H] = std::array::from_fn(|i| {
            let at = (first + i.min(count - 1)) * pitch;
            &cast_slice::<Line, u32>(&self.left[at..at + pitch])[..panel.len()]
        });
        let mut sums = [[[0.0; LANES]; V]; H];
        unit.dots(rows, panel, next, &mut sums);
        self.store(&sums[..count], row, to, adds);
        count
    }

    /// All rows of a block of A times a panel, by tiles; what fills up the last ones is left out. Even one row takes no longer
    /// than by vectors: reading the panel takes as long.
    #[inline(always)]
    fn tall<const V: usize>(
        &mut self,
        tiles: Tiles<'_>,
        rows: Range<usize>,
        adds: bool,
        panel: &[[Line; V]],
        to: usize,
    ) {
        let pitch = self.pitch;
        for row in rows.clone().step_by(2 * TALL) {
            let count = (rows.end - row).min(2 * TALL);
            let left = cast_slice(&self.left[(row - rows.start) * pitch..]);
            let mut sums = [[[0.0; LANES]; V]; 2 * TALL];
            let own = &mut sums[..count.next_multiple_of(TALL)];
            tiles.of_bf16((left, pitch * LANES), panel, own);
            self.store(&sums[..count], row, to, adds);
        }
    }

    /// Stores sums in rows of C from this one on, or adds them to these.
    #[inline(always)]
    fn store<const V: usize>(
        &mut self,
        sums: &[[[f32; LANES]; V]],
        row: usize,
        to: usize,
        adds: bool,
    ) {
        for (sums, row) in sums.iter().zip(row..) {
            let (whole, rest) = self.c.row(row)[to..].as_chunks_mut::<LANES>();
            for (sums, to) in sums.iter().zip(&mut *whole) {
                store(to, sums, adds);
            }
            if let Some(sums) = sums.get(whole.len()) {
                store(rest, sums, adds);
            }
        }
    }
}

/// Stores sums in a row, or adds them to it: those that it has place for.
#[inline(always)]
fn store(to: &mut [f32], sums: &[f32; LANES], adds: bool) {
    match adds {
        true => to.iter_mut().zip(sums).for_each(|(to, &sum)| *to += sum),
        false => to.iter_mut().zip(sums).for_each(|(to, &sum)| *to = sum),
    }
}

#[cfg(test)]
mod tests;
