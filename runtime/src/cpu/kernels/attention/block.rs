//! A block of queries of one head, a block of keys at a time: the softmax is carried along over the blocks of keys, so
//! that no thread ever holds more than one block of scores.

use super::{Mask, Operands, Scores, Sizes, View};
use crate::cpu::kernels::math;
use crate::cpu::kernels::matrix::{Matrix, Strides};
use crate::cpu::kernels::packed::Panels;
use crate::cpu::kernels::prefetch::prefetch_all;
use crate::cpu::kernels::real::Real;
use crate::cpu::kernels::simd::{Kernel, dispatch, max, mul_add, sum};
use crate::cpu::kernels::tile::TileMut;
use crate::threads;
use pulp::Simd;
use std::ops::Range;

/// Queries of which a thread holds the scores at a time.
const QUERIES: usize = 128;

/// Queries of a block, at most: for so many, keys and values are packed once.
const TALLEST: usize = 4 * QUERIES;

/// Keys of a block.
const KEYS: usize = 256;

/// Queries for which keys and values are read as they lie: prepacking them costs more than it saves.
const FEW: usize = 4;

/// Bytes of all operands above which they come from beyond the second-level cache.
const FAR: usize = 1 << 20;

/// What a thread works in.
struct Scratch<'a> {
    scores: &'a mut [f32],
    /// The sums of the values so far, by row.
    sums: &'a mut [f32],
    /// Those of the newest keys.
    newest: &'a mut [f32],
    /// Queries that do not lie as they are multiplied, in f32.
    queries: &'a mut [f32],
    /// Of the softmax so far, for each row, what [`Running`] says.
    running: &'a mut [f32],
    /// Keys and values of 16 bits in f32.
    wide: [&'a mut [f32]; 2],
    /// Keys and values in panels.
    panels: [&'a mut [f32]; 2],
}

/// The softmax of some rows so far.
struct Running<'a> {
    /// The largest score.
    top: &'a mut [f32],
    /// The sum of the exponentials of the scores' distances to it.
    sum: &'a mut [f32],
    /// What the newest keys scaled the earlier sums by.
    factor: &'a mut [f32],
}

impl<'a> Running<'a> {
    /// Of no keys, in memory of three elements for each row.
    fn new(memory: &'a mut [f32], rows: usize) -> Self {
        let (top, rest) = memory.split_at_mut(rows);
        let (sum, factor) = rest.split_at_mut(rows);
        top.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        Self { top, sum, factor: &mut factor[..rows] }
    }

    fn of(&mut self, rows: Range<usize>) -> Running<'_> {
        let Self { top, sum, factor } = self;
        let [top, sum, factor] = [top, sum, factor].map(|all| &mut all[rows.clone()]);
        Running { top, sum, factor }
    }
}

/// Keys or values as they are multiplied.
#[derive(Clone, Copy)]
enum Factor<'a> {
    Rows(Matrix<'a, f32>),
    Panels(Panels<'a>),
}

impl<'a> Factor<'a> {
    /// Rows as they lie if they are contiguous and for `few` queries, else panels.
    fn new(
        rows: Matrix<'a, f32>,
        few: bool,
        panels: impl FnOnce(Matrix<'a, f32>) -> Panels<'a>,
    ) -> Self {
        if few && rows.at.column == 1 { Self::Rows(rows) } else { Self::Panels(panels(rows)) }
    }
}

/// Some keys and their values.
struct Keys<'a> {
    /// The first one.
    first: usize,
    count: usize,
    /// Whether no later ones follow.
    last: bool,
    keys: Factor<'a>,
    values: Factor<'a>,
}

/// Some queries, and what is known of their rows.
struct Queries<'a> {
    /// Their batch and head, and the first one.
    place: [usize; 3],
    rows: Matrix<'a, f32>,
    sums: &'a mut [f32],
    running: Running<'a>,
}

