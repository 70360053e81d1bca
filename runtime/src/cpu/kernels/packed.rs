//! Matmuls by a matrix that is prepacked, as weights can be.
//!
//! [`Packed`] holds B in panels, a few vectors of columns wide and as deep as B, so that the inner loop reads it
//! from one end to the other; A is read where it lies. Few rows cost little more than bringing B from memory then,
//! and many no more than their multiplications: what a matmul of any two matrices spends on packing B is spent
//! once.

use super::finish::{Epilogue, leave_biased, unrolled};
use super::matrix::{Matrix, Strides};
use super::prefetch::prefetch;
use super::simd::{Kernel, dispatch};
use super::tile::{Cut, Grid, TileMut};
use super::view::{check_reach, check_size};
use crate::cpu::scratch;
use crate::error::{Error, Result};
use crate::threads::{self, chunks_mut};
use bytemuck::{Pod, Zeroable, cast_slice, cast_slice_mut};
use graphene_frontend::memory::{LARGE, Pages};
use pulp::Simd;
use std::fmt;
use std::ops::Range;

/// Vectors to a panel's row, at most: with eight rows of A their sums fill three quarters of 32 registers.
pub(super) const VECTORS: usize = 3;

/// The same where there are 16 registers, as x86 without AVX-512 has: sums of six rows fill three quarters of them. With three
/// vectors compilers keep some of the sums in memory.
const FEWER: usize = 2;

/// Vectors to a panel's row, at most, of a matrix in a near cache, where there are 32 registers.
const NEAR: usize = 4;

/// Vectors of so many lanes to a panel's row, at most.
const fn vectors(lanes: usize) -> usize {
    if cfg!(target_arch = "x86_64") && lanes < 16 { FEWER } else { VECTORS }
}

/// Vectors to a panel's row, for a matrix `wide` vectors wide that is read again while it is in a near cache: four rows of A by
/// four vectors are as fast there as eight by three. Panels are as equally wide as can be.
fn vectors_of_near(wide: usize, lanes: usize) -> usize {
    let most = if vectors(lanes) == VECTORS { NEAR } else { FEWER };
    wide.div_ceil(wide.div_ceil(most).max(1)).max(1)
}

/// Rows of A that are multiplied at a time, at most, with so many registers.
pub(super) const fn tall(registers: usize) -> usize {
    if registers < 32 { 6 } else { 8 }
}

/// Columns of a panel whose vectors have so many lanes.
pub(super) const fn width(lanes: usize) -> usize {
    vectors(lanes) * lanes
}

/// Rows of B that are gone through at a time, at most: so much of a panel stays in the second-level cache, and of
/// eight rows of A in the first.
pub(super) const DEPTH: usize = 768;

/// Rows of A that are gone through at a time: they stay in the second-level cache beside a panel.
pub(crate) const HEIGHT: usize = 128;

/// Columns of a tile, at most: with its rows it stays in the second-level cache until what follows it is done.
const WIDE: usize = 768;

/// Columns below which a matmul of few rows is not divided for the threads' sake, and half of those of one with many:
/// longer rows are written and read faster.
const NARROW: usize = 96;

/// Multiplications that a thread takes at least, where several share a matmul.
const SHARE: usize = 1 << 16;

/// The most columns of a panel, but for those of [`Panels::near`]: three vectors of 16 lanes.
pub(super) const WIDEST: usize = 48;

/// A cache line: no vector of a panel lies on two.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line([f32; 16]);

/// A matrix in panels of columns. A panel's rows lie one after the other; the last panel is as many vectors wide as
/// it must be, and filled with zeros.
#[derive(PartialEq)]
pub(crate) struct Packed {
    depth: usize,
    columns: usize,
    /// Those of a vector on this machine.
    lanes: usize,
    lines: Lines,
}

/// Lines, many of them on pages to themselves.
pub(super) enum Lines {
    Few(Vec<Line>),
    Many(Pages),
}

