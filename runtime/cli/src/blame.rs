//! Whose data is at fault where a run fails.

use crate::error::Error;
use crate::inputs::Given;
use crate::session::Plans;
use graphene_frontend::eval::EvalError;
use graphene_frontend::graph::{Graph, NodeId};
use graphene_frontend::op::Op;
use std::collections::BTreeSet;

/// The error, or [`Error::Index`] for an index out of range that follows from given inputs.
pub(crate) fn index(error: Error, plans: &Plans, imported: &Graph, given: &Given) -> Error {
    let inputs = match &error {
        Error::Run { source, .. } => {
            let nodes = failed_step(source).map(|name| step_nodes(plans, name));
            let graph = &plans.fused.graph;
            sources(graph, &nodes.unwrap_or_default(), given)
        }
        Error::Evaluate { source: EvalError::Node { node, source, .. }, .. }
            if is_index(source) =>
        {
            sources(imported, std::slice::from_ref(node), given)
        }
        _ => Vec::new(),
    };
    match inputs.is_empty() {
        true => error,
        false => Error::Index { inputs: inputs.join(" and "), source: Box::new(error) },
    }
}

/// The name of the step that met an index out of range.
fn failed_step(error: &graphene_runtime::Error) -> Option<&str> {
    use graphene_runtime::Error as E;
    let E::At { place, error } = error else { return None };
    match &**error {
        E::Index { .. } => Some(place),
        E::Eval(error) if is_index(error) => Some(place),
        inner => failed_step(inner),
    }
}

fn is_index(error: &EvalError) -> bool {
    match error {
        EvalError::Node { source, .. } => is_index(source),
        other => matches!(other, EvalError::Index { .. }),
    }
}

/// The names of the nodes that the steps of this name compute.
fn step_nodes(plans: &Plans, name: &str) -> Vec<String> {
    let programs = [Some(&plans.fused), plans.library.as_ref()];
    let steps = programs.into_iter().flatten().flat_map(|planned| planned.program.steps());
    steps.filter(|step| step.name == name).flat_map(|step| step.nodes.iter().cloned()).collect()
}

/// The given inputs of whole numbers that nodes of these names depend on, with where they are from.
fn sources(graph: &Graph, names: &[String], given: &Given) -> Vec<String> {
    let named = graph.nodes().filter(|(_, node)| names.iter().any(|name| name == node.name()));
    let mut pending: Vec<NodeId> = named.map(|(id, _)| id).collect();
    let (mut seen, mut inputs) = (BTreeSet::new(), BTreeSet::new());
    while let Some(id) = pending.pop() {
        if !seen.insert(id) {
            continue;
        }
        let node = graph.node(id);
        pending.extend(node.inputs().iter().flatten().map(|value| value.node));
        if *node.op() == Op::Input && !graph.ty(id.value()).dtype.is_float() {
            inputs.extend(
                given.get(node.name()).map(|(_, o)| format!("input `{}` from {o}", node.name())),
            );
        }
    }
    inputs.into_iter().collect()
}
