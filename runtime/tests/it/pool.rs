//! Poolings: geometries, rounding up, places.

use crate::check::{Random, check_op};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{IndexOrder, Op, PoolAttrs, PoolKind};
use graphene_frontend::tensor::Tensor;

/// A row: shape, kernel, strides, dilations, pads before, pads after, whether rounded up.
type Row = (
    &'static [usize],
    &'static [usize],
    &'static [usize],
    &'static [usize],
    &'static [usize],
    &'static [usize],
    bool,
);

const ROWS: &[Row] = &[
    (&[1, 1, 1], &[1], &[1], &[1], &[0], &[0], false),
    (&[2, 3, 40], &[3], &[2], &[1], &[1], &[1], true),
    (&[2, 3, 17, 19], &[3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1], false),
    (&[2, 3, 17, 19], &[2, 3], &[1, 2], &[3, 2], &[0, 1], &[2, 1], true),
    (&[1, 65, 8, 9], &[8, 9], &[1, 1], &[1, 1], &[0, 0], &[0, 0], false),
    (&[1, 2, 3, 3], &[2, 2], &[2, 2], &[1, 1], &[1, 1], &[0, 0], true),
    (&[1, 2, 5, 6, 7], &[2, 2, 3], &[2, 1, 2], &[1, 2, 1], &[0, 1, 1], &[1, 1, 0], false),
    (&[0, 2, 5, 5], &[2, 2], &[2, 2], &[1, 1], &[0, 0], &[0, 0], false),
    // Windows of padding alone.
    (&[1, 1, 2, 2], &[1, 1], &[1, 1], &[1, 1], &[2, 2], &[2, 2], false),
];

fn op(row: &Row, kind: PoolKind) -> Op {
    let &(_, kernel, strides, dilations, before, after, ceil) = row;
    Op::Pool(PoolAttrs {
        kind,
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        pads_before: before.to_vec(),
        pads_after: after.to_vec(),
        ceil,
    })
}

fn check(row: &Row, kind: PoolKind, x: Tensor, outputs: &[u32], tolerance: f64) {
    check_op(op(row, kind), &[Some(x)], outputs, "pool", tolerance);
}

#[test]
fn every_kind() {
    for row in ROWS {
        let x = Random(9).tensor(DType::F32, row.0.to_vec());
        check(row, PoolKind::Max { indices: None }, x.clone(), &[0], 0.0);
        for include_pad in [false, true] {
            check(row, PoolKind::Average { include_pad }, x.clone(), &[0], 1e-6);
        }
        for p in [1, 2, 3] {
            check(row, PoolKind::Lp { p }, x.clone(), &[0], 1e-5);
        }
    }
}

#[test]
fn places() {
    for row in ROWS {
        // Integers have equal neighbours, of which the first counts.
        let n: usize = row.0.iter().product();
        let whole = (0..n).map(|i| ((i * 7919) % 5) as f32).collect();
        let x = Tensor::from_vec(row.0.to_vec(), whole).unwrap();
        for order in [IndexOrder::RowMajor, IndexOrder::ColumnMajor] {
            for outputs in [&[0, 1][..], &[0], &[1]] {
                check(row, PoolKind::Max { indices: Some(order) }, x.clone(), outputs, 0.0);
            }
        }
    }
}

#[test]
fn nan_is_the_largest() {
    let row: Row = (&[1, 1, 6], &[3], &[1], &[1], &[1], &[1], false);
    let x = vec![1.0, f32::NAN, 3.0, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY];
    let x = Tensor::from_vec(vec![1, 1, 6], x).unwrap();
    for indices in [None, Some(IndexOrder::RowMajor)] {
        let outputs: &[u32] = if indices.is_some() { &[0, 1] } else { &[0] };
        check(&row, PoolKind::Max { indices }, x.clone(), outputs, 0.0);
    }
}

#[test]
fn narrow_floats() {
    for (dtype, tolerance) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        let x = Random(9).tensor(dtype, ROWS[3].0.to_vec());
        check(&ROWS[3], PoolKind::Average { include_pad: false }, x.clone(), &[0], tolerance);
        let kind = PoolKind::Max { indices: Some(IndexOrder::RowMajor) };
        check(&ROWS[3], kind, x, &[0, 1], 0.0);
    }
}
