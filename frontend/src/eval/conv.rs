//! Convolutions and their transposes.

use super::error::EvalError;
use super::number::{Number, filled, with_number};
use super::pointwise::cast;
use super::spatial::{Axis, Meeting, meeting, size};
use super::walk::{strides, walk, walk_indices};
use crate::dtype::DType;
use crate::op::ConvAttrs;
use crate::tensor::Tensor;

/// [`crate::op::Op::WideConv`].
pub(super) fn wide(x: &Tensor, w: &Tensor, attrs: &ConvAttrs) -> Result<Tensor, EvalError> {
    conv(&cast(x, DType::F32, true)?, &cast(w, DType::F32, true)?, None, attrs)
}

/// [`crate::op::Op::Conv`].
pub(super) fn conv(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    attrs: &ConvAttrs,
) -> Result<Tensor, EvalError> {
    let group = check(x, w, attrs)?;
    let (channels, filters) = (x.shape()[1], w.shape()[0]);
    if filters % group != 0 || w.shape()[1].checked_mul(group) != Some(channels) {
        return Err(EvalError::shape("channels do not fit the weights", &[x.shape(), w.shape()]));
    }
    let mut axes = Vec::new();
    for (i, &inner) in x.shape()[2..].iter().enumerate() {
        axes.push(axis(i, inner, w, attrs)?.with_windows(false)?);
    }
    let mut shape = vec![x.shape()[0], filters];
    for axis in &axes {
        shape.push(size(axis.outer)?);
    }
    let (per_group, filters_per_group) = (w.shape()[1], filters / group);
    with_number!(x.dtype(), N => {
        let (values, weights) = (N::decode(x)?, N::decode(w)?);
        let mut result = biased::<N>(&shape, bias, x.dtype())?;
        let spaces = Spaces::new(&x.shape()[2..], &shape[2..], &w.shape()[2..], &axes);
        let (inner_size, outer_size, taps) = (spaces.inner, spaces.outer, spaces.meetings.len());
        for (plane, sums) in result.chunks_exact_mut(outer_size.max(1)).enumerate() {
            let (image, filter) = (plane / filters, plane % filters);
            for c in 0..per_group {
                let channel = filter / filters_per_group * per_group + c;
                let from = &values[(image * channels + channel) * inner_size..][..inner_size];
                let kernel = &weights[(filter * per_group + c) * taps..][..taps];
                for (tap, &weight) in spaces.meetings.iter().zip(kernel) {
                    spaces.visit(tap, |i, o| sums[o] = sums[o].plus(weight.times(from[i])));
                }
            }
        }
        N::encode(x.dtype(), shape, result)
    })
}

/// [`crate::op::Op::ConvTranspose`].
pub(super) fn conv_transpose(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    attrs: &ConvAttrs,
    output_padding: &[usize],
) -> Result<Tensor, EvalError> {
    let group = check(x, w, attrs)?;
    let (channels, per_group) = (x.shape()[1], w.shape()[1]);
    if channels % group != 0 || w.shape()[0] != channels || output_padding.len() != rank(x) {
        return Err(EvalError::shape("channels do not fit the weights", &[x.shape(), w.shape()]));
    }
    let filters = per_group.saturating_mul(group);
    let mut shape = vec![x.shape()[0], filters];
    let mut axes = Vec::new();
    for (i, &outer) in x.shape()[2..].iter().enumerate() {
        let mut axis = axis(i, 0, w, attrs)?;
        axis.outer = outer as i128;
        let padding = output_padding[i].min(1 << 40) as i128;
        let whole = axis.stride * (axis.outer - 1) + padding + axis.extent();
        axis.inner = whole - axis.before - axis.after;
        shape.push(size(axis.inner)?);
        axes.push(axis);
    }
    with_number!(x.dtype(), N => {
        let (values, weights) = (N::decode(x)?, N::decode(w)?);
        let mut result = biased::<N>(&shape, bias, x.dtype())?;
        // The windows stand on the result here: x is the outer side.
        let spaces = Spaces::new(&shape[2..], &x.shape()[2..], &w.shape()[2..], &axes);
        let (inner_size, outer_size, taps) = (spaces.inner, spaces.outer, spaces.meetings.len());
        let channels_per_group = channels / group;
        for (plane, sums) in result.chunks_exact_mut(inner_size.max(1)).enumerate() {
            let (image, filter) = (plane / filters, plane % filters);
            for c in 0..channels_per_group {
                let channel = filter / per_group * channels_per_group + c;
                let from = &values[(image * channels + channel) * outer_size..][..outer_size];
                let kernel = &weights[(channel * per_group + filter % per_group) * taps..][..taps];
                for (tap, &weight) in spaces.meetings.iter().zip(kernel) {
                    spaces.visit(tap, |i, o| sums[i] = sums[i].plus(weight.times(from[o])));
                }
            }
        }
        N::encode(x.dtype(), shape, result)
    })
}

