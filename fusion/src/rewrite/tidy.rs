//! Tidying: what stands twice is computed once, and what no output needs is dropped.

use crate::base::error::FusionError;
use crate::base::rebuild::{Rebuilt, Regrown};
use graphene_frontend::{Graph, NodeId, Op, ValueId};
use std::collections::HashMap;

/// The graph with common subexpressions shared and dead operations dropped. Inputs and outputs stay.
///
/// # Errors
/// [`FusionError::Rebuild`] if an operation refuses the inputs that it had: a defect of inference.
pub fn tidy(graph: &Graph) -> Result<Graph, FusionError> {
    without_dead(graph, true)
}

/// The graph with dead operations dropped; what stands twice stays so. Inputs and outputs stay.
pub(crate) fn pruned(graph: &Graph) -> Rebuilt<Graph> {
    without_dead(graph, false)
}

fn without_dead(graph: &Graph, share: bool) -> Rebuilt<Graph> {
    let needed = graph.needed(graph.outputs().iter().map(|(_, value)| value.node));
    let mut result = Regrown::default();
    // Candidates for sharing, by what they do as text, in which equal operations are alike, and by inputs.
    let mut seen: HashMap<(String, Vec<Option<ValueId>>), Vec<NodeId>> = HashMap::new();
    for (id, node) in graph.nodes() {
        if *node.op() != Op::Input && !needed.contains(&id) {
            continue;
        }
        if !share || !node.is_operation() {
            result.copy(id, node)?;
            continue;
        }
        let candidates = seen.entry((format!("{:?}", node.op()), result.inputs(node))).or_default();
        let alike = |known: &NodeId| result.graph.node(*known).op() == node.op();
        match candidates.iter().copied().find(alike) {
            Some(same) => result.rename(id, node, same),
            None => candidates.push(result.copy(id, node)?),
        }
    }
    Ok(result.finish(graph))
}