impl Lines {
    /// Zeros.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(super) fn zeroed(bytes: usize) -> Result<Self> {
        let refused = || Error::Memory { bytes };
        if bytes >= LARGE {
            return Pages::zeroed(bytes).map(Self::Many).map_err(|_| refused());
        }
        let lines = bytemuck::allocation::try_zeroed_vec(bytes / size_of::<Line>());
        lines.map(Self::Few).map_err(|()| refused())
    }

    /// No lines.
    pub(super) fn none() -> Self {
        Self::Few(Vec::new())
    }

    pub(super) fn numbers(&self) -> &[f32] {
        match self {
            Self::Few(lines) => cast_slice(lines),
            Self::Many(pages) => cast_slice(pages),
        }
    }

    pub(super) fn numbers_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Few(lines) => cast_slice_mut(lines),
            Self::Many(pages) => cast_slice_mut(pages),
        }
    }
}

impl PartialEq for Lines {
    fn eq(&self, other: &Self) -> bool {
        self.numbers() == other.numbers()
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed[{}, {}]", self.depth, self.columns)
    }
}

impl Packed {
    /// The name in profiles of matmuls by such matrices.
    pub(crate) const ALGORITHM: &str = "packed";

    /// Every panel but the last has a divisor of this many columns: tiles of C have to begin at a multiple of it.
    pub(crate) const COLUMNS: usize = WIDEST;

    /// The bytes that a matrix of these sizes takes; `None` if they are too many to count.
    pub(crate) fn bytes(depth: usize, columns: usize) -> Option<usize> {
        Self::bytes_of(depth, columns, lanes())
    }

    fn bytes_of(depth: usize, columns: usize, lanes: usize) -> Option<usize> {
        let columns = columns.checked_next_multiple_of(lanes)?;
        depth.checked_mul(columns)?.checked_next_multiple_of(16)?.checked_mul(size_of::<f32>())
    }

    /// The bytes that it takes.
    pub(crate) fn held_bytes(&self) -> u64 {
        size_of_val(self.lines.numbers()) as u64
    }

    /// Its rows and columns.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.depth, self.columns)
    }

    /// A matrix of these sizes without its numbers, by which kernels can be chosen but nothing multiplied.
    pub(crate) fn outline(depth: usize, columns: usize) -> Self {
        Self { depth, columns, lanes: lanes(), lines: Lines::none() }
    }

    /// Packs a matrix.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a batch, [`Error::OutOfBounds`] if the view leaves its slice, and [`Error::Memory`].
    pub(crate) fn new(b: Matrix<'_, f32>, depth: usize, columns: usize) -> Result<Self> {
        Self::with_lanes(b, depth, columns, lanes())
    }

    pub(super) fn with_lanes(
        b: Matrix<'_, f32>,
        depth: usize,
        columns: usize,
        lanes: usize,
    ) -> Result<Self> {
        check_size("rank of a packed matrix's batch", 0, b.at.batch.len())?;
        let axes = [(depth, b.at.row), (columns, b.at.column)];
        check_reach("the packed matrix", b.data.len(), b.at.offset, axes)?;
        let bytes = Self::bytes_of(depth, columns, lanes);
        let bytes = bytes.ok_or(Error::TooLarge { what: "a packed matrix" })?;
        let mut packed = Self { depth, columns, lanes, lines: Lines::zeroed(bytes)? };
        pack(b, [depth, columns], [lanes, vectors(lanes)], packed.lines.numbers_mut());
        Ok(packed)
    }

    pub(super) fn panels(&self) -> Panels<'_> {
        let &Self { depth, columns, lanes, .. } = self;
        Panels::of([depth, columns], self.lines.numbers(), lanes)
    }
}

/// The same, in memory of another.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    pub(super) depth: usize,
    pub(super) columns: usize,
    /// Those of a vector on this machine.
    pub(super) lanes: usize,
    /// Those of a panel's row, but for the last panel's, which may be fewer.
    vectors: usize,
    pub(super) elements: &'a [f32],
}

impl<'a> Panels<'a> {
    /// A matrix whose panels these elements are.
    pub(super) fn of([depth, columns]: [usize; 2], elements: &'a [f32], lanes: usize) -> Self {
        Self { depth, columns, lanes, vectors: vectors(lanes), elements }
    }

