//! A graph built anew, with other operations in place of some.

use crate::base::error::FusionError;
use graphene_frontend::graph::{Graph, Node, NodeId, ValueId};
use graphene_frontend::op::Op;
use std::collections::HashMap;

/// The graph with some operations replaced. `replace` adds to the new graph what stands for a node, whose inputs there it
/// is given, and returns its first output; a node of which it returns none stays.
///
/// # Errors
/// [`FusionError::Rebuild`] if an operation refuses the inputs that it had: a defect of inference; those of `replace`.
pub(crate) fn rebuilt(
    graph: &Graph,
    mut replace: impl FnMut(
        &mut Graph,
        (NodeId, &Node),
        &[Option<ValueId>],
    ) -> Result<Option<ValueId>, FusionError>,
) -> Result<Graph, FusionError> {
    let mut result = Graph::new();
    let mut renamed: HashMap<ValueId, ValueId> = HashMap::new();
    for (id, node) in graph.nodes() {
        let failed = |error| FusionError::rebuild(node, error);
        let inputs: Vec<_> = node.inputs().iter().map(|v| v.map(|v| renamed[&v])).collect();
        let made = match node.op() {
            Op::Input => {
                result.add_input(node.name(), node.outputs()[0].clone()).map_err(failed)?.node
            }
            Op::Constant(tensor) => result.add_constant(node.name(), tensor.clone()).node,
            op => match replace(&mut result, (id, node), &inputs)? {
                Some(made) => made.node,
                None => result.add(node.name(), op.clone(), &inputs).map_err(failed)?,
            },
        };
        for output in (0..).take(node.outputs().len()) {
            renamed.insert(ValueId { node: id, output }, ValueId { node: made, output });
        }
    }
    for (name, value) in graph.outputs() {
        result.add_output(name, renamed[value]);
    }
    Ok(result)
}
