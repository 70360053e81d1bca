//! What each operation keeps of positions.
//!
//! A rule gives what is known of a node's outputs from what is known of its inputs, or says why it cannot: what the
//! operation does across positions. An operation without a rule is one that no padded value may enter.

use super::{Added, Along, Said, Value, ensure, input_ty, mentions, number_of, refuse_if, refused};
use graphene_frontend::op::{Binary, CumulativeOp, Op, ReduceOp};
use graphene_frontend::{Bindings, Dim, Graph, Node, Symbol, Tensor, TensorType};

mod finite;
mod matmuls;
mod movement;

/// Constants with more elements are taken to be finite unseen: they are tables and weights.
const SEEN: usize = 1 << 20;

pub(super) fn apply(
    graph: &Graph,
    node: &Node,
    given: &[Option<&Value>],
    symbol: &Symbol,
) -> Said<Vec<Value>> {
    let inputs: Vec<&Value> = given.iter().flatten().copied().collect();
    let has_part = || inputs.iter().any(|value| value.along().next().is_some());
    let value = match node.op() {
        Op::Input => input(&node.outputs()[0], symbol),
        Op::Constant(tensor) => constant(tensor),
        Op::Iota(dim) if *dim == Dim::symbol(symbol.name()) => {
            Value { axes: vec![Some(Along::plain(Added::Unknown))], ..Value::free(1) }
        }
        Op::Size(dim) if mentions(dim, symbol) => return refused("is a size that follows from it"),
        Op::Expand(_) => movement::expand(node, inputs[0], symbol)?,
        Op::Slice(axes) => movement::slice(node, inputs[0], axes, symbol)?,
        Op::Pad { before, after, .. } => movement::pad(&inputs, before, after)?,
        _ if !has_part() && !follows(node, symbol) => return Ok(apart(graph, node, &inputs)),
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast { .. } | Op::BitCast(_) => {
            pointwise(graph, node, &inputs)?
        }
        Op::Reshape(_) => movement::reshape(graph, node, inputs[0], symbol)?,
        Op::Transpose(perm) => Value {
            axes: perm.iter().map(|&axis| inputs[0].axes[axis].clone()).collect(),
            ..inputs[0].clone()
        },
        Op::Concat { axis } => movement::concat(&inputs, *axis)?,
        Op::Gather { axis } => movement::gather(&inputs, *axis)?,
        Op::Reduce { op, axes, keep } => reduce(inputs[0], *op, axes, *keep)?,
        Op::ArgReduce { axis, keep, .. } => reduce(inputs[0], ReduceOp::Max, &[*axis], *keep)?,
        Op::Cumulative { op, axis, reverse, .. } => cumulative(inputs[0], *op, *axis, *reverse)?,
        Op::TopK { axis, .. } => by_itself(inputs[0], [*axis], "orders what lies along it")?,
        Op::Softmax { axis, log } => softmax(inputs[0], *axis, *log)?,
        Op::LayerNorm { axis, epsilon } | Op::RmsNorm { axis, epsilon } => {
            return norms(node, &inputs, *axis, *epsilon);
        }
        Op::MatMul | Op::WideMatMul => matmuls::matmul(&inputs)?,
        Op::Attention(attrs) => matmuls::attention(given, attrs)?,
        Op::Rnn(_) => return matmuls::recurrent(node, given),
        Op::Conv(_) | Op::WideConv(_) | Op::ConvTranspose { .. } | Op::Pool(_) => {
            matmuls::window(node, given)?
        }
        _ => return refused("is not known to leave positions apart"),
    };
    Ok(vec![value; node.outputs().len()])
}

/// What the dim has no part in is as it was, whatever computes it.
fn apart(graph: &Graph, node: &Node, inputs: &[&Value]) -> Vec<Value> {
    let op = node.op();
    let points = matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast { .. });
    let uniform =
        (points || matches!(op, Op::Reshape(_))).then(|| everywhere(op, inputs)).flatten();
    let known = uniform.as_ref().and_then(super::value_of).is_some_and(f64::is_finite);
    let keeps = !points || finite::keeps(graph, node, inputs);
    let finite = known || keeps && inputs.iter().all(|value| value.finite);
    let large = finite::large(graph, node, inputs);
    let axes = |ty: &TensorType| vec![None; ty.rank()];
    let free = |ty| Value { axes: axes(ty), uniform: uniform.clone(), finite, large };
    node.outputs().iter().map(free).collect()
}

