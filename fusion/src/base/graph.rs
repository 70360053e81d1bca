//! What every stage asks of graphs.

use crate::base::elements::splat;
use graphene_frontend::graph::{Graph, Node, NodeId, ValueId};
use graphene_frontend::op::{Op, SliceAxis};
use std::collections::BTreeSet;

/// What every stage asks of a node.
pub(crate) trait NodeExt {
    /// What it reads in this place, if anything.
    fn input(&self, place: usize) -> Option<ValueId>;
    /// Whether it computes something: it is neither an input nor a constant.
    fn is_operation(&self) -> bool;
}

impl NodeExt for Node {
    fn input(&self, place: usize) -> Option<ValueId> {
        self.inputs().get(place).copied().flatten()
    }

    fn is_operation(&self) -> bool {
        !matches!(self.op(), Op::Input | Op::Constant(_))
    }
}

/// What every stage asks of a graph.
pub(crate) trait GraphExt {
    /// The operation that makes a value, and what it reads.
    fn operation(&self, value: ValueId) -> (&Op, &[Option<ValueId>]);
    /// Whether an output of the graph is made by this node.
    fn gives(&self, id: NodeId) -> bool;
    /// The matmuls, in order.
    fn matmuls(&self) -> Vec<NodeId>;
    /// The only operation; `None` if there are several, or none.
    fn only_operation(&self) -> Option<&Node>;
    /// The number of the input that this value is.
    fn place_of_input(&self, value: ValueId) -> Option<usize>;
    /// What a value is a part of, elements one after the other along one axis alone.
    fn range_of(&self, value: ValueId) -> Option<(ValueId, &SliceAxis)>;
    /// The number that a constant of one element is.
    fn number(&self, value: ValueId) -> Option<f64>;
    /// The outputs, in order.
    fn given(&self) -> Vec<ValueId>;
    /// The values of these nodes that the graph gives, or that a node reads which is not inside.
    fn stored(&self, nodes: &[NodeId], inside: impl Fn(NodeId) -> bool) -> Vec<ValueId>;
    /// The operation that alone reads a node's value, once; `None` also if the graph gives it.
    fn only_reader(&self, id: NodeId) -> Option<NodeId>;
    /// These nodes and all that they wait for.
    fn needed(&self, nodes: impl IntoIterator<Item = NodeId>) -> BTreeSet<NodeId>;
    /// What a value is made of through operations that pass: the first input of each.
    fn through(&self, value: ValueId, passes: impl Fn(&Op) -> bool) -> ValueId;
}

impl GraphExt for Graph {
    fn operation(&self, value: ValueId) -> (&Op, &[Option<ValueId>]) {
        let node = self.node(value.node);
        (node.op(), node.inputs())
    }

    fn gives(&self, id: NodeId) -> bool {
        self.outputs().iter().any(|(_, value)| value.node == id)
    }

    fn matmuls(&self) -> Vec<NodeId> {
        let matmuls = self.nodes().filter(|(_, node)| *node.op() == Op::MatMul);
        matmuls.map(|(id, _)| id).collect()
    }

    fn only_operation(&self) -> Option<&Node> {
        let mut operations = self.nodes().map(|(_, node)| node).filter(|node| node.is_operation());
        operations.next().filter(|_| operations.next().is_none())
    }

    fn place_of_input(&self, value: ValueId) -> Option<usize> {
        self.inputs().iter().position(|id| id.value() == value)
    }

    fn range_of(&self, value: ValueId) -> Option<(ValueId, &SliceAxis)> {
        let (Op::Slice(axes), &[Some(of)]) = self.operation(value) else { return None };
        match &axes[..] {
            [range @ SliceAxis { step: 1, .. }] => Some((of, range)),
            _ => None,
        }
    }

    fn number(&self, value: ValueId) -> Option<f64> {
        self.constant(value).filter(|tensor| tensor.len() == 1).and_then(splat)
    }

    fn given(&self) -> Vec<ValueId> {
        self.outputs().iter().map(|(_, value)| *value).collect()
    }

    fn stored(&self, nodes: &[NodeId], inside: impl Fn(NodeId) -> bool) -> Vec<ValueId> {
        let mut stored = Vec::new();
        for &id in nodes {
            let uses = self.uses(id);
            for output in 0..self.node(id).outputs().len() as u32 {
                let value = ValueId { node: id, output };
                let mut readers = uses.iter().filter(|(_, edge)| edge.output == output);
                let given = self.outputs().iter().any(|(_, given)| *given == value);
                if given || readers.any(|(reader, _)| !inside(*reader)) {
                    stored.push(value);
                }
            }
        }
        stored
    }

    fn only_reader(&self, id: NodeId) -> Option<NodeId> {
        match self.uses(id)[..] {
            [(reader, _)] if !self.gives(id) => Some(reader),
            _ => None,
        }
    }

    fn needed(&self, nodes: impl IntoIterator<Item = NodeId>) -> BTreeSet<NodeId> {
        let mut needed = BTreeSet::new();
        let mut pending: Vec<NodeId> = nodes.into_iter().collect();
        while let Some(id) = pending.pop() {
            if needed.insert(id) {
                pending.extend(self.node(id).inputs().iter().flatten().map(|value| value.node));
            }
        }
        needed
    }

    fn through(&self, mut value: ValueId, passes: impl Fn(&Op) -> bool) -> ValueId {
        while let (op, &[Some(of), ..]) = self.operation(value)
            && passes(op)
        {
            value = of;
        }
        value
    }
}
