//! The operations' attributes, in the order in which they stand in text.
//!
//! An operation with its own name is a row of [`PROTOTYPES`] or of the tables beside it; its attributes, an
//! arm of [`attributes`].

use super::field::Codec;
use super::parse::ParseGraphError;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::{
    AttentionAttrs, Binary, Combine, ConvAttrs, CoordinateTransform, CumulativeOp, Op, PadMode,
    PoolAttrs, PoolKind, ReduceOp, ResizeAttrs, ResizeMode, RnnAttrs, RnnCell, RnnDirection,
    ScanAttrs, Unary,
};
use std::collections::BTreeMap;

type Done = Result<(), ParseGraphError>;

/// Visits the attributes that the name does not tell, in order.
pub(super) fn attributes(op: &mut Op, c: &mut Codec<'_, '_>) -> Done {
    match op {
        Op::Input | Op::Constant(_) | Op::Binary(_) | Op::Select | Op::NonZero | Op::MatMul => {
            Ok(())
        }
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
        Op::Conv(conv) => conv_attributes(conv, c),
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
    match unary {
        Unary::Swish { alpha }
        | Unary::LeakyRelu { alpha }
        | Unary::Elu { alpha }
        | Unary::Celu { alpha }
        | Unary::ThresholdedRelu { alpha } => c.field("alpha", alpha),
        Unary::HardSigmoid { alpha, beta } => {
            c.field("alpha", alpha)?;
            c.field("beta", beta)
        }
        Unary::Selu { alpha, gamma } => {
            c.field("alpha", alpha)?;
            c.field("gamma", gamma)
        }
        Unary::Shrink { bias, lambda } => {
            c.field("bias", bias)?;
            c.field("lambda", lambda)
        }
        Unary::IsInf { positive, negative } => {
            c.field("positive", positive)?;
            c.field("negative", negative)
        }
        Unary::Abs
        | Unary::Neg
        | Unary::Sign
        | Unary::Reciprocal
        | Unary::Sqrt
        | Unary::Exp
        | Unary::Log
        | Unary::Floor
        | Unary::Ceil
        | Unary::Round
        | Unary::Sin
        | Unary::Cos
        | Unary::Tan
        | Unary::Asin
        | Unary::Acos
        | Unary::Atan
        | Unary::Sinh
        | Unary::Cosh
        | Unary::Tanh
        | Unary::Asinh
        | Unary::Acosh
        | Unary::Atanh
        | Unary::Erf
        | Unary::Sigmoid
        | Unary::Relu
        | Unary::Gelu
        | Unary::GeluTanh
        | Unary::Softplus
        | Unary::Softsign
        | Unary::Mish
        | Unary::HardSwish
        | Unary::Not
        | Unary::BitNot
        | Unary::IsNan => Ok(()),
    }
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

/// Every operation with a name of its own but inputs and constants, with some attributes.
pub(super) fn prototypes() -> BTreeMap<&'static str, Op> {
    let unaries = UNARIES.into_iter().map(Op::Unary);
    let binaries = BINARIES.into_iter().map(Op::Binary);
    let reductions =
        REDUCTIONS.into_iter().map(|op| Op::Reduce { op, axes: Vec::new(), keep: false });
    let others = [movement(), selections(), layers(), bodies()].concat();
    let all = unaries.chain(binaries).chain(reductions).chain(others);
    all.map(|op| (op.name(), op)).collect()
}

fn movement() -> Vec<Op> {
    vec![
        Op::Iota(Dim::from(0)),
        Op::Size(Dim::from(0)),
        Op::Select,
        Op::Cast { to: DType::F32, saturate: true },
        Op::BitCast(DType::F32),
        Op::Reshape(Vec::new()),
        Op::Transpose(Vec::new()),
        Op::Expand(Vec::new()),
        Op::Slice(Vec::new()),
        Op::Concat { axis: 0 },
        Op::Pad { mode: PadMode::Constant, before: Vec::new(), after: Vec::new() },
        Op::Gather { axis: 0 },
        Op::GatherElements { axis: 0 },
        Op::GatherNd { batch_dims: 0 },
        Op::ScatterElements { axis: 0, combine: Combine::Replace },
        Op::ScatterNd { combine: Combine::Replace },
    ]
}

fn selections() -> Vec<Op> {
    let arg = |largest| Op::ArgReduce { largest, axis: 0, keep: false, last: false };
    let running = |op| Op::Cumulative { op, axis: 0, exclusive: false, reverse: false };
    vec![
        arg(true),
        arg(false),
        running(CumulativeOp::Sum),
        running(CumulativeOp::Prod),
        Op::TopK { k: Dim::from(0), axis: 0, largest: true },
        Op::NonZero,
    ]
}

fn layers() -> Vec<Op> {
    let conv = || ConvAttrs {
        strides: Vec::new(),
        dilations: Vec::new(),
        pads_before: Vec::new(),
        pads_after: Vec::new(),
        group: 1,
    };
    let rnn = |cell| {
        let direction = RnnDirection::Forward;
        Op::Rnn(RnnAttrs { cell, direction, hidden: 0, activations: Vec::new(), clip: None })
    };
    vec![
        Op::MatMul,
        Op::Conv(conv()),
        Op::ConvTranspose { conv: conv(), output_padding: Vec::new() },
        Op::Pool(PoolAttrs {
            kind: PoolKind::Max { indices: None },
            kernel: Vec::new(),
            strides: Vec::new(),
            dilations: Vec::new(),
            pads_before: Vec::new(),
            pads_after: Vec::new(),
            ceil: false,
        }),
        Op::Softmax { axis: 0, log: false },
        Op::Softmax { axis: 0, log: true },
        Op::LayerNorm { axis: 0, epsilon: 0.0 },
        Op::RmsNorm { axis: 0, epsilon: 0.0 },
        Op::Attention(AttentionAttrs {
            scale: 1.0,
            causal: false,
            softcap: 0.0,
            guarded: false,
            fill: f32::NEG_INFINITY,
        }),
        rnn(RnnCell::Lstm { input_forget: false }),
        rnn(RnnCell::Gru { linear_before_reset: false }),
        rnn(RnnCell::Plain),
        Op::Resize(Box::new(ResizeAttrs {
            sizes: Vec::new(),
            scales: Vec::new(),
            mode: ResizeMode::Linear,
            transform: CoordinateTransform::HalfPixel,
            roi: Vec::new(),
            extrapolation: 0.0,
            antialias: false,
        })),
    ]
}

fn bodies() -> Vec<Op> {
    let none = || Box::new(Graph::new());
    vec![
        Op::If { then_branch: none(), else_branch: none() },
        Op::Loop { body: none(), carried: 0 },
        Op::Scan(Box::new(ScanAttrs {
            body: Graph::new(),
            carried: 0,
            inputs: Vec::new(),
            outputs: Vec::new(),
        })),
    ]
}

/// All unary functions, with some parameters.
pub(super) const UNARIES: [Unary; 43] = [
    Unary::Abs,
    Unary::Neg,
    Unary::Sign,
    Unary::Reciprocal,
    Unary::Sqrt,
    Unary::Exp,
    Unary::Log,
    Unary::Floor,
    Unary::Ceil,
    Unary::Round,
    Unary::Sin,
    Unary::Cos,
    Unary::Tan,
    Unary::Asin,
    Unary::Acos,
    Unary::Atan,
    Unary::Sinh,
    Unary::Cosh,
    Unary::Tanh,
    Unary::Asinh,
    Unary::Acosh,
    Unary::Atanh,
    Unary::Erf,
    Unary::Sigmoid,
    Unary::Relu,
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::Swish { alpha: 1.0 },
    Unary::Softplus,
    Unary::Softsign,
    Unary::Mish,
    Unary::HardSwish,
    Unary::HardSigmoid { alpha: 0.2, beta: 0.5 },
    Unary::LeakyRelu { alpha: 0.01 },
    Unary::Elu { alpha: 1.0 },
    Unary::Celu { alpha: 1.0 },
    Unary::Selu { alpha: 1.0, gamma: 1.0 },
    Unary::ThresholdedRelu { alpha: 1.0 },
    Unary::Shrink { bias: 0.0, lambda: 0.5 },
    Unary::Not,
    Unary::BitNot,
    Unary::IsNan,
    Unary::IsInf { positive: true, negative: true },
];

/// All binary functions.
pub(super) const BINARIES: [Binary; 22] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Mod,
    Binary::Rem,
    Binary::Pow,
    Binary::Min,
    Binary::Max,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::BitAnd,
    Binary::BitOr,
    Binary::BitXor,
    Binary::ShiftLeft,
    Binary::ShiftRight,
    Binary::Equal,
    Binary::Less,
    Binary::LessOrEqual,
    Binary::Greater,
    Binary::GreaterOrEqual,
];

/// All reductions.
pub(super) const REDUCTIONS: [ReduceOp; 10] = [
    ReduceOp::Sum,
    ReduceOp::Mean,
    ReduceOp::Prod,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::L1,
    ReduceOp::L2,
    ReduceOp::SumSquare,
    ReduceOp::LogSum,
    ReduceOp::LogSumExp,
];
