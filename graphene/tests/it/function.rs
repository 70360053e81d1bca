//! Pointwise functions: their algebra, their values, and that kernels compute the same.

use graphene_ir::arch::Arch;
use graphene_ir::build::Builder;
use graphene_ir::function::{Function, Step};
use graphene_ir::kernel::{Binary, Kernel, Kind, Unary};
use graphene_ir::layout::{Layout, Tiler};
use graphene_ir::schedule::pointwise::{load, pointwise, store, vector};
use graphene_ir::tensor::Scalar;

use crate::near::{By, propagate};
use crate::support::{check_clean, check_text, gelu, inputs, orders, run, single};

/// Arguments of every kind: ordinary, none, huge, tiny, not a number.
const ARGUMENTS: [f64; 16] = [
    0.75,
    -0.75,
    0.0,
    1.0,
    -1.0,
    2.5,
    -2.5,
    3.5,
    100.25,
    -90.5,
    1e-30,
    3e38,
    -3e38,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

#[test]
fn what_is_computed_twice_is_computed_once() {
    let [x, y] = [0, 1].map(Function::input);
    let sum = x.clone() + y.clone();
    let function = sum.clone() * sum.clone() - sum;
    assert_eq!(function.steps().len(), 5);
    assert_eq!(function.eval(&[2.0, 3.0]), [20.0]);
    let both = Function::all([x.clone() + y.clone(), (x + y) * 2.0]);
    assert_eq!(both.outputs().len(), 2);
    assert_eq!(both.eval(&[1.0, 0.5]), [1.5, 3.0]);
    assert_eq!(both.inputs(), 2);
    assert_eq!(both.output(0), Function::sum());
    assert!(!both.output(0).steps().iter().any(|step| matches!(step, Step::Constant(_))));
}

#[test]
fn composition_is_that_of_functions() {
    let inner = Function::all([Function::sum(), Function::input(0) * 3.0]);
    let outer = Function::input(1).binary(Binary::Sub, Function::input(0));
    let composed = outer.after(&inner);
    for [x, y] in [[1.0, 2.0], [-3.5, 0.25]] {
        assert_eq!(composed.eval(&[x, y]), outer.eval(&inner.eval(&[x, y])));
    }
    // An input that the inner function gives nothing for stays.
    let kept =
        (Function::sum() + Function::input(2)).after(&Function::identity().unary(Unary::Neg));
    assert_eq!(kept.eval(&[1.0, 10.0, 100.0]), [109.0]);
    assert_eq!(
        Function::identity().after(&Function::sum().unary(Unary::Gelu)),
        Function::sum().unary(Unary::Gelu)
    );
    // What is not used is not there.
    assert_eq!(Function::constant(2.0).after(&Function::sum()).steps().len(), 1);
}

#[test]
fn named_functions_are_what_they_say() {
    type Row = (Function, Box<dyn Fn(f64) -> f64>);
    let rows: Vec<Row> = vec![
        (Function::identity(), Box::new(|x| x)),
        (Function::identity().unary(Unary::Gelu), Box::new(gelu)),
        (
            Function::gelu_tanh(),
            Box::new(|x| {
                x / 2.0 * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh())
            }),
        ),
    ];
    for (function, expected) in rows {
        for x in [-12.0, -3.0, -1.0, -0.1, 0.0, 0.3, 1.0, 2.5, 7.0] {
            let (found, expected) = (function.eval(&[x])[0], expected(x));
            let near = (found - expected).abs() <= 1e-12 * expected.abs().max(1.0);
            assert!(near, "{function:?} of {x} is {found}, not {expected}");
        }
    }
    assert_eq!(Function::sum().unary(Unary::Gelu).eval(&[3.0, -1.0]), [gelu_of(2.0)]);
}

fn gelu_of(x: f64) -> f64 {
    Unary::Gelu.value(x)
}

/// `y = f(a, b)`: every thread has `n` elements of each input, side by side.
fn kernel(function: &Function, n: i64, [from, to]: [Scalar; 2]) -> Kernel {
    let mut k = Builder::new("apply", Arch::Sm80);
    let matrix = || Layout::rows([32, n]);
    let ins = ["a", "b", "c"].into_iter().take(function.inputs());
    let ins: Vec<_> = ins.map(|name| k.param(name, matrix(), from).unwrap()).collect();
    let outs: Vec<_> =
        function.outputs().iter().map(|_| k.param("y", matrix(), to).unwrap()).collect();
    k.grid("grid", Layout::rows([1])).unwrap();
    let warp = k.block("warp", Layout::rows([32])).unwrap();
    let [lane] = k.indices(warp, ["lane"]).unwrap();
    let row = |k: &mut Builder, of| {
        let rows = k.tile(of, "rows", &[Tiler::Size(1), Tiler::Size(n)]).unwrap();
        let row = k.index(rows, "row", [(&lane).into(), graphene_ir::index::Expr::from(0)]);
        k.reshape(row.unwrap(), "vector", 0, &[&[(n, 1)]]).unwrap()
    };
    let wide: Vec<_> = ins
        .iter()
        .map(|&of| {
            let row = row(&mut k, of);
            load(&mut k, row, true).unwrap()
        })
        .collect();
    let results: Vec<_> =
        outs.iter().map(|_| vector(&mut k, "result", n, Scalar::F32).unwrap()).collect();
    pointwise(&mut k, function, &results, &wide).unwrap();
    for (&out, &result) in outs.iter().zip(&results) {
        let row = row(&mut k, out);
        store(&mut k, row, result, true).unwrap();
    }
    k.finish(Kind::pointwise(function), outs, ins).unwrap()
}

