//! Attention, a block of queries and a block of keys at a time: the softmax is carried along over the
//! blocks of keys, so that no thread ever holds more than one block of scores.

use super::gemm::batched;
use super::math;
use super::matmul::{Matrix, MatrixMut, Size, Strides};
use super::simd::{Kernel, dispatch, max, mul_add, sum};
use super::view::{check_reach, check_size, elements};
use crate::error::{Error, Result};
use pulp::Simd;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// Queries of a block.
const QUERIES: usize = 128;

/// Keys of a block.
const KEYS: usize = 256;

/// The sizes of `q[b,h,s,d], k[b,g,t,d], v[b,g,t,e] → y[b,h,s,e]`.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// b.
    pub batch: usize,
    /// h, a multiple of the groups.
    pub heads: usize,
    /// g: heads of keys and values.
    pub groups: usize,
    /// s.
    pub queries: usize,
    /// t.
    pub keys: usize,
    /// d.
    pub depth: usize,
    /// e.
    pub value_depth: usize,
}

/// Where the elements of an operand of rank four lie.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// The place of the first one.
    pub offset: usize,
    /// Their distances along each axis, in elements; 0 broadcasts.
    pub strides: [isize; 4],
}

/// What is added to the scores, of `[b,h,s,t]`.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    /// 0 where a byte is not 0, else -∞.
    Bool(View<'a, u8>),
    /// The elements.
    Float(View<'a, f32>),
}

/// What is done with the scores before their softmax.
#[derive(Debug, Clone, Copy)]
pub struct Scores<'a> {
    /// Multiplies them.
    pub scale: f32,
    /// They become `softcap·tanh(score / softcap)`; 0: they stay.
    pub softcap: f32,
    /// Query i attends keys 0..=i only.
    pub causal: bool,
    /// Added last.
    pub mask: Option<Mask<'a>>,
    /// A row whose softmax is NaN gives zeros.
    pub guarded: bool,
}

impl<T> View<'_, T> {
    fn check(&self, what: &'static str, shape: [usize; 4]) -> Result<()> {
        check_reach(what, self.data.len(), self.offset, shape.into_iter().zip(self.strides))
    }

    /// The place of an element that is there.
    #[inline(always)]
    fn place(&self, index: [usize; 4]) -> usize {
        let steps = index.into_iter().zip(self.strides).map(|(i, stride)| i as isize * stride);
        self.offset.wrapping_add_signed(steps.sum())
    }
}

/// Attention over strided operands; `dst` is contiguous. A row that may attend nowhere is NaN, or zeros if guarded.
///
/// # Errors
/// [`Error::Mismatch`] if `dst` is not as long as its shape or the groups do not divide the heads;
/// [`Error::OutOfBounds`] if a view leaves its slice.
pub fn attention(
    dst: &mut [f32],
    sizes: Sizes,
    q: View<'_, f32>,
    k: View<'_, f32>,
    v: View<'_, f32>,
    scores: Scores<'_>,
) -> Result<()> {
    let Sizes { batch, heads, groups, queries, keys, depth, value_depth } = sizes;
    let len = elements("attention", &[batch, heads, queries, value_depth])?;
    check_size("length of attention's destination", len, dst.len())?;
    if len == 0 {
        return Ok(());
    }
    if heads.checked_rem(groups) != Some(0) {
        return Err(Error::Mismatch { what: "heads of the keys", expected: heads, found: groups });
    }
    q.check("attention's queries", [batch, heads, queries, depth])?;
    k.check("attention's keys", [batch, groups, keys, depth])?;
    v.check("attention's values", [batch, groups, keys, value_depth])?;
    let masked = [batch, heads, queries, keys];
    match &scores.mask {
        None => {}
        Some(Mask::Bool(mask)) => mask.check("attention's mask", masked)?,
        Some(Mask::Float(mask)) => mask.check("attention's mask", masked)?,
    }
    if keys == 0 {
        dst.fill(if scores.guarded { 0.0 } else { f32::NAN });
        return Ok(());
    }
    let blocks: Vec<(usize, usize, &mut [f32])> = dst
        .chunks_mut(queries * value_depth)
        .enumerate()
        .flat_map(|(head, dst)| {
            let blocks = dst.chunks_mut(QUERIES * value_depth).enumerate();
            blocks.map(move |(block, dst)| (head, block * QUERIES, dst))
        })
        .collect();
    let operands = Operands { sizes, q, k, v, scores };
    blocks.into_par_iter().try_for_each_init(Scratch::default, |scratch, (head, first, dst)| {
        operands.block(dst, head, first, scratch)
    })
}