/// Whether a node's attributes or outputs follow from the symbol.
fn follows(node: &Node, symbol: &Symbol) -> bool {
    let mut size = Bindings::new();
    let dims = || node.outputs().iter().flat_map(|ty| &ty.shape);
    let bound = size.bind(symbol.clone(), 7).map(|()| node.op().substitute(&size));
    dims().any(|dim| mentions(dim, symbol)) || !matches!(bound, Ok(Ok(op)) if op == *node.op())
}

fn input(ty: &TensorType, symbol: &Symbol) -> Value {
    let zero = Tensor::zeros(ty.dtype, Vec::new()).ok();
    let added = zero.map_or(Added::Unknown, Added::Number);
    let plain = |dim: &Dim| *dim == Dim::symbol(symbol.name());
    let along = |dim: &Dim| plain(dim).then(|| Along::plain(added.clone()));
    Value { axes: ty.shape.iter().map(along).collect(), ..Value::free(0) }
}

fn constant(tensor: &Tensor) -> Value {
    let size = tensor.dtype().size();
    let mut elements = tensor.bytes().chunks_exact(size.max(1));
    let first = elements.next();
    let same = tensor.len() <= SEEN && elements.all(|element| Some(element) == first);
    let uniform = first
        .filter(|_| same)
        .and_then(|bytes| Tensor::new(tensor.dtype(), Vec::new(), bytes.to_vec().into()).ok());
    let most = finite::most(tensor);
    let finite = most.is_none_or(f64::is_finite);
    let large = most.is_some_and(|most| finite::is_large(most, tensor.dtype()));
    Value { axes: vec![None; tensor.shape().len()], uniform, finite, large }
}

/// What an operation makes of inputs that are one number each.
fn everywhere(op: &Op, inputs: &[&Value]) -> Option<Tensor> {
    let numbers = inputs.iter().map(|value| value.uniform.clone());
    let numbers: Vec<Tensor> = numbers.collect::<Option<_>>()?;
    if let Op::Reshape(_) = op { numbers.into_iter().next() } else { number_of(op, &numbers) }
}

/// The axis of an operand that broadcasts to an axis of a result of this rank.
fn operand_axis(value: &Value, axis: usize, rank: usize) -> Option<usize> {
    (axis + value.axes.len()).checked_sub(rank)
}

/// How the dim runs along an axis of a result of this rank that operands broadcast to.
fn broadcast(inputs: &[&Value], axis: usize, rank: usize) -> Said<Option<Along>> {
    let at = |value: &&Value| operand_axis(value, axis, rank);
    common(inputs.iter().filter_map(|value| value.axes[at(value)?].as_ref()))
}

/// How a dim runs along a result's axis where it does so along operands'.
fn common<'a>(alongs: impl Iterator<Item = &'a Along>) -> Said<Option<Along>> {
    let mut found: Option<Along> = None;
    for along in alongs {
        match &found {
            Some(other) if !other.agrees(along) => return refused("mixes it with another axis"),
            _ => found = Some(along.unknown()),
        }
    }
    Ok(found)
}

fn pointwise(graph: &Graph, node: &Node, inputs: &[&Value]) -> Said {
    let (op, rank) = (node.op(), node.outputs()[0].rank());
    let along = |axis: usize| {
        let added = |value: &&Value| value.added(operand_axis(value, axis, rank));
        let added = || added_by(op, &inputs.iter().map(added).collect::<Vec<_>>(), inputs);
        Ok(broadcast(inputs, axis, rank)?.map(|along| Along { added: added(), ..along }))
    };
    let axes = (0..rank).map(along).collect::<Said<_>>()?;
    let finite = finite::keeps(graph, node, inputs) && inputs.iter().all(|value| value.finite);
    let large = finite::large(graph, node, inputs);
    Ok(Value { axes, uniform: everywhere(op, inputs), finite, large })
}

