//! The library executor on a GPU: which steps are calls of NVIDIA's libraries.
//!
//! In a program planned with [`Granularity::PerOp`](graphene_fusion::Granularity::PerOp), `TABLE` says which library
//! computes a step, if one does; every other step is a generated kernel of that one operation. What a library does not
//! take (sequences of several lengths, peepholes, other functions in a recurrent layer) is a kernel as well, or an
//! error that names the step.

use crate::device::cublaslt::{self, Gemm, Matmul, Operands};
use crate::device::cudnn::{self, Cell, Layer, Sizes, States};
use crate::device::{Bound, Buffer, Device, Library};
use crate::error::{Error, Result};
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Node;
use graphene_frontend::op::{Op, RnnAttrs, RnnCell, RnnDirection, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::groups::Executor;
use graphene_fusion::kernels::{Pointer, StepOperand};
use graphene_fusion::library::{self, Product, product};
use graphene_fusion::program::{BufferKind, Program, Step};
use graphene_ir::tensor::Scalar;
use std::fmt;

/// A step that a library computes in one call.
#[derive(Clone, PartialEq, Debug)]
pub enum Routine {
    /// A matrix product and its epilogue, by cuBLASLt.
    Product(Box<Product>),
    /// Softmax of rows, by cuDNN.
    Softmax(Rows),
    /// A recurrent layer, by cuDNN.
    Recurrent(Recurrence),
}

/// Softmax of rows without gaps.
#[derive(Clone, PartialEq, Debug)]
pub struct Rows {
    scalar: Scalar,
    /// The logarithm of it.
    log: bool,
    rows: Dim,
    columns: Dim,
}

/// A recurrent layer, and which of the step's operands are its.
#[derive(Clone, PartialEq, Debug)]
pub struct Recurrence {
    layer: Layer,
    steps: Dim,
    batch: Dim,
    /// The input, and the weights of inputs, of states, and the biases.
    x: usize,
    weights: [Option<usize>; 3],
    /// h and c before the first step.
    initial: [Option<usize>; 2],
    /// All h, and h and c after the last step.
    results: [Option<usize>; 3],
}

/// What may be a call: a step as a routine, if it is that one.
type Row = fn(&Program, &Step) -> Option<Routine>;

/// Which steps libraries compute; [`Routine::library`] says which library.
const TABLE: &[Row] = &[
    |program, step| product(program, step).map(Box::new).map(Routine::Product),
    |_, step| softmax(step).map(Routine::Softmax),
    |program, step| recurrent(program, step).map(Routine::Recurrent),
];

/// The call that a step is, if the plan leaves it to the library and one computes it.
pub fn routine(program: &Program, step: &Step) -> Option<Routine> {
    let left = step.executor == Executor::Library;
    left.then(|| TABLE.iter().find_map(|row| row(program, step))).flatten()
}

impl Routine {
    /// Whose it is.
    pub fn library(&self) -> Library {
        match self {
            Self::Product(_) => Library::CublasLt,
            Self::Softmax(_) | Self::Recurrent(_) => Library::Cudnn,
        }
    }
}

/// The one operation of a step whose operands have no gaps.
fn alone(step: &Step) -> Option<&Node> {
    let is_source = |node: &Node| matches!(node.op(), Op::Input | Op::Constant(_));
    let mut nodes = step.body.nodes().map(|(_, node)| node).filter(|node| !is_source(node));
    let node = nodes.next().filter(|_| nodes.next().is_none())?;
    let packed =
        step.inputs.iter().chain(&step.outputs).all(|operand| operand.view.is_contiguous());
    packed.then_some(node)
}

fn scalar(dtype: DType) -> Option<Scalar> {
    match dtype {
        DType::F32 => Some(Scalar::F32),
        DType::F16 => Some(Scalar::F16),
        DType::BF16 => Some(Scalar::Bf16),
        _ => None,
    }
}

fn softmax(step: &Step) -> Option<Rows> {
    let node = alone(step)?;
    let ty = node.outputs().first()?;
    match node.op() {
        Op::Softmax { axis, log } if axis + 1 == ty.rank() => {
            let (columns, outer) = ty.shape.split_last()?;
            let rows = outer.iter().fold(Dim::from(1), |rows, dim| &rows * dim);
            Some(Rows { scalar: scalar(ty.dtype)?, log: *log, rows, columns: columns.clone() })
        }
        _ => None,
    }
}

/// Places of a layer's inputs, as [`Op::Rnn`] has them.
const WEIGHTS: [usize; 3] = [1, 2, 3];
const LENGTHS: usize = 4;
const INITIAL: [usize; 2] = [5, 6];
const PEEPHOLES: usize = 7;

fn recurrent(program: &Program, step: &Step) -> Option<Recurrence> {
    let node = alone(step)?;
    let Op::Rnn(attrs) = node.op() else { return None };
    let body = &step.body;
    let value = |place: usize| node.inputs().get(place).copied().flatten();
    let input = |place: usize| {
        let value = value(place)?;
        body.inputs().iter().position(|id| id.value() == value)
    };
    if attrs.clip.is_some() || value(LENGTHS).is_some() || value(PEEPHOLES).is_some() {
        return None;
    }
    let ty = body.ty(value(0)?);
    let [steps, batch, inputs] = &ty.shape[..] else { return None };
    // The library has no layer that runs from the last step only.
    let directions = match attrs.direction {
        RnnDirection::Forward => 1,
        RnnDirection::Bidirectional => 2,
        RnnDirection::Reverse => return None,
    };
    let weights = WEIGHTS.map(input);
    let is_weight = |number: usize| {
        let buffer = program.buffer(step.inputs[number].buffer);
        matches!(buffer.kind, BufferKind::Weight(_))
    };
    let known = weights.iter().flatten().all(|&number| is_weight(number));
    let places = WEIGHTS.into_iter().chain(INITIAL);
    let made_inside = |place: usize| value(place).is_some() && input(place).is_none();
    if places.into_iter().any(made_inside) || !known || weights[..2].contains(&None) {
        return None;
    }
    let layer = Layer {
        cell: cell(attrs, directions)?,
        scalar: scalar(ty.dtype).filter(|scalar| *scalar != Scalar::Bf16)?,
        directions,
        inputs: usize::try_from(inputs.known()?).ok()?,
        hidden: attrs.hidden,
        bias: weights[2].is_some(),
    };
    let result = |number: u32| body.outputs().iter().position(|(_, value)| value.output == number);
    Some(Recurrence {
        layer,
        steps: steps.clone(),
        batch: batch.clone(),
        x: input(0)?,
        weights,
        initial: INITIAL.map(input),
        results: [0, 1, 2].map(result),
    })
}

/// The library's cell, which has ONNX's default functions and no others.
fn cell(attrs: &RnnAttrs, directions: usize) -> Option<Cell> {
    use Unary::{Relu, Sigmoid, Tanh};
    let rows: &[(RnnCell, &[Unary], Cell)] = &[
        (RnnCell::Lstm { input_forget: false }, &[Sigmoid, Tanh, Tanh], Cell::Lstm),
        (RnnCell::Gru { linear_before_reset: true }, &[Sigmoid, Tanh], Cell::Gru),
        (RnnCell::Plain, &[Tanh], Cell::Tanh),
        (RnnCell::Plain, &[Relu], Cell::Relu),
    ];
    let is = |row: &&(RnnCell, &[Unary], Cell)| {
        row.0 == attrs.cell && attrs.activations == row.1.repeat(directions)
    };
    rows.iter().find(is).map(|row| row.2)
}

impl fmt::Display for Routine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Product(product) => write!(f, "cublaslt {product}"),
            Self::Softmax(Rows { scalar, log, rows, columns }) => {
                let what = if *log { "logarithm of softmax" } else { "softmax" };
                write!(f, "cudnn {what} of [{rows}, {columns}] {scalar:?}")
            }
            Self::Recurrent(recurrence) => {
                let Recurrence { layer, steps, batch, results, .. } = recurrence;
                let Layer { cell, scalar, directions, inputs, hidden, bias } = layer;
                let bias = if *bias { ", biases" } else { "" };
                write!(f, "cudnn {cell:?} of [{steps}, {batch}, {inputs}] {scalar:?}: ")?;
                write!(f, "{hidden} units, directions {directions}{bias}")?;
                let names = ["all h", "last h", "last c"].iter().zip(results);
                for (name, _) in names.filter(|(_, result)| result.is_some()) {
                    write!(f, ", {name}")?;
                }
                Ok(())
            }
        }
    }
}

