//! The closed set of operations.
//!
//! Each is small and says one thing; what ONNX spells in many ways is expanded into these on import. Unless
//! a line says otherwise, inputs broadcast as in NumPy, axes are counted from the front and are in range, and
//! an op whose elements are `f16`, `bf16` or `f32` computes in `f32` and rounds once, at its output.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::tensor::Tensor;

/// An operation on tensors.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    // Sources.
    /// A value that the caller gives; its name is the node's.
    Input,
    /// A weight or literal.
    Constant(Tensor),
    /// `() → i64[n]`: 0, 1, …, n-1.
    Iota(Dim),
    /// `() → i64[]`: a size that is known when shapes are bound.
    Size(Dim),

    // Pointwise.
    /// `x → y`, same type.
    Unary(Unary),
    /// `a, b → y`; comparisons give `bool`.
    Binary(Binary),
    /// `condition: bool, a, b → y`: a where the condition holds, else b.
    Select,
    /// `x → y`: elements converted. Floats become integers by truncation, modulo the width of the integer; infinities its
    /// limits, NaN 0.
    Cast {
        /// The element type of the result.
        to: DType,
        /// Conversion to an `f8` type clamps to its largest finite value (else: infinity or NaN).
        saturate: bool,
    },
    /// `x → y`: the same bits seen as another type of the same size.
    BitCast(DType),

    // Movement.
    /// `x → y` of this shape, same elements in row-major order.
    Reshape(Vec<Dim>),
    /// `x → y`; dim i of y is dim `perm[i]` of x.
    Transpose(Vec<usize>),
    /// `x → y` of this shape by NumPy broadcasting; every dim is already the broadcast one.
    Expand(Vec<Dim>),
    /// `x → y`: a range along each listed axis, whole along the others.
    Slice(Vec<SliceAxis>),
    /// `x₀, x₁, … → y` joined along the axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// `x, value? → y`: x surrounded along every axis. `value` (scalar, default 0) is for `PadMode::Constant`.
    Pad {
        /// What stands outside of x.
        mode: PadMode,
        /// Elements before x along each axis; negative ones cut.
        before: Vec<Dim>,
        /// Elements after x along each axis; negative ones cut.
        after: Vec<Dim>,
    },
    /// `x, indices → x[:axis] ++ indices ++ x[axis+1:]`. Indices `i32`/`i64` in `-n..n`.
    Gather {
        /// The axis.
        axis: usize,
    },
    /// `x, indices → y` of the indices' shape: `y[i] = x[i with i[axis] replaced by indices[i]]`.
    GatherElements {
        /// The axis.
        axis: usize,
    },
    /// `x, indices → y`: the last dim of the indices addresses x after `batch_dims` shared leading dims.
    GatherNd {
        /// Leading dims that x and the indices share.
        batch_dims: usize,
    },
    /// `x, indices, updates → y`: x with `updates[i]` combined at `i with i[axis] replaced by indices[i]`.
    ScatterElements {
        /// The axis.
        axis: usize,
        /// How an update meets what is there.
        combine: Combine,
    },
    /// `x, indices, updates → y`: x with slices of the updates combined at the places of the indices.
    ScatterNd {
        /// How an update meets what is there.
        combine: Combine,
    },

    // Reductions and scans.
    /// `x → y` over the axes (ascending; none: identity).
    Reduce {
        /// The operation.
        op: ReduceOp,
        /// The axes reduced, ascending.
        axes: Vec<usize>,
        /// Whether reduced axes stay with size one.
        keep: bool,
    },
    /// `x → i64`: the index of the largest or smallest element along the axis.
    ArgReduce {
        /// The largest (`Max`) or the smallest (`Min`).
        largest: bool,
        /// The axis.
        axis: usize,
        /// Whether the axis stays with size one.
        keep: bool,
        /// Of equal elements take the last (else the first).
        last: bool,
    },
    /// `x → y`: running sums or products along the axis.
    Cumulative {
        /// The operation.
        op: CumulativeOp,
        /// The axis.
        axis: usize,
        /// Element `i` excludes `x[i]`.
        exclusive: bool,
        /// Runs from the end.
        reverse: bool,
    },
    /// `x → values, indices: i64`: the k first along the axis in descending (or ascending) order; of equal
    /// elements the lower index first.
    TopK {
        /// How many.
        k: Dim,
        /// The axis.
        axis: usize,
        /// Descending (else ascending).
        largest: bool,
    },
    /// `x → i64[rank, n]`: places of the non-zero elements, row-major. Its size depends on values, so it
    /// exists only where its input is a constant.
    NonZero,

    // Matmuls and convolutions.
    /// `a[…,m,k], b[…,k,n] → y[…,m,n]`; both of rank ≥ 2, leading dims broadcast.
    MatMul,
    /// `x[n,c,…], w[m,c/group,…], bias[m]? → y[n,m,…]`.
    Conv(ConvAttrs),
    /// `x[n,c,…], w[c,m/group,…], bias[m]? → y[n,m,…]`: the transpose of a convolution.
    ConvTranspose {
        /// Strides, dilations, pads, group of the convolution that is transposed.
        conv: ConvAttrs,
        /// Elements added after each spatial axis of the result.
        output_padding: Vec<usize>,
    },
    /// `x[n,c,…] → y[n,c,…]`; with `indices`, a second output `i64` of places in the flattened x.
    Pool(PoolAttrs),

    // Normalisations; statistics in f32 (f64 for f64).
    /// `x → y`: over one axis. In 16-bit types the steps round, [`softmax_by_steps`](crate::eval::softmax_by_steps);
    /// the logarithm rounds once.
    Softmax {
        /// The axis.
        axis: usize,
        /// The logarithm of it.
        log: bool,
    },
    /// `x, scale?, bias? → y, mean, inv_std`: over the axes from `axis` on; scale and bias broadcast to those.
    /// The statistics keep the reduced dims as ones and are `f32` (`f64` for `f64`).
    LayerNorm {
        /// The first axis normalised.
        axis: usize,
        /// Added to the variance.
        epsilon: f32,
    },
    /// `x, scale? → y`: x / √(mean(x²) + epsilon) over the axes from `axis` on, times scale.
    RmsNorm {
        /// The first axis normalised.
        axis: usize,
        /// Added to the mean square.
        epsilon: f32,
    },

    // Models' own.
    /// `q[b,h,s,d], k[b,g,t,d], v[b,g,t,e], mask? → y[b,h,s,e]` with g dividing h; the mask broadcasts to
    /// `[b,h,s,t]`: bool (may attend) or float (added to the scores). A row that may attend nowhere is NaN unless guarded,
    /// or unless the scores that a mask forbids are filled with a finite number; of no keys at all it is zeros.
    Attention(AttentionAttrs),
    /// `x[s,b,i], w[d,gates·h,i], r[d,gates·h,h], bias[d,2·gates·h]?, lengths: i32[b]?, h0[d,b,h]?, c0[d,b,h]?,
    /// peepholes[d,3·h]? → y[s,d,b,h], y_h[d,b,h], y_c[d,b,h]` (y_c for LSTM only), ONNX's gate order.
    Rnn(RnnAttrs),
    /// `x → y` of these sizes by interpolation; `roi` only as attributes.
    Resize(Box<ResizeAttrs>),

    // Control flow. Bodies take everything as inputs, captured values after the formal ones.
    /// `condition: bool[], captured… → …`; the branches have equal output types.
    If {
        /// Run where the condition holds; its inputs are the captured values.
        then_branch: Box<Graph>,
        /// Run where it does not; the same inputs.
        else_branch: Box<Graph>,
    },
    /// `trip_count: i64[]?, condition: bool[]?, carried…, captured… → carried…, scanned…`.
    /// Body: `iteration: i64[], condition: bool[], carried…, captured… → condition, carried…, scanned…`.
    Loop {
        /// The body.
        body: Box<Graph>,
        /// The number of carried values.
        carried: usize,
    },
    /// `carried…, scanned…, captured… → carried…, stacked…`.
    /// Body: `carried…, one slice of each scanned…, captured… → carried…, one slice of each stacked…`.
    Scan(Box<ScanAttrs>),
}

