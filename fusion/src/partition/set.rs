//! Sets of operations that stand near each other.

use crate::base::groups::SPAN;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct OpId(pub(crate) u32);

impl OpId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of operations, none [`SPAN`] or more places after the first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Set {
    first: OpId,
    /// Bit i: the operation i places after the first; bit 0 is set.
    mask: u128,
}

impl Set {
    pub(crate) fn of(op: OpId) -> Self {
        Self { first: op, mask: 1 }
    }

    /// These operations, ascending; `None` if they are none or span too much.
    pub(crate) fn collect(ops: impl IntoIterator<Item = OpId>) -> Option<Self> {
        let mut ops = ops.into_iter();
        let mut set = Self::of(ops.next()?);
        for op in ops {
            set.mask |= 1 << set.offset(op)?;
        }
        Some(set)
    }

    pub(crate) fn first(self) -> OpId {
        self.first
    }

    /// The operations as bits after the first.
    pub(crate) fn mask(self) -> u128 {
        self.mask
    }

    /// The same set with other operations: bits after its first one, which stays.
    pub(crate) fn with_mask(self, mask: u128) -> Self {
        Self { first: self.first, mask: mask | 1 }
    }

    /// Both sets; `None` if they span too much.
    pub(crate) fn union(self, other: Self) -> Option<Self> {
        let (low, high) = if self.first <= other.first { (self, other) } else { (other, self) };
        let shift = low.offset(high.first)?;
        let mask = high.mask << shift;
        (mask >> shift == high.mask).then(|| low.with_mask(low.mask | mask))
    }

    pub(crate) fn len(self) -> usize {
        self.mask.count_ones() as usize
    }

    pub(crate) fn contains(self, op: OpId) -> bool {
        self.offset(op).is_some_and(|offset| self.mask >> offset & 1 == 1)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = OpId> {
        let (low, high) = (self.mask as u64, (self.mask >> 64) as u64);
        let offsets = bits(low).chain(bits(high).map(|offset| offset + 64));
        offsets.map(move |offset| OpId(self.first.0 + offset))
    }

    /// How many places after the first the operation stands, if that is within the span.
    pub(crate) fn offset(self, op: OpId) -> Option<u32> {
        let offset = op.0.checked_sub(self.first.0)?;
        (offset < SPAN as u32).then_some(offset)
    }
}

/// The places of the bits that are set, ascending.
pub(crate) fn bits(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros())?;
        mask &= mask - 1;
        Some(bit)
    })
}