/// The libraries that a module's steps call.
#[derive(Default)]
pub(super) struct Libraries {
    products: Option<cublaslt::Context>,
    layers: Option<cudnn::Context>,
}

/// A call with its weights on the device.
pub(super) enum Loaded {
    Product(Box<Product>),
    Softmax(Rows),
    Recurrent(Recurrence, Box<cudnn::Weights>),
}

/// A step that can be launched with no more arguments.
pub(super) enum Call {
    /// A generated kernel.
    Kernel(Box<Bound>),
    Product(Box<Matmul>),
    Softmax(Box<cudnn::Softmax>),
    Recurrent(Box<cudnn::Recurrent>),
}

impl Call {
    /// Launches, behind all that was launched before, and does not wait.
    pub(super) fn launch(&self) -> Result<()> {
        match self {
            Self::Kernel(bound) => bound.launch(),
            Self::Product(product) => product.launch(),
            Self::Softmax(softmax) => softmax.launch(),
            Self::Recurrent(layer) => layer.launch(),
        }
    }

    /// What computes the step: a library, or a kernel by its name.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Kernel(bound) => bound.kernel(),
            Self::Product(_) => "cublaslt",
            Self::Softmax(_) | Self::Recurrent(_) => "cudnn",
        }
    }
}

impl Libraries {
    /// Opens those that the calls need.
    pub(super) fn open<'a>(
        device: &Device,
        routines: impl Iterator<Item = &'a Routine> + Clone,
    ) -> Result<Libraries> {
        let needs = |library| routines.clone().any(|routine| routine.library() == library);
        let products = needs(Library::CublasLt).then(|| cublaslt::Context::new(device));
        let layers = needs(Library::Cudnn).then(|| cudnn::Context::new(device));
        Ok(Libraries { products: products.transpose()?, layers: layers.transpose()? })
    }

    /// How many products were timed.
    pub(super) fn timed(&self) -> usize {
        self.products.as_ref().map_or(0, cublaslt::Context::timed)
    }

    fn products(&self) -> Result<&cublaslt::Context> {
        self.products.as_ref().ok_or(Error::MissingLibrary(Library::CublasLt))
    }

    fn layers(&self) -> Result<&cudnn::Context> {
        self.layers.as_ref().ok_or(Error::MissingLibrary(Library::Cudnn))
    }

    /// Brings a call's weights to the device; `tensors` are the program's, by buffer.
    pub(super) fn load(
        &self,
        device: &Device,
        routine: Routine,
        step: &Step,
        tensors: &[Option<Tensor>],
    ) -> Result<Loaded> {
        let recurrence = match routine {
            Routine::Product(product) => return Ok(Loaded::Product(product)),
            Routine::Softmax(rows) => return Ok(Loaded::Softmax(rows)),
            Routine::Recurrent(recurrence) => recurrence,
        };
        let none: &[u8] = &[];
        let mut weights = [none; 3];
        for (bytes, number) in weights.iter_mut().zip(recurrence.weights) {
            let Some(number) = number else { continue };
            let tensor = tensors[step.inputs[number].buffer.index()].as_ref();
            let tensor =
                tensor.ok_or(Error::Unsupported { what: "weights that are no weights" })?;
            *bytes = tensor.bytes();
        }
        let weights = self.layers()?.load(device, recurrence.layer, weights)?;
        Ok(Loaded::Recurrent(recurrence, Box::new(weights)))
    }

    /// Gives a call its sizes and buffers; products that were not bound before are timed.
    pub(super) fn bind(
        &self,
        device: &Device,
        loaded: &Loaded,
        step: &Step,
        buffers: &[Buffer],
        bindings: &Bindings,
    ) -> Result<Call> {
        let input = |number: usize| &buffers[step.inputs[number].buffer.index()];
        let output = |number: usize| &buffers[step.outputs[number].buffer.index()];
        match loaded {
            Loaded::Product(product) => {
                let gemm = gemm(product, bindings)?;
                let operands = operands(product, &gemm, step, buffers, bindings)?;
                let bound = self.products()?.bind(device, &gemm, operands)?;
                Ok(Call::Product(Box::new(bound)))
            }
            Loaded::Softmax(Rows { scalar, log, rows, columns }) => {
                let shape = [size(rows, bindings)?, size(columns, bindings)?];
                let both = [input(0), output(0)];
                let bound = self.layers()?.softmax(device, *scalar, *log, shape, both)?;
                Ok(Call::Softmax(Box::new(bound)))
            }
            Loaded::Recurrent(recurrence, weights) => {
                let Recurrence { x, steps, batch, initial, results: [y, h, c], .. } = recurrence;
                let sizes = Sizes { steps: size(steps, bindings)?, batch: size(batch, bindings)? };
                let states = States {
                    x: input(*x).clone(),
                    initial: initial.map(|number| number.map(|number| input(number).clone())),
                    y: y.map(|number| output(number).clone()),
                    last: [h, c].map(|number| number.map(|number| output(number).clone())),
                };
                let bound = self.layers()?.recurrent(device, weights, sizes, states)?;
                Ok(Call::Recurrent(Box::new(bound)))
            }
        }
    }
}