impl Sizes {
    /// Queries of a block, a multiple of [`QUERIES`]: up to [`TALLEST`], fewer where threads would have too little to do.
    pub(super) fn tall(&self, causal: bool) -> usize {
        // A causal block goes through the keys of its last query: in a tall one, its first queries attend few of them.
        if causal {
            return QUERIES;
        }
        let parts = self.queries.div_ceil(QUERIES).max(1);
        let wanted = (threads::TASKS * threads::count()).div_ceil(self.batch * self.heads);
        let blocks = wanted.clamp(parts.div_ceil(TALLEST / QUERIES), parts);
        parts.div_ceil(blocks) * QUERIES
    }

    /// Whether operands of elements of so many bytes come from beyond the second-level cache.
    pub(super) fn are_far(&self, bytes: usize) -> bool {
        let Self { batch, heads, groups, queries, keys, depth, value_depth } = *self;
        let rows = heads.saturating_mul(queries).saturating_add(groups.saturating_mul(keys));
        let columns = depth.saturating_add(value_depth).saturating_mul(bytes);
        batch.saturating_mul(rows).saturating_mul(columns) > FAR
    }
}

impl<T: Real> Operands<'_, T> {
    /// What a thread works in, piece by piece, in elements.
    fn spaces(&self) -> [usize; 9] {
        let Sizes { queries, keys, depth, value_depth, .. } = self.sizes;
        let (rows, held, width) = (queries.min(self.tall), queries.min(QUERIES), keys.min(KEYS));
        let wide = if T::as_f32(&[]).is_some() { 0 } else { width };
        let pieces = [
            held * width,
            rows * value_depth,
            held * value_depth,
            rows * depth,
            3 * rows,
            wide * depth,
            wide * value_depth,
            Panels::len(depth, width),
            Panels::len(width, value_depth),
        ];
        // Each on a boundary of cache lines.
        pieces.map(|len| len.next_multiple_of(16))
    }

    /// Elements that a thread works in.
    pub(super) fn space(&self) -> usize {
        self.spaces().iter().sum()
    }

    /// Queries `first..` of a head, as many as there are rows; the space is [`space`](Self::space) long.
    pub(super) fn block(
        &self,
        mut rows: TileMut<'_, T>,
        [batch, head, first]: [usize; 3],
        space: &mut [f32],
    ) {
        let Sizes { heads, groups, queries, keys, depth, value_depth, .. } = self.sizes;
        let (group, few) = (head / (heads / groups), queries <= FEW);
        let (count, _) = rows.sizes();
        // No query of the block attends keys beyond its last one.
        let keys = if self.scores.causal { keys.min(first + count) } else { keys };
        let Scratch { scores, sums, newest, queries, running, wide, panels } = self.scratch(space);
        let ([wide_keys, wide_values], [key_panels, value_panels]) = (wide, panels);
        let sums = &mut sums[..count * value_depth];
        let mut running = Running::new(running, count);
        let queries = rows_of(&self.q, [batch, head, first, 0], [count, depth], queries);
        for key in (0..keys).step_by(KEYS) {
            let width = KEYS.min(keys - key);
            let place = [batch, group, key, 0];
            let own = matrix(&self.k, place, [width, depth], wide_keys);
            let own = Factor::new(own, few, |own| {
                Panels::near(transposed(own), [depth, width], key_panels)
            });
            let values = matrix(&self.v, place, [width, value_depth], wide_values);
            let values = Factor::new(values, few, |values| {
                Panels::near(values, [width, value_depth], value_panels)
            });
            let last = key + width == keys;
            let these = Keys { first: key, count: width, last, keys: own, values };
            for part in (0..count).step_by(QUERIES) {
                let part = part..count.min(part + QUERIES);
                let queries = Queries {
                    place: [batch, head, first + part.start],
                    rows: rows_from(queries, part.start),
                    sums: &mut sums[part.start * value_depth..part.end * value_depth],
                    running: running.of(part.clone()),
                };
                let ahead = |row| {
                    self.ahead(&mut rows, [batch, head, first], &these, part.start + row);
                };
                self.attend(queries, &these, [&mut *scores, &mut *newest], ahead);
            }
        }
        let guarded = self.scores.guarded;
        dispatch(Divide { rows, sums, width: value_depth, by: running.sum, guarded });
    }

    /// Takes some keys and their values into the sums of some queries; `ahead` is called with the number of each query.
    fn attend(
        &self,
        queries: Queries<'_>,
        newest: &Keys<'_>,
        [scores, added]: [&mut [f32]; 2],
        ahead: impl FnMut(usize),
    ) {
        let Sizes { depth, value_depth, .. } = self.sizes;
        let Queries { place: [batch, head, first], rows, sums, mut running } = queries;
        let &Keys { first: key, count: width, keys, values, .. } = newest;
        let scores = &mut scores[..running.top.len() * width];
        match keys {
            Factor::Rows(keys) => {
                dispatch(Dots { queries: rows, keys, depth, width, to: scores });
            }
            Factor::Panels(keys) => keys.multiply(rows, &mut TileMut::new(scores, width)),
        }
        let (place, of) = ([batch, head, first, key], self.scores);
        dispatch(Soften { scores, width, place, of, running: &mut running, ahead });
        let added = &mut added[..sums.len()];
        let to = if key == 0 { &mut *sums } else { &mut *added };
        let weights = dense(scores, width);
        match values {
            Factor::Rows(values) => {
                let (weights, columns) = (weights.data, value_depth);
                dispatch(Weighted { weights, values, width, columns, to });
            }
            Factor::Panels(values) => values.multiply(weights, &mut TileMut::new(to, value_depth)),
        }
        if key > 0 {
            let (newest, factor) = (&*added, &*running.factor);
            dispatch(Join { sums, newest, width: value_depth, factor });
        }
    }

    /// Prefetches what comes from beyond the second-level cache: with the last keys, a row of the result; in a head's last
    /// block, with its first keys, the same row of the next head's queries, keys and values, which this thread mostly reads
    /// next.
    #[inline(always)]
    fn ahead(
        &self,
        rows: &mut TileMut<'_, T>,
        [batch, head, first]: [usize; 3],
        newest: &Keys<'_>,
        row: usize,
    ) {
        let Sizes { heads, groups, queries, keys, depth, value_depth, .. } = self.sizes;
        if !self.far {
            return;
        }
        if newest.last {
            let own = rows.row(row);
            prefetch_all(own, 0, own.len());
        }
        let next = batch * heads + head + 1;
        let (batch, head) = (next / heads, next % heads);
        let is_last = first + rows.sizes().0 == queries;
        if newest.first > 0 || !is_last || batch == self.sizes.batch {
            return;
        }
        let group = head / (heads / groups);
        let next = [
            (&self.q, head, queries, depth),
            (&self.k, group, keys, depth),
            (&self.v, group, keys, value_depth),
        ];
        for (view, head, rows, columns) in next {
            if view.strides[3] == 1 && row < rows && columns > 0 {
                prefetch_all(view.data, view.place([batch, head, row, 0]), columns);
            }
        }
    }

    fn scratch<'s>(&self, space: &'s mut [f32]) -> Scratch<'s> {
        let mut rest = space;
        let pieces = self.spaces().map(|len| {
            let (own, after) = std::mem::take(&mut rest).split_at_mut(len);
            rest = after;
            own
        });
        let [scores, sums, newest, queries, running, wide_keys, wide_values, keys, values] = pieces;
        let (wide, panels) = ([wide_keys, wide_values], [keys, values]);
        Scratch { scores, sums, newest, queries, running, wide, panels }
    }
}

