//! Reductions, running sums and orders.

use super::{bools, check_close, check_exact, tensor};
use crate::dim::Dim;
use crate::op::{CumulativeOp, Op, ReduceOp};

/// Rows: reduction, values over the last axis of `[[1, -2], [3, 4]]`, values of nothing.
#[test]
fn reductions() {
    let inf = f64::INFINITY;
    let rows = [
        (ReduceOp::Sum, [-1.0, 7.0], 0.0),
        (ReduceOp::Mean, [-0.5, 3.5], f64::NAN),
        (ReduceOp::Prod, [-2.0, 12.0], 1.0),
        (ReduceOp::Max, [1.0, 4.0], -inf),
        (ReduceOp::Min, [-2.0, 3.0], inf),
        (ReduceOp::L1, [3.0, 7.0], 0.0),
        (ReduceOp::L2, [5.0_f64.sqrt(), 5.0], 0.0),
        (ReduceOp::SumSquare, [5.0, 25.0], 0.0),
        (ReduceOp::LogSum, [f64::NAN, 7.0_f64.ln()], -inf),
        (ReduceOp::LogSumExp, [1.0485873516, 4.3132616875], -inf),
    ];
    let x = tensor(&[2, 2], &[1.0_f32, -2.0, 3.0, 4.0]);
    let empty = tensor::<f32>(&[1, 0], &[]);
    for (op, expected, of_none) in rows {
        let reduce = |axes: &[usize], keep| Op::Reduce { op, axes: axes.to_vec(), keep };
        check_close(&reduce(&[1], false), &[Some(&x)], &[2], &expected);
        check_close(&reduce(&[1], true), &[Some(&x)], &[2, 1], &expected);
        check_close(&reduce(&[1], false), &[Some(&empty)], &[1], &[of_none]);
        check_exact(&reduce(&[], true), &[&x], std::slice::from_ref(&x));
    }
}

#[test]
fn reductions_of_integers() {
    let reduce = |op, axes: &[usize]| Op::Reduce { op, axes: axes.to_vec(), keep: false };
    let x = tensor(&[3], &[100_u8, 100, 100]);
    check_exact(&reduce(ReduceOp::Sum, &[0]), &[&x], &[tensor(&[], &[44_u8])]);
    check_exact(&reduce(ReduceOp::Mean, &[0]), &[&x], &[tensor(&[], &[100_u8])]);
    let none = tensor::<i16>(&[0], &[]);
    check_exact(&reduce(ReduceOp::Max, &[0]), &[&none], &[tensor(&[], &[i16::MIN])]);
    check_exact(&reduce(ReduceOp::Min, &[0]), &[&none], &[tensor(&[], &[i16::MAX])]);
    let truth = bools(&[2, 2], &[0, 1, 0, 0]);
    check_exact(&reduce(ReduceOp::Max, &[0, 1]), &[&truth], &[bools(&[], &[1])]);
    check_exact(&reduce(ReduceOp::Min, &[0]), &[&truth], &[bools(&[2], &[0, 0])]);
}

#[test]
fn places_of_extremes() {
    let x = tensor(&[2, 3], &[2.0_f32, 5.0, 5.0, 1.0, 0.0, 0.0]);
    let rows = [
        (true, false, [1_i64, 0]),
        (true, true, [2, 0]),
        (false, false, [0, 1]),
        (false, true, [0, 2]),
    ];
    for (largest, last, expected) in rows {
        let op = Op::ArgReduce { largest, axis: 1, keep: true, last };
        check_exact(&op, &[&x], &[tensor(&[2, 1], &expected)]);
    }
    let nan = tensor(&[3], &[1.0_f32, f32::NAN, 2.0]);
    let op = Op::ArgReduce { largest: true, axis: 0, keep: false, last: false };
    check_exact(&op, &[&nan], &[tensor(&[], &[1_i64])]);
}

#[test]
fn running_sums() {
    let x = tensor(&[3], &[1_i32, 2, 4]);
    let rows = [
        (CumulativeOp::Sum, false, false, [1, 3, 7]),
        (CumulativeOp::Sum, true, false, [0, 1, 3]),
        (CumulativeOp::Sum, false, true, [7, 6, 4]),
        (CumulativeOp::Sum, true, true, [6, 4, 0]),
        (CumulativeOp::Prod, false, false, [1, 2, 8]),
        (CumulativeOp::Prod, true, true, [8, 4, 1]),
    ];
    for (op, exclusive, reverse, expected) in rows {
        let op = Op::Cumulative { op, axis: 0, exclusive, reverse };
        check_exact(&op, &[&x], &[tensor(&[3], &expected)]);
    }
}

#[test]
fn first_of_an_order() {
    let x = tensor(&[2, 4], &[3.0_f32, 1.0, 3.0, 2.0, 0.0, -1.0, 5.0, 5.0]);
    let top = |largest| Op::TopK { k: Dim::from(2), axis: 1, largest };
    let values = tensor(&[2, 2], &[3.0_f32, 3.0, 5.0, 5.0]);
    check_exact(&top(true), &[&x], &[values, tensor(&[2, 2], &[0_i64, 2, 2, 3])]);
    let values = tensor(&[2, 2], &[1.0_f32, 2.0, -1.0, 0.0]);
    check_exact(&top(false), &[&x], &[values, tensor(&[2, 2], &[1_i64, 3, 1, 0])]);
}
