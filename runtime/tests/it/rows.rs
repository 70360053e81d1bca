//! Softmax, normalisations, reductions and matmuls in every type that a kernel takes.

use crate::check::{Random, check_op};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Op, ReduceOp};

const NARROW: [(DType, f64); 3] = [(DType::F32, 1e-5), (DType::F16, 1e-3), (DType::BF16, 8e-3)];

#[test]
fn softmax() {
    for (dtype, tolerance) in NARROW {
        for (shape, axis) in
            [(vec![3, 70], 1), (vec![3, 70], 0), (vec![2, 5, 200], 1), (vec![0, 3], 1)]
        {
            let x = Some(Random(1).tensor(dtype, shape));
            for log in [false, true] {
                // The reference's own steps, in 16 bits.
                let same = dtype != DType::F32 && !log;
                let tolerance = if same { 0.0 } else { tolerance };
                let op = Op::Softmax { axis, log };
                check_op(op, std::slice::from_ref(&x), &[0], "softmax", tolerance);
            }
        }
    }
}

#[test]
fn norms() {
    for (dtype, tolerance) in NARROW {
        let mut random = Random(1);
        let x = Some(random.tensor(dtype, vec![3, 5, 70]));
        let scale = Some(random.tensor(dtype, vec![70]));
        let bias = Some(random.tensor(dtype, vec![70]));
        let op = Op::LayerNorm { axis: 2, epsilon: 1e-5 };
        for outputs in [&[0][..], &[0, 1, 2], &[1], &[2, 0]] {
            let all = [x.clone(), scale.clone(), bias.clone()];
            check_op(op.clone(), &all, outputs, "norm", tolerance);
            check_op(op.clone(), &[x.clone(), None, bias.clone()], outputs, "norm", tolerance);
        }
        let op = Op::RmsNorm { axis: 2, epsilon: 1e-5 };
        check_op(op.clone(), &[x.clone(), scale], &[0], "norm", tolerance);
        check_op(op, &[x], &[0], "norm", tolerance);
    }
}

#[test]
fn reductions() {
    for (dtype, tolerance) in NARROW {
        for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min, ReduceOp::L1] {
            for axes in [vec![0], vec![1], vec![0, 2], vec![]] {
                let x = Some(Random(1).tensor(dtype, vec![3, 5, 7]));
                let op = Op::Reduce { op, axes, keep: true };
                check_op(op, &[x], &[0], "reduce", tolerance);
            }
        }
    }
}

#[test]
fn integer_matmuls() {
    for dtype in [DType::I32, DType::I64] {
        for (a, b) in [
            (vec![5, 7], vec![7, 33]),
            (vec![2, 3, 9, 4], vec![3, 4, 1]),
            (vec![3, 17, 5], vec![5, 6]),
            (vec![2, 0], vec![0, 3]),
            (vec![0, 2], vec![2, 3]),
        ] {
            let mut random = Random(2);
            let operands = [a, b].map(|shape| Some(random.tensor(dtype, shape)));
            check_op(Op::MatMul, &operands, &[0], "gemm", 0.0);
        }
    }
}
