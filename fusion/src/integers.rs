//! What quantised models compute on bytes, as integers.
//!
//! Exporters write a quantised convolution as one of reals between conversions: `DequantizeLinear`, `Conv`,
//! `QuantizeLinear`. Where images are bytes `q` less a zero point `z` times a scale `s`, and weights integers `n` times a
//! scale `t` for each filter, `Σ (q - z)s · nt = st · Σ (q - z)n`, and the last sum is one of integers: exact, where that
//! of reals is rounded after each term. The result is scaled, biased and quantised once more, so that it differs from the
//! other by the rounding of single precision: by one step of the next quantisation at most, where that rounds near a tie.
//! A matmul is the same. The largest of dequantised bytes is that of the bytes, bit for bit.
//!
//! Where a weight comes from does not matter: that single precision holds it as integers times a scale is found out, bit
//! for bit.

use crate::FusionError;
use crate::rebuild::rebuilt;
use crate::rewrite::pruned;
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate;
use graphene_frontend::graph::{Graph, Node, NodeId, ValueId};
use graphene_frontend::op::{Binary, Op, PoolKind, Unary};
use graphene_frontend::tensor::Tensor;
use std::collections::{HashMap, HashSet};

/// Integers of a weight are at most this in magnitude: a byte less a zero point.
const MOST: i32 = 255;

/// Terms of a sum that 32 bits hold, whatever they are.
const DEEPEST: usize = 1 << 15;

/// With fewer filters a group than this, sums are of reals: nothing is gained by integers.
const FEW: usize = 4;

/// The graph with arithmetic on dequantised bytes as arithmetic on the bytes. Each matmul and convolution of integers has
/// operations of its own that widen the bytes that it reads, so that they can be one launch.
///
/// # Errors
/// [`FusionError::Rebuild`] if an operation refuses the inputs that it had: a defect of inference.
pub(crate) fn integer_arithmetic(graph: Graph) -> Result<Graph, FusionError> {
    let has_bytes = graph.nodes().any(|(_, node)| is_byte(node.outputs()[0].dtype));
    let graph = if has_bytes { on_bytes(&graph)? } else { graph };
    let widens = graph.nodes().any(|(_, node)| multiplied_bytes(&graph, node).is_some());
    if widens { pruned(&unshared(&graph)?) } else { Ok(graph) }
}

fn on_bytes(graph: &Graph) -> Result<Graph, FusionError> {
    let divisors = divisors(graph);
    // Divisions that the scale of what they divide takes over.
    let mut divided: HashSet<ValueId> = HashSet::new();
    let result = rebuilt(graph, |result, (id, node), inputs| match node.op() {
        Op::Pool(pool) if pool.kind == (PoolKind::Max { indices: None }) => {
            pooled(result, node, inputs)
        }
        Op::Conv(_) | Op::MatMul => {
            let divisor = divisors.get(&id).copied();
            let made = multiplied(result, node, inputs, divisor.unwrap_or(1.0))?;
            divided.extend(made.filter(|_| divisor.is_some()));
            Ok(made)
        }
        Op::Binary(Binary::Div) => Ok(inputs[0].filter(|x| divided.contains(x))),
        Op::Cast { to, .. } if is_byte(*to) => same_bytes(result, node, inputs[0]),
        _ => Ok(None),
    })?;
    pruned(&result)
}

fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// For each convolution and matmul that is read once, by a division by one number, that number.
fn divisors(graph: &Graph) -> HashMap<NodeId, f32> {
    let divisor = |(id, node): (NodeId, &Node)| {
        let given = graph.outputs().iter().any(|(_, value)| value.node == id);
        let ([(reader, _)], false) = (&graph.uses(id)[..], given) else { return None };
        let reader = graph.node(*reader);
        let divides = matches!(node.op(), Op::Conv(_) | Op::MatMul)
            && *reader.op() == Op::Binary(Binary::Div)
            && reader.inputs()[0] == Some(id.value());
        let by = reader.inputs().get(1).copied().flatten().filter(|_| divides)?;
        let number = number::<f32>(graph, by)?;
        (number.is_normal() && reader.outputs()[0].shape == node.outputs()[0].shape)
            .then_some((id, number))
    };
    graph.nodes().filter_map(divisor).collect()
}

/// A constant of one element.
fn number<T: graphene_frontend::tensor::Element>(graph: &Graph, value: ValueId) -> Option<T> {
    let tensor = graph.constant(value).filter(|tensor| tensor.len() == 1)?;
    tensor.as_slice::<T>().ok()?.first().copied()
}

/// Bytes less a zero point, times a scale.
struct Dequantised {
    bytes: ValueId,
    zero: Option<ValueId>,
    scale: ValueId,
}

