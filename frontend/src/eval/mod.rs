//! The reference evaluator: what every operation means, in plain loops.
//!
//! It is what all other executors are compared with, so it prefers the obvious to the fast. Elements are
//! decoded to `f64` or `i128`, computed with, and rounded once per operation, but for the softmax of 16-bit types,
//! [`softmax_by_steps`]; what only moves elements moves their bits. [`evaluate`] runs a graph, [`evaluate_op`] a
//! single operation.

mod attention;
mod control;
mod conv;
mod error;
mod gather;
mod matmul;
mod movement;
mod norm;
pub(crate) mod number;
mod pointwise;
mod pool;
mod reduce;
mod resize;
mod rnn;
mod softmax;
mod spatial;
mod walk;

pub use error::EvalError;
pub use movement::pad_sources;
pub use resize::{Taps, nearest_sources, resize_taps};
pub use softmax::{HalfType, softmax_by_steps};

use crate::dim::{Bindings, Dim};
use crate::dtype::DType;
use crate::graph::{Graph, Node};
use crate::op::Op;
use crate::tensor::Tensor;
use crate::types::TensorType;

/// Bodies within bodies are followed to this depth.
const MAX_DEPTH: usize = 32;

/// The outputs of a graph for these inputs, a tensor per graph input in order. Symbols take their sizes
/// from the shapes of the tensors.
///
/// # Errors
/// [`EvalError::InputCount`], [`EvalError::Input`] and [`EvalError::InputSize`] if the tensors are not what
/// the graph takes, [`EvalError::Node`] for an operation that has no value.
pub fn evaluate(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
    evaluate_with(graph, inputs, &Bindings::new())
}

/// As [`evaluate`], with sizes that are known beforehand.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_with(
    graph: &Graph,
    inputs: &[Tensor],
    bindings: &Bindings,
) -> Result<Vec<Tensor>, EvalError> {
    run(graph, inputs, bindings, 0)
}

/// The outputs of one operation. Shapes are those of the tensors; dims in attributes take their values from
/// the bindings.
///
/// # Errors
/// [`EvalError`] if the operation has no value for the inputs; [`Op::Input`] never has one.
pub fn evaluate_op(
    op: &Op,
    inputs: &[Option<&Tensor>],
    bindings: &Bindings,
) -> Result<Vec<Tensor>, EvalError> {
    apply(op, Args(inputs), bindings, 0)
}

/// Evaluates a graph `depth` bodies deep.
fn run(
    graph: &Graph,
    inputs: &[Tensor],
    bindings: &Bindings,
    depth: usize,
) -> Result<Vec<Tensor>, EvalError> {
    if depth > MAX_DEPTH {
        return Err(EvalError::Depth(MAX_DEPTH));
    }
    let mut bindings = bindings.clone();
    bind_inputs(graph, inputs, &mut bindings)?;
    let mut store = Store::new(graph);
    for (&id, tensor) in graph.inputs().iter().zip(inputs) {
        store.values[id.index()] = vec![Some(tensor.clone())];
    }
    for (id, node) in graph.nodes() {
        if *node.op() == Op::Input {
            continue;
        }
        let operands: Vec<_> = node
            .inputs()
            .iter()
            .map(|input| input.and_then(|value| store.get(value.node.index(), value.output)))
            .collect();
        let named = |source| EvalError::Node {
            node: node.name().to_owned(),
            op: node.op().name(),
            source: Box::new(source),
        };
        let results = apply(node.op(), Args(&operands), &bindings, depth).map_err(named)?;
        check_results(node, &results, &mut bindings).map_err(named)?;
        store.values[id.index()] = results.into_iter().map(Some).collect();
        store.release(id.index(), node);
    }
    let outputs = graph.outputs().iter();
    outputs
        .map(|(_, value)| {
            store.get(value.node.index(), value.output).cloned().ok_or(EvalError::Missing(0))
        })
        .collect()
}

