//! What the tests of matrix products share: operands, and what becomes of them in double precision.

use graphene_ir::function::Function;
use graphene_ir::kernel::{Kernel, Unary};
use graphene_ir::simulate::{Inputs, Outcome};
use graphene_ir::template::epilogue::{Epilogue, Input, Span};
use graphene_ir::template::matmul::MatMul;
use graphene_ir::tensor::Scalar;

use crate::index::Random;
use crate::near::{By, propagate};
use crate::support::{check_clean, check_meaning, data, inputs, orders, run};

/// The extents of a product, and the number of blocks that compute it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) m: usize,
    pub(crate) n: usize,
    /// Of each term.
    pub(crate) k: [usize; 2],
    pub(crate) batch: usize,
    pub(crate) blocks: usize,
}

impl Sizes {
    pub(crate) fn of([m, n, k]: [usize; 3], blocks: usize) -> Sizes {
        Sizes { m, n, k: [k, 24], batch: 1, blocks }
    }
}

/// gelu(x + bias) + residual
pub(crate) fn layer() -> Epilogue {
    Epilogue::layer(true, Some(Unary::Gelu), true)
}

/// Two results, one in single precision: (x + bias)·column + r, and relu(x - column)·number.
pub(crate) fn two_results() -> Epilogue {
    let [sum, row, column, whole, number] = [0, 1, 2, 3, 4].map(Function::input);
    let first = (sum.clone() + row) * column.clone() + whole;
    let second = (sum - column).unary(Unary::Relu) * number;
    let spans = [Span::Row, Span::Column, Span::Whole, Span::Number];
    let mut epilogue = Epilogue::new(Function::all([first, second]), spans);
    epilogue.outputs[1] = Some(Scalar::F32);
    epilogue.operands[1] = Input { span: Span::Column, scalar: Some(Scalar::F32) };
    epilogue
}

/// Operands in -1..1 of as many bits as the type has: its elements exactly, and such that their
/// sums must be rounded. Of integers, whole ones.
fn operands(matmul: &MatMul, kernel: &Kernel, sizes: Sizes) -> Inputs {
    let Sizes { m, n, k, batch, blocks } = sizes;
    let symbols = [
        ("M", m),
        ("N", n),
        ("K", k[0]),
        ("K_2", k[1]),
        ("batch", batch),
        ("blocks", blocks),
        ("clusters", blocks),
    ];
    let symbols = symbols.map(|(name, value)| (name, i64::try_from(value).unwrap()));
    let known = |name: &str| kernel.symbols.iter().any(|symbol| symbol.name() == name);
    let symbols: Vec<_> = symbols.into_iter().filter(|symbol| known(symbol.0)).collect();
    let one = match matmul.scalar {
        Scalar::F16 => 1 << 10,
        Scalar::Bf16 => 1 << 7,
        // Of which single precision does not hold the sums.
        Scalar::I32 => 1 << 12,
        _ => 1 << 23,
    };
    let mut random = Random::new(1);
    let values: Vec<f64> = (0..65_521).map(|_| random.within(-one, one) as f64).collect();
    inputs(kernel, &symbols, |param, i| {
        let whole = kernel.tensor(kernel.params[param]).scalar == Scalar::I32;
        values[(10_007 * param + i) % 65_521] / if whole { 1.0 } else { one as f64 }
    })
}

/// `C`, `C_2`, …
fn numbered(name: &str, number: usize) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}_{}", number + 1) }
}

