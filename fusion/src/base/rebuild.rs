//! A graph built anew, with other operations in place of some.

use crate::base::error::FusionError;
use graphene_frontend::{
    Binary, DType, Dim, Graph, InferError, Node, NodeId, Op, SliceAxis, Tensor, ValueId,
};
use std::collections::HashMap;

/// What is rebuilt. The error is [`FusionError::Rebuild`]: an operation refuses inputs that it accepted before, a defect of
/// inference.
pub(crate) type Rebuilt<T> = Result<T, FusionError>;

/// What stands for an operation from now on, or for a value; `None` where it stays.
pub(crate) type Replaced = Rebuilt<Option<ValueId>>;

/// Where operations are added in place of a node, under `name`: the node's own unless said otherwise.
pub(crate) struct InPlace<'a> {
    pub(crate) graph: &'a mut Graph,
    pub(crate) node: &'a Node,
    pub(crate) name: &'a str,
}

impl InPlace<'_> {
    /// Adds an operation; its first output.
    pub(crate) fn add(&mut self, op: Op, inputs: &[ValueId]) -> Rebuilt<ValueId> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        self.add_optional(op, &inputs)
    }

    /// Adds an operation some of whose inputs are left out; its first output.
    pub(crate) fn add_optional(&mut self, op: Op, inputs: &[Option<ValueId>]) -> Rebuilt<ValueId> {
        let made = self.graph.add(self.name, op, inputs).map(NodeId::value);
        made.map_err(|error| FusionError::rebuild(self.node, error))
    }

    pub(crate) fn binary(&mut self, op: Binary, a: ValueId, b: ValueId) -> Rebuilt<ValueId> {
        self.add(Op::Binary(op), &[a, b])
    }

    /// What an operation makes of a value and another one; the value itself where there is no other one.
    pub(crate) fn with(&mut self, op: Binary, x: ValueId, by: Option<ValueId>) -> Rebuilt<ValueId> {
        by.map_or(Ok(x), |by| self.binary(op, x, by))
    }

    /// The value in elements of this type: itself where it has them.
    pub(crate) fn cast(&mut self, to: DType, x: ValueId) -> Rebuilt<ValueId> {
        if self.graph.ty(x).dtype == to {
            return Ok(x);
        }
        self.add(Op::Cast { to, saturate: true }, &[x])
    }

    pub(crate) fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.graph.add_constant(self.name, tensor)
    }

    /// These places of an axis, as indices.
    pub(crate) fn places(&mut self, places: impl IntoIterator<Item = usize>) -> ValueId {
        let places: Vec<i64> = places.into_iter().map(|place| place as i64).collect();
        self.constant(Tensor::from_vec(vec![places.len()], places).expect("a vector"))
    }

    /// So many elements of a value along an axis, from one on.
    pub(crate) fn slice(
        &mut self,
        x: ValueId,
        axis: usize,
        start: Dim,
        len: Dim,
    ) -> Rebuilt<ValueId> {
        self.add(Op::Slice(vec![SliceAxis { axis, start, len, step: 1 }]), &[x])
    }
}

/// A graph that grows by nodes of another one, or by what stands for them.
#[derive(Default)]
pub(crate) struct Regrown {
    pub(crate) graph: Graph,
    /// What stands for each value.
    pub(crate) renamed: HashMap<ValueId, ValueId>,
}

impl Regrown {
    /// What stands for a node's inputs.
    pub(crate) fn inputs(&self, node: &Node) -> Vec<Option<ValueId>> {
        node.inputs().iter().map(|value| value.map(|value| self.renamed[&value])).collect()
    }

    pub(crate) fn at<'a>(&'a mut self, node: &'a Node) -> InPlace<'a> {
        InPlace { graph: &mut self.graph, node, name: node.name() }
    }

    /// Lets the outputs of a node stand for those of another.
    pub(crate) fn rename(&mut self, id: NodeId, node: &Node, made: NodeId) {
        let of = |node: NodeId, output: u32| ValueId { node, output };
        let outputs = 0..node.outputs().len() as u32;
        self.renamed.extend(outputs.map(|output| (of(id, output), of(made, output))));
    }

    /// Lets what `outer` adds stand for what a node reads of which there is nothing yet.
    pub(crate) fn read(
        &mut self,
        node: &Node,
        mut outer: impl FnMut(&mut Graph, ValueId) -> Result<ValueId, InferError>,
    ) -> Rebuilt<()> {
        for &value in node.inputs().iter().flatten() {
            if !self.renamed.contains_key(&value) {
                let made = outer(&mut self.graph, value);
                let made = made.map_err(|error| FusionError::rebuild(node, error))?;
                self.renamed.insert(value, made);
            }
        }
        Ok(())
    }

    pub(crate) fn copy(&mut self, id: NodeId, node: &Node) -> Rebuilt<NodeId> {
        self.copy_as(node.name(), id, node)
    }

    pub(crate) fn copy_as(&mut self, name: &str, id: NodeId, node: &Node) -> Rebuilt<NodeId> {
        let made = match node.op() {
            Op::Input => self.graph.add_input(name, node.outputs()[0].clone()).map(|x| x.node),
            Op::Constant(tensor) => Ok(self.graph.add_constant(name, tensor.clone()).node),
            op => self.graph.add(name, op.clone(), &self.inputs(node)),
        };
        let made = made.map_err(|error| FusionError::rebuild(node, error))?;
        self.rename(id, node, made);
        Ok(made)
    }

    /// The graph, when all nodes of the other one are there: its outputs are that one's.
    pub(crate) fn finish(mut self, of: &Graph) -> Graph {
        for (name, value) in of.outputs() {
            self.graph.add_output(name, self.renamed[value]);
        }
        self.graph
    }
}

/// The graph with some operations replaced. `replace` adds to the new graph what stands for a node, whose inputs there it
/// is given, and returns its first output; a node of which it returns none stays.
pub(crate) fn rebuilt(
    graph: &Graph,
    mut replace: impl FnMut(InPlace<'_>, NodeId, &[Option<ValueId>]) -> Replaced,
) -> Rebuilt<Graph> {
    let mut result = Regrown::default();
    for (id, node) in graph.nodes() {
        let inputs = result.inputs(node);
        let made = if node.is_operation() { replace(result.at(node), id, &inputs)? } else { None };
        match made {
            Some(made) => result.rename(id, node, made.node),
            None => drop(result.copy(id, node)?),
        }
    }
    Ok(result.finish(graph))
}
