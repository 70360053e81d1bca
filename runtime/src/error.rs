//! What can go wrong in the runtime.

/// An error of the runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A view reaches an element outside the slice that it looks at.
    #[error("{what} reaches element {needed}, but the slice holds {len}")]
    OutOfBounds {
        /// The operand.
        what: &'static str,
        /// The element reached (negative where a stride leads below the slice's start).
        needed: i128,
        /// The number of elements in the slice.
        len: usize,
    },
    /// Two sizes that must agree do not.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// What was measured.
        what: &'static str,
        /// The size that the other operands ask for.
        expected: usize,
        /// The size found.
        found: usize,
    },
    /// The layout of an output gives two of its elements one place, so that the result would depend
    /// on the order of writing.
    #[error("{what} writes an element more than once")]
    Overlap {
        /// The operand.
        what: &'static str,
    },
    /// A size does not fit its integer type.
    #[error("{what} is too large")]
    TooLarge {
        /// What was measured.
        what: &'static str,
    },
    /// An index is outside `-size..size`.
    #[error("index {index} is outside an axis of size {size}")]
    Index {
        /// The index as given.
        index: i64,
        /// The size of the axis.
        size: usize,
    },
    /// An axis is outside the shape or is named twice.
    #[error("axis {axis} of a shape of rank {rank} is out of range or named twice")]
    Axis {
        /// The axis as given.
        axis: usize,
        /// The rank of the shape.
        rank: usize,
    },
}

/// The runtime's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
