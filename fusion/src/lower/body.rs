//! The body of a group: its own small graph.

use crate::base::groups::{Family, Group};
use crate::base::rebuild::{Rebuilt, Regrown};
use graphene_frontend::graph::{Graph, ValueId};
use std::collections::BTreeMap;

pub(crate) struct Read {
    pub(crate) value: ValueId,
    /// Only pointwise operations read it.
    pub(crate) by_points: bool,
}

/// The body of a group that gives these values. Where pointwise operations alone read a constant of one element, it
/// stands in the body. Its inputs are the reads.
pub(crate) fn body(
    graph: &Graph,
    group: &Group,
    writes: &[ValueId],
) -> Rebuilt<(Graph, Vec<Read>)> {
    let (mut body, mut reads) = (Regrown::default(), Vec::new());
    let by_points = by_points(graph, group);
    for &id in &group.nodes {
        let node = graph.node(id);
        body.read(node, |body, value| {
            let name = graph.node(value.node).name();
            let by_points = by_points.get(&value).copied().unwrap_or(false);
            match graph.constant(value).filter(|tensor| by_points && tensor.len() == 1) {
                Some(tensor) => Ok(body.add_constant(name, tensor.clone())),
                None => {
                    reads.push(Read { value, by_points });
                    body.add_input(name, graph.ty(value).clone())
                }
            }
        })?;
        body.copy(id, node)?;
    }
    for value in writes {
        body.graph.add_output(graph.node(value.node).name(), body.renamed[value]);
    }
    Ok((body.graph, reads))
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
