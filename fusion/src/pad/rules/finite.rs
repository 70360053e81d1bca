//! What stays finite: of functions, conversions to types of a smaller range, and sums of numbers as large as a mask's.

use super::{SEEN, Value};
use crate::pad::{input_ty, value_of};
use graphene_frontend::op::{Binary, Op, Range};
use graphene_frontend::tensor::{Element, Tensor};
use graphene_frontend::{DType, Graph, Node, ValueId};
use half::{bf16, f16};

/// So many numbers that are not large may be added up.
const TERMS: f64 = 4.0;

/// Whether the sum of a few numbers of this magnitude may not be finite.
pub(super) fn is_large(most: f64, dtype: DType) -> bool {
    dtype.largest().is_some_and(|largest| most >= largest / TERMS)
}

/// The largest magnitude among a tensor's real numbers, infinite where one is none; nothing for others, and for those that
/// are too many to look at.
pub(super) fn most(tensor: &Tensor) -> Option<f64> {
    if tensor.len() > SEEN {
        return None;
    }
    // Without the sign, bits are ordered as magnitudes are, and those of NaN come last: one pass of integer maxima.
    fn largest<T: Element, B: Ord + Default>(all: &Tensor, bits: impl Fn(&T) -> B) -> Option<B> {
        Some(all.as_slice::<T>().ok()?.iter().map(bits).fold(B::default(), B::max))
    }
    let most = match tensor.dtype() {
        DType::F32 => f32::from_bits(largest(tensor, |x: &f32| x.abs().to_bits())?).into(),
        DType::F64 => f64::from_bits(largest(tensor, |x: &f64| x.abs().to_bits())?),
        DType::F16 => f16::from_bits(largest(tensor, |x: &f16| x.to_bits() & 0x7fff)?).to_f64(),
        DType::BF16 => bf16::from_bits(largest(tensor, |x: &bf16| x.to_bits() & 0x7fff)?).to_f64(),
        _ => return None,
    };
    Some(if most.is_nan() { f64::INFINITY } else { most })
}

/// Whether elements of a node's output may be large where its inputs' are.
pub(super) fn large(graph: &Graph, node: &Node, inputs: &[&Value]) -> bool {
    let Some(ty) = node.outputs().first() else { return false };
    let given = inputs.iter().any(|value| value.large);
    match node.op() {
        // Most of a type of a small range is little to one of a large range.
        Op::Cast { to, .. } => {
            let from = input_ty(graph, node, 0).and_then(|ty| ty.dtype.largest());
            given && to.largest().zip(from).is_some_and(|(to, from)| from >= to / TERMS)
        }
        Op::Softmax { log: false, .. } | Op::LayerNorm { .. } | Op::RmsNorm { .. } => false,
        Op::Unary(unary) if unary.info().range == Range::Unit => false,
        // Scores and masks leave with the softmax.
        Op::Attention(_) => inputs.get(2).is_some_and(|values| values.large),
        _ => given && ty.dtype.is_float(),
    }
}

/// Whether a function of finite numbers is finite.
pub(super) fn keeps(graph: &Graph, node: &Node, inputs: &[&Value]) -> bool {
    let all_large = inputs.iter().filter(|value| value.large).count() > 1;
    match node.op() {
        Op::Select => true,
        Op::Cast { to, .. } => {
            let narrow = to.size() == 1 && to.is_float();
            !narrow && node.input(0).is_some_and(|given| converts(graph, given, *to))
        }
        Op::Binary(Binary::Div) => {
            let divisor = inputs.get(1).and_then(|value| value.uniform.as_ref());
            divisor.and_then(value_of).is_some_and(|x| x != 0.0 && x.is_finite())
        }
        Op::Unary(unary) => unary.info().range != Range::Any,
        Op::Binary(binary) => match binary.info().range {
            Range::Unit | Range::Finite => true,
            // Two masks may be too much for one number.
            Range::Grows => !all_large,
            Range::Any => false,
        },
        _ => false,
    }
}

/// Whether a finite number stays finite as one of another type: of a type whose range is no smaller, or one within it.
fn converts(graph: &Graph, given: ValueId, to: DType) -> bool {
    let Some(limit) = to.largest() else { return true };
    range(graph.ty(given).dtype) <= limit || magnitude(graph, given).is_some_and(|x| x <= limit)
}

/// The largest magnitude of a type's finite numbers.
fn range(dtype: DType) -> f64 {
    match dtype {
        DType::Bool => 1.0,
        DType::I16 => 2_f64.powi(15),
        // 2¹²⁷ is the largest number of the narrow types.
        _ if dtype.is_float() && dtype.size() == 1 => 2_f64.powi(127),
        _ if dtype.is_float() => dtype.largest().unwrap_or(f64::INFINITY),
        _ => 2_f64.powi(8 * dtype.size() as i32),
    }
}

/// A magnitude that a value's numbers do not exceed, where that is seen.
fn magnitude(graph: &Graph, value: ValueId) -> Option<f64> {
    let node = graph.node(value.node);
    match node.op() {
        // Weights and tables that are too many to look at are taken to be within.
        Op::Constant(tensor) => Some(most(tensor).unwrap_or(0.0)),
        // Whole numbers that are given are masks, ids and lengths.
        Op::Input if !graph.ty(value).dtype.is_float() => Some(1.0),
        Op::Softmax { log: false, .. } => Some(1.0),
        Op::Unary(unary) if unary.info().range == Range::Unit => Some(1.0),
        Op::Cast { .. }
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Expand(_)
        | Op::Slice(_)
        | Op::Gather { .. } => magnitude(graph, node.input(0)?),
        // Of n numbers whose squares' mean is at most one, none is larger than √n.
        Op::LayerNorm { axis, .. } | Op::RmsNorm { axis, .. } if value.output == 0 => {
            let sizes = graph.ty(value).shape.get(*axis..)?.iter().map(|size| size.known());
            let n = sizes.product::<Option<i64>>()? as f64;
            let factor = |number: usize, none: f64| match node.input(number) {
                Some(factor) => graph.constant(factor).map(|tensor| most(tensor).unwrap_or(0.0)),
                None => Some(none),
            };
            Some(n.sqrt() * factor(1, 1.0)? + factor(2, 0.0)?)
        }
        _ => None,
    }
}
