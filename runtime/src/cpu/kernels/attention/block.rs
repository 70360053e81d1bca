//! A block of queries of one head, a block of keys at a time: the softmax is carried along over the blocks of keys, so
//! that no thread ever holds more than one block of scores.

use super::{Mask, Operands, Scores, Sizes, View};
use crate::cpu::kernels::gemm::batched;
use crate::cpu::kernels::math;
use crate::cpu::kernels::matmul::{Matrix, MatrixMut, Size, Strides};
use crate::cpu::kernels::real::Real;
use crate::cpu::kernels::simd::{Kernel, dispatch, max, mul_add, sum};
use crate::error::Result;
use pulp::Simd;

/// Queries of a block.
pub(super) const QUERIES: usize = 128;

/// Keys of a block.
const KEYS: usize = 256;

/// What a thread works in.
#[derive(Default)]
pub(super) struct Scratch {
    scores: Vec<f32>,
    /// The sums of the values so far, by row.
    sums: Vec<f32>,
    /// Those of the newest keys.
    newest: Vec<f32>,
    /// Operands of 16 bits in f32.
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
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

impl<T: Real> Operands<'_, T> {
    /// Queries `first..` of a head, as many as there are rows.
    pub(super) fn block(
        &self,
        rows: Vec<&mut [T]>,
        [batch, head, first]: [usize; 3],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Sizes { heads, groups, keys, depth, value_depth, .. } = self.sizes;
        let group = head / (heads / groups);
        let count = rows.len();
        // No query of the block attends keys beyond its last one.
        let keys = if self.scores.causal { keys.min(first + count) } else { keys };
        let Scratch { scores, sums, newest, queries, keys: wide_keys, values } = scratch;
        let sums = sized(sums, count * value_depth);
        let mut running = Running {
            top: [f32::NEG_INFINITY; QUERIES],
            sum: [0.0; QUERIES],
            factor: [0.0; QUERIES],
        };
        let queries = matrix(&self.q, [batch, head, first, 0], [count, depth], queries);
        for key in (0..keys).step_by(KEYS) {
            let width = KEYS.min(keys - key);
            let scores = sized(scores, count * width);
            let place = [batch, group, key, 0];
            let these = transposed(matrix(&self.k, place, [width, depth], wide_keys));
            let size = Size { batch: &[], m: count, n: width, k: depth };
            batched(size, self.scores.scale, queries, these, dense_mut(scores, width), false)?;
            let place = [batch, head, first, key];
            dispatch(Soften { scores, width, place, of: self.scores, running: &mut running });
            let size = Size { batch: &[], m: count, n: value_depth, k: width };
            let weights = dense(scores, width);
            let these = matrix(&self.v, [batch, group, key, 0], [width, value_depth], values);
            if key == 0 {
                batched(size, 1.0, weights, these, dense_mut(sums, value_depth), false)?;
            } else {
                let newest = sized(newest, count * value_depth);
                batched(size, 1.0, weights, these, dense_mut(newest, value_depth), false)?;
                let factor = &running.factor;
                dispatch(Join { sums, newest, width: value_depth, factor });
            }
        }
        let guarded = self.scores.guarded;
        dispatch(Divide { rows, sums, width: value_depth, by: &running.sum, guarded });
        Ok(())
    }
}

/// So many elements of a vector that grows.
fn sized(vector: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if vector.len() < len {
        vector.resize(len, 0.0);
    }
    &mut vector[..len]
}

fn dense(data: &[f32], width: usize) -> Matrix<'_, f32> {
    let at = Strides { offset: 0, batch: &[], row: width as isize, column: 1 };
    Matrix { data, at }
}

fn dense_mut(data: &mut [f32], width: usize) -> MatrixMut<'_, f32> {
    let at = Strides { offset: 0, batch: &[], row: width as isize, column: 1 };
    MatrixMut { data, at }
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
    beside: &'a mut Vec<f32>,
) -> Matrix<'a, f32> {
    let [_, _, row, column] = view.strides;
    let offset = if columns == 0 { 0 } else { view.place(place) };
    if let Some(data) = T::as_f32(view.data) {
        return Matrix { data, at: Strides { offset, batch: &[], row, column } };
    }
    let to = sized(beside, rows * columns);
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

/// Rows of scores to the exponentials of their distances to the largest so far.
struct Soften<'a, 'b> {
    scores: &'a mut [f32],
    width: usize,
    /// Batch, head, first query and first key.
    place: [usize; 4],
    of: Scores<'b>,
    running: &'a mut Running,
}

impl Kernel for Soften<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Soften { scores, width, place: [b, h, first, key], of, running } = self;
        let Running { top, sum: total, factor } = running;
        let state = top.iter_mut().zip(total).zip(factor);
        for ((i, row), ((top, total), factor)) in
            scores.chunks_exact_mut(width).enumerate().zip(state)
        {
            let query = first + i;
            if of.softcap != 0.0 {
                let inverse = 1.0 / of.softcap;
                row.iter_mut().for_each(|x| *x = of.softcap * math::tanh::<FMA>(*x * inverse));
            }
            match &of.mask {
                None => {}
                Some(Mask::Bool(mask)) => by_mask(row, mask, [b, h, query, key], |x, byte| {
                    x + if byte == 0 { f32::NEG_INFINITY } else { 0.0 }
                }),
                Some(Mask::Filled(mask, fill)) => {
                    by_mask(row, mask, [b, h, query, key], |x, m| if m == 0 { *fill } else { x });
                }
                Some(Mask::F32(mask)) => by_mask(row, mask, [b, h, query, key], |x, m| x + m),
                Some(Mask::F16(mask)) => {
                    by_mask(row, mask, [b, h, query, key], |x, m| x + m.to_f32());
                }
                Some(Mask::BF16(mask)) => {
                    by_mask(row, mask, [b, h, query, key], |x, m| x + m.to_f32());
                }
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
    rows: Vec<&'b mut [T]>,
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
        for (row, (sums, &by)) in self.rows.into_iter().zip(sums) {
            if self.guarded && (by == 0.0 || by.is_nan()) {
                sums.fill(0.0);
            } else {
                let scale = 1.0 / by;
                sums.iter_mut().for_each(|x| *x *= scale);
            }
            T::narrow(row, sums);
        }
    }
}