/// The values that are still needed, and how often.
struct Store {
    values: Vec<Vec<Option<Tensor>>>,
    uses: Vec<Vec<usize>>,
}

impl Store {
    fn new(graph: &Graph) -> Self {
        let mut uses: Vec<_> =
            graph.nodes().map(|(_, node)| vec![0; node.outputs().len()]).collect();
        let used = graph.nodes().flat_map(|(_, node)| node.inputs().iter().flatten());
        for value in used.chain(graph.outputs().iter().map(|(_, value)| value)) {
            uses[value.node.index()][value.output as usize] += 1;
        }
        Self { values: vec![Vec::new(); uses.len()], uses }
    }

    fn get(&self, node: usize, output: u32) -> Option<&Tensor> {
        self.values[node].get(output as usize)?.as_ref()
    }

    /// Drops what was used for the last time, and results that nobody uses.
    fn release(&mut self, index: usize, node: &Node) {
        for value in node.inputs().iter().flatten() {
            let (from, output) = (value.node.index(), value.output as usize);
            self.uses[from][output] -= 1;
            if self.uses[from][output] == 0 {
                self.values[from][output] = None;
            }
        }
        for (value, &uses) in self.values[index].iter_mut().zip(&self.uses[index]) {
            if uses == 0 {
                *value = None;
            }
        }
    }
}

/// Checks the tensors against the inputs' types, and binds the symbols in them.
fn bind_inputs(graph: &Graph, inputs: &[Tensor], bindings: &mut Bindings) -> Result<(), EvalError> {
    let expected = graph.inputs().len();
    if inputs.len() != expected {
        return Err(EvalError::InputCount { expected, actual: inputs.len() });
    }
    let pairs = || graph.inputs().iter().map(|&id| graph.node(id)).zip(inputs);
    for (node, tensor) in pairs() {
        let ty = &node.outputs()[0];
        if ty.dtype != tensor.dtype() || ty.rank() != tensor.shape().len() {
            return Err(wrong_input(node, tensor));
        }
        for (dim, &size) in ty.shape.iter().zip(tensor.shape()) {
            if let Some(symbol) = dim.as_symbol().filter(|symbol| bindings.get(symbol).is_none()) {
                let size = i64::try_from(size).unwrap_or(i64::MAX);
                let named = |source| EvalError::InputSize { name: node.name().to_owned(), source };
                bindings.bind(symbol.clone(), size).map_err(named)?;
            }
        }
    }
    for (node, tensor) in pairs() {
        let named = |source| EvalError::InputSize { name: node.name().to_owned(), source };
        let shape = node.outputs()[0].bound_shape(bindings).map_err(named)?;
        if shape != tensor.shape() {
            return Err(wrong_input(node, tensor));
        }
    }
    Ok(())
}

fn wrong_input(node: &Node, tensor: &Tensor) -> EvalError {
    EvalError::Input {
        name: node.name().to_owned(),
        expected: Box::new(node.outputs()[0].clone()),
        actual: Box::new(TensorType::of(tensor)),
    }
}

/// Compares results with the inferred types. A symbol that stands for a size known only now is bound to it.
fn check_results(
    node: &Node,
    results: &[Tensor],
    bindings: &mut Bindings,
) -> Result<(), EvalError> {
    for (ty, result) in node.outputs().iter().zip(results) {
        let refuse = || {
            let actual = Box::new(TensorType::of(result));
            Err(EvalError::Output { expected: Box::new(ty.clone()), actual })
        };
        if ty.dtype != result.dtype() || ty.rank() != result.shape().len() {
            return refuse();
        }
        for (dim, &size) in ty.shape.iter().zip(result.shape()) {
            let size = i64::try_from(size).unwrap_or(i64::MAX);
            let new = dim.as_symbol().filter(|symbol| bindings.get(symbol).is_none());
            match (new, dim.eval(bindings)) {
                (Some(symbol), _) if size > 0 => bindings.bind(symbol.clone(), size)?,
                (_, Ok(expected)) if expected != size => return refuse(),
                _ => {}
            }
        }
    }
    Ok(())
}

