//! What a vendor's library computes in one call, on NVIDIA GPUs: a matrix product with what its own epilogues do.
//!
//! cuBLASLt computes `D = activation(scale · A·B + C + bias)`. `ROWS` is the table of which operation is which of its
//! parts; [`Granularity::PerOp`](crate::Granularity::PerOp) groups a product with them, as it groups nothing else.
//! Its operands may be transposed, have gaps between rows, and come in batches at even distances: changes of view that
//! only products read are views then, as in any framework that calls the library. [`product`] is the call of a step.

use crate::executor::is_real;
use crate::groups::Family;
use crate::kernels::{Pointer, StepOperand};
use crate::layout::{is_view, view_of};
use crate::program::{Operand, Program, Step};
use crate::view::{Mode, View, stride};
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::{Binary, Op, Unary};
use graphene_frontend::tensor::Tensor;
use half::{bf16, f16};
use std::fmt;

/// One call for a batch of products: `result = activation(scale · a·b + addend + bias)`.
#[derive(Clone, PartialEq, Debug)]
pub struct Product {
    /// The elements of all operands; sums and the scale are of single precision.
    pub dtype: DType,
    /// How many products there are.
    pub batch: Dim,
    /// Rows of A and of the result.
    pub rows: Dim,
    /// Columns of B and of the result.
    pub columns: Dim,
    /// Columns of A, and rows of B.
    pub depth: Dim,
    /// `[rows, depth]`.
    pub a: Matrix,
    /// `[depth, columns]`.
    pub b: Matrix,
    /// `[rows, columns]`.
    pub addend: Option<Matrix>,
    /// `[rows, columns]`.
    pub result: Matrix,
    /// A row of as many elements as there are columns, side by side.
    pub bias: Option<Pointer>,
    /// What products are multiplied by.
    pub scale: f32,
    /// What is applied last.
    pub activation: Option<Activation>,
}

/// A batch of matrices in an operand's buffer.
#[derive(Clone, PartialEq, Debug)]
pub struct Matrix {
    /// Where its first element lies.
    pub pointer: Pointer,
    /// Elements from row to row, or from column to column where it is transposed; the others lie side by side.
    pub leading: Dim,
    /// Whether the elements of a column lie side by side.
    pub transposed: bool,
    /// Elements from one matrix to the next; zero where all are one.
    pub apart: Dim,
}

/// A function that the library applies to sums.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activation {
    /// max(x, 0)
    Relu,
    /// GELU by a hyperbolic tangent: the library has no other.
    GeluTanh,
}

/// What an operation is to a call.
enum Part {
    Scale(f32),
    Bias(ValueId),
    Addend(ValueId),
    Activation(Activation),
}

/// A row: the library's word, when it applies it, and which operation on a value it is.
struct Row {
    name: &'static str,
    stage: Stage,
    part: fn(&Graph, NodeId, ValueId) -> Option<Part>,
}

/// The order in which the library does things. It adds in any order, and does everything else once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Product,
    Scale,
    Add,
    Activation,
}

/// What cuBLASLt's own epilogues do.
const ROWS: &[Row] = &[
    Row { name: "alpha", stage: Stage::Scale, part: scale },
    Row { name: "EPILOGUE_BIAS", stage: Stage::Add, part: bias },
    Row { name: "C, beta = 1", stage: Stage::Add, part: addend },
    Row { name: "EPILOGUE_RELU", stage: Stage::Activation, part: relu },
    Row { name: "EPILOGUE_GELU", stage: Stage::Activation, part: gelu },
];

fn scale(graph: &Graph, id: NodeId, value: ValueId) -> Option<Part> {
    let inputs = graph.node(id).inputs();
    let (first, second) = (inputs[0]?, *inputs.get(1)?.as_ref()?);
    let factor = match graph.node(id).op() {
        Op::Binary(Binary::Mul) if first == value => number(graph.constant(second)?)?,
        Op::Binary(Binary::Mul) => number(graph.constant(first)?)?,
        Op::Binary(Binary::Div) if first == value => number(graph.constant(second)?)?.recip(),
        _ => return None,
    };
    factor.is_finite().then_some(Part::Scale(factor))
}

