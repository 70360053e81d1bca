//! What quantised models compute on bytes, as integers, on a CPU.
//!
//! Exporters write a quantised convolution as one of reals between conversions: `DequantizeLinear`, `Conv`,
//! `QuantizeLinear`. Where images are bytes `q` less a zero point `z` times a scale `s`, and weights integers `n` times a
//! scale `t` for each filter, `Σ (q - z)s · nt = st · Σ (q - z)n`, and the last sum is one of integers: exact, where that
//! of reals is rounded after each term. The result is scaled, biased and quantised once more, so that it differs from the
//! other by the rounding of single precision: by one step of the next quantisation at most, where that rounds near a tie.
//! A matmul is the same. The largest of dequantised bytes is that of the bytes, bit for bit, and so is one that is chosen;
//! where the largest is quantised, bytes are what it is chosen from.
//!
//! Weights are constants of bytes under the same conversions, which import leaves as they are.

use super::ranges::either;
use super::tidy::pruned;
use crate::base::elements::number_of;
use crate::base::rebuild::{InPlace, Rebuilt, Replaced, rebuilt};
use graphene_frontend::eval::evaluate;
use graphene_frontend::op::{Binary, Op, PoolAttrs, PoolKind, Unary};
use graphene_frontend::{DType, Graph, Node, NodeId, Tensor, ValueId};
use std::collections::{HashMap, HashSet};

/// Integers of a weight differ by no more than this.
const MOST: i32 = 255;

/// Terms of a sum that 32 bits hold, whatever they are.
const DEEPEST: usize = 1 << 15;

/// With fewer filters a group than this, sums are of reals: nothing is gained by integers.
pub(crate) const FEW: usize = 4;

/// The graph with arithmetic on dequantised bytes as arithmetic on the bytes. Each matmul and convolution of integers has
/// operations of its own that widen the bytes that it reads, so that they can be one launch.
pub(crate) fn integer_arithmetic(graph: Graph) -> Rebuilt<Graph> {
    let has_bytes = graph.nodes().any(|(_, node)| is_byte(node.outputs()[0].dtype));
    let graph = if has_bytes { on_bytes(&graph)? } else { graph };
    let widens = graph.nodes().any(|(_, node)| multiplied_bytes(&graph, node).is_some());
    if widens { pruned(&unshared(&graph)?) } else { Ok(graph) }
}

fn on_bytes(graph: &Graph) -> Rebuilt<Graph> {
    let divisors = divisors(graph);
    // Divisions that the scale of what they divide takes over.
    let mut divided: HashSet<ValueId> = HashSet::new();
    let result = rebuilt(graph, |mut at, id, inputs| match at.node.op() {
        Op::Pool(pool) if is_largest(pool) => chosen(at, inputs),
        Op::Conv(_) | Op::MatMul => {
            let divisor = divisors.get(&id).copied();
            let made = multiplied(at, inputs, divisor.unwrap_or(1.0))?;
            divided.extend(made.filter(|_| divisor.is_some()));
            Ok(made)
        }
        Op::Gather { .. } => chosen(at, inputs),
        Op::Binary(Binary::Div) => Ok(inputs[0].filter(|x| divided.contains(x))),
        Op::Cast { to, .. } if is_byte(*to) => match same_bytes(&mut at, inputs[0])? {
            Some(bytes) => Ok(Some(bytes)),
            None => quantised_first(graph, at, inputs[0]),
        },
        _ => Ok(None),
    })?;
    pruned(&result)
}

pub(super) fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// The numbers that bytes are.
pub(super) fn range_of(dtype: DType) -> [f32; 2] {
    if dtype == DType::U8 { [0.0, 255.0] } else { [-128.0, 127.0] }
}

