//! Control flow. What is decided by constants leaves no trace of it.

use super::{Outputs, Row, row, values};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::{Graph, ValueId};
use crate::import::{Context, OpError, Reason, Value};
use crate::infer::InferError;
use crate::onnx::GraphProto;
use crate::op::{Op, ScanAttrs, SliceAxis};
use crate::tensor::Tensor;
use crate::types::TensorType;

/// The operators of this family.
pub(super) const ROWS: &[Row] =
    &[values("If", 1, branch), values("Loop", 1, repeat), row("Scan", 8, scan)];

/// A loop is written out if that makes at most this many nodes.
const MAX_UNROLLED: usize = 1 << 14;

fn body<'m>(cx: &Context<'_, 'm>, name: &str) -> Result<&'m GraphProto, OpError> {
    cx.graph_attr(name).ok_or_else(|| Reason::MissingAttribute(name.into()).into())
}

/// A value without dims: files give some scalars one dim.
fn scalar(cx: &mut Context<'_, '_>, value: ValueId) -> Result<ValueId, OpError> {
    cx.reshape(value, Vec::new())
}

/// Whether a condition holds, if that is known.
fn known_truth(cx: &Context<'_, '_>, condition: ValueId) -> Option<bool> {
    let tensor = cx.known(condition)?;
    tensor.bytes().first().map(|&byte| byte != 0)
}

/// A shape that hangs on how control flows hangs on what decides it.
fn decided_by(decider: ValueId) -> impl Fn(OpError) -> OpError {
    move |error| match error {
        OpError::Infer(InferError::DataDependent) => OpError::NeedsValue(decider),
        other => other,
    }
}

fn branch(cx: &mut Context<'_, '_>) -> Result<Vec<Value>, OpError> {
    let condition = cx.input(0)?;
    let condition = scalar(cx, condition)?;
    let (holds, fails) = (body(cx, "then_branch")?, body(cx, "else_branch")?);
    if let Some(truth) = known_truth(cx, condition) {
        return cx.importer.run_body(if truth { holds } else { fails }, &[]);
    }
    let (graphs, captured) = cx.importer.build_bodies(&[holds, fails], &[], &[])?;
    let [then_branch, else_branch] = <[_; 2]>::try_from(graphs).expect("one a body");
    let (then_branch, else_branch) = (Box::new(then_branch), Box::new(else_branch));
    let inputs: Vec<_> = [condition].into_iter().chain(captured).map(Some).collect();
    let op = Op::If { then_branch, else_branch };
    let outputs = cx.add_optional(op, &inputs).map_err(decided_by(condition))?;
    Ok(outputs.into_iter().map(Value::from).collect())
}

fn repeat(cx: &mut Context<'_, '_>) -> Result<Vec<Value>, OpError> {
    let trips = match cx.optional(0) {
        Some(trips) => Some(scalar(cx, trips)?),
        None => None,
    };
    let condition = match cx.optional(1) {
        Some(condition) => Some(scalar(cx, condition)?),
        None => None,
    };
    let carried: Vec<Value> =
        (2..cx.input_count()).map(|i| cx.value(i)).collect::<Result<_, _>>()?;
    let body = body(cx, "body")?;
    if body.output.len() < carried.len() + 1 {
        return Err(cx.invalid("the body gives too few outputs"));
    }
    let lists = carried.iter().any(|value| matches!(value, Value::Sequence(_)));
    match unroll(cx, body, trips, condition, &carried)? {
        Unrolled::Outputs(outputs) => return Ok(outputs),
        Unrolled::Decided(decider) if lists => return Err(OpError::NeedsValue(decider)),
        Unrolled::Long if lists => {
            return Err(cx.unsupported("a sequence carried through so many iterations"));
        }
        Unrolled::Decided(_) | Unrolled::Long => {}
    }
    let carried = Value::tensors(carried, "a carried value")?;
    let deciders: Vec<_> =
        [trips, condition].into_iter().flatten().chain(carried.iter().copied()).collect();
    let (graph, captured) = build_loop(cx, body, &carried, &deciders)?;
    let graph = Box::new(graph);
    let inputs: Vec<_> = [trips, condition]
        .into_iter()
        .chain(carried.iter().chain(&captured).copied().map(Some))
        .collect();
    let op = Op::Loop { body: graph, carried: carried.len() };
    let outputs = match (cx.add_optional(op, &inputs), trips.or(condition)) {
        (Err(error), Some(decider)) => return Err(decided_by(decider)(error)),
        (outcome, _) => outcome?,
    };
    Ok(outputs.into_iter().map(Value::from).collect())
}

