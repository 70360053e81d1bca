//! What the language of terms has to know of each operation.

use graphene_frontend::op::{Op, Unary};

/// Whether the operation's term has a child for its attributes.
pub(super) fn has_attributes(op: &Op) -> bool {
    match op {
        Op::Unary(unary) => has_parameters(*unary),
        Op::Binary(_) | Op::Select | Op::MatMul | Op::NonZero => false,
        Op::Input | Op::Constant(_) => false,
        Op::Iota(_)
        | Op::Size(_)
        | Op::Cast { .. }
        | Op::BitCast(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Expand(_)
        | Op::Slice(_)
        | Op::Concat { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::GatherElements { .. }
        | Op::GatherNd { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Cumulative { .. }
        | Op::TopK { .. }
        | Op::Conv(_)
        | Op::ConvTranspose { .. }
        | Op::Pool(_)
        | Op::Softmax { .. }
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::Attention(_)
        | Op::Rnn(_)
        | Op::Resize(_)
        | Op::If { .. }
        | Op::Loop { .. }
        | Op::Scan(_) => true,
    }
}

fn has_parameters(unary: Unary) -> bool {
    match unary {
        Unary::Swish { .. }
        | Unary::HardSigmoid { .. }
        | Unary::LeakyRelu { .. }
        | Unary::Elu { .. }
        | Unary::Celu { .. }
        | Unary::Selu { .. }
        | Unary::ThresholdedRelu { .. }
        | Unary::Shrink { .. }
        | Unary::IsInf { .. } => true,
        Unary::Abs
        | Unary::Neg
        | Unary::Sign
        | Unary::Reciprocal
        | Unary::Sqrt
        | Unary::Exp
        | Unary::Log
        | Unary::Floor
        | Unary::Ceil
        | Unary::Round
        | Unary::Sin
        | Unary::Cos
        | Unary::Tan
        | Unary::Asin
        | Unary::Acos
        | Unary::Atan
        | Unary::Sinh
        | Unary::Cosh
        | Unary::Tanh
        | Unary::Asinh
        | Unary::Acosh
        | Unary::Atanh
        | Unary::Erf
        | Unary::Sigmoid
        | Unary::Relu
        | Unary::Gelu
        | Unary::GeluTanh
        | Unary::Softplus
        | Unary::Softsign
        | Unary::Mish
        | Unary::HardSwish
        | Unary::Not
        | Unary::BitNot
        | Unary::IsNan => false,
    }
}

/// The number of inputs that the operation's term has, those left out at the end included; `None`: as many as
/// are given.
pub(super) fn arity(op: &Op) -> Option<usize> {
    match op {
        Op::LayerNorm { .. } | Op::Conv(_) | Op::ConvTranspose { .. } => Some(3),
        Op::RmsNorm { .. } | Op::Pad { .. } => Some(2),
        Op::Attention(_) => Some(4),
        Op::Rnn(_) => Some(8),
        Op::Input
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::Size(_)
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Cast { .. }
        | Op::BitCast(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Expand(_)
        | Op::Slice(_)
        | Op::Concat { .. }
        | Op::Gather { .. }
        | Op::GatherElements { .. }
        | Op::GatherNd { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Cumulative { .. }
        | Op::TopK { .. }
        | Op::NonZero
        | Op::MatMul
        | Op::Pool(_)
        | Op::Softmax { .. }
        | Op::Resize(_)
        | Op::If { .. }
        | Op::Loop { .. }
        | Op::Scan(_) => None,
    }
}

/// Whether it is worth folding on small constants: work in proportion to what is read and written. What runs a
/// body may run it for ever, and a window may be of any size.
pub(super) fn is_foldable(op: &Op) -> bool {
    match op {
        Op::Iota(_)
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Cast { .. }
        | Op::BitCast(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Expand(_)
        | Op::Slice(_)
        | Op::Concat { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::GatherElements { .. }
        | Op::GatherNd { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Cumulative { .. } => true,
        Op::Input
        | Op::Constant(_)
        | Op::Size(_)
        | Op::TopK { .. }
        | Op::NonZero
        | Op::MatMul
        | Op::Conv(_)
        | Op::ConvTranspose { .. }
        | Op::Pool(_)
        | Op::Softmax { .. }
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::Attention(_)
        | Op::Rnn(_)
        | Op::Resize(_)
        | Op::If { .. }
        | Op::Loop { .. }
        | Op::Scan(_) => false,
    }
}

/// Whether the operands may change places.
pub(super) fn is_commutative(op: &Op) -> bool {
    use graphene_frontend::op::Binary::{Add, And, Equal, Max, Min, Mul, Or};
    matches!(op, Op::Binary(Add | Mul | Min | Max | And | Or | Equal))
}