/// Each element of each result in double precision, and how far from it the kernel's may be; A and B
/// are as `seen` by the kernel's products.
///
/// A sum of k products in single precision errs by at most 4k·2⁻²⁴ of the sum S of their absolute
/// values. These epilogues' functions multiply that error by 1.13 at most, the slope of GELU: what
/// they multiply by is within -1..1. Each of their steps has a value of at most V, the sum of the
/// arguments' absolute values, and is rounded to single precision, which the steps behind multiply
/// likewise: 2⁻²⁴·V for each, taken twice to cover the errors' products. The result is rounded to
/// its type. Where a gated matmul's two sums are multiplied, what each step makes of their errors is added up.
fn expected(
    matmul: &MatMul,
    sizes: Sizes,
    inputs: &Inputs,
    seen: impl Fn(f64) -> f64,
) -> Vec<Vec<(f64, f64)>> {
    let Sizes { m, n, batch, .. } = sizes;
    let single = 2f64.powi(-24);
    let epilogue = &matmul.epilogue;
    let mut results = vec![Vec::new(); epilogue.outputs.len()];
    for at in 0..batch * m * n {
        let (p, row, column) = (at / (m * n), at / n % m, at % n);
        let (mut sum, mut size, mut count) = ([0.0; 2], [0.0; 2], 0);
        for term in 0..if matmul.gated { 2 } else { matmul.terms } {
            let (of_a, matrix) = if matmul.gated { (0, term) } else { (term, 0) };
            let k = sizes.k[of_a];
            let (a, b) = (data(inputs, &numbered("A", of_a)), data(inputs, &numbered("B", term)));
            let a_at = |i| p * m * k + if matmul.a_transposed { row + m * i } else { row * k + i };
            let b_at =
                |i| p * n * k + if matmul.b_transposed { i * n + column } else { column * k + i };
            for i in 0..k {
                let x = seen(a[a_at(i)]) * seen(b[b_at(i)]);
                sum[matrix] += x;
                size[matrix] += x.abs();
            }
            count += k;
        }
        let mut arguments = vec![sum[0]];
        let mut spans = [0; 4];
        for input in &epilogue.operands {
            let (kind, name, at) = match input.span {
                Span::Row => (0, "bias", column),
                Span::Column => (1, "column", row),
                Span::Whole => (2, "R", at),
                Span::Number => (3, "number", 0),
            };
            arguments.push(data(inputs, &numbered(name, spans[kind]))[at]);
            spans[kind] += 1;
        }
        let off = |size: f64| 4.0 * count as f64 * single * size;
        let values: Vec<(f64, f64)> = if matmul.gated {
            let mut arguments: Vec<_> = arguments.into_iter().map(|of| (of, 0.0)).collect();
            arguments[0].1 = off(size[0]);
            arguments.push((sum[1], off(size[1])));
            propagate(&epilogue.function, &arguments, By::Simulator)
        } else {
            let all: f64 = arguments.iter().map(|argument| argument.abs()).sum();
            let steps = epilogue.function.steps().len() - 1;
            let error = 1.13 * off(size[0]) + 2.0 * single * all * steps as f64;
            let values = epilogue.function.eval(&arguments);
            values.into_iter().map(|y| (y, error)).collect()
        };
        for (i, ((y, error), scalar)) in values.iter().zip(&epilogue.outputs).enumerate() {
            let half = match scalar.unwrap_or(matmul.scalar) {
                Scalar::F16 => 2f64.powi(-11),
                Scalar::Bf16 => 2f64.powi(-8),
                _ => single,
            };
            // Products of two sums may be small: fp16 has no smaller steps than 2⁻²⁴.
            let small = matmul.gated && scalar.unwrap_or(matmul.scalar) == Scalar::F16;
            let least = if small { 2f64.powi(-25) } else { 0.0 };
            let whole = scalar.unwrap_or(matmul.scalar) == Scalar::I32;
            let bound = if whole { 0.0 } else { half * y.abs() + (1.0 + half) * error + least };
            results[i].push((*y, bound));
        }
    }
    results
}

/// A kernel's results are within their bounds, in turn and in this many random orders.
pub(crate) fn check_product(
    name: &str,
    matmul: &MatMul,
    kernel: &Kernel,
    sizes: Sizes,
    random_orders: u64,
    seen: impl Fn(f64) -> f64,
) -> Outcome {
    let name = format!("{name} {sizes:?}");
    let inputs = operands(matmul, kernel, sizes);
    let expected = expected(matmul, sizes, &inputs, seen);
    let mut last = None;
    for seed in orders(random_orders) {
        let outcome = run(kernel, &inputs, seed);
        check_clean(&format!("{name} {seed:?}"), &outcome);
        for (result, expected) in expected.iter().enumerate() {
            let found = &outcome.buffers[&numbered("C", result)];
            assert_eq!(found.len(), expected.len(), "{name}");
            for (i, (found, (y, bound))) in found.iter().zip(expected).enumerate() {
                let near = found.is_some_and(|found| (found - y).abs() <= *bound);
                let result = numbered("C", result);
                assert!(near, "{name} {seed:?}: {result}[{i}] is {found:?}, not {y} ± {bound}");
            }
        }
        last = Some(outcome);
    }
    let last = last.unwrap();
    check_meaning(&name, kernel, &inputs, &last);
    last
}
