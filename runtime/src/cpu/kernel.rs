//! Which kernel runs a step.
//!
//! A kernel is chosen once, from the step alone. Its plan says whether there is one; what no kernel takes is
//! evaluated by the reference, and is reported under that name.

use super::kernels::int8::PackedIntegers;
use super::kernels::packed::Packed;
use super::kernels::reduce::Reduce;
use super::layers::{BoundLayers, ConvLayer, IntegerLayer, Layers, run_layers};
use super::loops::{Domain, Loop};
use super::memory::Io;
use super::prepacked::{PackedWeight, Prepacked};
use super::rows::{BoundRows, RowProgram};
use super::run::{
    AllTaps, Named, Tables, all_taps, conv_algorithm, input_number, nearest_tables, pad_tables,
    run_arg_reduce, run_attention, run_concat, run_conv, run_conv_layer, run_conv_transpose,
    run_copy, run_cumulative, run_fold, run_gather, run_gather_at, run_integer_conv,
    run_integer_layer, run_integer_matmul, run_iota, run_matmul, run_nearest, run_norm, run_pad,
    run_pool, run_reduce, run_reference, run_resize, run_rnn, run_rows, run_scatter_at, run_size,
    run_softmax, run_top_k,
};
use super::scratch::Few;
use crate::bind::BoundStep;
use crate::error::Result;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::op::{
    AttentionAttrs, Combine, ConvAttrs, CoordinateTransform, CumulativeOp, NearestMode, Op,
    PadMode, PoolAttrs, ReduceOp, ResizeAttrs, ResizeMode, RnnAttrs,
};
use graphene_fusion::groups::{Executor, Family};
use graphene_fusion::program::Step;
use std::sync::Arc;

/// What runs a step.
#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    /// Elements moved from view to view.
    Copy,
    /// One loop over an expression.
    Loop(Loop),
    /// Matrix products.
    MatMul,
    /// A matmul by a matrix of integers that was prepacked, and the number of that input.
    IntegerMatMul(usize, Arc<PackedIntegers>),
    /// Matrix products with what follows them.
    Layers(Layers),
    /// Several operations over rows.
    Rows(RowProgram),
    /// Softmax over an axis.
    Softmax { axis: usize, log: bool },
    /// LayerNorm or RMSNorm over trailing axes.
    Norm { axis: usize, epsilon: f32, rms: bool },
    /// A reduction.
    Reduce { op: Reduce, axes: Vec<usize> },
    /// A reduction of numbers that are not all of 32 bits, or not along rows.
    Fold { op: ReduceOp, axes: Vec<usize> },
    /// Where the largest elements are, or the smallest.
    ArgReduce { axis: usize, largest: bool, last: bool },
    /// The largest elements and where they are, or the smallest.
    TopK { axis: usize, largest: bool },
    /// Rows by indices.
    Gather { axis: usize },
    /// What indices name.
    GatherAt(Named),
    /// A tensor, with updates at what indices name.
    ScatterAt(Named, Combine),
    /// 0, 1, …
    Iota,
    /// A size that is known when shapes are bound.
    Size(Dim),
    /// Tensors side by side.
    Concat { axis: usize },
    /// A tensor with a border.
    Pad { mode: PadMode, before: Vec<Dim> },
    /// A tensor resized to its nearest elements.
    Nearest { attrs: Box<ResizeAttrs>, mode: NearestMode },
    /// A tensor resized by interpolation.
    Resize(Box<ResizeAttrs>),
    /// Attention in one pass.
    Attention(AttentionAttrs),
    /// A recurrent layer, and its weights if they were prepacked.
    Rnn { attrs: RnnAttrs, prepacked: Vec<Vec<Arc<Packed>>> },
    /// A convolution.
    Conv(ConvAttrs),
    /// A convolution of integers, and its filters if they were prepacked.
    IntegerConv { attrs: ConvAttrs, prepacked: Vec<Vec<Arc<PackedIntegers>>> },
    /// A convolution with what follows it.
    ConvLayer(Box<ConvLayer>),
    /// A matmul or convolution of bytes with what follows it.
    IntegerLayer(Box<IntegerLayer>),
    /// The transpose of a convolution.
    ConvTranspose(ConvAttrs),
    /// A pooling.
    Pool(PoolAttrs),
    /// Running sums or products; whether they exclude their own element, and run from the end.
    Cumulative { op: CumulativeOp, axis: usize, kind: [bool; 2] },
    /// The reference evaluator.
    Reference,
}

