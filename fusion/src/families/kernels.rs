//! Kernels of steps: from what a step computes, and where its operands lie, to one of Graphene's templates with its
//! parameters, and to what the launch gives it.
//!
//! A step is one launch of one kernel for each of its variants, or of one for all. Sizes and strides that depend on the
//! model's symbols are symbols of the kernel; a [`Launch`] says which dims they are, so that a new shape needs no other
//! kernel.
//!
//! | family | template | here |
//! |---|---|---|
//! | attention | [`template::fmha`](graphene_ir::template::fmha) | `kernels/attention.rs` |
//! | convolutions, poolings | [`template::conv`](graphene_ir::template::conv) | `kernels/conv.rs` |
//! | matmuls | [`template::gemm`](graphene_ir::template::gemm), [`multistage`](graphene_ir::template::multistage) | `kernels/matmul.rs` |
//! | chains of layers | [`template::mlp`](graphene_ir::template::mlp) | `kernels/mlp.rs` |
//! | reductions, other functions of rows | [`template::reduce`](graphene_ir::template::reduce), [`folds`](graphene_ir::template::folds) | `kernels/reduce.rs` |
//! | normalisations, rows of tables | [`template::rows`](graphene_ir::template::rows) | `kernels/rows.rs` |
//! | recurrent layers | [`template::recurrent`](graphene_ir::template::recurrent) | `kernels/recurrent.rs` |
//! | running sums | [`template::scan`](graphene_ir::template::scan) | `kernels/scan.rs` |
//! | pointwise, copies | [`template::pointwise`](graphene_ir::template::pointwise), [`transpose`](graphene_ir::template::transpose) | `kernels/pointwise.rs` |
//! | joins, surroundings, ranges | [`template::parts`](graphene_ir::template::parts) | `kernels/parts.rs` |
//!
//! `kernels/function.rs` makes [functions](graphene_ir::function) of what templates apply to elements.

mod alike;
mod attention;
mod conv;
mod function;
mod matmul;
mod matmul_layout;
mod mlp;
mod multiples;
mod operand;
mod parts;
mod pointwise;
pub(crate) mod recurrent;
mod reduce;
mod rows;
mod runs;
mod scan;
pub(crate) mod sums;

pub(crate) use alike::are_alike;
pub use alike::first_alike;
pub(crate) use conv::{adds_integers, lies_channels_last};
pub(crate) use function::Numbers;
pub(crate) use matmul_layout::MatMulLayout;
pub use multiples::launches;
pub(crate) use runs::has_call;
pub use runs::{Launched, Runs, runs};

use crate::base::groups::Family;
use crate::base::program::{Operand, Program, Step};
use crate::base::sizes::tiles;
use crate::base::variants::Variant;
use crate::base::view::View;
use graphene_frontend::dim::{Dim, DimError};
use graphene_frontend::{DType, ValueId};
use graphene_ir::schedule::dependent;
use graphene_ir::target::Target;
use graphene_ir::template::multistage::By;
use graphene_ir::{Arch, Feature, Kernel, Scalar};
use std::collections::BTreeMap;
use std::fmt;

/// A kernel that computes a step, and what it is launched with.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// The values of the kernel's symbols, in their order.
    pub symbols: Vec<Dim>,
    /// What the kernel's parameters point to, in their order.
    pub pointers: Vec<Pointer>,
    /// Weights that the kernel sees one after the other, without gaps: they are stacked so once, when the program is
    /// loaded.
    pub stacks: Vec<Vec<StepOperand>>,
    /// Scratch memory that the launch needs beside the step's operands.
    pub scratch: Vec<Scratch>,
    /// The numbers among its template's parameters, as `columns=128 stages=6`.
    pub parameters: String,
}

/// Scratch memory beside a step's operands: zeros before the first launch, and afterwards what launches leave there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scratch {
    /// The type of its elements.
    pub scalar: Scalar,
    /// How many there are.
    pub elements: Dim,
}

/// What a parameter points to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// Which of the step's operands.
    pub operand: StepOperand,
    /// Elements of the operand's buffer before the first that the kernel sees.
    pub offset: Dim,
}

impl Pointer {
    /// To the first element of an operand that is seen so.
    pub(crate) fn to(operand: StepOperand, view: &View) -> Self {
        Self { operand, offset: view.offset.clone() }
    }
}

