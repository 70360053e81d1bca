//! A block of queries of one head: scores, their softmax and its product with the values, by tiles that stay in
//! registers, over panels that stay in cache. The softmax is carried along over blocks of keys, so that no thread
//! ever holds more than a few rows of one block of scores.

use super::{Mask, Operands, Scores, Sizes, View};
use crate::cpu::kernels::math;
use crate::cpu::kernels::real::Real;
use crate::cpu::kernels::simd::{Kernel, max, sum};
use pulp::Simd;

/// Queries of a block.
pub(super) const QUERIES: usize = 128;

/// Keys of a block.
const KEYS: usize = 256;

/// Rows whose scores are held at a time, a multiple of all tiles' rows.
const ROWS: usize = 32;

/// Vectors to a row of a panel.
const VECTORS: usize = 2;

/// What a thread works in.
#[derive(Default)]
pub(super) struct Scratch {
    /// Queries, one after the other.
    queries: Vec<f32>,
    /// Panels of keys, transposed: as many keys side by side as a tile is wide.
    keys: Vec<f32>,
    /// Panels of values: as many columns as a tile is wide.
    values: Vec<f32>,
    scores: Vec<f32>,
    /// The sums of the values so far, by row.
    sums: Vec<f32>,
    line: Vec<f32>,
}

/// Queries `first..` of a head, as many as there are rows.
pub(super) struct Block<'a, 'b, 'c, T> {
    pub(super) of: &'a Operands<'b, T>,
    pub(super) rows: Vec<&'c mut [T]>,
    pub(super) batch: usize,
    pub(super) head: usize,
    pub(super) first: usize,
    pub(super) scratch: &'a mut Scratch,
}

/// The softmax of a block's rows so far.
struct Running {
    /// The largest score.
    top: [f32; QUERIES],
    /// The sum of the exponentials of the scores' distances to it.
    sum: [f32; QUERIES],
    /// What the newest keys scaled the earlier sums by.
    factor: [f32; QUERIES],
}

impl<T: Real> Kernel for Block<'_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        // A tile has as many accumulators as hide an addition's latency and still fit in registers.
        if S::F32_LANES >= 16 {
            self.by_tiles::<S, FMA, 8>(simd);
        } else {
            self.by_tiles::<S, FMA, 4>(simd);
        }
    }
}

impl<T: Real> Block<'_, '_, '_, T> {
    #[inline(always)]
    fn by_tiles<S: Simd, const FMA: bool, const R: usize>(self, simd: S) {
        let Self { of, mut rows, batch, head, first, scratch } = self;
        let Sizes { heads, groups, keys, depth, value_depth, .. } = of.sizes;
        let group = head / (heads / groups);
        let panel = VECTORS * S::F32_LANES;
        let height = rows.len().next_multiple_of(R);
        let columns = value_depth.next_multiple_of(panel);
        // No query of the block attends keys beyond its last one.
        let keys = if of.scores.causal { keys.min(first + rows.len()) } else { keys };
        let widest = keys.min(KEYS).next_multiple_of(panel);
        let queries = aligned(&mut scratch.queries, height * depth);
        let key_panels = aligned(&mut scratch.keys, widest * depth);
        let value_panels = aligned(&mut scratch.values, columns * keys.min(KEYS));
        let scores = aligned(&mut scratch.scores, ROWS * widest);
        let sums = aligned(&mut scratch.sums, height * columns);
        let spare = aligned(&mut scratch.line, depth.max(value_depth));
        for (i, to) in queries.chunks_exact_mut(depth.max(1)).take(rows.len()).enumerate() {
            to.copy_from_slice(line(&of.q, [batch, head, first + i, 0], &mut spare[..depth]));
        }
        let mut running = Running {
            top: [f32::NEG_INFINITY; QUERIES],
            sum: [0.0; QUERIES],
            factor: [0.0; QUERIES],
        };
        for key in (0..keys).step_by(KEYS) {
            let width = KEYS.min(keys - key);
            let padded = width.next_multiple_of(panel);
            let lines = (width, panel);
            pack_keys(key_panels, &of.k, [batch, group, key, 0], lines, &mut spare[..depth]);
            let spare = &mut spare[..value_depth];
            pack_values(value_panels, &of.v, [batch, group, key, 0], lines, spare);
            for from in (0..height).step_by(ROWS) {
                let count = ROWS.min(height - from);
                let scores = &mut scores[..count * padded];
                for column in (0..padded).step_by(panel) {
                    let keys = &key_panels[column * depth..][..panel * depth];
                    for row in (0..count).step_by(R) {
                        let queries = &queries[(from + row) * depth..];
                        let tile = multiply::<S, R>(simd, queries, depth, depth, keys);
                        let to = &mut scores[row * padded + column..];
                        store_scaled(simd, &tile, of.scores.scale, to, padded);
                    }
                }
                let live = count.min(rows.len() - from.min(rows.len()));
                for (i, row) in scores.chunks_exact_mut(padded).take(live).enumerate() {
                    let place = [batch, head, first + from + i, key];
                    running.soften::<S, FMA>(simd, from + i, &mut row[..width], place, &of.scores);
                }
                for column in (0..columns).step_by(panel) {
                    let values = &value_panels[column * width..][..panel * width];
                    for row in (0..count).step_by(R) {
                        let weights = &scores[row * padded..];
                        let tile = multiply::<S, R>(simd, weights, padded, width, values);
                        let to = &mut sums[(from + row) * columns + column..];
                        let factor = &running.factor[from + row..];
                        store_joined(simd, &tile, (key > 0).then_some(factor), to, columns);
                    }
                }
            }
        }
        for (i, row) in rows.iter_mut().enumerate() {
            let line = &mut sums[i * columns..][..value_depth];
            running.divide(line, i, of.scores.guarded);
            T::narrow(row, line);
        }
    }
}

