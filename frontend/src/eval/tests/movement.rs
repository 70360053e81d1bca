//! Operations that move elements, and those addressed by indices.

use super::{bools, check_exact, run, tensor};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::op::{Combine, Op, PadMode, SliceAxis};
use crate::tensor::Tensor;

fn counting(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    tensor(shape, &(0..count as i32).collect::<Vec<_>>())
}

fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().map(|&size| Dim::from(size)).collect()
}

#[test]
fn shapes_change() {
    let x = counting(&[2, 3]);
    check_exact(&Op::Reshape(dims(&[3, 2])), &[&x], &[counting(&[3, 2])]);
    let transposed = tensor(&[3, 2], &[0, 3, 1, 4, 2, 5]);
    check_exact(&Op::Transpose(vec![1, 0]), &[&x], &[transposed]);
    let row = counting(&[3, 1]);
    let spread = tensor(&[2, 3, 2], &[0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
    check_exact(&Op::Expand(dims(&[2, 3, 2])), &[&row], &[spread]);
    let bits = tensor(&[2], &[1.0_f32, -0.0]);
    let seen = tensor(&[2], &[0x3f80_0000_u32, 0x8000_0000]);
    check_exact(&Op::BitCast(DType::U32), &[&bits], &[seen]);
}

#[test]
fn slices() {
    let axis = |axis, start: i64, len: i64, step| SliceAxis {
        axis,
        start: Dim::from(start),
        len: Dim::from(len),
        step,
    };
    let x = counting(&[3, 4]);
    let rows = [
        (vec![axis(0, 1, 2, 1)], tensor(&[2, 4], &[4, 5, 6, 7, 8, 9, 10, 11])),
        (vec![axis(0, 2, 2, -2), axis(1, 0, 2, 3)], tensor(&[2, 2], &[8, 11, 0, 3])),
        (vec![axis(1, 4, 0, 1)], tensor::<i32>(&[3, 0], &[])),
    ];
    for (axes, expected) in rows {
        check_exact(&Op::Slice(axes), &[&x], &[expected]);
    }
    assert!(run(&Op::Slice(vec![axis(0, 2, 2, 1)]), &[&x]).is_err());
    assert!(run(&Op::Slice(vec![axis(0, 0, 2, -1)]), &[&x]).is_err());
}

#[test]
fn concatenation() {
    let (a, b) = (counting(&[2, 1]), counting(&[2, 2]));
    let joined = tensor(&[2, 3], &[0, 0, 1, 1, 2, 3]);
    check_exact(&Op::Concat { axis: 1 }, &[&a, &b], &[joined]);
    assert!(run(&Op::Concat { axis: 0 }, &[&a, &b]).is_err());
}

#[test]
fn padding() {
    let x = counting(&[3]);
    let rows = [
        (PadMode::Constant, [1, 2], tensor(&[6], &[9, 0, 1, 2, 9, 9])),
        (PadMode::Constant, [-1, 1], tensor(&[3], &[1, 2, 9])),
        (PadMode::Edge, [1, 2], tensor(&[6], &[0, 0, 1, 2, 2, 2])),
        (PadMode::Reflect, [2, 1], tensor(&[6], &[2, 1, 0, 1, 2, 1])),
        (PadMode::Wrap, [1, 2], tensor(&[6], &[2, 0, 1, 2, 0, 1])),
    ];
    for (mode, [before, after], expected) in rows {
        let op = Op::Pad { mode, before: dims(&[before]), after: dims(&[after]) };
        check_exact(&op, &[&x, &tensor(&[], &[9])], &[expected]);
    }
    let op = Op::Pad { mode: PadMode::Constant, before: dims(&[0, 1]), after: dims(&[1, 0]) };
    let padded = tensor(&[2, 3], &[0, 0, 1, 0, 0, 0]);
    check_exact(&op, &[&counting(&[1, 2])], &[padded]);
}

#[test]
fn gathering() {
    let x = counting(&[3, 2]);
    let rows = tensor(&[1, 2], &[2_i64, -3]);
    check_exact(&Op::Gather { axis: 0 }, &[&x, &rows], &[tensor(&[1, 2, 2], &[4, 5, 0, 1])]);
    let column = tensor(&[], &[-1_i32]);
    check_exact(&Op::Gather { axis: 1 }, &[&x, &column], &[tensor(&[3], &[1, 3, 5])]);
    let places = tensor(&[2, 2], &[1_i64, 0, 2, -1]);
    let taken = tensor(&[2, 2], &[2, 1, 4, 5]);
    check_exact(&Op::GatherElements { axis: 0 }, &[&x, &places], &[taken]);
    let points = tensor(&[2, 2], &[0_i64, 1, 2, 0]);
    let op = Op::GatherNd { batch_dims: 0 };
    check_exact(&op, &[&x, &points], &[tensor(&[2], &[1, 4])]);
    let own = tensor(&[3, 1], &[1_i64, 0, 1]);
    let op = Op::GatherNd { batch_dims: 1 };
    check_exact(&op, &[&x, &own], &[tensor(&[3], &[1, 2, 5])]);
}

#[test]
fn scattering() {
    let x = counting(&[3, 2]);
    let indices = tensor(&[2, 2], &[0_i64, 2, 0, -1]);
    let updates = tensor(&[2, 2], &[10, 20, -30, 40]);
    let rows = [
        (Combine::Replace, [-30, 1, 2, 3, 4, 40]),
        (Combine::Add, [-20, 1, 2, 3, 4, 65]),
        (Combine::Mul, [0, 1, 2, 3, 4, 4000]),
        (Combine::Min, [-30, 1, 2, 3, 4, 5]),
        (Combine::Max, [10, 1, 2, 3, 4, 40]),
    ];
    for (combine, expected) in rows {
        let op = Op::ScatterElements { axis: 0, combine };
        check_exact(&op, &[&x, &indices, &updates], &[tensor(&[3, 2], &expected)]);
    }
    let op = Op::ScatterNd { combine: Combine::Add };
    let (row, update) = (tensor(&[1, 1], &[-1_i64]), tensor(&[1, 2], &[1, 2]));
    check_exact(&op, &[&x, &row, &update], &[tensor(&[3, 2], &[0, 1, 2, 3, 5, 7])]);
}

#[test]
fn places_that_are_not_zero() {
    let x = bools(&[2, 2], &[0, 1, 1, 1]);
    check_exact(&Op::NonZero, &[&x], &[tensor(&[2, 3], &[0_i64, 1, 1, 1, 0, 1])]);
    let scalar = tensor(&[], &[1.0_f32]);
    check_exact(&Op::NonZero, &[&scalar], &[tensor::<i64>(&[0, 1], &[])]);
}

/// Every element type moves, also where there are no elements.
#[test]
fn every_type_moves() {
    for dtype in DType::all() {
        let x = Tensor::zeros(dtype, vec![2, 3]).unwrap();
        let y = Tensor::zeros(dtype, vec![3, 2]).unwrap();
        check_exact(&Op::Transpose(vec![1, 0]), &[&x], std::slice::from_ref(&y));
        let empty = Tensor::zeros(dtype, vec![0, 3]).unwrap();
        check_exact(&Op::Concat { axis: 0 }, &[&empty, &x], std::slice::from_ref(&x));
        let condition = bools(&[], &[1]);
        check_exact(&Op::Select, &[&condition, &x, &x], std::slice::from_ref(&x));
    }
}
