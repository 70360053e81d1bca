//! Convolutions and their transposes: geometries, groups, partial blocks.

use crate::check::{Random, check_op};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{ConvAttrs, Op};

/// A row: spatial sizes, kernel, strides, dilations, pads before, pads after.
type Row = (
    &'static [usize],
    &'static [usize],
    &'static [usize],
    &'static [usize],
    &'static [i64],
    &'static [i64],
);

const ROWS: &[Row] = &[
    (&[1], &[1], &[1], &[1], &[0], &[0]),
    (&[37], &[5], &[1], &[1], &[2], &[1]),
    (&[300], &[3], &[2], &[4], &[0], &[5]),
    (&[9, 11], &[1, 1], &[1, 1], &[1, 1], &[0, 0], &[0, 0]),
    (&[9, 11], &[1, 1], &[2, 3], &[1, 1], &[0, 0], &[0, 0]),
    (&[9, 11], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
    (&[9, 11], &[3, 2], &[2, 1], &[2, 3], &[3, 0], &[1, 4]),
    (&[30, 31], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
    (&[9, 11], &[3, 3], &[2, 2], &[1, 1], &[-2, 1], &[1, -3]),
    (&[2, 2], &[3, 3], &[1, 1], &[1, 1], &[4, 4], &[4, 4]),
    (&[4, 5, 6], &[2, 3, 1], &[1, 2, 1], &[1, 1, 2], &[1, 0, 0], &[0, 2, 1]),
];

/// Images, groups, channels and filters of a group.
const CHANNELS: &[[usize; 4]] = &[
    [1, 1, 1, 1],
    [2, 1, 3, 9],
    [1, 1, 40, 17],
    [3, 4, 1, 1],
    [2, 3, 1, 2],
    [2, 2, 5, 6],
    [0, 1, 3, 4],
];

fn attrs(row: &Row, group: usize) -> ConvAttrs {
    let &(_, _, strides, dilations, before, after) = row;
    ConvAttrs {
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        pads_before: before.to_vec(),
        pads_after: after.to_vec(),
        group,
    }
}

fn shape(lead: [usize; 2], spatial: &[usize]) -> Vec<usize> {
    lead.into_iter().chain(spatial.iter().copied()).collect()
}

fn check_conv(row: &Row, [n, g, c, m]: [usize; 4], dtype: DType, tolerance: f64) {
    let mut random = Random(5);
    let mut operands = vec![
        Some(random.tensor(dtype, shape([n, g * c], row.0))),
        Some(random.tensor(dtype, shape([g * m, c], row.1))),
    ];
    let op = || Op::Conv(attrs(row, g));
    let kernel = if dtype == DType::I32 { "int8-conv" } else { "conv" };
    check_op(op(), &operands, &[0], kernel, tolerance);
    operands.push(Some(random.tensor(dtype, vec![g * m])));
    check_op(op(), &operands, &[0], kernel, tolerance);
}

fn check_transpose(row: &Row, [n, g, c, m]: [usize; 4], dtype: DType, tolerance: f64) {
    let mut random = Random(5);
    let mut operands = vec![
        Some(random.tensor(dtype, shape([n, g * c], row.0))),
        Some(random.tensor(dtype, shape([g * c, m], row.1))),
    ];
    let (kernel, mut conv) = (row.1, attrs(row, g));
    // Pads cut from the result here, so they are kept smaller than the windows.
    let bound = |(pad, &k): (&mut i64, &usize)| *pad = (*pad).min(k as i64 / 2);
    conv.pads_before.iter_mut().zip(kernel).for_each(bound);
    conv.pads_after.iter_mut().zip(kernel).for_each(bound);
    let output_padding = conv.strides.iter().map(|stride| stride - 1).collect();
    let op = Op::ConvTranspose { conv, output_padding };
    check_op(op.clone(), &operands, &[0], "conv-transpose", tolerance);
    operands.push(Some(random.tensor(dtype, vec![g * m])));
    check_op(op, &operands, &[0], "conv-transpose", tolerance);
}

#[test]
fn every_geometry_and_grouping() {
    for row in ROWS {
        for &channels in CHANNELS {
            // Up to 360 products of at most 4, each sum rounded.
            check_conv(row, channels, DType::F32, 1e-4);
            check_transpose(row, channels, DType::F32, 1e-4);
        }
    }
}

#[test]
fn integers_are_exact() {
    for row in ROWS {
        for &channels in CHANNELS {
            check_conv(row, channels, DType::I32, 0.0);
        }
    }
    let row: Row = (&[40, 50], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]);
    check_conv(&row, [1, 1, 64, 8], DType::I32, 0.0);
}

#[test]
fn blocks_of_windows() {
    let row: Row = (&[40, 50], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]);
    for channels in [[1, 1, 64, 8], [2, 1, 64, 8], [3, 2, 20, 5]] {
        check_conv(&row, channels, DType::F32, 1e-4);
        check_transpose(&row, channels, DType::F32, 1e-4);
    }
}

#[test]
fn narrow_floats() {
    for (dtype, tolerance) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        for row in &ROWS[5..8] {
            check_conv(row, [2, 2, 5, 6], dtype, tolerance);
            check_transpose(row, [2, 2, 5, 6], dtype, tolerance);
        }
    }
}
