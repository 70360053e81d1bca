//! Several matmuls of one body: whether they are added, or gate each other.

use super::Refusal;
use super::function::{Walk, leaves};
use crate::base::graph::GraphExt;
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::{Binary, Op};

/// Whether the body's matmuls are two of one A that are not added.
pub(crate) fn is_gated(body: &Graph) -> bool {
    let matmuls = body.matmuls();
    let left = |id: NodeId| body.node(id).inputs()[0];
    matches!(matmuls[..], [gate, value] if left(gate) == left(value))
        && summed(body, &matmuls).is_err()
}

/// What becomes of several matmuls: they are added, and with them other values.
pub(super) struct Sum {
    /// The sum of all matmuls and the others; the matmul itself if there is one.
    pub(super) value: ValueId,
    pub(super) others: Vec<ValueId>,
}

/// The sum that matmuls end in; each is added to it once, and nothing else reads one.
pub(super) fn summed(body: &Graph, matmuls: &[NodeId]) -> Result<Sum, Refusal> {
    if let [one] = matmuls {
        return Ok(Sum { value: one.value(), others: Vec::new() });
    }
    let apart = Err(Refusal::Operation("several matmuls that are not added"));
    let is_sum = |id: NodeId| matches!(body.node(id).op(), Op::Binary(Binary::Add));
    let reader = |id: NodeId| match body.uses(id)[..] {
        [(reader, _)] if !body.gives(id) && is_sum(reader) => Some(reader),
        _ => None,
    };
    let mut root = matmuls[0];
    while let Some(next) = reader(root) {
        root = next;
    }
    let (mut pending, mut others, mut added) = (vec![root.value()], Vec::new(), 0);
    while let Some(value) = pending.pop() {
        let within = value.node == root || reader(value.node).is_some();
        if matmuls.contains(&value.node) {
            added += 1;
        } else if is_sum(value.node) && within {
            pending.extend(body.node(value.node).inputs().iter().flatten());
        } else {
            others.push(value);
        }
    }
    let read_once = |id: &NodeId| reader(*id).is_some();
    // Others that are made of matmuls are no addends of their own.
    let shape = &body.ty(root.value()).shape;
    let same = *shape == body.ty(matmuls[0].value()).shape;
    let made = others.iter().any(|&value| {
        let found = |value: ValueId| match matmuls.contains(&value.node) {
            true => Walk::Found,
            false => Walk::On,
        };
        leaves(body, &[value], &found).iter().any(|leaf| matmuls.contains(&leaf.node))
    });
    if added != matmuls.len() || !matmuls.iter().all(read_once) || !same || made {
        return apart;
    }
    Ok(Sum { value: root.value(), others })
}