fn bias(graph: &Graph, id: NodeId, value: ValueId) -> Option<Part> {
    let other = other_addend(graph, id, value)?;
    let (shape, columns) = (&graph.ty(other).shape, graph.ty(value).shape.last()?);
    let [outer @ .., last] = &shape[..] else { return None };
    let row = last == columns && outer.iter().all(|size| *size == 1);
    // One number stands in the body, not in memory.
    (row && graph.ty(other).elements() != 1).then_some(Part::Bias(other))
}

fn addend(graph: &Graph, id: NodeId, value: ValueId) -> Option<Part> {
    let other = other_addend(graph, id, value)?;
    let same = graph.ty(other).shape == graph.ty(value).shape;
    (same && graph.ty(other).elements() != 1).then_some(Part::Addend(other))
}

fn relu(graph: &Graph, id: NodeId, _: ValueId) -> Option<Part> {
    let is = *graph.node(id).op() == Op::Unary(Unary::Relu);
    is.then_some(Part::Activation(Activation::Relu))
}

fn gelu(graph: &Graph, id: NodeId, _: ValueId) -> Option<Part> {
    let is = *graph.node(id).op() == Op::Unary(Unary::GeluTanh);
    is.then_some(Part::Activation(Activation::GeluTanh))
}

fn other_addend(graph: &Graph, id: NodeId, value: ValueId) -> Option<ValueId> {
    let node = graph.node(id);
    let [Some(first), Some(second)] = node.inputs()[..] else { return None };
    let sum = *node.op() == Op::Binary(Binary::Add);
    sum.then_some(if first == value { second } else { first })
}

fn number(tensor: &Tensor) -> Option<f32> {
    let one = tensor.len() == 1;
    match tensor.dtype() {
        DType::F32 => tensor.as_slice::<f32>().ok()?.first().copied(),
        DType::F16 => tensor.as_slice::<f16>().ok()?.first().map(|x| x.to_f32()),
        DType::BF16 => tensor.as_slice::<bf16>().ok()?.first().map(|x| x.to_f32()),
        _ => None,
    }
    .filter(|_| one)
}

/// A product, and the operations after it that the same call computes.
struct Chain {
    nodes: Vec<NodeId>,
    scale: f32,
    bias: Option<ValueId>,
    addend: Option<ValueId>,
    activation: Option<Activation>,
}

/// Follows a product as long as one operation alone reads what there is, and a row of the table takes that one.
fn chain(graph: &Graph, product: NodeId, taken: &dyn Fn(NodeId) -> bool) -> Chain {
    let mut chain =
        Chain { nodes: vec![product], scale: 1.0, bias: None, addend: None, activation: None };
    let (mut value, mut stage) = (product.value(), Stage::Product);
    let mut used: Vec<&str> = Vec::new();
    while graph.outputs().iter().all(|(_, given)| *given != value) {
        let [(reader, _)] = graph.uses(value.node)[..] else { break };
        if taken(reader) || graph.ty(reader.value()) != graph.ty(value) {
            break;
        }
        let fits = |row: &&Row| {
            let later = row.stage > stage || (row.stage == Stage::Add && stage == Stage::Add);
            later && !used.contains(&row.name)
        };
        let found = ROWS.iter().filter(fits);
        let found = found.filter_map(|row| Some((row, (row.part)(graph, reader, value)?))).next();
        let Some((row, part)) = found else { break };
        match part {
            Part::Scale(factor) => chain.scale = factor,
            Part::Bias(bias) => chain.bias = Some(bias),
            Part::Addend(addend) => chain.addend = Some(addend),
            Part::Activation(activation) => chain.activation = Some(activation),
        }
        used.push(row.name);
        chain.nodes.push(reader);
        (value, stage) = (reader.value(), row.stage);
    }
    chain
}

