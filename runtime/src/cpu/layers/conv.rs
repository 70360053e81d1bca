//! A convolution with its epilogue.

use super::Read;
use super::compile::epilogue;
use crate::bind::{BoundOperand, BoundStep};
use crate::cpu::kernels::view::row_major;
use crate::cpu::loops::{Domain, Loop};
use crate::error::Result;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{ConvAttrs, Op};

/// A convolution and the pointwise operations on its result, as one launch.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ConvLayer {
    pub(crate) attrs: ConvAttrs,
    /// The step's inputs that are images, filters and bias.
    pub(crate) operands: [Option<usize>; 3],
    pub(crate) dtype: DType,
    pub(crate) epilogue: Loop,
    reads: Vec<Read>,
}

/// What an epilogue of a convolution reads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum ConvRead {
    /// The step's input of this number.
    Input(usize),
    /// The convolution.
    Result,
}

impl ConvLayer {
    /// Compiles a body; `None` if it is no convolution with pointwise operations at its shape.
    pub(crate) fn compile(body: &Graph) -> Option<Self> {
        let mut convs = body.nodes().filter(|(_, node)| matches!(node.op(), Op::Conv(_)));
        let ((id, node), None) = (convs.next()?, convs.next()) else { return None };
        let Op::Conv(attrs) = node.op() else { return None };
        let input = |value: ValueId| body.inputs().iter().position(|id| id.value() == value);
        let mut operands = [None; 3];
        for (own, value) in operands.iter_mut().zip(node.inputs()) {
            *own = match value {
                Some(value) => Some(input(*value)?),
                None => None,
            };
        }
        let ty = body.ty(id.value());
        let alike = body.outputs().iter().all(|(_, value)| body.ty(*value).shape == ty.shape);
        let typed = operands
            .iter()
            .flatten()
            .all(|&operand| body.ty(body.inputs()[operand].value()).dtype == ty.dtype);
        let float = matches!(ty.dtype, DType::F32 | DType::F16 | DType::BF16);
        let whole = body.nodes().all(|(_, node)| match node.op() {
            Op::Constant(tensor) => tensor.len() == 1,
            _ => true,
        });
        if !alike || !typed || !float || !whole || attrs.strides.len() > 3 {
            return None;
        }
        let written: Vec<ValueId> = body.outputs().iter().map(|(_, value)| *value).collect();
        let read = |value: ValueId| match input(value) {
            Some(number) => Some(Read::Input(number)),
            None => (value == id.value()).then_some(Read::MatMul(0)),
        };
        let (graph, reads) = epilogue(body, &written, read)?;
        let epilogue = Loop::compile(&graph)?;
        Some(Self { attrs: attrs.clone(), operands, dtype: ty.dtype, epilogue, reads })
    }

    /// What the epilogue reads.
    pub(crate) fn reads(&self) -> impl Iterator<Item = ConvRead> {
        self.reads.iter().map(|&read| read.into())
    }

    /// The epilogue's domain: the elements of the result, row-major.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if shapes disagree under the step's sizes.
    pub(crate) fn domain(&self, step: &BoundStep) -> Result<Domain> {
        row_major_domain(self.reads(), step)
    }
}

impl From<Read> for ConvRead {
    fn from(read: Read) -> Self {
        match read {
            Read::Input(number) => Self::Input(number),
            Read::MatMul(_) | Read::Kept(_) => Self::Result,
        }
    }
}

/// The domain of an epilogue: the elements of the result, row-major.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if shapes disagree under the step's sizes.
pub(super) fn row_major_domain(
    reads: impl Iterator<Item = ConvRead>,
    step: &BoundStep,
) -> Result<Domain> {
    let output = &step.outputs[0];
    let (shape, strides) = (output.shape.clone(), row_major(&output.shape).into_vec());
    let result = BoundOperand { buffer: output.buffer, offset: 0, shape, strides };
    let inputs: Vec<Option<&BoundOperand>> = reads
        .map(|read| match read {
            ConvRead::Input(number) => Some(&step.inputs[number]),
            ConvRead::Result => Some(&result),
        })
        .collect();
    let order: Vec<usize> = (0..output.shape.len()).collect();
    Domain::over(&output.shape, &order, &inputs)
}
