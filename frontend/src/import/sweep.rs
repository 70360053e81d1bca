//! The last step: a graph of the nodes that are needed.

use crate::graph::{Graph, ValueId};
use crate::infer::InferError;
use crate::op::Op;
use std::collections::HashMap;

/// The graph's inputs, the given values as further inputs, and what its outputs need; nothing else.
///
/// `captures` lists the inputs after the formal ones in their order: an input node of `graph`, or a new one.
pub(super) fn sweep(
    graph: &Graph,
    formal: usize,
    captures: &[(String, crate::types::TensorType, Option<ValueId>)],
) -> Result<Graph, InferError> {
    let mut live = vec![false; graph.len()];
    for (_, value) in graph.outputs() {
        live[value.node.index()] = true;
    }
    let nodes: Vec<_> = graph.nodes().collect();
    for (id, node) in nodes.iter().rev() {
        if live[id.index()] {
            for input in node.inputs().iter().flatten() {
                live[input.node.index()] = true;
            }
        }
    }
    let mut swept = Graph::new();
    let mut moved: HashMap<_, _> = HashMap::new();
    for &id in &graph.inputs()[..formal] {
        let value = swept.add_input(graph.node(id).name(), graph.ty(id.value()).clone())?;
        moved.insert(id, value.node);
    }
    for (name, ty, value) in captures {
        let new = swept.add_input(name, ty.clone())?;
        if let Some(value) = value {
            moved.insert(value.node, new.node);
        }
    }
    let find = |moved: &HashMap<_, _>, value: ValueId| ValueId {
        node: moved[&value.node],
        output: value.output,
    };
    for (id, node) in nodes.into_iter().filter(|(id, _)| live[id.index()]) {
        match node.op() {
            Op::Input => {}
            Op::Constant(tensor) => {
                moved.insert(id, swept.add_constant(node.name(), tensor.clone()).node);
            }
            op => {
                let inputs: Vec<_> =
                    node.inputs().iter().map(|input| input.map(|v| find(&moved, v))).collect();
                moved.insert(id, swept.add(node.name(), op.clone(), &inputs)?);
            }
        }
    }
    for (name, value) in graph.outputs() {
        swept.add_output(name, find(&moved, *value));
    }
    Ok(swept)
}
