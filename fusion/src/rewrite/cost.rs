//! What an operation costs, for choosing among equal graphs: a rough time in microseconds at typical sizes, as
//! if every operation that moves data were a launch. What fuses into its neighbours is decided later; here
//! only the order of alternatives matters.

use crate::base::sizes::sizes_of;
use graphene_frontend::{Bindings, Dim, Op, TensorType};

/// Microseconds of a launch.
const LAUNCH: f64 = 2.0;

/// Bytes moved in a microsecond.
const BANDWIDTH: f64 = 1e6;

/// Multiply-adds in a microsecond, twice.
const RATE: f64 = 1e8;

/// Microseconds of a change of view: next to nothing, but fewer are better.
const VIEW: f64 = 0.01;

/// Microseconds of a dim of one inside of a result: next to nothing, so that of equally many changes of view those are
/// chosen that put such dims in after the operations, which then share a shape and a launch.
const ONE: f64 = 0.0001;

/// Microseconds of an operation on constants, done once: next to nothing.
const ONCE: f64 = 0.001;

/// The cost of an operation with these types; symbols without a hint take a typical size. Attention over one head counts
/// a few views more: where batch and heads are one dim, its operands may have to lie so.
pub(crate) fn cost(
    op: &Op,
    inputs: &[Option<&TensorType>],
    outputs: &[TensorType],
    constant: bool,
    hints: &Bindings,
) -> f64 {
    if constant {
        return ONCE;
    }
    match op {
        Op::Input | Op::Constant(_) => 0.0,
        Op::Reshape(_) | Op::BitCast(_) | Op::Slice(_) => VIEW,
        Op::Transpose(_) | Op::Expand(_) => 1.1 * VIEW,
        _ => {
            let merged = matches!(op, Op::Attention(_)) && outputs[0].shape[1] == 1;
            let views = if merged { 4.0 * VIEW } else { 0.0 };
            let moved = inputs.iter().flatten().copied().chain(outputs);
            let moved: f64 = moved.map(|ty| elements(ty, hints) * ty.dtype.size() as f64).sum();
            let ones = outputs.first().map_or(0, |ty| ones_inside(&ty.shape)) as f64;
            let flops = flops(op, inputs, outputs, hints);
            views + ONE * ones + LAUNCH + moved / BANDWIDTH + flops / RATE
        }
    }
}

fn ones_inside(shape: &[Dim]) -> usize {
    let last = shape.iter().rposition(|dim| *dim != 1).unwrap_or(0);
    shape[..last].iter().filter(|dim| **dim == 1).count()
}

fn flops(op: &Op, inputs: &[Option<&TensorType>], outputs: &[TensorType], hints: &Bindings) -> f64 {
    let written: f64 = outputs.first().map_or(0.0, |ty| elements(ty, hints));
    match op {
        Op::MatMul | Op::WideMatMul => {
            let depth = inputs.first().copied().flatten().and_then(|a| a.shape.last());
            2.0 * written * depth.map_or(1.0, |dim| size(dim, hints))
        }
        Op::Attention(_) => {
            let keys = inputs.get(1).copied().flatten().map_or(1.0, |k| size(&k.shape[2], hints));
            2.0 * written * keys + 2.0 * inputs[0].map_or(0.0, |q| elements(q, hints)) * keys
        }
        _ => written,
    }
}

fn elements(ty: &TensorType, hints: &Bindings) -> f64 {
    ty.shape.iter().map(|dim| size(dim, hints)).product()
}

/// The size of a dim, and at least one: a size that comes out negative is none, and nothing may cost less than its
/// parts.
fn size(dim: &Dim, hints: &Bindings) -> f64 {
    dim.eval(&sizes_of(dim.symbols(), hints)).map_or(1.0, |size| size.max(1) as f64)
}