impl Dequantised {
    fn of(graph: &Graph, value: ValueId) -> Option<Self> {
        let input = |value: ValueId, slot: usize| graph.node(value.node).inputs()[slot];
        let op = |value: ValueId| graph.node(value.node).op();
        let (mut x, mut scale) = match op(value) {
            Op::Binary(Binary::Mul) => (input(value, 0)?, input(value, 1)?),
            _ => return None,
        };
        if number::<f32>(graph, x).is_some() {
            (x, scale) = (scale, x);
        }
        let scaled = number::<f32>(graph, scale)?;
        let Op::Cast { to: DType::F32, .. } = op(x) else { return None };
        if !(scaled.is_normal() && scaled > 0.0) || graph.ty(x).shape != graph.ty(value).shape {
            return None;
        }
        let (bytes, zero) = centered(graph, input(x, 0)?)?;
        Some(Self { bytes, zero, scale })
    }
}

/// The bytes, and the zero point, of bytes in 32 bits less a zero point.
fn centered(graph: &Graph, value: ValueId) -> Option<(ValueId, Option<ValueId>)> {
    let node = graph.node(value.node);
    let (wide, zero) = match node.op() {
        Op::Binary(Binary::Sub) => (node.inputs()[0]?, node.inputs()[1]),
        _ => (value, None),
    };
    if let Some(zero) = zero {
        let single = graph.ty(zero).shape.iter().all(|size| *size == 1);
        if !single || graph.ty(wide).shape != graph.ty(value).shape {
            return None;
        }
    }
    let node = graph.node(wide.node);
    let bytes = match node.op() {
        Op::Cast { to: DType::I32, .. } => node.inputs()[0]?,
        _ if zero.is_none() => value,
        _ => return None,
    };
    let dtype = graph.ty(bytes).dtype;
    let fits = zero.is_none_or(|zero| is_within(graph, zero, dtype));
    (is_byte(dtype) && fits).then_some((bytes, zero))
}

/// Whether an integer of 32 bits is one of these bytes.
fn is_within(graph: &Graph, value: ValueId, dtype: DType) -> bool {
    let node = graph.node(value.node);
    match (node.op(), node.inputs()) {
        (Op::Cast { .. }, [Some(x)]) => graph.ty(*x).dtype == dtype,
        _ => number::<i32>(graph, value).is_some_and(|x| match dtype {
            DType::U8 => u8::try_from(x).is_ok(),
            _ => i8::try_from(x).is_ok(),
        }),
    }
}

/// Adds operations that a node's name is given.
struct Adds<'a> {
    graph: &'a mut Graph,
    node: &'a Node,
}

impl Adds<'_> {
    fn op(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, FusionError> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        let made = self.graph.add(self.node.name(), op, &inputs);
        made.map(NodeId::value).map_err(|error| FusionError::rebuild(self.node, error))
    }

    fn cast(&mut self, to: DType, x: ValueId) -> Result<ValueId, FusionError> {
        self.op(Op::Cast { to, saturate: true }, &[x])
    }

    /// Bytes in 32 bits, less a zero point.
    fn centered(&mut self, bytes: ValueId, zero: Option<ValueId>) -> Result<ValueId, FusionError> {
        let wide = self.cast(DType::I32, bytes)?;
        match zero {
            Some(zero) => self.op(Op::Binary(Binary::Sub), &[wide, zero]),
            None => Ok(wide),
        }
    }
}

/// A pooling of bytes that is dequantised, in place of one of dequantised bytes: scales are positive.
fn pooled(
    graph: &mut Graph,
    node: &Node,
    inputs: &[Option<ValueId>],
) -> Result<Option<ValueId>, FusionError> {
    let Some(Dequantised { bytes, zero, scale }) =
        inputs[0].and_then(|x| Dequantised::of(graph, x))
    else {
        return Ok(None);
    };
    let mut adds = Adds { graph, node };
    let most = adds.op(node.op().clone(), &[bytes])?;
    let whole = adds.centered(most, zero)?;
    let real = adds.cast(DType::F32, whole)?;
    adds.op(Op::Binary(Binary::Mul), &[real, scale]).map(Some)
}