/// What a thread works in.
#[derive(Default)]
struct Scratch {
    scores: Vec<f32>,
    sums: Vec<f32>,
}

/// What each block reads.
struct Operands<'a> {
    sizes: Sizes,
    q: View<'a, f32>,
    k: View<'a, f32>,
    v: View<'a, f32>,
    scores: Scores<'a>,
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

fn matrix<'a>(view: View<'a, f32>, offset: usize, transposed: bool) -> Matrix<'a, f32> {
    let [_, _, row, column] = view.strides;
    let (row, column) = if transposed { (column, row) } else { (row, column) };
    Matrix { data: view.data, at: Strides { offset, batch: &[], row, column } }
}

fn dense(data: &mut [f32], width: usize) -> MatrixMut<'_, f32> {
    MatrixMut { data, at: Strides { offset: 0, batch: &[], row: width as isize, column: 1 } }
}

impl Operands<'_> {
    /// Queries `first..` of a head (counted over the whole batch), as many as `dst` has rows for.
    fn block(
        &self,
        dst: &mut [f32],
        head: usize,
        first: usize,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Sizes { heads, groups, keys, depth, value_depth, .. } = self.sizes;
        let (b, h) = (head / heads, head % heads);
        let group = h / (heads / groups);
        let rows = dst.len() / value_depth;
        // No query of the block attends keys beyond its last one.
        let keys = if self.scores.causal { keys.min(first + rows) } else { keys };
        let width = keys.min(KEYS);
        scratch.scores.resize(rows * width, 0.0);
        if keys > KEYS {
            scratch.sums.resize(dst.len(), 0.0);
        }
        let mut running = Running {
            top: [f32::NEG_INFINITY; QUERIES],
            sum: [0.0; QUERIES],
            factor: [0.0; QUERIES],
        };
        let queries = matrix(self.q, self.q.place([b, h, first, 0]), false);
        for key in (0..keys).step_by(KEYS) {
            let width = KEYS.min(keys - key);
            let scores = &mut scratch.scores[..rows * width];
            let size = Size { batch: &[], m: rows, n: width, k: depth };
            let these = matrix(self.k, self.k.place([b, group, key, 0]), true);
            batched(size, self.scores.scale, queries, these, dense(scores, width), false)?;
            let place = [b, h, first, key];
            dispatch(Soften { scores, width, place, of: self.scores, running: &mut running });
            let size = Size { batch: &[], m: rows, n: value_depth, k: width };
            let weights = Matrix {
                data: &*scores,
                at: Strides { offset: 0, batch: &[], row: width as isize, column: 1 },
            };
            let values = matrix(self.v, self.v.place([b, group, key, 0]), false);
            if key == 0 {
                batched(size, 1.0, weights, values, dense(dst, value_depth), false)?;
            } else {
                let sums = &mut scratch.sums[..rows * value_depth];
                batched(size, 1.0, weights, values, dense(sums, value_depth), false)?;
                dispatch(Join { dst, sums, width: value_depth, factor: &running.factor });
            }
        }
        let guarded = self.scores.guarded;
        dispatch(Divide { dst, width: value_depth, by: &running.sum, guarded });
        Ok(())
    }
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
                Some(Mask::Bool(mask)) => add_mask(row, mask, [b, h, query, key], |byte| {
                    if byte == 0 { f32::NEG_INFINITY } else { 0.0 }
                }),
                Some(Mask::Float(mask)) => add_mask(row, mask, [b, h, query, key], |x| x),
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

/// Sums of earlier keys, scaled, plus those of the newest.
struct Join<'a> {
    dst: &'a mut [f32],
    sums: &'a [f32],
    width: usize,
    factor: &'a [f32],
}

impl Kernel for Join<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let rows = self.dst.chunks_exact_mut(self.width).zip(self.sums.chunks_exact(self.width));
        for ((dst, sums), &factor) in rows.zip(self.factor) {
            for (y, &x) in dst.iter_mut().zip(sums) {
                *y = mul_add::<FMA>(*y, factor, x);
            }
        }
    }
}

/// Rows by their sums.
struct Divide<'a> {
    dst: &'a mut [f32],
    width: usize,
    by: &'a [f32],
    /// Rows without a sum are zero.
    guarded: bool,
}

impl Kernel for Divide<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        for (row, &by) in self.dst.chunks_exact_mut(self.width).zip(self.by) {
            if self.guarded && (by == 0.0 || by.is_nan()) {
                row.fill(0.0);
                continue;
            }
            let scale = 1.0 / by;
            row.iter_mut().for_each(|x| *x *= scale);
        }
    }
}
