//! Windows times filters.

use super::{Place, Windows, vectors};
use crate::cpu::kernels::finish::{Finish, leave_finished, unrolled};
use crate::cpu::kernels::packed::{self, Packed, Panels};
use crate::cpu::kernels::prefetch::prefetch;
use crate::cpu::kernels::simd::{Kernel, dispatch};
use crate::cpu::kernels::tile::TileMut;
use crate::threads;
use pulp::Simd;
use std::ops::Range;

/// Fewer multiplications than this run on the calling thread.
pub(super) const PARALLEL: usize = 1 << 17;

/// Windows that are gone through at a time: they stay in the second-level cache beside a panel.
const HEIGHT: usize = packed::HEIGHT;

/// Rows and columns of the tiles of a convolution of so many windows and filters.
pub(super) fn tile(sizes: [usize; 2], depth: usize) -> (usize, usize) {
    let work = sizes[0].saturating_mul(sizes[1]).saturating_mul(depth);
    let wanted = if threads::count() == 1 { 1 } else { threads::TASKS * threads::count() };
    packed::tile(sizes, wanted.min(work / PARALLEL * 2))
}

/// A tile of y, which begins at this window and filter. `bias` is as long as panels are wide.
pub(super) fn run(
    windows: &Windows<'_>,
    filters: &Packed,
    (bias, finish): (&[f32], Finish<'_>),
    [first, column]: [usize; 2],
    c: &mut TileMut<'_, f32>,
) {
    dispatch(Tile::new(windows, filters, (bias, finish), [first, column], c));
}

pub(super) struct Tile<'a, 'b, 'c> {
    windows: &'a Windows<'a>,
    /// The windows' images.
    elements: &'a [f32],
    b: Panels<'a>,
    bias: &'a [f32],
    finish: Finish<'a>,
    first: usize,
    column: usize,
    c: &'b mut TileMut<'c, f32>,
}

impl<'a, 'b, 'c> Tile<'a, 'b, 'c> {
    pub(super) fn new(
        windows: &'a Windows<'a>,
        filters: &'a Packed,
        (bias, finish): (&'a [f32], Finish<'a>),
        [first, column]: [usize; 2],
        c: &'b mut TileMut<'c, f32>,
    ) -> Self {
        let (elements, b) = (&*windows.data, filters.panels());
        Self { windows, elements, b, bias, finish, first, column, c }
    }
}

/// A part of the depth: whole runs, or some elements of one.
#[derive(Clone)]
struct Deep {
    runs: Range<usize>,
    elements: Range<usize>,
}

impl Kernel for Tile<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(mut self, simd: S) {
        debug_assert_eq!(S::F32_LANES, self.b.lanes, "panels are packed for this machine");
        let (height, _) = self.c.sizes();
        let (run, runs) = (self.windows.run, self.windows.steps.len());
        let parts = run.div_ceil(packed::DEPTH).max(1);
        let each = run.div_ceil(parts).max(1);
        let together = if parts > 1 { 1 } else { (packed::DEPTH / run.max(1)).clamp(1, runs) };
        // Blocks of runs about as many as each other.
        let together = runs.div_ceil(runs.div_ceil(together));
        for top in (0..height).step_by(HEIGHT) {
            let rows = top..height.min(top + HEIGHT);
            let mut places = [Place::default(); HEIGHT];
            if self.windows.apart.is_none() {
                self.windows.places(self.first + top, &mut places[..rows.len()]);
            }
            let places = &places[..rows.len()];
            for start in (0..runs).step_by(together) {
                for from in (0..run).step_by(each) {
                    let runs = start..runs.min(start + together);
                    let deep = Deep { runs, elements: from..run.min(from + each) };
                    self.panels::<S, FMA>(simd, top, places, &deep);
                }
            }
        }
    }
}

