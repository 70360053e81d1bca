//! Matmuls, convolutions and models' layers.

use super::pointwise::other;
use crate::build::{Build, Numbers};
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{
    AttentionAttrs, Binary, ConvAttrs, CoordinateTransform, IndexOrder, NearestMode, Op, PoolAttrs,
    PoolKind, ResizeAttrs, ResizeMode, RnnAttrs, RnnCell, RnnDirection, ScanAttrs, Unary,
};
use graphene_frontend::types::TensorType;

const ACTIVATIONS: [Unary; 6] = [
    Unary::Relu,
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Swish { alpha: 1.0 },
];

fn binary(b: &mut Build, op: Binary, x: ValueId, y: ValueId) -> Option<ValueId> {
    b.add(Op::Binary(op), &[x, y])
}

/// x·W for a weight with so many columns.
fn times_weight(b: &mut Build, x: ValueId, columns: Dim) -> Option<ValueId> {
    let shape = b.shape(x);
    let inner = shape.last()?.clone();
    let (dtype, terms) = (b.dtype(x), b.size(&inner));
    // Transposed weights are what many exports have.
    let w = match b.random.chance(15) {
        true => {
            let w = b.weight(dtype, vec![columns, inner], terms);
            b.add(Op::Transpose(vec![1, 0]), &[w])?
        }
        false => b.weight(dtype, vec![inner, columns], terms),
    };
    b.add(Op::MatMul, &[x, w])
}

fn columns(b: &mut Build) -> Dim {
    if b.random.chance(80) { Dim::from(b.known_dim()) } else { b.dim() }
}

pub(super) fn mat_mul_weight(b: &mut Build) -> Option<()> {
    let x = b.value(|dtype| dtype != DType::Bool, 2..=6);
    let columns = columns(b);
    times_weight(b, x, columns).map(drop)
}

/// With a value that is there or a new one; leading dims broadcast.
pub(super) fn mat_mul(b: &mut Build) -> Option<()> {
    let x = b.value(|dtype| dtype != DType::Bool, 2..=6);
    let ty = b.ty(x);
    let inner = ty.shape[ty.rank() - 1].clone();
    let known = b.pick(|other| {
        other.dtype == ty.dtype && other.rank() >= 2 && other.shape[other.rank() - 2] == inner
    });
    if let Some(y) = known.filter(|_| b.random.chance(50)) {
        return b.add(Op::MatMul, &[x, y]).map(drop);
    }
    if b.random.chance(20) {
        let mut perm: Vec<usize> = (0..ty.rank()).collect();
        perm.swap(ty.rank() - 1, ty.rank() - 2);
        let y = b.add(Op::Transpose(perm), &[x])?;
        return b.add(Op::MatMul, &[x, y]).map(drop);
    }
    let from = b.random.below(ty.rank() - 1);
    let mut shape = ty.shape[from..ty.rank() - 2].to_vec();
    for dim in &mut shape {
        if b.random.chance(30) {
            *dim = Dim::from(1);
        } else if *dim == 1 && b.random.chance(30) {
            *dim = b.dim();
        }
    }
    shape.extend([inner, b.dim()]);
    let shape = b.within(shape);
    let y = b.weight(ty.dtype, shape, b.size(&ty.shape[ty.rank() - 1]));
    b.add(Op::MatMul, &[x, y]).map(drop)
}

/// What stands after a layer: a bias, a function, something that was there before, a condition.
fn epilogue(b: &mut Build, x: ValueId) -> Option<ValueId> {
    let mut y = x;
    for _ in 0..b.random.below(4) {
        y = match b.random.below(5) {
            0 => {
                let last = b.shape(y).pop()?;
                let dtype = b.dtype(y);
                let bias = b.weight(dtype, vec![last], 1);
                binary(b, Binary::Add, y, bias)?
            }
            1 | 2 => {
                let unary = b.random.of(&ACTIVATIONS);
                b.unary(unary, y).unwrap_or(y)
            }
            3 => {
                let other = other(b, y);
                binary(b, Binary::Add, y, other)?
            }
            _ => {
                let shape = b.shape(y);
                let (condition, zero) = (b.input(DType::Bool, shape), b.scalar(b.dtype(y), 0.0));
                b.add(Op::Select, &[condition, y, zero])?
            }
        };
    }
    Some(y)
}

