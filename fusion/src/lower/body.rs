//! The body of a group: its own small graph.

use crate::base::error::FusionError;
use crate::base::groups::{Family, Group};
use crate::base::rebuild::{Rebuilt, outputs};
use graphene_frontend::graph::{Graph, ValueId};
use std::collections::BTreeMap;

/// A group's own graph and what it reads.
pub(crate) struct Body {
    /// Its inputs are the reads, its outputs the values asked for.
    pub(crate) graph: Graph,
    /// The values of the whole graph that it reads.
    pub(crate) reads: Vec<Read>,
}

/// A value that a group reads.
pub(crate) struct Read {
    pub(crate) value: ValueId,
    /// Only pointwise operations read it.
    pub(crate) by_points: bool,
}

/// The body of a group that gives these values. Where pointwise operations alone read a constant of one element, it
/// stands in the body.
pub(crate) fn body(graph: &Graph, group: &Group, writes: &[ValueId]) -> Rebuilt<Body> {
    let mut body = Body { graph: Graph::new(), reads: Vec::new() };
    let mut own: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let by_points = by_points(graph, group);
    for &id in &group.nodes {
        let node = graph.node(id);
        for &value in node.inputs().iter().flatten() {
            if own.contains_key(&value) {
                continue;
            }
            let name = graph.node(value.node).name();
            let by_points = by_points.get(&value).copied().unwrap_or(false);
            let scalar = graph.constant(value).filter(|tensor| tensor.len() == 1);
            let inner = match scalar {
                Some(tensor) if by_points => body.graph.add_constant(name, tensor.clone()),
                _ => {
                    body.reads.push(Read { value, by_points });
                    let ty = graph.ty(value).clone();
                    body.graph.add_input(name, ty).map_err(|e| FusionError::rebuild(node, e))?
                }
            };
            own.insert(value, inner);
        }
        let inputs: Vec<_> = node.inputs().iter().map(|v| v.map(|v| own[&v])).collect();
        let new = body.graph.add(node.name(), node.op().clone(), &inputs);
        let new = new.map_err(|e| FusionError::rebuild(node, e))?;
        own.extend(outputs(id, node, new));
    }
    for value in writes {
        body.graph.add_output(graph.node(value.node).name(), own[value]);
    }
    Ok(body)
}

/// For each value that the group reads, whether only pointwise operations do.
fn by_points(graph: &Graph, group: &Group) -> BTreeMap<ValueId, bool> {
    let mut by_points = BTreeMap::new();
    for &id in &group.nodes {
        let node = graph.node(id);
        let point = Family::of(node.op()) == Some(Family::Pointwise);
        for &value in node.inputs().iter().flatten() {
            *by_points.entry(value).or_insert(true) &= point;
        }
    }
    by_points
}
