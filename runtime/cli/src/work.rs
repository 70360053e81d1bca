//! How much work a step is: bytes moved and floating-point operations.

use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, Node, ValueId};
use graphene_frontend::op::{Binary, Op, RnnCell};
use graphene_fusion::groups::Family;
use graphene_fusion::program::{Program, Step};
use std::collections::BTreeSet;

/// The work of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Work {
    /// Bytes of its operands, each counted once.
    pub(crate) bytes: u64,
    /// Floating-point operations, a multiply-add being two.
    pub(crate) flops: Flops,
}

/// Floating-point operations, a multiply-add being two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flops {
    /// Those of matmuls of f16.
    pub(crate) f16: u64,
    /// Those of matmuls of bf16.
    pub(crate) bf16: u64,
    /// Those of matmuls of bytes that are made integers first, as quantised models have them.
    pub(crate) bytes: u64,
    /// Those of matmuls of single precision that may be rounded.
    pub(crate) single: u64,
    /// All others.
    pub(crate) other: u64,
}

impl Work {
    /// Floating-point operations, a multiply-add being two.
    pub(crate) fn flops(self) -> u64 {
        let Flops { f16, bf16, bytes, single, other } = self.flops;
        [bf16, bytes, single, other].into_iter().fold(f16, u64::saturating_add)
    }
}

/// The work of a step under these sizes; sizes that do not resolve count as nothing.
pub(crate) fn of_step(program: &Program, step: &Step, bindings: &Bindings) -> Work {
    let mut seen = BTreeSet::new();
    let mut bytes = 0_u64;
    let outputs = step.outputs.iter().flat_map(|output| &output.view.modes);
    let written = outputs.map(|mode| size(mode.size.eval(bindings).ok())).product::<u64>();
    for operand in step.inputs.iter().chain(&step.outputs) {
        // A broadcast view reads each of its elements once; a view of a part reads that part.
        let modes = operand.view.modes.iter().filter(|mode| mode.stride.known() != Some(0));
        let viewed = modes.map(|mode| size(mode.size.eval(bindings).ok())).product::<u64>();
        let buffer = program.buffer(operand.buffer);
        let whole = size(buffer.elements.eval(bindings).ok());
        // Of a table, no more is read than is written.
        let most = if step.family == Family::Gather { written } else { whole };
        let elements = viewed.min(whole).min(most);
        if seen.insert((operand.buffer, operand.view.to_string())) {
            bytes = bytes.saturating_add(elements.saturating_mul(buffer.dtype.size() as u64));
        }
    }
    Work { bytes, flops: of_graph(&step.body, bindings) }
}

fn of_graph(graph: &Graph, bindings: &Bindings) -> Flops {
    let mut all = Flops::default();
    for (_, node) in graph.nodes() {
        let kind = match matmul_of(graph, node) {
            Some(DType::F16) => &mut all.f16,
            Some(DType::BF16) => &mut all.bf16,
            Some(DType::I32) if is_of_bytes(graph, node) => &mut all.bytes,
            Some(DType::F32) if may_round(node.op()) => &mut all.single,
            _ => &mut all.other,
        };
        *kind = kind.saturating_add(of_node(graph, node, bindings));
    }
    all
}

/// Whether what is multiplied first are bytes, less a zero point or not.
fn is_of_bytes(graph: &Graph, node: &Node) -> bool {
    let made = |value: ValueId, of: &dyn Fn(&Op) -> bool| {
        let (op, inputs) = graph.operation(value);
        inputs.first().copied().flatten().filter(|_| of(op))
    };
    let Some(left) = node.input(0) else { return false };
    let wide = made(left, &|op| *op == Op::Binary(Binary::Sub)).unwrap_or(left);
    made(wide, &|op| matches!(op, Op::Cast { .. }))
        .is_some_and(|bytes| matches!(graph.ty(bytes).dtype, DType::U8 | DType::I8))
}

/// Whether kernels and libraries round its matmuls of single precision to TF32, where they may.
fn may_round(op: &Op) -> bool {
    matches!(op, Op::MatMul | Op::Conv(_) | Op::Attention(_))
}