/// For each convolution and matmul that is read once, by a division by one number, that number.
fn divisors(graph: &Graph) -> HashMap<NodeId, f32> {
    let divisor = |(id, node): (NodeId, &Node)| {
        let reader = graph.node(graph.only_reader(id)?);
        let divides = matches!(node.op(), Op::Conv(_) | Op::MatMul)
            && *reader.op() == Op::Binary(Binary::Div)
            && reader.inputs()[0] == Some(id.value());
        let by = reader.input(1).filter(|_| divides)?;
        let number = number(graph, by)?;
        (number.is_normal() && reader.outputs()[0].shape == node.outputs()[0].shape)
            .then_some((id, number))
    };
    graph.nodes().filter_map(divisor).collect()
}

/// The number of single precision that a constant of one element is.
pub(super) fn number(graph: &Graph, value: ValueId) -> Option<f32> {
    number_of(graph, value).map(|number| number as f32)
}

/// Bytes less a zero point, times a scale, if there is one.
struct Dequantised {
    bytes: ValueId,
    zero: Option<ValueId>,
    scale: Option<ValueId>,
}

impl Dequantised {
    fn of(graph: &Graph, value: ValueId) -> Option<Self> {
        let (whole, scale) = scaled(graph, value)?;
        let fits = |scale| number(graph, scale).is_some_and(|x| x.is_normal() && x > 0.0);
        let same = graph.ty(whole).shape == graph.ty(value).shape;
        let (bytes, zero) = centered(graph, whole).filter(|_| same && scale.is_none_or(fits))?;
        Some(Self { bytes, zero, scale })
    }
}

/// The integers under a conversion to single precision, and the scale that they are multiplied by, if any.
fn scaled(graph: &Graph, value: ValueId) -> Option<(ValueId, Option<ValueId>)> {
    let converted = |x: ValueId| match graph.operation(x) {
        (Op::Cast { to: DType::F32, .. }, &[whole]) => whole,
        _ => None,
    };
    match graph.operands(value, &Op::Binary(Binary::Mul)) {
        Some([a, b]) => either(a, b, |x, scale| Some((converted(x)?, Some(scale)))),
        None => Some((converted(value)?, None)),
    }
}

/// The bytes, and the zero point if any, of `Cast(bytes) - zero`, of `Cast(bytes)`, or of bytes as they are.
fn widened(graph: &Graph, value: ValueId) -> Option<(ValueId, Option<ValueId>)> {
    let (wide, zero) = match graph.operation(value) {
        (Op::Binary(Binary::Sub), &[Some(wide), zero]) => (wide, zero),
        _ => (value, None),
    };
    let bytes = match graph.operation(wide) {
        (Op::Cast { to: DType::I32, .. }, &[Some(bytes)]) => bytes,
        _ if zero.is_none() => value,
        _ => return None,
    };
    let dtype = graph.ty(bytes).dtype;
    let same = graph.ty(bytes).shape == graph.ty(value).shape;
    let fits = zero.is_none_or(|zero| are_within(graph, zero, dtype));
    (is_byte(dtype) && same && fits).then_some((bytes, zero))
}

/// As [`widened`], with at most one zero point for all.
fn centered(graph: &Graph, value: ValueId) -> Option<(ValueId, Option<ValueId>)> {
    let single = |zero: ValueId| graph.ty(zero).shape.iter().all(|size| *size == 1);
    widened(graph, value).filter(|(_, zero)| zero.is_none_or(single))
}

/// As [`widened`], of constants alone.
fn constant_bytes(graph: &Graph, value: ValueId) -> Option<(ValueId, Option<ValueId>)> {
    let known = |value: ValueId| graph.constant(value).is_some();
    widened(graph, value).filter(|&(bytes, zero)| known(bytes) && zero.is_none_or(known))
}

fn are_within(graph: &Graph, value: ValueId, dtype: DType) -> bool {
    let [least, most] = range_of(dtype);
    let within = |x: &i32| (least..=most).contains(&(*x as f32));
    match graph.operation(value) {
        (Op::Cast { .. }, [Some(x)]) => graph.ty(*x).dtype == dtype,
        _ => graph.constant(value).is_some_and(|integers| {
            integers.as_slice::<i32>().is_ok_and(|integers| integers.iter().all(within))
        }),
    }
}

