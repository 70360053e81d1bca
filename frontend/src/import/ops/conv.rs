//! Convolutions and poolings.

use super::helpers::Outputs;
use super::{Row, microsoft, row};
use crate::dim::Dim;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{
    Binary, Combine, ConvAttrs, IndexOrder, Op, PadMode, PoolAttrs, PoolKind, ReduceOp, Unary,
};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("Conv", 1, |c| {
        let (x, w) = (c.input(0)?, c.input(1)?);
        let attrs = conv_attrs(c, x, w)?;
        let inputs = [Some(x), Some(w), c.optional(2)];
        c.add_optional(Op::Conv(attrs), &inputs)
    }),
    microsoft("FusedConv", 1, fused_conv),
    row("ConvTranspose", 1, conv_transpose),
    row("MaxPool", 1, |c| {
        let column_major = c.int_or("storage_order", 0) != 0;
        let order = if column_major { IndexOrder::ColumnMajor } else { IndexOrder::RowMajor };
        let indices = c.wants_output(1).then_some(order);
        pool(c, PoolKind::Max { indices })
    }),
    row("AveragePool", 1, |c| {
        let include_pad = c.int_or("count_include_pad", 0) != 0;
        pool(c, PoolKind::Average { include_pad })
    }),
    row("LpPool", 1, |c| {
        let p = c.int_or("p", 2);
        pool(c, PoolKind::Lp { p })
    }),
    row("GlobalMaxPool", 1, |c| global(c, ReduceOp::Max)),
    row("GlobalAveragePool", 1, |c| global(c, ReduceOp::Mean)),
    row("GlobalLpPool", 1, global_lp),
    row("MaxUnpool", 9, max_unpool),
];

/// Steps and padding of a window, one entry a spatial axis.
pub(super) struct Geometry {
    pub(super) strides: Vec<usize>,
    pub(super) dilations: Vec<usize>,
    pub(super) before: Vec<i64>,
    pub(super) after: Vec<i64>,
}

/// Strides, dilations and padding for windows of `kernel` over the spatial dims of `x`.
pub(super) fn geometry(
    c: &Context<'_, '_>,
    x: ValueId,
    kernel: &[Dim],
) -> Result<Geometry, OpError> {
    let spatial = spatial(c, x)?;
    let strides = steps(c, "strides", spatial)?;
    let dilations = steps(c, "dilations", spatial)?;
    if kernel.len() != spatial {
        return Err(c.invalid("the kernel has not as many dims as the input has spatial ones"));
    }
    let same = |upper: bool| -> Result<(Vec<i64>, Vec<i64>), OpError> {
        let mut pads = (Vec::new(), Vec::new());
        for (i, size) in c.shape(x)[2..].iter().enumerate() {
            let (stride, one) = (Dim::from(strides[i]), Dim::from(1));
            let window = Dim::from(dilations[i]) * (&kernel[i] - &one) + &one;
            let last = (size.ceil_div(&stride)? - &one) * &stride;
            let total = (last + window - size).maximum(&Dim::from(0));
            let total = total.known().ok_or_else(|| c.unknown_dim(&total))?;
            let (less, more) = (total / 2, total - total / 2);
            pads.0.push(if upper { less } else { more });
            pads.1.push(if upper { more } else { less });
        }
        Ok(pads)
    };
    let (before, after) = match c.string("auto_pad") {
        Some("SAME_UPPER") => same(true)?,
        Some("SAME_LOWER") => same(false)?,
        Some("VALID") => (vec![0; spatial], vec![0; spatial]),
        None | Some("" | "NOTSET") => explicit_pads(c, spatial)?,
        Some(_) => return Err(c.invalid("`auto_pad` is none of the known ways")),
    };
    Ok(Geometry { strides, dilations, before, after })
}

/// The number of spatial dims.
fn spatial(c: &Context<'_, '_>, x: ValueId) -> Result<usize, OpError> {
    let rank = c.rank(x);
    rank.checked_sub(2).ok_or_else(|| c.invalid("the input must have a batch and channels"))
}

/// A list of positive numbers, ones where it is left out.
pub(super) fn steps(
    c: &Context<'_, '_>,
    name: &str,
    spatial: usize,
) -> Result<Vec<usize>, OpError> {
    let Some(given) = c.ints(name) else { return Ok(vec![1; spatial]) };
    let steps: Option<Vec<usize>> =
        given.iter().map(|&step| usize::try_from(step).ok().filter(|&step| step > 0)).collect();
    steps
        .filter(|steps| steps.len() == spatial)
        .ok_or_else(|| c.invalid("strides, dilations and kernels must be positive, one a dim"))
}

