//! Reductions: right within the bound of sums in single precision, in any order of warps and of
//! blocks, along the last axis and along others.

use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Binary, Unary};
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::reduce::Reduce;
use graphene_ir::tensor::Scalar;

use crate::error::{Near, SINGLE, propagate, unit};
use crate::index::Random;
use crate::support::{check_clean, check_text, data, inputs, orders, run};

const F16: Scalar = Scalar::F16;
const F32: Scalar = Scalar::F32;

/// A template, the sizes of its axes, and the number of parts.
type Row = (Reduce, &'static [i64], i64);

fn last() -> Reduce {
    Reduce { teams: 2, ..Reduce::default() }
}

fn middle() -> Reduce {
    Reduce { ins: vec![Access::packed(F16, 3)], out: Access::packed(F16, 2), ..last() }
}

fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mean = |reduce: Reduce| Reduce { finish: Reduce::mean(), ..reduce };
    for op in [Binary::Add, Binary::Mul, Binary::MaxNan, Binary::MinNan] {
        rows.push((Reduce { op, ..last() }, &[3, 24], 1));
        rows.push((Reduce { op, ..middle() }, &[2, 9, 24], 1));
    }
    rows.push((mean(last()), &[5, 600], 1));
    rows.push((Reduce { threads: 64, teams: 1, ..mean(last()) }, &[2, 1048], 1));
    rows.push((Reduce { threads: 8, teams: 8, ..last() }, &[11, 128], 1));
    rows.push((Reduce { vector: 1, ..last() }, &[3, 77], 1));
    rows.push((mean(Reduce { vector: 1, ..last() }), &[3, 1], 1));
    rows.push((Reduce { vector: 1, ..last() }, &[1, 1], 1));
    rows.push((mean(Reduce { vector: 1, ..middle() }), &[2, 1, 5], 1));
    rows.push((Reduce { vector: 1, ..middle() }, &[1, 7, 1], 1));
    // Columns that are no multiple of a vector, of rows that are apart.
    let apart = Reduce { ins: vec![Access::rows(F16, 2)], ..last() };
    rows.push((apart, &[3, 77], 1));
    rows.push((mean(middle()), &[2, 33, 40], 1));
    rows.push((Reduce { teams: 1, ..middle() }, &[1, 5, 520], 1));
    rows.push((Reduce { vector: 1, ..middle() }, &[2, 7, 35], 1));
    let squares = Function::identity() * Function::identity();
    let root = Function::identity().unary(Unary::Sqrt);
    rows.push((Reduce { function: squares, finish: root, ..last() }, &[3, 304], 1));
    let product = || Function::input(0) * Function::input(1);
    let by_row = Access { scalar: F32, strides: vec![Stride::Packed, Stride::Broadcast] };
    rows.push((
        Reduce { function: product(), ins: vec![Access::packed(F16, 2), by_row], ..last() },
        &[3, 264],
        1,
    ));
    // Several blocks for a result.
    let parts = |reduce: Reduce| {
        let out = Access { scalar: F32, ..reduce.out.clone() };
        Reduce { parts: true, out, ..reduce }
    };
    rows.push((parts(mean(last())), &[2, 3000], 3));
    rows.push((parts(last()), &[3, 104], 2));
    rows.push((parts(mean(middle())), &[1, 65, 40], 4));
    rows.push((parts(middle()), &[2, 3, 24], 5));
    rows
}

fn symbols((template, sizes, parts): &Row) -> Vec<(&'static str, i64)> {
    let names = ["outer", "reduced", "inner"].into_iter().zip(sizes.iter().copied());
    let stride = (sizes[1] + 7) / 8 * 8;
    let mut symbols: Vec<_> = names.chain([("x0_stride0", stride)]).collect();
    if template.parts {
        symbols.push(("parts", *parts));
    }
    symbols
}

