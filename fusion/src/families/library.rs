//! What NVIDIA's libraries compute in one call, where every operation is a launch on a GPU.
//!
//! cuBLASLt computes `D = activation(scale · A·B + C + bias)`: its epilogues take a bias, a residual (as C) and an
//! activation along, and [`Granularity::PerOp`](crate::Granularity::PerOp) groups a matmul with them. Its GELU is the
//! one by a hyperbolic tangent: a GELU by the error function is a kernel of its own. cuDNN computes convolutions
//! ([`conv()`]), which are grouped with a residual and ReLU, attention ([`sdpa`]), softmax and recurrent layers. What
//! neither has is a kernel of one operation, and the operations are those that rewriting recognises, LayerNorm and GELU
//! among them, as frameworks have them. Of half precision and TF32 networks of convolutions have their channels innermost
//! in memory, as fused ones do.
//!
//! Operands of matmuls may be transposed, have gaps between rows, and come in batches at even distances; those of
//! attention lie by strides, and pointwise kernels read any view. So changes of view that these alone read are views, as
//! in any framework that calls the libraries, and attention writes heads as what reads them wants them.

mod attention;
mod conv;
mod epilogue;
mod matmul;

pub use attention::{AttentionBy, Heads, Sdpa, sdpa};
pub use conv::{Conv, Window, conv};
pub use epilogue::Activation;
pub use matmul::{MatMul, Matrix, matmul};

pub(crate) use attention::{attention_without_kernel, heads_order, spelled, without_attention};
pub(crate) use conv::is_conv_call;
pub(crate) use matmul::{are_matmul_call, is_matmul_call};

use crate::base::elements::is_real;
use crate::base::groups::Family;
use crate::base::view::View;
use crate::families::layout::{is_view, view_of};
use attention::is_attended;
use epilogue::{CONV, Chain, MATMUL, Row, chain};
use graphene_frontend::{Graph, Node, NodeId, Op};
use matmul::lies;
use std::fmt;

/// What is there, with text before and after it; else nothing.
fn optional_text<T: fmt::Display>(before: &str, what: Option<T>, after: &str) -> String {
    what.map_or(String::new(), |what| format!("{before}{what}{after}"))
}

/// What calls of the library do to a graph where every operation is a launch.
pub(crate) struct Calls {
    /// For each node whether it is a change of view that stays one, because what reads it takes it as it lies.
    pub(crate) views: Vec<bool>,
    /// Matmuls and convolutions with what the library computes in the same call, each with several operations.
    pub(crate) groups: Vec<(Family, Vec<NodeId>)>,
}

/// Finds the calls; what is made of constants is none.
pub(crate) fn calls(graph: &Graph, constant: &[bool]) -> Calls {
    let mut taken = vec![false; graph.len()];
    let mut groups = Vec::new();
    for (id, node) in graph.nodes() {
        let Some((family, rows)) = epilogues(node).filter(|_| !constant[id.index()]) else {
            continue;
        };
        let Chain { nodes, .. } = chain(graph, id, rows, &|id| taken[id.index()]);
        if nodes.len() > 1 {
            nodes.iter().for_each(|id| taken[id.index()] = true);
            groups.push((family, nodes));
        }
    }
    Calls { views: views(graph, constant, &taken), groups }
}

/// What the library fuses as the epilogue of this operation, and the family of its group.
fn epilogues(node: &Node) -> Option<(Family, &'static [Row])> {
    let real = is_real(node.outputs().first()?.dtype);
    match node.op() {
        Op::MatMul if real => Some((Family::MatMul, MATMUL)),
        Op::Conv(_) if real => Some((Family::Convolution, rows_of_conv(node))),
        _ => None,
    }
}

/// cuDNN has engines that add a residual or clip only for convolutions with a bias.
fn rows_of_conv(conv: &Node) -> &'static [Row] {
    if conv.input(2).is_some() { CONV } else { &[] }
}

/// Which transposes, slices and expansions stay views.
fn views(graph: &Graph, constant: &[bool], taken: &[bool]) -> Vec<bool> {
    let mut lies: Vec<Option<View>> = vec![None; graph.len()];
    let mut stays = vec![false; graph.len()];
    for (id, node) in graph.nodes().filter(|(id, _)| !constant[id.index()]) {
        if matches!(node.op(), Op::Attention(_)) {
            let order = heads_order(graph, id.value());
            lies[id.index()] = order.map(|order| View::ordered(&node.outputs()[0].shape, &order));
        }
        let Some(input) = node.input(0).filter(|_| is_view(node.op())) else { continue };
        let of = lies[input.node.index()].clone().filter(|_| input.output == 0);
        let of = of.unwrap_or_else(|| View::contiguous(&graph.ty(input).shape));
        let free = matches!(node.op(), Op::Reshape(_));
        let view = view_of(node.op(), &of);
        let view = view.filter(|view| free || is_read_as(graph, taken, id, view));
        stays[id.index()] = !free && view.is_some();
        lies[id.index()] = view;
    }
    stays
}

/// Whether all that reads the node's value takes it as this view: matmuls, attention and pointwise operations, what
/// moves its elements anyway, and everything if it lies as if nothing had changed its view. `taken`: the nodes in a call
/// with a matmul or a convolution.
fn is_read_as(graph: &Graph, taken: &[bool], id: NodeId, view: &View) -> bool {
    let uses = graph.uses(id);
    let reads = |reader: NodeId| match graph.node(reader).op() {
        Op::MatMul => is_operand(graph, reader, view),
        Op::Attention(_) => is_attended(graph, reader, id.value(), view),
        op @ Op::Reshape(_) => {
            view_of(op, view).is_some_and(|view| is_read_as(graph, taken, reader, &view))
        }
        op @ (Op::Transpose(_) | Op::Slice(_) | Op::Expand(_)) => view_of(op, view).is_some(),
        op => Family::of(op) == Some(Family::Pointwise) && !taken[reader.index()],
    };
    view.is_contiguous()
        || !graph.gives(id) && !uses.is_empty() && uses.iter().all(|use_| reads(use_.0))
}

/// The order of dims in memory in which a copy that only matmuls read is written, so that it moves runs of elements:
/// the library reads either of the last two dims side by side.
pub(crate) fn copied_order(graph: &Graph, id: NodeId, view: &View) -> Option<Vec<usize>> {
    let uses = graph.uses(id);
    let matmul = |id: NodeId| *graph.node(id).op() == Op::MatMul;
    let [.., row, column] = &view.modes[..] else { return None };
    let turned = row.stride == 1 && column.stride != 1 && is_real(graph.ty(id.value()).dtype);
    let alone =
        !graph.gives(id) && !uses.is_empty() && uses.iter().all(|&(reader, _)| matmul(reader));
    let mut order: Vec<usize> = (0..view.modes.len()).collect();
    order.swap(view.modes.len() - 2, view.modes.len() - 1);
    (turned && alone).then_some(order)
}

/// Whether the library reads an operand of this matmul so.
fn is_operand(graph: &Graph, matmul: NodeId, view: &View) -> bool {
    let ty = graph.ty(matmul.value());
    let (Some(outer), Some(own)) = (ty.rank().checked_sub(2), view.modes.len().checked_sub(2))
    else {
        return false;
    };
    let shape = [&ty.shape[..outer], &view.shape()[own..]].concat();
    let view = view.expand(&shape);
    is_real(ty.dtype) && view.is_some_and(|view| lies(&view, outer).is_some())
}