impl InPlace<'_> {
    fn centered(&mut self, bytes: ValueId, zero: Option<ValueId>) -> Rebuilt<ValueId> {
        let wide = self.cast(DType::I32, bytes)?;
        self.with(Binary::Sub, wide, zero)
    }

    /// A constant `[n, 1, …]` with so many trailing ones: a number for each filter.
    pub(super) fn per_filter(&mut self, numbers: Vec<f32>, axes: usize) -> ValueId {
        let shape = [vec![numbers.len()], vec![1; axes]].concat();
        self.constant(Tensor::from_vec(shape, numbers).expect("a dim of all of them"))
    }
}

/// The elements of a constant of single precision; `none` where there is no value.
pub(super) fn known(graph: &Graph, value: Option<ValueId>, none: &[f32]) -> Option<Vec<f32>> {
    let Some(value) = value else { return Some(none.to_vec()) };
    Some(graph.constant(value)?.as_slice::<f32>().ok()?.to_vec())
}

/// Whether a pooling takes the largest of windows that each have an element of the image: of nothing, the largest is less
/// than all numbers, which no byte says.
pub(super) fn is_largest(pool: &PoolAttrs) -> bool {
    let pads = pool.pads_before.iter().zip(&pool.pads_after);
    let within = |((before, after), kernel): ((&usize, &usize), &usize)| before.max(after) < kernel;
    pool.kind == (PoolKind::Max { indices: None })
        && !pool.ceil
        && pool.dilations.iter().all(|&dilation| dilation == 1)
        && pads.zip(&pool.kernel).all(within)
}

/// Chooses among bytes (the largest ones, or those that indices say) and dequantises these, instead of choosing among
/// dequantised bytes: positive scales keep the order.
fn chosen(mut at: InPlace<'_>, inputs: &[Option<ValueId>]) -> Replaced {
    let found = inputs[0].and_then(|x| Dequantised::of(at.graph, x));
    let Some(Dequantised { bytes, zero, scale }) = found else { return Ok(None) };
    let mut inputs = inputs.to_vec();
    inputs[0] = Some(bytes);
    let bytes = at.add_optional(at.node.op().clone(), &inputs)?;
    let whole = at.centered(bytes, zero)?;
    let real = at.cast(DType::F32, whole)?;
    at.with(Binary::Mul, real, scale).map(Some)
}

/// The number that an operation makes of another one beside a constant, if it keeps the order of numbers.
pub(super) fn in_order(op: &Op, x: f32, constant: Option<f32>) -> Option<f32> {
    let positive = constant.filter(|by| by.is_normal() && *by > 0.0);
    Some(match op {
        Op::Unary(Unary::Round) => x.round_ties_even(),
        Op::Unary(Unary::Relu) => x.max(0.0),
        Op::Binary(Binary::Mul) => x * positive?,
        Op::Binary(Binary::Div) => x / positive?,
        Op::Binary(Binary::Add) => x + constant?,
        Op::Binary(Binary::Sub) => x - constant?,
        Op::Binary(Binary::Min) => x.min(constant?),
        Op::Binary(Binary::Max) => x.max(constant?),
        _ => return None,
    })
}

