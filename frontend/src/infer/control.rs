//! Control flow: bodies against the values that they are used with.

use super::take::{all, dim, dtype, optional, rank};
use super::{BodyRole, Count, InferError, dims};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::ScanAttrs;
use crate::types::TensorType;

type Inputs<'a> = [Option<&'a TensorType>];

pub(super) fn branch(
    then_branch: &Graph,
    else_branch: &Graph,
    inputs: &Inputs<'_>,
) -> Result<Vec<TensorType>, InferError> {
    let Some((condition, captured)) = inputs.split_first() else {
        return Err(InferError::Arity { expected: Count::AtLeast(1), actual: 0 });
    };
    flag(0, condition.ok_or(InferError::Missing { input: 0 })?)?;
    let captured = all(captured)?;
    takes(then_branch, &captured)?;
    takes(else_branch, &captured)?;
    let (then_types, else_types) = (output_types(then_branch), output_types(else_branch));
    count(BodyRole::Output, else_types.len(), Count::Exactly(then_types.len()))?;
    for (index, (a, b)) in then_types.iter().zip(&else_types).enumerate() {
        same_kind(BodyRole::Output, index, b, a)?;
        for (a, b) in a.shape.iter().zip(&b.shape) {
            agree(a, b)?;
        }
    }
    Ok(then_types)
}

pub(super) fn repeat(
    body: &Graph,
    carried: usize,
    inputs: &Inputs<'_>,
) -> Result<Vec<TensorType>, InferError> {
    if inputs.len() < 2 || inputs.len() - 2 < carried {
        let expected = Count::AtLeast(carried.saturating_add(2));
        return Err(InferError::Arity { expected, actual: inputs.len() });
    }
    if let Some(trip_count) = optional(inputs, 0) {
        dtype(0, trip_count, DType::I64)?;
        rank(0, trip_count, Count::Exactly(0))?;
    }
    if let Some(condition) = optional(inputs, 1) {
        flag(1, condition)?;
    }
    let values = all(&inputs[2..])?;
    let iteration = TensorType::new(DType::I64, Vec::new());
    let condition = TensorType::new(DType::Bool, Vec::new());
    let given: Vec<_> = [&iteration, &condition].into_iter().chain(values).collect();
    takes(body, &given)?;

    let results = output_types(body);
    count(BodyRole::Output, results.len(), Count::AtLeast(carried + 1))?;
    stays(0, &results[0], &condition)?;
    for index in 0..carried {
        stays(index + 1, &results[index + 1], body.ty(body.inputs()[index + 2].value()))?;
    }
    if results.len() > carried + 1 {
        // As many slices as there are iterations, which only values can tell.
        return Err(InferError::DataDependent);
    }
    Ok(results[1..].to_vec())
}

pub(super) fn scan(attrs: &ScanAttrs, inputs: &Inputs<'_>) -> Result<Vec<TensorType>, InferError> {
    let ScanAttrs { body, carried, inputs: scanned, outputs: stacked } = attrs;
    let carried = *carried;
    if scanned.is_empty() {
        let reason = "must not be empty: nothing would say how often the body runs";
        return Err(InferError::Attribute { name: "inputs", reason });
    }
    let least = carried.saturating_add(scanned.len());
    if inputs.len() < least {
        return Err(InferError::Arity { expected: Count::AtLeast(least), actual: inputs.len() });
    }
    let mut given: Vec<TensorType> = all(inputs)?.into_iter().cloned().collect();
    let mut trips: Option<Dim> = None;
    for (ty, (axis, _)) in given[carried..].iter_mut().zip(scanned) {
        let size = dim(&ty.shape, *axis)?.clone();
        ty.shape.remove(*axis);
        trips = Some(match trips {
            Some(trips) => dims::join(&trips, &size)?,
            None => size,
        });
    }
    takes(body, &given.iter().collect::<Vec<_>>())?;

    let mut results = output_types(body);
    count(BodyRole::Output, results.len(), Count::Exactly(carried.saturating_add(stacked.len())))?;
    for (index, result) in results[..carried].iter().enumerate() {
        stays(index, result, body.ty(body.inputs()[index].value()))?;
    }
    let trips = trips.expect("there is a scanned input");
    for (ty, (axis, _)) in results[carried..].iter_mut().zip(stacked) {
        if *axis > ty.rank() {
            return Err(InferError::Axis { axis: *axis, rank: ty.rank() + 1 });
        }
        ty.shape.insert(*axis, trips.clone());
    }
    Ok(results)
}

fn flag(input: usize, ty: &TensorType) -> Result<(), InferError> {
    dtype(input, ty, DType::Bool)?;
    rank(input, ty, Count::Exactly(0))
}

fn output_types(body: &Graph) -> Vec<TensorType> {
    body.outputs().iter().map(|(_, value)| body.ty(*value).clone()).collect()
}

fn count(role: BodyRole, actual: usize, expected: Count) -> Result<(), InferError> {
    if expected.contains(actual) {
        return Ok(());
    }
    Err(InferError::BodyArity { role, expected, actual })
}

/// Refuses values that are not what the body was built for.
///
/// A size known in the body may be symbolic outside: binding checks it. The other way round the body's
/// types would name symbols that mean nothing outside.
fn takes(body: &Graph, given: &[&TensorType]) -> Result<(), InferError> {
    count(BodyRole::Input, body.inputs().len(), Count::Exactly(given.len()))?;
    for (index, (node, outside)) in body.inputs().iter().zip(given).enumerate() {
        let formal = body.ty(node.value());
        same_kind(BodyRole::Input, index, formal, outside)?;
        for (a, b) in formal.shape.iter().zip(&outside.shape) {
            if dims::never_equal(a, b) {
                return Err(mismatch(BodyRole::Input, index, formal, outside));
            }
            if a != b && a.known().is_none() {
                return Err(dims::unresolved(a, b));
            }
        }
    }
    Ok(())
}

/// Refuses a carried value that leaves the body with another type than it came with.
fn stays(index: usize, result: &TensorType, start: &TensorType) -> Result<(), InferError> {
    same_kind(BodyRole::Output, index, result, start)?;
    result.shape.iter().zip(&start.shape).try_for_each(|(a, b)| agree(a, b))
}

fn same_kind(
    role: BodyRole,
    index: usize,
    body: &TensorType,
    outside: &TensorType,
) -> Result<(), InferError> {
    if body.dtype == outside.dtype && body.rank() == outside.rank() {
        return Ok(());
    }
    Err(mismatch(role, index, body, outside))
}

fn mismatch(role: BodyRole, index: usize, body: &TensorType, outside: &TensorType) -> InferError {
    InferError::Body { role, index, body: body.clone(), outside: outside.clone() }
}

/// Two dims of which one holds or the other, as values decide: they must be the same.
fn agree(a: &Dim, b: &Dim) -> Result<(), InferError> {
    if a == b {
        return Ok(());
    }
    if dims::never_equal(a, b) {
        return Err(InferError::DataDependent);
    }
    Err(dims::unresolved(a, b))
}