fn check_row(row: &Row) {
    let (template, sizes, _) = row;
    let symbols = symbols(row);
    let name = format!("{template:?} {symbols:?}");
    let kernel = template.kernel().unwrap();
    let (outer, reduced) = (sizes[0], sizes[1]);
    let inner = sizes.get(2).copied().unwrap_or(1);
    let mut random = Random::new(5);
    // Near 1, so that products stay in range.
    let product = template.op == Binary::Mul;
    let values: Vec<f64> = (0..4093)
        .map(|_| random.within(-512, 512) as f64 / 512.0)
        .map(|value| if product { 1.0 + value / 8.0 } else { value })
        .collect();
    let given = inputs(&kernel, &symbols, |param, i| {
        let written = kernel.tensor_name(kernel.params[param]) == "y";
        let scalar = kernel.tensor(kernel.params[param]).scalar;
        if written { 0.0 } else { scalar.round(values[(1009 * param + i) % 4093]) }
    });
    let stride = |access: &Access| match access.strides[..] {
        [Stride::Symbol, _] => symbols.iter().find(|row| row.0 == "x0_stride0").unwrap().1,
        [_, Stride::Broadcast] => 1,
        _ => reduced * inner,
    };
    let step = |access: &Access| if access.repeats() { 0 } else { inner };
    for seed in orders(2) {
        let outcome = run(&kernel, &given, seed);
        check_clean(&name, &outcome);
        assert_eq!(outcome.costs.total().conflicts, 0, "{name}");
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let folded: Vec<Near> = (0..reduced)
                .map(|r| {
                    let element = |(n, access): (usize, &Access)| {
                        let at = o * stride(access) + r * step(access) + i;
                        (data(&given, &format!("x{n}"))[usize::try_from(at).unwrap()], 0.0)
                    };
                    let ins: Vec<Near> = template.ins.iter().enumerate().map(element).collect();
                    propagate(&template.function, &ins)[0]
                })
                .collect();
            let total = total(template.op, &folded);
            let count = (reduced as f64, 0.0);
            let (value, error) = propagate(&template.finish, &[total, count])[0];
            let at = usize::try_from(o * inner + i).unwrap();
            let found = outcome.buffers["y"][at];
            let bound = error + unit(template.out.scalar) * (value.abs() + error);
            let near = found.is_some_and(|found| (found - value).abs() <= bound);
            assert!(near, "{name} {seed:?}: [{o},{i}] is {found:?}, not {value} ± {bound}");
        }
    }
}

/// The folded values, and how far off. Each element goes through no more than n roundings, and once
/// more for each part that is finished on its own and added.
fn total(op: Binary, values: &[Near]) -> Near {
    let n = values.len() as f64;
    let value = values.iter().fold(op.neutral().unwrap(), |total, near| op.value(total, near.0));
    let size: f64 = values.iter().map(|near| near.0.abs()).sum();
    let errors: f64 = values.iter().map(|near| near.1).sum();
    match op {
        Binary::Add => (value, errors + 2.0 * (n + 1.0) * SINGLE * (size + errors)),
        Binary::Mul => {
            let relative: f64 = values.iter().map(|near| near.1 / near.0.abs()).sum();
            (value, value.abs() * (2.0 * relative + 2.0 * n * SINGLE))
        }
        _ => (value, values.iter().map(|near| near.1).fold(0.0, f64::max)),
    }
}

#[test]
fn totals_are_right_in_any_order() {
    rows().iter().for_each(check_row);
}

#[test]
fn kernels_verify_read_back_and_become_cuda() {
    for (template, ..) in rows() {
        let kernel = template.kernel().unwrap();
        check_text(&format!("{template:?}"), &kernel);
        let source = emit(&kernel).unwrap().source;
        assert_eq!(source.contains("red.relaxed.gpu.global.add.f32"), template.parts);
    }
}

#[test]
fn what_no_kernel_has_is_refused() {
    for bad in [
        Reduce { op: Binary::Sub, ..last() },
        Reduce { parts: true, ..last() },
        Reduce { function: Function::sum(), ..last() },
        Reduce { finish: Function::sum_of_three(), ..last() },
        Reduce { out: Access::packed(F16, 2), ..last() },
        Reduce { threads: 16, ..middle() },
        Reduce { vector: 0, ..last() },
    ] {
        assert!(bad.kernel().is_err(), "{bad:?}");
    }
}
