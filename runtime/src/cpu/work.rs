//! How much steps have to do: which of them are spread over threads, and whether a run is worth waking any.

use crate::bind::BoundStep;
use graphene_frontend::dim::Bindings;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::Op;
use graphene_fusion::program::Step;

/// Multiply-adds of GEMMs that take about a nanosecond.
const MULTIPLY_ADDS: usize = 32;

/// Elements that are read or written, or of functions, that take about a nanosecond.
const ELEMENTS: usize = 2;

/// Elements of GEMMs' operands that are brought from memory in about a nanosecond: few rows wait for those of weights.
const OPERANDS: usize = 8;

/// Nanoseconds of work from which on a step is spread, where the others are awake: a section costs 1 µs then, and 10 µs
/// of work take 6 on two threads.
const LONG: usize = 10_000;

/// Nanoseconds of such steps from which on a run is: the first of them wakes the others, who come some 100 µs later.
const WORTH_WAKING: usize = 200_000;

/// Which steps are worth several threads, by the nanoseconds that they take; none of a run that is not.
pub(super) fn spread(work: &[usize]) -> impl Fn(usize) -> bool + use<> {
    let long = work.iter().filter(|&&work| work >= LONG);
    let worth = long.fold(0, |sum: usize, &work| sum.saturating_add(work)) >= WORTH_WAKING;
    move |work| worth && work >= LONG
}

/// About how many nanoseconds a step takes on one thread, by its sizes alone.
pub(super) fn nanoseconds(step: &Step, bound: &BoundStep, bindings: &Bindings) -> usize {
    let len = |shape: &[usize]| shape.iter().fold(1, |len: usize, &n| len.saturating_mul(n));
    let gemms = multiply_adds(&step.body, bindings) / MULTIPLY_ADDS;
    let all = || bound.inputs.iter().map(|input| len(&input.shape));
    let operands = if gemms > 0 { all().fold(0, usize::saturating_add) / OPERANDS } else { 0 };
    let operations = step.body.len() - step.body.inputs().len();
    let outputs = bound.outputs.iter().map(|output| len(&output.shape));
    let written = outputs.fold(0, usize::saturating_add).saturating_mul(operations.max(1));
    // Tables are not read whole, and operands are counted already.
    let largest = bound.outputs.iter().map(|output| len(&output.shape)).max().unwrap_or(0);
    let folds = step.body.nodes().any(|(_, node)| reads_all(node.op()));
    let read = all().map(|len| if folds { len } else { len.min(largest) });
    let moved = read.fold(written, usize::saturating_add) / ELEMENTS;
    gemms.saturating_add(operands).saturating_add(moved)
}

/// Whether an operation reads more than it writes.
fn reads_all(op: &Op) -> bool {
    matches!(op, Op::Reduce { .. } | Op::ArgReduce { .. } | Op::TopK { .. } | Op::Pool(_))
}

/// Multiply-adds of matmuls, attention, convolutions and recurrent layers.
fn multiply_adds(body: &Graph, bindings: &Bindings) -> usize {
    let shape = |value: ValueId| body.ty(value).bound_shape(bindings).unwrap_or_default();
    let len = |shape: &[usize]| shape.iter().fold(1, |len: usize, &n| len.saturating_mul(n));
    let each = body.nodes().map(|(id, node)| {
        let input = |place: usize| {
            let value = node.inputs().get(place).copied().flatten();
            value.map(shape).unwrap_or_default()
        };
        let last = |shape: &[usize]| shape.last().copied().unwrap_or(0);
        match node.op() {
            Op::MatMul => len(&shape(id.value())).saturating_mul(last(&input(0))),
            Op::Attention(_) => {
                let (q, k, v) = (input(0), input(1), input(2));
                let keys = k.len().checked_sub(2).map_or(0, |axis| k[axis]);
                let rows = len(&q).checked_div(last(&q)).unwrap_or(0);
                rows.saturating_mul(keys).saturating_mul(last(&q) + last(&v))
            }
            Op::Conv(_) | Op::ConvTranspose { .. } => {
                let (x, y, w) = (len(&input(0)), len(&shape(id.value())), input(1));
                let window = len(w.get(1..).unwrap_or_default());
                x.max(y).saturating_mul(window)
            }
            Op::Rnn(_) => {
                let x = input(0);
                let rows = len(x.get(..2).unwrap_or_default());
                rows.saturating_mul(len(&input(1)).saturating_add(len(&input(2))))
            }
            _ => 0,
        }
    });
    each.fold(0, usize::saturating_add)
}