/// A kernel with what binding adds to it.
#[derive(Clone, Debug)]
pub(crate) struct BoundKernel {
    pub(crate) kernel: Kernel,
    /// The index space of a loop or an epilogue.
    pub(crate) domain: Option<Domain>,
    /// Where the operands of layers lie.
    layers: Option<BoundLayers>,
    /// The sizes of rows.
    pub(crate) rows: Option<BoundRows>,
    /// Where the elements of a padded or resized tensor come from.
    tables: Tables,
    /// What the elements of a resized tensor are sums of.
    taps: AllTaps,
}

impl Kernel {
    /// The kernel for a step: what its plan says is the reference's is, and for all else there is a kernel. A group
    /// that no plan has, made by hand, may find none. `prepacked` has what its inputs were prepacked as.
    pub(crate) fn choose(step: &Step, prepacked: &Prepacked) -> Self {
        let body = &step.body;
        if step.executor == Executor::Reference {
            return Self::Reference;
        }
        if step.family == Family::Copy && body.len() == body.inputs().len() {
            return Self::Copy;
        }
        if step.family == Family::Pointwise {
            return Loop::compile(body).map_or(Self::Reference, Self::Loop);
        }
        if let Some(layer) = ConvLayer::compile_channels_last(step, prepacked) {
            return Self::ConvLayer(Box::new(layer));
        }
        if is_fused(body) {
            if let Some(layer) = IntegerLayer::compile_channels_last(step, prepacked) {
                return Self::IntegerLayer(Box::new(layer));
            }
            return Self::fused(step.family, body, prepacked);
        }
        let Some((id, node)) = body.nodes().last() else { return Self::Reference };
        match node.op() {
            Op::MatMul => match prepacked.iter().position(|matrices| !matrices.is_empty()) {
                Some(number) => match &prepacked[number][0] {
                    PackedWeight::Integers(packed) => {
                        Self::IntegerMatMul(number, Arc::clone(packed))
                    }
                    PackedWeight::Reals(_) | PackedWeight::Bf16(_) => {
                        Layers::compile(body, prepacked).map_or(Self::MatMul, Self::Layers)
                    }
                },
                None => Self::MatMul,
            },
            Op::Softmax { axis, log } => Self::Softmax { axis: *axis, log: *log },
            Op::LayerNorm { axis, epsilon } => {
                Self::Norm { axis: *axis, epsilon: *epsilon, rms: false }
            }
            Op::RmsNorm { axis, epsilon } => {
                Self::Norm { axis: *axis, epsilon: *epsilon, rms: true }
            }
            Op::Reduce { op, axes, .. } => match fast_reduce(*op).filter(|_| is_real(body)) {
                Some(op) => Self::Reduce { op, axes: axes.clone() },
                None => RowProgram::compile(body)
                    .map_or_else(|| Self::Fold { op: *op, axes: axes.clone() }, Self::Rows),
            },
            Op::ArgReduce { axis, largest, last, .. } => {
                Self::ArgReduce { axis: *axis, largest: *largest, last: *last }
            }
            Op::TopK { axis, largest, .. } => Self::TopK { axis: *axis, largest: *largest },
            Op::Gather { axis } => Self::Gather { axis: *axis },
            Op::GatherElements { axis } => Self::GatherAt(Named::Elements { axis: *axis }),
            Op::GatherNd { batch_dims } => Self::GatherAt(Named::Slices { batch: *batch_dims }),
            Op::ScatterElements { axis, combine } => {
                Self::ScatterAt(Named::Elements { axis: *axis }, *combine)
            }
            Op::ScatterNd { combine } => Self::ScatterAt(Named::Slices { batch: 0 }, *combine),
            Op::BitCast(_) => Self::Copy,
            Op::Iota(_) => Self::Iota,
            Op::Size(size) => Self::Size(size.clone()),
            Op::Concat { axis } => Self::Concat { axis: *axis },
            Op::Pad { mode, before, .. } => Self::Pad { mode: *mode, before: before.clone() },
            Op::Resize(attrs) => match attrs.mode {
                ResizeMode::Nearest(mode) if !crops(attrs) => {
                    Self::Nearest { attrs: attrs.clone(), mode }
                }
                ResizeMode::Nearest(_) | ResizeMode::Linear | ResizeMode::Cubic { .. } => {
                    Self::Resize(attrs.clone())
                }
            },
            Op::Attention(attrs) => Self::Attention(attrs.clone()),
            Op::Rnn(attrs) => {
                let reals =
                    |of: &Vec<PackedWeight>| of.iter().filter_map(PackedWeight::real).collect();
                let prepacked = prepacked.iter().map(reals).collect();
                Self::Rnn { attrs: attrs.clone(), prepacked }
            }
            Op::Conv(attrs) if body.ty(id.value()).dtype == DType::I32 => {
                let integers =
                    |of: &Vec<PackedWeight>| of.iter().filter_map(PackedWeight::integers).collect();
                let prepacked = prepacked.iter().map(integers).collect();
                Self::IntegerConv { attrs: attrs.clone(), prepacked }
            }
            Op::Conv(attrs) => Self::Conv(attrs.clone()),
            Op::ConvTranspose { conv, .. } => Self::ConvTranspose(conv.clone()),
            Op::Pool(attrs) => Self::Pool(attrs.clone()),
            Op::Cumulative { op, axis, exclusive, reverse } => {
                Self::Cumulative { op: *op, axis: *axis, kind: [*exclusive, *reverse] }
            }
            _ => Self::Reference,
        }
    }

