//! The table of operations: what is known of each apart from its attributes, a row an operation.

use super::{
    AttentionAttrs, Binary, Combine, ConvAttrs, CoordinateTransform, CumulativeOp, Op, PadMode,
    PoolAttrs, PoolKind, ReduceOp, ResizeAttrs, ResizeMode, RnnAttrs, RnnCell, RnnDirection,
    ScanAttrs, Unary,
};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::infer::{Count, DTypeClass};

/// What is known of an operation apart from its attributes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OpInfo {
    /// The name in reports, errors and text forms, for example `MatMul`.
    pub name: &'static str,
    /// What it does.
    pub class: Class,
    /// How many inputs it takes; optional ones stand last, and may be left out.
    pub inputs: Count,
    /// Whether it has attributes that its name does not tell.
    pub attributes: bool,
    /// Whether its elements are elements that it was given, or round nothing: no executor may differ in them.
    pub exact: bool,
    /// Whether it is worth folding on small constants: its work is in proportion to what is read and written. What runs a
    /// body may run it for ever, and a window may be of any size.
    pub folds: bool,
    /// Operations of a vector unit that an element of a pointwise function takes; 0 for others.
    pub work: f64,
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Gives what is there: inputs and constants.
    Source,
    /// Makes elements of sizes.
    Sizes,
    /// A function of elements at the same place.
    Pointwise,
    /// The same elements in the same order.
    View,
    /// Elements at other places that shapes alone tell.
    Movement,
    /// Elements at places that other elements tell.
    Gather,
    /// Elements put to places that other elements tell.
    Scatter,
    /// A function of the elements along axes, element after element.
    Reduction,
    /// Elements chosen by what they are.
    Selection,
    /// A matmul.
    MatMul,
    /// A convolution.
    Convolution,
    /// A function of windows.
    Pool,
    /// A normalisation of rows.
    Normalization,
    /// Attention.
    Attention,
    /// A recurrent layer.
    Recurrent,
    /// An interpolation.
    Resample,
    /// Runs bodies.
    Control,
}

/// A row of the table of functions of elements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FunctionInfo {
    /// The name in reports and text forms.
    pub name: &'static str,
    /// The number of its parameters.
    pub parameters: usize,
    /// The elements that it takes and gives.
    pub class: FunctionClass,
    /// What it makes of finite numbers.
    pub range: Range,
    /// Whether it rounds nothing: of elements of a type it gives one of that type.
    pub exact: bool,
    /// Operations of a vector unit that an element takes.
    pub work: f64,
    /// The operator of ONNX that is this function.
    pub onnx: Option<Onnx>,
}

/// An operator of ONNX.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Onnx {
    /// Its name.
    pub name: &'static str,
    /// The first version of the operator set with this meaning.
    pub since: i64,
}

/// The elements that a function takes and gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FunctionClass {
    /// Numbers give numbers.
    Number,
    /// Real numbers give real numbers.
    Real,
    /// Truth values give truth values.
    Logical,
    /// Integers give integers, bit by bit.
    Bits,
    /// Real numbers give truth values.
    Test,
    /// Numbers give truth values by their order.
    Order,
    /// Elements of any type give truth values.
    Same,
}

/// What a function makes of finite numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Range {
    /// Numbers from -1 to 1.
    Unit,
    /// Finite numbers.
    Finite,
    /// Finite numbers unless several of them are large.
    Grows,
    /// Infinities or NaN of some.
    Any,
}

impl FunctionClass {
    /// The element types that the first argument may have; `None`: all.
    pub fn takes(self) -> Option<DTypeClass> {
        match self {
            Self::Number | Self::Order => Some(DTypeClass::Number),
            Self::Real | Self::Test => Some(DTypeClass::Float),
            Self::Logical => Some(DTypeClass::Exactly(DType::Bool)),
            Self::Bits => Some(DTypeClass::Integer),
            Self::Same => None,
        }
    }

    /// The element type of the result for a first argument of type `x`.
    pub fn gives(self, x: DType) -> DType {
        match self {
            Self::Number | Self::Real | Self::Logical | Self::Bits => x,
            Self::Test | Self::Order | Self::Same => DType::Bool,
        }
    }
}

impl Class {
    const fn is_exact(self) -> bool {
        matches!(self, Self::Source | Self::Sizes | Self::View | Self::Movement | Self::Gather)
    }

    const fn folds(self) -> bool {
        match self {
            Self::Sizes | Self::Pointwise | Self::View | Self::Movement => true,
            Self::Gather | Self::Scatter | Self::Reduction => true,
            Self::Source
            | Self::Selection
            | Self::MatMul
            | Self::Convolution
            | Self::Pool
            | Self::Normalization
            | Self::Attention
            | Self::Recurrent
            | Self::Resample
            | Self::Control => false,
        }
    }
}