/// A chain of matmuls by weights.
pub(super) fn layers(b: &mut Build) -> Option<()> {
    let mut x = b.real(2..=6);
    for _ in 0..2 + b.random.below(2) {
        let columns = match b.random.chance(25) {
            true => b.shape(x).pop()?,
            false => columns(b),
        };
        let y = times_weight(b, x, columns)?;
        x = epilogue(b, y)?;
    }
    Some(())
}

/// Two matmuls of one value, one the gate of the other, and a third behind them.
pub(super) fn gates(b: &mut Build) -> Option<()> {
    let x = b.real(2..=3);
    let (hidden, last) = (columns(b), b.shape(x).pop()?);
    let (gate, up) = (times_weight(b, x, hidden.clone())?, times_weight(b, x, hidden)?);
    let unary = b.random.of(&ACTIVATIONS);
    let gate = b.unary(unary, gate)?;
    let both = binary(b, Binary::Mul, gate, up)?;
    let down = times_weight(b, both, last)?;
    if b.random.chance(50) {
        binary(b, Binary::Add, down, x)?;
    }
    Some(())
}

/// A value as an image: batch, channels and one or two spatial axes; channels and these are known.
fn image(b: &mut Build) -> ValueId {
    let known = |ty: &TensorType| {
        let shape = &ty.shape;
        ty.dtype == DType::F32
            && (3..=6).contains(&shape.len())
            && shape[1..].iter().all(|dim| dim.known().is_some_and(|size| size > 0))
    };
    if b.random.chance(60)
        && let Some(x) = b.pick(known)
    {
        return x;
    }
    let spatial = 1 + b.random.below(2);
    let mut shape = vec![b.dim(), Dim::from(1 + b.random.below(6))];
    for _ in 0..spatial {
        let known = b.random.chance(80);
        shape.push(if known { Dim::from(1 + b.random.below(9)) } else { b.dim() });
    }
    let dtype = b.new_dtype(DType::is_float);
    let shape = b.within(shape);
    b.input(dtype, shape)
}

/// Strides, dilations and pads of a window on so many spatial axes.
fn geometry(b: &mut Build, spatial: usize, group: usize) -> ConvAttrs {
    let mut of = |some: &[usize]| (0..spatial).map(|_| b.random.of(some)).collect::<Vec<_>>();
    let (strides, dilations) = (of(&[1, 1, 1, 2, 3]), of(&[1, 1, 1, 2]));
    let (before, after) = (of(&[0, 0, 1, 2]), of(&[0, 0, 1, 2]));
    let signed = |pads: Vec<usize>| pads.into_iter().map(|pad| pad as i64).collect();
    let (pads_before, pads_after) = (signed(before), signed(after));
    ConvAttrs { strides, dilations, pads_before, pads_after, group }
}

fn channels(b: &Build, x: ValueId) -> usize {
    b.size(&b.shape(x)[1])
}

