//! Normalisations of rows: right within the bound that single precision implies, clean in any order
//! of warps, for every way to share a row among threads; and they read back.

use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Number, Unary};
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::rows::{Norm, Rows};
use graphene_ir::tensor::Scalar;

use crate::error::{Near, propagate, unit};
use crate::index::Random;
use crate::near::By;
use crate::norms::normal_of;
use crate::support::{OLDER, check_clean, check_features, check_text, data, inputs, orders, run};

const F16: Scalar = Scalar::F16;
const F32: Scalar = Scalar::F32;

/// A template, rows and columns, and the values of strides' symbols.
type Row = (Rows, [i64; 2], &'static [(&'static str, i64)]);

fn small() -> Rows {
    Rows { threads: 32, teams: 2, held: Some(2), ..Rows::default() }
}

/// A sum with a residual and a bias, stored, and an activation of the result times another operand.
fn fused() -> Rows {
    Rows {
        prologue: Function::sum() + Function::input(2),
        ins: vec![Access::packed(F16, 2), Access::packed(F16, 2), Access::line(F16, 2)],
        sum: Some(Access::packed(F16, 2)),
        epilogue: Function::identity().unary(Unary::Silu) * Function::input(1),
        extras: vec![Access::packed(F16, 2)],
        ..small()
    }
}

fn softmax() -> Rows {
    Rows { norm: Norm::Softmax, scale: None, shift: None, ..small() }
}

/// Every scalar of a template, replaced.
fn of(scalar: Scalar, rows: Rows) -> Rows {
    let access = |access: &Access| Access { scalar, ..access.clone() };
    Rows {
        ins: rows.ins.iter().map(access).collect(),
        sum: rows.sum.as_ref().map(access),
        scale: rows.scale.map(|_| scalar),
        shift: rows.shift.map(|_| scalar),
        extras: rows.extras.iter().map(access).collect(),
        out: access(&rows.out),
        more: rows.more.iter().map(access).collect(),
        vector: 16 / scalar.bytes(),
        ..rows
    }
}