/// The attribute `pads`, zeros where it is left out: before and after.
pub(super) fn explicit_pads(
    c: &Context<'_, '_>,
    spatial: usize,
) -> Result<(Vec<i64>, Vec<i64>), OpError> {
    match c.ints("pads") {
        None | Some([]) => Ok((vec![0; spatial], vec![0; spatial])),
        Some(pads) if pads.len() == 2 * spatial => {
            Ok((pads[..spatial].to_vec(), pads[spatial..].to_vec()))
        }
        Some(_) => Err(c.invalid("`pads` must have two numbers for each spatial dim")),
    }
}

/// The group of a convolution.
fn group(c: &Context<'_, '_>) -> Result<usize, OpError> {
    let group = usize::try_from(c.int_or("group", 1)).ok().filter(|&group| group > 0);
    group.ok_or_else(|| c.invalid("`group` must be positive"))
}

/// The geometry of a convolution of `x` with the kernels `w`.
pub(super) fn conv_attrs(
    c: &Context<'_, '_>,
    x: ValueId,
    w: ValueId,
) -> Result<ConvAttrs, OpError> {
    let kernel = c.shape(w);
    let kernel = kernel.get(2..).ok_or_else(|| c.invalid("the kernel has too few dims"))?;
    let Geometry { strides, dilations, before, after } = geometry(c, x, kernel)?;
    let (pads_before, pads_after) = (before, after);
    Ok(ConvAttrs { strides, dilations, pads_before, pads_after, group: group(c)? })
}

/// A convolution, then a sum with a fourth input, then an activation.
fn fused_conv(c: &mut Context<'_, '_>) -> Outputs {
    let (x, w) = (c.input(0)?, c.input(1)?);
    let attrs = conv_attrs(c, x, w)?;
    let mut y = c.add_optional(Op::Conv(attrs), &[Some(x), Some(w), c.optional(2)])?[0];
    if let Some(sum) = c.optional(3) {
        y = c.plus(y, sum)?;
    }
    let parameters = c.floats("activation_params").unwrap_or(&[]);
    let unary = match (c.string("activation"), parameters) {
        (None | Some(""), _) => return Ok(vec![y]),
        (Some("Relu"), _) => Unary::Relu,
        (Some("Tanh"), _) => Unary::Tanh,
        (Some("Sigmoid"), _) => Unary::Sigmoid,
        (Some("LeakyRelu"), &[alpha]) => Unary::LeakyRelu { alpha },
        (Some("HardSigmoid"), &[alpha, beta]) => Unary::HardSigmoid { alpha, beta },
        (Some("Clip"), &[low, high]) => {
            let (low, high) = (c.scalar_like(y, low.into())?, c.scalar_like(y, high.into())?);
            let above = c.binary(Binary::Max, y, low)?;
            return Ok(vec![c.binary(Binary::Min, above, high)?]);
        }
        _ => return Err(c.unsupported("this activation")),
    };
    Ok(vec![c.unary(unary, y)?])
}

/// `auto_pad` and `output_shape` both say how large the result is, and so what is cut from it.
fn conv_transpose(c: &mut Context<'_, '_>) -> Outputs {
    let (x, w) = (c.input(0)?, c.input(1)?);
    let spatial = spatial(c, x)?;
    let strides = steps(c, "strides", spatial)?;
    let dilations = steps(c, "dilations", spatial)?;
    let output_padding = match c.ints("output_padding") {
        None => vec![0; spatial],
        Some(given) => {
            let given: Result<Vec<usize>, _> = given.iter().map(|&p| usize::try_from(p)).collect();
            let given = given.ok().filter(|given| given.len() == spatial);
            given.ok_or_else(|| c.invalid("`output_padding` must be one number a spatial dim"))?
        }
    };
    let (sizes, kernel) = (c.shape(x), c.shape(w));
    if kernel.len() != sizes.len() {
        return Err(c.invalid("the kernel must have as many dims as the input"));
    }
    let auto_pad = c.string("auto_pad").unwrap_or("NOTSET");
    let same = matches!(auto_pad, "SAME_UPPER" | "SAME_LOWER");
    // The result may be given with or without batch and channels.
    let wanted = c.ints("output_shape").map(|all| &all[all.len().saturating_sub(spatial)..]);
    let (mut before, mut after) = match auto_pad {
        "NOTSET" | "" => explicit_pads(c, spatial)?,
        _ => (vec![0; spatial], vec![0; spatial]),
    };
    if wanted.is_some_and(|wanted| wanted.len() != spatial) {
        return Err(c.invalid("`output_shape` must be one number a spatial dim"));
    }
    if wanted.is_some() || same {
        for i in 0..spatial {
            let (stride, one) = (Dim::from(strides[i]), Dim::from(1));
            let size = &sizes[2 + i];
            let target = wanted.map_or_else(|| size * &stride, |wanted| Dim::from(wanted[i]));
            let window = Dim::from(dilations[i]) * (&kernel[2 + i] - &one) + &one;
            let full = &stride * (size - &one) + Dim::from(output_padding[i]) + window;
            let total = full - target;
            let total = total.known().ok_or_else(|| c.unknown_dim(&total))?;
            // A result that is larger than what the windows reach has all of the rest at its end.
            let (less, more) = (total.max(0) / 2, total.max(0) - total.max(0) / 2);
            let upper = auto_pad == "SAME_UPPER";
            before[i] = if upper { less } else { more };
            after[i] = total.min(0) + if upper { more } else { less };
        }
    }
    let (pads_before, pads_after) = (before, after);
    let conv = ConvAttrs { strides, dilations, pads_before, pads_after, group: group(c)? };
    let inputs = [Some(x), Some(w), c.optional(2)];
    c.add_optional(Op::ConvTranspose { conv, output_padding }, &inputs)
}

