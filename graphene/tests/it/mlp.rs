//! Chains of layers in one kernel: right within the bound that their arithmetic implies, clean in any
//! order of warps.

use graphene_ir::function::Function;
use graphene_ir::kernel::Unary;
use graphene_ir::simulate::Inputs;
use graphene_ir::template::mlp::Mlp;
use graphene_ir::tensor::Scalar;

use crate::index::Random;
use crate::products::check_text;
use crate::support::{check_clean, data, inputs, orders, run};

fn small() -> Mlp {
    Mlp { width: 32, rows: 32, depth: 16, warps: 2, stages: 3, ..Mlp::default() }
}

/// Each element of the last layer in double precision, and how far from it the kernel's may be.
///
/// An error e of a layer's input, next to rounding, comes to |W|·e in its sums; those of k products in
/// single precision err by 4k·2⁻²⁴ of their absolute values' sum, and the function, of a slope of 1.13
/// at most and two steps at most, by 2⁻²⁴ of its arguments for each, taken twice. The result is rounded
/// to its type; so is what was read, if the products are of TF32.
fn expected(mlp: &Mlp, rows: usize, layers: usize, given: &Inputs) -> Vec<(f64, f64)> {
    let width = mlp.width as usize;
    let single = 2f64.powi(-24);
    let half = match mlp.scalar {
        Scalar::F16 => 2f64.powi(-11),
        Scalar::Bf16 => 2f64.powi(-8),
        _ => single,
    };
    let tf32 = mlp.scalar == Scalar::F32;
    let seen = |x| if tf32 { Unary::Tf32.value(x) } else { x };
    // Reading a value that is off by a little may round it the other way.
    let short = if tf32 { 2f64.powi(-10) } else { 0.0 };
    let (x, w, bias) = (data(given, "X"), data(given, "W"), data(given, "bias"));
    let mut values: Vec<(f64, f64)> = x[..rows * width].iter().map(|&x| (x, 0.0)).collect();
    for layer in 0..layers {
        let function = if layer + 1 < layers { &mlp.hidden } else { &mlp.last };
        let at = |i: usize, j: usize| {
            let (stride, other) = if mlp.transposed { (width, 1) } else { (1, width) };
            seen(w[layer * width * width + i * stride + j * other])
        };
        let next = (0..rows * width).map(|place| {
            let (row, column) = (place / width, place % width);
            let (mut sum, mut size, mut error) = (0.0, 0.0, 0.0);
            for i in 0..width {
                let (y, e) = values[row * width + i];
                let w = at(i, column);
                let flips = if e > 0.0 { short * (y.abs() + e) } else { 0.0 };
                let y = seen(y);
                sum += y * w;
                size += (y.abs() + e) * w.abs();
                error += (e + flips) * w.abs();
            }
            let b = bias[layer * width + column];
            error += 4.0 * width as f64 * single * size;
            let y = function.eval(&[sum, b])[0];
            let error = 1.13 * error + 4.0 * single * (sum.abs() + error + b.abs());
            (y, error + half * (y.abs() + error))
        });
        values = next.collect();
    }
    values
}

fn check(mlp: &Mlp, rows: usize, layers: usize, random_orders: u64) {
    let name = format!("{mlp:?} {rows} {layers}");
    let kernel = mlp.kernel().unwrap();
    check_text(&name, &kernel);
    let mut random = Random::new(5);
    let one = if mlp.scalar == Scalar::F32 { 1 << 20 } else { 1 << 7 };
    let values: Vec<f64> =
        (0..65_521).map(|_| random.within(-one, one) as f64 / one as f64).collect();
    // Weights that keep the size of a row's values.
    let scale = [1.0, 0.25, 1.0];
    let symbols = [("M", rows as i64), ("L", layers as i64)];
    let given =
        inputs(&kernel, &symbols, |param, i| values[(10_007 * param + i) % 65_521] * scale[param]);
    let expected = expected(mlp, rows, layers, &given);
    for seed in orders(random_orders) {
        let outcome = run(&kernel, &given, seed);
        check_clean(&format!("{name} {seed:?}"), &outcome);
        for (i, (found, (y, bound))) in outcome.buffers["Y"].iter().zip(&expected).enumerate() {
            let near = found.is_some_and(|found| (found - y).abs() <= *bound);
            assert!(near, "{name} {seed:?}: Y[{i}] is {found:?}, not {y} ± {bound}");
        }
        // Copies of rows whose number of chunks is no power of two meet in banks, as do stores of pairs
        // in single precision between two layers.
        if mlp.width.unsigned_abs().is_power_of_two() && mlp.scalar != Scalar::F32 {
            assert_eq!(outcome.costs.total().conflicts, 0, "{name}");
        }
    }
}

#[test]
fn layers_follow_each_other_in_one_kernel() {
    check(&small(), 32, 1, 2);
    check(&small(), 40, 3, 5);
    check(&small(), 1, 2, 1);
    check(&Mlp { transposed: true, ..small() }, 40, 3, 2);
    check(&Mlp { scalar: Scalar::Bf16, width: 48, warps: 1, ..small() }, 33, 2, 1);
    check(&Mlp { width: 64, depth: 64, warps: 4, stages: 2, ..small() }, 35, 4, 3);
    let mixed = Mlp { hidden: Function::bias_gelu(), last: Function::sum(), ..small() };
    check(&mixed, 37, 3, 1);
    check(
        &Mlp { transposed: true, scalar: Scalar::Bf16, width: 128, depth: 32, ..mixed },
        20,
        2,
        1,
    );
    check(&Mlp { scalar: Scalar::F32, ..small() }, 40, 2, 1);
    check(&Mlp { scalar: Scalar::F32, transposed: true, width: 64, ..small() }, 40, 2, 1);
    check(&Mlp::default(), 70, 2, 0);
    check(&Mlp { width: 256, warps: 8, transposed: true, ..Mlp::default() }, 3, 2, 0);
}

#[test]
fn mlp_parameters_that_no_kernel_has_are_refused() {
    for mlp in [
        Mlp { width: 0, ..small() },
        Mlp { width: 40, ..small() },
        Mlp { width: 272, ..small() },
        Mlp { depth: 0, ..small() },
        Mlp { width: 48, depth: 32, ..small() },
        Mlp { rows: 0, ..small() },
        Mlp { warps: 0, ..small() },
        Mlp { stages: 1, ..small() },
        Mlp { hidden: Function::sum_of_three(), ..small() },
    ] {
        assert!(mlp.kernel().is_err(), "{mlp:?}");
    }
}
