//! Functions of elements, copies, folds and running sums; and Fireiron's matmul.

use graphene_ir::arch::Arch;
use graphene_ir::function::Function;
use graphene_ir::function::near::{Near, SINGLE};
use graphene_ir::kernel::{Binary, Unary};
use graphene_ir::template::access::Access;
use graphene_ir::template::folds::{Folds, Out, Total};
use graphene_ir::template::parts::{Part, Parts, Source};
use graphene_ir::template::pointwise::Pointwise;
use graphene_ir::template::reduce::Reduce;
use graphene_ir::template::scan::Scan;
use graphene_ir::template::transpose::Transpose;
use graphene_ir::tensor::Scalar;
use graphene_ir::text::parse;

use super::Case;
use super::norms::sum;
use crate::data::Random;
use crate::near::{By, propagate};

const F16: Scalar = Scalar::F16;
const F32: Scalar = Scalar::F32;

pub(super) const CASES: &[fn(&mut Random) -> Case] = &[
    |random| activation("bias, GELU and residual", Unary::Gelu, F16, random),
    |random| activation("bias, SiLU and residual", Unary::Silu, Scalar::Bf16, random),
    |random| activation("bias, tanh and residual", Unary::Tanh, F32, random),
    |random| turned(F16, random),
    |random| turned(F32, random),
    |random| mean_of_rows(F16, random),
    |random| mean_of_columns(F16, random),
    |random| mean_of_columns(F32, random),
    joined,
    |random| running(false, false, random),
    |random| running(true, true, random),
    variances,
    matmul,
];

fn symbols(of: &[(&str, usize)]) -> Vec<(String, i64)> {
    of.iter().map(|(name, size)| ((*name).to_owned(), *size as i64)).collect()
}

/// Numbers as `random.normal` has them, with outliers.
fn input(
    name: &str,
    scalar: Scalar,
    len: usize,
    random: &mut Random,
) -> (String, Scalar, Vec<f64>) {
    (name.to_owned(), scalar, random.normal(len, scalar, true))
}

fn output(name: &str, scalar: Scalar, len: usize) -> (String, Scalar, usize) {
    (name.to_owned(), scalar, len)
}

/// A function of a matrix, a bias and another matrix.
fn activation(name: &str, op: Unary, scalar: Scalar, random: &mut Random) -> Case {
    let [rows, columns] = [12288, 768];
    let [x, bias, residual] = [0, 1, 2].map(Function::input);
    let function = (x + bias).unary(op) + residual;
    let matrix = Access::packed(scalar, 2);
    let template = Pointwise {
        function: function.clone(),
        ins: vec![matrix.clone(), Access::line(scalar, 2), matrix.clone()],
        outs: vec![matrix],
        vector: 16 / scalar.bytes(),
        ..Pointwise::default()
    };
    let blocks = rows * columns / (template.vector * template.threads) as usize;
    Case {
        name: format!("{name} {rows}x{columns} {scalar}"),
        kernel: Box::new(move |arch| Pointwise { arch, ..template.clone() }.kernel()),
        ins: vec![
            input("x0", scalar, rows * columns, random),
            input("x1", scalar, columns, random),
            input("x2", scalar, rows * columns, random),
        ],
        outs: vec![output("y0", scalar, rows * columns)],
        symbols: symbols(&[("N0", rows), ("N1", columns), ("blocks", blocks)]),
        sample: Box::new(move |values, random| {
            let row = random.within(0, rows - 1);
            let each = |column: usize| {
                let place = row * columns + column;
                let ins = [values.at("x0", place), values.at("x1", column), values.at("x2", place)];
                (0, place, propagate(&function, &ins, By::Device)[0])
            };
            (0..columns).map(each).collect()
        }),
    }
}

