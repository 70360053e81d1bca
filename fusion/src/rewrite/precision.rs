//! Running a model in other elements than its own: single precision in half precision.

use crate::base::error::FusionError;
use crate::base::rebuild::{InPlace, Rebuilt, Regrown, rebuilt};
use graphene_frontend::eval::evaluate_op;
use graphene_frontend::op::{Binary, Class, Op};
use graphene_frontend::{Bindings, DType, Graph, Node, NodeId, Tensor, TensorType, ValueId};
use std::collections::HashMap;

/// Constants of at most so many elements are converted as they stand, so that what looks at their values still can.
const SMALL: usize = 4096;

/// The graph with all values of single precision as elements of `to`, `f16` or `bf16`. Its inputs and outputs keep their
/// types; so do values of other types, arithmetic whose inputs and results are integers (positions, buckets, quantised
/// values), sums of integers until they are scaled, and operations that are defined on a type (bit casts, control flow with
/// bodies). Constants beyond the largest number of `to` become that number, so that masks stay finite.
///
/// A graph is converted when it has been rewritten: recognised operations keep their statistics in single precision,
/// and rules see a model's constants before they are rounded.
///
/// # Errors
/// [`FusionError::Rebuild`] if an operation refuses the inputs that it had: a defect of inference.
pub fn convert(graph: &Graph, to: DType) -> Result<Graph, FusionError> {
    let mut result = Regrown::default();
    // The half-precision copies of what stays in single precision, for readers that do not.
    let mut rounded: HashMap<ValueId, ValueId> = HashMap::new();
    let stays_single = stays_single(graph);
    let read_as_half = |id: NodeId| {
        let reads_half =
            |reader: NodeId| !stays_single[reader.index()] && !makes_integers(graph.node(reader));
        stays_single[id.index()] && graph.uses(id).iter().any(|&(reader, _)| reads_half(reader))
    };
    for (id, node) in graph.nodes() {
        let stays = stays_single[id.index()];
        let single = !stays && node.outputs().first().is_some_and(|ty| ty.dtype == DType::F32);
        match node.op() {
            Op::Input => {
                let value = result.copy(id, node)?.value();
                if single {
                    let half = result.at(node).cast(to, value)?;
                    result.renamed.insert(id.value(), half);
                }
            }
            Op::Constant(tensor) if single => {
                let half = converted(result.at(node), tensor, to)?;
                result.renamed.insert(id.value(), half);
            }
            Op::Constant(tensor) => {
                result.copy(id, node)?;
                if read_as_half(id) {
                    rounded.insert(id.value(), converted(result.at(node), tensor, to)?);
                }
            }
            op => {
                let reads_single = stays || makes_integers(node);
                let own = |v: ValueId| match rounded.get(&v) {
                    Some(&half) if !reads_single => half,
                    _ => result.renamed[&v],
                };
                let inputs: Vec<_> = node.inputs().iter().map(|v| v.map(own)).collect();
                let widens = matches!(op, Op::Cast { to: DType::F32, .. });
                let op = if single && widens { cast(to) } else { op.clone() };
                let half = (!stays && allows_half(&op))
                    .then(|| result.graph.add(node.name(), op, &inputs).ok());
                if let Some(made) = half.flatten() {
                    result.rename(id, node, made);
                    continue;
                }
                let values = unconverted(graph, result.at(node), &inputs, (!stays).then_some(to))?;
                if let (true, &[value]) = (read_as_half(id), &values[..]) {
                    rounded.insert(id.value(), result.at(node).cast(to, value)?);
                }
                let old = (0..).map(|output| ValueId { node: id, output });
                result.renamed.extend(old.zip(values));
            }
        }
    }
    let Regrown { graph: mut result, renamed } = result;
    for (name, value) in graph.outputs() {
        let mut at = InPlace { graph: &mut result, node: graph.node(value.node), name };
        let given = at.cast(graph.ty(*value).dtype, renamed[value])?;
        result.add_output(name, given);
    }
    Ok(result)
}