/// A kernel's elements are those that the function has in single precision, bit for bit.
fn check_applied(function: &Function, n: i64, scalars: [Scalar; 2]) {
    let name = format!("{function:?} {n} {scalars:?}");
    let kernel = kernel(function, n, scalars);
    check_text(&name, &kernel);
    let argument = |param: usize, i: usize| {
        scalars[0].round(ARGUMENTS[[i, i / 16 + i, 3 * i + 1][param] % ARGUMENTS.len()])
    };
    let given = inputs(&kernel, &[], argument);
    for seed in orders(1) {
        let outcome = run(&kernel, &given, seed);
        check_clean(&name, &outcome);
        for (output, &param) in kernel.params[function.inputs()..].iter().enumerate() {
            for (i, found) in outcome.buffers[kernel.tensor_name(param)].iter().enumerate() {
                let given = [0, 1, 2].map(|param| argument(param, i));
                let expected = scalars[1].round(single(function, &given)[output]);
                let same = found.is_some_and(|found| {
                    found == expected || (found.is_nan() && expected.is_nan())
                });
                assert!(same, "{name} of {given:?}: {found:?}, not {expected}");
            }
        }
    }
}

#[test]
fn every_function_is_applied_as_it_is_evaluated() {
    let [x, y, z] = [0, 1, 2].map(Function::input);
    for (op, _) in Unary::ALL {
        check_applied(&x.clone().unary(op), 8, [Scalar::F32; 2]);
    }
    for (op, _) in Binary::ALL {
        check_applied(&x.clone().binary(op, y.clone()), 8, [Scalar::F32; 2]);
    }
    check_applied(&x.clone().select(y.clone(), z), 8, [Scalar::F32; 2]);
    check_applied(&x.clone().rounded(Scalar::Bf16), 4, [Scalar::F32; 2]);
    check_applied(&Function::constant(-2.5), 1, [Scalar::F32; 2]);
    let both = Function::all([x.clone() + y.clone(), y * 2.0, x]);
    check_applied(&both, 4, [Scalar::F32; 2]);
}

#[test]
fn vectors_have_any_width_and_type() {
    let gelu = Function::sum().unary(Unary::Gelu);
    for n in [1, 2, 3, 4, 8, 16] {
        for scalar in [Scalar::F16, Scalar::Bf16, Scalar::F32] {
            check_applied(&gelu, n, [scalar; 2]);
        }
        check_applied(&gelu, n, [Scalar::F16, Scalar::F32]);
    }
    let positive = Function::constant(0.0).binary(Binary::Less, Function::input(0));
    check_applied(&positive, 8, [Scalar::F32, Scalar::U8]);
    check_applied(&positive, 3, [Scalar::F16, Scalar::I64]);
}

#[test]
fn rounding_is_to_nearest_even() {
    let rows = [
        (Scalar::F16, 2049.0, 2048.0),
        (Scalar::F16, 2051.0, 2052.0),
        (Scalar::F16, 2049.0 + 1e-9, 2050.0),
        (Scalar::F16, 65519.0, 65504.0),
        (Scalar::F16, 65520.0, f64::INFINITY),
        (Scalar::F16, 2f64.powi(-25), 0.0),
        (Scalar::F16, 2f64.powi(-25) * 1.5, 2f64.powi(-24)),
        (Scalar::F16, -1.0 / 3.0, -0.333_251_953_125),
        (Scalar::Bf16, 257.0, 256.0),
        (Scalar::Bf16, 259.0, 260.0),
        (Scalar::F32, 16_777_217.0, 16_777_216.0),
        (Scalar::I32, -7.0, -7.0),
        (Scalar::I64, -7.5, -7.0),
        (Scalar::U8, 255.0, 255.0),
    ];
    for (scalar, value, rounded) in rows {
        assert_eq!(scalar.round(value), rounded, "{value} as {scalar}");
    }
    assert!(Scalar::F16.round(f64::NAN).is_nan());
}

#[test]
fn errors_grow_where_values_cancel() {
    let [x, y] = [0, 1].map(Function::input);
    let (value, error) = propagate(&(x - y), &[(1.0, 1e-3), (0.999, 1e-3)], By::Simulator)[0];
    assert!((value - 0.001).abs() < 1e-12 && (2e-3..2.1e-3).contains(&error), "{error}");
}

#[test]
fn a_device_is_off_by_more_than_a_simulator() {
    let function = Function::identity().unary(Unary::Gelu);
    let of = |by| propagate(&function, &[(0.5, 0.0)], by)[0];
    let (simulated, there) = (of(By::Simulator), of(By::Device));
    assert_eq!(simulated.0, there.0);
    assert!((15.9..16.1).contains(&(there.1 / simulated.1)), "{there:?} {simulated:?}");
}