    /// Elements of memory that [`new`](Self::new) and [`near`](Self::near) want, on a boundary of cache lines, for at most so
    /// many rows and columns.
    pub(crate) fn len(depth: usize, columns: usize) -> usize {
        (depth * columns.next_multiple_of(WIDEST)).next_multiple_of(16)
    }

    /// Packs a matrix that reaches nothing outside of its slice.
    pub(crate) fn new(b: Matrix<'_, f32>, sizes: [usize; 2], memory: &'a mut [f32]) -> Self {
        Self::packed(b, sizes, vectors(lanes()), memory)
    }

    /// The same for a matrix that is multiplied again while it is in the second-level cache, in panels of up to [`NEAR`] vectors.
    pub(crate) fn near(b: Matrix<'_, f32>, sizes: [usize; 2], memory: &'a mut [f32]) -> Self {
        let lanes = lanes();
        Self::packed(b, sizes, vectors_of_near(sizes[1].div_ceil(lanes), lanes), memory)
    }

    fn packed(
        b: Matrix<'_, f32>,
        [depth, columns]: [usize; 2],
        vectors: usize,
        memory: &'a mut [f32],
    ) -> Self {
        let lanes = lanes();
        let memory = &mut memory[..depth * columns.next_multiple_of(lanes)];
        pack(b, [depth, columns], [lanes, vectors], memory);
        Self { depth, columns, lanes, vectors, elements: memory }
    }

    /// The same, spread over the cores.
    pub(crate) fn spread(b: Matrix<'_, f32>, sizes: [usize; 2], memory: &'a mut [f32]) -> Self {
        let ([depth, columns], lanes) = (sizes, lanes());
        let (width, memory) =
            (width(lanes), &mut memory[..depth * columns.next_multiple_of(lanes)]);
        threads::each(1, chunks_mut(memory, (width * depth).max(1)), |panel, memory| {
            let first = panel * width;
            let offset = b.at.offset.wrapping_add_signed(first as isize * b.at.column);
            let b = Matrix { at: Strides { offset, ..b.at }, ..b };
            pack(b, [depth, width.min(columns - first)], [lanes, vectors(lanes)], memory);
        });
        Self::of(sizes, memory, lanes)
    }

    /// C = A·B as [`multiply`](Self::multiply), spread over the cores where there is enough to do.
    pub(crate) fn multiply_spread(self, a: Matrix<'_, f32>, c: TileMut<'_, f32>) {
        let (m, n) = c.sizes();
        debug_assert!(a.at.column == 1 && a.at.row >= 0, "rows of A are contiguous");
        let most = m.saturating_mul(n).saturating_mul(self.depth) / SHARE;
        let (rows, columns) = tile([m, n], most.min(threads::TASKS * threads::count()));
        let grid = Grid { matrices: 1, rows: m, tall: rows, wide: Some([n, columns]) };
        let cut = Cut::new(grid, [(c, 1)]).expect("the grid has the sizes of the tile");
        threads::each(if most < 2 { usize::MAX } else { 1 }, cut, |_, (block, mut tiles)| {
            let offset = (a.at.offset as isize + block.row as isize * a.at.row) as usize;
            let at = Strides { offset, ..a.at };
            for c in &mut tiles {
                let deep = 0..self.depth;
                let a = Matrix { data: a.data, at };
                self.multiply_rows(a, deep, block.column, c, Epilogue::NONE);
            }
        });
    }

    /// C = A·B on the calling thread, for an A of contiguous rows, none of which lies before another, and a C of as
    /// many rows and B's columns.
    pub(crate) fn multiply(self, a: Matrix<'_, f32>, c: &mut TileMut<'_, f32>) {
        self.multiply_rows(a, 0..self.depth, 0, c, Epilogue::NONE);
    }

