//! Who executes a group: a template, or where none takes it the library or the reference.

use crate::base::elements::is_real;
use crate::base::groups::Executor;
use crate::base::view::View;
use crate::families::kernels::{bits, scalar};
use graphene_frontend::op::{Class, Op, PoolKind, ReduceOp};
use graphene_frontend::{DType, Graph, Node, NodeId, ValueId};
use graphene_ir::target::{Kind, Target};

/// Who executes these operations as one launch on the target, if some launch computes all of them.
pub(crate) fn executor(target: &Target, graph: &Graph, nodes: &[NodeId]) -> Executor {
    let mut nodes = nodes.iter().map(|&id| graph.node(id));
    match target.kind {
        Kind::Cpu if nodes.all(|node| has_kernel(graph, node)) => Executor::Template,
        Kind::Cpu => Executor::Reference,
        Kind::Cuda { .. } if nodes.all(|node| has_template(graph, node)) => Executor::Template,
        Kind::Cuda { .. } => Executor::Library,
    }
}

/// Whether the CPU executor has a kernel for the operation. The executor has no say of its own in this: it finds its
/// kernels by what this function promises.
fn has_kernel(graph: &Graph, node: &Node) -> bool {
    let types: Vec<DType> = node.inputs().iter().flatten().map(|&v| graph.ty(v).dtype).collect();
    let shape = |slot: usize| node.inputs()[slot].map(|value| &graph.ty(value).shape);
    let real = types.iter().all(|&dtype| is_real(dtype));
    let first = types.first().copied();
    match node.op() {
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast { .. } => has_loop(graph, node),
        Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) => true,
        Op::Expand(to) => shape(0).is_some_and(|from| View::contiguous(from).expand(to).is_some()),
        Op::Concat { .. } | Op::Pad { .. } | Op::Resize(_) => true,
        Op::Gather { .. } => matches!(types[..], [_, DType::I32 | DType::I64]),
        // The reference says what is wrong with sums of truth values.
        Op::Reduce { op, axes, .. } => {
            let orders = matches!(op, ReduceOp::Max | ReduceOp::Min) || axes.is_empty();
            first != Some(DType::Bool) || orders
        }
        Op::MatMul => first.is_some_and(|dtype| {
            use DType::{F64, I32, I64, U32, U64};
            is_real(dtype) || matches!(dtype, F64 | I32 | I64 | U32 | U64)
        }),
        Op::LayerNorm { axis, .. } | Op::RmsNorm { axis, .. } => {
            // A row takes its scale and bias element for element.
            let row = shape(0).map(|shape| &shape[*axis..]);
            let mut affine = (1..node.inputs().len()).filter_map(shape);
            real && affine.all(|shape| Some(&shape[..]) == row)
        }
        Op::Attention(_) => types.iter().all(|&dtype| is_real(dtype) || dtype == DType::Bool),
        Op::Rnn(_) => first.is_some_and(is_real),
        Op::Softmax { .. } | Op::ArgReduce { .. } | Op::Cumulative { .. } | Op::TopK { .. } => true,
        Op::GatherElements { .. } | Op::GatherNd { .. } => true,
        Op::ScatterElements { .. } | Op::ScatterNd { .. } => true,
        Op::Iota(_) | Op::Size(_) | Op::BitCast(_) => true,
        Op::Conv(conv) => {
            let integers = types.iter().all(|&dtype| dtype == DType::I32);
            (real || integers) && conv.strides.len() <= 3
        }
        Op::ConvTranspose { conv, .. } => real && conv.strides.len() <= 3,
        Op::Pool(pool) => {
            let computes = match pool.kind {
                PoolKind::Max { .. } | PoolKind::Average { .. } => true,
                // The reference says what is wrong with other powers.
                PoolKind::Lp { p } => p >= 1,
            };
            let bytes = matches!(first, Some(DType::U8 | DType::I8));
            let largest = pool.kind == PoolKind::Max { indices: None };
            (real && computes || bytes && largest) && pool.strides.len() <= 3
        }
        // Only plans for GPUs have it.
        Op::WideMatMul | Op::WideConv(_) => false,
        Op::Input | Op::Constant(_) | Op::NonZero => false,
        Op::If { .. } | Op::Loop { .. } | Op::Scan(_) => false,
    }
}

/// Whether loops on a CPU take all elements that the operation reads and writes: all but floats of eight bits and fewer.
fn has_loop(graph: &Graph, node: &Node) -> bool {
    elements(graph, node).all(|dtype| !(dtype.is_float() && dtype.size() == 1))
}

fn elements<'a>(graph: &'a Graph, node: &'a Node) -> impl Iterator<Item = DType> + 'a {
    let ty = |value: &ValueId| graph.ty(*value).dtype;
    let inputs = node.inputs().iter().flatten().map(ty);
    inputs.chain(node.outputs().iter().map(|ty| ty.dtype))
}

/// Whether the operation, with its elements, belongs to a family of templates of a GPU.
fn has_template(graph: &Graph, node: &Node) -> bool {
    let class = node.op().info().class;
    let op = match class {
        Class::Source | Class::Sizes | Class::Pointwise | Class::View | Class::Movement => true,
        Class::MatMul | Class::Normalization | Class::Attention | Class::Recurrent => true,
        Class::Gather => matches!(node.op(), Op::Gather { .. }),
        Class::Reduction => matches!(node.op(), Op::Reduce { .. }),
        Class::Convolution => matches!(node.op(), Op::Conv(_) | Op::WideConv(_)),
        Class::Scatter | Class::Selection | Class::Pool | Class::Resample | Class::Control => false,
    };
    // What is only moved is moved as whatever has its size.
    let moves = matches!(class, Class::View | Class::Movement);
    let taken = |dtype| if moves { bits(dtype) } else { scalar(dtype) };
    op && elements(graph, node).all(|dtype| taken(dtype).is_ok())
}