/// A loop written out, or why it is not.
enum Unrolled {
    /// Its outputs.
    Outputs(Vec<Value>),
    /// The number of its iterations hangs on this value.
    Decided(ValueId),
    /// It has too many iterations.
    Long,
}

/// The loop written out, if the number of its iterations is known.
fn unroll<'m>(
    cx: &mut Context<'_, 'm>,
    body: &'m GraphProto,
    trips: Option<ValueId>,
    condition: Option<ValueId>,
    carried: &[Value],
) -> Result<Unrolled, OpError> {
    let most = match trips {
        Some(trips) => match cx.known(trips) {
            Some(_) => Some(cx.known_ints(trips)?.first().copied().unwrap_or(0).max(0)),
            None => return Ok(Unrolled::Decided(trips)),
        },
        None => None,
    };
    let limit = (MAX_UNROLLED / body.node.len().max(1)) as i64;
    if most.is_some_and(|most| most > limit) {
        return Ok(Unrolled::Long);
    }
    let mut goes_on = match condition {
        Some(condition) => match known_truth(cx, condition) {
            Some(truth) => truth,
            None => return Ok(Unrolled::Decided(condition)),
        },
        None => true,
    };
    let mut values = carried.to_vec();
    let mut slices: Vec<Vec<ValueId>> = vec![Vec::new(); body.output.len() - 1 - carried.len()];
    let mut i = 0;
    while goes_on && most.is_none_or(|most| i < most) {
        if i >= limit {
            return Ok(Unrolled::Long);
        }
        let iteration = cx.constant(Tensor::scalar(i)).into();
        let truth = cx.constant(Tensor::from_bools(Vec::new(), vec![true])?).into();
        let inputs: Vec<_> = [iteration, truth].into_iter().chain(values).collect();
        let mut outputs = cx.importer.run_body(body, &inputs)?;
        let scanned = outputs.split_off(carried.len() + 1);
        let scanned = Value::tensors(scanned, "a scanned output")?;
        values = outputs.split_off(1);
        let goes = Value::tensors(outputs, "the condition")?[0];
        let last = most.is_some_and(|most| i + 1 >= most);
        goes_on = match known_truth(cx, goes) {
            Some(truth) => truth,
            None if last => false,
            None => return Ok(Unrolled::Decided(goes)),
        };
        for (slices, value) in slices.iter_mut().zip(scanned) {
            slices.push(value);
        }
        i += 1;
    }
    if i == 0 && !slices.is_empty() {
        let carried = Value::tensors(carried.to_vec(), "what a loop carries that never runs")?;
        values.extend(nothing_collected(cx, body, &carried)?.into_iter().map(Value::from));
        return Ok(Unrolled::Outputs(values));
    }
    for slices in slices {
        values.push(stacked(cx, &slices, 0)?.into());
    }
    Ok(Unrolled::Outputs(values))
}

/// What a loop collects that never runs: nothing, of the types that its body would give.
fn nothing_collected<'m>(
    cx: &mut Context<'_, 'm>,
    body: &'m GraphProto,
    carried: &[ValueId],
) -> Outputs {
    let (graph, _) = build_loop(cx, body, carried, carried)?;
    let mut collected = Vec::new();
    for (_, value) in &graph.outputs()[carried.len() + 1..] {
        let ty = graph.ty(*value);
        let shape = std::iter::once(Dim::from(0)).chain(ty.shape.iter().cloned()).collect();
        let zero = cx.constant(Tensor::zeros(ty.dtype, Vec::new())?);
        collected.push(cx.expand(zero, shape)?);
    }
    Ok(collected)
}

/// A loop's body as a graph, and what it captures.
fn build_loop<'m>(
    cx: &mut Context<'_, 'm>,
    body: &'m GraphProto,
    carried: &[ValueId],
    deciders: &[ValueId],
) -> Result<(Graph, Vec<ValueId>), OpError> {
    let mut formal =
        vec![TensorType::new(DType::I64, Vec::new()), TensorType::new(DType::Bool, Vec::new())];
    formal.extend(carried.iter().map(|&value| cx.ty(value)));
    let (mut graphs, captured) = cx.importer.build_bodies(&[body], &formal, deciders)?;
    Ok((graphs.pop().expect("one a body"), captured))
}

/// Values side by side along a new axis.
pub(super) fn stacked(
    cx: &mut Context<'_, '_>,
    values: &[ValueId],
    axis: usize,
) -> Result<ValueId, OpError> {
    let mut parts = Vec::with_capacity(values.len());
    for &value in values {
        let mut dims = cx.shape(value);
        dims.insert(axis, Dim::from(1));
        parts.push(cx.reshape(value, dims)?);
    }
    cx.add(Op::Concat { axis }, &parts)
}