    /// C = A·B of these rows of B and as many columns of A, for the columns of B from `column` on that C has, and what follows
    /// on the sums, on the calling thread. Rows of A are contiguous and none lies before another.
    pub(super) fn multiply_rows(
        self,
        a: Matrix<'_, f32>,
        deep: Range<usize>,
        column: usize,
        c: &mut TileMut<'_, f32>,
        epilogue: Epilogue<'_>,
    ) {
        debug_assert!(a.at.column == 1 && a.at.row >= 0, "rows of A are contiguous");
        let Matrix { data: a, at } = a;
        match c.sizes().0 {
            0..=2 => dispatch(MatMul::<true> { a, at, b: self, deep, column, c, epilogue }),
            _ => dispatch(MatMul::<false> { a, at, b: self, deep, column, c, epilogue }),
        }
    }
}

/// Brings a matrix into panels; what fills the last one up is zero.
fn pack(
    b: Matrix<'_, f32>,
    [depth, columns]: [usize; 2],
    [lanes, vectors]: [usize; 2],
    to: &mut [f32],
) {
    if depth == 0 {
        return;
    }
    let width = vectors * lanes;
    for (first, panel) in (0..columns).step_by(width).zip(to.chunks_mut(width * depth)) {
        let own = width.min(columns - first);
        let Strides { offset, row: down, column: across, .. } = b.at;
        let start = offset as isize + first as isize * across;
        let wide = own.next_multiple_of(lanes);
        if across != 1 && down == 1 {
            dispatch(Turn { b: b.data, start: start as usize, across, panel, wide, own, depth });
            continue;
        }
        for (row, to) in panel.chunks_exact_mut(wide).take(depth).enumerate() {
            let start = start + row as isize * down;
            let (to, rest) = to.split_at_mut(own);
            rest.fill(0.0);
            if across == 1 {
                to.copy_from_slice(&b.data[start as usize..start as usize + own]);
                continue;
            }
            for (column, to) in to.iter_mut().enumerate() {
                *to = b.data[(start + column as isize * across) as usize];
            }
        }
    }
}

/// A panel of a matrix whose columns are contiguous, four of them at a time.
struct Turn<'a> {
    b: &'a [f32],
    start: usize,
    across: isize,
    panel: &'a mut [f32],
    wide: usize,
    own: usize,
    depth: usize,
}

impl Kernel for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        // So much of a panel is in the first-level cache while its columns come, four at a time.
        const ROWS: usize = 128;
        let Turn { b, start, across, panel, wide, own, depth } = self;
        let column = |column: usize| {
            let start = start.wrapping_add_signed(column as isize * across);
            &b[start..start + depth]
        };
        let whole = own - own % 4;
        for (block, panel) in panel.chunks_mut(wide * ROWS).enumerate() {
            let rows = (depth - depth.min(block * ROWS)).min(ROWS);
            let column = |number: usize| &column(number)[block * ROWS..][..rows];
            for first in (0..whole).step_by(4) {
                let [a, b, c, d] = std::array::from_fn(|i| column(first + i));
                let elements = a.iter().zip(b).zip(c).zip(d);
                for (row, (((&a, &b), &c), &d)) in panel.chunks_exact_mut(wide).zip(elements) {
                    row[first..first + 4].copy_from_slice(&[a, b, c, d]);
                }
            }
            for first in whole..own {
                let column = panel.iter_mut().skip(first).step_by(wide).zip(column(first));
                column.for_each(|(to, &x)| *to = x);
            }
            if own < wide {
                panel.chunks_exact_mut(wide).for_each(|row| row[own..].fill(0.0));
            }
        }
    }
}

/// C = A·B, with `k` columns in A, spread over the cores where there is enough to do.
///
/// # Errors
/// As [`multiply`].
pub(crate) fn multiply_all(
    k: usize,
    a: Matrix<'_, f32>,
    b: &Packed,
    mut c: TileMut<'_, f32>,
) -> Result<()> {
    let (m, n) = c.sizes();
    let most = m.saturating_mul(n).saturating_mul(k) / SHARE;
    let parts = most.min(threads::count());
    if parts < 2 {
        return multiply(k, a, b, 0, &mut c, Epilogue::NONE);
    }
    let (rows, columns) = tile([m, n], parts);
    check_reach("the left operand", a.data.len(), a.at.offset, [(m, a.at.row), (k, a.at.column)])?;
    let grid = Grid { matrices: 1, rows: m, tall: rows, wide: Some([n, columns]) };
    let cut = Cut::new(grid, [(c, 1)]).expect("the grid has the sizes of the tile");
    threads::try_each(1, cut, |_, (block, mut tiles)| {
        let offset = (a.at.offset as isize + block.row as isize * a.at.row) as usize;
        let a = Matrix { at: Strides { offset, ..a.at }, ..a };
        let mut tiles = tiles.iter_mut();
        tiles.try_for_each(|tile| multiply(k, a, b, block.column, tile, Epilogue::NONE))
    })
}