/// Quantises what windows are on instead of the largest of each, if nothing else is done with these, and all that is done
/// keeps the order of numbers: then the largest are those of bytes.
fn quantised_first(graph: &Graph, mut at: InPlace<'_>, input: Option<ValueId>) -> Replaced {
    let (dtype, shape) = (at.node.outputs()[0].dtype, &at.node.outputs()[0].shape);
    let (mut node, mut value) = (at.node, input);
    let mut steps: Vec<(Op, Option<ValueId>)> = Vec::new();
    let (pool, x) = loop {
        let (Some(before), Some(made)) = (node.input(0), value) else { return Ok(None) };
        if graph.only_reader(before.node).is_none() || graph.ty(before).shape != *shape {
            return Ok(None);
        }
        node = graph.node(before.node);
        match at.graph.operation(made) {
            (Op::Pool(pool), &[Some(x)]) if is_largest(pool) => break (pool.clone(), x),
            (op, &[x, ref constant @ ..]) if matches!(constant, [] | [Some(_)]) => {
                steps.push((op.clone(), constant.first().copied().flatten()));
                value = x;
            }
            _ => return Ok(None),
        }
    };
    let mut range = [f32::NEG_INFINITY, f32::INFINITY];
    for (op, constant) in steps.iter().rev() {
        let constant = constant.and_then(|constant| number(at.graph, constant));
        let ends = range.map(|x| in_order(op, x, constant));
        let [Some(low), Some(high)] = ends else { return Ok(None) };
        range = [low, high];
    }
    let [least, most] = range_of(dtype);
    let fits = range[0] >= least && range[1] <= most;
    let kept = |op: &Op| *op == Op::Unary(Unary::Relu);
    // Dequantised bytes are numbers, of which one is the largest.
    if !fits || Dequantised::of(at.graph, at.graph.through(x, kept)).is_none() {
        return Ok(None);
    }
    let mut y = x;
    for (op, constant) in steps.into_iter().rev() {
        y = at.add_optional(op, &[Some(y), constant][..1 + usize::from(constant.is_some())])?;
    }
    let bytes = at.cast(dtype, y)?;
    at.add(Op::Pool(pool), &[bytes]).map(Some)
}

/// The bytes that a node gives, if it quantises what they are dequantised to, viewed otherwise perhaps: asked of each of the 256.
fn same_bytes(at: &mut InPlace<'_>, input: Option<ValueId>) -> Replaced {
    let (graph, node, Some(mut bytes)) = (&*at.graph, at.node, input) else { return Ok(None) };
    let (dtype, mut chain) = (node.outputs()[0].dtype, vec![(node.op().clone(), None)]);
    let mut views = Vec::new();
    while graph.ty(bytes).dtype != dtype {
        let (made, passed) = under_views(graph, bytes);
        bytes = made;
        views.extend(passed);
        let (x, constant) = match graph.operation(bytes) {
            (Op::Cast { .. } | Op::Unary(Unary::Round | Unary::Relu), &[Some(x)]) => (x, None),
            (Op::Binary(_), &[Some(x), Some(c)]) => {
                let single = graph.constant(c).filter(|c| c.len() == 1);
                let Some(Ok(single)) = single.map(|c| c.reshaped(Vec::new())) else {
                    return Ok(None);
                };
                (x, Some(single))
            }
            _ => return Ok(None),
        };
        if graph.ty(x).shape != graph.ty(bytes).shape {
            return Ok(None);
        }
        chain.push((graph.node(bytes.node).op().clone(), constant));
        bytes = x;
    }
    let all: Vec<u8> = (0..=255).collect();
    let all = Tensor::new(dtype, vec![all.len()], all.into()).expect("a byte for each");
    let mut table = Graph::new();
    let mut within = InPlace { graph: &mut table, node, name: "" };
    let mut y = within.constant(all.clone());
    for (op, constant) in chain.into_iter().rev() {
        let constant = constant.map(|tensor| within.constant(tensor));
        let inputs: Vec<_> = [Some(y), constant].into_iter().filter(Option::is_some).collect();
        y = within.add_optional(op, &inputs)?;
    }
    table.add_output("y", y);
    if evaluate(&table, &[]).is_ok_and(|made| made == [all]) {
        return viewed(at, bytes, views).map(Some);
    }
    Ok(None)
}

/// Whether an operation gives its elements in their order, or those of a transposition.
pub(super) fn reorders(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::Transpose(_))
}

/// What a value is under such views, and these, the last one first.
pub(super) fn under_views(graph: &Graph, value: ValueId) -> (ValueId, Vec<Op>) {
    let (mut of, mut views) = (value, Vec::new());
    while let (view, &[Some(x)]) = graph.operation(of)
        && reorders(view)
    {
        views.push(view.clone());
        of = x;
    }
    (of, views)
}

/// A value under views, the last one first.
pub(super) fn viewed(at: &mut InPlace<'_>, value: ValueId, views: Vec<Op>) -> Rebuilt<ValueId> {
    views.into_iter().rev().try_fold(value, |value, view| at.add(view, &[value]))
}

