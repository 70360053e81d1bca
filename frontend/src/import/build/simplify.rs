//! Operations that give a value which is there already, or do less than they seem to.

use super::Builder;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::error::OpError;
use crate::import::symbolic::movement::{blocks, from_front};
use crate::import::symbolic::{Abstract, Affine};
use crate::infer::infer;
use crate::op::{Binary, Op, SliceAxis, Unary};

type Simpler = Result<Option<ValueId>, OpError>;

/// The value that the operation's only output equals, if there is one.
pub(super) fn simplify(builder: &mut Builder, op: &Op, inputs: &[Option<ValueId>]) -> Simpler {
    let Some(Some(x)) = inputs.first().copied() else { return Ok(None) };
    let second = inputs.get(1).copied().flatten();
    match (op, second) {
        (Op::Cast { to, saturate: _ }, None) => Ok(same_cast(builder, x, *to)),
        (Op::Unary(Unary::Not), None) => {
            Ok(operand_of(builder, x, |op| *op == Op::Unary(Unary::Not)))
        }
        (Op::Reshape(dims), None) => reshape(builder, x, dims),
        (Op::Transpose(perm), None) => transpose(builder, x, perm),
        (Op::Expand(dims), None) => expand(builder, x, dims),
        (Op::Slice(axes), None) => slice(builder, x, axes),
        (Op::Concat { axis }, _) => concat(builder, *axis, inputs),
        (Op::Binary(binary), Some(y)) => neutral(builder, *binary, x, y),
        (Op::Select, Some(a)) => select(builder, x, a, inputs),
        (Op::Gather { axis }, Some(indices)) => gather(builder, x, indices, *axis),
        (Op::GatherNd { batch_dims: 0 }, Some(indices)) => gather_nd(builder, x, indices),
        _ => Ok(None),
    }
}

/// The only operand of the node behind a value, if the node is of a kind.
fn operand_of(builder: &Builder, value: ValueId, kind: impl Fn(&Op) -> bool) -> Option<ValueId> {
    let node = builder.graph.node(value.node);
    match node.inputs() {
        [Some(operand)] if kind(node.op()) => Some(*operand),
        _ => None,
    }
}

fn same_cast(builder: &Builder, x: ValueId, to: DType) -> Option<ValueId> {
    if builder.ty(x).dtype == to {
        return Some(x);
    }
    // Truth values survive the way through numbers.
    let inner = operand_of(builder, x, |op| matches!(op, Op::Cast { .. }))?;
    let number = builder.ty(x).dtype != DType::F8E8M0;
    (to == DType::Bool && number && builder.ty(inner).dtype == to).then_some(inner)
}

fn reshape(builder: &mut Builder, x: ValueId, dims: &[Dim]) -> Simpler {
    if builder.ty(x).shape == dims {
        return Ok(Some(x));
    }
    match operand_of(builder, x, |op| matches!(op, Op::Reshape(_))) {
        Some(inner) => Ok(Some(one(builder, Op::Reshape(dims.to_vec()), inner)?)),
        None => Ok(None),
    }
}

fn one(builder: &mut Builder, op: Op, x: ValueId) -> Result<ValueId, OpError> {
    Ok(builder.add(op, &[Some(x)])?[0])
}

fn transpose(builder: &mut Builder, x: ValueId, perm: &[usize]) -> Simpler {
    if perm.len() != builder.ty(x).rank() || perm.iter().any(|&axis| axis >= perm.len()) {
        return Ok(None);
    }
    if perm.iter().enumerate().all(|(i, &axis)| i == axis) {
        return Ok(Some(x));
    }
    let node = builder.graph.node(x.node);
    let (Op::Transpose(first), [Some(inner)]) = (node.op(), node.inputs()) else {
        return Ok(None);
    };
    let both = perm.iter().map(|&axis| first[axis]).collect();
    let inner = *inner;
    Ok(Some(one(builder, Op::Transpose(both), inner)?))
}

fn expand(builder: &mut Builder, x: ValueId, dims: &[Dim]) -> Simpler {
    if builder.ty(x).shape == dims {
        return Ok(Some(x));
    }
    match operand_of(builder, x, |op| matches!(op, Op::Expand(_))) {
        Some(inner) => Ok(Some(one(builder, Op::Expand(dims.to_vec()), inner)?)),
        None => Ok(None),
    }
}

