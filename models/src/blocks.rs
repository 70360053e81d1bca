//! What several models share: linear layers, normalisation, activations and shape arithmetic, each
//! as the exporter prints it.

use crate::builder::{Attr, Builder, FLOAT, INT64};
use crate::error::ZooError;
use crate::options::Activation;
use crate::weights::Init;

/// Distribution of biases.
pub(crate) const BIAS: Init = Init { mean: 0.0, std: 0.02 };
/// Distribution of a normalisation's scale.
pub(crate) const SCALE: Init = Init { mean: 1.0, std: 0.1 };
/// Distribution of a normalisation's shift.
pub(crate) const SHIFT: Init = Init { mean: 0.0, std: 0.05 };

/// Distribution of a matrix with `fan_in` inputs whose standard deviation is 0.02 at 768, as BERT's.
pub(crate) fn matrix(fan_in: usize) -> Init {
    Init { mean: 0.0, std: 0.02 * (768.0 / fan_in as f32).sqrt() }
}

/// A module in the exported program: the scope of its nodes and the path of its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    pub(crate) scope: String,
    pub(crate) path: String,
}

impl Module {
    pub(crate) fn root() -> Self {
        Self { scope: String::new(), path: String::new() }
    }

    /// The child whose attribute path is `name`, such as `attention/output`.
    pub(crate) fn child(&self, name: &str) -> Self {
        let dotted = name.replace('/', ".");
        let path = if self.path.is_empty() { dotted } else { format!("{}.{dotted}", self.path) };
        Self { scope: format!("{}/{name}", self.scope), path }
    }