/// The graph with weights of attention in the half precision of its queries, keys and values, where a model casts scores
/// and values to single precision: exporters write that where the mask is of single precision. The model rounds scores
/// there; attention as one kernel rounds weights instead, as it does for a model that is in half precision throughout.
pub(crate) fn half_weights(graph: &Graph) -> Rebuilt<Graph> {
    rebuilt(graph, |mut at, id, inputs| {
        let found = (half_values(graph, id), inputs);
        let (Some(half), &[weights, Some(values)]) = found else { return Ok(None) };
        let values = at.graph.node(values.node).inputs()[0];
        let weights = at.add_optional(cast(half), &[weights])?;
        let sum = at.add_optional(Op::MatMul, &[Some(weights), values])?;
        at.cast(DType::F32, sum).map(Some)
    })
}

/// The type of the values, before their cast to single precision, that a matmul weights by a softmax of scores of that
/// type.
fn half_values(graph: &Graph, matmul: NodeId) -> Option<DType> {
    let [weights, values] = graph.operands(matmul.value(), &Op::MatMul)?;
    let widened = graph.operation(values);
    let (Op::Cast { to: DType::F32, .. }, &[Some(before)]) = widened else { return None };
    let half = graph.ty(before).dtype;
    let softmax =
        behind(graph, weights, |op| matches!(op, Op::Softmax { log: false, .. }), BEHIND)?;
    let scores = behind(graph, graph.node(softmax).inputs()[0]?, |op| *op == Op::MatMul, BEHIND)?;
    let of_half =
        matches!(half, DType::F16 | DType::BF16) && graph.ty(scores.value()).dtype == half;
    of_half.then_some(half)
}

/// How many operations [`behind`] looks through at most.
const BEHIND: usize = 8;

/// The first such operation behind a value, through what masks, guards, scales, casts and reshapes.
fn behind(graph: &Graph, value: ValueId, is: fn(&Op) -> bool, depth: usize) -> Option<NodeId> {
    let node = graph.node(value.node);
    if is(node.op()) {
        return Some(value.node);
    }
    let depth = depth.checked_sub(1)?;
    let passes = matches!(
        node.op(),
        Op::Binary(Binary::Add | Binary::Mul | Binary::Div)
            | Op::Select
            | Op::Cast { .. }
            | Op::Reshape(_)
    );
    let mut inputs = node.inputs().iter().flatten().filter(|_| passes);
    inputs.find_map(|&input| behind(graph, input, is, depth))
}

fn cast(to: DType) -> Op {
    Op::Cast { to, saturate: true }
}

/// Whether an operation means the same in half precision: not if it is about bits, nor if its bodies say what they
/// take.
fn allows_half(op: &Op) -> bool {
    !matches!(op, Op::BitCast(_) | Op::If { .. } | Op::Loop { .. } | Op::Scan(_))
}

/// For each node, whether it stays in single precision, as index arithmetic and scaled sums of integers do ([`scaled_sums`]). Index
/// arithmetic is computed from integers and constants alone, and read on the way to an integer: fp16 skips odd integers beyond
/// 2048, bf16 beyond 256, and a rounded logarithm moves a position to the next bucket.
fn stays_single(graph: &Graph) -> Vec<bool> {
    let single = |ty: &TensorType| ty.dtype == DType::F32;
    let mut stays_single = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        let mut inputs = node.inputs().iter().flatten();
        let counted =
            |value: &ValueId| !single(graph.ty(*value)) || stays_single[value.node.index()];
        let each = matches!(node.op().info().class, Class::Pointwise | Class::View);
        let counts = each || matches!(node.op(), Op::Constant(_));
        stays_single[id.index()] =
            counts && node.outputs().iter().all(single) && inputs.all(counted);
    }
    for (id, _) in graph.nodes().rev() {
        let needs =
            |reader: NodeId| stays_single[reader.index()] || makes_integers(graph.node(reader));
        stays_single[id.index()] &= graph.uses(id).iter().any(|&(reader, _)| needs(reader));
    }
    for id in scaled_sums(graph) {
        stays_single[id.index()] = true;
        for value in graph.node(id).inputs().iter().flatten() {
            let constant = graph.constant(*value).is_some_and(|x| x.dtype() == DType::F32);
            stays_single[value.node.index()] |= constant;
        }
    }
    stays_single
}