/// The operands of an operation.
#[derive(Clone, Copy)]
struct Args<'a>(&'a [Option<&'a Tensor>]);

impl<'a> Args<'a> {
    fn get(self, index: usize) -> Result<&'a Tensor, EvalError> {
        self.optional(index).ok_or(EvalError::Missing(index))
    }

    fn optional(self, index: usize) -> Option<&'a Tensor> {
        self.0.get(index).copied().flatten()
    }

    /// All operands from `start` on.
    fn all_from(self, start: usize) -> Result<Vec<Tensor>, EvalError> {
        (start..self.0.len()).map(|index| self.get(index).cloned()).collect()
    }
}

/// The value of a dim that is a size.
fn size(dim: &Dim, bindings: &Bindings) -> Result<usize, EvalError> {
    let value = dim.eval(bindings)?;
    usize::try_from(value).map_err(|_| EvalError::Size { dim: dim.clone(), value })
}

fn sizes(dims: &[Dim], bindings: &Bindings) -> Result<Vec<usize>, EvalError> {
    dims.iter().map(|dim| size(dim, bindings)).collect()
}

fn offsets(dims: &[Dim], bindings: &Bindings) -> Result<Vec<i64>, EvalError> {
    dims.iter().map(|dim| Ok(dim.eval(bindings)?)).collect()
}

fn iota(count: usize) -> Result<Tensor, EvalError> {
    let mut values: Vec<i64> = number::reserve(&[count])?;
    values.extend(0..count as i64);
    number::from_bits(DType::I64, vec![count], values)
}

fn ranges(
    axes: &[crate::op::SliceAxis],
    bindings: &Bindings,
) -> Result<Vec<movement::Range>, EvalError> {
    let range = |axis: &crate::op::SliceAxis| {
        Ok(movement::Range {
            axis: axis.axis,
            start: axis.start.eval(bindings)?,
            len: size(&axis.len, bindings)?,
            step: axis.step,
        })
    };
    axes.iter().map(range).collect()
}

