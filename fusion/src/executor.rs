//! Who executes a group: a template, or the library where none takes it.

use crate::groups::Executor;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, NodeId};
use graphene_frontend::op::{Op, RnnCell};
use graphene_ir::target::{Kind, Target};

/// Who executes these operations on the target. On a CPU all run in one executor, which names its kernels itself.
pub(crate) fn executor(target: &Target, graph: &Graph, nodes: &[NodeId]) -> Executor {
    let taken = |&id: &NodeId| {
        let node = graph.node(id);
        let inputs = node.inputs().iter().flatten().map(|&value| graph.ty(value));
        let mut types = inputs.chain(node.outputs());
        has_template(node.op()) && types.all(|ty| has_elements(ty.dtype))
    };
    match target.kind {
        Kind::Cpu => Executor::Template,
        Kind::Cuda { .. } if nodes.iter().all(taken) => Executor::Template,
        Kind::Cuda { .. } => Executor::Library,
    }
}

/// Whether the operation belongs to a family of templates.
fn has_template(op: &Op) -> bool {
    match op {
        Op::Input
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::Size(_)
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Cast { .. }
        | Op::BitCast(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Expand(_)
        | Op::Slice(_)
        | Op::Concat { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::Reduce { .. }
        | Op::MatMul
        | Op::Conv(_)
        | Op::Softmax { .. }
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::Attention(_) => true,
        Op::Rnn(attrs) => matches!(attrs.cell, RnnCell::Lstm { .. }),
        Op::GatherElements { .. }
        | Op::GatherNd { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. }
        | Op::ArgReduce { .. }
        | Op::Cumulative { .. }
        | Op::TopK { .. }
        | Op::NonZero
        | Op::ConvTranspose { .. }
        | Op::Pool(_)
        | Op::Resize(_)
        | Op::If { .. }
        | Op::Loop { .. }
        | Op::Scan(_) => false,
    }
}

/// Whether templates compute with these elements.
fn has_elements(dtype: DType) -> bool {
    match dtype {
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::Bool => true,
        DType::F64
        | DType::I4
        | DType::U4
        | DType::I2
        | DType::U2
        | DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => false,
    }
}