fn size(dim: &Dim, bindings: &Bindings) -> Result<usize> {
    let size = dim.eval(bindings)?;
    usize::try_from(size).map_err(|_| Error::Negative { dim: dim.clone(), size })
}

/// A product with numbers.
fn gemm(product: &Product, bindings: &Bindings) -> Result<Gemm> {
    let of = |dim: &Dim| size(dim, bindings);
    let matrix = |matrix: &library::Matrix| -> Result<cublaslt::Matrix> {
        let (leading, apart) = (of(&matrix.leading)?, of(&matrix.apart)?);
        Ok(cublaslt::Matrix { leading, transposed: matrix.transposed, apart })
    };
    let none = Error::Unsupported { what: "a product of integers by cuBLASLt" };
    Ok(Gemm {
        batch: of(&product.batch)?,
        m: of(&product.rows)?,
        n: of(&product.columns)?,
        k: of(&product.depth)?,
        scalar: scalar(product.dtype).ok_or(none)?,
        a: matrix(&product.a)?,
        b: matrix(&product.b)?,
        c: product.addend.as_ref().map(matrix).transpose()?,
        d: matrix(&product.result)?,
        scale_bits: product.scale.to_bits(),
        bias: product.bias.is_some(),
        activation: product.activation,
        tf32: false,
    })
}

/// A product's operands from their first elements on.
fn operands(
    product: &Product,
    gemm: &Gemm,
    step: &Step,
    buffers: &[Buffer],
    bindings: &Bindings,
) -> Result<Operands> {
    let part = |pointer: &Pointer| {
        let of = match pointer.operand {
            StepOperand::Input(number) => &step.inputs[number],
            StepOperand::Output(number) => &step.outputs[number],
            StepOperand::Stack(_) | StepOperand::Scratch(_) => {
                return Err(Error::Unsupported { what: "a product of what is no operand" });
            }
        };
        let whole = &buffers[of.buffer.index()];
        let first = size(&pointer.offset, bindings)?.checked_mul(gemm.scalar.bytes() as usize);
        let first = first.ok_or(Error::TooLarge { what: "an offset" })?;
        whole.part(first, whole.len().saturating_sub(first))
    };
    let addend = product.addend.as_ref().map(|addend| part(&addend.pointer));
    Ok(Operands {
        a: part(&product.a.pointer)?,
        b: part(&product.b.pointer)?,
        c: addend.transpose()?,
        d: part(&product.result.pointer)?,
        bias: product.bias.as_ref().map(part).transpose()?,
    })
}