    /// The kernel of several operations that are not all pointwise.
    fn fused(family: Family, body: &Graph, prepacked: &Prepacked) -> Self {
        if matches!(family, Family::Normalization | Family::Reduction | Family::Gather) {
            return RowProgram::compile(body).map_or(Self::Reference, Self::Rows);
        }
        let layers = Layers::compile(body, prepacked).map(Self::Layers);
        let conv = || ConvLayer::compile(body).map(|layer| Self::ConvLayer(Box::new(layer)));
        let integers = || IntegerLayer::compile(body, prepacked);
        let integers = || integers().map(|layer| Self::IntegerLayer(Box::new(layer)));
        layers.or_else(conv).or_else(integers).unwrap_or(Self::Reference)
    }

    /// Whether the kernel reads an input as it lies, and not as it was prepacked.
    pub(crate) fn reads(&self, input: usize) -> bool {
        match self {
            Self::Layers(layers) => layers.reads(input),
            Self::Rnn { prepacked, .. } => prepacked[input].is_empty(),
            Self::IntegerConv { prepacked, .. } => prepacked[input].is_empty(),
            Self::IntegerMatMul(number, _) => input != *number,
            Self::ConvLayer(layer) => layer.is_read(input),
            Self::IntegerLayer(layer) => input != layer.weight || layer.packed.is_empty(),
            _ => true,
        }
    }