fn scan(cx: &mut Context<'_, '_>) -> Outputs {
    let inputs: Vec<Option<ValueId>> = (0..cx.input_count()).map(|i| cx.optional(i)).collect();
    if cx.opset() >= 9 {
        let inputs: Vec<ValueId> =
            (0..inputs.len()).map(|i| cx.input(i)).collect::<Result<_, _>>()?;
        return scan_once(cx, &inputs, "scan_input_directions");
    }
    if inputs.first().copied().flatten().is_some() {
        return Err(cx.unsupported("lengths of sequences"));
    }
    let inputs: Vec<ValueId> = (1..inputs.len()).map(|i| cx.input(i)).collect::<Result<_, _>>()?;
    batched_scan(cx, &inputs)
}

/// Version 8: everything has a batch dim in front; each element of the batch is scanned alone.
fn batched_scan(cx: &mut Context<'_, '_>, inputs: &[ValueId]) -> Outputs {
    const MAX_BATCH: i64 = 64;
    let batch = inputs.first().and_then(|&value| cx.shape(value).into_iter().next());
    let Some(batch) = batch else { return Err(cx.invalid("inputs without a batch dim")) };
    let Some(batch) = batch.known().filter(|batch| (1..=MAX_BATCH).contains(batch)) else {
        return Err(cx.unsupported("a batch whose size is not known or large"));
    };
    let mut results: Vec<Vec<ValueId>> = Vec::new();
    for at in 0..batch {
        let mut elements = Vec::new();
        for &value in inputs {
            let dims = cx.shape(value);
            if dims.is_empty() {
                return Err(cx.invalid("inputs without a batch dim"));
            }
            let range = SliceAxis { axis: 0, start: Dim::from(at), len: Dim::from(1), step: 1 };
            let element = cx.add(Op::Slice(vec![range]), &[value])?;
            elements.push(cx.reshape(element, dims[1..].to_vec())?);
        }
        let outputs = scan_once(cx, &elements, "directions")?;
        results.resize(outputs.len(), Vec::new());
        for (all, output) in results.iter_mut().zip(outputs) {
            all.push(output);
        }
    }
    results.iter().map(|values| stacked(cx, values, 0)).collect()
}

fn scan_once(cx: &mut Context<'_, '_>, inputs: &[ValueId], directions: &str) -> Outputs {
    let body = body(cx, "body")?;
    let count = cx.int("num_scan_inputs").and_then(|count| usize::try_from(count).ok());
    let count = count.filter(|&count| count <= inputs.len());
    let Some(count) = count else { return Err(cx.invalid("too many scanned inputs")) };
    let carried = inputs.len() - count;
    let Some(stacked) = body.output.len().checked_sub(carried) else {
        return Err(cx.invalid("the body gives too few outputs"));
    };
    let mut formal: Vec<TensorType> = inputs.iter().map(|&value| cx.ty(value)).collect();
    let mut scanned = Vec::new();
    for (i, ty) in formal[carried..].iter_mut().enumerate() {
        let axis = scan_axis(cx, "scan_input_axes", i, ty.rank())?;
        ty.shape.remove(axis);
        scanned.push((axis, reversed(cx, directions, i)));
    }
    let (mut graphs, captured) = cx.importer.build_bodies(&[body], &formal, inputs)?;
    let graph = graphs.pop().expect("one a body");
    let mut outputs = Vec::new();
    for i in 0..stacked {
        let rank = graph.ty(graph.outputs()[carried + i].1).rank() + 1;
        let axis = scan_axis(cx, "scan_output_axes", i, rank)?;
        outputs.push((axis, reversed(cx, "scan_output_directions", i)));
    }
    let attrs = ScanAttrs { body: graph, carried, inputs: scanned, outputs };
    let inputs: Vec<_> = inputs.iter().chain(&captured).copied().map(Some).collect();
    cx.add_optional(Op::Scan(Box::new(attrs)), &inputs)
}

/// Whether the i-th direction is from the end.
fn reversed(cx: &Context<'_, '_>, name: &str, i: usize) -> bool {
    cx.ints(name).and_then(|list| list.get(i)).is_some_and(|&direction| direction != 0)
}

fn scan_axis(cx: &Context<'_, '_>, name: &str, i: usize, rank: usize) -> Result<usize, OpError> {
    cx.axis(rank, cx.ints(name).and_then(|list| list.get(i)).copied().unwrap_or(0))
}