/// A pointwise function of one argument.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Unary {
    /// |x|
    Abs,
    /// -x
    Neg,
    /// -1, 0 or 1
    Sign,
    /// 1 / x
    Reciprocal,
    /// √x
    Sqrt,
    /// eˣ
    Exp,
    /// ln x
    Log,
    /// ⌊x⌋
    Floor,
    /// ⌈x⌉
    Ceil,
    /// to the nearest integer, ties to even
    Round,
    /// sine
    Sin,
    /// cosine
    Cos,
    /// tangent
    Tan,
    /// inverse sine
    Asin,
    /// inverse cosine
    Acos,
    /// inverse tangent
    Atan,
    /// hyperbolic sine
    Sinh,
    /// hyperbolic cosine
    Cosh,
    /// hyperbolic tangent
    Tanh,
    /// inverse hyperbolic sine
    Asinh,
    /// inverse hyperbolic cosine
    Acosh,
    /// inverse hyperbolic tangent
    Atanh,
    /// error function
    Erf,
    /// 1 / (1 + e⁻ˣ)
    Sigmoid,
    /// max(x, 0)
    Relu,
    /// x·Φ(x) by the error function; at -∞ its limit, 0
    Gelu,
    /// x·Φ(x) by its tanh approximation: x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
    GeluTanh,
    /// x·sigmoid(alpha·x)
    Swish {
        /// 1 for SiLU.
        alpha: f32,
    },
    /// ln(1 + eˣ)
    Softplus,
    /// x / (1 + |x|)
    Softsign,
    /// x·tanh(ln(1 + eˣ))
    Mish,
    /// x·max(0, min(1, x/6 + 1/2))
    HardSwish,
    /// max(0, min(1, alpha·x + beta))
    HardSigmoid {
        /// slope
        alpha: f32,
        /// offset
        beta: f32,
    },
    /// x where x ≥ 0, else alpha·x
    LeakyRelu {
        /// slope below zero
        alpha: f32,
    },
    /// x where x ≥ 0, else alpha·(eˣ - 1)
    Elu {
        /// scale below zero
        alpha: f32,
    },
    /// max(0, x) + min(0, alpha·(e^(x/alpha) - 1))
    Celu {
        /// scale below zero
        alpha: f32,
    },
    /// gamma·x where x > 0, else gamma·alpha·(eˣ - 1)
    Selu {
        /// scale below zero
        alpha: f32,
        /// scale everywhere
        gamma: f32,
    },
    /// x where x > alpha, else 0
    ThresholdedRelu {
        /// threshold
        alpha: f32,
    },
    /// x + bias where x < -lambda, x - bias where x > lambda, NaN stays, else 0
    Shrink {
        /// moved towards zero by this
        bias: f32,
        /// threshold
        lambda: f32,
    },
    /// logical not, `bool`
    Not,
    /// bitwise not, integers
    BitNot,
    /// `x → bool`: is it NaN
    IsNan,
    /// `x → bool`: is it an infinity of a listed sign
    IsInf {
        /// +∞ counts
        positive: bool,
        /// -∞ counts
        negative: bool,
    },
}

