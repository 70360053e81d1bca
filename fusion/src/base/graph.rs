//! What every stage asks of graphs.

use graphene_frontend::graph::{Graph, Node, NodeId, ValueId};
use graphene_frontend::op::Op;

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
}
