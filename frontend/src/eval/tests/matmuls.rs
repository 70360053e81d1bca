//! Matrix products, convolutions and pooling; the numbers are onnxruntime's.

use super::{check_close, check_exact, pattern, tensor};
use crate::op::{ConvAttrs, IndexOrder, Op, PoolAttrs, PoolKind};
use half::f16;

#[test]
fn matrices_multiply() {
    let a = tensor(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0]);
    let b = tensor(&[2, 1], &[10.0_f32, 1.0]);
    check_exact(&Op::MatMul, &[&a, &b], &[tensor(&[2, 1], &[12.0_f32, 34.0])]);
    let row = tensor(&[1, 2], &[f16::from_f32(2048.0); 2]);
    let column = tensor(&[2, 1], &[f16::from_f32(2048.0), f16::from_f32(1.0)]);
    let wide = tensor(&[1, 1], &[2048.0_f32 * 2049.0]);
    check_exact(&Op::WideMatMul, &[&row, &column], &[wide]);
    let batch = tensor(&[2, 1, 2], &[1_i8, 2, 100, 100]);
    let square = tensor(&[2, 2], &[1_i8, 0, 1, 2]);
    let wrapped = tensor(&[2, 1, 2], &[3_i8, 4, -56, -56]);
    check_exact(&Op::MatMul, &[&batch, &square], &[wrapped]);
    let none = tensor::<f32>(&[2, 0], &[]);
    let zeros = tensor(&[2, 1], &[0.0_f32, 0.0]);
    check_exact(&Op::MatMul, &[&none, &tensor::<f32>(&[0, 1], &[])], &[zeros]);
}

fn geometry(strides: &[usize], dilations: &[usize], pads: [&[i64]; 2], group: usize) -> ConvAttrs {
    ConvAttrs {
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        pads_before: pads[0].to_vec(),
        pads_after: pads[1].to_vec(),
        group,
    }
}

#[test]
fn convolutions() {
    let op = Op::Conv(geometry(&[2, 1], &[1, 1], [&[1, 0], &[0, 1]], 2));
    let (x, w, bias) = (pattern(&[1, 2, 4, 4], 1), pattern(&[2, 1, 2, 3], 2), pattern(&[2], 3));
    let expected = [
        -3.3125, -3.5625, -0.5, -4.375, -4.8125, 0.875, -1.3125, 3.625, -1.3125, 0.5625, -4.375,
        2.125,
    ];
    check_close(&op, &[Some(&x), Some(&w), Some(&bias)], &[1, 2, 2, 3], &expected);
    let op = Op::Conv(geometry(&[1], &[3], [&[0], &[0]], 1));
    let (x, w) = (pattern(&[2, 1, 6], 1), pattern(&[2, 1, 2], 2));
    let expected =
        [-1.25, 4.0625, -1.25, -2.0, 3.875, -0.875, 4.0625, -1.25, 4.0625, 3.5, -1.25, 4.625];
    check_close(&op, &[Some(&x), Some(&w)], &[2, 2, 3], &expected);
}

/// A sum that fp16 does not hold.
#[test]
fn wide_convolutions_add_in_single_precision() {
    let op = Op::WideConv(geometry(&[1], &[1], [&[0], &[0]], 1));
    let x = tensor(&[1, 1, 3], &[2048.0, 2048.0, 1.0].map(f16::from_f32));
    let w = tensor(&[1, 1, 2], &[2048.0, 1.0].map(f16::from_f32));
    let sums = tensor(&[1, 1, 2], &[2048.0_f32 * 2049.0, 2048.0 * 2048.0 + 1.0]);
    check_exact(&op, &[&x, &w], &[sums]);
}

#[test]
fn negative_pads_cut() {
    let op = Op::Conv(geometry(&[1], &[1], [&[-1], &[1]], 1));
    let (x, w) = (tensor(&[1, 1, 3], &[1_i32, 2, 3]), tensor(&[1, 1, 2], &[1_i32, 10]));
    check_exact(&op, &[&x, &w], &[tensor(&[1, 1, 2], &[32_i32, 3])]);
}