/// Rows and columns of the tiles that a matmul of `[rows, columns]` is computed in, so many of them where it is
/// not too small for that. Columns are a multiple of [`Packed::COLUMNS`] or all.
pub(crate) fn tile([m, n]: [usize; 2], wanted: usize) -> (usize, usize) {
    let (m, n, wanted) = (m.max(1), n.max(1), wanted.max(1));
    let down = m.div_ceil(HEIGHT);
    let narrow = if m < HEIGHT / 2 { NARROW } else { 2 * NARROW };
    let across = n.div_ceil(WIDE).max(wanted.div_ceil(down).min(n / narrow));
    // Few tiles are a multiple of those wanted: threads that share them have as many each.
    let each = wanted.div_ceil(across);
    let down = if down < 4 * each { down.next_multiple_of(each) } else { down };
    let down = down.min(m.div_ceil(8));
    let columns = n.div_ceil(across).next_multiple_of(Packed::COLUMNS).min(n);
    (m.div_ceil(down).next_multiple_of(8).min(m), columns)
}

/// C = A·B on the calling thread, with `k` columns in A, for the columns of B from `column` on that C has, and what follows on
/// the sums.
///
/// # Errors
/// As for [`check_tile`].
pub(crate) fn multiply(
    k: usize,
    a: Matrix<'_, f32>,
    b: &Packed,
    column: usize,
    c: &mut TileMut<'_, f32>,
    epilogue: Epilogue<'_>,
) -> Result<()> {
    let (m, n) = c.sizes();
    if m == 0 || n == 0 {
        return Ok(());
    }
    check_tile(k, a, [b.depth, b.columns], column, c)?;
    in_rows(k, m, a, |a| b.panels().multiply_rows(a, 0..k, column, c, epilogue))
}

/// Checks that an A of `k` columns times those of B from `column` on that C has can be a tile.
///
/// # Errors
/// [`Error::Mismatch`] for an A with a batch or with other columns than B has rows, and for a C that neither ends
/// with B nor begins and ends at multiples of [`Packed::COLUMNS`]; [`Error::OutOfBounds`] if A leaves its slice or
/// C has more columns than B.
pub(super) fn check_tile(
    k: usize,
    a: Matrix<'_, f32>,
    [depth, columns]: [usize; 2],
    column: usize,
    c: &TileMut<'_, f32>,
) -> Result<()> {
    let (m, n) = c.sizes();
    check_size("rank of the left operand's batch", 0, a.at.batch.len())?;
    check_size("columns of the left operand", depth, k)?;
    check_reach("the left operand", a.data.len(), a.at.offset, [(m, a.at.row), (k, a.at.column)])?;
    check_reach("the packed matrix", columns, column, [(n, 1)])?;
    check_size("columns before a tile", column.next_multiple_of(Packed::COLUMNS), column)?;
    if column + n < columns {
        check_size("columns of a tile", n.next_multiple_of(Packed::COLUMNS), n)?;
    }
    Ok(())
}