/// A matmul or convolution of integers, scaled and biased, in place of one of dequantised bytes by such a weight; it is
/// divided by this number.
fn multiplied(mut at: InPlace<'_>, inputs: &[Option<ValueId>], divisor: f32) -> Replaced {
    let (graph, op) = (&*at.graph, at.node.op());
    let found = || {
        let &[Some(x), Some(w), ..] = inputs else { return None };
        let image = Dequantised::of(graph, x)?;
        let scale = image.scale.map_or(Some(1.0), |scale| number(graph, scale))?;
        let weight = Weight::of(graph, w).filter(|weight| weight.is_taken(graph, op))?;
        let scales = weight.scales_along(graph, usize::from(*op == Op::MatMul))?;
        let bias = known(graph, inputs.get(2).copied().flatten(), &[])?;
        Some((image, scale, weight, scales, bias))
    };
    let Some((image, scale, weight, scales, bias)) = found() else { return Ok(None) };
    let axes = if let Op::Conv(attrs) = op { attrs.strides.len() } else { 0 };
    let factor = f64::from(scale) / f64::from(divisor);
    let factors = scales.iter().map(|&own| (f64::from(own) * factor) as f32).collect();
    let factors = at.per_filter(factors, axes);
    let biases = (!bias.is_empty()).then(|| {
        let bias = bias.iter().map(|&own| (f64::from(own) / f64::from(divisor)) as f32);
        at.per_filter(bias.collect(), axes)
    });
    let x = at.centered(image.bytes, image.zero)?;
    let integers = weight.integers(&mut at)?;
    let sum = at.add(op.clone(), &[x, integers])?;
    let real = at.cast(DType::F32, sum)?;
    let y = at.binary(Binary::Mul, real, factors)?;
    at.with(Binary::Add, y, biases).map(Some)
}

/// A weight that is dequantised from constant bytes, and what is done with its dims then.
struct Weight {
    bytes: ValueId,
    zero: Option<ValueId>,
    /// One for all, or for each index of an axis; none is 1.
    scale: Option<ValueId>,
    turned: Option<Vec<usize>>,
    value: ValueId,
}

impl Weight {
    fn of(graph: &Graph, value: ValueId) -> Option<Self> {
        let node = graph.node(value.node);
        let (turned, real) = match node.op() {
            Op::Transpose(perm) => (Some(perm.clone()), node.inputs()[0]?),
            _ => (None, value),
        };
        let (whole, scale) = scaled(graph, real)?;
        let (bytes, zero) = constant_bytes(graph, whole)?;
        let same = graph.ty(bytes).shape == graph.ty(real).shape;
        let taken = same && graph.ty(value).dtype == DType::F32;
        taken.then_some(Self { bytes, zero, scale, turned, value })
    }

    /// Whether a matmul or convolution by it is one of integers.
    fn is_taken(&self, graph: &Graph, op: &Op) -> bool {
        let Some(shape) = graph.ty(self.value).known_shape() else { return false };
        match (op, &shape[..]) {
            (Op::MatMul, &[depth, columns]) => (1..=DEEPEST).contains(&depth) && columns > 0,
            (Op::Conv(attrs), [count, rest @ ..]) => {
                let depth = rest.iter().product();
                let many = count.checked_div(attrs.group).is_some_and(|each| each >= FEW);
                many && self.turned.is_none() && (1..=DEEPEST).contains(&depth)
            }
            _ => false,
        }
    }

    /// A positive scale for each index of the axis, if they are known and differ along no other one.
    fn scales_along(&self, graph: &Graph, axis: usize) -> Option<Vec<f32>> {
        let size = usize::try_from(graph.ty(self.value).shape[axis].known()?).ok()?;
        let Some(scale) = self.scale else { return Some(vec![1.0; size]) };
        let own = self.turned.as_ref().map_or(axis, |perm| perm[axis]);
        let tensor = graph.constant(scale)?;
        let scales = tensor.as_slice::<f32>().ok()?;
        if !scales.iter().all(|scale| scale.is_normal() && *scale > 0.0) {
            return None;
        }
        let rank = graph.ty(self.value).rank();
        let from_end = tensor.shape().len().checked_sub(rank - own);
        match from_end.map(|place| tensor.shape()[place]) {
            Some(along) if along == size && scales.len() == size => Some(scales.to_vec()),
            _ => (scales.len() == 1).then(|| vec![scales[0]; size]),
        }
    }

