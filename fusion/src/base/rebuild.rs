//! A graph built anew, with other operations in place of some.

use crate::base::error::FusionError;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, Node, NodeId, ValueId};
use graphene_frontend::op::{Binary, Op};
use graphene_frontend::tensor::Tensor;
use std::collections::HashMap;

/// What is rebuilt. The error is [`FusionError::Rebuild`]: an operation refuses inputs that it accepted before, a defect of
/// inference.
pub(crate) type Rebuilt<T> = Result<T, FusionError>;

/// Where operations are added: in place of a node, whose name they take.
pub(crate) struct InPlace<'a> {
    pub(crate) graph: &'a mut Graph,
    pub(crate) node: &'a Node,
}

impl InPlace<'_> {
    /// Adds an operation; its first output.
    pub(crate) fn add(&mut self, op: Op, inputs: &[ValueId]) -> Rebuilt<ValueId> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        self.add_optional(op, &inputs)
    }

    /// Adds an operation some of whose inputs are left out; its first output.
    pub(crate) fn add_optional(&mut self, op: Op, inputs: &[Option<ValueId>]) -> Rebuilt<ValueId> {
        let made = self.graph.add(self.node.name(), op, inputs).map(NodeId::value);
        made.map_err(|error| FusionError::rebuild(self.node, error))
    }

    pub(crate) fn binary(&mut self, op: Binary, a: ValueId, b: ValueId) -> Rebuilt<ValueId> {
        self.add(Op::Binary(op), &[a, b])
    }

    pub(crate) fn cast(&mut self, to: DType, x: ValueId) -> Rebuilt<ValueId> {
        self.add(Op::Cast { to, saturate: true }, &[x])
    }

    pub(crate) fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.graph.add_constant(self.node.name(), tensor)
    }
}

/// The graph with some operations replaced. `replace` adds to the new graph what stands for a node, whose inputs there it
/// is given, and returns its first output; a node of which it returns none stays.
pub(crate) fn rebuilt(
    graph: &Graph,
    mut replace: impl FnMut(InPlace<'_>, NodeId, &[Option<ValueId>]) -> Rebuilt<Option<ValueId>>,
) -> Rebuilt<Graph> {
    let mut result = Graph::new();
    let mut renamed: HashMap<ValueId, ValueId> = HashMap::new();
    for (id, node) in graph.nodes() {
        let failed = |error| FusionError::rebuild(node, error);
        let inputs: Vec<_> = node.inputs().iter().map(|v| v.map(|v| renamed[&v])).collect();
        let made = match node.op() {
            Op::Input => {
                result.add_input(node.name(), node.outputs()[0].clone()).map_err(failed)?.node
            }
            Op::Constant(tensor) => result.add_constant(node.name(), tensor.clone()).node,
            op => match replace(InPlace { graph: &mut result, node }, id, &inputs)? {
                Some(made) => made.node,
                None => result.add(node.name(), op.clone(), &inputs).map_err(failed)?,
            },
        };
        renamed.extend(outputs(id, node, made));
    }
    for (name, value) in graph.outputs() {
        result.add_output(name, renamed[value]);
    }
    Ok(result)
}

/// The outputs of a node, each with that of the node that stands for it elsewhere.
pub(crate) fn outputs(
    id: NodeId,
    node: &Node,
    made: NodeId,
) -> impl Iterator<Item = (ValueId, ValueId)> + use<> {
    let of = |node: NodeId, output: u32| ValueId { node, output };
    (0..node.outputs().len() as u32).map(move |output| (of(id, output), of(made, output)))
}
