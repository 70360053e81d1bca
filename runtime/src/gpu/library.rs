//! The library executor on a GPU: which steps are calls of NVIDIA's libraries.
//!
//! In a program planned with [`Granularity::PerOp`](graphene_fusion::Granularity::PerOp), `TABLE` says which library
//! computes a step, if one does; every other step is a generated kernel of that one operation. What a library does not
//! take (sequences of several lengths, peepholes, other functions in a recurrent layer) is a kernel as well, or
//! computed on the host. Attention and convolutions have their kernels ready beside the call, for what cuDNN has no
//! engine for.
//!
//! In a fused program, a step with a [`LIBRARY`](graphene_fusion::variants::LIBRARY) variant is a call at that variant's sizes,
//! if the library is there; else, and at other sizes, it is its kernel.

mod call;
mod recurrence;

pub use recurrence::Recurrence;

pub(super) use call::{Call, Libraries, Loaded};

use crate::device::Library;
use crate::device::cudnn::Layer;
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Node;
use graphene_frontend::op::Op;
use graphene_fusion::groups::Executor;
use graphene_fusion::library::{Conv, MatMul, Sdpa, conv, matmul, sdpa};
use graphene_fusion::program::{Program, Step};
use graphene_ir::target::Target;
use graphene_ir::tensor::Scalar;
use recurrence::recurrent;
use std::fmt;

/// A step that a library computes in one call.
#[derive(Clone, PartialEq, Debug)]
pub enum Routine {
    /// A matrix product and its epilogue, by cuBLASLt.
    MatMul(Box<MatMul>),
    /// A convolution and what follows it, by cuDNN.
    Conv(Box<Conv>),
    /// Attention, by cuDNN.
    Attention(Box<Sdpa>),
    /// Softmax of rows, by cuDNN.
    Softmax(Rows),
    /// A recurrent layer, by cuDNN.
    Recurrent(Recurrence),
}

/// Softmax of rows without gaps.
#[derive(Clone, PartialEq, Debug)]
pub struct Rows {
    scalar: Scalar,
    /// The logarithm of it.
    log: bool,
    rows: Dim,
    columns: Dim,
}

/// What may be a call: a step as a routine, if it is that one.
type Row = fn(&Program, &Step, &Target) -> Option<Routine>;

/// Which steps libraries compute; [`Routine::library`] says which library.
const TABLE: &[Row] = &[
    |program, step, target| matmul(program, step, target).map(Box::new).map(Routine::MatMul),
    |program, step, target| conv(program, step, target).map(Box::new).map(Routine::Conv),
    |program, step, _| sdpa(program, step).map(Box::new).map(Routine::Attention),
    |_, step, _| softmax(step).map(Routine::Softmax),
    |program, step, _| recurrent(program, step).map(Routine::Recurrent),
];

/// The call that a step is on a target, at some sizes or at all, if the plan leaves it to the library and one computes it.
pub fn routine(program: &Program, step: &Step, target: &Target) -> Option<Routine> {
    let left = is_left(step) || step.variants.library().is_some();
    left.then(|| TABLE.iter().find_map(|row| row(program, step, target))).flatten()
}

/// Whether the plan leaves the step to the library at all sizes.
pub(super) fn is_left(step: &Step) -> bool {
    step.executor == Executor::Library
}

impl Routine {
    /// Whose it is.
    pub fn library(&self) -> Library {
        match self {
            Self::MatMul(_) => Library::CublasLt,
            Self::Conv(_) | Self::Attention(_) | Self::Softmax(_) | Self::Recurrent(_) => {
                Library::Cudnn
            }
        }
    }

    /// Whether the step has a kernel beside the call, or the host: for sizes that are not left to the library, or that it
    /// may have no engine for.
    pub(super) fn has_kernel(&self, step: &Step) -> bool {
        !is_left(step) || matches!(self, Self::Conv(_) | Self::Attention(_))
    }
}

/// The one operation of a step whose operands have no gaps.
fn alone(step: &Step) -> Option<&Node> {
    let is_source = |node: &Node| matches!(node.op(), Op::Input | Op::Constant(_));
    let mut nodes = step.body.nodes().map(|(_, node)| node).filter(|node| !is_source(node));
    let node = nodes.next().filter(|_| nodes.next().is_none())?;
    let packed =
        step.inputs.iter().chain(&step.outputs).all(|operand| operand.view.is_contiguous());
    packed.then_some(node)
}

fn scalar(dtype: DType) -> Option<Scalar> {
    match dtype {
        DType::F32 => Some(Scalar::F32),
        DType::F16 => Some(Scalar::F16),
        DType::BF16 => Some(Scalar::Bf16),
        _ => None,
    }
}

fn softmax(step: &Step) -> Option<Rows> {
    let node = alone(step)?;
    let ty = node.outputs().first()?;
    match node.op() {
        Op::Softmax { axis, log } if axis + 1 == ty.rank() => {
            let (columns, outer) = ty.shape.split_last()?;
            let rows = outer.iter().product::<Dim>();
            Some(Rows { scalar: scalar(ty.dtype)?, log: *log, rows, columns: columns.clone() })
        }
        _ => None,
    }
}

impl fmt::Display for Routine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MatMul(matmul) => write!(f, "cublaslt {matmul}"),
            Self::Conv(conv) => write!(f, "cudnn {conv}"),
            Self::Attention(sdpa) => write!(f, "cudnn {sdpa}"),
            Self::Softmax(Rows { scalar, log, rows, columns }) => {
                let what = if *log { "logarithm of softmax" } else { "softmax" };
                write!(f, "cudnn {what} of [{rows}, {columns}] {scalar:?}")
            }
            Self::Recurrent(recurrence) => {
                let Recurrence { layer, steps, batch, results, .. } = recurrence;
                let Layer { cell, scalar, directions, inputs, hidden, bias } = layer;
                let bias = if *bias { ", biases" } else { "" };
                write!(f, "cudnn {cell:?} of [{steps}, {batch}, {inputs}] {scalar:?}: ")?;
                write!(f, "{hidden} units, directions {directions}{bias}")?;
                let names = ["all h", "last h", "last c"].iter().zip(results);
                for (name, _) in names.filter(|(_, result)| result.is_some()) {
                    write!(f, ", {name}")?;
                }
                Ok(())
            }
        }
    }
}
