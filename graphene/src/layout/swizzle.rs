//! Swizzles, and layouts composed with one.

use super::{IntTuple, Layout, crd2idx};
use crate::error::{Error, Result};

/// CuTe's `S<bits,base,shift>`: xors the `bits` bits of an offset that start at bit `base` with
/// those that start `shift` further up (for a negative `shift`, changes the upper field by the
/// lower). A permutation of the offsets and its own inverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Swizzle {
    bits: u32,
    base: u32,
    shift: i32,
}

impl Swizzle {
    /// Fails unless `bits, base >= 0`, `|shift| >= bits` and all bits lie below bit 62.
    pub fn new(bits: i64, base: i64, shift: i64) -> Result<Swizzle> {
        let error = Error::Swizzle { bits, base, shift };
        let fits = |value: i64| (0..=62).contains(&value);
        let Some(distance) = shift.checked_abs() else { return Err(error) };
        if !fits(bits) || !fits(base) || !fits(distance) || distance < bits {
            return Err(error);
        }
        match (u32::try_from(bits), u32::try_from(base), i32::try_from(shift)) {
            (Ok(bits), Ok(base), Ok(shift)) if bits + base + shift.unsigned_abs() <= 62 => {
                Ok(Swizzle { bits, base, shift })
            }
            (_, _, _) => Err(error),
        }
    }

    /// The number of bits changed.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// The number of low bits kept, which is the base-2 logarithm of the unit that stays together.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// The distance between the two bit fields.
    pub fn shift(&self) -> i32 {
        self.shift
    }

    /// The swizzled offset. Fails if `offset` is negative.
    pub fn at(&self, offset: i64) -> Result<i64> {
        if offset < 0 {
            return Err(Error::NegativeOffset(offset));
        }
        let field = (1_i64 << self.bits) - 1;
        let distance = self.shift.unsigned_abs();
        let moved = if self.shift >= 0 {
            (offset >> distance) & (field << self.base)
        } else {
            (offset & (field << self.base)) << distance
        };
        Ok(offset ^ moved)
    }
}

/// A swizzle after an offset after a layout: `c -> swizzle(offset + layout(c))`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Composed {
    /// Applied last.
    pub swizzle: Swizzle,
    /// Added between the two.
    pub offset: i64,
    /// The domain, applied first.
    pub layout: Layout,
}

impl Composed {
    /// The offset of the `index`-th coordinate.
    pub fn at(&self, index: i64) -> Result<i64> {
        self.crd2idx(&IntTuple::Int(index))
    }

    /// The offset of a coordinate, as of [`crd2idx`].
    pub fn crd2idx(&self, coord: &IntTuple) -> Result<i64> {
        let inner = crd2idx(coord, &self.layout)?;
        self.swizzle.at(inner.checked_add(self.offset).ok_or(Error::Overflow)?)
    }

    /// The same swizzle and offset on another domain. Composition, division and product of a
    /// composed layout all act on its domain alone.
    pub fn map(&self, domain: impl FnOnce(&Layout) -> Result<Layout>) -> Result<Composed> {
        Ok(Composed { layout: domain(&self.layout)?, ..*self })
    }
}