/// So many elements that begin on a cache line, in a vector that grows.
fn aligned(vector: &mut Vec<f32>, len: usize) -> &mut [f32] {
    const LINE: usize = 64;
    let spare = LINE / size_of::<f32>();
    if vector.len() < len + spare {
        vector.resize(len + spare, 0.0);
    }
    let start = vector.as_ptr().align_offset(LINE).min(spare);
    &mut vector[start..start + len]
}

/// The elements along the last axis from `place` on, as many as there is spare room to convert them in.
#[inline(always)]
fn line<'a, T: Real>(view: &View<'a, T>, place: [usize; 4], spare: &'a mut [f32]) -> &'a [f32] {
    if spare.is_empty() {
        return spare;
    }
    let (start, stride) = (view.place(place), view.strides[3]);
    if stride == 1 {
        let elements = &view.data[start..start + spare.len()];
        if let Some(line) = T::as_f32(elements) {
            return line;
        }
        T::widen(spare, elements);
    } else {
        for (i, y) in spare.iter_mut().enumerate() {
            *y = view.data[start.wrapping_add_signed(i as isize * stride)].to_f32();
        }
    }
    spare
}

/// Packs keys from `place` on, so many of them (first of `lines`), into panels so many wide (second).
#[inline(always)]
fn pack_keys<T: Real>(
    panels: &mut [f32],
    keys: &View<'_, T>,
    [b, group, first, _]: [usize; 4],
    (width, panel): (usize, usize),
    spare: &mut [f32],
) {
    let depth = spare.len();
    if depth == 0 {
        return;
    }
    for (p, to) in panels.chunks_exact_mut(panel * depth).take(width.div_ceil(panel)).enumerate() {
        let count = panel.min(width - p * panel);
        for j in 0..count {
            let from = line(keys, [b, group, first + p * panel + j, 0], spare);
            for (to, &x) in to.chunks_exact_mut(panel).zip(from) {
                to[j] = x;
            }
        }
        // What stands beside the last keys is multiplied too, and dropped.
        to.chunks_exact_mut(panel).for_each(|to| to[count..].fill(0.0));
    }
}

/// Packs values, as [`pack_keys`] but not transposed.
#[inline(always)]
fn pack_values<T: Real>(
    panels: &mut [f32],
    values: &View<'_, T>,
    [b, group, first, _]: [usize; 4],
    (width, panel): (usize, usize),
    spare: &mut [f32],
) {
    for key in 0..width {
        let from = line(values, [b, group, first + key, 0], spare);
        for (p, from) in from.chunks(panel).enumerate() {
            let to = &mut panels[(p * width + key) * panel..][..panel];
            to[..from.len()].copy_from_slice(from);
            to[from.len()..].fill(0.0);
        }
    }
}

/// `R` rows of `depth` elements times a panel.
#[inline(always)]
fn multiply<S: Simd, const R: usize>(
    simd: S,
    rows: &[f32],
    stride: usize,
    depth: usize,
    panel: &[f32],
) -> [[S::f32s; VECTORS]; R] {
    let mut tile = [[simd.splat_f32s(0.0); VECTORS]; R];
    let (panel, _) = S::as_simd_f32s(panel).0.as_chunks::<VECTORS>();
    let mut of = [&rows[..0]; R];
    for (r, of) in of.iter_mut().enumerate() {
        *of = &rows[r * stride..][..depth];
    }
    for (p, columns) in panel[..depth].iter().enumerate() {
        for r in 0..R {
            let x = simd.splat_f32s(of[r][p]);
            for v in 0..VECTORS {
                tile[r][v] = simd.mul_add_e_f32s(x, columns[v], tile[r][v]);
            }
        }
    }
    tile
}

