//! Parts of bodies as bodies of their own.

use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::Op;
use std::collections::{BTreeMap, BTreeSet};

/// The operations that lead to some values, which are its outputs, and the values that its inputs are: those that `is_read`
/// names. `None` if they cannot be rebuilt.
pub(super) fn part(
    body: &Graph,
    outputs: &[ValueId],
    is_read: impl Fn(ValueId) -> bool,
) -> Option<(Graph, Vec<ValueId>)> {
    let mut needed = BTreeSet::new();
    let mut pending = outputs.to_vec();
    while let Some(value) = pending.pop() {
        if needed.insert(value) && !is_read(value) {
            pending.extend(body.node(value.node).inputs().iter().flatten());
        }
    }
    let (mut graph, mut read) = (Graph::new(), Vec::new());
    let mut own: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for value in needed {
        let node = body.node(value.node);
        let new = match node.op() {
            _ if is_read(value) => {
                read.push(value);
                graph.add_input(node.name(), body.ty(value).clone()).ok()?
            }
            Op::Constant(tensor) => graph.add_constant(node.name(), tensor.clone()),
            op => {
                let inputs = node.inputs().iter().map(|v| v.map(|v| own[&v]));
                graph.add(node.name(), op.clone(), &inputs.collect::<Vec<_>>()).ok()?.value()
            }
        };
        own.insert(value, new);
    }
    outputs.iter().for_each(|value| graph.add_output("y", own[value]));
    Some((graph, read))
}