/// What calls of the library do to a graph where every operation is a launch.
pub(crate) struct Calls {
    /// For each node whether it is a change of view that stays one, because products alone read it.
    pub(crate) views: Vec<bool>,
    /// Products with what the library computes in the same call, each with several operations.
    pub(crate) groups: Vec<Vec<NodeId>>,
}

/// Finds the calls; what is made of constants is none.
pub(crate) fn calls(graph: &Graph, constant: &[bool]) -> Calls {
    let mut taken = vec![false; graph.len()];
    let mut groups = Vec::new();
    for (id, node) in graph.nodes() {
        let product = *node.op() == Op::MatMul && is_real(node.outputs()[0].dtype);
        if !product || constant[id.index()] {
            continue;
        }
        let Chain { nodes, .. } = chain(graph, id, &|id| taken[id.index()]);
        if nodes.len() > 1 {
            nodes.iter().for_each(|id| taken[id.index()] = true);
            groups.push(nodes);
        }
    }
    Calls { views: views(graph, constant), groups }
}

/// Which transposes, slices and expansions stay views.
fn views(graph: &Graph, constant: &[bool]) -> Vec<bool> {
    let mut lies: Vec<Option<View>> = vec![None; graph.len()];
    let mut stays = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        if !is_view(node.op()) || constant[id.index()] {
            continue;
        }
        let Some(input) = node.inputs()[0] else { continue };
        let of = lies[input.node.index()].clone().filter(|_| input.output == 0);
        let of = of.unwrap_or_else(|| View::contiguous(&graph.ty(input).shape));
        let view = view_of(node.op(), &of);
        let free = matches!(node.op(), Op::Reshape(_));
        let view = view.filter(|view| free || is_read_as(graph, id, view));
        stays[id.index()] = !free && view.is_some();
        lies[id.index()] = view;
    }
    stays
}

/// Whether all that reads the node's value takes it as this view: products, and what moves its elements anyway.
fn is_read_as(graph: &Graph, id: NodeId, view: &View) -> bool {
    let uses = graph.uses(id);
    let given = graph.outputs().iter().any(|(_, value)| value.node == id);
    !given
        && !uses.is_empty()
        && uses.iter().all(|&(reader, _)| match graph.node(reader).op() {
            Op::MatMul => is_operand(graph, reader, view),
            op @ Op::Reshape(_) => {
                view_of(op, view).is_some_and(|view| is_read_as(graph, reader, &view))
            }
            op @ (Op::Transpose(_) | Op::Slice(_) | Op::Expand(_)) => view_of(op, view).is_some(),
            _ => false,
        })
}

/// The order of dims in memory in which a copy that only products read is written, so that it moves runs of elements:
/// the library reads either of the last two dims side by side.
pub(crate) fn copied_order(graph: &Graph, id: NodeId, view: &View) -> Option<Vec<usize>> {
    let uses = graph.uses(id);
    let product = |id: NodeId| *graph.node(id).op() == Op::MatMul;
    let given = graph.outputs().iter().any(|(_, value)| value.node == id);
    let [.., row, column] = &view.modes[..] else { return None };
    let turned = row.stride == 1 && column.stride != 1 && is_real(graph.ty(id.value()).dtype);
    let alone = !given && !uses.is_empty() && uses.iter().all(|&(reader, _)| product(reader));
    let mut order: Vec<usize> = (0..view.modes.len()).collect();
    order.swap(view.modes.len() - 2, view.modes.len() - 1);
    (turned && alone).then_some(order)
}

/// Whether the library reads an operand of this product so.
fn is_operand(graph: &Graph, product: NodeId, view: &View) -> bool {
    let ty = graph.ty(product.value());
    let (Some(outer), Some(own)) = (ty.rank().checked_sub(2), view.modes.len().checked_sub(2))
    else {
        return false;
    };
    let shape = [&ty.shape[..outer], &view.shape()[own..]].concat();
    let view = view.expand(&shape);
    is_real(ty.dtype) && view.is_some_and(|view| lies(&view, outer).is_some())
}

