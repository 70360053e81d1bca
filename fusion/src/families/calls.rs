//! Which steps of fused programs a library computes in less time than our kernels, and at which sizes.
//!
//! Such a step has a [`LIBRARY`] variant before its own. Measured kernel by kernel on an H100 (CUDA 13.0, cuDNN 9.19): LSTMs of
//! 256, 512 and 1024 units over 128 steps, 1 to 64 sequences; the convolutions of ResNet-18 and -50, MobileNetV3-large and
//! ConvNeXt-tiny at batches of 1, 8 and 32, in fp16 and fp32; the logarithm of softmax of 256 rows of 50257 columns, in fp32,
//! by one block a row.
//! On an H200: ResNet-18's and -50's convolutions of windows at batches of 1 to 32, in fp16; LSTMs and GRUs of 24 units
//! over 7 steps, which our kernels compute in less than half of cuDNN's time; the logarithm of softmax in fp32 by blocks of a
//! cluster that share a row, of 1 to 256 rows of 16385 to 128256 columns, and softmax itself of 256 rows of 50257, which take
//! less time than cuDNN at all of these sizes; matmuls in single precision, at the sizes of `FEW_ROWS`.
//! Other cells, bf16, softmax of other sizes and other architectures follow these measurements, untimed; all else is ours.

use crate::base::elements::{is_by_threads, is_real};
use crate::base::groups::Family;
use crate::base::sizes::ceil;
use crate::base::variants::{LIBRARY, Variants, When};
use crate::families::grids::parts_of_softmax;
use crate::families::library::{is_conv_call, is_matmul_call};
use graphene_frontend::op::{ConvAttrs, Op, RnnAttrs};
use graphene_frontend::{DType, Dim, Graph, Node, NodeId};
use graphene_ir::target::Target;

/// Recurrent layers that cuDNN computes in less time, by their units: sizes in half and in single precision.
struct Recurrent {
    least_units: usize,
    most_sequences: [i64; 2],
    /// Estimated, not timed: of runs of 128 steps, and some 30 µs that a call of cuDNN takes before its first step.
    least_steps: [i64; 2],
}

const RECURRENT: [Recurrent; 3] = [
    Recurrent { least_units: 1024, most_sequences: [64, 64], least_steps: [16, 8] },
    Recurrent { least_units: 256, most_sequences: [32, 16], least_steps: [32, 16] },
    Recurrent { least_units: 0, most_sequences: [32, 16], least_steps: [32, 32] },
];
/// The fewest columns of a softmax.
const COLUMNS: i64 = 1 << 14;
/// Elements of a window from which one of a single channel is large.
const LARGE_WINDOW: i64 = 49;
/// The most pixels that a window of one element makes in single precision.
const FEW_PIXELS: i64 = 1 << 12;
/// In half precision windows of so many terms a sum go to the library from so many results on, and others from
/// [`MANY_PIXELS`] pixels on.
const DEEP: (i64, i64) = (1024, 3 << 17);
const MANY_PIXELS: i64 = 3 << 14;
/// The same of one element that skips pixels.
const MANY_SKIPPING: i64 = 1 << 14;

/// Matmuls by threads of at most so many rows go to the library from such a depth on, and those of so many multiply-adds from
/// such a depth on. In µs on an H200 (CUDA 13.0, 2026-11-29), weights in the L2 cache; ours and cuBLASLt's:
///
/// | depth x columns | 1 row | 16 rows | 128 | 512 | 2048 | 8192 |
/// |---|---|---|---|---|---|---|
/// | 64 x 64 | 4.8, 4.0 | 5.7, 4.8 | 4.9, 5.3 | 5.0, 5.8 | 5.3, 6.2 | 6.1, 6.5 |
/// | 256 x 256 | 7.6, 4.3 | 5.8, 6.1 | 6.3, 8.4 | 8.5, 9.5 | 12.0, 13.8 | 34, 30 |
/// | 768 x 768 | 8.1, 5.2 | 8.4, 9.4 | 11, 13 | 22, 23 | 71, 63 | 264, 212 |
/// | 1024 x 4096 | 17, 6.8 | 17, 15 | 33, 34 | 121, 95 | 465, 344 | 1691, 1380 |
/// | 3072 x 768 | 18, 7.5 | 19, 15 | 27, 25 | | 268, 210 | |
///
/// Weights of whole models are not in that cache: a token of GPT-2 for four sequences took 942 µs with our matmuls of a depth of 3072
/// (all by calls: 930), and 772 with calls in their place (933).
const FEW_ROWS: [(i64, i64); 2] = [(16, 2048), (1, 1)];
const MANY_MULTIPLY_ADDS: (i64, i64) = (1 << 29, 256);

/// The variants of a step on a GPU with a library's call before them, where one is faster.
pub(crate) fn with_call(target: &Target, family: Family, body: &Graph, own: Variants) -> Variants {
    match when(target, family, body) {
        Some(when) => own.behind(LIBRARY, when),
        None => own,
    }
}