/// Evaluates an operation of a graph `depth` bodies deep.
fn apply(
    op: &Op,
    args: Args<'_>,
    bindings: &Bindings,
    depth: usize,
) -> Result<Vec<Tensor>, EvalError> {
    let one = |result: Result<Tensor, EvalError>| result.map(|tensor| vec![tensor]);
    match op {
        Op::Input => Err(EvalError::Attribute("an input has no value of its own")),
        Op::Constant(tensor) => Ok(vec![tensor.clone()]),
        Op::Iota(count) => one(iota(size(count, bindings)?)),
        Op::Size(dim) => Ok(vec![Tensor::scalar(dim.eval(bindings)?)]),
        Op::Unary(unary) => one(pointwise::unary(*unary, args.get(0)?)),
        Op::Binary(binary) => one(pointwise::binary(*binary, args.get(0)?, args.get(1)?)),
        Op::Select => one(pointwise::select(args.get(0)?, args.get(1)?, args.get(2)?)),
        Op::Cast { to, saturate } => one(pointwise::cast(args.get(0)?, *to, *saturate)),
        Op::BitCast(to) => one(movement::bit_cast(args.get(0)?, *to)),
        Op::Reshape(dims) => one(movement::reshape(args.get(0)?, sizes(dims, bindings)?)),
        Op::Transpose(perm) => one(movement::transpose(args.get(0)?, perm)),
        Op::Expand(dims) => one(movement::expand(args.get(0)?, sizes(dims, bindings)?)),
        Op::Slice(axes) => one(movement::slice(args.get(0)?, &ranges(axes, bindings)?)),
        Op::Concat { axis } => {
            let all = (0..args.0.len()).map(|i| args.get(i)).collect::<Result<Vec<_>, _>>()?;
            one(movement::concat(&all, *axis))
        }
        Op::Pad { mode, before, after } => {
            let (before, after) = (offsets(before, bindings)?, offsets(after, bindings)?);
            one(movement::pad(args.get(0)?, args.optional(1), *mode, &before, &after))
        }
        Op::Gather { axis } => one(gather::gather(args.get(0)?, args.get(1)?, *axis)),
        Op::GatherElements { axis } => {
            one(gather::gather_elements(args.get(0)?, args.get(1)?, *axis))
        }
        Op::GatherNd { batch_dims } => {
            one(gather::gather_nd(args.get(0)?, args.get(1)?, *batch_dims))
        }
        Op::ScatterElements { axis, combine } => {
            let (x, indices, updates) = (args.get(0)?, args.get(1)?, args.get(2)?);
            one(gather::scatter_elements(x, indices, updates, *axis, *combine))
        }
        Op::ScatterNd { combine } => {
            one(gather::scatter_nd(args.get(0)?, args.get(1)?, args.get(2)?, *combine))
        }
        Op::Reduce { op, axes, keep } => one(reduce::reduce(args.get(0)?, *op, axes, *keep)),
        Op::ArgReduce { largest, axis, keep, last } => {
            one(reduce::arg_reduce(args.get(0)?, *axis, *largest, *keep, *last))
        }
        Op::Cumulative { op, axis, exclusive, reverse } => {
            one(reduce::cumulative(args.get(0)?, *op, *axis, *exclusive, *reverse))
        }
        Op::TopK { k, axis, largest } => {
            let k = size(k, bindings)?;
            Ok(reduce::top_k(args.get(0)?, k, *axis, *largest)?.into())
        }
        Op::NonZero => one(gather::non_zero(args.get(0)?)),
        Op::MatMul => one(matmul::matmul(args.get(0)?, args.get(1)?)),
        Op::WideMatMul => one(matmul::wide(args.get(0)?, args.get(1)?)),
        Op::Conv(attrs) => one(conv::conv(args.get(0)?, args.get(1)?, args.optional(2), attrs)),
        Op::WideConv(attrs) => one(conv::wide(args.get(0)?, args.get(1)?, attrs)),
        Op::ConvTranspose { conv, output_padding } => {
            let (x, w, bias) = (args.get(0)?, args.get(1)?, args.optional(2));
            one(conv::conv_transpose(x, w, bias, conv, output_padding))
        }
        Op::Pool(attrs) => pool::pool(args.get(0)?, attrs),
        Op::Softmax { axis, log } => one(norm::softmax(args.get(0)?, *axis, *log)),
        Op::LayerNorm { axis, epsilon } => {
            norm::layer_norm(args.get(0)?, args.optional(1), args.optional(2), *axis, *epsilon)
        }
        Op::RmsNorm { axis, epsilon } => {
            one(norm::rms_norm(args.get(0)?, args.optional(1), *axis, *epsilon))
        }
        Op::Attention(attrs) => {
            let (q, k, v) = (args.get(0)?, args.get(1)?, args.get(2)?);
            one(attention::attention(q, k, v, args.optional(3), attrs))
        }
        Op::Rnn(attrs) => {
            let operands = rnn::Operands {
                x: args.get(0)?,
                w: args.get(1)?,
                r: args.get(2)?,
                bias: args.optional(3),
                lengths: args.optional(4),
                h0: args.optional(5),
                c0: args.optional(6),
                peepholes: args.optional(7),
            };
            rnn::rnn(&operands, attrs)
        }
        Op::Resize(attrs) => {
            let sizes = sizes(&attrs.sizes, bindings)?;
            one(resize::resize(args.get(0)?, &sizes, attrs))
        }
        Op::If { then_branch, else_branch } => {
            control::branch(args, then_branch, else_branch, bindings, depth)
        }
        Op::Loop { body, carried } => control::repeat(args, body, *carried, bindings, depth),
        Op::Scan(attrs) => control::scan(args, attrs, bindings, depth),
    }
}

#[cfg(test)]
mod tests;
