//! What an operation costs, for choosing among equal graphs: a rough time in microseconds at typical sizes, as
//! if every operation that moves data were a launch. What fuses into its neighbours is decided later; here
//! only the order of alternatives matters.

use crate::net::typical;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::op::Op;
use graphene_frontend::types::TensorType;
use std::collections::BTreeSet;

/// Microseconds of a launch.
const LAUNCH: f64 = 2.0;

/// Bytes moved in a microsecond.
const BANDWIDTH: f64 = 1e6;

/// Multiply-adds in a microsecond, twice.
const RATE: f64 = 1e8;

/// Microseconds of a change of view: next to nothing, but fewer are better.
const VIEW: f64 = 0.01;

/// Microseconds of an operation on constants, done once: next to nothing.
const ONCE: f64 = 0.001;

/// The cost of an operation with these types.
pub(crate) fn cost(
    op: &Op,
    inputs: &[Option<&TensorType>],
    outputs: &[TensorType],
    constant: bool,
) -> f64 {
    if constant {
        return ONCE;
    }
    match op {
        Op::Input | Op::Constant(_) => 0.0,
        Op::Reshape(_) | Op::BitCast(_) | Op::Slice(_) => VIEW,
        Op::Transpose(_) | Op::Expand(_) => 1.1 * VIEW,
        _ => {
            let moved: f64 = inputs.iter().flatten().copied().chain(outputs).map(bytes).sum();
            LAUNCH + moved / BANDWIDTH + flops(op, inputs, outputs) / RATE
        }
    }
}

fn flops(op: &Op, inputs: &[Option<&TensorType>], outputs: &[TensorType]) -> f64 {
    let last = |ty: Option<&Option<&TensorType>>| {
        ty.copied().flatten().and_then(|ty| ty.shape.last()).map_or(1.0, size)
    };
    let written: f64 = outputs.first().map_or(0.0, elements);
    match op {
        Op::MatMul => 2.0 * written * last(inputs.first()),
        Op::Attention(_) => {
            let keys = inputs.get(1).copied().flatten().map_or(1.0, |k| size(&k.shape[2]));
            2.0 * written * keys + 2.0 * inputs[0].map_or(0.0, elements) * keys
        }
        _ => written,
    }
}

fn bytes(ty: &TensorType) -> f64 {
    elements(ty) * ty.dtype.size() as f64
}

fn elements(ty: &TensorType) -> f64 {
    ty.shape.iter().map(size).product()
}

/// The size of a dim; symbols take a typical size.
fn size(dim: &Dim) -> f64 {
    if let Some(known) = dim.known() {
        return known as f64;
    }
    let mut symbols = BTreeSet::new();
    dim.collect_symbols(&mut symbols);
    let mut bindings = Bindings::new();
    for symbol in symbols {
        let typical = typical(&symbol);
        bindings.fix(symbol, typical).expect("a typical size is no contradiction");
    }
    dim.eval(&bindings).map_or(1.0, |size| size as f64)
}