    /// Path of the parameter `name`.
    pub(crate) fn parameter(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

/// `x·W + b` on a tensor of more than two dims: MatMul with the folded transpose, then Add.
pub(crate) fn linear(
    b: &mut Builder,
    module: &Module,
    x: &str,
    (inputs, outputs): (usize, usize),
) -> Result<String, ZooError> {
    let weight = b.matmul_weight(&module.parameter("weight"), [inputs, outputs], matrix(inputs))?;
    let matmul = b.op(&module.scope, "MatMul", &[x, &weight], &[]);
    let bias = b.weight(&module.parameter("bias"), &[outputs], BIAS)?;
    Ok(b.op(&module.scope, "Add", &[&bias, &matmul], &[]))
}

/// `x·Wᵀ + b` on a matrix: Gemm with the weight as the module holds it, `[outputs, inputs]`.
pub(crate) fn gemm(
    b: &mut Builder,
    module: &Module,
    x: &str,
    (inputs, outputs): (usize, usize),
    init: Init,
) -> Result<String, ZooError> {
    let weight = b.weight(&module.parameter("weight"), &[outputs, inputs], init)?;
    let bias = b.weight(&module.parameter("bias"), &[outputs], BIAS)?;
    let attributes = [Attr::Float("alpha", 1.0), Attr::Float("beta", 1.0), Attr::Int("transB", 1)];
    Ok(b.op(&module.scope, "Gemm", &[x, &weight, &bias], &attributes))
}

/// LayerNorm over the last dim, whole where the opset has it and the caller did not decline it.
pub(crate) fn layer_norm(
    b: &mut Builder,
    module: &Module,
    x: &str,
    width: usize,
    epsilon: f32,
) -> Result<String, ZooError> {
    let scope = module.scope.as_str();
    let weight = b.weight(&module.parameter("weight"), &[width], SCALE)?;
    let bias = b.weight(&module.parameter("bias"), &[width], SHIFT)?;
    if b.whole_layer_norm() {
        let attributes = [Attr::Int("axis", -1), Attr::Float("epsilon", epsilon)];
        return Ok(b.op(scope, "LayerNormalization", &[x, &weight, &bias], &attributes));
    }
    let mean = reduce_mean(b, scope, x);
    let centred = b.op(scope, "Sub", &[x, &mean], &[]);
    let two = b.float(scope, 2.0);
    let square = b.op(scope, "Pow", &[&centred, &two], &[]);
    let variance = reduce_mean(b, scope, &square);
    let epsilon = b.float(scope, epsilon);
    let guarded = b.op(scope, "Add", &[&variance, &epsilon], &[]);
    let deviation = b.op(scope, "Sqrt", &[&guarded], &[]);
    let normal = b.op(scope, "Div", &[&centred, &deviation], &[]);
    let scaled = b.op(scope, "Mul", &[&normal, &weight], &[]);
    Ok(b.op(scope, "Add", &[&scaled, &bias], &[]))
}

/// Mean over the last dim, which stays with size 1.
fn reduce_mean(b: &mut Builder, scope: &str, x: &str) -> String {
    // From opset 18 on the axes are an input.
    if b.opset() < 18 {
        return b.op(scope, "ReduceMean", &[x], &[Attr::Ints("axes", &[-1])]);
    }
    let axes = b.ints(scope, &[-1]);
    b.op(scope, "ReduceMean", &[x, &axes], &[])
}

/// An activation as the exporter prints it.
pub(crate) fn activate(b: &mut Builder, scope: &str, x: &str, activation: Activation) -> String {
    match activation {
        Activation::Relu => b.op(scope, "Relu", &[x], &[]),
        Activation::Gelu => gelu(b, scope, x),
        Activation::Tanh => b.op(scope, "Tanh", &[x], &[]),
        Activation::Sigmoid => b.op(scope, "Sigmoid", &[x], &[]),
        Activation::Silu => {
            let gate = b.op(scope, "Sigmoid", &[x], &[]);
            b.op(scope, "Mul", &[x, &gate], &[])
        }
    }
}

/// The exact GELU by Erf; whole from opset 20 on.
pub(crate) fn gelu(b: &mut Builder, scope: &str, x: &str) -> String {
    if b.opset() >= 20 {
        return b.op(scope, "Gelu", &[x], &[Attr::Str("approximate", "none")]);
    }
    let root = b.float(scope, std::f32::consts::SQRT_2);
    let argument = b.op(scope, "Div", &[x, &root], &[]);
    let erf = b.op(scope, "Erf", &[&argument], &[]);
    let one = b.float(scope, 1.0);
    let sum = b.op(scope, "Add", &[&erf, &one], &[]);
    let y = b.op(scope, "Mul", &[x, &sum], &[]);
    let half = b.float(scope, 0.5);
    b.op(scope, "Mul", &[&y, &half], &[])
}

/// ALBERT's GELU, written out in its source: `x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
pub(crate) fn gelu_tanh(b: &mut Builder, scope: &str, x: &str) -> String {
    let half = b.float(scope, 0.5);
    let halved = b.op(scope, "Mul", &[x, &half], &[]);
    let three = b.float(scope, 3.0);
    let cube = b.op(scope, "Pow", &[x, &three], &[]);
    let factor = b.float(scope, 0.044_715);
    let cubic = b.op(scope, "Mul", &[&cube, &factor], &[]);
    let inner = b.op(scope, "Add", &[x, &cubic], &[]);
    let root = b.float(scope, 0.797_884_6);
    let argument = b.op(scope, "Mul", &[&inner, &root], &[]);
    let tanh = b.op(scope, "Tanh", &[&argument], &[]);
    let one = b.float(scope, 1.0);
    let sum = b.op(scope, "Add", &[&tanh, &one], &[]);
    b.op(scope, "Mul", &[&halved, &sum], &[])
}

/// Size of one dim as a scalar: Shape, then Gather.
pub(crate) fn size(b: &mut Builder, scope: &str, x: &str, axis: i64) -> String {
    let shape = b.op(scope, "Shape", &[x], &[]);
    let index = b.int(scope, axis);
    b.op(scope, "Gather", &[&shape, &index], &[Attr::Int("axis", 0)])
}

/// One entry of a shape that is put together by Concat.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry<'a> {
    /// A scalar made by the graph.
    Scalar(&'a str),
    /// A number known when the model was exported.
    Known(i64),
}

/// A shape put together by Unsqueeze and Concat.
pub(crate) fn shape_of(b: &mut Builder, scope: &str, entries: &[Entry]) -> String {
    let parts: Vec<String> = entries
        .iter()
        .map(|entry| match entry {
            Entry::Scalar(scalar) => b.unsqueeze(scope, scalar, 0),
            Entry::Known(size) => b.ints(scope, &[*size]),
        })
        .collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    b.op(scope, "Concat", &parts, &[Attr::Int("axis", 0)])
}

/// `x` expanded to a shape in which -1 stands for the size that `x` has.
pub(crate) fn expand(b: &mut Builder, scope: &str, x: &str, entries: &[Entry]) -> String {
    let shape = shape_of(b, scope, entries);
    let flat = b.ints(scope, &[-1]);
    let shape = b.reshape(scope, &shape, &flat);
    let count = b.op(scope, "Shape", &[&shape], &[]);
    let ones = b.op(scope, "ConstantOfShape", &[&count], &[Attr::Int64s("value", &[1], &[1])]);
    let minus = b.int(scope, -1);
    let unknown = b.op(scope, "Mul", &[&ones, &minus], &[]);
    let same = b.op(scope, "Equal", &[&shape, &unknown], &[]);
    let shape = b.op(scope, "Where", &[&same, &ones, &shape], &[]);
    b.op(scope, "Expand", &[x, &shape], &[])
}

/// `table[:, :size]` of a table `[1, positions]` held as a constant.
pub(crate) fn slice_to(b: &mut Builder, scope: &str, table: &str, size: &str) -> String {
    let axis = b.ints(scope, &[1]);
    let start = b.ints(scope, &[0]);
    let end = b.unsqueeze(scope, size, 0);
    let step = b.ints(scope, &[1]);
    b.op(scope, "Slice", &[table, &start, &end, &axis, &step], &[])
}

/// Cast to f32 or i64, the two that the exporter inserts around masks and sizes.
pub(crate) fn cast(b: &mut Builder, scope: &str, x: &str, float: bool) -> String {
    let to = i64::from(if float { FLOAT } else { INT64 });
    b.op(scope, "Cast", &[x], &[Attr::Int("to", to)])
}