/// The rows of a matrix from one on.
fn rows_from(matrix: Matrix<'_, f32>, row: usize) -> Matrix<'_, f32> {
    let offset = matrix.at.offset.wrapping_add_signed(row as isize * matrix.at.row);
    Matrix { at: Strides { offset, ..matrix.at }, ..matrix }
}

/// As [`matrix`], with contiguous rows, none of which lies before another.
fn rows_of<'a, T: Real>(
    view: &View<'a, T>,
    place: [usize; 4],
    [rows, columns]: [usize; 2],
    beside: &'a mut [f32],
) -> Matrix<'a, f32> {
    let [_, _, row, column] = view.strides;
    let contiguous = (column == 1 || columns <= 1) && row >= 0;
    if columns == 0 || contiguous && T::as_f32(view.data).is_some() {
        let found = matrix(view, place, [rows, columns], beside);
        return Matrix { at: Strides { column: 1, row: found.at.row.max(0), ..found.at }, ..found };
    }
    widened(view, place, [rows, columns], beside)
}

fn dense(data: &[f32], width: usize) -> Matrix<'_, f32> {
    let at = Strides { offset: 0, batch: &[], row: width as isize, column: 1 };
    Matrix { data, at }
}

fn transposed(x: Matrix<'_, f32>) -> Matrix<'_, f32> {
    let Strides { row, column, .. } = x.at;
    Matrix { at: Strides { row: column, column: row, ..x.at }, ..x }
}

/// Rows and columns of a head from `place` on: where they lie, or in f32 beside.
fn matrix<'a, T: Real>(
    view: &View<'a, T>,
    place: [usize; 4],
    [rows, columns]: [usize; 2],
    beside: &'a mut [f32],
) -> Matrix<'a, f32> {
    let [_, _, row, column] = view.strides;
    let offset = if columns == 0 { 0 } else { view.place(place) };
    match T::as_f32(view.data) {
        Some(data) => Matrix { data, at: Strides { offset, batch: &[], row, column } },
        None => widened(view, place, [rows, columns], beside),
    }
}

