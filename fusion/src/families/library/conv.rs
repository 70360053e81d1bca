//! A step as one convolution of cuDNN.

use super::epilogue::{Activation, Chain, whole_chain};
use super::matmul::{if_any, read};
use super::{optional_text, rows_of_conv};
use crate::base::elements::is_real;
use crate::base::groups::Family;
use crate::base::program::{Operand, Program, Step};
use crate::base::view::View;
use crate::families::kernels::{Pointer, StepOperand};
use graphene_frontend::{DType, Dim, Graph, NodeId, Op, ValueId};
use graphene_ir::target::Target;
use std::fmt;

/// One call for a convolution: `result = activation(image ∗ weights + bias + addend)`.
///
/// All tensors with pixels, and weights, lie without gaps in one order of dims.
#[derive(Clone, PartialEq, Debug)]
pub struct Conv {
    /// The elements of all operands; sums are of single precision.
    pub dtype: DType,
    /// Whether operands of single precision may be rounded to TF32.
    pub tf32: bool,
    /// How many images there are.
    pub images: Dim,
    /// Channels read and made.
    pub channels: [usize; 2],
    /// Groups of channels.
    pub group: usize,
    /// The spatial axes, one to three.
    pub windows: Vec<Window>,
    /// Whether channels are innermost in memory: else rows of pixels are.
    pub channels_last: bool,
    /// `[images, channels read, sizes…]`
    pub image: Pointer,
    /// `[channels made, channels read / group, windows…]`
    pub weights: Pointer,
    /// `[channels made]`
    pub bias: Option<Pointer>,
    /// Of the result's shape.
    pub addend: Option<Pointer>,
    /// `[images, channels made, …]`
    pub result: Pointer,
    /// Whether ReLU is applied last.
    pub relu: bool,
}

/// A spatial axis of a convolution.
#[derive(Clone, PartialEq, Debug)]
pub struct Window {
    /// Pixels along it.
    pub size: Dim,
    /// Elements of the window.
    pub window: usize,
    /// From window to window.
    pub stride: usize,
    /// From element to element of a window.
    pub dilation: usize,
    /// Zeros before the first pixel, and after the last.
    pub pads: [usize; 2],
}

/// Whether one call computes this convolution and all that follows it in a body.
pub(crate) fn is_conv_call(body: &Graph, id: NodeId) -> bool {
    whole_chain(body, id, rows_of_conv(body.node(id))).is_some()
}

/// The call that computes a step on a target, if one does. cuDNN pads images, and does not cut them.
pub fn conv(program: &Program, step: &Step, target: &Target) -> Option<Conv> {
    let body = &*step.body;
    let (id, node) = body.nodes().find(|(_, node)| matches!(node.op(), Op::Conv(_)))?;
    let Op::Conv(attrs) = node.op() else { return None };
    let dtype = body.ty(id.value()).dtype;
    if step.family != Family::Convolution || !is_real(dtype) {
        return None;
    }
    let Chain { addend, activation, .. } = whole_chain(body, id, rows_of_conv(node))?;
    let read = |value: ValueId| read(program, step, value, dtype);
    let (image, weights) = (read(node.input(0)?)?, read(node.input(1)?)?);
    let (bias, addend) = (if_any(node.input(2), read)?, if_any(addend, read)?);
    let result = (StepOperand::Output(0), step.outputs.first()?);
    let with_pixels = || [image, weights, result].into_iter().chain(addend);
    let tf32 = dtype == DType::F32 && target.tf32;
    let all = |lies: fn(&View) -> bool| with_pixels().all(|(_, of)| lies(&of.view));
    let (rows, last) = (all(View::is_contiguous), all(View::is_channels_last));
    // Of single pixels both orders are one: tensor cores have more engines for the second.
    let channels_last = last && (!rows || tf32 || dtype != DType::F32);
    if !(rows || last) || !bias.is_none_or(|(_, of)| of.view.is_contiguous()) {
        return None;
    }
    let size = |dim: &Dim| usize::try_from(dim.known()?).ok().filter(|size| *size > 0);
    let ([images, read, sizes @ ..], [made, _, windows @ ..]) =
        (&body.ty(node.input(0)?).shape[..], &body.ty(node.input(1)?).shape[..])
    else {
        return None;
    };
    if !(1..=3).contains(&sizes.len()) || sizes.len() != windows.len() {
        return None;
    }
    let windows = sizes.iter().zip(windows).enumerate().map(|(axis, (of, window))| {
        let pads = [attrs.pads_before[axis], attrs.pads_after[axis]];
        let [before, after] = pads.map(|pad| usize::try_from(pad).ok());
        let (stride, dilation) = (attrs.strides[axis], attrs.dilations[axis]);
        let (window, pads) = (size(window)?, [before?, after?]);
        Some(Window { size: of.clone(), window, stride, dilation, pads })
    });
    let at = |(operand, of): (StepOperand, &Operand)| Pointer::to(operand, &of.view);
    Some(Conv {
        dtype,
        tf32,
        images: images.clone(),
        channels: [size(read)?, size(made)?],
        group: attrs.group,
        windows: windows.collect::<Option<_>>()?,
        channels_last,
        image: at(image),
        weights: at(weights),
        bias: bias.map(at),
        addend: addend.map(at),
        result: at(result),
        relu: activation == Some(Activation::Relu),
    })
}

/// Prints as `convolution of [b, 8, s, 32] by [16, 8, 3, 3], strides [2, 1], dilations [1, 2], pads [1, 0]..[1, 1], 2 groups,
/// channels last f16: in0·in1 + in2 channels + in3, Relu -> out0`, without what is one or zero.
impl fmt::Display for Conv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, images, channels: [read, made], group, windows, .. } = self;
        let Self { image, weights, result, .. } = self;
        write!(f, "convolution of [{images}, {read}")?;
        windows.iter().try_for_each(|axis| write!(f, ", {}", axis.size))?;
        write!(f, "] by [{made}, {}", read / group.max(&1))?;
        windows.iter().try_for_each(|axis| write!(f, ", {}", axis.window))?;
        f.write_str("]")?;
        let each = |of: fn(&Window) -> usize| windows.iter().map(of).collect::<Vec<_>>();
        let (strides, dilations) = (each(|axis| axis.stride), each(|axis| axis.dilation));
        for (name, values) in [("strides", strides), ("dilations", dilations)] {
            if values.iter().any(|value| *value != 1) {
                write!(f, ", {name} {values:?}")?;
            }
        }
        let (before, after) = (each(|axis| axis.pads[0]), each(|axis| axis.pads[1]));
        if before.iter().chain(&after).any(|pad| *pad != 0) {
            write!(f, ", pads {before:?}")?;
            if before != after {
                write!(f, "..{after:?}")?;
            }
        }
        let groups = optional_text(", ", Some(group).filter(|group| **group != 1), " groups");
        let last = if self.channels_last { ", channels last" } else { "" };
        let rounded = if self.tf32 { " as tf32" } else { "" };
        write!(f, "{groups}{last} {dtype}{rounded}: {image}·{weights}")?;
        let bias = optional_text(" + ", self.bias.as_ref(), " channels");
        let addend = optional_text(" + ", self.addend.as_ref(), "");
        let relu = if self.relu { ", Relu" } else { "" };
        write!(f, "{bias}{addend}{relu} -> {result}")
    }
}
