//! Results made of parts: every element is the one of its part that belongs there, and what is between
//! parts stays, for all sources, sizes, partial vectors and orders of warps.

use graphene_ir::emit::emit;
use graphene_ir::kernel::Number;
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::parts::{Part, Parts, Source};
use graphene_ir::tensor::Scalar;

use crate::support::{check_clean, check_text, data, inputs, orders, run};

use Stride::{Broadcast, Packed, Symbol};

/// A template, the values of its symbols but for `blocks`, and how many blocks there are.
type Row = (Parts, Vec<(&'static str, i64)>, i64);

fn access(scalar: Scalar, strides: &[Stride]) -> Access {
    Access { scalar, strides: strides.to_vec() }
}

fn copied(from: Access, to: Access, vector: i64) -> Part {
    Part { source: Source::Copied(from), to, vector }
}

pub(crate) fn of(parts: &[Part]) -> Parts {
    Parts { parts: parts.to_vec(), threads: 64, ..Parts::default() }
}

fn rows() -> Vec<Row> {
    let (f16, u8, i64) = (Scalar::F16, Scalar::U8, Scalar::I64);
    let rows2 = |scalar| access(scalar, &[Symbol, Packed]);
    let filled = |number, to, vector| Part { source: Source::Filled(Number(number)), to, vector };
    let counted =
        |scalar| Part { source: Source::Counted, to: Access::packed(scalar, 1), vector: 1 };
    vec![
        // Two operands side by side, with room between them.
        (
            of(&[copied(Access::packed(f16, 2), rows2(f16), 8), copied(rows2(f16), rows2(f16), 2)]),
            vec![
                ("N0_0", 9),
                ("N0_1", 24),
                ("N1_0", 9),
                ("N1_1", 7),
                ("y0_stride0", 32),
                ("y1_stride0", 16),
                ("x1_stride0", 10),
            ],
            2,
        ),
        // A border of numbers, and one element everywhere.
        (
            of(&[
                filled(-1.5, Access::packed(f16, 1), 4),
                filled(f64::NEG_INFINITY, rows2(f16), 1),
                copied(access(f16, &[Broadcast, Broadcast]), Access::packed(f16, 2), 8),
            ]),
            vec![
                ("N0_0", 70),
                ("N1_0", 5),
                ("N1_1", 3),
                ("y1_stride0", 4),
                ("N2_0", 3),
                ("N2_1", 24),
            ],
            1,
        ),
        (of(&[counted(i64)]), vec![("N0_0", 150), ("first0", 0)], 2),
        (
            of(&[counted(i64), counted(Scalar::I32)]),
            vec![("N0_0", 1), ("first0", 77), ("N1_0", 5), ("first1", 9)],
            1,
        ),
        (
            of(&[copied(Access::packed(u8, 3), access(u8, &[Symbol, Packed, Packed]), 8)]),
            vec![("N0_0", 3), ("N0_1", 5), ("N0_2", 24), ("y0_stride0", 136)],
            1,
        ),
        // Nothing, and then something.
        (
            of(&[
                copied(Access::packed(i64, 1), Access::packed(i64, 1), 2),
                copied(Access::packed(i64, 1), Access::packed(i64, 1), 2),
            ]),
            vec![("N0_0", 0), ("N1_0", 33)],
            3,
        ),
    ]
}

/// Where an element of an operand lies.
fn place(name: &str, access: &Access, sizes: &[i64], symbols: &[(&str, i64)], at: &[i64]) -> usize {
    let stride = |axis: usize| match access.strides[axis] {
        Broadcast => 0,
        Packed => sizes[axis + 1..].iter().product(),
        Symbol => symbols.iter().find(|row| row.0 == format!("{name}_stride{axis}")).unwrap().1,
    };
    usize::try_from((0..at.len()).map(|axis| stride(axis) * at[axis]).sum::<i64>()).unwrap()
}

fn coordinates(mut linear: i64, sizes: &[i64]) -> Vec<i64> {
    let mut at = Vec::new();
    for size in sizes.iter().rev() {
        at.insert(0, linear % size);
        linear /= size;
    }
    at
}

#[test]
fn parts_are_where_they_belong() {
    for (template, mut symbols, blocks) in rows() {
        symbols.push(("blocks", blocks));
        let name = format!("{template:?} {symbols:?}");
        let kernel = template.kernel().unwrap();
        let given = inputs(&kernel, &symbols, |param, i| ((param * 53 + i * 7) % 251) as f64);
        for seed in orders(2) {
            let outcome = run(&kernel, &given, seed);
            check_clean(&name, &outcome);
            for (p, Part { source, to, .. }) in template.parts.iter().enumerate() {
                let symbol =
                    |name: String| symbols.iter().find(|row| row.0 == name).map(|row| row.1);
                let sizes: Vec<i64> = (0..to.strides.len())
                    .map(|axis| symbol(format!("N{p}_{axis}")).unwrap())
                    .collect();
                let mut written = 0;
                for linear in 0..sizes.iter().product() {
                    let at = coordinates(linear, &sizes);
                    let expected = match source {
                        Source::Copied(from) => {
                            let x = format!("x{p}");
                            data(&given, &x)[place(&x, from, &sizes, &symbols, &at)]
                        }
                        Source::Filled(number) => number.0,
                        Source::Counted => (symbol(format!("first{p}")).unwrap() + at[0]) as f64,
                    };
                    let y = format!("y{p}");
                    let found = outcome.buffers[&*y][place(&y, to, &sizes, &symbols, &at)];
                    assert_eq!(found, Some(expected), "{name} {seed:?} {y} {at:?}");
                    written += 1;
                }
                let found = outcome.buffers[&*format!("y{p}")].iter().flatten().count();
                assert_eq!(found, written, "{name}: no more than the part is written");
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
    let packed = |scalar| Access::packed(scalar, 1);
    let counted = |to, vector| Part { source: Source::Counted, to, vector };
    for bad in [
        of(&[]),
        Parts { threads: 0, ..Parts::default() },
        of(&[copied(packed(Scalar::F16), packed(Scalar::F16), 0)]),
        of(&[copied(packed(Scalar::F32), packed(Scalar::F16), 1)]),
        of(&[copied(Access::packed(Scalar::F16, 2), packed(Scalar::F16), 1)]),
        of(&[copied(Access::packed(Scalar::F16, 0), Access::packed(Scalar::F16, 0), 1)]),
        of(&[counted(packed(Scalar::I64), 2)]),
        of(&[counted(packed(Scalar::F32), 1)]),
    ] {
        assert!(bad.kernel().is_err(), "{bad:?}");
    }
}