/// Works with an A of `m` rows and `k` columns, or a copy of it: one whose rows are contiguous, none before another.
///
/// # Errors
/// [`Error::Memory`].
pub(super) fn in_rows(
    k: usize,
    m: usize,
    a: Matrix<'_, f32>,
    work: impl FnOnce(Matrix<'_, f32>),
) -> Result<()> {
    if a.at.column == 1 && a.at.row >= 0 || k == 0 {
        work(a);
        return Ok(());
    }
    let Strides { offset, row, column: across, .. } = a.at;
    let element = |i: usize, k: usize| offset as isize + i as isize * row + k as isize * across;
    let places = (0..m).flat_map(|i| (0..k).map(move |k| (i, k)));
    let mut dense = scratch::take::<f32>(m * k)?;
    dense.iter_mut().zip(places).for_each(|(to, (i, k))| *to = a.data[element(i, k) as usize]);
    let at = Strides { offset: 0, batch: &[], row: k as isize, column: 1 };
    work(Matrix { data: &dense, at });
    Ok(())
}

/// A's rows are contiguous, and none lies before another. If they are `FEW`, one or two, most of the time goes into bringing
/// panels, and two of them come faster side by side.
struct MatMul<'a, 'b, 'c, const FEW: bool> {
    a: &'a [f32],
    at: Strides<'a>,
    b: Panels<'a>,
    /// The rows of B, and columns of A, that are multiplied.
    deep: Range<usize>,
    column: usize,
    c: &'b mut TileMut<'c, f32>,
    epilogue: Epilogue<'a>,
}

impl<const FEW: bool> Kernel for MatMul<'_, '_, '_, FEW> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(mut self, simd: S) {
        const { assert!(WIDEST.is_multiple_of(width(S::F32_LANES))) }
        debug_assert_eq!(S::F32_LANES, self.b.lanes, "panels are packed for this machine");
        let (height, _) = self.c.sizes();
        let Range { start, end } = self.deep;
        if start == end {
            (0..height).for_each(|row| self.c.row(row).fill(0.0));
            return self.epilogue.apply(self.c);
        }
        let blocks = (end - start).div_ceil(DEPTH);
        let deep = (end - start).div_ceil(blocks);
        for first in (0..height).step_by(HEIGHT) {
            let rows = first..height.min(first + HEIGHT);
            for k in (start..end).step_by(deep) {
                self.panels(simd, rows.clone(), k..end.min(k + deep));
            }
            if self.epilogue.while_storing().is_none() {
                self.epilogue.apply_within(simd, self.c, rows);
            }
        }
    }
}

