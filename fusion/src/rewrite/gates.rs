//! Gated layers, `f(x·W) * (x·V)`: one matmul by W and V side by side, whose two parts are multiplied, becomes two. A kernel of
//! two matmuls of one operand has both sums of an element where it multiplies them, and none is stored.

use crate::base::constants::constants;
use crate::base::graph::GraphExt;
use crate::base::rebuild::{InPlace, Rebuilt, rebuilt};
use graphene_frontend::dim::Dim;
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::{Binary, Op, SliceAxis};
use std::collections::BTreeSet;

/// The graph with two matmuls in place of each by constant weights of which nothing but the two parts is read, and these are
/// multiplied, one of them after functions of each element.
pub(crate) fn split_gates(graph: &Graph) -> Rebuilt<Graph> {
    let constant = constants(graph);
    let multiplied = graph.nodes().filter(|(_, node)| *node.op() == Op::Binary(Binary::Mul));
    let gates: BTreeSet<NodeId> = multiplied
        .filter_map(|(_, node)| {
            let &[Some(a), Some(b)] = node.inputs() else { return None };
            gates(graph, &constant, [half(graph, a), half(graph, b)])
        })
        .flatten()
        .collect();
    if gates.is_empty() {
        return Ok(graph.clone());
    }
    rebuilt(graph, |mut at, id, inputs| match (at.node.op(), inputs) {
        (Op::Slice(range), &[Some(of)]) if gates.contains(&id) => {
            part(&mut at, of, &range[0]).map(Some)
        }
        _ => Ok(None),
    })
}

/// What a value is a function of each element of.
fn half(graph: &Graph, mut value: ValueId) -> NodeId {
    while let (Op::Unary(_), &[Some(x)]) = graph.operation(value) {
        value = x;
    }
    value.node
}

/// The two, if they are the two parts of a matmul by constant weights, and all that is read of it.
fn gates(graph: &Graph, constant: &[bool], gates: [NodeId; 2]) -> Option<[NodeId; 2]> {
    let of = |id: NodeId| match graph.operation(id.value()) {
        (Op::Slice(range), &[Some(of)]) => match &range[..] {
            [range @ SliceAxis { step: 1, .. }] => Some((of, range)),
            _ => None,
        },
        _ => None,
    };
    let ((whole, a), (same, b)) = (of(gates[0])?, of(gates[1])?);
    let shape = &graph.ty(whole).shape;
    let last = a.axis == b.axis && a.axis + 1 == shape.len();
    let [first, second] = if a.start == 0 { [a, b] } else { [b, a] };
    let width = &first.len;
    let both = first.start == 0 && second.start == *width && second.len == *width;
    let all = whole == same && last && both && shape.last() == Some(&(width + width));
    let read = |id: NodeId| graph.uses(id).len();
    let alone = read(whole.node) == 2 && !graph.gives(whole.node);
    // The matmul itself, or the sum with its bias.
    let is_weights = |value: Option<ValueId>| value.is_some_and(|v| constant[v.node.index()]);
    let is_matmul = |value: ValueId| match graph.operation(value) {
        (Op::MatMul, &[_, weights]) => is_weights(weights),
        _ => false,
    };
    let fits = match graph.operation(whole) {
        (Op::Binary(Binary::Add), &[Some(matmul), bias]) => {
            let row = bias.is_some_and(|bias| graph.ty(bias).shape[..] == shape[shape.len() - 1..]);
            let own = read(matmul.node) == 1 && !graph.gives(matmul.node);
            row && own && is_weights(bias) && is_matmul(matmul)
        }
        _ => is_matmul(whole),
    };
    (all && alone && fits).then_some(gates)
}

/// Adds what gives these columns of a matmul alone, or of its sum with a bias.
fn part(at: &mut InPlace<'_>, of: ValueId, columns: &SliceAxis) -> Rebuilt<ValueId> {
    let node = at.graph.node(of.node).clone();
    let mut own: Vec<ValueId> = node.inputs().iter().flatten().copied().collect();
    if *node.op() != Op::MatMul {
        own[0] = part(at, own[0], columns)?;
    }
    let axis = at.graph.ty(own[1]).rank() - 1;
    own[1] = match joined(at.graph, own[1], columns) {
        Some(weights) => weights,
        None => at.add(Op::Slice(vec![SliceAxis { axis, ..columns.clone() }]), &[own[1]])?,
    };
    at.add(node.op().clone(), &own)
}

/// What was joined along the last axis to be these columns of a value.
fn joined(graph: &Graph, value: ValueId, columns: &SliceAxis) -> Option<ValueId> {
    let (node, rank) = (graph.node(value.node), graph.ty(value).rank());
    let Op::Concat { axis } = node.op() else { return None };
    let mut start = Dim::from(0);
    for &of in node.inputs().iter().flatten() {
        let len = graph.ty(of).shape.last()?.clone();
        if axis + 1 == rank && start == columns.start && len == columns.len {
            return Some(of);
        }
        start = &start + &len;
    }
    None
}
