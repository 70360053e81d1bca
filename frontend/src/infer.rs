//! Shape inference: the one place that says which types an operation takes and gives.
//!
//! Sizes that are not known are compared as expressions. A known size that meets a symbolic one in a place where
//! they must agree wins, and whoever binds the symbols checks that it was right; two symbolic sizes that are
//! different expressions are [`InferError::Unresolved`], unless no sizes could make them fit.

use crate::dim::{Dim, DimError};
use crate::dtype::DType;
use crate::op::Op;
use crate::tensor::MAX_ELEMENTS;
use crate::types::{MAX_RANK, TensorType, shape_text};
use std::fmt;

mod control;
mod dims;
mod layer;
mod matmul;
mod movement;
mod pointwise;
mod reduce;
mod take;

/// Why an operation cannot take its inputs. Inputs are counted from zero.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum InferError {
    /// Too few or too many inputs.
    #[error("takes {expected} inputs, found {actual}")]
    Arity {
        /// How many it takes.
        expected: Count,
        /// How many there are.
        actual: usize,
    },
    /// An input that is not optional was left out.
    #[error("input {input} is required")]
    Missing {
        /// The input.
        input: usize,
    },
    /// An input has elements of the wrong type.
    #[error("input {input} must have elements of {expected}, found {actual}")]
    DType {
        /// The input.
        input: usize,
        /// What the operation takes.
        expected: DTypeClass,
        /// What it was given.
        actual: DType,
    },
    /// An input has too few or too many dims.
    #[error("input {input} must have {expected} dims, found {actual}")]
    Rank {
        /// The input.
        input: usize,
        /// How many dims the operation takes.
        expected: Count,
        /// How many the input has.
        actual: usize,
    },
    /// An axis beyond the rank, or one named twice or out of order.
    #[error("axis {axis} does not fit {rank} dims (or stands out of order)")]
    Axis {
        /// The axis.
        axis: usize,
        /// The rank of what it counts in.
        rank: usize,
    },
    /// Two shapes do not broadcast, whatever the sizes of symbols.
    #[error("shapes {} and {} do not broadcast", shape_text(.a), shape_text(.b))]
    Broadcast {
        /// A shape.
        a: Vec<Dim>,
        /// The other.
        b: Vec<Dim>,
    },
    /// Two dims that must be equal differ, whatever the sizes of symbols.
    #[error("dims {a} and {b} must be equal")]
    Dims {
        /// A dim.
        a: Dim,
        /// The other.
        b: Dim,
    },
    /// A dim must not be larger than another, and is, whatever the sizes of symbols.
    #[error("dim {dim} must be at most {limit}")]
    Exceeds {
        /// The dim.
        dim: Dim,
        /// What it must not exceed.
        limit: Dim,
    },
    /// A reshape that would change the number of elements.
    #[error("{from} has not as many elements as {}", shape_text(.to))]
    Elements {
        /// The type reshaped.
        from: TensorType,
        /// The shape asked for.
        to: Vec<Dim>,
    },
    /// Elements are asked of an axis that has none.
    #[error("axis {axis} of input {input} has no elements")]
    Empty {
        /// The input.
        input: usize,
        /// The axis.
        axis: usize,
    },
    /// An attribute of the operation does not fit it or its inputs.
    #[error("attribute `{name}` {reason}")]
    Attribute {
        /// The attribute.
        name: &'static str,
        /// What is wrong, as the rest of the sentence.
        reason: &'static str,
    },
    /// A body takes or gives another type than the one it is used with.
    #[error("{role} {index} of a body is {body}, but {outside} stands there outside")]
    Body {
        /// Input or output.
        role: BodyRole,
        /// Which of them.
        index: usize,
        /// The type in the body.
        body: TensorType,
        /// The type that it must have.
        outside: TensorType,
    },
    /// A body has another number of inputs or outputs than it is used with.
    #[error("a body must have {expected} {role}s, found {actual}")]
    BodyArity {
        /// Inputs or outputs.
        role: BodyRole,
        /// How many are needed.
        expected: Count,
        /// How many it has.
        actual: usize,
    },
    /// An input of the graph has the type that it was declared with: there is nothing to infer it from.
    #[error("an input's type is not inferred; it is added with its type")]
    Input,
    /// Whether two dims fit depends on the sizes of symbols: specialise them.
    #[error("whether dims {a} and {b} agree depends on the sizes of symbols")]
    Unresolved {
        /// A dim.
        a: Dim,
        /// The other.
        b: Dim,
    },
    /// The rank of the result depends on the size of a symbol: specialise it.
    #[error("the result's rank depends on dim {0}")]
    UnresolvedRank(Dim),
    /// The type of an output depends on values that are not known.
    #[error("the output's size depends on values")]
    DataDependent,
    /// A type with a size below zero.
    #[error("a tensor of type {0} has a negative size")]
    Negative(TensorType),
    /// A type of unreasonable size.
    #[error("a tensor of type {0} has too many dims or elements")]
    Size(TensorType),
    /// A dim without a value.
    #[error(transparent)]
    Dim(#[from] DimError),
}