    fn integers(&self, at: &mut InPlace<'_>) -> Rebuilt<ValueId> {
        let whole = at.centered(self.bytes, self.zero)?;
        let Some(perm) = &self.turned else { return Ok(whole) };
        at.add(Op::Transpose(perm.clone()), &[whole])
    }
}

/// Whether numbers, and zero, differ by no more than a byte holds.
fn is_narrow(integers: &[i32]) -> bool {
    let low = integers.iter().copied().fold(0, i32::min);
    let high = integers.iter().copied().fold(0, i32::max);
    i64::from(high) - i64::from(low) <= MOST.into()
}

/// The bytes, and their zero point, that a matmul or convolution of integers multiplies by a constant of bytes.
pub(crate) fn multiplied_bytes(graph: &Graph, node: &Node) -> Option<(ValueId, Option<ValueId>)> {
    multiplies_narrow(graph, node).then(|| centered(graph, node.input(0)?)).flatten()
}

/// Whether a matmul or convolution of integers multiplies by a constant matrix, or constant filters, of bytes.
pub(crate) fn multiplies_narrow(graph: &Graph, node: &Node) -> bool {
    let Some(w) = node.input(1) else { return false };
    let kind = match node.op() {
        Op::MatMul => graph.ty(w).rank() == 2,
        Op::Conv(conv) => conv.strides.len() <= 3,
        _ => false,
    };
    let integers = || graph.constant(w).and_then(|tensor| tensor.as_slice::<i32>().ok());
    let source = if let (Op::Transpose(_), [Some(x)]) = graph.operation(w) { *x } else { w };
    let narrow = || constant_bytes(graph, source).is_some() || integers().is_some_and(is_narrow);
    kind && node.outputs()[0].dtype == DType::I32 && narrow()
}

/// The graph in which each such operation widens the bytes itself that it reads. Other quantised bytes that are read as reals behind
/// views are converted before the views, so that the launch that makes the bytes can store reals.
fn unshared(graph: &Graph) -> Rebuilt<Graph> {
    let mut reals = HashMap::new();
    rebuilt(graph, |mut at, _, inputs| {
        let &[Some(x), ..] = inputs else { return Ok(None) };
        let Some((bytes, zero)) = centered(at.graph, x) else { return Ok(None) };
        if *at.node.op() == (Op::Cast { to: DType::F32, saturate: true }) {
            return viewed_last(&mut at, bytes, zero, &mut reals);
        }
        if !multiplies_narrow(graph, at.node) {
            return Ok(None);
        }
        let mut inputs = inputs.to_vec();
        inputs[0] = Some(at.centered(bytes, zero)?);
        at.add_optional(at.node.op().clone(), &inputs).map(Some)
    })
}

/// Bytes under views, less a zero point, as reals under the views; `reals` has those of bytes and zero points that were made so.
fn viewed_last(
    at: &mut InPlace<'_>,
    bytes: ValueId,
    zero: Option<ValueId>,
    reals: &mut HashMap<(ValueId, Option<ValueId>), ValueId>,
) -> Replaced {
    let (bytes, views) = under_views(at.graph, bytes);
    let rank = |value: ValueId| at.graph.ty(value).rank();
    let quantised = matches!(at.graph.operation(bytes).0, Op::Cast { .. });
    if views.is_empty() || !quantised || zero.is_some_and(|zero| rank(zero) > rank(bytes)) {
        return Ok(None);
    }
    let real = match reals.get(&(bytes, zero)) {
        Some(&real) => real,
        None => {
            let whole = at.centered(bytes, zero)?;
            at.cast(DType::F32, whole)?
        }
    };
    reals.insert((bytes, zero), real);
    viewed(at, real, views).map(Some)
}
