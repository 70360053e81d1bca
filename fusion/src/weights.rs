//! Weights that a program makes of the model's own, once: merged projections, transposed or scaled matrices.

use crate::FusionError;
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::Op;
use std::collections::BTreeMap;

/// For each node whether it is made of constants alone, at sizes that are known.
pub(crate) fn constants(graph: &Graph) -> Vec<bool> {
    let mut constant = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        constant[id.index()] = match node.op() {
            Op::Constant(_) => true,
            Op::Input | Op::Iota(_) | Op::Size(_) => false,
            _ => {
                let mut inputs = node.inputs().iter().flatten().peekable();
                inputs.peek().is_some()
                    && inputs.all(|value| constant[value.node.index()])
                    && node.outputs().iter().all(|ty| ty.known_shape().is_some())
            }
        };
    }
    constant
}

/// The graph, without inputs, whose only output is this constant value.
///
/// # Errors
/// [`FusionError::Rebuild`] if an operation refuses the inputs that it had: a defect of inference.
pub(crate) fn recipe(graph: &Graph, value: ValueId) -> Result<Graph, FusionError> {
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
    recipe.add_output("weight", ValueId { node: made[&value.node], output: value.output });
    Ok(recipe)
}