fn rows() -> Vec<Row> {
    let rms = || Rows { norm: Norm::Rms, shift: None, ..small() };
    let log = || Rows { norm: Norm::LogSoftmax, ..softmax() };
    let wide = |rows: Rows| Rows { threads: 64, teams: 1, held: Some(2), ..rows };
    let again = |rows: Rows| Rows { threads: 64, teams: 1, held: None, ..rows };
    let short = |rows: Rows| Rows { threads: 8, teams: 8, held: Some(1), ..rows };
    let single = |rows: Rows| Rows { vector: 1, held: Some(3), ..rows };
    let mut all: Vec<Row> = Vec::new();
    for rows in [small(), rms(), softmax(), log(), fused()] {
        all.push((rows.clone(), [3, 512], &[]));
        all.push((rows.clone(), [5, 200], &[]));
        all.push((Rows { columns: Some(264), ..rows.clone() }, [2, 264], &[]));
        all.push((wide(rows.clone()), [2, 1000], &[]));
        all.push((again(rows.clone()), [2, 1304], &[]));
        all.push((short(rows.clone()), [9, 64], &[]));
        all.push((short(rows.clone()), [1, 8], &[]));
        all.push((single(rows.clone()), [3, 77], &[]));
        all.push((single(wide(rows.clone())), [1, 131], &[]));
        all.push((Rows { vector: 1, ..again(rows.clone()) }, [2, 131], &[]));
        all.push((Rows { ahead: 2, ..again(rows.clone()) }, [2, 1304], &[]));
        let shared = |columns| Rows { columns: Some(columns), shared: true, ..again(rows.clone()) };
        all.push((Rows { ahead: 2, ..shared(1304) }, [2, 1304], &[]));
        all.push((Rows { vector: 1, ..shared(131) }, [2, 131], &[]));
        all.push((of(Scalar::Bf16, rows.clone()), [3, 136], &[]));
        all.push((of(F32, rows.clone()), [3, 148], &[]));
        all.push((Rows { threads: 1, teams: 32, ..rows.clone() }, [3, 16], &[]));
        all.push((Rows { threads: 256, teams: 2, held: Some(1), ..rows.clone() }, [3, 1608], &[]));
        all.push((rows.clone().fitting(768), [5, 768], &[]));
        // One vector, that other threads have none of.
        all.push((Rows { columns: Some(8), ..rows.clone() }, [3, 8], &[]));
        all.push((Rows { columns: Some(8), ..again(rows.clone()) }, [3, 8], &[]));
        // One column, as a constant and as a symbol, and one row of them.
        for rows in [single(rows.clone()), Rows { vector: 1, ..again(rows.clone()) }] {
            all.push((Rows { columns: Some(1), ..rows.clone() }, [3, 1], &[]));
            all.push((Rows { columns: Some(1), ..rows.clone() }, [1, 1], &[]));
            all.push((rows, [3, 1], &[]));
        }
    }
    // Rows that blocks of a cluster share, of whole and of partial lines.
    let single = Rows { norm: Norm::Softmax, ..of(F32, Rows { scale: None, ..softmax() }) };
    for (norm, vector, columns, parts) in [
        (Norm::LogSoftmax, 1, 1131, 8),
        (Norm::Softmax, 1, 577, 8),
        (Norm::Softmax, 4, 1304, 4),
        (Norm::LogSoftmax, 4, 1280, 2),
        (Norm::Layer, 2, 262, 2),
        (Norm::Rms, 1, 3, 8),
    ] {
        let ahead = 2;
        let rows = Rows { norm, vector, parts, ahead, ..single.clone() };
        let rows = Rows { columns: Some(columns), shared: true, ..again(rows) };
        all.push((rows, [5, columns], &[]));
    }
    all.push((softmax(), [0, 128], &[]));
    // The same in two types, and a function of it.
    let several = Function::all([
        Function::identity(),
        Function::identity(),
        Function::identity().unary(Unary::Gelu),
    ]);
    let more = vec![Access::packed(F32, 2), Access::packed(Scalar::Bf16, 2)];
    all.push((Rows { epilogue: several, more, columns: Some(144), ..small() }, [3, 144], &[]));
    let strided = || Access::rows(F16, 2);
    // Rows apart; a mask of each row; constant columns allow any strides.
    all.push((
        Rows { ins: vec![strided()], out: strided(), columns: Some(72), ..softmax() },
        [3, 72],
        &[("x0_stride0", 80), ("y_stride0", 96)],
    ));
    let by_row = Access { scalar: F32, strides: vec![Stride::Packed, Stride::Broadcast] };
    all.push((
        Rows {
            prologue: Function::input(0) * 0.125 + Function::input(1),
            ins: vec![Access::packed(F16, 2), by_row],
            out: Access::packed(F16, 2),
            ..softmax()
        },
        [4, 136],
        &[],
    ));
    all
}

/// What is stored of a row whose prologue has these values.
pub(crate) fn normal(template: &Rows, row: &[Near]) -> Vec<Near> {
    normal_of(template.norm, template.epsilon.0, row, By::Simulator)
}

fn stride(name: &str, axis: usize, access: &Access, columns: i64, symbols: &[(&str, i64)]) -> i64 {
    match access.strides[axis] {
        Stride::Broadcast => 0,
        Stride::Packed if axis == 0 && !access.repeats() => columns,
        Stride::Packed => 1,
        Stride::Symbol => {
            symbols.iter().find(|row| row.0 == format!("{name}_stride{axis}")).unwrap().1
        }
    }
}

