//! Swizzles, and layouts composed with what no layout is composed with.

use super::{IntTuple, Layout, Stride, crd2idx};
use crate::{Error, Result};

/// The most elements that are tried to see what a swizzle does after a layout.
const MAX_TRIED: i64 = 1 << 20;

/// CuTe's `S<bits,base,shift>`: xors the `bits` bits of an offset that start at bit `base` with those that start `shift` further
/// up (for a negative `shift`, changes the upper field by the lower). A permutation of the offsets and its own inverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Swizzle {
    bits: i64,
    base: i64,
    shift: i64,
}

impl Swizzle {
    /// Fails unless `bits, base >= 0`, `|shift| >= bits` and all bits lie below bit 62.
    pub fn new(bits: i64, base: i64, shift: i64) -> Result<Swizzle> {
        let all = [bits, base, shift.saturating_abs()];
        let fits = all.iter().all(|part| (0..=62).contains(part)) && all.iter().sum::<i64>() <= 62;
        if !fits || shift.abs() < bits {
            return Err(Error::Swizzle { bits, base, shift });
        }
        Ok(Swizzle { bits, base, shift })
    }

    /// The number of bits changed.
    pub fn bits(&self) -> i64 {
        self.bits
    }

    /// The number of low bits kept, which is the base-2 logarithm of the unit that stays together.
    pub fn base(&self) -> i64 {
        self.base
    }

    /// The distance between the two bit fields.
    pub fn shift(&self) -> i64 {
        self.shift
    }

    /// The swizzled offset. Fails if `offset` is negative.
    pub fn at(&self, offset: i64) -> Result<i64> {
        if offset < 0 {
            return Err(Error::NegativeOffset(offset));
        }
        let field = offset & self.masks()[0];
        let distance = self.shift.abs();
        Ok(offset ^ if self.shift >= 0 { field >> distance } else { field << distance })
    }

    /// The swizzle of these bits by those, each a run.
    fn of_bits(from: i64, to: i64) -> Option<Swizzle> {
        if (from, to) == (0, 0) {
            return Swizzle::new(0, 0, 0).ok();
        }
        let [low, far] = [to, from].map(|bits| i64::from(bits.trailing_zeros()));
        let swizzle = Swizzle::new(i64::from(from.count_ones()), low.min(far), far - low).ok()?;
        (swizzle.masks() == [from, to]).then_some(swizzle)
    }

    /// The bits that are read, and those that are changed.
    fn masks(&self) -> [i64; 2] {
        let field = ((1_i64 << self.bits) - 1) << self.base;
        let far = field << self.shift.abs();
        if self.shift >= 0 { [far, field] } else { [field, far] }
    }

    /// `layout o self` as another swizzle before the layout, where there is one.
    pub fn after(&self, layout: &Layout) -> Result<Composed> {
        let none = || Error::SwizzleAfter { swizzle: *self, layout: layout.clone() };
        let at = |index: i64| layout.at(&index)?.number().ok_or_else(none);
        let [from, to] = self.masks();
        let before = Swizzle::of_bits(at(from)?, at(to)?).ok_or_else(none)?;
        if layout.size() > MAX_TRIED {
            return Err(none());
        }
        for index in 0..layout.size() {
            if at(self.at(index)?)? != before.at(at(index)?)? {
                return Err(none());
            }
        }
        let (outer, offset) = (Outer::Swizzle(before), Stride::zero());
        Ok(Composed { outer, offset, layout: layout.clone() })
    }
}

/// What an offset or a coordinate goes through last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outer {
    /// A swizzle of an offset.
    Swizzle(Swizzle),
    /// A layout, of an index into it or of a coordinate.
    Layout(Layout),
}

/// A swizzle or a layout after an offset after a layout: `c -> outer(offset + layout(c))`. It is CuTe's `ComposedLayout`,
/// for what is not a layout itself, or begins elsewhere than at 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Composed {
    /// Applied last.
    pub outer: Outer,
    /// Added between the two.
    pub offset: Stride,
    /// The domain, applied first.
    pub layout: Layout,
}

impl Composed {
    /// Where a coordinate lies, as of [`crd2idx`].
    pub fn crd2idx(&self, coord: &IntTuple) -> Result<Stride> {
        let inner = crd2idx(coord, &self.layout)?.plus(&self.offset)?;
        match &self.outer {
            Outer::Swizzle(swizzle) => {
                let none = || Error::Coordinates { op: "swizzle", layout: self.layout.clone() };
                Ok(swizzle.at(inner.number().ok_or_else(none)?)?.into())
            }
            Outer::Layout(layout) => layout.image(&inner),
        }
    }

    /// The same after another domain. Composition, division and product of a composed layout all act on its domain alone.
    pub fn map(&self, domain: impl FnOnce(&Layout) -> Result<Layout>) -> Result<Composed> {
        Ok(Composed { layout: domain(&self.layout)?, ..self.clone() })
    }
}