/// What stays in fp32 where sums of integers are scaled: the sums and their conversions, which may overflow fp16; their multiplications
/// by scales; and arithmetic on scales alone, which may underflow it.
fn scaled_sums(graph: &Graph) -> Vec<NodeId> {
    let mut sums = vec![false; graph.len()];
    let mut found = Vec::new();
    for (id, _) in graph.nodes() {
        let scale = match graph.operation(id.value()) {
            (Op::Cast { to: DType::F32, .. }, &[Some(x)]) if is_sum(graph, x) => Some(Vec::new()),
            (Op::WideMatMul | Op::WideConv(_), _) => Some(Vec::new()),
            (Op::Binary(op @ (Binary::Mul | Binary::Div)), &[Some(a), Some(b)]) => {
                match [a, b].map(|value| sums[value.node.index()]) {
                    [true, false] => scale_of(graph, b, BEHIND),
                    [false, true] if *op == Binary::Mul => scale_of(graph, a, BEHIND),
                    _ => None,
                }
            }
            _ => None,
        };
        if let Some(scale) = scale {
            sums[id.index()] = true;
            found.push(id);
            found.extend(scale);
        }
    }
    found
}

/// The arithmetic by which a scale is made of constants, and of values of one element; `None` for what is no scale.
fn scale_of(graph: &Graph, value: ValueId, depth: usize) -> Option<Vec<NodeId>> {
    let depth = depth.checked_sub(1)?;
    let made = match graph.operation(value) {
        (Op::Constant(_), _) => return Some(Vec::new()),
        (Op::Reshape(_), &[Some(x)]) => scale_of(graph, x, depth),
        (Op::Binary(Binary::Mul | Binary::Div), &[Some(a), Some(b)]) => {
            let both = scale_of(graph, a, depth).zip(scale_of(graph, b, depth));
            both.map(|(a, b)| [a, b].concat())
        }
        _ => None,
    };
    let one = graph.ty(value).shape.iter().all(|size| *size == 1);
    made.map(|nodes| [nodes, vec![value.node]].concat()).or_else(|| one.then(Vec::new))
}

/// Whether integers are sums, of a matmul or a convolution.
fn is_sum(graph: &Graph, integers: ValueId) -> bool {
    let adds = |op: &Op| matches!(op, Op::MatMul | Op::Conv(_));
    graph.ty(integers).dtype.is_integer() && behind(graph, integers, adds, BEHIND).is_some()
}

fn makes_integers(node: &Node) -> bool {
    matches!(node.op(), Op::Cast { to, .. } if to.is_integer())
}

/// A node on what it takes in the graph that it comes from, between conversions; what its outputs become.
fn unconverted(
    graph: &Graph,
    mut at: InPlace<'_>,
    inputs: &[Option<ValueId>],
    after: Option<DType>,
) -> Rebuilt<Vec<ValueId>> {
    let node = at.node;
    let mut given = inputs.to_vec();
    for (old, new) in node.inputs().iter().zip(&mut given) {
        let (Some(old), Some(value)) = (old, *new) else { continue };
        *new = Some(at.cast(graph.ty(*old).dtype, value)?);
    }
    let made = at.add_optional(node.op().clone(), &given)?.node;
    let values = (0..).zip(node.outputs()).map(|(output, ty)| {
        let to = after.filter(|_| ty.dtype == DType::F32).unwrap_or(ty.dtype);
        at.cast(to, ValueId { node: made, output })
    });
    values.collect()
}

/// A constant of single precision, within the range of `to`.
fn converted(mut at: InPlace<'_>, tensor: &Tensor, to: DType) -> Rebuilt<ValueId> {
    let elements = tensor.as_slice::<f32>().unwrap_or_default();
    if elements.len() > SMALL {
        // Weights are converted when the program is compiled, where they are read.
        let value = at.constant(tensor.clone());
        return at.cast(to, value);
    }
    let most = to.largest().map_or(f32::MAX, |most| most as f32);
    let within = |x: &f32| if x.is_nan() { *x } else { x.clamp(-most, most) };
    let within = Tensor::from_vec(tensor.shape().to_vec(), elements.iter().map(within).collect());
    let within = within.expect("as many elements as there were");
    let half = evaluate_op(&cast(to), &[Some(&within)], &Bindings::new()).ok();
    Ok(at.constant(half.and_then(|mut half| half.pop()).expect("real numbers convert")))
}