    /// The name in profiles.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Loop(_) => "loop",
            Self::MatMul => "gemm",
            Self::IntegerMatMul(..) => "int8-gemm",
            Self::Layers(layers) => layers.name(),
            Self::Rows(program) => program.name(),
            Self::Softmax { .. } => "softmax",
            Self::Norm { .. } => "norm",
            Self::Reduce { .. } => "reduce",
            Self::Fold { .. } => "fold",
            Self::ArgReduce { .. } => "arg-reduce",
            Self::TopK { .. } => "top-k",
            Self::Gather { .. } => "gather",
            Self::GatherAt(Named::Elements { .. }) => "gather-elements",
            Self::GatherAt(Named::Slices { .. }) => "gather-nd",
            Self::ScatterAt(Named::Elements { .. }, _) => "scatter-elements",
            Self::ScatterAt(Named::Slices { .. }, _) => "scatter-nd",
            Self::Iota => "iota",
            Self::Size(_) => "size",
            Self::Concat { .. } => "concat",
            Self::Pad { .. } => "pad",
            Self::Nearest { .. } => "nearest",
            Self::Resize(_) => "resize",
            Self::Attention(_) => "attention",
            Self::Rnn { .. } => "rnn",
            Self::Conv(_) => "conv",
            Self::IntegerConv { .. } => "int8-conv",
            Self::ConvLayer(layer) => layer.name(),
            Self::IntegerLayer(layer) => layer.name(),
            Self::ConvTranspose(_) => "conv-transpose",
            Self::Pool(_) => "pool",
            Self::Cumulative { .. } => "cumulative",
            Self::Reference => "reference",
        }
    }

    /// How it multiplies, where its name does not tell: the form of a convolution, or what matrices are packed for.
    pub(crate) fn algorithm(&self, step: &Step, bound: &BoundStep) -> Option<&'static str> {
        match self {
            Self::Layers(layers) => layers.algorithm(),
            Self::ConvLayer(layer) => match (&layer.channels_last, layer.operands) {
                (Some(filters), _) => Some(filters.form().name()),
                (None, [x, w, _]) => conv_algorithm(&layer.attrs, [x, w], bound),
            },
            Self::Conv(attrs) => {
                let number = |place| input_number(step, place).ok()?;
                conv_algorithm(attrs, [number(0), number(1)], bound)
            }
            Self::IntegerMatMul(_, packed) => packed.algorithm(),
            Self::IntegerLayer(layer) => layer.packed.first()?.algorithm(),
            Self::IntegerConv { prepacked, .. } => prepacked.iter().flatten().next()?.algorithm(),
            Self::Rnn { prepacked, .. } => {
                prepacked.iter().any(|packed| !packed.is_empty()).then_some(Packed::ALGORITHM)
            }
            _ => None,
        }
    }

    /// The kernel for a step of a plan.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if shapes disagree under the plan's sizes.
    pub(crate) fn bind(
        &self,
        step: &Step,
        bound: &BoundStep,
        bindings: &Bindings,
    ) -> Result<BoundKernel> {
        let domain = match self {
            Self::Loop(_) => Some(Domain::new(&bound.outputs, &bound.inputs)?),
            Self::ConvLayer(layer) => Some(layer.domain(bound)?),
            Self::IntegerLayer(layer) => Some(layer.domain(bound)?),
            _ => None,
        };
        let layers = match self {
            Self::Layers(layers) => Some(BoundLayers::new(layers, bound)?),
            _ => None,
        };
        let rows = match self {
            Self::Rows(program) => Some(BoundRows::new(program, bound, bindings)?),
            _ => None,
        };
        let tables = match self {
            Self::Pad { mode, before } => pad_tables(step, bound, *mode, before, bindings)?,
            Self::Nearest { attrs, mode } => nearest_tables(step, bound, attrs, *mode)?,
            _ => Tables::new(),
        };
        let taps = match self {
            Self::Resize(attrs) => all_taps(step, bound, attrs)?,
            _ => AllTaps::new(),
        };
        Ok(BoundKernel { kernel: self.clone(), domain, layers, rows, tables, taps })
    }
}

