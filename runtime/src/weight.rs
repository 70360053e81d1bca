//! What programs read and nobody gives: the model's weights, and those made of them.

use crate::error::{Error, Result};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate;
use graphene_frontend::graph::Graph;
use graphene_frontend::op::Op;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::{Buffer, BufferKind, Program, Weight};
use std::collections::BTreeSet;

/// The elements of a buffer that is a weight.
///
/// # Errors
/// As for [`made`], and [`Error::Released`].
pub(crate) fn elements(buffer: &Buffer) -> Result<Option<Tensor>> {
    match &buffer.kind {
        BufferKind::Weight(weight) => made(weight, &buffer.name).map(Some),
        BufferKind::Input(_) | BufferKind::Output(_) | BufferKind::Intermediate => Ok(None),
    }
}

/// The elements of a weight of this name.
///
/// # Errors
/// [`Error::At`] around [`Error::Eval`] for a weight that cannot be made, and [`Error::Released`].
pub(crate) fn made(weight: &Weight, name: &str) -> Result<Tensor> {
    let released = || Error::Released { weight: name.to_owned() };
    match weight {
        Weight::Given(tensor) => Ok(tensor.clone()),
        Weight::Derived(recipe) => {
            let made = evaluate(recipe, &[]).map_err(|error| Error::from(error).at(name))?;
            made.into_iter().next().ok_or_else(released)
        }
        Weight::Released => Err(released()),
    }
}

/// Integers of 8 bits, where a weight is those as integers of 32 bits.
pub(crate) fn narrow_integers(weight: &Weight) -> Option<Tensor> {
    let Weight::Derived(recipe) = weight else { return None };
    let [(_, made)] = recipe.outputs() else { return None };
    let node = recipe.node(made.node);
    let (Op::Cast { to: DType::I32, .. }, &[Some(from)]) = (node.op(), node.inputs()) else {
        return None;
    };
    match recipe.node(from.node).op() {
        Op::Constant(tensor) if matches!(tensor.dtype(), DType::I8 | DType::U8) => {
            Some(tensor.clone())
        }
        _ => None,
    }
}

/// Bytes of a buffer that is a weight, whose size is always known.
pub(crate) fn bytes(buffer: &Buffer) -> u64 {
    let elements = buffer.elements.known().and_then(|n| u64::try_from(n).ok());
    elements.unwrap_or(u64::MAX).saturating_mul(buffer.dtype.size() as u64)
}

/// Memory that has been counted, by where it lies and how long it is.
pub(crate) type Seen = BTreeSet<(usize, usize)>;

/// Bytes of a tensor, if they have not been counted.
pub(crate) fn new_bytes(tensor: &Tensor, seen: &mut Seen) -> u64 {
    let bytes = tensor.bytes();
    match seen.insert((bytes.as_ptr().addr(), bytes.len())) {
        true => bytes.len() as u64,
        false => 0,
    }
}

/// Bytes of the constants in what steps compute: numbers in expressions, and what loops and branches read.
pub(crate) fn constant_bytes(program: &Program, seen: &mut Seen) -> u64 {
    program.steps().iter().map(|step| constants(&step.body, seen)).sum()
}

/// The same of a graph.
fn constants(graph: &Graph, seen: &mut Seen) -> u64 {
    let bytes = graph.nodes().map(|(_, node)| match node.op() {
        Op::Constant(tensor) => new_bytes(tensor, seen),
        Op::If { then_branch, else_branch } => {
            constants(then_branch, seen) + constants(else_branch, seen)
        }
        Op::Loop { body, .. } => constants(body, seen),
        Op::Scan(scan) => constants(&scan.body, seen),
        _ => 0,
    });
    bytes.sum()
}
