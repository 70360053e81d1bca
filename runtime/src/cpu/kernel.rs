//! Which kernel runs a step.
//!
//! A kernel is chosen once, from the step's body alone. What no kernel takes is evaluated by the reference, and
//! is reported under that name.

use super::kernels::reduce::Reduce;
use super::loops::{Domain, Loop, LoopInput};
use super::run::{
    Io, run_concat, run_copy, run_gather, run_matmul, run_norm, run_reduce, run_reference,
    run_softmax,
};
use crate::bind::BoundStep;
use crate::error::Result;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Op, ReduceOp};
use graphene_fusion::groups::Family;
use graphene_fusion::program::Step;

/// What runs a step.
#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    /// Elements moved from view to view.
    Copy,
    /// One loop over an expression.
    Loop(Loop),
    /// Matrix products.
    MatMul,
    /// Softmax over an axis, f32.
    Softmax { axis: usize, log: bool },
    /// LayerNorm or RMSNorm over trailing axes, f32.
    Norm { axis: usize, epsilon: f32, rms: bool },
    /// A reduction, f32.
    Reduce { op: Reduce, axes: Vec<usize> },
    /// Rows by indices.
    Gather { axis: usize },
    /// Tensors side by side.
    Concat { axis: usize },
    /// The reference evaluator.
    Reference,
}

/// A kernel with what binding adds to it.
#[derive(Clone, Debug)]
pub(crate) struct BoundKernel {
    pub(crate) kernel: Kernel,
    /// The index space of a loop.
    pub(crate) domain: Option<Domain>,
}

impl Kernel {
    /// The kernel for a step.
    pub(crate) fn choose(step: &Step) -> Self {
        let body = &step.body;
        if step.family == Family::Copy && body.len() == body.inputs().len() {
            return Self::Copy;
        }
        if step.family == Family::Pointwise {
            return Loop::compile(body).map_or(Self::Reference, Self::Loop);
        }
        let Some((_, node)) = body.nodes().last() else { return Self::Reference };
        let dtypes: Vec<DType> = body.inputs().iter().map(|id| body.ty(id.value()).dtype).collect();
        let all_f32 = dtypes.iter().all(|&dtype| dtype == DType::F32);
        let inputs =
            node.inputs().len() == body.inputs().len() && node.inputs().iter().all(Option::is_some);
        match node.op() {
            Op::MatMul
                if inputs
                    && dtypes.first().is_some_and(|&d| {
                        matches!(d, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
                    }) =>
            {
                Self::MatMul
            }
            Op::Softmax { axis, log } if all_f32 => Self::Softmax { axis: *axis, log: *log },
            Op::LayerNorm { axis, epsilon } if all_f32 && affine_is_whole(step, *axis) => {
                Self::Norm { axis: *axis, epsilon: *epsilon, rms: false }
            }
            Op::RmsNorm { axis, epsilon } if all_f32 && affine_is_whole(step, *axis) => {
                Self::Norm { axis: *axis, epsilon: *epsilon, rms: true }
            }
            Op::Reduce { op, axes, .. } if all_f32 => match fast_reduce(*op) {
                Some(op) => Self::Reduce { op, axes: axes.clone() },
                None => Self::Reference,
            },
            Op::Gather { axis }
                if inputs && matches!(dtypes.get(1), Some(DType::I32 | DType::I64)) =>
            {
                Self::Gather { axis: *axis }
            }
            Op::Concat { axis } if inputs => Self::Concat { axis: *axis },
            _ => Self::Reference,
        }
    }

    /// The name in profiles.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Loop(_) => "loop",
            Self::MatMul => "gemm",
            Self::Softmax { .. } => "softmax",
            Self::Norm { .. } => "norm",
            Self::Reduce { .. } => "reduce",
            Self::Gather { .. } => "gather",
            Self::Concat { .. } => "concat",
            Self::Reference => "reference",
        }
    }

    /// The kernel for a step of a plan.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if shapes disagree under the plan's sizes.
    pub(crate) fn bind(&self, step: &BoundStep) -> Result<BoundKernel> {
        let domain = match self {
            Self::Loop(_) => Some(Domain::new(&step.outputs, &step.inputs)?),
            _ => None,
        };
        Ok(BoundKernel { kernel: self.clone(), domain })
    }
}

impl BoundKernel {
    /// Runs the step.
    ///
    /// # Errors
    /// What the kernel says, for example [`Error::Index`](crate::Error::Index) for an index out of range.
    pub(crate) fn run(&self, step: &Step, io: Io<'_>, bindings: &Bindings) -> Result<()> {
        match &self.kernel {
            Kernel::Copy => run_copy(io),
            Kernel::Loop(program) => {
                let domain = self.domain.as_ref().expect("loops are bound with their domain");
                let inputs: Vec<LoopInput<'_>> = io.loop_inputs();
                program.run(
                    domain,
                    &inputs,
                    io.outputs.into_iter().map(|output| output.bytes).collect(),
                );
                Ok(())
            }
            Kernel::MatMul => run_matmul(io),
            Kernel::Softmax { axis, log } => run_softmax(io, *axis, *log),
            Kernel::Norm { axis, epsilon, rms } => run_norm(step, io, *axis, *epsilon, *rms),
            Kernel::Reduce { op, axes } => run_reduce(io, *op, axes),
            Kernel::Gather { axis } => run_gather(io, *axis),
            Kernel::Concat { axis } => run_concat(io, *axis),
            Kernel::Reference => run_reference(step, io, bindings),
        }
    }
}

/// Whether scale and bias have the normalised shape, so that a row takes them element for element.
fn affine_is_whole(step: &Step, axis: usize) -> bool {
    let shape = step.inputs[0].view.shape();
    step.inputs[1..].iter().all(|operand| operand.view.shape() == shape[axis..])
}

fn fast_reduce(op: ReduceOp) -> Option<Reduce> {
    Some(match op {
        ReduceOp::Sum => Reduce::Sum,
        ReduceOp::Mean => Reduce::Mean,
        ReduceOp::Prod => Reduce::Prod,
        ReduceOp::Max => Reduce::Max,
        ReduceOp::Min => Reduce::Min,
        ReduceOp::L1 => Reduce::L1,
        ReduceOp::SumSquare => Reduce::SumSquare,
        ReduceOp::L2 | ReduceOp::LogSum | ReduceOp::LogSumExp => return None,
    })
}