#[test]
fn transposed_convolutions() {
    let conv = geometry(&[2, 1], &[1, 1], [&[0, 1], &[0, 0]], 1);
    let op = Op::ConvTranspose { conv, output_padding: vec![1, 0] };
    let (x, w, bias) = (pattern(&[1, 2, 2, 2], 1), pattern(&[2, 2, 2, 2], 2), pattern(&[2], 3));
    let expected = [
        0.0, -3.9375, 0.6875, -5.4375, 1.3125, -3.0, -2.125, -3.375, -1.75, -1.75, 2.0625, 2.25,
        -4.6875, 1.8125, -4.875, 2.25, 2.3125, -0.25, 0.0, 0.0,
    ];
    check_close(&op, &[Some(&x), Some(&w), Some(&bias)], &[1, 2, 5, 2], &expected);
    let conv = geometry(&[1], &[2], [&[0], &[0]], 2);
    let op = Op::ConvTranspose { conv, output_padding: vec![0] };
    let (x, w) = (pattern(&[1, 2, 3], 1), pattern(&[2, 1, 2], 2));
    let expected = [0.0, 2.1875, -0.9375, -2.1875, 0.9375, 0.5, -0.75, -1.875, 3.0, -0.5];
    check_close(&op, &[Some(&x), Some(&w)], &[1, 2, 5], &expected);
}

fn pool(kind: PoolKind, kernel: &[usize], strides: &[usize], before: &[usize], ceil: bool) -> Op {
    Op::Pool(PoolAttrs {
        kind,
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: vec![1; kernel.len()],
        pads_before: before.to_vec(),
        pads_after: vec![0; kernel.len()],
        ceil,
    })
}

#[test]
fn largest_of_windows() {
    let kind = PoolKind::Max { indices: Some(IndexOrder::RowMajor) };
    let op = pool(kind, &[2, 2], &[2, 2], &[1, 0], true);
    let values = tensor(&[1, 1, 3, 2], &[1.75_f32, 1.0, 1.25, 2.0, 1.5, 0.75]);
    let places = tensor(&[1, 1, 3, 2], &[1_i64, 3, 8, 6, 13, 15]);
    check_exact(&op, &[&pattern(&[1, 1, 4, 4], 1)], &[values, places]);
    let kind = PoolKind::Max { indices: Some(IndexOrder::ColumnMajor) };
    let op = pool(kind, &[2, 2], &[1, 1], &[0, 0], false);
    let values = tensor(
        &[1, 2, 2, 3],
        &[1.75_f32, 2.0, 2.0, 1.25, 2.0, 2.0, 1.5, 1.75, 1.75, 1.0, 1.75, 2.0],
    );
    let places = tensor(&[1, 2, 2, 3], &[3_i64, 7, 7, 2, 7, 7, 15, 19, 19, 14, 19, 23]);
    check_exact(&op, &[&pattern(&[1, 2, 3, 4], 1)], &[values, places]);
    let bytes = tensor(&[1, 1, 3], &[-5_i8, -3, -4]);
    let op = pool(PoolKind::Max { indices: None }, &[2], &[1], &[1], false);
    check_exact(&op, &[&bytes], &[tensor(&[1, 1, 3], &[-5_i8, -3, -3])]);
}

#[test]
fn means_and_norms_of_windows() {
    let x = pattern(&[1, 1, 3, 4], 1);
    let rows = [(true, [0.0, 0.25, -0.0625, 0.375]), (false, [0.0, 0.5, -0.125, 0.375])];
    for (include_pad, expected) in rows {
        let op = pool(PoolKind::Average { include_pad }, &[2, 2], &[2, 2], &[1, 1], false);
        check_close(&op, &[Some(&x)], &[1, 1, 2, 2], &expected);
    }
    let op = pool(PoolKind::Lp { p: 3 }, &[3], &[2], &[0], false);
    check_close(&op, &[Some(&pattern(&[1, 1, 5], 1))], &[1, 1, 2], &[1.794764, 1.686499]);
}
