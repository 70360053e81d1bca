//! Reductions, selections along an axis, and normalisations.

use crate::build::Build;
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::ValueId;
use graphene_frontend::op::{Binary, CumulativeOp, Op, ReduceOp, Unary};

pub(super) fn reduce(b: &mut Build) -> Option<()> {
    let x = b.value(|dtype| dtype != DType::Bool, 0..=6);
    let op = b.random.of(ReduceOp::ALL);
    if op == ReduceOp::Prod && b.product(x) > 1e30 {
        // Single precision does not hold what some order of factors comes to on the way.
        return None;
    }
    let axes = (0..b.rank(x)).filter(|_| b.random.chance(45)).collect();
    let keep = b.random.chance(50);
    b.add(Op::Reduce { op, axes, keep }, &[x]).map(drop)
}

fn axis(b: &mut Build, x: ValueId) -> usize {
    let rank = b.rank(x);
    // The last as a rule.
    if b.random.chance(60) { rank - 1 } else { b.random.below(rank) }
}

pub(super) fn arg_reduce(b: &mut Build) -> Option<()> {
    let x = b.value(|dtype| dtype != DType::Bool, 1..=6);
    let [largest, keep, last] = [(); 3].map(|()| b.random.chance(50));
    let axis = axis(b, x);
    b.add(Op::ArgReduce { largest, axis, keep, last }, &[x]).map(drop)
}

pub(super) fn cumulative(b: &mut Build) -> Option<()> {
    let x = b.value(|dtype| dtype != DType::Bool, 1..=6);
    let [exclusive, reverse] = [(); 2].map(|()| b.random.chance(50));
    let op = b.random.of(&[CumulativeOp::Sum, CumulativeOp::Sum, CumulativeOp::Prod]);
    let axis = axis(b, x);
    b.add(Op::Cumulative { op, axis, exclusive, reverse }, &[x]).map(drop)
}

pub(super) fn top_k(b: &mut Build) -> Option<()> {
    let x = b.value(|dtype| dtype != DType::Bool, 1..=6);
    let axis = axis(b, x);
    let dim = b.shape(x)[axis].clone();
    let k = match dim.known() {
        Some(size) => Dim::from(b.random.below(size as usize + 1)),
        None => b.random.of(&[Dim::from(1), dim]),
    };
    let largest = b.random.chance(50);
    b.add(Op::TopK { k, axis, largest }, &[x]).map(drop)
}

pub(super) fn softmax(b: &mut Build) -> Option<()> {
    let x = b.real(1..=6);
    let (axis, log) = (axis(b, x), b.random.chance(30));
    b.add(Op::Softmax { axis, log }, &[x]).map(drop)
}

/// A scale or bias of the dims from an axis on, or of ones.
fn affine(b: &mut Build, x: ValueId, axis: usize) -> Option<ValueId> {
    if b.random.chance(25) {
        return None;
    }
    let mut shape = b.shape(x)[axis..].to_vec();
    if b.random.chance(10) {
        shape.fill(Dim::from(1));
    }
    let dtype = b.dtype(x);
    Some(b.weight(dtype, shape, 1))
}

pub(super) fn layer_norm(b: &mut Build) -> Option<()> {
    let x = b.real(1..=6);
    let axis = axis(b, x);
    let (scale, bias) = (affine(b, x, axis), affine(b, x, axis));
    b.add_node(Op::LayerNorm { axis, epsilon: 1e-3 }, &[Some(x), scale, bias]).map(drop)
}

pub(super) fn rms_norm(b: &mut Build) -> Option<()> {
    let x = b.real(1..=6);
    let axis = axis(b, x);
    let scale = affine(b, x, axis);
    b.add_node(Op::RmsNorm { axis, epsilon: 1e-3 }, &[Some(x), scale]).map(drop)
}

fn reduced(b: &mut Build, op: ReduceOp, x: ValueId) -> Option<ValueId> {
    let axes = vec![b.rank(x) - 1];
    b.add(Op::Reduce { op, axes, keep: true }, &[x])
}

fn binary(b: &mut Build, op: Binary, x: ValueId, y: ValueId) -> Option<ValueId> {
    b.add(Op::Binary(op), &[x, y])
}

pub(super) fn softmax_by_steps(b: &mut Build) -> Option<()> {
    let x = b.real(1..=6);
    let largest = reduced(b, ReduceOp::Max, x)?;
    let x = binary(b, Binary::Sub, x, largest)?;
    let x = b.unary(Unary::Exp, x)?;
    let sum = reduced(b, ReduceOp::Sum, x)?;
    binary(b, Binary::Div, x, sum).map(drop)
}

/// A value over the root of the mean of its squares.
fn over_root(b: &mut Build, x: ValueId) -> Option<ValueId> {
    let dtype = b.dtype(x);
    let (two, epsilon) = (b.scalar(dtype, 2.0), b.scalar(dtype, 1e-3));
    let square = match b.random.chance(50) {
        true => binary(b, Binary::Pow, x, two)?,
        false => binary(b, Binary::Mul, x, x)?,
    };
    let mean = reduced(b, ReduceOp::Mean, square)?;
    let sum = binary(b, Binary::Add, mean, epsilon)?;
    let root = b.unary(Unary::Sqrt, sum)?;
    if b.random.chance(50) {
        return binary(b, Binary::Div, x, root);
    }
    let reciprocal = b.unary(Unary::Reciprocal, root)?;
    binary(b, Binary::Mul, x, reciprocal)
}

fn scaled(b: &mut Build, x: ValueId) -> Option<ValueId> {
    let last = b.shape(x).pop()?;
    let dtype = b.dtype(x);
    let scale = b.weight(dtype, vec![last], 1);
    binary(b, Binary::Mul, x, scale)
}

pub(super) fn layer_norm_by_steps(b: &mut Build) -> Option<()> {
    let x = b.real(1..=6);
    let mean = reduced(b, ReduceOp::Mean, x)?;
    let centred = binary(b, Binary::Sub, x, mean)?;
    let y = over_root(b, centred)?;
    let y = scaled(b, y)?;
    let last = b.shape(y).pop()?;
    let dtype = b.dtype(y);
    let bias = b.weight(dtype, vec![last], 1);
    binary(b, Binary::Add, y, bias).map(drop)
}

pub(super) fn rms_norm_by_steps(b: &mut Build) -> Option<()> {
    let x = b.real(1..=6);
    let y = over_root(b, x)?;
    scaled(b, y).map(drop)
}