/// The weights of a convolution, its bias if it has one, and its geometry.
fn conv_operands(b: &mut Build, x: ValueId, transposed: bool) -> (Vec<ValueId>, ConvAttrs) {
    let (channels, spatial, dtype) = (channels(b, x), b.rank(x) - 2, b.dtype(x));
    let groups: Vec<usize> = (1..=channels).filter(|group| channels % group == 0).collect();
    let group = if b.random.chance(60) { 1 } else { b.random.of(&groups) };
    let outputs = group * (1 + b.random.below(4));
    let mut shape = match transposed {
        true => vec![channels, outputs / group],
        false => vec![outputs, channels / group],
    };
    shape.extend((0..spatial).map(|_| 1 + b.random.below(3)));
    let terms = shape[1..].iter().product();
    let w = b.weight(dtype, shape.into_iter().map(Dim::from).collect(), terms);
    let mut operands = vec![x, w];
    if b.random.chance(50) {
        operands.push(b.weight(dtype, vec![Dim::from(outputs)], 1));
    }
    let attrs = geometry(b, spatial, group);
    (operands, attrs)
}

pub(super) fn conv(b: &mut Build) -> Option<()> {
    let x = image(b);
    let (operands, attrs) = conv_operands(b, x, false);
    let y = b.add(Op::Conv(attrs), &operands)?;
    if b.random.chance(60) {
        epilogue(b, y)?;
    }
    Some(())
}

pub(super) fn conv_transpose(b: &mut Build) -> Option<()> {
    let x = image(b);
    let (operands, conv) = conv_operands(b, x, true);
    let output_padding = conv.strides.iter().map(|&stride| b.random.below(stride)).collect();
    b.add(Op::ConvTranspose { conv, output_padding }, &operands).map(drop)
}

pub(super) fn pool(b: &mut Build) -> Option<()> {
    let x = image(b);
    let spatial = b.rank(x) - 2;
    let kernel: Vec<usize> = (0..spatial).map(|_| 1 + b.random.below(3)).collect();
    let ConvAttrs { strides, dilations, .. } = geometry(b, spatial, 1);
    let mut pads = || kernel.iter().map(|&size| b.random.below(size)).collect::<Vec<_>>();
    let (pads_before, pads_after) = (pads(), pads());
    let kinds = [
        PoolKind::Max { indices: None },
        PoolKind::Max { indices: Some(IndexOrder::RowMajor) },
        PoolKind::Average { include_pad: true },
        PoolKind::Average { include_pad: false },
        PoolKind::Lp { p: 2 },
    ];
    let (kind, ceil) = (b.random.of(&kinds), b.random.chance(30));
    let attrs = PoolAttrs { kind, kernel, strides, dilations, pads_before, pads_after, ceil };
    b.add(Op::Pool(attrs), &[x]).map(drop)
}

/// Queries, keys and values of some heads.
fn heads(b: &mut Build) -> ([ValueId; 3], Dim, Dim, Dim) {
    let dtype = b.new_dtype(DType::is_float);
    let (batch, s, t) = (b.dim(), b.dim(), b.dim());
    let (h, d) = (b.random.of(&[1, 2, 4]), b.random.of(&[1, 4, 8, 16]));
    let t = if b.random.chance(50) { s.clone() } else { t };
    let g = if b.random.chance(70) { h } else { 1 };
    let mut of = |heads: usize, rows: &Dim| {
        let shape = vec![batch.clone(), Dim::from(heads), rows.clone(), Dim::from(d)];
        b.source(dtype, shape, Numbers::Small, false)
    };
    let qkv = [of(h, &s), of(g, &t), of(g, &t)];
    (qkv, batch, s, t)
}

pub(super) fn attention(b: &mut Build) -> Option<()> {
    let ([q, k, v], batch, s, t) = heads(b);
    let mask = match b.random.below(3) {
        0 => None,
        1 => Some(b.input(DType::Bool, vec![batch, Dim::from(1), s, t])),
        _ => Some(b.input(b.dtype(q), vec![s, t])),
    };
    let attrs = AttentionAttrs {
        scale: 0.5,
        causal: b.random.chance(30),
        softcap: b.random.of(&[0.0, 0.0, 2.0]),
        guarded: b.random.chance(70),
        fill: b.random.of(&[f32::NEG_INFINITY, -10000.0]),
    };
    b.add_node(Op::Attention(attrs), &[Some(q), Some(k), Some(v), mask]).map(drop)
}