/// The value broadcast to a shape, or itself.
fn spread(builder: &mut Builder, x: ValueId, dims: Vec<Dim>) -> Result<ValueId, OpError> {
    one(builder, Op::Expand(dims), x)
}

fn slice(builder: &mut Builder, x: ValueId, axes: &[SliceAxis]) -> Simpler {
    let shape = &builder.ty(x).shape;
    let whole = |a: &SliceAxis| a.start == 0 && a.step == 1 && shape.get(a.axis) == Some(&a.len);
    if axes.iter().all(whole) {
        return Ok(Some(x));
    }
    let rest: Vec<_> = axes.iter().filter(|axis| !whole(axis)).cloned().collect();
    match rest.len() == axes.len() {
        true => Ok(None),
        false => Ok(Some(one(builder, Op::Slice(rest), x)?)),
    }
}

fn concat(builder: &mut Builder, axis: usize, inputs: &[Option<ValueId>]) -> Simpler {
    let values: Vec<ValueId> = inputs.iter().copied().flatten().collect();
    let filled = |value: &ValueId| builder.ty(*value).shape.get(axis).is_none_or(|dim| *dim != 0);
    let rest: Vec<_> = values.iter().copied().filter(filled).collect();
    if let [only] = rest.as_slice()
        && builder.ty(*only).rank() > axis
    {
        return Ok(Some(*only));
    }
    if rest.is_empty() || rest.len() == values.len() {
        return Ok(None);
    }
    let rest: Vec<_> = rest.into_iter().map(Some).collect();
    Ok(Some(builder.add(Op::Concat { axis }, &rest)?[0]))
}

/// `x + 0`, `x · 1`, `x ∧ true` and the like.
fn neutral(builder: &mut Builder, op: Binary, a: ValueId, b: ValueId) -> Simpler {
    let dtype = builder.ty(a).dtype;
    if dtype.is_float() {
        return Ok(None);
    }
    let mut value = |v| builder.fact(v).and_then(|fact| fact.uniform()).and_then(|dim| dim.known());
    let (left, right) = (value(a), value(b));
    // A row: the operator, its neutral element, the element that decides, and whether the left side may be it.
    let (neutral, deciding, either) = match op {
        Binary::Add => (0, None, true),
        Binary::Sub => (0, None, false),
        Binary::Mul => (1, Some(0), true),
        Binary::Div => (1, None, false),
        Binary::And => (1, Some(0), true),
        Binary::Or => (0, Some(1), true),
        Binary::Xor => (0, None, true),
        _ => return Ok(None),
    };
    let (ty_a, ty_b) = (builder.ty(a), builder.ty(b));
    let [result] = &infer(&Op::Binary(op), &[Some(ty_a), Some(ty_b)])?[..] else {
        return Ok(None);
    };
    let dims = result.shape.clone();
    if right == Some(neutral) {
        return Ok(Some(spread(builder, a, dims)?));
    }
    if either && left == Some(neutral) {
        return Ok(Some(spread(builder, b, dims)?));
    }
    if let Some(deciding) = deciding
        && (right == Some(deciding) || left == Some(deciding))
    {
        let uniform = Abstract::of_affine(Affine::uniform(dims, Dim::from(deciding)));
        return Ok(Some(builder.value_of(dtype, uniform)?));
    }
    Ok(None)
}

fn select(
    builder: &mut Builder,
    condition: ValueId,
    a: ValueId,
    inputs: &[Option<ValueId>],
) -> Simpler {
    let Some(b) = inputs.get(2).copied().flatten() else { return Ok(None) };
    let truth = builder.fact(condition).and_then(|fact| fact.uniform());
    let chosen = match truth.and_then(|dim| dim.known()) {
        Some(0) => b,
        Some(_) => a,
        None if a == b => a,
        None => return Ok(None),
    };
    let types: Vec<_> = [condition, a, b].iter().map(|&v| Some(builder.ty(v))).collect();
    let [result] = &infer(&Op::Select, &types)?[..] else { return Ok(None) };
    let dims = result.shape.clone();
    Ok(Some(spread(builder, chosen, dims)?))
}