/// Keys of heads with one more each, as in a cache; the second result stands for the last rows of the first.
fn joined(random: &mut Random) -> Case {
    let [heads, keys, width] = [384, 512, 64];
    let (past, all) = (keys * width, (keys + 1) * width);
    let (packed, apart) = (Access::packed(F16, 2), Access::rows(F16, 2));
    let part = Part { source: Source::Copied(packed), to: apart, vector: 8 };
    let template = Parts { parts: vec![part.clone(), part], ..Parts::default() };
    Case {
        name: format!("join {heads}x[{keys}+1]x{width} {F16}"),
        kernel: Box::new(move |arch| Parts { arch, ..template.clone() }.kernel()),
        ins: vec![input("x0", F16, heads * past, random), input("x1", F16, heads * width, random)],
        outs: vec![output("y0", F16, heads * all), output("y1", F16, heads * all)],
        symbols: symbols(&[
            ("N0_0", heads),
            ("N0_1", past),
            ("N1_0", heads),
            ("N1_1", width),
            ("y0_stride0", all),
            ("y1_stride0", all),
            ("blocks", heads * past / 8 / 256),
        ]),
        sample: Box::new(move |values, random| {
            let head = random.within(0, heads - 1);
            let old = random.within(0, past - width);
            let of = |out, from: &str, len: usize, first: usize| {
                let each = move |i| (out, head * all + i, values.at(from, head * len + i));
                (first..first + width).map(each).collect::<Vec<_>>()
            };
            [of(0, "x0", past, old), of(1, "x1", width, 0)].concat()
        }),
    }
}

/// A stack of matrices, each transposed.
fn turned(scalar: Scalar, random: &mut Random) -> Case {
    let [stack, rows, columns] = [32, 384, 768];
    let access = Access::packed(scalar, 3);
    let [load, store] = [16 / scalar.bytes(); 2];
    let template = Transpose { x: access.clone(), y: access, load, store, ..Transpose::default() };
    Case {
        name: format!("transpose {stack}x{rows}x{columns} {scalar}"),
        kernel: Box::new(move |arch| Transpose { arch, ..template.clone() }.kernel()),
        ins: vec![input("x", scalar, stack * rows * columns, random)],
        outs: vec![output("y", scalar, stack * rows * columns)],
        symbols: symbols(&[("N0", stack), ("rows", rows), ("columns", columns)]),
        sample: Box::new(move |values, random| {
            let first = random.within(0, stack * rows - 1);
            let (of, row) = (first / rows, first % rows);
            let each = |column: usize| {
                let from = first * columns + column;
                (0, (of * columns + column) * rows + row, values.at("x", from))
            };
            (0..columns).map(each).collect()
        }),
    }
}

/// The mean of each of many rows.
fn mean_of_rows(scalar: Scalar, random: &mut Random) -> Case {
    let [rows, columns] = [12288, 768];
    let total = Total { op: Binary::Add, function: Function::identity(), finish: Reduce::mean() };
    let mean_of = Out { function: Function::input(1), access: Access::packed(scalar, 1) };
    let template = Folds {
        kept: 1,
        ins: vec![Access::packed(scalar, 2)],
        totals: vec![total],
        outs: vec![mean_of],
        vector: 16 / scalar.bytes(),
        threads: 32,
        teams: 4,
        ..Folds::default()
    };
    Case {
        name: format!("mean of rows {rows}x{columns} {scalar}"),
        kernel: Box::new(move |arch| Folds { arch, ..template.clone() }.kernel()),
        ins: vec![input("x0", scalar, rows * columns, random)],
        outs: vec![output("y0", scalar, rows)],
        symbols: symbols(&[("N0", rows), ("N1", columns)]),
        sample: Box::new(move |values, random| {
            let row = random.within(0, rows - 1);
            let row_of: Vec<Near> =
                (0..columns).map(|column| values.at("x0", row * columns + column)).collect();
            vec![(0, row, mean(&row_of))]
        }),
    }
}

fn mean(values: &[Near]) -> Near {
    propagate(&Reduce::mean(), &[sum(values), (values.len() as f64, 0.0)], By::Device)[0]
}

/// The mean over a middle axis: of a sequence's vectors.
fn mean_of_columns(scalar: Scalar, random: &mut Random) -> Case {
    let [outer, reduced, inner] = [32, 384, 768];
    let template = Reduce {
        finish: Reduce::mean(),
        ins: vec![Access::packed(scalar, 3)],
        out: Access::packed(scalar, 2),
        vector: 16 / scalar.bytes(),
        ..Reduce::default()
    };
    Case {
        name: format!("mean of columns {outer}x{reduced}x{inner} {scalar}"),
        kernel: Box::new(move |arch| Reduce { arch, ..template.clone() }.kernel()),
        ins: vec![input("x0", scalar, outer * reduced * inner, random)],
        outs: vec![output("y", scalar, outer * inner)],
        symbols: symbols(&[("outer", outer), ("reduced", reduced), ("inner", inner)]),
        sample: Box::new(move |values, random| {
            let place = random.within(0, outer * inner - 1);
            let (of, column) = (place / inner, place % inner);
            let at = |row: usize| values.at("x0", (of * reduced + row) * inner + column);
            vec![(0, place, mean(&(0..reduced).map(at).collect::<Vec<_>>()))]
        }),
    }
}

