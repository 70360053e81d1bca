//! The operations' attributes, in the order in which they stand in text.
//!
//! Names are those of the [table of operations](crate::op::OpInfo); attributes, an arm of [`attributes`].

use super::field::Codec;
use super::parse::ParseGraphError;
use crate::op::{
    AttentionAttrs, ConvAttrs, Op, Parameter, PoolAttrs, ResizeAttrs, RnnAttrs, RnnCell, ScanAttrs,
    Unary,
};

type Done = Result<(), ParseGraphError>;

/// Visits the attributes that the name does not tell, in order.
pub(super) fn attributes(op: &mut Op, c: &mut Codec<'_, '_>) -> Done {
    match op {
        Op::Input | Op::Constant(_) | Op::Binary(_) | Op::Select | Op::NonZero => Ok(()),
        Op::MatMul | Op::WideMatMul => Ok(()),
        Op::Iota(dim) | Op::Size(dim) => c.field("size", dim),
        Op::Unary(unary) => unary_attributes(unary, c),
        Op::Cast { to, saturate } => {
            c.field("to", to)?;
            c.field("saturate", saturate)
        }
        Op::BitCast(to) => c.field("to", to),
        Op::Reshape(shape) | Op::Expand(shape) => c.field("shape", shape),
        Op::Transpose(perm) => c.field("perm", perm),
        Op::Slice(axes) => c.field("axes", axes),
        Op::Concat { axis } | Op::Gather { axis } | Op::GatherElements { axis } => {
            c.field("axis", axis)
        }
        Op::Pad { mode, before, after } => {
            c.field("mode", mode)?;
            c.field("before", before)?;
            c.field("after", after)
        }
        Op::GatherNd { batch_dims } => c.field("batch_dims", batch_dims),
        Op::ScatterElements { axis, combine } => {
            c.field("axis", axis)?;
            c.field("combine", combine)
        }
        Op::ScatterNd { combine } => c.field("combine", combine),
        Op::Reduce { op: _, axes, keep } => {
            c.field("axes", axes)?;
            c.field("keep", keep)
        }
        Op::ArgReduce { largest: _, axis, keep, last } => {
            c.field("axis", axis)?;
            c.field("keep", keep)?;
            c.field("last", last)
        }
        Op::Cumulative { op: _, axis, exclusive, reverse } => {
            c.field("axis", axis)?;
            c.field("exclusive", exclusive)?;
            c.field("reverse", reverse)
        }
        Op::TopK { k, axis, largest } => {
            c.field("k", k)?;
            c.field("axis", axis)?;
            c.field("largest", largest)
        }
        Op::Conv(conv) | Op::WideConv(conv) => conv_attributes(conv, c),
        Op::ConvTranspose { conv, output_padding } => {
            conv_attributes(conv, c)?;
            c.field("output_padding", output_padding)
        }
        Op::Pool(pool) => pool_attributes(pool, c),
        Op::Softmax { axis, log: _ } => c.field("axis", axis),
        Op::LayerNorm { axis, epsilon } | Op::RmsNorm { axis, epsilon } => {
            c.field("axis", axis)?;
            c.field("epsilon", epsilon)
        }
        Op::Attention(AttentionAttrs { scale, causal, softcap, guarded, fill }) => {
            c.field("scale", scale)?;
            c.field("causal", causal)?;
            c.field("softcap", softcap)?;
            c.field("guarded", guarded)?;
            c.optional("fill", fill, &f32::NEG_INFINITY)
        }
        Op::Rnn(rnn) => rnn_attributes(rnn, c),
        Op::Resize(resize) => resize_attributes(resize, c),
        Op::If { then_branch, else_branch } => {
            c.field("then", then_branch)?;
            c.field("else", else_branch)
        }
        Op::Loop { body, carried } => {
            c.field("carried", carried)?;
            c.field("body", body)
        }
        Op::Scan(scan) => {
            let ScanAttrs { body, carried, inputs, outputs } = scan.as_mut();
            c.field("carried", carried)?;
            c.field("inputs", inputs)?;
            c.field("outputs", outputs)?;
            c.field("body", body)
        }
    }
}

/// Visits the parameters of a unary function.
pub(super) fn unary_attributes(unary: &mut Unary, c: &mut Codec<'_, '_>) -> Done {
    for (name, _, parameter) in unary.parameters() {
        match parameter {
            Parameter::Number(number) => c.field(name, number)?,
            Parameter::Flag(flag) => c.field(name, flag)?,
        }
    }
    Ok(())
}

fn conv_attributes(conv: &mut ConvAttrs, c: &mut Codec<'_, '_>) -> Done {
    let ConvAttrs { strides, dilations, pads_before, pads_after, group } = conv;
    c.field("strides", strides)?;
    c.field("dilations", dilations)?;
    c.field("pads_before", pads_before)?;
    c.field("pads_after", pads_after)?;
    c.field("group", group)
}

fn pool_attributes(pool: &mut PoolAttrs, c: &mut Codec<'_, '_>) -> Done {
    let PoolAttrs { kind, kernel, strides, dilations, pads_before, pads_after, ceil } = pool;
    c.field("kind", kind)?;
    c.field("kernel", kernel)?;
    c.field("strides", strides)?;
    c.field("dilations", dilations)?;
    c.field("pads_before", pads_before)?;
    c.field("pads_after", pads_after)?;
    c.field("ceil", ceil)
}

fn rnn_attributes(rnn: &mut RnnAttrs, c: &mut Codec<'_, '_>) -> Done {
    let RnnAttrs { cell, direction, hidden, activations, clip } = rnn;
    match cell {
        RnnCell::Lstm { input_forget } => c.field("input_forget", input_forget)?,
        RnnCell::Gru { linear_before_reset } => {
            c.field("linear_before_reset", linear_before_reset)?;
        }
        RnnCell::Plain => {}
    }
    c.field("direction", direction)?;
    c.field("hidden", hidden)?;
    c.field("activations", activations)?;
    c.field("clip", clip)
}

fn resize_attributes(resize: &mut ResizeAttrs, c: &mut Codec<'_, '_>) -> Done {
    let ResizeAttrs { sizes, scales, mode, transform, roi, extrapolation, antialias } = resize;
    c.field("sizes", sizes)?;
    c.field("scales", scales)?;
    c.field("mode", mode)?;
    c.field("transform", transform)?;
    c.field("roi", roi)?;
    c.field("extrapolation", extrapolation)?;
    c.field("antialias", antialias)
}