/// How many of something an operation takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// This many.
    Exactly(usize),
    /// This many or more.
    AtLeast(usize),
    /// This many or fewer.
    AtMost(usize),
    /// From the first to the second.
    Between(usize, usize),
}

/// A set of element types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DTypeClass {
    /// This one.
    Exactly(DType),
    /// Real numbers.
    Float,
    /// Integers.
    Integer,
    /// Everything but `bool`.
    Number,
    /// `i32` or `i64`.
    Index,
    /// `bool` or real numbers.
    Mask,
    /// This many bits in a file.
    Bits(usize),
}

/// Which end of a body an error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyRole {
    /// What the body takes.
    Input,
    /// What the body gives.
    Output,
}

/// The types of the outputs of `op` for inputs of these types (`None`: an optional input left out).
///
/// Trailing optional inputs may be missing from the slice. All types given back are of reasonable size
/// ([`TensorType::check`]).
///
/// # Errors
/// [`InferError`], without the node's name: the caller knows it.
pub fn infer(op: &Op, inputs: &[Option<&TensorType>]) -> Result<Vec<TensorType>, InferError> {
    let outputs = outputs(op, inputs)?;
    for output in &outputs {
        output.check()?;
    }
    Ok(outputs)
}

fn outputs(op: &Op, inputs: &[Option<&TensorType>]) -> Result<Vec<TensorType>, InferError> {
    let one = |ty: Result<TensorType, InferError>| ty.map(|ty| vec![ty]);
    take::count(inputs, op.info().inputs)?;
    match op {
        Op::Input => Err(InferError::Input),
        Op::Constant(tensor) => Ok(vec![TensorType::of(tensor)]),
        Op::Iota(n) => Ok(vec![TensorType::new(DType::I64, vec![n.clone()])]),
        Op::Size(_) => Ok(vec![TensorType::new(DType::I64, Vec::new())]),

        Op::Unary(unary) => one(pointwise::unary(*unary, inputs)),
        Op::Binary(binary) => one(pointwise::binary(*binary, inputs)),
        Op::Select => one(pointwise::select(inputs)),
        Op::Cast { to, saturate: _ } => one(pointwise::cast(*to, inputs)),
        Op::BitCast(to) => one(pointwise::bit_cast(*to, inputs)),

        Op::Reshape(shape) => one(movement::reshape(shape, inputs)),
        Op::Transpose(perm) => one(movement::transpose(perm, inputs)),
        Op::Expand(shape) => one(movement::expand(shape, inputs)),
        Op::Slice(axes) => one(movement::slice(axes, inputs)),
        Op::Concat { axis } => one(movement::concat(*axis, inputs)),
        Op::Pad { mode, before, after } => one(movement::pad(*mode, before, after, inputs)),
        Op::Gather { axis } => one(movement::gather(*axis, inputs)),
        Op::GatherElements { axis } => one(movement::gather_elements(*axis, inputs)),
        Op::GatherNd { batch_dims } => one(movement::gather_nd(*batch_dims, inputs)),
        Op::ScatterElements { axis, combine } => {
            one(movement::scatter_elements(*axis, *combine, inputs))
        }
        Op::ScatterNd { combine } => one(movement::scatter_nd(*combine, inputs)),

        Op::Reduce { op, axes, keep } => one(reduce::reduce(*op, axes, *keep, inputs)),
        Op::ArgReduce { largest: _, axis, keep, last: _ } => {
            one(reduce::arg_reduce(*axis, *keep, inputs))
        }
        Op::Cumulative { op: _, axis, exclusive: _, reverse: _ } => {
            one(reduce::cumulative(*axis, inputs))
        }
        Op::TopK { k, axis, largest: _ } => reduce::top_k(k, *axis, inputs),
        Op::NonZero => take::required::<1>(inputs).and(Err(InferError::DataDependent)),

        Op::MatMul => one(matmul::mat_mul(inputs)),
        Op::WideMatMul => one(matmul::wide_mat_mul(inputs)),
        Op::Conv(attrs) => one(matmul::conv(attrs, inputs)),
        Op::WideConv(attrs) => one(matmul::wide_conv(attrs, inputs)),
        Op::ConvTranspose { conv, output_padding } => {
            one(matmul::conv_transpose(conv, output_padding, inputs))
        }
        Op::Pool(attrs) => matmul::pool(attrs, inputs),

        Op::Softmax { axis, log: _ } => one(layer::softmax(*axis, inputs)),
        Op::LayerNorm { axis, epsilon: _ } => layer::layer_norm(*axis, inputs),
        Op::RmsNorm { axis, epsilon: _ } => one(layer::rms_norm(*axis, inputs)),
        Op::Attention(_) => one(layer::attention(inputs)),
        Op::Rnn(attrs) => layer::rnn(attrs, inputs),
        Op::Resize(attrs) => one(layer::resize(attrs, inputs)),

        Op::If { then_branch, else_branch } => control::branch(then_branch, else_branch, inputs),
        Op::Loop { body, carried } => control::repeat(body, *carried, inputs),
        Op::Scan(attrs) => control::scan(attrs, inputs),
    }
}

