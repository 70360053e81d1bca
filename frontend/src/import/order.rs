//! The order in which nodes are imported: the file's own where it is topological, as it should be.

use super::error::{ImportError, Reason};
use crate::onnx::{AttributeProto, GraphProto, NodeProto};
use std::collections::{BTreeSet, HashMap};

/// Bodies and functions nest at most this deep.
pub(super) const MAX_DEPTH: usize = 16;

/// The name that errors give a node: its own, or its first output's.
pub(super) fn node_name(node: &NodeProto) -> &str {
    if !node.name.is_empty() {
        return &node.name;
    }
    node.output.iter().find(|name| !name.is_empty()).map_or("", String::as_str)
}

/// The nodes in topological order.
///
/// # Errors
/// A name given twice, or nodes that depend on each other.
pub(super) fn in_order(nodes: &[NodeProto]) -> Result<Vec<&NodeProto>, ImportError> {
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            if makers.insert(output, i).is_some() {
                return Err(invalid(node, Reason::Duplicate(output.clone())));
            }
        }
    }
    let needs: Vec<BTreeSet<usize>> = nodes
        .iter()
        .map(|node| {
            let mut names = BTreeSet::new();
            names_used(node, &mut names, 0);
            names.into_iter().filter_map(|name| makers.get(name).copied()).collect()
        })
        .collect();
    if needs.iter().enumerate().all(|(i, needs)| needs.iter().all(|&need| need < i)) {
        return Ok(nodes.iter().collect());
    }
    sorted(nodes, &needs)
}

/// Kahn's algorithm; of the nodes that are ready, the first in the file comes first.
fn sorted<'m>(
    nodes: &'m [NodeProto],
    needs: &[BTreeSet<usize>],
) -> Result<Vec<&'m NodeProto>, ImportError> {
    let mut waiting: Vec<usize> = needs.iter().map(BTreeSet::len).collect();
    let mut users = vec![Vec::new(); nodes.len()];
    for (i, needs) in needs.iter().enumerate() {
        for &need in needs {
            users[need].push(i);
        }
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|&i| waiting[i] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(i) = ready.pop_first() {
        order.push(&nodes[i]);
        for &user in &users[i] {
            waiting[user] -= 1;
            if waiting[user] == 0 {
                ready.insert(user);
            }
        }
    }
    if order.len() == nodes.len() {
        return Ok(order);
    }
    let stuck: Vec<&NodeProto> =
        nodes.iter().zip(&waiting).filter(|(_, w)| **w > 0).map(|(n, _)| n).collect();
    let names = stuck.iter().take(8).map(|node| node_name(node).to_owned()).collect();
    Err(invalid(stuck[0], Reason::Cycle(names)))
}

/// The names that a node uses, those used within its bodies among them.
fn names_used<'m>(node: &'m NodeProto, names: &mut BTreeSet<&'m str>, depth: usize) {
    names.extend(node.input.iter().map(String::as_str).filter(|name| !name.is_empty()));
    if depth > MAX_DEPTH {
        return;
    }
    for graph in node.attribute.iter().flat_map(graphs) {
        let mut inner = BTreeSet::new();
        for node in &graph.node {
            names_used(node, &mut inner, depth + 1);
        }
        inner.extend(graph.output.iter().map(|output| output.name.as_str()));
        let made = graph.node.iter().flat_map(|node| &node.output).map(String::as_str);
        let inputs = graph.input.iter().map(|input| input.name.as_str());
        let weights = graph.initializer.iter().map(|tensor| tensor.name.as_str());
        for name in made.chain(inputs).chain(weights) {
            inner.remove(name);
        }
        names.extend(inner);
    }
}

/// The graphs in an attribute.
pub(super) fn graphs(attribute: &AttributeProto) -> impl Iterator<Item = &GraphProto> {
    attribute.g.iter().chain(&attribute.graphs)
}

/// The error for a node that breaks a rule.
pub(super) fn invalid(node: &NodeProto, reason: Reason) -> ImportError {
    ImportError::Invalid { node: node_name(node).to_owned(), op: node.op_type.clone(), reason }
}