fn check_row((template, [rows, columns], strides): &Row) {
    let mut symbols = strides.to_vec();
    symbols.extend([("rows", *rows), ("columns", *columns)]);
    let name = format!("{template:?} {symbols:?}");
    let kernel = template.kernel().unwrap();
    let mut random = Random::new(7);
    let values: Vec<f64> = (0..8191).map(|_| random.within(-4096, 4096) as f64 / 1024.0).collect();
    let given = inputs(&kernel, &symbols, |param, i| {
        let scalar = kernel.tensor(kernel.params[param]).scalar;
        scalar.round(values[(2017 * param + i) % 8191])
    });
    let place = |operand: &str, access: &Access, row: i64, column: i64| {
        let at = |axis| stride(operand, axis, access, *columns, &symbols);
        usize::try_from(row * at(0) + column * at(1)).unwrap()
    };
    let element = |operand: &str, access: &Access, row: i64, column: i64| -> Near {
        (data(&given, operand)[place(operand, access, row, column)], 0.0)
    };
    let mut finish = Function::identity();
    let mut late: Vec<(String, Access)> = Vec::new();
    for (operand, scalar) in [("scale", template.scale), ("shift", template.shift)] {
        if let Some(scalar) = scalar {
            let input = Function::input(late.len() + 1);
            finish = if operand == "scale" { finish * input } else { finish + input };
            late.push((operand.to_owned(), Access::line(scalar, 2)));
        }
    }
    let extras = template.extras.iter().enumerate();
    let first = late.len() + 1;
    late.extend(extras.map(|(i, access)| (format!("e{}", i + 1), access.clone())));
    let given_late = (first..=late.len()).map(Function::input);
    let finish = template.epilogue.after(&Function::all([finish].into_iter().chain(given_late)));
    for seed in orders(2) {
        let outcome = run(&kernel, &given, seed);
        check_clean(&name, &outcome);
        assert_eq!(outcome.costs.total().conflicts, 0, "{name}");
        for row in 0..*rows {
            let prologue: Vec<Near> = (0..*columns)
                .map(|column| {
                    let ins = template.ins.iter().enumerate();
                    let ins: Vec<Near> =
                        ins.map(|(i, x)| element(&format!("x{i}"), x, row, column)).collect();
                    propagate(&template.prologue, &ins)[0]
                })
                .collect();
            let normal = normal(template, &prologue);
            for column in 0..*columns {
                let check = |operand: &str, access: &Access, (value, error): Near| {
                    let found = outcome.buffers[operand][place(operand, access, row, column)];
                    // Subnormal halves are multiples of 2⁻²⁴.
                    let bound =
                        error + unit(access.scalar) * (value.abs() + error) + 2f64.powi(-25);
                    let near = found.is_some_and(|found| (found - value).abs() <= bound);
                    assert!(
                        near,
                        "{name} {seed:?}: %{operand}[{row},{column}] is {found:?}, not {value} ± {bound}"
                    );
                };
                let at = usize::try_from(column).unwrap();
                if let Some(sum) = &template.sum {
                    check("sum", sum, prologue[at]);
                }
                let late = late.iter().map(|(name, access)| element(name, access, row, column));
                let ins: Vec<Near> = std::iter::once(normal[at]).chain(late).collect();
                let results = propagate(&finish, &ins);
                check("y", &template.out, results[0]);
                for (i, (access, &result)) in template.more.iter().zip(&results[1..]).enumerate() {
                    check(&format!("y{}", i + 1), access, result);
                }
            }
        }
    }
}

#[test]
fn rows_are_right_in_any_order() {
    rows().iter().for_each(check_row);
}

#[test]
fn rows_of_older_architectures_are_right() {
    let rows = rows().into_iter().filter(|row| row.0.parts == 1);
    for (rows, sizes, strides) in rows.step_by(3) {
        for arch in OLDER {
            let rows = Rows { arch, ..rows.clone() };
            check_features(&format!("{rows:?}"), &rows.kernel().unwrap(), false);
            check_row(&(rows, sizes, strides));
        }
    }
}

