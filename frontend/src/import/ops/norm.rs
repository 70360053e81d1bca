//! Normalisations.

use super::helpers::Outputs;
use super::{Row, microsoft, row};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Op, PoolAttrs, PoolKind, ReduceOp, Unary};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("BatchNormalization", 1, batch_norm),
    row("LayerNormalization", 1, layer_norm),
    microsoft("LayerNormalization", 1, layer_norm),
    row("RMSNormalization", 1, rms_norm),
    row("SimplifiedLayerNormalization", 1, rms_norm),
    microsoft("SimplifiedLayerNormalization", 1, rms_norm),
    row("GroupNormalization", 18, group_norm),
    row("InstanceNormalization", 1, instance_norm),
    row("LpNormalization", 1, lp_norm),
    row("MeanVarianceNormalization", 9, mean_variance_norm),
    row("LRN", 1, local_response_norm),
];

fn epsilon(c: &Context<'_, '_>) -> f32 {
    c.float_or("epsilon", 1e-5)
}

/// `(x - mean) / √(variance + epsilon) · scale + bias` along the channels; in training the statistics are
/// those of the batch, and running ones are given.
fn batch_norm(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let (scale, bias, mean, variance) = (c.input(1)?, c.input(2)?, c.input(3)?, c.input(4)?);
    let training = c.int_or("training_mode", 0) != 0;
    if c.opset() < 14 && (1..5).any(|i| c.wants_output(i)) {
        return Err(c.unsupported("training before opset 14"));
    }
    let rank = c.rank(x);
    if rank < 2 {
        return Err(c.invalid("the input must have a batch and channels"));
    }
    let per_element = c.int_or("spatial", 1) == 0;
    let wide = c.widen(x)?;
    let dtype = c.dtype(wide);
    let along = |c: &mut Context<'_, '_>, v: ValueId| -> Result<ValueId, OpError> {
        let v = c.cast_to(v, dtype)?;
        if per_element { c.unsqueeze(v, &[0]) } else { c.channels(v, rank) }
    };
    let axes: Vec<usize> = (0..rank).filter(|&axis| axis != 1).collect();
    let (used_mean, used_variance) = if training {
        let mean = c.reduce(ReduceOp::Mean, wide, axes.clone(), true)?;
        let centered = c.minus(wide, mean)?;
        let square = c.times(centered, centered)?;
        (mean, c.reduce(ReduceOp::Mean, square, axes, true)?)
    } else {
        (along(c, mean)?, along(c, variance)?)
    };
    let centered = c.minus(wide, used_mean)?;
    let variance_plus = c.shifted(used_variance, f64::from(epsilon(c)))?;
    let deviation = c.unary(Unary::Sqrt, variance_plus)?;
    let normal = c.over(centered, deviation)?;
    let (scale, bias) = (along(c, scale)?, along(c, bias)?);
    let scaled = c.times(normal, scale)?;
    let y = c.plus(scaled, bias)?;
    let mut outputs = vec![c.cast_to(y, c.dtype(x))?];
    if training {
        let momentum = f64::from(c.float_or("momentum", 0.9));
        for (running, current) in [(mean, used_mean), (variance, used_variance)] {
            let own = c.dtype(running);
            let shape = c.shape(running);
            let kept = c.scaled(running, momentum)?;
            let current = c.reshape(current, shape)?;
            let current = c.cast_to(current, own)?;
            let added = c.scaled(current, 1.0 - momentum)?;
            outputs.push(c.plus(kept, added)?);
        }
    }
    Ok(outputs)
}

fn layer_norm(c: &mut Context<'_, '_>) -> Outputs {
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let bias = c.optional(2);
    let rank = c.rank(x);
    let axis = c.axis(rank, c.int_or("axis", -1))?;
    let op = Op::LayerNorm { axis, epsilon: epsilon(c) };
    let dtype = c.dtype(x);
    let fits = |c: &Context<'_, '_>, v: ValueId| c.rank(v) <= rank - axis && c.dtype(v) == dtype;
    let fused = fits(c, scale) && bias.is_none_or(|bias| fits(c, bias));
    let mut outputs = if fused {
        c.add_optional(op, &[Some(x), Some(scale), bias])?
    } else {
        // Factors of other types or over more axes than are normalised stand apart.
        let mut outputs = c.add_optional(op, &[Some(x)])?;
        let scale = c.cast_to(scale, dtype)?;
        outputs[0] = c.times(outputs[0], scale)?;
        if let Some(bias) = bias {
            let bias = c.cast_to(bias, dtype)?;
            outputs[0] = c.plus(outputs[0], bias)?;
        }
        outputs
    };
    let stash = match c.int_or("stash_type", 1) {
        11 => DType::F64,
        _ => DType::F32,
    };
    for (i, output) in outputs.iter_mut().enumerate().skip(1) {
        if c.wants_output(i) {
            *output = c.cast_to(*output, stash)?;
        }
    }
    Ok(outputs)
}

fn rms_norm(c: &mut Context<'_, '_>) -> Outputs {
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let rank = c.rank(x);
    let axis = c.axis(rank, c.int_or("axis", -1))?;
    if c.wants_output(1) {
        return Err(c.unsupported("the statistic as an output"));
    }
    Ok(vec![rms(c, x, scale, axis)?])
}

