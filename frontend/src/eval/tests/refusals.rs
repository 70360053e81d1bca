//! Operands and attributes that mean nothing are refused; nothing panics.

use super::{bools, pattern, tensor};
use crate::dim::{Bindings, Dim};
use crate::dtype::DType;
use crate::eval::evaluate_op;
use crate::graph::Graph;
use crate::op::{
    AttentionAttrs, Binary, Combine, ConvAttrs, CoordinateTransform, CumulativeOp, NearestMode, Op,
    PadMode, PoolAttrs, PoolKind, ReduceOp, ResizeAttrs, ResizeMode, RnnAttrs, RnnCell,
    RnnDirection, ScanAttrs, SliceAxis, Unary,
};
use crate::tensor::Tensor;

fn conv(number: usize, rank: usize) -> ConvAttrs {
    ConvAttrs {
        strides: vec![number; rank],
        dilations: vec![number; rank],
        pads_before: vec![number as i64; rank],
        pads_after: vec![-(number as i64); rank],
        group: number,
    }
}

fn pool(kind: PoolKind, number: usize, rank: usize) -> Op {
    Op::Pool(PoolAttrs {
        kind,
        kernel: vec![number.min(1000); rank],
        strides: vec![number; rank],
        dilations: vec![number; rank],
        pads_before: vec![number; rank],
        pads_after: vec![number; rank],
        ceil: number % 2 == 1,
    })
}

/// Operations whose every attribute is this number.
fn operations(number: usize, rank: usize) -> Vec<Op> {
    let dim = Dim::from(number);
    let dims = vec![dim.clone(); rank];
    let axis = number;
    let mut operations = vec![
        Op::Input,
        Op::Iota(dim.clone()),
        Op::Size(dim.clone()),
        Op::Select,
        Op::BitCast(DType::I32),
        Op::Reshape(dims.clone()),
        Op::Transpose(vec![number; rank]),
        Op::Expand(dims.clone()),
        Op::Slice(vec![SliceAxis {
            axis,
            start: dim.clone(),
            len: dim.clone(),
            step: number as i64,
        }]),
        Op::Concat { axis },
        Op::Gather { axis },
        Op::GatherElements { axis },
        Op::GatherNd { batch_dims: number },
        Op::ScatterNd { combine: Combine::Max },
        Op::ScatterElements { axis, combine: Combine::Mul },
        Op::ArgReduce { largest: true, axis, keep: false, last: false },
        Op::Cumulative { op: CumulativeOp::Sum, axis, exclusive: true, reverse: true },
        Op::TopK { k: dim.clone(), axis, largest: true },
        Op::NonZero,
        Op::MatMul,
        Op::Conv(conv(number, rank)),
        Op::ConvTranspose { conv: conv(number, rank), output_padding: vec![number; rank] },
        pool(PoolKind::Max { indices: None }, number, rank),
        pool(PoolKind::Average { include_pad: true }, number, rank),
        pool(PoolKind::Lp { p: number as i64 }, number, rank),
        Op::Softmax { axis, log: true },
        Op::LayerNorm { axis, epsilon: 0.0 },
        Op::RmsNorm { axis, epsilon: f32::NAN },
        Op::Attention(AttentionAttrs {
            scale: f32::NAN,
            causal: true,
            softcap: -1.0,
            guarded: false,
            fill: f32::NAN,
        }),
        Op::If { then_branch: Box::default(), else_branch: Box::default() },
        Op::Loop { body: Box::default(), carried: number },
        Op::Scan(Box::new(ScanAttrs {
            body: Graph::new(),
            carried: number,
            inputs: vec![(axis, true); rank],
            outputs: vec![(axis, true)],
        })),
        Op::Rnn(RnnAttrs {
            cell: RnnCell::Plain,
            direction: RnnDirection::Bidirectional,
            hidden: number,
            activations: vec![Unary::Not],
            clip: Some(-1.0),
        }),
    ];
    for mode in [PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap] {
        operations.push(Op::Pad { mode, before: dims.clone(), after: dims.clone() });
        let cut = vec![Dim::from(-(number as i64)); rank];
        operations.push(Op::Pad { mode, before: cut.clone(), after: cut });
    }
    for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::LogSumExp, ReduceOp::Max] {
        operations.push(Op::Reduce { op, axes: vec![number; rank], keep: true });
    }
    let modes = [ResizeMode::Linear, ResizeMode::Nearest(NearestMode::Ceil)];
    for (mode, transform) in modes
        .into_iter()
        .zip([CoordinateTransform::AlignCorners, CoordinateTransform::CropAndResize])
    {
        operations.push(Op::Resize(Box::new(ResizeAttrs {
            sizes: vec![Dim::from(number.min(3)); rank],
            scales: vec![Some(1e-30); rank],
            mode,
            transform,
            roi: vec![(f32::NAN, f32::INFINITY)],
            extrapolation: f32::NAN,
            antialias: number == 1,
        })));
    }
    operations
}

fn operands() -> Vec<Tensor> {
    vec![
        pattern(&[2, 3], 1),
        pattern(&[], 1),
        pattern(&[0, 2], 1),
        pattern(&[1, 1, 2, 2], 1),
        tensor(&[2], &[i64::MIN, i64::MAX]),
        tensor(&[1, 2], &[u64::MAX, 0]),
        bools(&[2, 1], &[1, 0]),
        Tensor::zeros(DType::F8E8M0, vec![2, 0, 1 << 40]).unwrap(),
        Tensor::zeros(DType::I4, vec![3]).unwrap(),
        tensor(&[2], &[f32::NAN, f32::INFINITY]),
    ]
}

/// The results are of no interest here, only that there are some.
#[test]
fn nothing_panics() {
    let operands = operands();
    let mut refused = 0;
    let mut run = |op: &Op, inputs: &[Option<&Tensor>]| {
        refused += usize::from(evaluate_op(op, inputs, &Bindings::new()).is_err());
    };
    for number in [0, 1, 2, 1 << 40, usize::MAX] {
        for rank in [0, 1, 2, 4] {
            for op in operations(number, rank) {
                run(&op, &[]);
                for a in &operands {
                    run(&op, &[Some(a)]);
                    for b in &operands {
                        run(&op, &[Some(a), Some(b)]);
                        run(&op, &[Some(a), Some(b), Some(a), None, Some(b)]);
                        run(&op, &[Some(b), Some(a), Some(b)]);
                    }
                }
            }
        }
    }
    assert!(refused > 1000);
}

#[test]
fn no_pointwise_function_panics() {
    let operands = operands();
    let unary = [Unary::Abs, Unary::Neg, Unary::Not, Unary::BitNot, Unary::Gelu, Unary::Round];
    let binary = [
        Binary::Add,
        Binary::Mul,
        Binary::Div,
        Binary::Mod,
        Binary::Rem,
        Binary::Pow,
        Binary::ShiftLeft,
        Binary::ShiftRight,
        Binary::And,
        Binary::Less,
    ];
    for a in &operands {
        for function in unary {
            let result = evaluate_op(&Op::Unary(function), &[Some(a)], &Bindings::new());
            assert!(result.is_err() || result.unwrap()[0].shape() == a.shape());
        }
        for to in DType::all() {
            let op = Op::Cast { to, saturate: false };
            let result = evaluate_op(&op, &[Some(a)], &Bindings::new()).unwrap();
            assert_eq!(result[0].shape(), a.shape());
        }
        for function in binary {
            let op = Op::Binary(function);
            let own = evaluate_op(&op, &[Some(a), Some(a)], &Bindings::new());
            assert!(own.is_err() || own.unwrap()[0].shape() == a.shape());
        }
    }
}