impl<const FEW: bool> MatMul<'_, '_, '_, FEW> {
    /// The matmuls of some rows of A with all panels, adding up over these rows of B.
    #[inline(always)]
    fn panels<S: Simd>(&mut self, simd: S, rows: Range<usize>, k: Range<usize>) {
        let (b, width) = (self.b, self.b.vectors * S::F32_LANES);
        let (all, (_, columns)) = (b.elements, self.c.sizes());
        let mut done = 0;
        while FEW && b.vectors == vectors(S::F32_LANES) && columns - done >= 2 * width {
            let panels = [done, done + width].map(|to| {
                let own = &all[(self.column + to) * b.depth..][k.start * width..k.end * width];
                S::as_simd_f32s(own).0
            });
            match (rows.len(), b.vectors) {
                (1, VECTORS) => self.pair::<S, 1, VECTORS>(simd, rows.start, &k, panels, done),
                (_, VECTORS) => self.pair::<S, 2, VECTORS>(simd, rows.start, &k, panels, done),
                (1, _) => self.pair::<S, 1, FEWER>(simd, rows.start, &k, panels, done),
                _ => self.pair::<S, 2, FEWER>(simd, rows.start, &k, panels, done),
            }
            done += 2 * width;
        }
        for to in (done..columns).step_by(width) {
            let first = self.column + to;
            let vectors = b.vectors.min((b.columns - first).div_ceil(S::F32_LANES));
            let own = vectors * S::F32_LANES;
            let panel = &all[first * b.depth..][k.start * own..k.end * own];
            let (panel, _) = S::as_simd_f32s(panel);
            // The panel behind this one, which comes from afar while this one is multiplied.
            let next = (first + width) * b.depth + k.start * own;
            let next = &all[next.min(all.len())..];
            match vectors {
                1 => self.panel::<S, 1>(simd, rows.clone(), k.clone(), panel, to, next),
                2 => self.panel::<S, 2>(simd, rows.clone(), k.clone(), panel, to, next),
                VECTORS => self.panel::<S, VECTORS>(simd, rows.clone(), k.clone(), panel, to, next),
                _ => self.panel::<S, NEAR>(simd, rows.clone(), k.clone(), panel, to, next),
            }
        }
    }

    /// The matmuls of `H` rows of A with two whole panels of `V` vectors.
    #[inline(always)]
    fn pair<S: Simd, const H: usize, const V: usize>(
        &mut self,
        simd: S,
        row: usize,
        k: &Range<usize>,
        panels: [&[S::f32s]; 2],
        to: usize,
    ) {
        let [first, second] = panels.map(|panel| &panel.as_chunks::<V>().0[..k.len()]);
        let a: [&[f32]; H] = std::array::from_fn(|i| {
            &self.a[self.at.offset + (row + i) * self.at.row as usize + k.start..][..k.len()]
        });
        let mut sums = [[[simd.splat_f32s(0.0); V]; 2]; H];
        for (k, both) in first.iter().zip(second).enumerate() {
            for (a, sums) in a.iter().zip(&mut sums) {
                let a = simd.splat_f32s(a[k]);
                for (sums, b) in sums.iter_mut().zip([both.0, both.1]) {
                    for (sum, &b) in sums.iter_mut().zip(b) {
                        *sum = simd.mul_add_e_f32s(a, b, *sum);
                    }
                }
            }
        }
        self.leave(simd, row..row + H, k, to, &sums.map(|[first, _]| first));
        self.leave(simd, row..row + H, k, to + V * S::F32_LANES, &sums.map(|[_, second]| second));
    }

    /// The matmuls of some rows of A with a panel.
    #[inline(always)]
    fn panel<S: Simd, const V: usize>(
        &mut self,
        simd: S,
        rows: Range<usize>,
        k: Range<usize>,
        panel: &[S::f32s],
        to: usize,
        next: &[f32],
    ) {
        let (panel, _) = panel.as_chunks::<V>();
        let blocks = rows.len().div_ceil(const { tall(S::REGISTER_COUNT) });
        let each = (panel.len() * V * S::F32_LANES).div_ceil(blocks);
        // Numbers that are asked for with each row of the panel.
        let pace = if next.is_empty() { 0 } else { each.div_ceil(panel.len().max(1)) };
        let mut row = rows.start;
        while row < rows.end {
            let left = rows.end - row;
            let part = (row - rows.start) * blocks / rows.len();
            let next = &next[(part * each).min(next.len())..];
            row += match left {
                1 => self.block::<S, 1, V>(simd, row..row + 1, &k, panel, to, (next, pace)),
                2 => self.block::<S, 2, V>(simd, row..row + 2, &k, panel, to, (next, pace)),
                3 | 4 => self.block::<S, 4, V>(simd, row..row + left, &k, panel, to, (next, pace)),
                // Not six and two: sums of two rows are too few to hide an addition's latency.
                7 | 8 if const { S::REGISTER_COUNT < 32 } => {
                    self.block::<S, 4, V>(simd, row..row + 4, &k, panel, to, (next, pace))
                }
                _ if const { S::REGISTER_COUNT < 32 } => {
                    self.block::<S, 6, V>(simd, row..row + left.min(6), &k, panel, to, (next, pace))
                }
                _ if V == NEAR => {
                    self.block::<S, 4, V>(simd, row..row + 4, &k, panel, to, (next, pace))
                }
                _ => {
                    self.block::<S, 8, V>(simd, row..row + left.min(8), &k, panel, to, (next, pace))
                }
            };
        }
    }

    /// The matmuls of at most `H` rows of A with a panel; gives the number of rows. Rows that are not there are
    /// computed as the last one and left out.
    #[inline(always)]
    fn block<S: Simd, const H: usize, const V: usize>(
        &mut self,
        simd: S,
        rows: Range<usize>,
        k: &Range<usize>,
        panel: &[[S::f32s; V]],
        to: usize,
        (next, pace): (&[f32], usize),
    ) -> usize {
        let (last, stride) = (rows.end - 1, self.at.row as usize);
        let a: [&[f32]; H] = std::array::from_fn(|i| {
            let row = (rows.start + i).min(last);
            &self.a[self.at.offset + row * stride + k.start..][..panel.len()]
        });
        let mut sums = [[simd.splat_f32s(0.0); V]; H];
        if S::REGISTER_COUNT < 32 && H > 2 {
            sums = add_in_steps(simd, sums, &a, panel, (next, 0, pace));
        } else {
            for (k, b) in panel.iter().enumerate() {
                // A row or two are multiplied no faster than the panel itself is read.
                if H > 2 {
                    prefetch(next, k * pace);
                }
                for (a, sums) in a.iter().zip(&mut sums) {
                    let a = simd.splat_f32s(a[k]);
                    for (sum, &b) in sums.iter_mut().zip(b) {
                        *sum = simd.mul_add_e_f32s(a, b, *sum);
                    }
                }
            }
        }
        self.leave(simd, rows.clone(), k, to, &sums);
        rows.len()
    }

    /// Leaves sums in rows of C, from a column on, or adds them to those of earlier rows of B; with the last ones comes the
    /// epilogue, if it is done then.
    #[inline(always)]
    fn leave<S: Simd, const H: usize, const V: usize>(
        &mut self,
        simd: S,
        rows: Range<usize>,
        k: &Range<usize>,
        to: usize,
        sums: &[[S::f32s; V]; H],
    ) {
        let columns = to..self.c.sizes().1.min(to + V * S::F32_LANES);
        let adds = k.start > self.deep.start;
        let epilogue = self.epilogue.while_storing().filter(|_| k.end == self.deep.end);
        let bias = epilogue.and_then(|epilogue| epilogue.bias).map(|bias| &bias[columns.clone()]);
        unrolled!(i in [0 1 2 3 4 5 6 7] => if i < H && i < rows.len() {
            let row = &mut self.c.row(rows.start + i)[columns.clone()];
            leave_biased::<S, V>(simd, row, sums[i], adds, bias);
        });
        if let Some(function) = epilogue.and_then(|epilogue| epilogue.function) {
            function.apply_within(simd, self.c, rows, columns);
        }
    }
}

