//! Weights that a program makes of the model's own, once: merged projections, transposed or scaled matrices.

use crate::FusionError;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, Node, NodeId, ValueId};
use graphene_frontend::op::{Binary, Op};
use graphene_frontend::tensor::Tensor;
use std::collections::BTreeMap;

/// Weights made of constants take at most this many times the bytes of all constants, and [`MOST_BYTES`] beyond: bytes are
/// dequantised by way of integers of 32 bits.
const MOST_TIMES: u64 = 16;
const MOST_BYTES: u64 = 1 << 24;
/// Multiplications and additions of all matrix products among them at most.
const MOST_WORK: u64 = 1 << 34;

/// The bits of single precision that TF32 has not.
const TF32_CUT: i32 = 0x1fff;

/// For each node whether it is made of constants alone: at sizes that are known, by operations whose work is that of
/// reading and writing, and within a budget of bytes for the whole graph. What is beyond runs with the program.
pub(crate) fn constants(graph: &Graph) -> Vec<bool> {
    let given = graph.nodes().filter(|(_, node)| matches!(node.op(), Op::Constant(_)));
    let given = given.map(|(_, node)| bytes(node).unwrap_or(0)).fold(0, u64::saturating_add);
    let mut bytes_left = given.saturating_mul(MOST_TIMES).saturating_add(MOST_BYTES);
    let mut work_left = MOST_WORK;
    let mut constant = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        if matches!(node.op(), Op::Constant(_)) {
            constant[id.index()] = true;
            continue;
        }
        let mut inputs = node.inputs().iter().flatten().peekable();
        let given = inputs.peek().is_some() && inputs.all(|value| constant[value.node.index()]);
        let Some((bytes, work)) = bytes(node).zip(work(graph, node)).filter(|_| given) else {
            continue;
        };
        if bytes <= bytes_left && work <= work_left {
            bytes_left -= bytes;
            work_left -= work;
            constant[id.index()] = true;
        }
    }
    constant
}

/// Bytes of the results, where their sizes are known.
fn bytes(node: &Node) -> Option<u64> {
    node.outputs().iter().try_fold(0_u64, |bytes, ty| {
        let sizes = ty.known_shape()?.into_iter().map(|size| size as u64);
        Some(bytes.saturating_add(sizes.fold(ty.dtype.size() as u64, u64::saturating_mul)))
    })
}

/// Work beyond reading and writing; `None` for what is not made beforehand.
fn work(graph: &Graph, node: &Node) -> Option<u64> {
    match node.op() {
        Op::MatMul => {
            let depth = node.inputs()[0].and_then(|a| graph.ty(a).shape.last()?.known())?;
            let elements = bytes(node)? / node.outputs()[0].dtype.size() as u64;
            Some(elements.saturating_mul(u64::try_from(depth).ok()?))
        }
        Op::Constant(_)
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
        | Op::Cumulative { .. }
        | Op::TopK { .. }
        | Op::NonZero
        | Op::Softmax { .. }
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::Resize(_) => Some(0),
        // Their work is not bounded by what they read and write, or nobody makes weights by them.
        Op::Input
        | Op::Iota(_)
        | Op::Size(_)
        | Op::Conv(_)
        | Op::ConvTranspose { .. }
        | Op::Pool(_)
        | Op::Attention(_)
        | Op::Rnn(_)
        | Op::If { .. }
        | Op::Loop { .. }
        | Op::Scan(_) => None,
    }
}

/// The graph, without inputs, whose only output is this constant value.
///
/// # Errors
/// [`FusionError::Rebuild`] if an operation refuses the inputs that it had: a defect of inference.
pub(crate) fn recipe(graph: &Graph, value: ValueId) -> Result<Graph, FusionError> {
    let (mut recipe, made) = steps(graph, value)?;
    recipe.add_output("weight", made);
    Ok(recipe)
}

/// The same of the value with its dims in this order.
///
/// # Errors
/// As for [`recipe`].
pub(crate) fn recipe_in_order(
    graph: &Graph,
    value: ValueId,
    order: &[usize],
) -> Result<Graph, FusionError> {
    let (mut recipe, x) = steps(graph, value)?;
    let node = graph.node(value.node);
    let made = recipe.add(node.name(), Op::Transpose(order.to_vec()), &[Some(x)]);
    let made = made.map_err(|error| FusionError::rebuild(node, error))?;
    recipe.add_output("weight", made.value());
    Ok(recipe)
}

/// The same of the value as matrix units want it: a matrix of single precision transposed, and rounded to TF32, to nearest
/// with ties away from 0.
///
/// # Errors
/// As for [`recipe`].
pub(crate) fn recipe_of_tf32(graph: &Graph, value: ValueId) -> Result<Graph, FusionError> {
    let (mut recipe, x) = steps(graph, value)?;
    let node = graph.node(value.node);
    let number = Tensor::scalar::<i32>;
    let half = recipe.add_constant("half of the last bit", number(TF32_CUT / 2 + 1));
    let kept = recipe.add_constant("bits that are kept", number(!TF32_CUT));
    let mut op = |op: Op, inputs: &[ValueId]| {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        let made = recipe.add(node.name(), op, &inputs);
        made.map(|id| id.value()).map_err(|error| FusionError::rebuild(node, error))
    };
    let bits = op(Op::BitCast(DType::I32), &[x])?;
    let up = op(Op::Binary(Binary::Add), &[bits, half])?;
    let cut = op(Op::Binary(Binary::BitAnd), &[up, kept])?;
    let rounded = op(Op::BitCast(DType::F32), &[cut])?;
    // What is no number stays none.
    let is_number = op(Op::Binary(Binary::Equal), &[x, x])?;
    let rounded = op(Op::Select, &[is_number, rounded, x])?;
    let across = op(Op::Transpose(vec![1, 0]), &[rounded])?;
    recipe.add_output("weight", across);
    Ok(recipe)
}

/// The operations that make a constant value, and the value among them.
fn steps(graph: &Graph, value: ValueId) -> Result<(Graph, ValueId), FusionError> {
    let mut recipe = Graph::new();
    let mut made: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    let mut pending = vec![value.node];
    while let Some(&id) = pending.last() {
        let node = graph.node(id);
        let waits = node.inputs().iter().flatten().map(|value| value.node);
        let waits: Vec<NodeId> = waits.filter(|id| !made.contains_key(id)).collect();
        if !waits.is_empty() {
            pending.extend(waits);
            continue;
        }
        pending.pop();
        if made.contains_key(&id) {
            continue;
        }
        let own = |value: &ValueId| ValueId { node: made[&value.node], output: value.output };
        let new = match node.op() {
            Op::Constant(tensor) => recipe.add_constant(node.name(), tensor.clone()).node,
            op => {
                let inputs: Vec<_> = node.inputs().iter().map(|v| v.as_ref().map(own)).collect();
                recipe
                    .add(node.name(), op.clone(), &inputs)
                    .map_err(|error| FusionError::rebuild(node, error))?
            }
        };
        made.insert(id, new);
    }
    Ok((recipe, ValueId { node: made[&value.node], output: value.output }))
}