/// What a function makes of elements at added positions.
fn added_by(op: &Op, added: &[Added], inputs: &[&Value]) -> Added {
    let numbers = added.iter().map(|added| match added {
        Added::Number(number) => Some(number.clone()),
        Added::Unknown | Added::Forbidden => None,
    });
    if let Some(number) = numbers.collect::<Option<Vec<_>>>().and_then(|all| number_of(op, &all)) {
        return Added::Number(number);
    }
    let finite = inputs.iter().all(|value| value.finite);
    match (op, added) {
        (Op::Select, [condition, then, or]) => match condition {
            _ if condition.is_zero() => or.clone(),
            Added::Number(_) => then.clone(),
            Added::Unknown | Added::Forbidden => Added::Unknown,
        },
        (Op::Binary(Binary::And), [a, b]) => zero_of(a, b),
        (Op::Binary(Binary::Mul), [a, b]) if finite => zero_of(a, b),
        // Whatever is added to it, no other mask takes it back.
        (Op::Binary(Binary::Add), [a, b]) if a.forbids() || b.forbids() => {
            let known = |(value, added): (&&Value, &Added)| value.finite || added.forbids();
            if inputs.iter().zip(added).all(known) { Added::Forbidden } else { Added::Unknown }
        }
        (Op::Cast { to, .. }, [Added::Forbidden]) if to.is_float() => Added::Forbidden,
        _ => Added::Unknown,
    }
}

/// The one that is zero, if one is.
fn zero_of(a: &Added, b: &Added) -> Added {
    [a, b].into_iter().find(|added| added.is_zero()).cloned().unwrap_or(Added::Unknown)
}

/// A value as it is, unless the dim runs along one of these axes.
fn by_itself(value: &Value, axes: impl IntoIterator<Item = usize>, why: &str) -> Said {
    refuse_if(axes.into_iter().any(|axis| value.axes[axis].is_some()), why)?;
    Ok(other_elements(value))
}

/// Elements of any of these values.
fn of_any(inputs: &[&Value]) -> Value {
    let finite = inputs.iter().all(|value| value.finite);
    let large = inputs.iter().any(|value| value.large);
    Value { axes: Vec::new(), uniform: None, finite, large }
}

/// Other elements where a value's are.
fn other_elements(value: &Value) -> Value {
    let axes = value.axes.iter().map(|along| along.as_ref().map(Along::unknown)).collect();
    Value { axes, uniform: None, ..*value }
}

fn reduce(value: &Value, op: ReduceOp, axes: &[usize], keep: bool) -> Said {
    // Zeros add nothing to a sum.
    let counts = |along: &Along| op != ReduceOp::Sum || !along.added.is_zero() || !along.is_plain();
    if axes.iter().any(|&axis| value.axes[axis].as_ref().is_some_and(counts)) {
        return Err(format!("takes all that lies along it together ({})", op.name()));
    }
    let left = value.axes.iter().enumerate().filter_map(|(axis, along)| {
        match (axes.contains(&axis), keep) {
            (true, true) => Some(None),
            (true, false) => None,
            (false, _) => Some(along.as_ref().map(Along::unknown)),
        }
    });
    let sums = matches!(op, ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Max | ReduceOp::Min);
    let finite = value.finite && sums && !(value.large && op == ReduceOp::Sum);
    Ok(Value { axes: left.collect(), uniform: None, finite, large: value.large })
}

/// Positions are added behind those asked for: what runs from the first one meets them last.
fn cumulative(value: &Value, op: CumulativeOp, axis: usize, reverse: bool) -> Said {
    refuse_if(reverse && value.axes[axis].is_some(), "runs along it from its end")?;
    let finite = value.finite && op == CumulativeOp::Sum && !value.large;
    Ok(Value { finite, ..other_elements(value) })
}

fn softmax(value: &Value, axis: usize, log: bool) -> Said {
    let Some(along) = &value.axes[axis] else {
        return Ok(Value { large: value.large && log, ..other_elements(value) });
    };
    ensure(
        along.added.forbids() && !log && along.is_plain(),
        "takes all that lies along it together, and no mask is known to forbid what is added",
    )?;
    let mut made = other_elements(value);
    // Where everything is forbidden with -∞ there is no number; those rows are among the added.
    let zero = Tensor::scalar(0.0_f32);
    made.axes[axis] = Some(Along::plain(Added::Number(zero)));
    made.large = false;
    Ok(made)
}

fn norms(node: &Node, inputs: &[&Value], axis: usize, epsilon: f32) -> Said<Vec<Value>> {
    let [value, factors @ ..] = inputs else { return refused("has no input") };
    let follow = factors.iter().any(|factor| factor.along().next().is_some());
    refuse_if(follow, "scales by what depends on it")?;
    let mut value = by_itself(value, axis..value.axes.len(), "normalises over it")?;
    value.finite &= epsilon > 0.0 && factors.iter().all(|factor| factor.finite);
    value.large = false;
    let mut statistics = value.clone();
    statistics.axes[axis..].fill(None);
    let rest = node.outputs().len().saturating_sub(1);
    Ok(std::iter::once(value).chain(std::iter::repeat_n(statistics, rest)).collect())
}