/// An operand of a step, by its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StepOperand {
    /// What it reads.
    Input(usize),
    /// What it writes.
    Output(usize),
    /// Several inputs, all of each, one after the other: the launch's stack of this number.
    Stack(usize),
    /// The launch's own.
    Scratch(usize),
}

/// Prints as `in0+32`.
impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operand {
            StepOperand::Input(number) => write!(f, "in{number}")?,
            StepOperand::Output(number) => write!(f, "out{number}")?,
            StepOperand::Stack(number) => write!(f, "stack{number}")?,
            StepOperand::Scratch(number) => write!(f, "scratch{number}")?,
        }
        if self.offset != 0 {
            write!(f, "+{}", self.offset)?;
        }
        Ok(())
    }
}

/// Why no template takes a step.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// There is no template for it.
    #[error("no template for {0}")]
    Operation(&'static str),
    /// Templates do not compute with these elements.
    #[error("no template computes with {0}")]
    Elements(DType),
    /// Templates compute in single precision, which does not hold all integers.
    #[error("arithmetic on integers")]
    Integers,
    /// Operands lie as no template takes them.
    #[error("{0}")]
    Layout(&'static str),
    /// The parameters are none of the template's.
    #[error(transparent)]
    Template(#[from] graphene_ir::Error),
    /// A size that is asked for is none.
    #[error(transparent)]
    Size(#[from] DimError),
}

/// Refuses why, unless something holds.
fn ensure(holds: bool, why: Refusal) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(why) }
}

impl Refusal {
    /// The reason without the parameters that a template says behind it.
    pub fn in_short(&self) -> String {
        match self {
            Refusal::Template(graphene_ir::Error::Constraint(constraint)) => constraint.in_short(),
            other => other.to_string(),
        }
    }
}

/// A step that templates are asked for: its operands with the types of their elements.
struct Site<'a> {
    program: &'a Program,
    step: &'a Step,
    target: &'a Target,
    arch: Arch,
}

/// An operand of a step as the step sees it.
#[derive(Clone, Copy)]
struct TypedOperand<'a> {
    operand: StepOperand,
    scalar: Scalar,
    view: &'a View,
}

impl TypedOperand<'_> {
    /// Where it begins.
    fn pointer(&self) -> Pointer {
        Pointer::to(self.operand, self.view)
    }
}

/// The launches that a step's family makes.
fn of_family(program: &Program, step: &Step, target: &Target) -> Result<Vec<Launch>, Refusal> {
    let arch = target.arch().ok_or(Refusal::Operation("this target"))?;
    let site = Site { program, step, target, arch };
    let only = match step.family {
        Family::MatMul => return matmul::launches(&site),
        Family::Mlp => return mlp::launches(&site),
        Family::Fmha => return attention::launches(&site),
        Family::Convolution => return conv::launches(&site),
        Family::Pointwise => pointwise::launch(&site),
        // What pointwise kernels have no numbers for may still be moved.
        Family::Copy => pointwise::launch(&site).or_else(|refusal| parts::launch(&site, refusal)),
        // What keeps no rows in registers may still go through them several times.
        Family::Normalization => {
            rows::launch(&site).or_else(|refusal| reduce::launch(&site).map_err(|_| refusal))
        }
        Family::Gather => rows::launch(&site),
        Family::Reduction if scan::is_one(&step.body) => scan::launch(&site),
        Family::Reduction => reduce::launch(&site),
        Family::Recurrent => recurrent::launch(&site),
        Family::View | Family::Control => Err(Refusal::Operation(step.family.name())),
    };
    Ok(vec![only?])
}

impl<'a> Site<'a> {
    /// Stages in shared memory: so many where copies are asynchronous; else one is filled while one is used.
    fn stages(&self, ahead: i64) -> i64 {
        if self.arch.has(Feature::CpAsync) { ahead } else { 2 }
    }

