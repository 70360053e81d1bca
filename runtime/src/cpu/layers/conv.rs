//! A convolution with its epilogue.

use super::Read;
use super::compile::epilogue;
use crate::bind::{BoundOperand, BoundStep};
use crate::cpu::kernels::channels_last::{Form, winograd};
use crate::cpu::kernels::finish::Activation;
use crate::cpu::kernels::packed::Packed;
use crate::cpu::kernels::view::row_major;
use crate::cpu::loops::{Domain, Loop, Sum};
use crate::cpu::prepacked::Prepacked;
use crate::error::Result;
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{ConvAttrs, Op};
use graphene_fusion::groups::Executor;
use graphene_fusion::program::Step;
use graphene_fusion::view;
use std::sync::Arc;

/// A convolution and the pointwise operations on its result, as one launch.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ConvLayer {
    pub(crate) attrs: ConvAttrs,
    /// The step's inputs that are images, filters and bias.
    pub(crate) operands: [Option<usize>; 3],
    pub(crate) dtype: DType,
    pub(crate) epilogue: Loop,
    reads: Vec<Read>,
    /// The epilogue as what is done to sums while they are stored, if it is that: the number of what is added among those
    /// that it reads, and a function.
    pub(crate) finish: Option<(Option<usize>, Activation)>,
    /// Where channels are innermost, the filters.
    pub(crate) channels_last: Option<Filters>,
}

/// Filters for images whose channels are innermost.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Filters {
    /// What they are prepacked for.
    form: Form,
    /// `None` where they were not prepacked.
    pub(crate) packed: Option<Arc<Packed>>,
}

impl Filters {
    /// How they are multiplied: only prepacked ones are transformed.
    pub(crate) fn form(&self) -> Form {
        match (self.form, &self.packed) {
            (Form::Winograd, None) => Form::Windows,
            (form, _) => form,
        }
    }
}

/// The convolution of a step whose results have their channels innermost, if its images may too, and how its filters are
/// multiplied.
pub(crate) fn channels_last(step: &Step) -> Option<Form> {
    let body = &step.body;
    let mut convs = body.nodes().filter(|(_, node)| matches!(node.op(), Op::Conv(_)));
    let ((id, node), None) = (convs.next()?, convs.next()) else { return None };
    let (Op::Conv(attrs), [Some(_), Some(w), ..]) = (node.op(), node.inputs()) else { return None };
    let ([output], [(_, written)]) = (&step.outputs[..], body.outputs()) else { return None };
    let last = output.view.is_channels_last() && body.ty(*written).dtype == DType::F32;
    let filters = &body.ty(*w).shape;
    let windows = filters.iter().all(|size| size.known().is_some_and(|size| size > 0));
    let axes = (1..=2).contains(&attrs.strides.len()) && filters.len() == attrs.strides.len() + 2;
    let single = body.ty(id.value()).dtype == DType::F32;
    let depthwise = attrs.group > 1 && filters[1] == 1 && filters[0] == attrs.group as i64;
    let taken = step.executor != Executor::Reference && last && windows && axes && single;
    let form = match (depthwise, attrs.group) {
        (true, _) => Form::Depthwise,
        (false, 1) if is_winograd(attrs, filters, &body.ty(id.value()).shape) => Form::Winograd,
        (false, 1) => Form::Windows,
        (false, _) => return None,
    };
    taken.then_some(form)
}

/// Whether windows and filters are worth transforming, by the sizes that are known.
fn is_winograd(attrs: &ConvAttrs, filters: &[Dim], result: &[Dim]) -> bool {
    let known = |size: &Dim| size.known().and_then(|size| usize::try_from(size).ok());
    let sizes = |shape: &[Dim]| shape.iter().map(known).collect::<Option<Vec<_>>>();
    let windows = attrs.strides == [1, 1] && attrs.dilations == [1, 1];
    match (sizes(filters).as_deref(), result.get(2..).and_then(sizes).as_deref()) {
        (Some(&[filters, channels, 3, 3]), Some(&[rows, columns])) => {
            windows && winograd::is_worth([channels, filters], [rows, columns])
        }
        _ => false,
    }
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
        let result = reads.iter().position(|&read| matches!(read.into(), ConvRead::Result));
        let finish = result.and_then(|result| {
            let Sum { added, function } = epilogue.sum(result)?;
            let activation = Activation::of(function)?;
            (added.len() <= 1).then(|| (added.first().copied(), activation))
        });
        let (attrs, dtype) = (attrs.clone(), ty.dtype);
        Some(Self { attrs, operands, dtype, epilogue, reads, finish, channels_last: None })
    }

    /// The same of a step whose results have their channels innermost.
    pub(crate) fn compile_channels_last(step: &Step, prepacked: &Prepacked) -> Option<Self> {
        let form = channels_last(step)?;
        let layer = Self::compile(&step.body)?;
        let [Some(_), Some(w), _] = layer.operands else { return None };
        let packed = prepacked.get(w).and_then(|matrices| matrices.first()?.real());
        let filters = Filters { form, packed };
        Some(Self { channels_last: Some(filters), ..layer })
    }

    /// The name in profiles.
    pub(crate) fn name(&self) -> &'static str {
        if self.epilogue.len() == 0 { "conv" } else { "conv+epilogue" }
    }

    /// Whether the step's input of this number is read as it lies.
    pub(crate) fn is_read(&self, input: usize) -> bool {
        let packed = self.channels_last.as_ref().is_some_and(|filters| filters.packed.is_some());
        !packed || self.operands[1] != Some(input)
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
        let rank = step.outputs[0].shape.len();
        match self.channels_last {
            Some(_) => domain(self.reads(), step, &view::channels_last(rank)),
            None => row_major_domain(self.reads(), step),
        }
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
    let order: Vec<usize> = (0..step.outputs[0].shape.len()).collect();
    domain(reads, step, &order)
}

/// The same with the axes in this order.
///
/// # Errors
/// As there.
pub(super) fn domain(
    reads: impl Iterator<Item = ConvRead>,
    step: &BoundStep,
    order: &[usize],
) -> Result<Domain> {
    let BoundOperand { buffer, shape, .. } = &step.outputs[0];
    let stored: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
    let mut strides = vec![0; shape.len()];
    order.iter().zip(row_major(&stored)).for_each(|(&axis, stride)| strides[axis] = stride);
    let result = BoundOperand { buffer: *buffer, offset: 0, shape: shape.clone(), strides };
    let inputs: Vec<Option<&BoundOperand>> = reads
        .map(|read| match read {
            ConvRead::Input(number) => Some(&step.inputs[number]),
            ConvRead::Result => Some(&result),
        })
        .collect();
    Domain::over(shape, order, &inputs)
}