/// Adds rows of A times a panel to sums, for machines with 16 registers. A step has few multiplications there, so bounds are
/// checked, and at most two lines of the next panel prefetched, once in four steps. Sums are given and taken by value, so that they
/// stay in registers.
#[inline(always)]
pub(super) fn add_in_steps<S: Simd, const H: usize, const V: usize>(
    simd: S,
    sums: [[S::f32s; V]; H],
    rows: &[&[f32]; H],
    panel: &[[S::f32s; V]],
    (next, mut ahead, pace): (&[f32], usize, usize),
) -> [[S::f32s; V]; H] {
    const STEPS: usize = 4;
    let mut own = sums;
    let (steps, rest) = panel.as_chunks::<STEPS>();
    let rows = rows.map(|row| row[..panel.len()].as_chunks::<STEPS>());
    for (number, b) in steps.iter().enumerate() {
        prefetch(next, ahead);
        prefetch(next, ahead + pace * STEPS / 2);
        ahead += pace * STEPS;
        let rows: [&[f32; STEPS]; H] = std::array::from_fn(|i| &rows[i].0[number]);
        for step in 0..STEPS {
            for (row, sums) in rows.iter().zip(&mut own) {
                add_row(simd, row[step], &b[step], sums);
            }
        }
    }
    for (k, b) in rest.iter().enumerate() {
        for ((_, row), sums) in rows.iter().zip(&mut own) {
            add_row(simd, row[k], b, sums);
        }
    }
    own
}

/// Sums of a row, and an element of A times a row of a panel.
#[inline(always)]
fn add_row<S: Simd, const V: usize>(simd: S, a: f32, b: &[S::f32s; V], sums: &mut [S::f32s; V]) {
    let a = simd.splat_f32s(a);
    for (sum, &b) in sums.iter_mut().zip(b) {
        *sum = simd.mul_add_e_f32s(a, b, *sum);
    }
}

/// Lanes of this machine's vectors.
pub(super) fn lanes() -> usize {
    struct Lanes;

    impl Kernel for Lanes {
        type Output = usize;

        #[inline(always)]
        fn run<S: Simd, const FMA: bool>(self, _: S) -> usize {
            S::F32_LANES
        }
    }

    dispatch(Lanes)
}

#[cfg(test)]
pub(super) mod tests;