/// How matrices lie whose rows are the axes from `outer` on but for the last: the stride from row to row or column to
/// column, whether they are transposed, and the stride from matrix to matrix.
fn lies(view: &View, outer: usize) -> Option<(Dim, bool, Dim)> {
    let [modes @ .., column] = &view.modes[..] else { return None };
    let (batch, rows) = modes.split_at(outer);
    let (apart, row) = (stride(batch)?, stride(rows)?);
    let one_row = rows.iter().all(|mode| mode.size == 1);
    let forward = |dim: &Dim| dim.lower_bound().is_some_and(|least| least >= 0);
    let usable = |dim: &Dim| dim.known() != Some(0) && forward(dim) && forward(&apart);
    if column.size == 1 || column.stride == 1 {
        // From the only row to the next it may be any distance.
        let leading = if one_row { column.size.clone() } else { row };
        return (usable(&leading)).then_some((leading, false, apart));
    }
    let transposed = (one_row || row == 1) && usable(&column.stride);
    transposed.then(|| (column.stride.clone(), true, apart))
}

/// The call that computes a step, if one does.
pub fn product(program: &Program, step: &Step) -> Option<Product> {
    let body = &*step.body;
    let is_product = |id: &NodeId| *body.node(*id).op() == Op::MatMul;
    let id = body.nodes().map(|(id, _)| id).find(is_product)?;
    let dtype = body.ty(id.value()).dtype;
    if step.family != Family::MatMul || !is_real(dtype) {
        return None;
    }
    let chain = chain(body, id, &|_| false);
    let computed = |id: &NodeId| !matches!(body.node(*id).op(), Op::Input | Op::Constant(_));
    let all = body.nodes().map(|(id, _)| id).filter(computed).count() == chain.nodes.len();
    let last = chain.nodes.last().map(|id| id.value());
    let [(_, given)] = body.outputs() else { return None };
    if !all || last != Some(*given) {
        return None;
    }
    let read = |value: ValueId| {
        let number = body.inputs().iter().position(|id| id.value() == value)?;
        let operand = &step.inputs[number];
        let same = program.buffer(operand.buffer).dtype == dtype;
        same.then_some((StepOperand::Input(number), operand))
    };
    let inputs = body.node(id).inputs();
    let (a, b) = (read(inputs[0]?)?, read(inputs[1]?)?);
    let addend = match chain.addend {
        Some(value) => Some(read(value)?),
        None => None,
    };
    let bias = match chain.bias {
        Some(value) => Some(row(read(value)?)?),
        None => None,
    };
    let result = (StepOperand::Output(0), step.outputs.first()?);
    let shape = &body.ty(id.value()).shape;
    let operands =
        Operands { shape, depth: a.1.view.modes.last()?.size.clone(), a, b, addend, result };
    let (batch, rows, [a, b, result], addend) =
        operands.matrices(true).or_else(|| operands.matrices(false))?;
    let (columns, depth) = (shape.last()?.clone(), operands.depth.clone());
    let Chain { scale, activation, .. } = chain;
    Some(Product {
        dtype,
        batch,
        rows,
        columns,
        depth,
        a,
        b,
        addend,
        result,
        bias,
        scale,
        activation,
    })
}

type Given<'a> = (StepOperand, &'a Operand);

/// A row of elements side by side.
fn row((operand, Operand { view, .. }): Given<'_>) -> Option<Pointer> {
    let (last, outer) = view.modes.split_last()?;
    let row = last.stride == 1 && outer.iter().all(|mode| mode.size == 1 || mode.stride == 0);
    row.then(|| Pointer { operand, offset: view.offset.clone() })
}