/// Sums up to each element.
fn running(exclusive: bool, reverse: bool, random: &mut Random) -> Case {
    let [rows, columns] = [4096, 4096];
    let template = Scan { exclusive, reverse, vector: 4, ..Scan::default() };
    let chunk = template.threads * template.vector;
    let levels = (template.vector + i64::from(template.threads.ilog2())) as f64;
    let levels = levels + columns as f64 / chunk as f64;
    Case {
        name: format!("running sum {rows}x{columns} exclusive {exclusive} reverse {reverse}"),
        kernel: Box::new(move |arch| Scan { arch, ..template.clone() }.kernel()),
        ins: vec![input("x", F32, rows * columns, random)],
        outs: vec![output("y", F32, rows * columns)],
        symbols: symbols(&[("N0", rows), ("N1", columns)]),
        sample: Box::new(move |values, random| {
            let row = random.within(0, rows - 1);
            let x = &values.of("x")[row * columns..][..columns];
            let (mut total, mut size) = (0.0, 0.0);
            let each = |i: usize| {
                let place = if reverse { columns - 1 - i } else { i };
                let before = total;
                total += x[place];
                size += x[place].abs();
                let value = if exclusive { before } else { total };
                (0, row * columns + place, (value, (levels + 2.0) * SINGLE * size))
            };
            (0..columns).map(each).collect()
        }),
    }
}

/// The mean and the variance of each row, in one kernel.
fn variances(random: &mut Random) -> Case {
    let [rows, columns] = [12288, 768];
    let [x, mean_of, variance] = [0, 1, 2].map(Function::input);
    let difference = x.clone() - mean_of.clone();
    let square = difference.clone() * difference;
    let total = |function| Total { op: Binary::Add, function, finish: Reduce::mean() };
    let out = |function| Out { function, access: Access::packed(F32, 1) };
    let template = Folds {
        totals: vec![total(x), total(square.clone())],
        outs: vec![out(mean_of), out(variance)],
        vector: 8,
        ..Folds::default()
    };
    Case {
        name: format!("means and variances {rows}x{columns} {F16}"),
        kernel: Box::new(move |arch| Folds { arch, ..template.clone() }.kernel()),
        ins: vec![input("x0", F16, rows * columns, random)],
        outs: vec![output("y0", F32, rows), output("y1", F32, rows)],
        symbols: symbols(&[("N0", rows), ("N1", columns)]),
        sample: Box::new(move |values, random| {
            let row = random.within(0, rows - 1);
            let row_of: Vec<Near> =
                (0..columns).map(|column| values.at("x0", row * columns + column)).collect();
            let middle = mean(&row_of);
            let squares: Vec<Near> =
                row_of.iter().map(|&x| propagate(&square, &[x, middle], By::Device)[0]).collect();
            vec![(0, row, middle), (1, row, mean(&squares))]
        }),
    }
}

/// The example whose decomposition graphene's tests check.
const FIREIRON: &str = include_str!("../../../../../graphene/tests/kernels/fireiron.graphene");

/// Fireiron's matmul, in single precision.
fn matmul(random: &mut Random) -> Case {
    let [m, n, k] = [1024, 1000, 768];
    Case {
        name: format!("Fireiron's matmul {m}x{n}x{k}"),
        kernel: Box::new(|arch: Arch| {
            let mut kernel = parse(FIREIRON)?;
            kernel.arch = arch;
            Ok(kernel)
        }),
        ins: vec![input("A", F32, m * k, random), input("B", F32, k * n, random)],
        outs: vec![output("C", F32, m * n)],
        symbols: symbols(&[("M", m), ("N", n), ("K", k)]),
        sample: Box::new(move |values, random| {
            let place = random.within(0, m * n - 1);
            let (row, column) = (place / n, place % n);
            let term = |l: usize| values.of("A")[row * k + l] * values.of("B")[l * n + column];
            let exact: f64 = (0..k).map(term).sum();
            let size: f64 = (0..k).map(|l| term(l).abs()).sum();
            vec![(0, place, (exact, k as f64 * SINGLE * size))]
        }),
    }
}