/// The same beside, row by row.
fn widened<'a, T: Real>(
    view: &View<'_, T>,
    place: [usize; 4],
    [rows, columns]: [usize; 2],
    beside: &'a mut [f32],
) -> Matrix<'a, f32> {
    let [_, _, row, column] = view.strides;
    let offset = if columns == 0 { 0 } else { view.place(place) };
    let to = &mut beside[..rows * columns];
    for (i, to) in to.chunks_exact_mut(columns.max(1)).enumerate() {
        let start = offset.wrapping_add_signed(i as isize * row);
        match column {
            1 => T::widen(to, &view.data[start..start + columns]),
            _ => to.iter_mut().enumerate().for_each(|(j, y)| {
                *y = view.data[start.wrapping_add_signed(j as isize * column)].to_f32();
            }),
        }
    }
    dense(to, columns)
}

/// Scores of some queries, row by row: each is a dot product with a key. Rows of keys are contiguous.
struct Dots<'a> {
    queries: Matrix<'a, f32>,
    keys: Matrix<'a, f32>,
    depth: usize,
    width: usize,
    to: &'a mut [f32],
}

impl Kernel for Dots<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Dots { queries, keys, depth, width, to } = self;
        for (i, to) in to.chunks_exact_mut(width).enumerate() {
            let query = row(&queries, i, depth);
            for (j, to) in to.iter_mut().enumerate() {
                *to = dot(simd, query, row(&keys, j, depth));
            }
        }
    }
}

/// A contiguous row of a matrix.
#[inline(always)]
fn row<'a>(matrix: &Matrix<'a, f32>, number: usize, len: usize) -> &'a [f32] {
    let start = matrix.at.offset.wrapping_add_signed(number as isize * matrix.at.row);
    if len == 0 { &[] } else { &matrix.data[start..start + len] }
}