impl TensorType {
    /// Refuses negative sizes, ranks over [`MAX_RANK`] and known sizes of more than [`MAX_ELEMENTS`] elements.
    ///
    /// # Errors
    /// [`InferError::Negative`], [`InferError::Size`].
    pub fn check(&self) -> Result<(), InferError> {
        let negative = |dim: &Dim| dim.upper_bound().is_some_and(|bound| bound < 0);
        if self.shape.iter().any(negative) {
            return Err(InferError::Negative(self.clone()));
        }
        if self.rank() > MAX_RANK {
            return Err(InferError::Size(self.clone()));
        }
        let sizes: Vec<i64> = self.shape.iter().filter_map(Dim::known).collect();
        let elements = match sizes.contains(&0) {
            true => 0,
            false => sizes.iter().fold(1_i64, |product, &size| product.saturating_mul(size)),
        };
        if elements > MAX_ELEMENTS as i64 {
            return Err(InferError::Size(self.clone()));
        }
        Ok(())
    }
}

impl InferError {
    /// Whether known sizes for the symbols may settle it: infer again on a specialised graph.
    pub fn is_unresolved(&self) -> bool {
        match self {
            Self::Unresolved { .. } | Self::UnresolvedRank(_) => true,
            Self::Arity { .. }
            | Self::Missing { .. }
            | Self::DType { .. }
            | Self::Rank { .. }
            | Self::Axis { .. }
            | Self::Broadcast { .. }
            | Self::Dims { .. }
            | Self::Exceeds { .. }
            | Self::Elements { .. }
            | Self::Empty { .. }
            | Self::Attribute { .. }
            | Self::Body { .. }
            | Self::BodyArity { .. }
            | Self::Input
            | Self::DataDependent
            | Self::Negative(_)
            | Self::Size(_)
            | Self::Dim(_) => false,
        }
    }
}

impl Count {
    /// Whether `n` is one of them.
    pub fn contains(self, n: usize) -> bool {
        match self {
            Self::Exactly(count) => n == count,
            Self::AtLeast(least) => n >= least,
            Self::AtMost(most) => n <= most,
            Self::Between(least, most) => (least..=most).contains(&n),
        }
    }
}

impl DTypeClass {
    /// Whether `dtype` is one of them.
    pub fn contains(self, dtype: DType) -> bool {
        match self {
            Self::Exactly(one) => dtype == one,
            Self::Float => dtype.is_float(),
            Self::Integer => dtype.is_integer(),
            Self::Number => dtype != DType::Bool,
            Self::Index => matches!(dtype, DType::I32 | DType::I64),
            Self::Mask => dtype == DType::Bool || dtype.is_float(),
            Self::Bits(bits) => dtype.file_bits() == bits,
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(count) => write!(f, "{count}"),
            Self::AtLeast(least) => write!(f, "{least} or more"),
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::Between(least, most) => write!(f, "{least} to {most}"),
        }
    }
}

impl fmt::Display for DTypeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(dtype) => write!(f, "{dtype}"),
            Self::Float => f.write_str("a float type"),
            Self::Integer => f.write_str("an integer type"),
            Self::Number => f.write_str("a number type"),
            Self::Index => f.write_str("i32 or i64"),
            Self::Mask => f.write_str("bool or a float type"),
            Self::Bits(bits) => write!(f, "a type of {bits} bits"),
        }
    }
}

impl fmt::Display for BodyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Output => "output",
        })
    }
}

#[cfg(test)]
mod tests;