pub(super) fn attention_by_steps(b: &mut Build) -> Option<()> {
    let ([q, k, v], batch, s, t) = heads(b);
    let k = b.add(Op::Transpose(vec![0, 1, 3, 2]), &[k])?;
    let scores = b.add(Op::MatMul, &[q, k])?;
    let dtype = b.dtype(q);
    let scale = b.scalar(dtype, 0.5);
    let mut scores = binary(b, Binary::Mul, scores, scale)?;
    if b.random.chance(60) {
        let mask = b.input(dtype, vec![batch, Dim::from(1), s, t]);
        scores = binary(b, Binary::Add, scores, mask)?;
    }
    let weights = b.add(Op::Softmax { axis: 3, log: false }, &[scores])?;
    let y = b.add(Op::MatMul, &[weights, v])?;
    if b.random.chance(50) {
        b.add(Op::Transpose(vec![0, 2, 1, 3]), &[y])?;
    }
    Some(())
}

pub(super) fn rnn(b: &mut Build) -> Option<()> {
    let cells = [
        RnnCell::Lstm { input_forget: false },
        RnnCell::Gru { linear_before_reset: true },
        RnnCell::Gru { linear_before_reset: false },
        RnnCell::Plain,
    ];
    let ways = [RnnDirection::Forward, RnnDirection::Reverse, RnnDirection::Bidirectional];
    let (cell, direction) = (b.random.of(&cells), b.random.of(&ways));
    let directions = if direction == RnnDirection::Bidirectional { 2 } else { 1 };
    let (gates, functions): (usize, &[Unary]) = match cell {
        RnnCell::Lstm { .. } => (4, &[Unary::Sigmoid, Unary::Tanh, Unary::Tanh]),
        RnnCell::Gru { .. } => (3, &[Unary::Sigmoid, Unary::Tanh]),
        RnnCell::Plain => (1, &[Unary::Tanh]),
    };
    let hidden = b.random.of(&[1, 2, 3, 8]);
    let x = b.real(3..=3);
    let (shape, dtype) = (b.shape(x), b.dtype(x));
    let terms = b.size(&shape[2]).max(hidden);
    let mut weight = |dims: Vec<Dim>| b.weight(dtype, dims, terms);
    let rows = gates * hidden;
    let w = weight(vec![Dim::from(directions), Dim::from(rows), shape[2].clone()]);
    let r = weight([directions, rows, hidden].map(Dim::from).to_vec());
    let bias = weight([directions, 2 * rows].map(Dim::from).to_vec());
    let bias = Some(bias).filter(|_| b.random.chance(60));
    let state = |b: &mut Build| {
        let state = vec![Dim::from(directions), shape[1].clone(), Dim::from(hidden)];
        b.random.chance(40).then(|| b.input(dtype, state))
    };
    let lengths = b.random.chance(25).then(|| {
        // From none to all of the steps.
        let most = b.size(&shape[0]) + 1;
        b.source(DType::I32, vec![shape[1].clone()], Numbers::Lengths(most), false)
    });
    let mut inputs = vec![Some(x), Some(w), Some(r), bias, lengths, state(b)];
    if matches!(cell, RnnCell::Lstm { .. }) {
        inputs.push(state(b));
        let peepholes = [directions, 3 * hidden].map(Dim::from).to_vec();
        inputs.push(b.random.chance(25).then(|| b.weight(dtype, peepholes, 4)));
    }
    let mut activations = functions.repeat(directions);
    if b.random.chance(25) {
        activations.fill_with(|| b.random.of(&[Unary::Sigmoid, Unary::Tanh, Unary::Relu]));
    }
    let clip = b.random.chance(15).then_some(0.75);
    let attrs = RnnAttrs { cell, direction, hidden, activations, clip };
    b.add_node(Op::Rnn(attrs), &inputs).map(drop)
}

