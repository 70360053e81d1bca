//! What operations are told beside their inputs.

use super::Unary;
use crate::dim::Dim;
use crate::graph::Graph;

/// A range along one axis of [`Op::Slice`](super::Op::Slice): `start, start + step, …`, `len` of them, all in range.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SliceAxis {
    /// The axis.
    pub axis: usize,
    /// The first index, counted from the front.
    pub start: Dim,
    /// The number of elements.
    pub len: Dim,
    /// The distance between two; negative ones run backwards.
    pub step: i64,
}

/// What stands outside of a padded tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PadMode {
    /// A given value.
    Constant,
    /// The tensor mirrored about its border elements.
    Reflect,
    /// The border element.
    Edge,
    /// The tensor again.
    Wrap,
}

/// How a scattered update meets what is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Combine {
    /// The update replaces it.
    Replace,
    /// Their sum.
    Add,
    /// Their product.
    Mul,
    /// The smaller.
    Min,
    /// The larger.
    Max,
}

/// A reduction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    /// Σ x; 0 of none
    Sum,
    /// Σ x / n
    Mean,
    /// Π x; 1 of none
    Prod,
    /// the largest; -∞ (lowest integer, false) of none
    Max,
    /// the smallest; +∞ (highest integer, true) of none
    Min,
    /// Σ |x|
    L1,
    /// √Σ x²
    L2,
    /// Σ x²
    SumSquare,
    /// ln Σ x
    LogSum,
    /// ln Σ eˣ, computed about the largest
    LogSumExp,
}

/// A running reduction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CumulativeOp {
    /// Σ x
    Sum,
    /// Π x
    Prod,
}

/// A convolution's geometry; one entry a spatial axis.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConvAttrs {
    /// Step of the window.
    pub strides: Vec<usize>,
    /// Step within the window.
    pub dilations: Vec<usize>,
    /// Zeros before the input; negative ones cut.
    pub pads_before: Vec<i64>,
    /// Zeros after the input; negative ones cut.
    pub pads_after: Vec<i64>,
    /// Channel groups.
    pub group: usize,
}

/// A pooling's geometry; one entry a spatial axis.
#[derive(Clone, PartialEq, Debug)]
pub struct PoolAttrs {
    /// What is done with a window.
    pub kind: PoolKind,
    /// Size of the window.
    pub kernel: Vec<usize>,
    /// Step of the window.
    pub strides: Vec<usize>,
    /// Step within the window.
    pub dilations: Vec<usize>,
    /// Padding before the input.
    pub pads_before: Vec<usize>,
    /// Padding after the input.
    pub pads_after: Vec<usize>,
    /// Windows that start inside and end outside count (a window that starts in the padding after never does).
    pub ceil: bool,
}

/// What a pooling does with a window.
#[derive(Clone, PartialEq, Debug)]
pub enum PoolKind {
    /// The largest element; padding does not take part.
    Max {
        /// Also give places in the flattened input: row-major, or column-major over the spatial axes.
        indices: Option<IndexOrder>,
    },
    /// The mean.
    Average {
        /// Divide by the window's size with its padding (else by the elements inside).
        include_pad: bool,
    },
    /// The p-norm.
    Lp {
        /// p
        p: i64,
    },
}

/// How a place in an image is numbered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IndexOrder {
    /// Last axis fastest.
    RowMajor,
    /// First spatial axis fastest.
    ColumnMajor,
}

/// What attention does beside its two matmuls.
#[derive(Clone, PartialEq, Debug)]
pub struct AttentionAttrs {
    /// Multiplies the scores.
    pub scale: f32,
    /// Query i attends keys 0..=i only.
    pub causal: bool,
    /// Scores become `softcap·tanh(score / softcap)` before the mask; 0: they stay.
    pub softcap: f32,
    /// A row whose softmax is NaN (it may attend nowhere, or a score is NaN) gives zeros.
    pub guarded: bool,
    /// What scores become that a mask of truth values forbids: -∞, or a number, so that a row all of which is forbidden
    /// has weights.
    pub fill: f32,
}

