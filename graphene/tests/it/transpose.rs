//! Transposes: every element where it belongs, for all sizes, types and strides; no bank conflicts.

use graphene_ir::emit::emit;
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::transpose::Transpose;
use graphene_ir::tensor::Scalar;

use crate::support::{check_clean, check_text, data, inputs, orders, run};

/// A template, the sizes of all axes of `x`, and the values of the strides' symbols.
type Row = (Transpose, &'static [i64], &'static [(&'static str, i64)]);

fn packed(scalar: Scalar, rank: usize, vector: i64) -> Transpose {
    let access = Access::packed(scalar, rank);
    Transpose { x: access.clone(), y: access, load: vector, store: vector, ..Transpose::default() }
}

fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for scalar in [Scalar::F16, Scalar::F32, Scalar::U8, Scalar::I64] {
        let bytes = scalar.bytes();
        let word = (4 / bytes).max(1);
        let wider =
            [8, 16].map(|width| width / bytes).into_iter().filter(|&v| v <= 8 && bytes <= 4);
        for vector in wider.chain([word]) {
            rows.push((packed(scalar, 2, vector), &[64, 64], &[]));
            rows.push((packed(scalar, 2, vector), &[72, 152], &[]));
            rows.push((packed(scalar, 3, vector), &[2, 136, 40], &[]));
        }
        rows.push((packed(scalar, 2, 1), &[67, 71], &[]));
        rows.push((packed(scalar, 2, 1), &[1, 3], &[]));
        rows.push((packed(scalar, 2, 1), &[70, 1], &[]));
        rows.push((packed(scalar, 3, 1), &[1, 1, 1], &[]));
        rows.push((packed(scalar, 3, word), &[2, 68, 36], &[]));
        // One side is aligned.
        let widest = if bytes <= 4 { (16 / bytes).min(8) } else { 1 };
        rows.push((Transpose { load: widest, ..packed(scalar, 2, 1) }, &[67, 72], &[]));
        rows.push((Transpose { store: widest, ..packed(scalar, 2, 1) }, &[72, 67], &[]));
    }
    // Heads of a sequence: `[batch, sequence, heads, dim]` to `[batch, heads, dim, sequence]`, and
    // rows that are apart, with an odd end that no word has.
    let strided = Access {
        scalar: Scalar::F16,
        strides: vec![Stride::Symbol, Stride::Symbol, Stride::Symbol, Stride::Packed],
    };
    rows.push((
        Transpose {
            x: strided,
            y: Access::packed(Scalar::F16, 4),
            load: 2,
            store: 2,
            ..Transpose::default()
        },
        &[2, 3, 70, 32],
        &[("x_stride0", 70 * 96), ("x_stride1", 32), ("x_stride2", 96)],
    ));
    let apart = Access::rows(Scalar::F16, 2);
    for vector in [2, 8] {
        let template = Transpose {
            x: apart.clone(),
            y: apart.clone(),
            load: vector,
            store: 8,
            ..Transpose::default()
        };
        rows.push((template, &[65, 67], &[("x_stride0", 80), ("y_stride0", 72)]));
    }
    rows
}

fn symbols((_, sizes, strides): &Row) -> Vec<(&'static str, i64)> {
    let (outer, last) = sizes.split_at(sizes.len() - 2);
    let outer = ["N0", "N1"].into_iter().zip(outer.iter().copied());
    outer.chain([("rows", last[0]), ("columns", last[1])]).chain(strides.iter().copied()).collect()
}

fn place(name: &str, access: &Access, sizes: &[i64], symbols: &[(&str, i64)], at: &[i64]) -> usize {
    let stride = |axis: usize| match access.strides[axis] {
        Stride::Symbol => {
            symbols.iter().find(|row| row.0 == format!("{name}_stride{axis}")).unwrap().1
        }
        Stride::Packed | Stride::Broadcast => sizes[axis + 1..].iter().product(),
    };
    usize::try_from((0..at.len()).map(|axis| stride(axis) * at[axis]).sum::<i64>()).unwrap()
}

#[test]
fn elements_are_where_they_belong() {
    for row in rows() {
        let (template, sizes, _) = &row;
        let symbols = symbols(&row);
        let name = format!("{template:?} {symbols:?}");
        let kernel = template.kernel().unwrap();
        let given = inputs(&kernel, &symbols, |_, i| (i * 7 % 251) as f64);
        let rank = sizes.len();
        let mut turned = sizes.to_vec();
        turned.swap(rank - 2, rank - 1);
        for seed in orders(2) {
            let outcome = run(&kernel, &given, seed);
            check_clean(&name, &outcome);
            assert_eq!(outcome.costs.total().conflicts, 0, "{name}");
            for linear in 0..sizes.iter().product::<i64>() {
                let mut rest = linear;
                let mut at: Vec<i64> = Vec::new();
                for size in sizes.iter().rev() {
                    at.insert(0, rest % size);
                    rest /= size;
                }
                let x = data(&given, "x")[place("x", &template.x, sizes, &symbols, &at)];
                at.swap(rank - 2, rank - 1);
                let y = outcome.buffers["y"][place("y", &template.y, &turned, &symbols, &at)];
                assert_eq!(y, Some(x), "{name} {seed:?} {at:?}");
            }
        }
    }
}

#[test]
fn kernels_verify_read_back_and_become_cuda() {
    for (template, ..) in rows() {
        let kernel = template.kernel().unwrap();
        check_text(&format!("{template:?}"), &kernel);
        emit(&kernel).unwrap();
    }
}

#[test]
fn what_no_kernel_has_is_refused() {
    let good = Transpose::default;
    for bad in [
        Transpose { x: Access::packed(Scalar::F32, 2), ..good() },
        Transpose { x: Access::packed(Scalar::F16, 3), ..good() },
        Transpose { load: 16, ..good() },
        Transpose { store: 3, ..good() },
        Transpose { y: Access { scalar: Scalar::F16, strides: vec![Stride::Symbol; 2] }, ..good() },
    ] {
        assert!(bad.kernel().is_err(), "{bad:?}");
    }
}