/// The RMS norm of x over the axes from `axis` on, times a scale; elements are the scale's.
pub(super) fn rms(
    c: &mut Context<'_, '_>,
    x: ValueId,
    scale: ValueId,
    axis: usize,
) -> Result<ValueId, OpError> {
    let op = Op::RmsNorm { axis, epsilon: epsilon(c) };
    let dtype = c.dtype(scale);
    if c.dtype(x) == dtype && c.rank(scale) <= c.rank(x) - axis {
        return c.add(op, &[x, scale]);
    }
    let normal = c.add(op, &[x])?;
    let normal = c.cast_to(normal, dtype)?;
    c.times(normal, scale)
}

/// Scale and bias have an element a group at opset 18, an element a channel from opset 21 on.
fn group_norm(c: &mut Context<'_, '_>) -> Outputs {
    let (x, scale, bias) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let shape = c.shape(x);
    let groups =
        Dim::from(c.int("num_groups").ok_or_else(|| c.invalid("`num_groups` is missing"))?);
    let [batch, channels, pixels @ ..] = shape.as_slice() else {
        return Err(c.invalid("the input must have a batch and channels"));
    };
    let size = c.quotient(channels, &groups, "`num_groups` must divide the channels")?;
    let mut grouped = vec![batch.clone(), groups, size];
    grouped.extend_from_slice(pixels);
    let split = c.reshape(x, grouped)?;
    let op = Op::LayerNorm { axis: 2, epsilon: epsilon(c) };
    let mut y = c.add_optional(op, &[Some(split)])?[0];
    let per_group = c.opset() < 21;
    if !per_group {
        y = c.reshape(y, shape.clone())?;
    }
    let rank = c.rank(y);
    let (scale, bias) = (c.channels(scale, rank)?, c.channels(bias, rank)?);
    y = c.times(y, scale)?;
    y = c.plus(y, bias)?;
    Ok(vec![if per_group { c.reshape(y, shape)? } else { y }])
}

fn instance_norm(c: &mut Context<'_, '_>) -> Outputs {
    let (x, scale, bias) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let rank = c.rank(x);
    let op = Op::LayerNorm { axis: 2, epsilon: epsilon(c) };
    let y = c.add_optional(op, &[Some(x)])?[0];
    let (scale, bias) = (c.channels(scale, rank)?, c.channels(bias, rank)?);
    let y = c.times(y, scale)?;
    Ok(vec![c.plus(y, bias)?])
}

/// Where the norm is zero, so is the result.
fn lp_norm(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let axis = c.axis(c.rank(x), c.int_or("axis", -1))?;
    let op = match c.int_or("p", 2) {
        1 => ReduceOp::L1,
        2 => ReduceOp::L2,
        _ => return Err(c.invalid("`p` must be 1 or 2")),
    };
    let norm = c.reduce(op, x, vec![axis], true)?;
    let zero = c.scalar_like(x, 0.0)?;
    let nothing = c.binary(Binary::Equal, norm, zero)?;
    let quotient = c.over(x, norm)?;
    Ok(vec![c.select(nothing, zero, quotient)?])
}

fn mean_variance_norm(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let rank = c.rank(x);
    let mut axes = Vec::new();
    for &axis in c.ints("axes").unwrap_or(&[0, 2, 3]) {
        axes.push(c.axis(rank, axis)?);
    }
    axes.sort_unstable();
    axes.dedup();
    let mean = c.reduce(ReduceOp::Mean, x, axes.clone(), true)?;
    let square = c.times(x, x)?;
    let mean_square = c.reduce(ReduceOp::Mean, square, axes, true)?;
    let squared_mean = c.times(mean, mean)?;
    let variance = c.minus(mean_square, squared_mean)?;
    let deviation = c.unary(Unary::Sqrt, variance)?;
    let deviation = c.shifted(deviation, 1e-9)?;
    let centered = c.minus(x, mean)?;
    Ok(vec![c.over(centered, deviation)?])
}

/// `x / (bias + alpha/size · Σ x²)^beta`, summed over `size` neighbouring channels. That sum is an average
/// pooling, padding counted, over an image whose rows are the channels.
fn local_response_norm(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let size = c.int("size").and_then(|size| usize::try_from(size).ok()).filter(|&size| size > 0);
    let size = size.ok_or_else(|| c.invalid("`size` must be positive"))?;
    let shape = c.shape(x);
    if shape.len() < 2 {
        return Err(c.invalid("the input must have a batch and channels"));
    }
    let square = c.times(x, x)?;
    let pixels = shape[2..].iter().product::<Dim>();
    let image = vec![shape[0].clone(), Dim::from(1), shape[1].clone(), pixels];
    let image = c.reshape(square, image)?;
    let attrs = PoolAttrs {
        kind: PoolKind::Average { include_pad: true },
        kernel: vec![size, 1],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads_before: vec![(size - 1) / 2, 0],
        pads_after: vec![size / 2, 0],
        ceil: false,
    };
    let mean = c.add(Op::Pool(attrs), &[image])?;
    let mean = c.reshape(mean, shape)?;
    let alpha = f64::from(c.float_or("alpha", 1e-4));
    let weighted = c.scaled(mean, alpha)?;
    let base = c.shifted(weighted, f64::from(c.float_or("bias", 1.0)))?;
    let beta = c.scalar_like(x, f64::from(c.float_or("beta", 0.75)))?;
    let divisor = c.binary(Binary::Pow, base, beta)?;
    Ok(vec![c.over(x, divisor)?])
}