#[inline(always)]
fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let mut sums = [simd.splat_f32s(0.0); 4];
    let ((a, a_last), (b, b_last)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    for (a, b) in a.iter().zip(b) {
        for (sum, (&a, &b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum = simd.mul_add_e_f32s(a, b, *sum);
        }
    }
    for (sum, (&a, &b)) in sums.iter_mut().zip(a_last.iter().zip(b_last)) {
        *sum = simd.mul_add_e_f32s(a, b, *sum);
    }
    if !a_rest.is_empty() {
        let (a, b) = (simd.partial_load_f32s(a_rest), simd.partial_load_f32s(b_rest));
        sums[3] = simd.mul_add_e_f32s(a, b, sums[3]);
    }
    let [a, b, c, d] = sums;
    simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)))
}

/// Sums of values by the weights of some queries, row by row. Rows of values are contiguous.
struct Weighted<'a> {
    weights: &'a [f32],
    values: Matrix<'a, f32>,
    width: usize,
    columns: usize,
    to: &'a mut [f32],
}

impl Kernel for Weighted<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Weighted { weights, values, width, columns, to } = self;
        let rows = weights.chunks_exact(width).zip(to.chunks_exact_mut(columns.max(1)));
        for (weights, to) in rows {
            for (number, to) in to.chunks_mut(4 * S::F32_LANES).enumerate() {
                let first = number * 4 * S::F32_LANES;
                // Every other key has sums of its own, so that additions overlap.
                let zeros = [simd.splat_f32s(0.0); 4];
                let (mut even, mut odd) = (zeros, zeros);
                let value = |key: usize| &row(&values, key, columns)[first..first + to.len()];
                let (pairs, last) = weights.as_chunks::<2>();
                for (number, pair) in pairs.iter().enumerate() {
                    even = weigh(simd, even, pair[0], value(2 * number));
                    odd = weigh(simd, odd, pair[1], value(2 * number + 1));
                }
                if let [weight] = *last {
                    even = weigh(simd, even, weight, value(width - 1));
                }
                let both: [S::f32s; 4] = std::array::from_fn(|i| simd.add_f32s(even[i], odd[i]));
                leave(simd, to, &both);
            }
        }
    }
}

/// Leaves sums in a row: those that it has place for.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Numbers that the compiler knows: sums stay in registers.
fn leave<S: Simd>(simd: S, row: &mut [f32], sums: &[S::f32s; 4]) {
    let (to, rest) = S::as_mut_simd_f32s(row);
    for i in 0..4 {
        if let Some(to) = to.get_mut(i) {
            *to = sums[i];
        } else if i == to.len() && !rest.is_empty() {
            simd.partial_store_f32s(rest, sums[i]);
        }
    }
}

/// Sums and a value's elements times its weight, of four vectors at most. Sums are given and taken by value, so that they
/// stay in registers.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Numbers that the compiler knows.
fn weigh<S: Simd>(simd: S, sums: [S::f32s; 4], weight: f32, value: &[f32]) -> [S::f32s; 4] {
    let mut own = sums;
    let weight = simd.splat_f32s(weight);
    let (value, rest) = S::as_simd_f32s(value);
    for i in 0..4 {
        if let Some(&x) = value.get(i) {
            own[i] = simd.mul_add_e_f32s(weight, x, own[i]);
        } else if i == value.len() && !rest.is_empty() {
            own[i] = simd.mul_add_e_f32s(weight, simd.partial_load_f32s(rest), own[i]);
        }
    }
    own
}

/// Rows of scores to the exponentials of their distances to the largest so far.
struct Soften<'a, 'b, F> {
    scores: &'a mut [f32],
    width: usize,
    /// Batch, head, first query and first key.
    place: [usize; 4],
    of: Scores<'b>,
    running: &'a mut Running<'b>,
    /// Called with each row's number.
    ahead: F,
}