/// At which sizes the library is faster, if at some.
fn when(target: &Target, family: Family, body: &Graph) -> Option<When> {
    let mut nodes = body.nodes();
    match family {
        Family::Recurrent => nodes.find_map(|(_, node)| match node.op() {
            Op::Rnn(attrs) => recurrent(body, node, attrs),
            _ => None,
        }),
        Family::Convolution => nodes.find_map(|(id, node)| match node.op() {
            Op::Conv(attrs) if is_real(body.ty(id.value()).dtype) && is_conv_call(body, id) => {
                convolution(target, body, node, attrs)
            }
            _ => None,
        }),
        Family::Normalization => {
            let node = body.only_operation()?;
            let ty = node.outputs().first()?;
            let softmax = matches!(node.op(), Op::Softmax { .. }) && ty.dtype == DType::F32;
            let columns = ty.shape.last().filter(|_| softmax)?;
            let own = columns.known().is_some_and(|columns| parts_of_softmax(columns, target) > 1);
            if own { None } else { at_least(columns.clone(), COLUMNS) }
        }
        Family::MatMul => {
            let (id, _) = body.nodes().find(|(_, node)| *node.op() == Op::MatMul)?;
            let (columns, rows) = body.ty(id.value()).shape.split_last()?;
            let sizes = [rows.iter().product(), columns.clone()];
            matmul_in_single(target, body, id, sizes).filter(|_| is_matmul_call(body, id))
        }
        Family::View | Family::Copy | Family::Pointwise | Family::Reduction => None,
        Family::Gather | Family::Mlp | Family::Fmha | Family::Control => None,
    }
}

/// When a call computes a matmul of a graph, of so many rows and columns, in less time than our threads: of one row, whose loads
/// there is nothing to hide behind, of few rows and a large depth, and of many multiply-adds.
pub(crate) fn matmul_in_single(
    target: &Target,
    graph: &Graph,
    id: NodeId,
    [rows, columns]: [Dim; 2],
) -> Option<When> {
    let b = graph.ty(graph.node(id).input(1)?);
    let [depth, _] = &b.shape[..] else { return None };
    let single = b.dtype == DType::F32 && is_by_threads(target, b.dtype);
    let depth = depth.known().filter(|_| single)?;
    let (most, least) = MANY_MULTIPLY_ADDS;
    let few = FEW_ROWS.iter().find(|(_, least)| depth >= *least);
    let few = few.and_then(|&(most, _)| at_most(rows.clone(), most));
    let many = at_least(&rows * &columns, ceil(most, depth.max(1))).filter(|_| depth >= least);
    match (few, many) {
        (Some(When::Always), _) | (_, Some(When::Always)) => Some(When::Always),
        (Some(few), Some(many)) => Some(When::Any(vec![few, many])),
        (few, many) => few.or(many),
    }
}

/// Few sequences of several steps: our kernel multiplies eight or sixteen rows, however many there are.
fn recurrent(body: &Graph, node: &Node, attrs: &RnnAttrs) -> Option<When> {
    let ty = body.ty(node.input(0)?);
    let [steps, sequences, ..] = &ty.shape[..] else { return None };
    let sizes = RECURRENT.iter().find(|sizes| attrs.hidden >= sizes.least_units)?;
    let single = usize::from(ty.dtype == DType::F32);
    let few = at_most(sequences.clone(), sizes.most_sequences[single])?;
    Some(When::all(vec![few, at_least(steps.clone(), sizes.least_steps[single])?]))
}

/// In single precision all but single pixels of many and small windows of single channels; in half precision what makes
/// tiles enough for cuDNN's, and the first of a network.
fn convolution(target: &Target, body: &Graph, node: &Node, attrs: &ConvAttrs) -> Option<When> {
    let made = node.outputs().first()?;
    let weights = &body.ty(node.input(1)?).shape;
    let known = weights[1..].iter().map(Dim::known).collect::<Option<Vec<_>>>()?;
    let window: i64 = known[1..].iter().product();
    let pixels = made.shape[2..].iter().fold(made.shape[0].clone(), |all, size| &all * size);
    let dense = attrs.group == 1;
    match made.dtype {
        DType::F32 if target.tf32 => None,
        DType::F32 if dense && window == 1 => at_most(pixels, FEW_PIXELS),
        DType::F32 => (dense || window >= LARGE_WINDOW).then_some(When::Always),
        _ if !dense => None,
        _ if window == 1 && attrs.strides.iter().all(|&stride| stride == 1) => None,
        _ if window == 1 => at_least(pixels, MANY_SKIPPING),
        _ if known[0] <= 8 => Some(When::Always),
        _ if window * known[0] >= DEEP.0 => at_least(pixels * &weights[0], DEEP.1),
        _ => at_least(pixels, MANY_PIXELS),
    }
}

/// When a dim is at least this, if it can be.
pub(crate) fn at_least(dim: Dim, least: i64) -> Option<When> {
    unless_known(dim.known().map(|size| size >= least), When::AtLeast(dim, least))
}

/// When it is at most this, if it can be.
pub(crate) fn at_most(dim: Dim, most: i64) -> Option<When> {
    unless_known(dim.known().map(|size| size <= most), When::AtMost(dim, most))
}

/// `Always` where a condition is known to hold, nothing where it is known not to; else the condition.
fn unless_known(known: Option<bool>, when: When) -> Option<When> {
    known.map_or(Some(when), |holds| holds.then_some(When::Always))
}