/// The bytes that a node gives, if it quantises what they are dequantised to: asked of each of the 256.
fn same_bytes(
    graph: &Graph,
    node: &Node,
    input: Option<ValueId>,
) -> Result<Option<ValueId>, FusionError> {
    let dtype = node.outputs()[0].dtype;
    let (Op::Cast { .. }, Some(mut at)) = (node.op(), input) else { return Ok(None) };
    let mut chain = vec![(node.op().clone(), None)];
    while graph.ty(at).dtype != dtype {
        let node = graph.node(at.node);
        let (x, constant) = match (node.op(), node.inputs()) {
            (Op::Cast { .. } | Op::Unary(Unary::Round | Unary::Relu), [Some(x)]) => (*x, None),
            (Op::Binary(_), [Some(x), Some(c)]) if graph.constant(*c).is_some() => (*x, Some(*c)),
            _ => return Ok(None),
        };
        let constant = match constant.map(|c| graph.constant(c)) {
            Some(Some(tensor)) if tensor.len() == 1 => Some(tensor.clone()),
            None => None,
            _ => return Ok(None),
        };
        if graph.ty(x).shape != node.outputs()[0].shape {
            return Ok(None);
        }
        chain.push((node.op().clone(), constant));
        at = x;
    }
    let all: Vec<u8> = (0..=255).collect();
    let all = Tensor::new(dtype, vec![all.len()], all.into()).expect("a byte for each");
    let mut table = Graph::new();
    let failed = |error| FusionError::rebuild(node, error);
    let mut y = table.add_constant("bytes", all.clone());
    for (op, constant) in chain.into_iter().rev() {
        let constant = constant.map(|tensor| table.add_constant("c", tensor));
        let inputs: Vec<_> = [Some(y), constant].into_iter().filter(Option::is_some).collect();
        y = table.add("y", op, &inputs).map_err(failed)?.value();
    }
    table.add_output("y", y);
    let same = evaluate(&table, &[]).is_ok_and(|made| made == [all]);
    Ok(same.then_some(at))
}

/// A matmul or convolution of integers, scaled and biased, in place of one of dequantised bytes by such a weight; it is
/// divided by this number.
fn multiplied(
    graph: &mut Graph,
    node: &Node,
    inputs: &[Option<ValueId>],
    divisor: f32,
) -> Result<Option<ValueId>, FusionError> {
    let &[Some(x), Some(w), ..] = inputs else { return Ok(None) };
    let Some(Dequantised { bytes, zero, scale }) = Dequantised::of(graph, x) else {
        return Ok(None);
    };
    let bias = match inputs.get(2).copied().flatten() {
        Some(bias) => match graph.constant(bias).and_then(|bias| bias.as_slice::<f32>().ok()) {
            Some(bias) => Some(bias.to_vec()),
            None => return Ok(None),
        },
        None => None,
    };
    let weight = match node.op() {
        Op::Conv(attrs) => Weight::of_filters(graph, w, attrs.group),
        _ => Weight::of_matrix(graph, w),
    };
    let (Some(weight), Some(scale)) = (weight, number::<f32>(graph, scale)) else {
        return Ok(None);
    };
    // One number for each filter, in a shape that broadcasts to the result.
    let mut shape = vec![weight.scales.len()];
    if let Op::Conv(attrs) = node.op() {
        shape.extend(attrs.strides.iter().map(|_| 1));
    }
    let each = |numbers: Vec<f32>| Tensor::from_vec(shape.clone(), numbers).expect("one for each");
    let factor = f64::from(scale) / f64::from(divisor);
    let factors = weight.scales.iter().map(|&own| (f64::from(own) * factor) as f32).collect();
    let name = node.name();
    let factors = graph.add_constant(name, each(factors));
    let integers = graph.add_constant(name, weight.integers);
    let bias = bias.map(|bias| {
        let bias = bias.iter().map(|&own| (f64::from(own) / f64::from(divisor)) as f32);
        each(bias.collect())
    });
    let bias = bias.map(|bias| graph.add_constant(name, bias));
    let mut adds = Adds { graph, node };
    let x = adds.centered(bytes, zero)?;
    let sum = adds.op(node.op().clone(), &[x, integers])?;
    let real = adds.cast(DType::F32, sum)?;
    let mut y = adds.op(Op::Binary(Binary::Mul), &[real, factors])?;
    if let Some(bias) = bias {
        y = adds.op(Op::Binary(Binary::Add), &[y, bias])?;
    }
    Ok(Some(y))
}

/// A weight as integers in its shape, and for each filter, or column, what they are to be multiplied by.
struct Weight {
    integers: Tensor,
    scales: Vec<f32>,
}

impl Weight {
    /// Filters `[m, c, …]` of a convolution of so many groups.
    fn of_filters(graph: &Graph, w: ValueId, groups: usize) -> Option<Self> {
        let tensor = graph.constant(w)?;
        let (&count, rest) = tensor.shape().split_first()?;
        let depth: usize = rest.iter().product();
        if count.checked_div(groups)? < FEW || depth == 0 {
            return None;
        }
        let (integers, scales) = whole(tensor.as_slice::<f32>().ok()?, depth)?;
        let integers = Tensor::from_vec(tensor.shape().to_vec(), integers).ok()?;
        Some(Self { integers, scales })
    }