/// A gather by counted indices is a slice, seen under the indices' shape.
fn gather(builder: &mut Builder, x: ValueId, indices: ValueId, axis: usize) -> Simpler {
    let Some(indices) = builder.fact(indices).and_then(|fact| fact.affine()) else {
        return Ok(None);
    };
    let shape = builder.ty(x).shape.clone();
    let Some(size) = shape.get(axis) else { return Ok(None) };
    if indices.dims.iter().any(|dim| *dim == 0) {
        return Ok(None);
    }
    let Some(indices) = from_front(&indices, size) else { return Ok(None) };
    let Some((len, step)) = counted(&indices) else { return Ok(None) };
    let start = indices.offset.clone();
    let last = &start + &((&len - &Dim::from(1)) * Dim::from(step));
    if (&last - size).lower_bound().is_some_and(|over| over >= 0) {
        return Ok(None);
    }
    let range = SliceAxis { axis, start, len, step };
    let sliced = one(builder, Op::Slice(vec![range]), x)?;
    let around = |dims: &[Dim]| [&shape[..axis], dims, &shape[axis + 1..]].concat();
    let mut kept = indices.dims.clone();
    for (dim, stride) in kept.iter_mut().zip(&indices.strides) {
        if *stride == 0 {
            *dim = Dim::from(1);
        }
    }
    let shaped = one(builder, Op::Reshape(around(&kept)), sliced)?;
    Ok(Some(spread(builder, shaped, around(&indices.dims))?))
}

/// The number of distinct indices and the known step between them, if they count on through all dims.
fn counted(indices: &Affine) -> Option<(Dim, i64)> {
    let moving = indices.dims.iter().zip(&indices.strides).filter(|(_, stride)| **stride != 0);
    let (dims, strides): (Vec<Dim>, Vec<Dim>) =
        moving.map(|(dim, stride)| (dim.clone(), stride.clone())).unzip();
    match blocks(&dims, &strides).as_slice() {
        [] => Some((Dim::from(1), 1)),
        [(size, stride)] => Some((size.clone(), stride.known().filter(|&step| step > 0)?)),
        _ => None,
    }
}

/// A gather by tuples whose members count is a gather from the flattened axes.
fn gather_nd(builder: &mut Builder, x: ValueId, indices: ValueId) -> Simpler {
    let Some(members) = tuple_members(builder, indices) else { return Ok(None) };
    let shape = builder.ty(x).shape.clone();
    if members.is_empty() || members.len() > shape.len() {
        return Ok(None);
    }
    let dims = members[0].dims.clone();
    let mut linear = Affine::uniform(dims, Dim::from(0));
    for (member, size) in members.iter().zip(&shape) {
        let Some(member) = from_front(member, size) else { return Ok(None) };
        linear.offset = &linear.offset * size + &member.offset;
        for (sum, stride) in linear.strides.iter_mut().zip(&member.strides) {
            *sum = &*sum * size + stride;
        }
    }
    let (addressed, rest) = shape.split_at(members.len());
    let flat = addressed.iter().product::<Dim>();
    let flat = [&[flat], rest].concat();
    if counted(&linear).is_none() {
        return Ok(None);
    }
    let flattened = one(builder, Op::Reshape(flat), x)?;
    let places = builder.value_of(DType::I64, Abstract::of_affine(linear))?;
    Ok(Some(builder.add(Op::Gather { axis: 0 }, &[Some(flattened), Some(places)])?[0]))
}

/// For each member of the tuples along the last dim, its values over the other dims.
fn tuple_members(builder: &mut Builder, indices: ValueId) -> Option<Vec<Affine>> {
    let ty = builder.ty(indices).clone();
    let last = ty.rank().checked_sub(1)?;
    let count = ty.shape[last].known().filter(|count| (1..=8).contains(count))?;
    let node = builder.graph.node(indices.node);
    if let Op::Concat { axis } = node.op() {
        let parts: Vec<ValueId> = node.inputs().iter().copied().flatten().collect();
        if *axis != last || parts.len() as i64 != count {
            return None;
        }
        return parts.into_iter().map(|part| member(builder, part, last)).collect();
    }
    let mut members = Vec::new();
    for i in 0..count {
        let range = SliceAxis { axis: last, start: Dim::from(i), len: Dim::from(1), step: 1 };
        let part = builder.add(Op::Slice(vec![range]), &[Some(indices)]).ok()?[0];
        members.push(member(builder, part, last)?);
    }
    Some(members)
}

/// The elements of a part without its last dim, of one element.
fn member(builder: &mut Builder, part: ValueId, last: usize) -> Option<Affine> {
    let mut affine = builder.fact(part)?.affine()?;
    if affine.dims.get(last)? != &Dim::from(1) || affine.dims.len() != last + 1 {
        return None;
    }
    affine.dims.pop();
    affine.strides.pop();
    Some(affine)
}