/// Spatial rank.
fn rank(x: &Tensor) -> usize {
    x.shape().len().saturating_sub(2)
}

/// The group, if ranks, types and attributes fit.
fn check(x: &Tensor, w: &Tensor, attrs: &ConvAttrs) -> Result<usize, EvalError> {
    if x.dtype() != w.dtype() {
        return Err(EvalError::Mismatch { expected: x.dtype(), actual: w.dtype() });
    }
    if x.dtype() == DType::Bool {
        return Err(EvalError::Unsupported(x.dtype()));
    }
    let rank = rank(x);
    let entries = [&attrs.strides, &attrs.dilations].map(Vec::len);
    let pads = [&attrs.pads_before, &attrs.pads_after].map(Vec::len);
    let fits = entries == [rank; 2] && pads == [rank; 2] && x.shape().len() == w.shape().len();
    if !fits || x.shape().len() < 2 {
        return Err(EvalError::shape("spatial axes do not fit", &[x.shape(), w.shape()]));
    }
    if attrs.group == 0 {
        return Err(EvalError::Attribute("a convolution has at least one group"));
    }
    Ok(attrs.group)
}

fn axis(i: usize, inner: usize, w: &Tensor, attrs: &ConvAttrs) -> Result<Axis, EvalError> {
    let pads = (attrs.pads_before[i], attrs.pads_after[i]);
    Axis::new(inner, w.shape()[2 + i], attrs.strides[i], attrs.dilations[i], pads)
}

/// A result that starts as the bias of each channel.
fn biased<N: Number>(
    shape: &[usize],
    bias: Option<&Tensor>,
    dtype: DType,
) -> Result<Vec<N>, EvalError> {
    let mut result = filled(shape, N::ZERO)?;
    let Some(bias) = bias else { return Ok(result) };
    if bias.dtype() != dtype {
        return Err(EvalError::Mismatch { expected: dtype, actual: bias.dtype() });
    }
    if bias.shape() != &shape[1..2] {
        return Err(EvalError::shape("a bias has an element a channel", &[shape, bias.shape()]));
    }
    let values = N::decode(bias)?;
    if !result.is_empty() {
        let size: usize = shape[2..].iter().product();
        for (plane, elements) in result.chunks_exact_mut(size).enumerate() {
            elements.fill(values[plane % values.len()]);
        }
    }
    Ok(result)
}

/// Both sides of a convolution and where each tap of its kernel meets them.
struct Spaces {
    inner: usize,
    outer: usize,
    outer_strides: Vec<isize>,
    meetings: Vec<Meeting>,
}

impl Spaces {
    fn new(inner: &[usize], outer: &[usize], kernel: &[usize], axes: &[Axis]) -> Self {
        let (inner_strides, outer_strides) = (strides(inner), strides(outer));
        let mut meetings = Vec::new();
        walk_indices(kernel, |index| {
            meetings.push(meeting(axes, index, &inner_strides, &outer_strides));
        });
        let product = |sizes: &[usize]| sizes.iter().fold(1_usize, |p, &n| p.saturating_mul(n));
        Self { inner: product(inner), outer: product(outer), outer_strides, meetings }
    }

    fn visit(&self, tap: &Meeting, mut visit: impl FnMut(usize, usize)) {
        let start = [tap.inner_start, tap.outer_start];
        walk(&tap.shape, [&tap.inner_strides, &self.outer_strides], start, |[i, o]| visit(i, o));
    }
}