fn pool(c: &mut Context<'_, '_>, kind: PoolKind) -> Outputs {
    let x = c.input(0)?;
    let spatial = spatial(c, x)?;
    if c.ints("kernel_shape").is_none() {
        return Err(c.invalid("`kernel_shape` is missing"));
    }
    let kernel = steps(c, "kernel_shape", spatial)?;
    let dims: Vec<Dim> = kernel.iter().map(|&size| Dim::from(size)).collect();
    let Geometry { strides, dilations, before, after } = geometry(c, x, &dims)?;
    let unsigned = |pads: Vec<i64>| -> Result<Vec<usize>, OpError> {
        let pads: Result<Vec<usize>, _> = pads.into_iter().map(usize::try_from).collect();
        pads.map_err(|_| c.invalid("padding must not be negative"))
    };
    let attrs = PoolAttrs {
        kind,
        kernel,
        strides,
        dilations,
        pads_before: unsigned(before)?,
        pads_after: unsigned(after)?,
        ceil: c.int_or("ceil_mode", 0) != 0,
    };
    c.add_optional(Op::Pool(attrs), &[Some(x)])
}

fn global(c: &mut Context<'_, '_>, op: ReduceOp) -> Outputs {
    let x = c.input(0)?;
    let axes = (2..c.rank(x)).collect();
    Ok(vec![c.reduce(op, x, axes, true)?])
}

fn global_lp(c: &mut Context<'_, '_>) -> Outputs {
    match c.int_or("p", 2) {
        1 => global(c, ReduceOp::L1),
        2 => global(c, ReduceOp::L2),
        p => {
            let x = c.input(0)?;
            let magnitude = c.unary(Unary::Abs, x)?;
            let exponent = c.scalar_like(x, p as f64)?;
            let powers = c.binary(Binary::Pow, magnitude, exponent)?;
            let axes = (2..c.rank(x)).collect();
            let sum = c.reduce(ReduceOp::Sum, powers, axes, true)?;
            let root = c.scalar_like(x, 1.0 / p as f64)?;
            Ok(vec![c.binary(Binary::Pow, sum, root)?])
        }
    }
}

/// Elements go back to the places that a MaxPool took them from; zeros stand elsewhere.
fn max_unpool(c: &mut Context<'_, '_>) -> Outputs {
    let (x, indices) = (c.input(0)?, c.input(1)?);
    let spatial = spatial(c, x)?;
    let kernel = steps(c, "kernel_shape", spatial)?;
    let strides = steps(c, "strides", spatial)?;
    let (before, after) = explicit_pads(c, spatial)?;
    let mut shape = c.shape(x);
    for i in 0..spatial {
        let steps = (&shape[2 + i] - &Dim::from(1)) * Dim::from(strides[i]);
        shape[2 + i] = steps - Dim::from(before[i]) - Dim::from(after[i]) + Dim::from(kernel[i]);
    }
    let zero = c.scalar_like(x, 0.0)?;
    let product = |dims: &[Dim]| dims.iter().product::<Dim>();
    let blank = c.expand(zero, vec![product(&shape)])?;
    let elements = product(&c.shape(x));
    let x = c.reshape(x, vec![elements.clone()])?;
    let indices = c.reshape(indices, vec![elements])?;
    let combine = Combine::Replace;
    let flat = c.add(Op::ScatterElements { axis: 0, combine }, &[blank, indices, x])?;
    let y = c.reshape(flat, shape.clone())?;
    let Some(wanted) = c.optional(2) else { return Ok(vec![y]) };
    let wanted = c.dims(wanted)?;
    if wanted.len() != shape.len() {
        return Err(c.invalid("the output shape must have as many dims as the input"));
    }
    let before = vec![Dim::from(0); shape.len()];
    let after = wanted.iter().zip(&shape).map(|(to, from)| to - from).collect();
    Ok(vec![c.add(Op::Pad { mode: PadMode::Constant, before, after }, &[y])?])
}
