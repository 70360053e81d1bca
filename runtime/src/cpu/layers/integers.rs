//! A matmul or a convolution of bytes, less their zero point, with its epilogue.

use super::compile::epilogue;
use super::conv::{domain, row_major_domain};
use super::{ConvRead, Read};
use crate::bind::BoundStep;
use crate::cpu::kernels::int8::PackedIntegers;
use crate::cpu::loops::{Chain, Domain, Loop};
use crate::cpu::prepacked::Prepacked;
use crate::error::Result;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, ConvAttrs, Op};
use graphene_fusion::program::Step;
use graphene_fusion::view::channels_last;
use std::sync::Arc;

/// A matmul or a convolution of integers that widens the bytes it reads, and the pointwise operations on its result, as
/// one launch.
#[derive(Clone, Debug)]
pub(crate) struct IntegerLayer {
    /// That of a convolution.
    pub(crate) conv: Option<ConvAttrs>,
    /// The step's input of bytes.
    pub(crate) bytes: usize,
    pub(crate) zero: Zero,
    /// The step's input that is multiplied by, and the same where it was prepacked.
    pub(crate) weight: usize,
    pub(crate) packed: Vec<Arc<PackedIntegers>>,
    pub(crate) bias: Option<usize>,
    /// Whether the epilogue reads the result in single precision, or else in 32 bits.
    pub(crate) real: bool,
    pub(crate) epilogue: Loop,
    /// The epilogue as what is done to sums before they are stored, if it is that.
    pub(crate) chain: Option<Chain>,
    reads: Vec<Read>,
    /// Whether images are read, and results written, with their channels innermost.
    pub(crate) channels_last: bool,
}

/// What is subtracted from bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Zero {
    Number(i32),
    /// The step's input of this number.
    Input(usize),
}

impl IntegerLayer {
    /// Compiles a body; `None` if it is something else. `prepacked` has what its inputs were prepacked as.
    pub(crate) fn compile(body: &Graph, prepacked: &Prepacked) -> Option<Self> {
        let is_root = |op: &Op| matches!(op, Op::Conv(_) | Op::MatMul);
        let mut roots = body.nodes().filter(|(_, node)| is_root(node.op()));
        let ((id, node), None) = (roots.next()?, roots.next()) else { return None };
        let input = |value: ValueId| body.inputs().iter().position(|id| id.value() == value);
        let ty = body.ty(id.value());
        let alike = body.outputs().iter().all(|(_, value)| body.ty(*value).shape == ty.shape);
        if ty.dtype != DType::I32 || !alike {
            return None;
        }
        let conv = match node.op() {
            Op::Conv(attrs) if attrs.strides.len() <= 3 => Some(attrs.clone()),
            Op::MatMul => None,
            _ => return None,
        };
        let (x, weight) = (node.inputs()[0]?, input(node.inputs()[1]?)?);
        let bias = match node.inputs().get(2).copied().flatten() {
            Some(bias) => Some(input(bias)?),
            None => None,
        };
        let (wide, zero) = match (body.node(x.node).op(), body.node(x.node).inputs()) {
            (Op::Binary(Binary::Sub), [Some(wide), Some(zero)]) => {
                let number = || body.constant(*zero)?.as_slice::<i32>().ok()?.first().copied();
                let zero = match input(*zero) {
                    Some(number) => Zero::Input(number),
                    None => Zero::Number(number()?),
                };
                (*wide, zero)
            }
            _ => (x, Zero::Number(0)),
        };
        let (Op::Cast { .. }, [Some(bytes)]) =
            (body.node(wide.node).op(), body.node(wide.node).inputs())
        else {
            return None;
        };
        if !matches!(body.ty(*bytes).dtype, DType::U8 | DType::I8) {
            return None;
        }
        let bytes = input(*bytes)?;
        let given = body.outputs().iter().any(|(_, value)| value.node == id);
        let cast = match &body.uses(id)[..] {
            [(reader, _)] if !given => Some(*reader),
            _ => None,
        };
        let to_real = |op: &Op| matches!(op, Op::Cast { to: DType::F32, .. });
        let cast = cast.filter(|&reader| to_real(body.node(reader).op()));
        let result = cast.unwrap_or(id).value();
        let written: Vec<ValueId> = body.outputs().iter().map(|(_, value)| *value).collect();
        let read = |value: ValueId| match input(value) {
            Some(number) => Some(Read::Input(number)),
            None => (value == result).then_some(Read::MatMul(0)),
        };
        let (graph, reads) = epilogue(body, &written, read)?;
        let epilogue = Loop::compile(&graph)?;
        let packed = prepacked.get(weight).into_iter().flatten();
        let packed = packed.filter_map(|packed| packed.integers()).collect();
        let real = cast.is_some();
        let given = reads.iter().position(|&read| matches!(read.into(), ConvRead::Result));
        let chain = given.filter(|_| real).and_then(|given| epilogue.chain(given));
        let channels_last = false;
        Some(Self {
            conv,
            bytes,
            zero,
            weight,
            packed,
            bias,
            real,
            epilogue,
            chain,
            reads,
            channels_last,
        })
    }

    /// The same of a step whose results have their channels innermost: a convolution of one group by packed filters.
    pub(crate) fn compile_channels_last(step: &Step, prepacked: &Prepacked) -> Option<Self> {
        let last = step.outputs.iter().all(|output| output.view.is_channels_last());
        let layer = Self::compile(&step.body, prepacked).filter(|_| last)?;
        let conv = layer.conv.as_ref()?;
        let taken = conv.group == 1 && conv.strides.len() <= 2 && layer.packed.len() == 1;
        taken.then_some(Self { channels_last: true, ..layer })
    }

    /// The name in profiles.
    pub(crate) fn name(&self) -> &'static str {
        if self.conv.is_some() { "int8-conv+epilogue" } else { "int8-gemm+epilogue" }
    }

    /// What the epilogue reads.
    pub(crate) fn reads(&self) -> impl Iterator<Item = ConvRead> {
        self.reads.iter().map(|&read| read.into())
    }

    /// The epilogue's domain: the elements of the result as they lie.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if shapes disagree under the step's sizes.
    pub(crate) fn domain(&self, step: &BoundStep) -> Result<Domain> {
        match self.channels_last {
            true => domain(self.reads(), step, &channels_last(step.outputs[0].shape.len())),
            false => row_major_domain(self.reads(), step),
        }
    }
}
