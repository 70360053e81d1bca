//! Tidying: what stands twice is computed once, and what no output needs is dropped.

use crate::base::error::FusionError;
use crate::base::rebuild::{Rebuilt, outputs};
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::Op;
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};

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
    let live = live_nodes(graph);
    let mut result = Graph::new();
    let mut renamed: HashMap<ValueId, ValueId> = HashMap::new();
    // Candidates for sharing, by a hash of what they do, and inputs.
    let mut seen: HashMap<(u64, Vec<Option<ValueId>>), Vec<NodeId>> = HashMap::new();
    for (id, node) in graph.nodes() {
        let failed = |error| FusionError::rebuild(node, error);
        if node.op() == &Op::Input {
            let input = result.add_input(node.name(), node.outputs()[0].clone());
            renamed.insert(id.value(), input.map_err(failed)?);
            continue;
        }
        if !live[id.index()] {
            continue;
        }
        if let Op::Constant(tensor) = node.op() {
            renamed.insert(id.value(), result.add_constant(node.name(), tensor.clone()));
            continue;
        }
        let inputs: Vec<_> = node.inputs().iter().map(|v| v.map(|v| renamed[&v])).collect();
        let candidates = seen.entry((digest(node.op()), inputs.clone())).or_default();
        let alike = |c: &NodeId| share && result.node(*c).op() == node.op();
        let same = candidates.iter().copied().find(alike);
        let new = match same {
            Some(same) => same,
            None => {
                let new = result.add(node.name(), node.op().clone(), &inputs).map_err(failed)?;
                candidates.push(new);
                new
            }
        };
        renamed.extend(outputs(id, node, new));
    }
    for (name, value) in graph.outputs() {
        result.add_output(name, renamed[value]);
    }
    Ok(result)
}

/// A hash of an operation and its attributes: equal operations have one, others hardly ever.
fn digest(op: &Op) -> u64 {
    struct Text(DefaultHasher);
    impl fmt::Write for Text {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut text = Text(DefaultHasher::new());
    fmt::write(&mut text, format_args!("{op:?}")).expect("hashing never fails");
    text.0.finish()
}

/// Which nodes some output needs.
fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.len()];
    for (_, value) in graph.outputs() {
        live[value.node.index()] = true;
    }
    for (id, node) in graph.nodes().rev() {
        if live[id.index()] {
            for input in node.inputs().iter().flatten() {
                live[input.node.index()] = true;
            }
        }
    }
    live
}
