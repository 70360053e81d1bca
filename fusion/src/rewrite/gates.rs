//! Gated layers, `f(x·W) * (x·V)`: one matmul by W and V side by side, whose two parts are multiplied, becomes two. A kernel of
//! two matmuls of one operand has both sums of an element where it multiplies them, and none is stored.

use crate::base::constants::constants;
use crate::base::rebuild::{InPlace, Rebuilt, rebuilt};
use crate::rewrite::ranges::{both_of, either};
use graphene_frontend::{Binary, Dim, Graph, NodeId, Op, SliceAxis, ValueId};
use std::collections::BTreeSet;

/// The graph with two matmuls in place of each by constant weights of which nothing but the two parts is read, and these are
/// multiplied, one of them after functions of each element.
pub(crate) fn split_gates(graph: &Graph) -> Rebuilt<Graph> {
    let constant = constants(graph);
    let inner = |value| graph.through(value, |op| matches!(op, Op::Unary(_)));
    let multiplied =
        graph.nodes().filter_map(|(id, _)| graph.operands(id.value(), &Op::Binary(Binary::Mul)));
    let gates = multiplied.filter_map(|factors| gates(graph, &constant, factors.map(inner)));
    let gates: BTreeSet<NodeId> = gates.flatten().collect();
    rebuilt(graph, |mut at, id, inputs| match (at.node.op(), inputs) {
        (Op::Slice(range), &[Some(of)]) if gates.contains(&id) => {
            part(&mut at, of, &range[0]).map(Some)
        }
        _ => Ok(None),
    })
}

/// The two, if they are the two parts of a matmul by constant weights, and all that is read of it.
fn gates(graph: &Graph, constant: &[bool], gates: [ValueId; 2]) -> Option<[NodeId; 2]> {
    let [a, b] = gates;
    let (whole, axis, _) = either(a, b, |low, high| both_of(graph, [low, high]))?;
    let shape = &graph.ty(whole).shape;
    let alone = graph.uses(whole.node).len() == 2 && !graph.gives(whole.node);
    // The matmul itself, or the sum with its bias.
    let is_weights = |value: ValueId| constant[value.node.index()];
    let is_matmul = |value: ValueId| {
        graph.operands(value, &Op::MatMul).is_some_and(|[_, weights]| is_weights(weights))
    };
    let fits = match graph.operands(whole, &Op::Binary(Binary::Add)) {
        Some([matmul, bias]) => {
            let row = graph.ty(bias).shape[..] == shape[shape.len() - 1..];
            row && graph.only_reader(matmul.node).is_some() && is_weights(bias) && is_matmul(matmul)
        }
        None => is_matmul(whole),
    };
    (axis + 1 == shape.len() && alone && fits).then_some(gates.map(|gate| gate.node))
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
        None => at.slice(own[1], axis, columns.start.clone(), columns.len.clone())?,
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