impl<F: FnMut(usize)> Kernel for Soften<'_, '_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Soften { scores, width, place: [b, h, first, key], of, running, mut ahead } = self;
        let Running { top, sum: total, factor } = running;
        // A capped score is scaled within the cap.
        let (capped, inner) = (of.softcap != 0.0, of.scale / of.softcap);
        let scale = if capped { 1.0 } else { of.scale };
        let state = top.iter_mut().zip(total.iter_mut()).zip(factor.iter_mut());
        for ((i, row), ((top, total), factor)) in
            scores.chunks_exact_mut(width).enumerate().zip(state)
        {
            let query = first + i;
            ahead(i);
            if capped {
                row.iter_mut().for_each(|x| *x = of.softcap * math::tanh::<FMA>(*x * inner));
            }
            let first = [b, h, query, key];
            let plus = |x, m| mul_add::<FMA>(x, scale, m);
            match &of.mask {
                None => row.iter_mut().for_each(|x| *x *= scale),
                Some(Mask::Bool(mask)) => by_mask(row, mask, first, |x, m| {
                    plus(x, if m == 0 { f32::NEG_INFINITY } else { 0.0 })
                }),
                Some(Mask::Filled(mask, fill)) => {
                    by_mask(row, mask, first, |x, m| if m == 0 { *fill } else { x * scale });
                }
                Some(Mask::F32(mask)) => by_mask(row, mask, first, plus),
                Some(Mask::F16(mask)) => by_mask(row, mask, first, |x, m| plus(x, m.to_f32())),
                Some(Mask::BF16(mask)) => by_mask(row, mask, first, |x, m| plus(x, m.to_f32())),
            }
            if of.causal {
                row[(query + 1).saturating_sub(key).min(width)..].fill(f32::NEG_INFINITY);
            }
            let next = max(simd, row);
            let next = if next > *top { next } else { *top };
            // Where nothing may be attended yet, all exponentials are 0 whatever they are taken about.
            let about = if next == f32::NEG_INFINITY { 0.0 } else { next };
            *factor = math::exp_flushed::<FMA>(*top - about);
            for x in row.iter_mut() {
                *x = math::exp_flushed::<FMA>(*x - about);
            }
            *total = *total * *factor + sum(simd, row);
            *top = next;
        }
    }
}

#[inline(always)]
fn by_mask<T: Copy>(
    row: &mut [f32],
    mask: &View<'_, T>,
    first: [usize; 4],
    score: impl Fn(f32, T) -> f32,
) {
    let start = mask.place(first);
    match mask.strides[3] {
        0 => {
            let mask = mask.data[start];
            row.iter_mut().for_each(|x| *x = score(*x, mask));
        }
        1 => {
            let line = &mask.data[start..start + row.len()];
            row.iter_mut().zip(line).for_each(|(x, &m)| *x = score(*x, m));
        }
        stride => row.iter_mut().enumerate().for_each(|(i, x)| {
            *x = score(*x, mask.data[start.wrapping_add_signed(i as isize * stride)]);
        }),
    }
}

/// Sums of earlier keys, scaled, plus those of the newest.
struct Join<'a> {
    sums: &'a mut [f32],
    newest: &'a [f32],
    width: usize,
    factor: &'a [f32],
}

impl Kernel for Join<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let rows = self.sums.chunks_exact_mut(self.width).zip(self.newest.chunks_exact(self.width));
        for ((sums, newest), &factor) in rows.zip(self.factor) {
            for (y, &x) in sums.iter_mut().zip(newest) {
                *y = mul_add::<FMA>(*y, factor, x);
            }
        }
    }
}

/// Sums by those of their weights, to their rows.
struct Divide<'a, 'b, T> {
    rows: TileMut<'b, T>,
    sums: &'a mut [f32],
    width: usize,
    by: &'a [f32],
    /// Rows without a sum are zero.
    guarded: bool,
}

impl<T: Real> Kernel for Divide<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let sums = self.sums.chunks_exact_mut(self.width).zip(self.by);
        let mut rows = self.rows;
        let (height, _) = rows.sizes();
        for (row, (sums, &by)) in (0..height).zip(sums) {
            if self.guarded && (by == 0.0 || by.is_nan()) {
                sums.fill(0.0);
            } else {
                let scale = 1.0 / by;
                sums.iter_mut().for_each(|x| *x *= scale);
            }
            T::narrow(rows.row(row), sums);
        }
    }
}