    /// A matrix `[k, n]`, which may be the transpose of a constant.
    fn of_matrix(graph: &Graph, w: ValueId) -> Option<Self> {
        let node = graph.node(w.node);
        let (rows, columns, elements) = match (node.op(), graph.constant(w)) {
            (_, Some(tensor)) => {
                let &[k, n] = tensor.shape() else { return None };
                let elements = tensor.as_slice::<f32>().ok()?;
                (k, n, (0..k * n).map(|i| elements[i % k * n + i / k]).collect::<Vec<_>>())
            }
            (Op::Transpose(perm), None) if perm[..] == [1, 0] => {
                let tensor = graph.constant(node.inputs()[0]?)?;
                let &[n, k] = tensor.shape() else { return None };
                (k, n, tensor.as_slice::<f32>().ok()?.to_vec())
            }
            _ => return None,
        };
        if rows == 0 || columns == 0 {
            return None;
        }
        let (of_columns, scales) = whole(&elements, rows)?;
        let by_rows = (0..rows * columns).map(|i| of_columns[i % columns * rows + i / columns]);
        let integers = Tensor::from_vec(vec![rows, columns], by_rows.collect()).ok()?;
        Some(Self { integers, scales })
    }
}

/// Rows of so many numbers as integers, each row with a scale of its own: single precision gives the numbers back.
fn whole(elements: &[f32], depth: usize) -> Option<(Vec<i32>, Vec<f32>)> {
    if depth > DEEPEST {
        return None;
    }
    let mut integers = Vec::with_capacity(elements.len());
    let rows = elements.chunks_exact(depth).map(|row| {
        let scale = scale_of(row)?;
        integers.extend(row.iter().map(|x| (x / scale).round_ties_even() as i32));
        Some(scale)
    });
    let scales = rows.collect::<Option<Vec<f32>>>()?;
    is_narrow(&integers).then_some((integers, scales))
}

/// Whether numbers, and zero, differ by no more than a byte holds.
fn is_narrow(integers: &[i32]) -> bool {
    let low = integers.iter().copied().fold(0, i32::min);
    let high = integers.iter().copied().fold(0, i32::max);
    i64::from(high) - i64::from(low) <= MOST.into()
}

/// The largest number of which all of these are multiples by small integers, as single precision rounds them.
fn scale_of(numbers: &[f32]) -> Option<f32> {
    let largest = numbers.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    if !numbers.iter().all(|x| x.is_finite()) {
        return None;
    }
    if largest == 0.0 {
        return Some(1.0);
    }
    // The coarsest first, whose integers are the least: half of a scale fits too.
    let mut near = (1..=MOST).flat_map(|step| {
        let scale = (largest / step as f32).to_bits();
        (-2..=2).map(move |ulp: i32| f32::from_bits(scale.wrapping_add_signed(ulp)))
    });
    let is_multiple = |x: &f32, scale: f32| {
        let step = (x / scale).round_ties_even();
        step.abs() <= MOST as f32 && step * scale == *x
    };
    let fits = |scale: &f32| scale.is_normal() && numbers.iter().all(|x| is_multiple(x, *scale));
    near.find(fits)
}

/// The bytes, and their zero point, that a matmul or convolution of integers multiplies by a constant of bytes.
pub(crate) fn multiplied_bytes(graph: &Graph, node: &Node) -> Option<(ValueId, Option<ValueId>)> {
    let &[Some(x), Some(w), ..] = node.inputs() else { return None };
    multiplies_narrow(graph, node, w).then(|| centered(graph, x)).flatten()
}

/// Whether a matmul or convolution of integers multiplies by a constant matrix, or constant filters, of bytes.
pub(crate) fn multiplies_narrow(graph: &Graph, node: &Node, w: ValueId) -> bool {
    let kind = match node.op() {
        Op::MatMul => graph.ty(w).rank() == 2,
        Op::Conv(conv) => conv.strides.len() <= 3,
        _ => false,
    };
    let integers = || graph.constant(w).and_then(|tensor| tensor.as_slice::<i32>().ok());
    kind && node.outputs()[0].dtype == DType::I32 && integers().is_some_and(is_narrow)
}

/// The graph in which each such operation widens the bytes itself that it reads.
fn unshared(graph: &Graph) -> Result<Graph, FusionError> {
    rebuilt(graph, |result, (_, node), inputs| {
        let Some(w) = node.inputs().get(1).copied().flatten() else { return Ok(None) };
        if !multiplies_narrow(graph, node, w) {
            return Ok(None);
        }
        let Some((bytes, zero)) = inputs[0].and_then(|x| centered(result, x)) else {
            return Ok(None);
        };
        let x = Adds { graph: result, node }.centered(bytes, zero)?;
        let inputs: Vec<_> = std::iter::once(Some(x)).chain(inputs[1..].iter().copied()).collect();
        let made = result.add(node.name(), node.op().clone(), &inputs);
        made.map(|made| Some(made.value())).map_err(|error| FusionError::rebuild(node, error))
    })
}