impl Tile<'_, '_, '_> {
    /// Some windows times all panels, over this part of the depth.
    #[inline(always)]
    fn panels<S: Simd, const FMA: bool>(
        &mut self,
        simd: S,
        top: usize,
        places: &[Place],
        deep: &Deep,
    ) {
        let (b, width) = (self.b, packed::width(S::F32_LANES));
        let (all, (_, columns)) = (b.elements, self.c.sizes());
        let start = deep.runs.start * self.windows.run + deep.elements.start;
        let end = (deep.runs.end - 1) * self.windows.run + deep.elements.end;
        for to in (0..columns).step_by(width) {
            let first = self.column + to;
            let vectors = width.min(b.columns - first).div_ceil(S::F32_LANES);
            let own = vectors * S::F32_LANES;
            let panel = &all[first * b.depth..][start * own..end * own];
            let (panel, _) = S::as_simd_f32s(panel);
            // The panel behind this one, which comes from afar while this one is multiplied.
            let next = (first + width) * b.depth + start * own;
            let next = &all[next.min(all.len())..];
            match vectors {
                1 => self.panel::<S, FMA, 1>(simd, top, places, deep, (panel, to), next),
                2 => self.panel::<S, FMA, 2>(simd, top, places, deep, (panel, to), next),
                _ => {
                    self.panel::<S, FMA, { packed::VECTORS }>(
                        simd,
                        top,
                        places,
                        deep,
                        (panel, to),
                        next,
                    );
                }
            }
        }
    }

    #[inline(always)]
    fn panel<S: Simd, const FMA: bool, const V: usize>(
        &mut self,
        simd: S,
        top: usize,
        places: &[Place],
        deep: &Deep,
        (panel, to): (&[S::f32s], usize),
        next: &[f32],
    ) {
        let (panel, _) = panel.as_chunks::<V>();
        let blocks = places.len().div_ceil(const { packed::tall(S::REGISTER_COUNT) });
        let each = (panel.len() * V * S::F32_LANES).div_ceil(blocks);
        let pace = if next.is_empty() { 0 } else { each.div_ceil(panel.len().max(1)) };
        let mut row = 0;
        while row < places.len() {
            let part = row * blocks / places.len();
            let next = (&next[(part * each).min(next.len())..], pace);
            let (at, left) = (top + row, &places[row..]);
            row += match left.len() {
                1 => self.block::<S, FMA, 1, V>(simd, at, left, deep, (panel, to), next),
                2 => self.block::<S, FMA, 2, V>(simd, at, left, deep, (panel, to), next),
                3 | 4 => self.block::<S, FMA, 4, V>(simd, at, left, deep, (panel, to), next),
                7 | 8 if const { S::REGISTER_COUNT < 32 } => {
                    self.block::<S, FMA, 4, V>(simd, at, left, deep, (panel, to), next)
                }
                _ if const { S::REGISTER_COUNT < 32 } => {
                    self.block::<S, FMA, 6, V>(simd, at, left, deep, (panel, to), next)
                }
                _ => self.block::<S, FMA, 8, V>(simd, at, left, deep, (panel, to), next),
            };
        }
    }

    /// At most `H` windows; gives their number. Those that are not there are computed as the last one and left out.
    #[inline(always)]
    fn block<S: Simd, const FMA: bool, const H: usize, const V: usize>(
        &mut self,
        simd: S,
        row: usize,
        places: &[Place],
        deep: &Deep,
        (panel, to): (&[[S::f32s; V]], usize),
        (next, pace): (&[f32], usize),
    ) -> usize {
        let count = places.len().min(H);
        let adds = deep.runs.start > 0 || deep.elements.start > 0;
        let start = if adds {
            [simd.splat_f32s(0.0); V]
        } else {
            vectors::<S, V>(&self.bias[self.column + to..])
        };
        let (run, runs) = (self.windows.run, self.windows.steps.len());
        let ends = deep.runs.end == runs && deep.elements.end == run;
        let finish = if ends { self.finish } else { Finish::NONE };
        let number = |i: usize| (self.first + row + i) * self.b.columns + self.column + to;
        (0..count).for_each(|i| finish.prefetch(number(i), V * S::F32_LANES));
        let mut sums = [start; H];
        let depth = deep.elements.len();
        for (number, &step) in self.windows.steps[deep.runs.clone()].iter().enumerate() {
            let mut runs: [&[f32]; H] = [&[]; H];
            match self.windows.apart {
                Some(apart) => {
                    let start = self.windows.offset + deep.elements.start;
                    let from = &self.elements[start + (self.first + row) * apart..];
                    for (i, run) in runs.iter_mut().enumerate() {
                        *run = &from[i.min(count - 1) * apart..];
                    }
                }
                None => {
                    for (i, run) in runs.iter_mut().enumerate() {
                        let place = places[i.min(count - 1)];
                        let whole = self.windows.run(self.elements, place, step);
                        *run = &whole[deep.elements.start..];
                    }
                }
            }
            let panel = &panel[number * depth..][..depth];
            sums = add(simd, sums, &runs, panel, (next, number * depth * pace, pace));
        }
        unrolled!(i in [0 1 2 3 4 5 6 7] => if i < H && i < count {
            let row = self.c.row(row + i);
            let end = row.len().min(to + V * S::F32_LANES);
            let finish = (finish, number(i));
            leave_finished::<S, FMA, V>(simd, &mut row[to..end], sums[i], adds, finish);
        });
        count
    }
}

/// Sums and those of rows of A times a panel's. Sums are given and taken by value, so that they stay in registers.
#[inline(always)]
fn add<S: Simd, const H: usize, const V: usize>(
    simd: S,
    sums: [[S::f32s; V]; H],
    rows: &[&[f32]; H],
    panel: &[[S::f32s; V]],
    (next, mut ahead, pace): (&[f32], usize, usize),
) -> [[S::f32s; V]; H] {
    if S::REGISTER_COUNT < 32 && H > 2 {
        return packed::add_in_steps(simd, sums, rows, panel, (next, ahead, pace));
    }
    let a: [&[f32]; H] = std::array::from_fn(|i| &rows[i][..panel.len()]);
    let mut own = sums;
    for (k, b) in panel.iter().enumerate() {
        if H > 2 {
            prefetch(next, ahead);
            ahead += pace;
        }
        for (a, sums) in a.iter().zip(&mut own) {
            let a = simd.splat_f32s(a[k]);
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum = simd.mul_add_e_f32s(a, b, *sum);
            }
        }
    }
    own
}
