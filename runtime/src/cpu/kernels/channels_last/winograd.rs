//! Windows of 3 × 3 that move by one, with 16 multiplications for four of them rather than 36: Winograd's F(2 × 2, 3 × 3)
//! (Lavin and Gray, *Fast Algorithms for Convolutional Neural Networks*, section 4.1).
//!
//! Four neighbouring windows are a patch of 4 × 4 elements. Patches and filters are transformed, `Bᵀ·d·B` and `G·g·Gᵀ`; a
//! matmul for each of 16 elements sums over channels, and `Aᵀ·m·A` makes four windows of each patch's sums.

use super::depthwise::Channels;
use super::{Moves, pack_filters, vectors};
use crate::cpu::kernels::finish::{Epilogue, Finish, leave_finished};
use crate::cpu::kernels::matrix::{Matrix, Strides};
use crate::cpu::kernels::packed::{Packed, Panels};
use crate::cpu::kernels::simd::{Kernel, dispatch};
use crate::cpu::kernels::tile::{Block, TileMut};
use crate::cpu::kernels::view::check_size;
use crate::cpu::scratch;
use crate::error::Result;
use crate::threads;
use pulp::Simd;

/// Rows and columns of a patch and of transformed filters.
const SIDE: usize = 4;

/// Elements of a patch: the matmuls.
pub(crate) const PATCH: usize = SIDE * SIDE;

/// Patches that are transformed at a time, about: with their sums they stay in the second-level cache.
const TOGETHER: usize = 56;

/// With fewer channels or filters, transforms cost more than multiplications that are saved; vectors divide them.
const LEAST: usize = 32;

/// With fewer patches to an image, transformed filters take longer to read than multiplications that are saved.
const PATCHES: usize = 36;

/// What lies between rows of transformed patches, so that they do not share the same sets of a cache.
const APART: usize = 16;

/// Whether it is worth it for so many channels and filters, and windows.
pub(crate) fn is_worth([channels, filters]: [usize; 2], [rows, columns]: [usize; 2]) -> bool {
    let patches = rows.div_ceil(2).saturating_mul(columns.div_ceil(2));
    channels.min(filters) >= LEAST && channels.is_multiple_of(16) && patches >= PATCHES
}

/// Filters `w[m, c, 3, 3]`, transformed: the 16 elements of a patch are those of a window. They are rounded once.
///
/// # Errors
/// As [`Packed::new`].
pub(crate) fn pack(w: &[f32], [filters, channels]: [usize; 2]) -> Result<Packed> {
    check_size("length of the filters", filters * channels * 9, w.len())?;
    let mut all = scratch::take::<f32>(filters * channels * PATCH)?;
    let (from, _) = w.as_chunks::<9>();
    let (to, _) = all.as_chunks_mut::<PATCH>();
    to.iter_mut().zip(from).for_each(|(to, g)| *to = transformed(g));
    pack_filters(&all, [filters, channels, PATCH], false)
}

/// `G·g·Gᵀ` of a filter's 3 × 3 elements.
fn transformed(g: &[f32; 9]) -> [f32; PATCH] {
    let four = |[a, b, c]: [f64; 3]| [a, (a + b + c) / 2.0, (a - b + c) / 2.0, c];
    let columns: [[f64; SIDE]; 3] =
        std::array::from_fn(|j| four([g[j], g[3 + j], g[6 + j]].map(f64::from)));
    let row = |i: usize| four([columns[0][i], columns[1][i], columns[2][i]]);
    let rows: [[f64; SIDE]; SIDE] = std::array::from_fn(row);
    std::array::from_fn(|place| rows[place / SIDE][place % SIDE] as f32)
}

/// How an image's windows are divided: rows of a part, and its filters.
pub(super) fn tile(moves: &Moves, images: usize, filters: usize) -> (usize, usize) {
    let ([rows, columns], threads) = (moves.outer, threads::count());
    let lines = rows.div_ceil(2);
    if images * lines < 4 * threads || !lines.is_multiple_of(threads) && lines < 8 * threads {
        // Threads share the filters: each transforms all patches.
        let panels = filters.div_ceil(Packed::COLUMNS);
        let wide = (panels.div_ceil(threads) * Packed::COLUMNS).min(filters);
        return (rows * columns, wide);
    }
    let parts = (1..=4).rev().map(|each| each * threads);
    let fair = |&parts: &usize| {
        let tall = lines.div_ceil(parts);
        lines.is_multiple_of(parts) && tall * columns.div_ceil(2) * 2 >= TOGETHER
    };
    let parts = parts.into_iter().find(fair).unwrap_or(threads);
    (2 * lines.div_ceil(parts) * columns, filters)
}

