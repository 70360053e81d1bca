//! Control flow: operations that run bodies.

use super::error::EvalError;
use super::movement;
use super::number::integers;
use super::walk::{split_at_axis, strides};
use super::{Args, run};
use crate::dim::Bindings;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::ScanAttrs;
use crate::tensor::Tensor;

fn truth(tensor: &Tensor) -> Result<bool, EvalError> {
    if tensor.dtype() != DType::Bool {
        return Err(EvalError::Mismatch { expected: DType::Bool, actual: tensor.dtype() });
    }
    match tensor.bytes() {
        [byte] => Ok(*byte != 0),
        _ => Err(EvalError::shape("a condition has one element", &[tensor.shape()])),
    }
}

/// [`crate::op::Op::If`].
pub(super) fn branch(
    args: Args<'_>,
    then_branch: &Graph,
    else_branch: &Graph,
    bindings: &Bindings,
    depth: usize,
) -> Result<Vec<Tensor>, EvalError> {
    let body = if truth(args.get(0)?)? { then_branch } else { else_branch };
    run(body, &args.all_from(1)?, bindings, depth + 1)
}

/// The type that a stacked output has when there was no iteration: its body's with no elements.
fn nothing_stacked(
    body: &Graph,
    output: usize,
    axis: usize,
    bindings: &Bindings,
) -> Result<Tensor, EvalError> {
    let ty = body.ty(body.outputs()[output].1);
    let size =
        |dim: &crate::dim::Dim| dim.eval(bindings).ok().and_then(|n| usize::try_from(n).ok());
    let mut shape: Vec<_> = ty.shape.iter().map(|dim| size(dim).unwrap_or(0)).collect();
    shape.insert(axis.min(shape.len()), 0);
    Ok(Tensor::zeros(ty.dtype, shape)?)
}

/// Slices side by side along a new axis.
fn stack(slices: &[Tensor], axis: usize) -> Result<Tensor, EvalError> {
    let mut widened = Vec::new();
    for slice in slices {
        let mut shape = slice.shape().to_vec();
        if axis > shape.len() {
            return Err(EvalError::shape("there is no such axis", &[&shape, &[axis]]));
        }
        shape.insert(axis, 1);
        widened.push(slice.reshaped(shape)?);
    }
    movement::concat(&widened.iter().collect::<Vec<_>>(), axis)
}

fn require_outputs(body: &Graph, expected: usize) -> Result<(), EvalError> {
    if body.outputs().len() < expected {
        return Err(EvalError::Attribute("a body has fewer outputs than carried values"));
    }
    Ok(())
}

/// [`crate::op::Op::Loop`].
pub(super) fn repeat(
    args: Args<'_>,
    body: &Graph,
    carried: usize,
    bindings: &Bindings,
    depth: usize,
) -> Result<Vec<Tensor>, EvalError> {
    let trips = match args.optional(0) {
        None => None,
        Some(count) => match integers(count)?.as_slice() {
            [count] => Some(*count),
            _ => return Err(EvalError::shape("a trip count has one element", &[count.shape()])),
        },
    };
    let mut holds = args.optional(1).map_or(Ok(true), truth)?;
    require_outputs(body, carried.saturating_add(1))?;
    let rest = args.all_from(2)?;
    if rest.len() < carried {
        return Err(EvalError::Missing(2 + rest.len()));
    }
    let (initial, captured) = rest.split_at(carried);
    let mut state = initial.to_vec();
    let mut scanned = vec![Vec::new(); body.outputs().len() - 1 - carried];
    let mut iteration = 0_i64;
    while holds && trips.is_none_or(|trips| i128::from(iteration) < trips) {
        let mut inputs = vec![Tensor::scalar(iteration), truth_tensor(holds)?];
        inputs.append(&mut state);
        inputs.extend_from_slice(captured);
        let mut outputs = run(body, &inputs, bindings, depth + 1)?.into_iter();
        holds = outputs.next().as_ref().map_or(Ok(false), truth)?;
        state.extend(outputs.by_ref().take(carried));
        for (stacked, slice) in scanned.iter_mut().zip(outputs) {
            stacked.push(slice);
        }
        iteration += 1;
    }
    for (i, slices) in scanned.iter().enumerate() {
        state.push(match slices.is_empty() {
            true => nothing_stacked(body, 1 + carried + i, 0, bindings)?,
            false => stack(slices, 0)?,
        });
    }
    Ok(state)
}

fn truth_tensor(value: bool) -> Result<Tensor, EvalError> {
    Ok(Tensor::from_bools(Vec::new(), vec![value])?)
}

/// [`crate::op::Op::Scan`].
pub(super) fn scan(
    args: Args<'_>,
    attrs: &ScanAttrs,
    bindings: &Bindings,
    depth: usize,
) -> Result<Vec<Tensor>, EvalError> {
    let all = args.all_from(0)?;
    let (carried, walked) = (attrs.carried, attrs.inputs.len());
    require_outputs(&attrs.body, carried.saturating_add(attrs.outputs.len()))?;
    if all.len() < carried.saturating_add(walked) {
        return Err(EvalError::Missing(all.len()));
    }
    let (initial, rest) = all.split_at(carried);
    let (sequences, captured) = rest.split_at(walked);
    let length = sequence_length(sequences, &attrs.inputs)?;
    let mut state = initial.to_vec();
    let mut stacked = vec![Vec::new(); attrs.outputs.len()];
    for step in 0..length {
        let mut inputs = std::mem::take(&mut state);
        for (sequence, &(axis, backwards)) in sequences.iter().zip(&attrs.inputs) {
            let index = if backwards { length - 1 - step } else { step };
            inputs.push(slice_at(sequence, axis, index)?);
        }
        inputs.extend_from_slice(captured);
        let mut outputs = run(&attrs.body, &inputs, bindings, depth + 1)?.into_iter();
        state.extend(outputs.by_ref().take(carried));
        for (slices, slice) in stacked.iter_mut().zip(outputs) {
            slices.push(slice);
        }
    }
    for (i, (mut slices, &(axis, backwards))) in stacked.into_iter().zip(&attrs.outputs).enumerate()
    {
        if backwards {
            slices.reverse();
        }
        state.push(match slices.is_empty() {
            true => nothing_stacked(&attrs.body, carried + i, axis, bindings)?,
            false => stack(&slices, axis)?,
        });
    }
    Ok(state)
}

/// The number of steps, on which all sequences agree.
fn sequence_length(sequences: &[Tensor], axes: &[(usize, bool)]) -> Result<usize, EvalError> {
    let mut length = None;
    for (sequence, &(axis, _)) in sequences.iter().zip(axes) {
        let own = sequence.shape().get(axis).copied();
        if own.is_none() || length.is_some_and(|length| Some(length) != own) {
            let what = "scanned inputs have one length";
            return Err(EvalError::shape(what, &[sequence.shape(), &[axis]]));
        }
        length = own;
    }
    length.ok_or(EvalError::Attribute("a scan has a scanned input"))
}

/// The slice at `index` along the axis, which goes away.
fn slice_at(x: &Tensor, axis: usize, index: usize) -> Result<Tensor, EvalError> {
    let (_, _, inner) = split_at_axis(x.shape(), axis);
    let mut shape = x.shape().to_vec();
    let mut moved = strides(&shape);
    shape.remove(axis);
    moved.remove(axis);
    movement::strided(x, shape, &moved, index.wrapping_mul(inner) as isize)
}
