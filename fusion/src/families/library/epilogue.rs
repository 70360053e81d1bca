//! What a call computes after its matmul or convolution: `MATMUL` and `CONV` are the tables of which operation is which
//! part of cuBLASLt's epilogues, and of cuDNN's graph.

use crate::base::elements::number_of;
use crate::families::layout::is_view;
use graphene_frontend::{Binary, Graph, NodeId, Op, Unary, ValueId};

/// A function that the library applies to sums.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activation {
    /// max(x, 0)
    Relu,
    /// GELU by a hyperbolic tangent: the library has no other.
    GeluTanh,
}

/// A row: the library's word, when it applies it, and what tells a chain that the operation on a value is it.
pub(super) struct Row {
    name: &'static str,
    stage: Stage,
    part: fn(&Graph, NodeId, ValueId, &mut Chain) -> Option<()>,
}

/// The order in which the library does things. It adds in any order, and does everything else once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Sum,
    Scale,
    Add,
    Activation,
}

/// What cuBLASLt's own epilogues do.
pub(super) const MATMUL: &[Row] = &[
    Row { name: "alpha", stage: Stage::Scale, part: scale },
    Row { name: "EPILOGUE_BIAS", stage: Stage::Add, part: bias },
    Row { name: "C, beta = 1", stage: Stage::Add, part: addend },
    Row { name: "EPILOGUE_RELU", stage: Stage::Activation, part: relu },
    Row { name: "EPILOGUE_GELU", stage: Stage::Activation, part: gelu },
];

/// What cuDNN knows behind a convolution; a bias is the convolution's own.
pub(super) const CONV: &[Row] = &[
    Row { name: "POINTWISE_ADD", stage: Stage::Add, part: residual },
    Row { name: "POINTWISE_RELU_FWD", stage: Stage::Activation, part: relu },
];

fn scale(graph: &Graph, id: NodeId, value: ValueId, chain: &mut Chain) -> Option<()> {
    let inputs = graph.node(id).inputs();
    let (first, second) = (inputs[0]?, *inputs.get(1)?.as_ref()?);
    let factor = match graph.node(id).op() {
        Op::Binary(Binary::Mul) if first == value => number_of(graph, second)? as f32,
        Op::Binary(Binary::Mul) => number_of(graph, first)? as f32,
        Op::Binary(Binary::Div) if first == value => (number_of(graph, second)? as f32).recip(),
        _ => return None,
    };
    factor.is_finite().then(|| chain.scale = factor)
}

fn bias(graph: &Graph, id: NodeId, value: ValueId, chain: &mut Chain) -> Option<()> {
    let other = other_addend(graph, id, value)?;
    let (shape, columns) = (&graph.ty(other).shape, graph.ty(value).shape.last()?);
    let [outer @ .., last] = &shape[..] else { return None };
    let row = last == columns && outer.iter().all(|size| *size == 1);
    // One number stands in the body, not in memory.
    (row && graph.ty(other).elements() != 1).then(|| chain.bias = Some(other))
}

fn addend(graph: &Graph, id: NodeId, value: ValueId, chain: &mut Chain) -> Option<()> {
    let other = other_addend(graph, id, value)?;
    let same = graph.ty(other).shape == graph.ty(value).shape;
    (same && graph.ty(other).elements() != 1).then(|| chain.addend = Some(other))
}

/// An addend that lies as the result does.
fn residual(graph: &Graph, id: NodeId, value: ValueId, chain: &mut Chain) -> Option<()> {
    let other = other_addend(graph, id, value)?;
    let lies = other != value && !is_view(graph.node(other.node).op());
    if lies { addend(graph, id, value, chain) } else { None }
}

fn relu(graph: &Graph, id: NodeId, _: ValueId, chain: &mut Chain) -> Option<()> {
    let is = *graph.node(id).op() == Op::Unary(Unary::Relu);
    is.then(|| chain.activation = Some(Activation::Relu))
}

fn gelu(graph: &Graph, id: NodeId, _: ValueId, chain: &mut Chain) -> Option<()> {
    let is = *graph.node(id).op() == Op::Unary(Unary::GeluTanh);
    is.then(|| chain.activation = Some(Activation::GeluTanh))
}

fn other_addend(graph: &Graph, id: NodeId, value: ValueId) -> Option<ValueId> {
    let node = graph.node(id);
    let [Some(first), Some(second)] = node.inputs()[..] else { return None };
    let sum = *node.op() == Op::Binary(Binary::Add);
    sum.then_some(if first == value { second } else { first })
}

/// A matmul or a convolution, and the operations after it that the same call computes.
pub(super) struct Chain {
    pub(super) nodes: Vec<NodeId>,
    pub(super) scale: f32,
    pub(super) bias: Option<ValueId>,
    pub(super) addend: Option<ValueId>,
    pub(super) activation: Option<Activation>,
}

/// Follows an operation as long as one other alone reads what there is, and a row of the table takes that one.
pub(super) fn chain(
    graph: &Graph,
    first: NodeId,
    rows: &[Row],
    taken: &dyn Fn(NodeId) -> bool,
) -> Chain {
    let mut chain =
        Chain { nodes: vec![first], scale: 1.0, bias: None, addend: None, activation: None };
    let (mut value, mut stage) = (first.value(), Stage::Sum);
    let mut used: Vec<&str> = Vec::new();
    while let Some(reader) = graph.only_reader(value.node) {
        if taken(reader) || graph.ty(reader.value()) != graph.ty(value) {
            break;
        }
        let fits = |row: &&Row| {
            let later = row.stage > stage || (row.stage == Stage::Add && stage == Stage::Add);
            later && !used.contains(&row.name)
        };
        let mut later = rows.iter().filter(fits);
        let Some(row) = later.find(|row| (row.part)(graph, reader, value, &mut chain).is_some())
        else {
            break;
        };
        used.push(row.name);
        chain.nodes.push(reader);
        (value, stage) = (reader.value(), row.stage);
    }
    chain
}

/// The chain of a body that computes nothing else, and whose output is the chain's result.
pub(super) fn whole_chain(body: &Graph, first: NodeId, rows: &[Row]) -> Option<Chain> {
    let chain = chain(body, first, rows, &|_| false);
    let operations = body.nodes().filter(|(_, node)| node.is_operation()).count();
    let [(_, given)] = body.outputs() else { return None };
    let last = chain.nodes.last().map(|id| id.value());
    (operations == chain.nodes.len() && last == Some(*given)).then_some(chain)
}
