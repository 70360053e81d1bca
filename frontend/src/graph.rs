//! The tensor graph: operations as nodes of a petgraph DAG, uses of values as its edges.
//!
//! A graph only grows: [`Graph::add`] takes values that exist and infers the types of those that it makes. So
//! nodes stand in topological order, no cycle can be written down, and every value has a type. A pass reads
//! one graph and builds the next.

use crate::infer::{InferError, infer};
use crate::memory::LARGE;
use crate::op::Op;
use crate::tensor::Tensor;
use crate::types::TensorType;
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;
use std::fmt;

mod queries;
mod substitute;

/// A node of a [`Graph`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(u32);

/// An output of a node. Prints as `%7`, or `%7.1` for outputs after the first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ValueId {
    /// The node that makes it.
    pub node: NodeId,
    /// Which of the node's outputs.
    pub output: u32,
}

/// An operation with its inputs and the types of its outputs.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    name: String,
    op: Op,
    inputs: Vec<Option<ValueId>>,
    outputs: Vec<TensorType>,
}

/// A use of a value: output `output` of the source node is input `input` of the target node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// Output of the source.
    pub output: u32,
    /// Input of the target.
    pub input: u32,
}

/// Operations in topological order, with named inputs and outputs.
#[derive(Clone, Default, Debug)]
pub struct Graph {
    dag: DiGraph<Node, Use, u32>,
    inputs: Vec<NodeId>,
    outputs: Vec<(String, ValueId)>,
}

impl NodeId {
    /// The position of the node in topological order.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The node at a position in topological order.
    pub fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("petgraph holds at most 2³² nodes"))
    }

    /// The node's first output.
    pub fn value(self) -> ValueId {
        ValueId { node: self, output: 0 }
    }
}

impl Node {
    /// The name that errors and reports give, from the model where it has one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The operation.
    pub fn op(&self) -> &Op {
        &self.op
    }

    /// The inputs in order; `None` is an optional input left out.
    pub fn inputs(&self) -> &[Option<ValueId>] {
        &self.inputs
    }

    /// Types of the outputs.
    pub fn outputs(&self) -> &[TensorType] {
        &self.outputs
    }
}

impl Graph {
    /// A graph without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an input of this name and type.
    ///
    /// # Errors
    /// [`InferError`] if the type is of unreasonable size.
    pub fn add_input(&mut self, name: &str, ty: TensorType) -> Result<ValueId, InferError> {
        ty.check()?;
        let node =
            Node { name: name.to_owned(), op: Op::Input, inputs: Vec::new(), outputs: vec![ty] };
        let id = NodeId(self.dag.add_node(node).index() as u32);
        self.inputs.push(id);
        Ok(id.value())
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, name: &str, tensor: Tensor) -> ValueId {
        let ty = TensorType::of(&tensor);
        let node = Node {
            name: name.to_owned(),
            op: Op::Constant(tensor),
            inputs: Vec::new(),
            outputs: vec![ty],
        };
        NodeId(self.dag.add_node(node).index() as u32).value()
    }

    /// Adds an operation and infers the types of its outputs.
    ///
    /// # Errors
    /// [`InferError`] if the inputs do not fit the operation.
    ///
    /// # Panics
    /// If an input is no value of this graph: that is a defect of the caller, not of a model.
    pub fn add(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[Option<ValueId>],
    ) -> Result<NodeId, InferError> {
        let types: Vec<_> = inputs.iter().map(|input| input.map(|v| self.ty(v))).collect();
        let outputs = infer(&op, &types)?;
        let node = Node { name: name.to_owned(), op, inputs: inputs.to_vec(), outputs };
        let index = self.dag.add_node(node);
        for (input, value) in inputs.iter().enumerate() {
            if let Some(value) = value {
                let weight = Use { output: value.output, input: input as u32 };
                self.dag.add_edge(NodeIndex::new(value.node.index()), index, weight);
            }
        }
        Ok(NodeId(index.index() as u32))
    }

    /// Names a value as the next output.
    ///
    /// # Panics
    /// If it is no value of this graph: that is a defect of the caller, not of a model.
    pub fn add_output(&mut self, name: &str, value: ValueId) {
        let _ = self.ty(value);
        self.outputs.push((name.to_owned(), value));
    }

    /// The names and values that were outputs until now; there are none then.
    pub fn take_outputs(&mut self) -> Vec<(String, ValueId)> {
        std::mem::take(&mut self.outputs)
    }

    /// The node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.dag[NodeIndex::new(id.index())]
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.node(value.node).outputs[value.output as usize]
    }

    /// The constant behind a value, if it is one.
    pub fn constant(&self, value: ValueId) -> Option<&Tensor> {
        match &self.node(value.node).op {
            Op::Constant(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Gives back the memory of weights, constants of a megabyte or more: they are zeros from now on, which take no
    /// memory until they are read. For a graph that has been compiled, and whose shapes and names are all that is still asked
    /// for.
    pub fn release_weights(&mut self) {
        for node in self.dag.node_weights_mut() {
            let Op::Constant(tensor) = &mut node.op else { continue };
            if tensor.bytes().len() >= LARGE {
                let zeros = Tensor::zeros(tensor.dtype(), tensor.shape().to_vec());
                *tensor = zeros.expect("there was a tensor of this size");
            }
        }
    }

    /// All nodes, in topological order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> {
        self.dag.node_indices().map(|index| (NodeId(index.index() as u32), &self.dag[index]))
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.dag.node_count()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The input nodes, in order.
    pub fn inputs(&self) -> &[NodeId] {
        &self.inputs
    }

    /// Names and values of the outputs, in order.
    pub fn outputs(&self) -> &[(String, ValueId)] {
        &self.outputs
    }

    /// The uses of a node's outputs: the using node, and which output is which input of it; ascending.
    pub fn uses(&self, id: NodeId) -> Vec<(NodeId, Use)> {
        let edges = self.dag.edges_directed(NodeIndex::new(id.index()), Direction::Outgoing);
        let mut uses: Vec<_> =
            edges.map(|edge| (NodeId(edge.target().index() as u32), *edge.weight())).collect();
        uses.sort_by_key(|(node, edge)| (*node, edge.input));
        uses
    }

    /// The DAG beneath, for petgraph's algorithms.
    pub fn dag(&self) -> &DiGraph<Node, Use, u32> {
        &self.dag
    }
}

impl PartialEq for Graph {
    fn eq(&self, other: &Self) -> bool {
        // The edges follow from the nodes' inputs.
        self.inputs == other.inputs
            && self.outputs == other.outputs
            && self.dag.node_weights().eq(other.dag.node_weights())
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.output {
            0 => write!(f, "{}", self.node),
            output => write!(f, "{}.{output}", self.node),
        }
    }
}
