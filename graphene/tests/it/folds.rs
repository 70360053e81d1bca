//! Functions of rows and of their totals: right within the bound of sums in single precision, over any
//! axes, in any order of warps.

use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Binary, Unary};
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::folds::{Folds, Out, Total};
use graphene_ir::template::reduce::Reduce;
use graphene_ir::tensor::Scalar;

use crate::error::{Near, SINGLE, propagate, unit};
use crate::index::Random;
use crate::support::{check_clean, check_text, data, inputs, orders, run};

const F16: Scalar = Scalar::F16;
const F32: Scalar = Scalar::F32;

/// A template, and the sizes of its axes; all operands are packed.
type Row = (Folds, &'static [i64]);

fn total(op: Binary, function: Function) -> Total {
    Total { op, function, finish: Function::identity() }
}

fn out(function: Function, scalar: Scalar, rank: usize) -> Out {
    Out { function, access: Access::packed(scalar, rank) }
}

/// The elements' distances from the mean, and the variance.
pub(crate) fn variance(scalar: Scalar) -> Folds {
    let [x, mean, variance] = [0, 1, 2].map(Function::input);
    let difference = x.clone() - mean;
    let of = |function| Total { finish: Reduce::mean(), ..total(Binary::Add, function) };
    Folds {
        ins: vec![Access::packed(scalar, 2)],
        totals: vec![of(x), of(difference.clone() * difference.clone())],
        outs: vec![out(difference, scalar, 2), out(variance, F32, 1)],
        ..Folds::default()
    }
}

/// Softmax of what is scaled row by row.
pub(crate) fn softmax(kept: usize, rank: usize) -> Folds {
    let [x, scale, most, sum] = [0, 1, 2, 3].map(Function::input);
    let x = x * scale;
    let power = (x.clone() - most).unary(Unary::Exp);
    Folds {
        kept,
        ins: vec![Access::packed(F32, rank), Access::packed(F32, kept)],
        totals: vec![total(Binary::MaxNan, x), total(Binary::Add, power.clone())],
        outs: vec![out(power / sum, F32, rank)],
        ..Folds::default()
    }
}

fn rows() -> Vec<Row> {
    let sums = Folds::default();
    // Columns before rows.
    let turned = Access { scalar: F16, strides: vec![Stride::Packed, Stride::Symbol] };
    let line = Access::line(F16, 2);
    let weighted = Folds {
        ins: vec![Access::packed(F16, 2), line],
        totals: vec![total(Binary::Add, Function::input(0) * Function::input(1))],
        outs: vec![out(Function::input(2), F16, 1)],
        ..sums.clone()
    };
    vec![
        (sums.clone(), &[5, 77]),
        (sums.clone(), &[5, 1]),
        (sums.clone(), &[1, 1]),
        (Folds { vector: 8, threads: 8, teams: 16, ..sums.clone() }, &[19, 40]),
        (Folds { vector: 8, threads: 64, teams: 2, ..sums.clone() }, &[3, 1200]),
        (weighted.clone(), &[5, 33]),
        (Folds { vector: 4, ..weighted }, &[5, 36]),
        (Folds { ins: vec![turned], ..sums }, &[6, 9]),
        (variance(F16), &[6, 50]),
        (Folds { vector: 4, threads: 128, teams: 1, ..variance(F32) }, &[2, 1036]),
        (softmax(1, 2), &[6, 50]),
        (softmax(2, 3), &[2, 3, 20]),
        (softmax(1, 3), &[5, 4, 20]),
        (Folds { vector: 4, ..softmax(2, 4) }, &[2, 3, 5, 8]),
    ]
}

fn symbols((template, sizes): &Row) -> Vec<(&'static str, i64)> {
    let names = ["N0", "N1", "N2", "N3"].into_iter().zip(sizes.iter().copied());
    let mut symbols: Vec<_> = names.collect();
    if template.ins[0].strides.contains(&Stride::Symbol) {
        symbols.push(("x0_stride1", sizes[0] * sizes[1]));
    }
    symbols
}

/// The place of an element in an operand.
fn place(template: &Folds, access: &Access, sizes: &[i64], row: i64, column: i64) -> usize {
    let columns: i64 = sizes[template.kept..].iter().product();
    let at = match access.strides[..] {
        [Stride::Broadcast, Stride::Packed] => column,
        // The rows' axis is packed as if columns lay within it.
        [Stride::Packed, Stride::Symbol] => sizes[1] * (row + column * sizes[0]),
        _ if access.strides.len() == template.kept => row,
        _ => row * columns + column,
    };
    usize::try_from(at).unwrap()
}

fn check_row(row: &Row) {
    let (template, sizes) = row;
    let symbols = symbols(row);
    let name = format!("{template:?} {symbols:?}");
    let kernel = template.kernel().unwrap();
    let rows: i64 = sizes[..template.kept].iter().product();
    let columns: i64 = sizes[template.kept..].iter().product();
    let mut random = Random::new(5);
    let values: Vec<f64> = (0..4093).map(|_| random.within(-512, 512) as f64 / 512.0).collect();
    let given = inputs(&kernel, &symbols, |param, i| {
        let scalar = kernel.tensor(kernel.params[param]).scalar;
        scalar.round(values[(1009 * param + i) % 4093])
    });
    for seed in orders(2) {
        let outcome = run(&kernel, &given, seed);
        check_clean(&name, &outcome);
        for row in 0..rows {
            let ins = |column: i64| -> Vec<Near> {
                let element = |(i, access): (usize, &Access)| {
                    let at = place(template, access, sizes, row, column);
                    (data(&given, &format!("x{i}"))[at], 0.0)
                };
                template.ins.iter().enumerate().map(element).collect()
            };
            let mut totals: Vec<Near> = Vec::new();
            for total in &template.totals {
                let folded: Vec<Near> = (0..columns)
                    .map(|column| {
                        let given: Vec<Near> =
                            ins(column).into_iter().chain(totals.clone()).collect();
                        propagate(&total.function, &given)[0]
                    })
                    .collect();
                let folded = folded_value(total.op, &folded);
                let count = (columns as f64, 0.0);
                let given: Vec<Near> = [folded, count].into_iter().chain(totals.clone()).collect();
                totals.push(propagate(&total.finish, &given)[0]);
            }
            for (number, out) in template.outs.iter().enumerate() {
                let whole = out.access.strides.len() == sizes.len();
                for column in 0..if whole { columns } else { 1 } {
                    let given: Vec<Near> = ins(column).into_iter().chain(totals.clone()).collect();
                    let (value, error) = propagate(&out.function, &given)[0];
                    let at = if whole { row * columns + column } else { row };
                    let found = outcome.buffers[&format!("y{number}")][at as usize];
                    let bound = error + unit(out.access.scalar) * (value.abs() + error);
                    let near = found.is_some_and(|found| (found - value).abs() <= bound);
                    assert!(near, "{name} {seed:?}: [{row},{column}] {found:?}, {value} ± {bound}");
                }
            }
        }
    }
}

/// The folded values, and how far off: each element goes through no more than n additions.
fn folded_value(op: Binary, values: &[Near]) -> Near {
    let value = values.iter().fold(op.neutral().unwrap(), |total, near| op.value(total, near.0));
    let size: f64 = values.iter().map(|near| near.0.abs()).sum();
    let errors: f64 = values.iter().map(|near| near.1).sum();
    match op {
        Binary::Add => (value, errors + 2.0 * (values.len() + 1) as f64 * SINGLE * (size + errors)),
        _ => (value, values.iter().map(|near| near.1).fold(0.0, f64::max)),
    }
}

#[test]
fn rows_and_totals_are_right_in_any_order() {
    rows().iter().for_each(check_row);
}

#[test]
fn folds_verify_read_back_and_become_cuda() {
    for (template, _) in rows() {
        let kernel = template.kernel().unwrap();
        check_text(&format!("{template:?}"), &kernel);
        emit(&kernel).unwrap();
    }
}

#[test]
fn folds_that_no_kernel_has_are_refused() {
    let sums = Folds::default();
    let of = |op, function| Folds { totals: vec![total(op, function)], ..Folds::default() };
    for bad in [
        Folds { ins: Vec::new(), ..sums.clone() },
        Folds { outs: Vec::new(), ..sums.clone() },
        Folds { kept: 2, ..sums.clone() },
        Folds { kept: 0, ..sums.clone() },
        Folds { ins: vec![Access::packed(F16, 3), Access::packed(F16, 2)], ..sums.clone() },
        Folds { outs: vec![out(Function::identity(), F16, 1)], ..sums.clone() },
        Folds { outs: vec![out(Function::input(2), F16, 1)], ..sums.clone() },
        Folds { vector: 0, ..sums.clone() },
        Folds { threads: 33, ..sums },
        of(Binary::Sub, Function::identity()),
        of(Binary::Add, Function::sum()),
    ] {
        assert!(bad.kernel().is_err(), "{bad:?}");
    }
}
