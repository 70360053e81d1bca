//! Attention, a block of queries of one head at a time, read and written through strides.
//!
//! [`attention`] checks the operands and gives every block of queries to a thread; `block` does one.

mod block;

use super::copy::copy_between;
use super::real::Real;
use super::tile::Spread;
use super::view::{check_disjoint, check_reach, elements, row_major};
use crate::cpu::scratch;
use crate::error::{Error, Result};
use crate::threads;
use half::{bf16, f16};

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
    /// Where a byte is 0 the score is this number.
    Filled(View<'a, u8>, f32),
    /// The elements.
    F32(View<'a, f32>),
    /// The elements.
    F16(View<'a, f16>),
    /// The elements.
    BF16(View<'a, bf16>),
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

/// Where the result goes.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    /// The elements.
    pub data: &'a mut [T],
    /// The place of the first one.
    pub offset: usize,
    /// Their distances along each axis, in elements; no two are at one place.
    pub strides: [isize; 4],
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

/// Attention over strided operands of one type, into a strided result. A row that may attend nowhere is NaN, or zeros
/// if guarded. Sums are taken in f32 and rounded once.
///
/// # Errors
/// [`Error::Mismatch`] if the groups do not divide the heads; [`Error::OutOfBounds`] if a view leaves its slice;
/// [`Error::Overlap`] if two elements of the result are at one place.
pub fn attention<T: Real>(
    y: ViewMut<'_, T>,
    sizes: Sizes,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    scores: Scores<'_>,
) -> Result<()> {
    let Sizes { batch, heads, groups, queries, keys, depth, value_depth } = sizes;
    let shape = [batch, heads, queries, value_depth];
    let axes = || shape.into_iter().zip(y.strides);
    check_reach("attention's destination", y.data.len(), y.offset, axes())?;
    check_disjoint("attention's destination", axes())?;
    let len = elements("attention", &shape)?;
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
        Some(Mask::Bool(mask) | Mask::Filled(mask, _)) => {
            mask.check("attention's mask", masked)?;
        }
        Some(Mask::F32(mask)) => mask.check("attention's mask", masked)?,
        Some(Mask::F16(mask)) => mask.check("attention's mask", masked)?,
        Some(Mask::BF16(mask)) => mask.check("attention's mask", masked)?,
    }
    if keys == 0 {
        // The sum of no values.
        let mut dense = scratch::take::<T>(len)?;
        dense.fill(T::default());
        return copy_between(y.data, y.offset, &y.strides, &shape, &dense, 0, &row_major(&shape));
    }
    let (tall, far) = (sizes.tall(scores.causal), sizes.are_far(size_of::<T>()));
    let operands = Operands { sizes, q, k, v, scores, tall, far };
    if let Some(rows) = Spread::new(y.data, y.offset, shape, y.strides, tall) {
        return operands.run(rows);
    }
    // Rows that do not lie whole are written beside and moved.
    let (mut dense, strides) = (scratch::take::<T>(len)?, row_major(&shape));
    let own = std::array::from_fn(|axis| strides[axis]);
    let rows = Spread::new(&mut dense, 0, shape, own, tall);
    operands.run(rows.expect("rows one after the other lie whole"))?;
    copy_between(y.data, y.offset, &y.strides, &shape, &dense, 0, &strides)
}

/// What each block reads.
struct Operands<'a, T> {
    sizes: Sizes,
    q: View<'a, T>,
    k: View<'a, T>,
    v: View<'a, T>,
    scores: Scores<'a>,
    /// Queries of a block, at most.
    tall: usize,
    /// Whether operands come from beyond the second-level cache.
    far: bool,
}

impl<T: Real> Operands<'_, T> {
    /// Gives the blocks of rows to threads.
    fn run(&self, rows: Spread<'_, T>) -> Result<()> {
        let Sizes { heads, queries, .. } = self.sizes;
        let per_head = queries.div_ceil(self.tall);
        let mut space = scratch::take::<f32>(self.space() * threads::count())?;
        threads::try_each_within(&mut space, 1, rows, |space, number, rows| {
            let (head, first) = (number / per_head, number % per_head * self.tall);
            self.block(rows, [head / heads, head % heads, first], space);
            Ok(())
        })
    }
}
