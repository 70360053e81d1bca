//! Running sums and products: each element is what the sequence up to it makes, for all sizes,
//! directions, types and orders of warps.

use graphene_ir::emit::emit;
use graphene_ir::kernel::Binary;
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::scan::Scan;
use graphene_ir::tensor::Scalar;

use crate::support::{check_clean, check_text, data, inputs, orders, run};

/// A template, rows and columns, and from row to row of the input.
type Row = (Scan, [usize; 2], usize);

fn rows() -> Vec<Row> {
    let small = Scan { threads: 32, ..Scan::default() };
    let whole = |from, to| Scan {
        numbers: Scalar::I64,
        x: Access::packed(from, 2),
        y: Access::packed(to, 2),
        ..small.clone()
    };
    let apart = Access { scalar: Scalar::F16, strides: vec![Stride::Symbol, Stride::Packed] };
    let mut rows = vec![
        (small.clone(), [1, 1], 1),
        (small.clone(), [3, 1], 1),
        (small.clone(), [2, 32], 32),
        (small.clone(), [3, 75], 75),
        (Scan { threads: 64, ..small.clone() }, [1, 150], 150),
        (Scan { x: apart, ..small.clone() }, [2, 40], 48),
        (Scan { op: Binary::Mul, ..small.clone() }, [2, 35], 35),
        (whole(Scalar::I32, Scalar::I32), [2, 70], 70),
        (whole(Scalar::I64, Scalar::I64), [2, 33], 33),
        (whole(Scalar::U8, Scalar::I64), [2, 33], 33),
    ];
    for (exclusive, reverse) in [(true, false), (false, true), (true, true)] {
        let scan = Scan { exclusive, reverse, ..small.clone() };
        rows.push((scan.clone(), [2, 75], 75));
        rows.push((Scan { vector: 4, ..scan.clone() }, [2, 148], 148));
        rows.push((Scan { vector: 2, ..scan }, [3, 38], 38));
    }
    let halves = Access::packed(Scalar::F16, 2);
    rows.push((Scan { vector: 8, x: halves.clone(), y: halves, ..small.clone() }, [2, 264], 264));
    rows.push((Scan { vector: 2, ..whole(Scalar::I64, Scalar::I64) }, [2, 66], 66));
    rows
}

#[test]
fn scans_are_right_in_any_order() {
    for (scan, [count, length], apart) in rows() {
        let symbols = [("N0", count as i64), ("N1", length as i64), ("x_stride0", apart as i64)];
        let name = format!("{scan:?} {count}×{length}");
        let kernel = scan.kernel().unwrap();
        let given = inputs(&kernel, &symbols, |_, i| {
            let small = (i * 7 % 23) as f64 / 16.0 - 0.5;
            match (scan.op, scan.x.scalar) {
                (_, Scalar::I32) => (i * 7 % 23) as f64 * 5e7,
                (_, Scalar::I64 | Scalar::U8) => (i * 7 % 2) as f64,
                (Binary::Mul, _) => 1.0 + small / 16.0,
                _ => small,
            }
        });
        let x = data(&given, "x");
        for seed in orders(3) {
            let outcome = run(&kernel, &given, seed);
            check_clean(&name, &outcome);
            for row in 0..count {
                let (mut sum, mut size) = (if scan.op == Binary::Mul { 1.0 } else { 0.0 }, 1.0f64);
                for i in 0..length {
                    let place = if scan.reverse { length - 1 - i } else { i };
                    let value = x[row * apart + place];
                    let after = scan.op.value(sum, value);
                    size = size.max(after.abs()).max(size + value.abs());
                    let expected = if scan.exclusive { sum } else { after };
                    sum = after;
                    let found = outcome.buffers["y"][row * length + place].unwrap();
                    // Sums along a tree of vector + log₂(threads) + length/(threads · vector) levels.
                    let chunk = (scan.threads * scan.vector) as f64;
                    let levels = scan.vector as f64 + f64::from(scan.threads.ilog2());
                    let levels = levels + length as f64 / chunk;
                    let (expected, bound) = match scan.numbers {
                        Scalar::F32 if scan.y.scalar == Scalar::F32 => {
                            (expected, (levels + 2.0) * 2f64.powi(-24) * size)
                        }
                        Scalar::F32 => {
                            let rounded = 2f64.powi(-11) * expected.abs();
                            (expected, (levels + 2.0) * 2f64.powi(-24) * size + rounded)
                        }
                        _ => (scan.y.scalar.round(expected), 0.0),
                    };
                    assert!((found - expected).abs() <= bound, "{name}: {found} for {expected}");
                }
            }
        }
    }
}

#[test]
fn kernels_verify_read_back_and_become_cuda() {
    for (scan, ..) in rows() {
        let kernel = scan.kernel().unwrap();
        check_text(&format!("{scan:?}"), &kernel);
        emit(&kernel).unwrap();
    }
}

#[test]
fn what_no_kernel_has_is_refused() {
    for bad in [
        Scan { threads: 48, ..Scan::default() },
        Scan { vector: 3, ..Scan::default() },
        Scan { op: Binary::Max, ..Scan::default() },
        Scan { numbers: Scalar::I64, ..Scan::default() },
        Scan { x: Access::packed(Scalar::F32, 3), ..Scan::default() },
    ] {
        assert!(bad.kernel().is_err(), "{bad:?}");
    }
}