#[test]
fn kernels_verify_read_back_and_become_cuda() {
    for (template, ..) in rows() {
        let kernel = template.kernel().unwrap();
        check_text(&format!("{template:?}"), &kernel);
        let source = emit(&kernel).unwrap().source;
        let wide = ["ld.global.v4", "cp.async"].into_iter().any(|load| source.contains(load));
        assert!(template.vector == 1 || wide, "{source}");
    }
}

/// The mean of large numbers that differ little is exact enough only in two passes.
#[test]
fn variance_is_of_differences() {
    let template = Rows { scale: None, shift: None, ..of(F32, small()) };
    let kernel = template.kernel().unwrap();
    let given = inputs(&kernel, &[("rows", 1), ("columns", 64)], |_, i| {
        10_000.0 + if i % 2 == 0 { 1.0 } else { -1.0 }
    });
    let outcome = run(&kernel, &given, None);
    check_clean("large", &outcome);
    for (i, found) in outcome.buffers["y"].iter().enumerate() {
        let expected = if i % 2 == 0 { 1.0 } else { -1.0 };
        assert!((found.unwrap() - expected).abs() < 1e-4, "{i}: {found:?}");
    }
}

#[test]
fn a_softmax_of_large_numbers_does_not_overflow() {
    for norm in [Norm::Softmax, Norm::LogSoftmax] {
        let kernel = Rows { norm, ..of(F32, softmax()) }.kernel().unwrap();
        let given = inputs(&kernel, &[("rows", 1), ("columns", 8)], |_, i| {
            if i == 3 { 3e38 } else { f64::NEG_INFINITY }
        });
        let outcome = run(&kernel, &given, None);
        let (most, rest) =
            if norm == Norm::Softmax { (1.0, 0.0) } else { (0.0, f64::NEG_INFINITY) };
        for (i, found) in outcome.buffers["y"].iter().enumerate() {
            assert_eq!(*found, Some(if i == 3 { most } else { rest }));
        }
    }
}

#[test]
fn what_no_kernel_has_is_refused() {
    for bad in [
        Rows { threads: 24, ..small() },
        Rows { threads: 16, teams: 1, ..small() },
        Rows { threads: 1024, teams: 2, ..small() },
        Rows { columns: Some(100), ..small() },
        Rows { columns: Some(1024), ..small() },
        Rows { prologue: Function::sum(), ..small() },
        Rows { epilogue: Function::sum(), ..small() },
        Rows { out: Access::rows(F16, 2), ..small() },
        Rows { held: Some(0), ..small() },
        Rows { held: None, ahead: 0, ..small() },
        Rows { held: None, shared: true, ..small() },
        Rows { parts: 2, ..small() },
        Rows { epsilon: Number(1e-5), vector: 0, ..small() },
    ] {
        assert!(bad.kernel().is_err(), "{bad:?}");
    }
    let single = || Access::packed(F32, 2);
    let logits = |arch| Rows { arch, ins: vec![single()], out: single(), vector: 1, ..softmax() };
    let shared = logits(Arch::Sm90a).fitting(50257);
    for (columns, parts, ahead) in [(50257, 8, 5), (32001, 8, 8), (24001, 4, 8), (16385, 2, 7)] {
        let fitting = logits(Arch::Sm90a).fitting(columns);
        assert_eq!([fitting.parts, fitting.ahead, fitting.threads], [parts, ahead, 256]);
        fitting.kernel().unwrap();
    }
    assert_eq!(logits(Arch::Sm80).fitting(50257).parts, 1);
    for bad in [
        Rows { arch: Arch::Sm80, ..shared.clone() },
        Rows { parts: 16, ..shared.clone() },
        Rows { prologue: Function::identity() * 2.0, ..shared.clone() },
        Rows { shared: false, ..shared },
    ] {
        assert!(bad.kernel().is_err(), "{bad:?}");
    }
}