    /// An operand, if templates compute with its elements.
    fn operand(&self, operand: StepOperand) -> Result<TypedOperand<'a>, Refusal> {
        let Operand { buffer, view } = match operand {
            StepOperand::Input(number) => &self.step.inputs[number],
            StepOperand::Output(number) => &self.step.outputs[number],
            StepOperand::Stack(_) => return Err(Refusal::Layout("a stack of operands")),
            StepOperand::Scratch(_) => return Err(Refusal::Operation("scratch memory")),
        };
        let scalar = scalar(self.program.buffers()[buffer.index()].dtype)?;
        Ok(TypedOperand { operand, scalar, view })
    }

    /// Whether single threads multiply such elements.
    fn is_by_threads(&self, scalar: Scalar) -> bool {
        By::is_threads(scalar, self.target.tf32)
    }

    /// Whether an operand is there before the program runs.
    fn is_weight(&self, operand: StepOperand) -> bool {
        let StepOperand::Input(number) = operand else { return false };
        let buffer = self.step.inputs[number].buffer;
        self.program.buffer(buffer).is_weight()
    }

    /// The operand that a value is; it is refused why, if it is no input of the body.
    fn read(&self, value: Option<ValueId>, why: &'static str) -> Result<TypedOperand<'a>, Refusal> {
        let number = value.and_then(|value| self.step.body.place_of_input(value));
        self.operand(StepOperand::Input(number.ok_or(Refusal::Operation(why))?))
    }

    /// A launch for each variant, beside a call of the library that of the kernel that stands in for it.
    fn launch_each(
        &self,
        launch: impl FnMut(&Variant) -> Result<Launch, Refusal>,
    ) -> Result<Vec<Launch>, Refusal> {
        let variants = &self.step.variants;
        variants.all().iter().map(|variant| variants.kernel(variant)).map(launch).collect()
    }

    /// The launch of a kernel whose symbols are these dims, by their names; it may start before its predecessors are done.
    fn launch(&self, (kernel, parameters): Made, dims: &Dims, pointers: Vec<Pointer>) -> Launch {
        self.launch_behind((dependent(kernel), parameters), dims, pointers)
    }

    /// The same of a kernel that starts when its predecessors are done: blocks that start early gather, as many as fit, on
    /// the cores that are left first, which is slow for long ones that do not fill all cores.
    fn launch_behind(&self, made: Made, dims: &Dims, pointers: Vec<Pointer>) -> Launch {
        let (kernel, parameters) = made;
        let symbols = kernel.symbols.iter().map(|symbol| {
            dims.get(symbol.name()).expect("a template says which symbols it has").clone()
        });
        Launch {
            symbols: symbols.collect(),
            kernel,
            pointers,
            stacks: Vec::new(),
            scratch: Vec::new(),
            parameters,
        }
    }
}

/// What a kernel's symbols stand for, by their names.
type Dims = BTreeMap<String, Dim>;

/// Dims by their names.
fn by_name<const N: usize>(dims: [(&str, Dim); N]) -> [(String, Dim); N] {
    dims.map(|(name, dim)| (name.to_owned(), dim))
}

/// A kernel, and the numbers among its template's parameters.
pub(crate) type Made = (Kernel, String);

/// The kernel of a template, and its numbers.
macro_rules! made {
    ($template:expr) => {{
        let template = $template;
        template.kernel().map(|kernel| (kernel, template.numbers()))
    }};
}
pub(crate) use made;

/// Bytes that an instruction moves at most, and at multiples of which it then begins.
pub(crate) const WIDTH: i64 = 16;

/// The elements that templates compute with.
pub(crate) fn scalar(dtype: DType) -> Result<Scalar, Refusal> {
    match dtype {
        DType::F32 => Ok(Scalar::F32),
        DType::F16 => Ok(Scalar::F16),
        DType::BF16 => Ok(Scalar::Bf16),
        DType::I32 => Ok(Scalar::I32),
        DType::I64 => Ok(Scalar::I64),
        DType::U32 => Ok(Scalar::U32),
        DType::U8 | DType::Bool => Ok(Scalar::U8),
        DType::I8 => Ok(Scalar::I8),
        other => Err(Refusal::Elements(other)),
    }
}

/// The elements as they lie, whatever they are: types of the same size are one.
pub(crate) fn bits(dtype: DType) -> Result<Scalar, Refusal> {
    scalar(dtype).or(match dtype.size() {
        1 => Ok(Scalar::U8),
        2 => Ok(Scalar::F16),
        4 => Ok(Scalar::U32),
        8 => Ok(Scalar::I64),
        _ => Err(Refusal::Elements(dtype)),
    })
}