impl Op {
    /// The operation's row.
    pub fn info(&self) -> OpInfo {
        use Class as C;
        use Count::{AtLeast, Between, Exactly};
        match self {
            Self::Input => row("Input", C::Source, Exactly(0)).plain(),
            Self::Constant(_) => row("Constant", C::Source, Exactly(0)).plain(),
            Self::Iota(_) => row("Iota", C::Sizes, Exactly(0)),
            Self::Size(_) => row("Size", C::Sizes, Exactly(0)),
            Self::Unary(unary) => function(&unary.info(), 1),
            Self::Binary(binary) => function(&binary.info(), 2),
            Self::Select => row("Select", C::Pointwise, Exactly(3)).plain().exact(),
            Self::Cast { .. } => row("Cast", C::Pointwise, Exactly(1)),
            Self::BitCast(_) => row("BitCast", C::View, Exactly(1)),
            Self::Reshape(_) => row("Reshape", C::View, Exactly(1)),
            Self::Transpose(_) => row("Transpose", C::Movement, Exactly(1)),
            Self::Expand(_) => row("Expand", C::Movement, Exactly(1)),
            Self::Slice(_) => row("Slice", C::Movement, Exactly(1)),
            Self::Concat { .. } => row("Concat", C::Movement, AtLeast(1)),
            Self::Pad { mode: PadMode::Constant, .. } => row("Pad", C::Movement, Between(1, 2)),
            Self::Pad { .. } => row("Pad", C::Movement, Exactly(1)),
            Self::Gather { .. } => row("Gather", C::Gather, Exactly(2)),
            Self::GatherElements { .. } => row("GatherElements", C::Gather, Exactly(2)),
            Self::GatherNd { .. } => row("GatherNd", C::Gather, Exactly(2)),
            Self::ScatterElements { .. } => row("ScatterElements", C::Scatter, Exactly(3)),
            Self::ScatterNd { .. } => row("ScatterNd", C::Scatter, Exactly(3)),
            Self::Reduce { op, .. } => row(op.name(), C::Reduction, Exactly(1)),
            Self::ArgReduce { largest: true, .. } => row("ArgMax", C::Reduction, Exactly(1)),
            Self::ArgReduce { largest: false, .. } => row("ArgMin", C::Reduction, Exactly(1)),
            Self::Cumulative { op: CumulativeOp::Sum, .. } => {
                row("CumSum", C::Reduction, Exactly(1))
            }
            Self::Cumulative { op: CumulativeOp::Prod, .. } => {
                row("CumProd", C::Reduction, Exactly(1))
            }
            Self::TopK { .. } => row("TopK", C::Selection, Exactly(1)).exact(),
            Self::NonZero => row("NonZero", C::Selection, Exactly(1)).plain().exact(),
            Self::MatMul => row("MatMul", C::MatMul, Exactly(2)).plain(),
            Self::WideMatMul => row("WideMatMul", C::MatMul, Exactly(2)).plain(),
            Self::Conv(_) => row("Conv", C::Convolution, Between(2, 3)),
            Self::WideConv(_) => row("WideConv", C::Convolution, Exactly(2)),
            Self::ConvTranspose { .. } => row("ConvTranspose", C::Convolution, Between(2, 3)),
            Self::Pool(_) => row("Pool", C::Pool, Exactly(1)),
            Self::Softmax { log: false, .. } => row("Softmax", C::Normalization, Exactly(1)),
            Self::Softmax { log: true, .. } => row("LogSoftmax", C::Normalization, Exactly(1)),
            Self::LayerNorm { .. } => row("LayerNorm", C::Normalization, Between(1, 3)),
            Self::RmsNorm { .. } => row("RmsNorm", C::Normalization, Between(1, 2)),
            Self::Attention(_) => row("Attention", C::Attention, Between(3, 4)),
            Self::Rnn(attrs) => match attrs.cell {
                RnnCell::Lstm { .. } => row("Lstm", C::Recurrent, Between(3, 8)),
                RnnCell::Gru { .. } => row("Gru", C::Recurrent, Between(3, 6)),
                RnnCell::Plain => row("Rnn", C::Recurrent, Between(3, 6)),
            },
            Self::Resize(_) => row("Resize", C::Resample, Exactly(1)),
            Self::If { .. } => row("If", C::Control, AtLeast(1)),
            Self::Loop { .. } => row("Loop", C::Control, AtLeast(2)),
            Self::Scan(_) => row("Scan", C::Control, AtLeast(1)),
        }
    }

    /// The name in reports and errors, for example `MatMul`.
    pub fn name(&self) -> &'static str {
        self.info().name
    }

    /// Whether it is a matmul.
    pub fn is_matmul(&self) -> bool {
        self.info().class == Class::MatMul
    }

    /// Whether the operands may change places.
    pub fn commutes(&self) -> bool {
        matches!(self, Self::Binary(binary) if binary.commutes())
    }

    /// Every operation with a name of its own but inputs and constants, with some attributes.
    pub fn prototypes() -> Vec<Self> {
        let unaries = Unary::ALL.iter().copied().map(Self::Unary);
        let binaries = Binary::ALL.iter().copied().map(Self::Binary);
        let reduce = |&op: &ReduceOp| Self::Reduce { op, axes: Vec::new(), keep: false };
        let others = [movement(), selections(), layers(), bodies()].concat();
        unaries.chain(binaries).chain(ReduceOp::ALL.iter().map(reduce)).chain(others).collect()
    }
}

/// A row with attributes; whether it is exact, and folds, follows from its class.
const fn row(name: &'static str, class: Class, inputs: Count) -> OpInfo {
    let (exact, folds) = (class.is_exact(), class.folds());
    OpInfo { name, class, inputs, attributes: true, exact, folds, work: 0.0 }
}

/// The row of a function of elements.
fn function(info: &FunctionInfo, inputs: usize) -> OpInfo {
    let row = row(info.name, Class::Pointwise, Count::Exactly(inputs));
    OpInfo { attributes: info.parameters > 0, exact: info.exact, work: info.work, ..row }
}

impl OpInfo {
    const fn plain(self) -> Self {
        Self { attributes: false, ..self }
    }

    const fn exact(self) -> Self {
        Self { exact: true, ..self }
    }
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
        Op::WideMatMul,
        Op::Conv(conv()),
        Op::WideConv(conv()),
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
