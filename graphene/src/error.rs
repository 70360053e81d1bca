//! The crate's one error type.

use std::fmt;

pub(crate) use self::Allowed::{AtLeast, AtMost, MultipleOf, OneOf, Within};
use crate::{Arch, Expr, Feature, Layout, Swizzle, layout::Stride};

/// Shorthand for results of this crate.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// Why an operation has no answer.
#[allow(missing_docs)] // Of fields: a variant's comment and message say what they are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No target of that name is known.
    #[error("unknown target `{name}`; known: {known}, and cpu:N for N cores")]
    UnknownTarget { name: String, known: String },

    /// A mode's size is less than one.
    #[error("a size must be at least 1, not {0}")]
    Size(i64),
    /// A layout nests deeper than [`crate::layout::MAX_DEPTH`].
    #[error("nested too deeply")]
    Depth,
    /// A size or offset does not fit in 64 bits.
    #[error("a size or offset overflows 64 bits")]
    Overflow,
    /// Two trees that must have the same profile differ, such as a shape and its strides.
    #[error("{left} and {right} do not have the same profile")]
    Profile { left: String, right: String },
    /// A tuple has more modes than what it is applied to.
    #[error("{op}: {modes} modes given for a layout of rank {rank}")]
    Rank { op: &'static str, modes: usize, rank: usize },
    /// An index lies outside of a layout's domain.
    #[error("index {index} is outside of [0,{size})")]
    Index { index: i64, size: i64 },

    /// One mode of the right operand does not divide the left one: `a o size:stride` follows a
    /// single stride for `run` elements only, and `run` does not divide what is left of `size`.
    #[error(
        "composition: {a} o {size}:{stride} is not a layout: \
         it is regular for {run} elements, which do not divide {rest}"
    )]
    Divisibility { a: Box<Layout<Expr>>, size: Expr, stride: Stride<Expr>, run: Expr, rest: Expr },
    /// The modes of the right operand, each composed alone, do not add up.
    #[error(
        "composition: {a} o {b} is not a layout: the modes of the right side that reach {position} \
         give {parts}, but the left side has {whole} there"
    )]
    Carry {
        a: Box<Layout<Expr>>,
        b: Box<Layout<Expr>>,
        position: Stride<Expr>,
        parts: Stride<Expr>,
        whole: Stride<Expr>,
    },
    /// Whether a composition is a layout was not decided within the limit on work. Only operands
    /// that violate the divisibility conditions come to this, with sizes beyond the limit or unknown.
    #[error("composition: {a} o {b} does not divide, and is too large to try every element")]
    Undecided { a: Box<Layout<Expr>>, b: Box<Layout<Expr>> },
    /// A size is not a constant that a composition divides by: any but the last of a mode.
    #[error("composition: {a} is divided by its size {size}, which is not a constant")]
    UnknownSize { a: Box<Layout<Expr>>, size: Expr },
    /// The operation is defined for strides that are numbers, not steps along axes.
    #[error("{op}: {layout} has coordinates, not offsets")]
    Coordinates { op: &'static str, layout: Layout },
    /// The operation is defined for strides that are not negative.
    #[error("{op}: {layout} has a negative stride")]
    NegativeStride { op: &'static str, layout: Layout },
    /// The layout does not tile the integers: in order of stride, a mode's stride is not a
    /// multiple of the extent of the modes before it.
    #[error("{op}: {layout} has none: stride {stride} is not a multiple of the extent {extent}")]
    NoTiling { op: &'static str, layout: Layout, stride: i64, extent: i64 },
    /// The layout maps two coordinates to one offset, so that it has no left inverse.
    #[error("left_inverse: {layout} has none: offset {offset} is reached twice")]
    NotInjective { layout: Layout, offset: i64 },
    /// What a layout does after a swizzle, no swizzle does after that layout.
    #[error("composition: {layout} o {swizzle} is no swizzle o {layout}")]
    SwizzleAfter { swizzle: Swizzle, layout: Layout },
    /// `_` leaves a mode whole, so that it has no tile to gather.
    #[error("{op}: `_` does not split its mode, so that there is no tile to gather")]
    WholeMode { op: &'static str },
    /// A block does not divide the shape that it is to fill.
    #[error("tile_to_shape: mode {mode} of size {block} does not divide {target}")]
    BlockShape { mode: usize, block: i64, target: i64 },
    /// The parameters do not describe a swizzle.
    #[error("S<{bits},{base},{shift}>: needs bits, base >= 0, |shift| >= bits, at most 62 bits")]
    Swizzle { bits: i64, base: i64, shift: i64 },
    /// Elements of a tensor lie in one place, as it is declared and for the values that are given at launch.
    #[error("%{tensor}:{declared} has elements in one place; sizes and strides: {axes:?}")]
    Overlap { tensor: String, declared: String, axes: Vec<(i64, i64)> },
    /// A view, a tile or an operand does not fit.
    #[error("{0}")]
    Shape(String),
    /// An architecture lacks what a template or an atom needs.
    #[error("needs {feature}, which {arch} lacks")]
    Lacks { arch: Arch, feature: Feature },
    /// A spec without a body is no atom of its architecture.
    #[error("no atom carries this out; near ones: [{0}]")]
    NoAtom(String),
    /// The text of a kernel is wrong somewhere.
    #[error("{line}:{column}: {message}")]
    Text { at: usize, line: usize, column: usize, message: String },
    /// Parameters for which there is no kernel.
    #[error(transparent)]
    Constraint(Constraint),
    /// A kernel would not be well formed.
    #[error("{0}")]
    Kernel(String),
    /// A kernel cannot be said in CUDA C++.
    #[error("{0}")]
    Emission(String),
    /// A swizzle was applied to a negative offset.
    #[error("a swizzle of the negative offset {0} is not defined")]
    NegativeOffset(i64),
}

/// What parameters must be for there to be a kernel, and what they are.
#[allow(missing_docs)] // Of fields: what they are, the messages say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Constraint {
    /// A number of something is not allowed.
    #[error("needs {allowed} {what}; got {got}")]
    Number { what: &'static str, allowed: Allowed, got: i64 },
    /// Something does not hold that is no matter of one number.
    #[error("needs {what}; got {got}")]
    Property { what: &'static str, got: String },
}

/// The numbers that a constraint allows.
#[allow(missing_docs)] // Of variants: what they are, the messages say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Allowed {
    #[error("{0} to {1}")]
    Within(i64, i64),
    #[error("{0} or more")]
    AtLeast(i64),
    #[error("at most {0}")]
    AtMost(i64),
    #[error("a positive multiple of {0}")]
    MultipleOf(i64),
    #[error("one of {0:?}")]
    OneOf(&'static [i64]),
}

impl Allowed {
    /// Fails with [`Error::Constraint`] for others: `AtLeast(2).check("stages", 1)` says "needs 2 or more stages; got 1".
    pub(crate) fn check(self, what: &'static str, got: i64) -> Result {
        let fits = match self {
            Allowed::Within(low, high) => (low..=high).contains(&got),
            Allowed::AtLeast(low) => low <= got,
            Allowed::AtMost(high) => got <= high,
            Allowed::MultipleOf(unit) => got > 0 && got % unit == 0,
            Allowed::OneOf(all) => all.contains(&got),
        };
        let refused = Error::Constraint(Constraint::Number { what, allowed: self, got });
        if fits { Ok(()) } else { Err(refused) }
    }
}

/// Refuses what lacks a property: "needs operands of one type; got …". Fails with [`Error::Constraint`] unless it `holds`.
pub(crate) fn needs(holds: bool, what: &'static str, got: impl fmt::Debug) -> Result {
    let refused = || Constraint::Property { what, got: format!("{got:?}") };
    if holds { Ok(()) } else { Err(Error::Constraint(refused())) }
}

impl Constraint {
    /// What is needed, without a property's parameters.
    pub fn in_short(&self) -> String {
        match self {
            Constraint::Number { .. } => self.to_string(),
            Constraint::Property { what, .. } => format!("needs {what}"),
        }
    }
}

impl Error {
    /// The byte offset in the text where an error of notation lies; none for errors of algebra.
    pub fn position(&self) -> Option<usize> {
        if let Error::Text { at, .. } = self { Some(*at) } else { None }
    }
}