/// A product's operands.
struct Operands<'a> {
    shape: &'a [Dim],
    depth: Dim,
    a: Given<'a>,
    b: Given<'a>,
    addend: Option<Given<'a>>,
    result: Given<'a>,
}

impl Operands<'_> {
    /// Number of matrices, their rows, A, B and the result, and the addend; as one matrix of all rows if all of them
    /// share B and that is asked for.
    fn matrices(&self, one: bool) -> Option<(Dim, Dim, [Matrix; 3], Option<Matrix>)> {
        let outer = self.shape.len().checked_sub(2)?;
        let (batch, [rows, columns]) = self.shape.split_at(outer) else { return None };
        let first = if one { 0 } else { outer };
        let expanded = |(_, of): Given<'_>, last: [&Dim; 2]| {
            let shape: Vec<Dim> = batch.iter().chain(last).cloned().collect();
            of.view.expand(&shape)
        };
        let matrix = |given: Given<'_>, view: View| {
            let (leading, transposed, apart) = lies(&view, first)?;
            let pointer = Pointer { operand: given.0, offset: view.offset };
            Some(Matrix { pointer, leading, transposed, apart })
        };
        let depth = &self.depth;
        let a = matrix(self.a, expanded(self.a, [rows, depth])?)?;
        let mut of_b = expanded(self.b, [depth, columns])?;
        if one {
            let own = of_b.modes.split_off(outer);
            let shared = |mode: &Mode| mode.stride == 0 || mode.size == 1;
            of_b.modes.iter().all(shared).then_some(())?;
            of_b.modes = own;
        }
        let b = matrix(self.b, of_b)?;
        let result = matrix(self.result, expanded(self.result, [rows, columns])?)?;
        let addend = match self.addend {
            Some(addend) => Some(matrix(addend, expanded(addend, [rows, columns])?)?),
            None => None,
        };
        if result.transposed || addend.as_ref().is_some_and(|addend| addend.transposed) {
            return None;
        }
        let all = |dims: &[Dim]| dims.iter().fold(Dim::from(1), |all, dim| &all * dim);
        let (count, rows) = match one {
            true => (Dim::from(1), all(&self.shape[..=outer])),
            false => (all(batch), rows.clone()),
        };
        Some((count, rows, [a, b, result], addend))
    }
}

/// Prints as `b × [s, 64]·[64, s] f16: 0.125·in0[64, 64*s apart]·in1'[64, 64*s apart] + in2 row -> Relu`: the leading
/// strides, and an apostrophe at what is transposed.
impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, batch, rows, columns, depth, .. } = self;
        if *batch != 1 {
            write!(f, "{batch} × ")?;
        }
        write!(f, "[{rows}, {depth}]·[{depth}, {columns}] {dtype}: ")?;
        if self.scale != 1.0 {
            write!(f, "{}·", self.scale)?;
        }
        write!(f, "{}·{}", self.a, self.b)?;
        if let Some(addend) = &self.addend {
            write!(f, " + {addend}")?;
        }
        if let Some(bias) = &self.bias {
            write!(f, " + {} row", At(bias))?;
        }
        if let Some(activation) = self.activation {
            write!(f, ", {activation:?}")?;
        }
        write!(f, " -> {}", self.result)
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let turned = if self.transposed { "'" } else { "" };
        write!(f, "{}{turned}[{}", At(&self.pointer), self.leading)?;
        if self.apart != 0 {
            write!(f, ", {} apart", self.apart)?;
        }
        f.write_str("]")
    }
}

/// Prints as `in0+32`.
struct At<'a>(&'a Pointer);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.operand {
            StepOperand::Input(number) => write!(f, "in{number}")?,
            StepOperand::Output(number) => write!(f, "out{number}")?,
            StepOperand::Stack(number) => write!(f, "stack{number}")?,
            StepOperand::Scratch(number) => write!(f, "scratch{number}")?,
        }
        if self.0.offset != 0 {
            write!(f, "+{}", self.0.offset)?;
        }
        Ok(())
    }
}