/// Lines of patches that are transformed at a time.
fn together(moves: &Moves) -> usize {
    (TOGETHER / moves.outer[1].div_ceil(2)).clamp(1, moves.outer[0].div_ceil(2))
}

/// Elements of memory that a part works in.
pub(super) fn memory(moves: &Moves, channels: usize) -> usize {
    let patches = together(moves) * moves.outer[1].div_ceil(2);
    patches * (PATCH * channels + APART + PATCH * Packed::COLUMNS)
}

/// A part of y, some rows of an image's windows. `bias` is as long as panels are wide.
pub(super) fn run(
    x: &Channels<'_>,
    filters: &Packed,
    (bias, finish): (&[f32], Finish<'_>),
    block: Block,
    memory: &mut [f32],
    y: &mut TileMut<'_, f32>,
) {
    let [_, columns] = x.moves.outer;
    let (rows, _) = y.sizes();
    let (first, lines) = (block.row / columns / 2, (rows / columns).div_ceil(2));
    let before = block.matrix * x.moves.outer[0] * columns + block.row;
    let (image, column) = (block.matrix, block.column);
    let part = Part { x, b: filters.panels(), bias, finish, before, image, column };
    let some = together(&x.moves);
    for line in (0..lines).step_by(some) {
        let lines = Lines { from: line, first: first + line, count: some.min(lines - line) };
        part.lines(lines, memory, y);
    }
}

pub(super) struct Part<'a> {
    pub(super) x: &'a Channels<'a>,
    pub(super) b: Panels<'a>,
    pub(super) bias: &'a [f32],
    pub(super) finish: Finish<'a>,
    /// Windows of all images before the part's.
    pub(super) before: usize,
    pub(super) image: usize,
    pub(super) column: usize,
}

/// Lines of patches: the first one in the part and in the image, and their number.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub(super) from: usize,
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Part<'_> {
    fn lines(&self, lines: Lines, memory: &mut [f32], y: &mut TileMut<'_, f32>) {
        let (channels, across) = (self.x.channels, self.x.moves.outer[1].div_ceil(2));
        let patches = lines.count * across;
        let pitch = PATCH * channels + APART;
        let (patched, sums) = memory.split_at_mut(patches * pitch);
        dispatch(Patches { part: self, lines, to: patched });
        let (_, all) = y.sizes();
        for to in (0..all).step_by(Packed::COLUMNS) {
            let own = Packed::COLUMNS.min(all - to);
            let at = Strides { offset: 0, batch: &[], row: pitch as isize, column: 1 };
            let a = Matrix { data: &*patched, at };
            let elements = sums.chunks_exact_mut(patches * Packed::COLUMNS).take(PATCH);
            for (element, sums) in elements.enumerate() {
                let [mut c, _] = TileMut::new(sums, Packed::COLUMNS).split_columns(own);
                let deep = element * channels..(element + 1) * channels;
                self.b.multiply_rows(a, deep, self.column + to, &mut c, Epilogue::NONE);
            }
            dispatch(Windows { part: self, lines, sums, to, own, y });
        }
    }
}

/// Transforms patches: a row for each, and in it its elements one after the other, each of all channels.
pub(super) struct Patches<'a> {
    pub(super) part: &'a Part<'a>,
    pub(super) lines: Lines,
    pub(super) to: &'a mut [f32],
}

