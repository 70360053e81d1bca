//! Reductions and their kin.

use super::check;
use crate::op::{CumulativeOp, Op, ReduceOp};

#[test]
fn reductions() {
    let reduce = |op, axes: &[usize], keep| Op::Reduce { op, axes: axes.to_vec(), keep };
    let arg = |axis, keep| Op::ArgReduce { largest: true, axis, keep, last: false };
    let sum =
        |axis| Op::Cumulative { op: CumulativeOp::Sum, axis, exclusive: false, reverse: true };
    let rows = [
        (reduce(ReduceOp::Sum, &[0, 2], false), "f32[a, b, 3]", "f32[b]"),
        (reduce(ReduceOp::Sum, &[0, 2], true), "f32[a, b, 3]", "f32[1, b, 1]"),
        (reduce(ReduceOp::Sum, &[], false), "f32[a, b]", "f32[a, b]"),
        (reduce(ReduceOp::Mean, &[1, 0], false), "f32[2, 3]", "!Axis"),
        (reduce(ReduceOp::Mean, &[0, 0], false), "f32[2, 3]", "!Axis"),
        (reduce(ReduceOp::Mean, &[2], false), "f32[2, 3]", "!Axis"),
        (reduce(ReduceOp::Max, &[0], false), "bool[2]", "bool[]"),
        (reduce(ReduceOp::Prod, &[0], false), "bool[2]", "!DType"),
        (arg(1, false), "f32[a, b]", "i64[a]"),
        (arg(1, true), "f32[a, b]", "i64[a, 1]"),
        (arg(0, true), "f32[0]", "!Empty"),
        (arg(0, true), "f32[0, 0]", "i64[1, 0]"),
        (arg(0, true), "f32[]", "!Axis"),
        (sum(1), "i64[2, n]", "i64[2, n]"),
        (sum(2), "i64[2, n]", "!Axis"),
        (sum(0), "bool[2]", "!DType"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}

#[test]
fn selections() {
    let top = |k: &str, axis| Op::TopK { k: k.parse().unwrap(), axis, largest: true };
    let rows = [
        (top("3", 1), "f16[n, 5]", "f16[n, 3]; i64[n, 3]"),
        (top("6", 1), "f16[n, 5]", "!Exceeds"),
        (top("n + 1", 0), "f16[n, 5]", "!Exceeds"),
        (top("3", 0), "f16[n, 5]", "f16[3, 5]; i64[3, 5]"),
        (top("1", 2), "f16[n, 5]", "!Axis"),
        (Op::NonZero, "bool[4]", "!DataDependent"),
        (Op::NonZero, "", "!Arity"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}