impl BoundKernel {
    /// The name in profiles.
    pub(crate) fn name(&self) -> &'static str {
        self.kernel.name()
    }

    /// Runs the step.
    ///
    /// # Errors
    /// What the kernel says, for example [`Error::Index`](crate::Error::Index) for an index out of range.
    pub(crate) fn run(&self, step: &Step, io: Io<'_>, bindings: &Bindings) -> Result<()> {
        match &self.kernel {
            Kernel::Copy => run_copy(io),
            Kernel::Loop(program) => {
                let domain = self.domain.as_ref().expect("loops are bound with their domain");
                let inputs: Few<_> = (0..io.inputs.len()).map(|i| io.inputs.of_loop(i)).collect();
                program.run(domain, &inputs, io.outputs.into_iter().map(|output| output.bytes));
                Ok(())
            }
            Kernel::MatMul => run_matmul(step, io),
            Kernel::IntegerMatMul(_, packed) => run_integer_matmul(step, io, packed),
            Kernel::Layers(layers) => {
                let bound = self.layers.as_ref().expect("layers are bound with their places");
                run_layers(layers, bound, io)
            }
            Kernel::Rows(program) => {
                let rows = self.rows.as_ref().expect("rows are bound with their sizes");
                run_rows(program, rows, io)
            }
            Kernel::Softmax { axis, log } => run_softmax(io, *axis, *log),
            Kernel::Norm { axis, epsilon, rms } => run_norm(step, io, *axis, *epsilon, *rms),
            Kernel::Reduce { op, axes } => run_reduce(io, *op, axes),
            Kernel::Fold { op, axes } => run_fold(io, *op, axes),
            Kernel::ArgReduce { axis, largest, last } => run_arg_reduce(io, *axis, *largest, *last),
            Kernel::TopK { axis, largest } => run_top_k(step, io, *axis, *largest),
            Kernel::Gather { axis } => run_gather(step, io, *axis),
            Kernel::GatherAt(named) => run_gather_at(step, io, *named),
            Kernel::ScatterAt(named, combine) => run_scatter_at(step, io, *named, *combine),
            Kernel::Iota => run_iota(io),
            Kernel::Size(size) => run_size(io, size.eval(bindings)?),
            Kernel::Concat { axis } => run_concat(step, io, *axis),
            Kernel::Pad { .. } => run_pad(step, io, &self.tables),
            Kernel::Nearest { .. } => run_nearest(step, io, &self.tables),
            Kernel::Resize(attrs) => run_resize(step, io, &self.taps, attrs.extrapolation),
            Kernel::Attention(attrs) => run_attention(step, io, attrs),
            Kernel::Rnn { attrs, prepacked } => run_rnn(step, io, attrs, prepacked),
            Kernel::Conv(attrs) => run_conv(step, io, attrs),
            Kernel::IntegerConv { attrs, prepacked } => {
                let packed = prepacked.iter().find(|packed| !packed.is_empty());
                run_integer_conv(step, io, attrs, packed.map_or(&[], Vec::as_slice))
            }
            Kernel::ConvLayer(layer) => {
                let domain = self.domain.as_ref().expect("epilogues are bound with their domain");
                run_conv_layer(layer, domain, io)
            }
            Kernel::IntegerLayer(layer) => {
                let domain = self.domain.as_ref().expect("layers are bound with their domain");
                run_integer_layer(layer, domain, io)
            }
            Kernel::ConvTranspose(attrs) => run_conv_transpose(step, io, attrs),
            Kernel::Pool(attrs) => run_pool(step, io, attrs),
            Kernel::Cumulative { op, axis, kind } => run_cumulative(io, *op, *axis, *kind),
            Kernel::Reference => run_reference(step, io, bindings),
        }
    }
}

/// Whether a body has several operations.
fn is_fused(body: &Graph) -> bool {
    let source = |op: &Op| matches!(op, Op::Input | Op::Constant(_));
    body.nodes().filter(|(_, node)| !source(node.op())).count() > 1
}

/// Whether a resize leaves places outside of a region of interest.
fn crops(attrs: &ResizeAttrs) -> bool {
    attrs.transform == CoordinateTransform::CropAndResize
}

/// Whether a body reads real numbers of at most 32 bits.
fn is_real(body: &Graph) -> bool {
    let types = body.inputs().iter().map(|id| body.ty(id.value()).dtype);
    types.into_iter().all(|dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16))
}

fn fast_reduce(op: ReduceOp) -> Option<Reduce> {
    Some(match op {
        ReduceOp::Sum => Reduce::Sum,
        ReduceOp::Mean => Reduce::Mean,
        ReduceOp::Prod => Reduce::Prod,
        ReduceOp::Max => Reduce::Max,
        ReduceOp::Min => Reduce::Min,
        ReduceOp::L1 => Reduce::L1,
        ReduceOp::SumSquare => Reduce::SumSquare,
        ReduceOp::L2 | ReduceOp::LogSum | ReduceOp::LogSumExp => return None,
    })
}