/// A pointwise function of two arguments of one type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Binary {
    /// a + b, integers modulo their width
    Add,
    /// a - b, integers modulo their width
    Sub,
    /// a · b, integers modulo their width
    Mul,
    /// a / b; integers truncate, division by zero gives 0
    Div,
    /// remainder with the sign of b (Python's `%`); integers by zero give 0
    Mod,
    /// remainder with the sign of a (C's `fmod`); integers by zero give 0
    Rem,
    /// aᵇ; b may be of another type
    Pow,
    /// the smaller; NaN if either is
    Min,
    /// the larger; NaN if either is
    Max,
    /// logical and, `bool`
    And,
    /// logical or, `bool`
    Or,
    /// logical exclusive or, `bool`
    Xor,
    /// bitwise and, integers
    BitAnd,
    /// bitwise or, integers
    BitOr,
    /// bitwise exclusive or, integers
    BitXor,
    /// a · 2ᵇ, integers modulo their width; zero where b is negative or at least the width
    ShiftLeft,
    /// ⌊a / 2ᵇ⌋, integers; the sign alone (0 or -1) where b is negative or at least the width
    ShiftRight,
    /// a = b → `bool`
    Equal,
    /// a < b → `bool`
    Less,
    /// a ≤ b → `bool`
    LessOrEqual,
    /// a > b → `bool`
    Greater,
    /// a ≥ b → `bool`
    GreaterOrEqual,
}

/// A range along one axis of [`Op::Slice`]: `start, start + step, …`, `len` of them, all in range.
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