pub(super) fn resize(b: &mut Build) -> Option<()> {
    let x = b.real(1..=6);
    let shape = b.shape(x);
    let resized = |b: &mut Build, dim: &Dim| match b.random.below(4) {
        0 => dim * &Dim::from(2),
        1 => Dim::from(1 + b.random.below(9)),
        _ => dim.clone(),
    };
    let sizes: Vec<Dim> = shape.iter().map(|dim| resized(b, dim)).collect();
    let rounded = [
        NearestMode::RoundPreferFloor,
        NearestMode::RoundPreferCeil,
        NearestMode::Floor,
        NearestMode::Ceil,
    ];
    let transforms = [
        CoordinateTransform::HalfPixel,
        CoordinateTransform::PytorchHalfPixel,
        CoordinateTransform::AlignCorners,
        CoordinateTransform::Asymmetric,
    ];
    let nearest = ResizeMode::Nearest(b.random.of(&rounded));
    let mode = if b.random.chance(70) { nearest } else { ResizeMode::Linear };
    let attrs = ResizeAttrs {
        scales: vec![None; sizes.len()],
        sizes,
        mode,
        transform: b.random.of(&transforms),
        roi: Vec::new(),
        extrapolation: 0.0,
        antialias: false,
    };
    b.add(Op::Resize(Box::new(attrs)), &[x]).map(drop)
}

/// A body of one function.
fn body(inputs: &[&TensorType], op: Op, operands: &[usize]) -> Option<(Graph, ValueId)> {
    let mut graph = Graph::new();
    let mut values = Vec::new();
    for (i, ty) in inputs.iter().enumerate() {
        values.push(graph.add_input(&format!("a{i}"), (*ty).clone()).ok()?);
    }
    let operands: Vec<_> = operands.iter().map(|&i| Some(values[i])).collect();
    let y = graph.add("y", op, &operands).ok()?.value();
    Some((graph, y))
}

pub(super) fn control(b: &mut Build) -> Option<()> {
    let x = b.real(1..=3);
    let ty = b.ty(x);
    let way = b.random.below(3);
    let double = Op::Binary(Binary::Add);
    if way == 0 {
        let condition = b.input(DType::Bool, Vec::new());
        let branch = |op: Op, operands: &[usize]| {
            let (mut graph, y) = body(&[&ty], op, operands)?;
            graph.add_output("y", y);
            Some(Box::new(graph))
        };
        let then_branch = branch(Op::Unary(Unary::Tanh), &[0])?;
        let else_branch = branch(double, &[0, 0])?;
        return b.add(Op::If { then_branch, else_branch }, &[condition, x]).map(drop);
    }
    if way == 1 {
        let (count, truth) =
            (TensorType::new(DType::I64, Vec::new()), TensorType::new(DType::Bool, Vec::new()));
        let (mut graph, y) = body(&[&count, &truth, &ty], Op::Unary(Unary::Tanh), &[2])?;
        let condition = graph.inputs()[1].value();
        graph.add_output("condition", condition);
        graph.add_output("y", y);
        let trips = b.scalar(DType::I64, 3.0);
        let op = Op::Loop { body: Box::new(graph), carried: 1 };
        return b.add_node(op, &[Some(trips), None, Some(x)]).map(drop);
    }
    let slice = TensorType::new(ty.dtype, ty.shape[1..].to_vec());
    let state = {
        let shape = slice.shape.clone();
        b.input(ty.dtype, shape)
    };
    let (mut graph, y) = body(&[&slice, &slice], double, &[0, 1])?;
    graph.add_output("state", y);
    graph.add_output("y", y);
    let (inputs, outputs) = (vec![(0, b.random.chance(30))], vec![(0, b.random.chance(30))]);
    let attrs = ScanAttrs { body: graph, carried: 1, inputs, outputs };
    b.add(Op::Scan(Box::new(attrs)), &[state, x]).map(drop)
}