impl Kernel for Patches<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Self { part, lines, to } = self;
        let (x, across) = (part.x, part.x.moves.outer[1].div_ceil(2));
        let channels = x.channels;
        let image = x.offset as isize + part.image as isize * x.distances[0];
        let places = (0..lines.count).flat_map(|line| (0..across).map(move |patch| (line, patch)));
        for ((line, patch), to) in places.zip(to.chunks_exact_mut(PATCH * channels + APART)) {
            let line = 2 * (lines.first + line) as isize - x.moves.before[0] as isize;
            let column = 2 * patch as isize - x.moves.before[1] as isize;
            let patch: [&[f32]; PATCH] = std::array::from_fn(|place| {
                let (row, column) =
                    (line + (place / SIDE) as isize, column + (place % SIDE) as isize);
                if (row as usize) < x.inner[0] && (column as usize) < x.inner[1] {
                    let at = image + row * x.distances[1] + column * x.distances[2];
                    &x.data[at as usize..][..channels]
                } else {
                    &[]
                }
            });
            for channel in (0..channels).step_by(S::F32_LANES) {
                let d: [S::f32s; PATCH] = std::array::from_fn(|place| match patch[place] {
                    [] => simd.splat_f32s(0.0),
                    run => vectors::<S, 1>(&run[channel..])[0],
                });
                let four = |[a, b, c, d]: [S::f32s; SIDE]| {
                    [
                        simd.sub_f32s(a, c),
                        simd.add_f32s(b, c),
                        simd.sub_f32s(c, b),
                        simd.sub_f32s(b, d),
                    ]
                };
                let columns: [[S::f32s; SIDE]; SIDE] =
                    std::array::from_fn(|j| four([d[j], d[4 + j], d[8 + j], d[12 + j]]));
                for i in 0..SIDE {
                    let row = four(std::array::from_fn(|j| columns[j][i]));
                    for (j, sum) in row.into_iter().enumerate() {
                        let to = &mut to[(i * SIDE + j) * channels + channel..][..S::F32_LANES];
                        S::as_mut_simd_f32s(to).0[0] = sum;
                    }
                }
            }
        }
    }
}

/// Four windows of each patch's sums, of some filters.
pub(super) struct Windows<'a, 'b, 'c> {
    pub(super) part: &'a Part<'a>,
    pub(super) lines: Lines,
    pub(super) sums: &'a [f32],
    /// The first of the filters in the part, and their number.
    pub(super) to: usize,
    pub(super) own: usize,
    pub(super) y: &'b mut TileMut<'c, f32>,
}

impl Kernel for Windows<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Self { part, lines, sums, to, own, y } = self;
        let columns = part.x.moves.outer[1];
        let (across, rows) = (columns.div_ceil(2), y.sizes().0 / columns);
        let patches = lines.count * across;
        let places = (0..lines.count).flat_map(|line| (0..across).map(move |patch| (line, patch)));
        for (number, (line, patch)) in places.enumerate() {
            let (row, column) = (2 * (lines.from + line), 2 * patch);
            // What the next patch's windows are finished by comes while these are summed.
            for window in [row * columns + column + 2, (row + 1) * columns + column + 2] {
                let number = (part.before + window) * part.b.columns + part.column + to;
                part.finish.prefetch(number, own);
                part.finish.prefetch(number + part.b.columns, own);
            }
            for first in (0..own).step_by(S::F32_LANES) {
                let start = vectors::<S, 1>(&part.bias[part.column + to + first..])[0];
                let m: [S::f32s; PATCH] = std::array::from_fn(|element| {
                    let at = (element * patches + number) * Packed::COLUMNS + first;
                    vectors::<S, 1>(&sums[at..])[0]
                });
                let two = |[a, b, c, d]: [S::f32s; SIDE]| {
                    let both = simd.add_f32s(b, c);
                    [simd.add_f32s(a, both), simd.sub_f32s(simd.sub_f32s(b, c), d)]
                };
                let half: [[S::f32s; 2]; SIDE] =
                    std::array::from_fn(|j| two([m[j], m[4 + j], m[8 + j], m[12 + j]]));
                let sums: [[S::f32s; 2]; 2] =
                    std::array::from_fn(|i| two(std::array::from_fn(|j| half[j][i])));
                for (i, sums) in sums.into_iter().enumerate().take(rows - row) {
                    for (j, sum) in sums.into_iter().enumerate().take(columns - column) {
                        let window = (row + i) * columns + column + j;
                        let number = (part.before + window) * part.b.columns + part.column;
                        let line = y.row(window);
                        let end = line.len().min(to + first + S::F32_LANES);
                        let (line, sum) = (&mut line[to + first..end], simd.add_f32s(sum, start));
                        let finish = (part.finish, number + to + first);
                        leave_finished::<S, FMA, 1>(simd, line, [sum], false, finish);
                    }
                }
            }
        }
    }
}