#[inline(always)]
fn store_scaled<S: Simd, const R: usize>(
    simd: S,
    tile: &[[S::f32s; VECTORS]; R],
    scale: f32,
    to: &mut [f32],
    stride: usize,
) {
    let scale = simd.splat_f32s(scale);
    for (r, row) in tile.iter().enumerate() {
        let to = S::as_mut_simd_f32s(&mut to[r * stride..][..VECTORS * S::F32_LANES]).0;
        for (to, &x) in to.iter_mut().zip(row) {
            *to = simd.mul_f32s(x, scale);
        }
    }
}

/// Adds the tile to the sums there, each row first scaled by its factor; without factors nothing is there yet.
#[inline(always)]
fn store_joined<S: Simd, const R: usize>(
    simd: S,
    tile: &[[S::f32s; VECTORS]; R],
    factor: Option<&[f32]>,
    to: &mut [f32],
    stride: usize,
) {
    for (r, row) in tile.iter().enumerate() {
        let to = S::as_mut_simd_f32s(&mut to[r * stride..][..VECTORS * S::F32_LANES]).0;
        for (to, &x) in to.iter_mut().zip(row) {
            *to = match factor {
                Some(factor) => simd.mul_add_e_f32s(*to, simd.splat_f32s(factor[r]), x),
                None => x,
            };
        }
    }
}

impl Running {
    /// The sums of row `i` of the block by that of its weights.
    #[inline(always)]
    fn divide(&self, line: &mut [f32], i: usize, guarded: bool) {
        let by = self.sum[i];
        if guarded && (by == 0.0 || by.is_nan()) {
            line.fill(0.0);
        } else {
            let scale = 1.0 / by;
            line.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// The scores of row `i` of the block to the exponentials of their distances to the largest so far. `place` is of
    /// the first: batch, head, query and key.
    #[inline(always)]
    fn soften<S: Simd, const FMA: bool>(
        &mut self,
        simd: S,
        i: usize,
        row: &mut [f32],
        place: [usize; 4],
        of: &Scores<'_>,
    ) {
        if of.softcap != 0.0 {
            let inverse = 1.0 / of.softcap;
            row.iter_mut().for_each(|x| *x = of.softcap * math::tanh::<FMA>(*x * inverse));
        }
        match &of.mask {
            None => {}
            Some(Mask::Bool(mask)) => {
                add_mask(row, mask, place, |byte| if byte == 0 { f32::NEG_INFINITY } else { 0.0 })
            }
            Some(Mask::F32(mask)) => add_mask(row, mask, place, |x| x),
            Some(Mask::F16(mask)) => add_mask(row, mask, place, Real::to_f32),
            Some(Mask::BF16(mask)) => add_mask(row, mask, place, Real::to_f32),
        }
        if of.causal {
            let [_, _, query, key] = place;
            let width = row.len();
            row[(query + 1).saturating_sub(key).min(width)..].fill(f32::NEG_INFINITY);
        }
        let (top, next) = (self.top[i], max(simd, row));
        let next = if next > top { next } else { top };
        // Where nothing may be attended yet, all exponentials are 0 whatever they are taken about.
        let about = if next == f32::NEG_INFINITY { 0.0 } else { next };
        self.factor[i] = math::exp_flushed::<FMA>(top - about);
        for x in row.iter_mut() {
            *x = math::exp_flushed::<FMA>(*x - about);
        }
        self.sum[i] = self.sum[i] * self.factor[i] + sum(simd, row);
        self.top[i] = next;
    }
}

#[inline(always)]
fn add_mask<T: Copy>(
    row: &mut [f32],
    mask: &View<'_, T>,
    first: [usize; 4],
    bias: impl Fn(T) -> f32,
) {
    let start = mask.place(first);
    match mask.strides[3] {
        0 => {
            let bias = bias(mask.data[start]);
            row.iter_mut().for_each(|x| *x += bias);
        }
        1 => {
            let line = &mask.data[start..start + row.len()];
            row.iter_mut().zip(line).for_each(|(x, &m)| *x += bias(m));
        }
        stride => row.iter_mut().enumerate().for_each(|(i, x)| {
            *x += bias(mask.data[start.wrapping_add_signed(i as isize * stride)]);
        }),
    }
}
