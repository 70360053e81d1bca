//! The closed set of operations.
//!
//! Each is small and says one thing; what ONNX spells in many ways is expanded into these on import. Unless
//! a line says otherwise, inputs broadcast as in NumPy, axes are counted from the front and are in range, and
//! an op whose elements are `f16`, `bf16` or `f32` computes in `f32` and rounds once, at its output.

mod attributes;
mod elementary;
mod functions;
mod info;

pub use attributes::{
    AttentionAttrs, Combine, ConvAttrs, CoordinateTransform, CumulativeOp, IndexOrder, NearestMode,
    PadMode, PoolAttrs, PoolKind, ReduceOp, ResizeAttrs, ResizeMode, RnnAttrs, RnnCell,
    RnnDirection, ScanAttrs, SliceAxis,
};
pub use elementary::{Elementary, Native, Portable};
pub use functions::{Binary, Parameter, RealFunction, Unary};
pub use info::{Class, FunctionClass, FunctionInfo, Onnx, OpInfo, Range};

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
    /// `MatMul` of `f16`, `bf16` or `f32`, with `y` in `f32`: sums are not rounded to 16 bits.
    WideMatMul,
    /// `x[n,c,…], w[m,c/group,…], bias[m]? → y[n,m,…]`.
    Conv(ConvAttrs),
    /// `Conv` of `f16`, `bf16` or `f32` without a bias, with `y` in `f32`: sums are not rounded to 16 bits.
    WideConv(ConvAttrs),
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