/// A recurrent layer.
#[derive(Clone, PartialEq, Debug)]
pub struct RnnAttrs {
    /// The cell.
    pub cell: RnnCell,
    /// Which way it runs; `Bidirectional` has two directions (d = 2).
    pub direction: RnnDirection,
    /// Elements of the hidden state.
    pub hidden: usize,
    /// Per direction: LSTM f, g, h; GRU f, g; RNN f.
    pub activations: Vec<Unary>,
    /// Gate inputs are clamped to ±clip.
    pub clip: Option<f32>,
}

/// A recurrent cell, with the equations of ONNX.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RnnCell {
    /// Gates i, o, f, c.
    Lstm {
        /// The forget gate is 1 - the input gate.
        input_forget: bool,
    },
    /// Gates z, r, h.
    Gru {
        /// The reset gate is applied after the matmul with the state.
        linear_before_reset: bool,
    },
    /// One gate.
    Plain,
}

/// Which way a recurrent layer runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RnnDirection {
    /// From the first element.
    Forward,
    /// From the last element.
    Reverse,
    /// Both, outputs side by side.
    Bidirectional,
}

/// An interpolation, as ONNX's Resize defines it; one entry an axis.
#[derive(Clone, PartialEq, Debug)]
pub struct ResizeAttrs {
    /// Sizes of the result.
    pub sizes: Vec<Dim>,
    /// Scale of each axis; `None`: the quotient of the sizes.
    pub scales: Vec<Option<f32>>,
    /// Kind of interpolation.
    pub mode: ResizeMode,
    /// How a result's coordinate maps to the input's.
    pub transform: CoordinateTransform,
    /// Region of interest per axis, normalised `(start, end)`, for `CoordinateTransform::CropAndResize`.
    pub roi: Vec<(f32, f32)>,
    /// The result outside of the region of interest.
    pub extrapolation: f32,
    /// Widen the filter when shrinking.
    pub antialias: bool,
}

/// Kind of interpolation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ResizeMode {
    /// The nearest element, by this rule.
    Nearest(NearestMode),
    /// Linear along each axis.
    Linear,
    /// Cubic along each axis.
    Cubic {
        /// Coefficient a of the kernel.
        a: f32,
        /// Weights outside of the input are zero and the rest rescaled.
        exclude_outside: bool,
    },
}

/// How a coordinate is rounded to the nearest element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NearestMode {
    /// Ties down.
    RoundPreferFloor,
    /// Ties up.
    RoundPreferCeil,
    /// Down.
    Floor,
    /// Up.
    Ceil,
}

/// How a result's coordinate maps to the input's; ONNX's names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // ONNX's names, its formulas.
pub enum CoordinateTransform {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfHalfPixelForNn,
    CropAndResize,
}

/// A scan's body and how it walks its inputs and outputs.
#[derive(Clone, PartialEq, Debug)]
pub struct ScanAttrs {
    /// The body.
    pub body: Graph,
    /// The number of carried values.
    pub carried: usize,
    /// For each scanned input: its axis, and whether it is walked from the end.
    pub inputs: Vec<(usize, bool)>,
    /// For each stacked output: its axis, and whether it is filled from the end.
    pub outputs: Vec<(usize, bool)>,
}

impl ReduceOp {
    /// All reductions.
    pub const ALL: &[Self] = &[
        Self::Sum,
        Self::Mean,
        Self::Prod,
        Self::Max,
        Self::Min,
        Self::L1,
        Self::L2,
        Self::SumSquare,
        Self::LogSum,
        Self::LogSumExp,
    ];

    /// The name in reports and text forms.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "ReduceSum",
            Self::Mean => "ReduceMean",
            Self::Prod => "ReduceProd",
            Self::Max => "ReduceMax",
            Self::Min => "ReduceMin",
            Self::L1 => "ReduceL1",
            Self::L2 => "ReduceL2",
            Self::SumSquare => "ReduceSumSquare",
            Self::LogSum => "ReduceLogSum",
            Self::LogSumExp => "ReduceLogSumExp",
        }
    }
}
