//! Blocks: the stretches of a graph that are saturated one at a time.
//!
//! Saturation of a whole model grows much faster than the model, so the graph is cut where the fewest values
//! cross: in a transformer between its sublayers, where only the hidden state and the mask do. A block is a
//! graph of its own with its weights as inputs, so that layers that are alike are equal blocks.

use super::language::SMALL;
use crate::base::constants::constants;
use crate::base::rebuild::{Rebuilt, Regrown};
use graphene_frontend::{Graph, NodeId, Op, ValueId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The fewest operations of a block, but for the last one of a graph.
const LEAST: usize = 12;

const MOST: usize = 96;

/// What a value about a softmax counts where it crosses a cut.
const SOFTMAX: isize = 8;

/// A stretch of a graph as a graph of its own, without names.
#[derive(Clone)]
pub(crate) struct Block {
    pub(crate) graph: Graph,
    /// Which of the graph's inputs are constants.
    pub(crate) constants: Vec<bool>,
    /// The values that the inputs stand for.
    pub(crate) inputs: Vec<ValueId>,
    /// The values that the outputs stand for.
    pub(crate) outputs: Vec<ValueId>,
    /// The names of its operations.
    pub(crate) names: Vec<String>,
}

impl Block {
    /// Whether all that is said of one holds of the other.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        self.constants == other.constants && self.graph == other.graph
    }
}

/// The blocks of a graph, in order. Every operation is in exactly one.
pub(crate) fn blocks(graph: &Graph) -> Rebuilt<Vec<Block>> {
    let operations: Vec<NodeId> =
        graph.nodes().filter(|(_, node)| node.is_operation()).map(|(id, _)| id).collect();
    let constant = constants(graph);
    let cuts = cuts(graph, &operations, &constant).into_iter();
    cuts.map(|range| carve(graph, &operations[range], &constant)).collect()
}

fn cuts(graph: &Graph, operations: &[NodeId], constant: &[bool]) -> Vec<Range<usize>> {
    let crossing = crossing(graph, operations, constant);
    let mut ranges = Vec::new();
    let mut start = 0;
    while operations.len() - start > MOST {
        let candidates = start + LEAST..=start + MOST;
        // What a matmul reads is a whole hidden state; what reductions read may be half of a norm.
        let key = |end: &usize| (crossing[*end], !feeds_a_matmul(graph, operations[*end - 1]));
        let end = candidates.min_by_key(key).unwrap_or(start + MOST);
        ranges.push(start..end);
        start = end;
    }
    ranges.push(start..operations.len());
    ranges
}

/// For each cut (before the operation of that number) how many values cross it; some weigh more.
fn crossing(graph: &Graph, operations: &[NodeId], constant: &[bool]) -> Vec<usize> {
    let position: BTreeMap<NodeId, usize> = operations.iter().copied().zip(0..).collect();
    let uses = operations.iter().enumerate().flat_map(|(place, &id)| {
        graph.node(id).inputs().iter().flatten().map(move |&value| (value, place))
    });
    let last_use: BTreeMap<ValueId, usize> = uses.collect();
    // Steps up where a value begins to cross and down where it ends, summed up.
    let mut change = vec![0_isize; operations.len() + 2];
    for (value, last) in last_use {
        let made = position.get(&value.node).filter(|_| !constant[value.node.index()]);
        if let Some(made) = made {
            let weight = if is_of_softmax(graph, value.node) { SOFTMAX } else { 1 };
            change[made + 1] += weight;
            change[last + 1] -= weight;
        }
    }
    let mut now = 0_isize;
    let cuts = change[..=operations.len()].iter().map(|step| {
        now += step;
        now.unsigned_abs()
    });
    cuts.collect()
}

/// Whether a cut behind this would part an attention: it is a softmax or what one reads.
fn is_of_softmax(graph: &Graph, id: NodeId) -> bool {
    let softmax = |id: NodeId| matches!(graph.node(id).op(), Op::Softmax { .. });
    softmax(id) || graph.uses(id).iter().any(|(reader, _)| softmax(*reader))
}

fn feeds_a_matmul(graph: &Graph, id: NodeId) -> bool {
    graph.uses(id).iter().any(|(reader, _)| matches!(graph.node(*reader).op(), Op::MatMul))
}

fn carve(graph: &Graph, operations: &[NodeId], constant: &[bool]) -> Rebuilt<Block> {
    let (mut constants, mut inputs, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let mut block = Regrown::default();
    for &id in operations {
        let node = graph.node(id);
        block.read(node, |block, value| {
            match graph.constant(value).filter(|tensor| tensor.len() <= SMALL) {
                Some(tensor) => Ok(block.add_constant("", tensor.clone())),
                None => {
                    inputs.push(value);
                    constants.push(constant[value.node.index()]);
                    block.add_input("", graph.ty(value).clone())
                }
            }
        })?;
        block.copy_as("", id, node)?;
        names.push(node.name().to_owned());
    }
    let (first, last) = (operations.first(), operations.last());
    let outputs = graph.stored(operations, |id| Some(&id) >= first && Some(&id) <= last);
    for value in &outputs {
        block.graph.add_output("", block.renamed[value]);
    }
    Ok(Block { graph: block.graph, constants, inputs, outputs, names })
}