/// The elements whose matmuls are most of an operation's work, if matmuls are.
fn matmul_of(graph: &Graph, node: &Node) -> Option<DType> {
    let read = || node.inputs().first().copied().flatten().map(|value| graph.ty(value).dtype);
    match node.op() {
        Op::MatMul | Op::WideMatMul | Op::Attention(_) | Op::Rnn(_) => read(),
        Op::Conv(_) | Op::WideConv(_) | Op::ConvTranspose { .. } => read(),
        _ => None,
    }
}

fn of_node(graph: &Graph, node: &Node, bindings: &Bindings) -> u64 {
    let input = |i: usize| -> Vec<u64> {
        let value = node.inputs().get(i).copied().flatten();
        let shape = value.and_then(|value| graph.ty(value).bound_shape(bindings).ok());
        shape.unwrap_or_default().into_iter().map(|size| size as u64).collect()
    };
    let count = |shape: &[u64]| shape.iter().fold(1_u64, |all, &n| all.saturating_mul(n));
    let output = node.outputs().first().and_then(|ty| ty.bound_shape(bindings).ok());
    let output: u64 = output.map_or(0, |shape| shape.iter().map(|&size| size as u64).product());
    let last = |shape: Vec<u64>| shape.last().copied().unwrap_or(1);
    match node.op() {
        Op::Unary(_) | Op::Binary(_) if node.outputs()[0].dtype.is_float() => output,
        Op::MatMul | Op::WideMatMul => output.saturating_mul(2 * last(input(0))),
        // Matmuls with every element of a filter: its size over the output's channels.
        Op::Conv(_) | Op::WideConv(_) => {
            let filter = input(1);
            output.saturating_mul(2 * count(&filter) / filter.first().copied().unwrap_or(1).max(1))
        }
        Op::ConvTranspose { .. } => {
            let filter = input(1);
            let channels = filter.first().copied().unwrap_or(1).max(1);
            count(&input(0)).saturating_mul(2 * count(&filter) / channels)
        }
        Op::Pool(attrs) => output.saturating_mul(attrs.kernel.iter().product::<usize>() as u64),
        // A maximum, a difference, an exponential, a sum and a quotient.
        Op::Softmax { .. } => output.saturating_mul(5),
        Op::LayerNorm { .. } | Op::RmsNorm { .. } => output.saturating_mul(8),
        Op::Reduce { .. } | Op::ArgReduce { .. } | Op::Cumulative { .. } => count(&input(0)),
        Op::Attention(_) => {
            let (query, keys, values) = (input(0), input(1), input(2));
            let steps = keys.get(2).copied().unwrap_or(0);
            let scores = count(&query) / last(query.clone()).max(1) * steps;
            scores.saturating_mul(2 * (last(query) + last(values)) + 5)
        }
        Op::Rnn(attrs) => {
            let gates = match attrs.cell {
                RnnCell::Lstm { .. } => 4,
                RnnCell::Gru { .. } => 3,
                RnnCell::Plain => 1,
            };
            let (x, recurrent) = (input(0), input(2));
            let (directions, hidden) = (recurrent.first().copied().unwrap_or(0), last(recurrent));
            let rows = count(&x) / last(x.clone()).max(1);
            rows.saturating_mul(2 * gates * directions * hidden * (last(x) + hidden))
        }
        // What moves or chooses elements computes nothing, and what a branch or a loop does depends on values.
        _ => 0,
    }
}

fn size(size: Option<i64>) -> u64 {
    size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::of_graph;
    use graphene_frontend::dim::{Bindings, Symbol};
    use graphene_frontend::graph::Graph;
    use graphene_frontend::op::{Binary, Op};

    #[test]
    fn matmuls_count_two_a_multiply_add() {
        let mut graph = Graph::new();
        let a = graph.add_input("a", "f32[n, 3, 5]".parse().unwrap()).unwrap();
        let b = graph.add_input("b", "f32[5, 7]".parse().unwrap()).unwrap();
        let matmul = graph.add("matmul", Op::MatMul, &[Some(a), Some(b)]).unwrap().value();
        graph.add("sum", Op::Binary(Binary::Add), &[Some(matmul), Some(matmul)]).unwrap();
        let mut bindings = Bindings::new();
        bindings.bind(Symbol::new("n"), 2).unwrap();
        let flops = of_graph(&graph, &bindings);
        assert_eq!((flops.single, flops.other), (2 * 2 * 3 * 5 * 7, 2 * 3 * 7));
    }
}
