//! What passes ask of a graph.

use super::{Graph, Node, NodeId, ValueId};
use crate::op::{Op, SliceAxis};
use std::collections::BTreeSet;

impl Node {
    /// What it reads in this place, if anything.
    pub fn input(&self, place: usize) -> Option<ValueId> {
        self.inputs.get(place).copied().flatten()
    }

    /// Whether it computes something: it is neither an input nor a constant.
    pub fn is_operation(&self) -> bool {
        !matches!(self.op, Op::Input | Op::Constant(_))
    }
}

impl Graph {
    /// The operation that makes a value, and what it reads.
    pub fn operation(&self, value: ValueId) -> (&Op, &[Option<ValueId>]) {
        let node = self.node(value.node);
        (node.op(), node.inputs())
    }

    /// What a value's operation reads, if it is this one and reads so many values.
    pub fn operands<const N: usize>(&self, value: ValueId, of: &Op) -> Option<[ValueId; N]> {
        let (op, inputs) = self.operation(value);
        let inputs = (op == of).then(|| inputs.iter().copied().collect::<Option<Vec<_>>>())??;
        inputs.try_into().ok()
    }

    /// The only operation; `None` if there are several, or none.
    pub fn only_operation(&self) -> Option<&Node> {
        let mut operations = self.nodes().map(|(_, node)| node).filter(|node| node.is_operation());
        operations.next().filter(|_| operations.next().is_none())
    }

    /// The matmuls, in order.
    pub fn matmuls(&self) -> Vec<NodeId> {
        let matmuls = self.nodes().filter(|(_, node)| node.op().is_matmul());
        matmuls.map(|(id, _)| id).collect()
    }

    /// The values of the outputs, in order.
    pub fn given(&self) -> Vec<ValueId> {
        self.outputs.iter().map(|(_, value)| *value).collect()
    }

    /// Whether an output of the graph is made by this node.
    pub fn gives(&self, id: NodeId) -> bool {
        self.outputs.iter().any(|(_, value)| value.node == id)
    }

    /// The number of the input that this value is.
    pub fn place_of_input(&self, value: ValueId) -> Option<usize> {
        self.inputs.iter().position(|id| id.value() == value)
    }

    /// What a value is a part of, elements one after the other along one axis alone.
    pub fn range_of(&self, value: ValueId) -> Option<(ValueId, &SliceAxis)> {
        let (Op::Slice(axes), &[Some(of)]) = self.operation(value) else { return None };
        match &axes[..] {
            [range @ SliceAxis { step: 1, .. }] => Some((of, range)),
            _ => None,
        }
    }

    /// What a value is made of through operations that pass: the first input of each.
    pub fn through(&self, mut value: ValueId, passes: impl Fn(&Op) -> bool) -> ValueId {
        while let (op, &[Some(of), ..]) = self.operation(value)
            && passes(op)
        {
            value = of;
        }
        value
    }

    /// The operation that alone reads a node's value, once; `None` also if the graph gives it.
    pub fn only_reader(&self, id: NodeId) -> Option<NodeId> {
        match self.uses(id)[..] {
            [(reader, _)] if !self.gives(id) => Some(reader),
            _ => None,
        }
    }

    /// The values of these nodes that the graph gives, or that a node reads which is not inside.
    pub fn stored(&self, nodes: &[NodeId], inside: impl Fn(NodeId) -> bool) -> Vec<ValueId> {
        let mut stored = Vec::new();
        for &id in nodes {
            let uses = self.uses(id);
            for output in 0..self.node(id).outputs().len() as u32 {
                let value = ValueId { node: id, output };
                let mut readers = uses.iter().filter(|(_, edge)| edge.output == output);
                let given = self.outputs.iter().any(|(_, given)| *given == value);
                if given || readers.any(|(reader, _)| !inside(*reader)) {
                    stored.push(value);
                }
            }
        }
        stored
    }

    /// These nodes and all that they wait for.
    pub fn needed(&self, nodes: impl IntoIterator<Item = NodeId>) -> BTreeSet<NodeId> {
        let mut needed = BTreeSet::new();
        let mut pending: Vec<NodeId> = nodes.into_iter().collect();
        while let Some(id) = pending.pop() {
            if needed.insert(id) {
                pending.extend(self.node(id).inputs().iter().flatten().map(|value| value.node));
            }
        }
        needed
    }
}