impl Op {
    /// The name in reports and errors, for example `MatMul`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Input => "Input",
            Self::Constant(_) => "Constant",
            Self::Iota(_) => "Iota",
            Self::Size(_) => "Size",
            Self::Unary(unary) => unary.name(),
            Self::Binary(binary) => binary.name(),
            Self::Select => "Select",
            Self::Cast { .. } => "Cast",
            Self::BitCast(_) => "BitCast",
            Self::Reshape(_) => "Reshape",
            Self::Transpose(_) => "Transpose",
            Self::Expand(_) => "Expand",
            Self::Slice(_) => "Slice",
            Self::Concat { .. } => "Concat",
            Self::Pad { .. } => "Pad",
            Self::Gather { .. } => "Gather",
            Self::GatherElements { .. } => "GatherElements",
            Self::GatherNd { .. } => "GatherNd",
            Self::ScatterElements { .. } => "ScatterElements",
            Self::ScatterNd { .. } => "ScatterNd",
            Self::Reduce { op, .. } => op.name(),
            Self::ArgReduce { largest: true, .. } => "ArgMax",
            Self::ArgReduce { largest: false, .. } => "ArgMin",
            Self::Cumulative { op: CumulativeOp::Sum, .. } => "CumSum",
            Self::Cumulative { op: CumulativeOp::Prod, .. } => "CumProd",
            Self::TopK { .. } => "TopK",
            Self::NonZero => "NonZero",
            Self::MatMul => "MatMul",
            Self::Conv(_) => "Conv",
            Self::ConvTranspose { .. } => "ConvTranspose",
            Self::Pool(_) => "Pool",
            Self::Softmax { log: false, .. } => "Softmax",
            Self::Softmax { log: true, .. } => "LogSoftmax",
            Self::LayerNorm { .. } => "LayerNorm",
            Self::RmsNorm { .. } => "RmsNorm",
            Self::Attention(_) => "Attention",
            Self::Rnn(attrs) => match attrs.cell {
                RnnCell::Lstm { .. } => "Lstm",
                RnnCell::Gru { .. } => "Gru",
                RnnCell::Plain => "Rnn",
            },
            Self::Resize(_) => "Resize",
            Self::If { .. } => "If",
            Self::Loop { .. } => "Loop",
            Self::Scan(_) => "Scan",
        }
    }
}

impl Unary {
    /// The name in reports and text forms.
    pub fn name(self) -> &'static str {
        match self {
            Self::Abs => "Abs",
            Self::Neg => "Neg",
            Self::Sign => "Sign",
            Self::Reciprocal => "Reciprocal",
            Self::Sqrt => "Sqrt",
            Self::Exp => "Exp",
            Self::Log => "Log",
            Self::Floor => "Floor",
            Self::Ceil => "Ceil",
            Self::Round => "Round",
            Self::Sin => "Sin",
            Self::Cos => "Cos",
            Self::Tan => "Tan",
            Self::Asin => "Asin",
            Self::Acos => "Acos",
            Self::Atan => "Atan",
            Self::Sinh => "Sinh",
            Self::Cosh => "Cosh",
            Self::Tanh => "Tanh",
            Self::Asinh => "Asinh",
            Self::Acosh => "Acosh",
            Self::Atanh => "Atanh",
            Self::Erf => "Erf",
            Self::Sigmoid => "Sigmoid",
            Self::Relu => "Relu",
            Self::Gelu => "Gelu",
            Self::GeluTanh => "GeluTanh",
            Self::Swish { .. } => "Swish",
            Self::Softplus => "Softplus",
            Self::Softsign => "Softsign",
            Self::Mish => "Mish",
            Self::HardSwish => "HardSwish",
            Self::HardSigmoid { .. } => "HardSigmoid",
            Self::LeakyRelu { .. } => "LeakyRelu",
            Self::Elu { .. } => "Elu",
            Self::Celu { .. } => "Celu",
            Self::Selu { .. } => "Selu",
            Self::ThresholdedRelu { .. } => "ThresholdedRelu",
            Self::Shrink { .. } => "Shrink",
            Self::Not => "Not",
            Self::BitNot => "BitNot",
            Self::IsNan => "IsNan",
            Self::IsInf { .. } => "IsInf",
        }
    }
}

impl Binary {
    /// The name in reports and text forms.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "Add",
            Self::Sub => "Sub",
            Self::Mul => "Mul",
            Self::Div => "Div",
            Self::Mod => "Mod",
            Self::Rem => "Rem",
            Self::Pow => "Pow",
            Self::Min => "Min",
            Self::Max => "Max",
            Self::And => "And",
            Self::Or => "Or",
            Self::Xor => "Xor",
            Self::BitAnd => "BitAnd",
            Self::BitOr => "BitOr",
            Self::BitXor => "BitXor",
            Self::ShiftLeft => "ShiftLeft",
            Self::ShiftRight => "ShiftRight",
            Self::Equal => "Equal",
            Self::Less => "Less",
            Self::LessOrEqual => "LessOrEqual",
            Self::Greater => "Greater",
            Self::GreaterOrEqual => "GreaterOrEqual",
        }
    }
}

impl ReduceOp {
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
