//! Hopper's matrix product: right within the bound that its arithmetic implies, clean in any order
//! of warps, for every parameter; and it reads back.

use graphene_ir::emit::emit;
use graphene_ir::kernel::Unary;
use graphene_ir::simulate::{Inputs, Outcome};
use graphene_ir::template::gemm::{Edges, Epilogue, Gemm};
use graphene_ir::tensor::Scalar;
use graphene_ir::text::parse;
use graphene_ir::verify::verify;

use crate::index::Random;
use crate::support::{check_clean, data, gelu, inputs, orders, run};

/// The extents of a product, and the number of blocks that compute it.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
    blocks: usize,
}

impl Sizes {
    fn of([m, n, k]: [usize; 3], blocks: usize) -> Sizes {
        Sizes { m, n, k, batch: 1, blocks }
    }
}

const SMALL: Gemm = Gemm {
    scalar: Scalar::F16,
    a_transposed: false,
    b_transposed: false,
    batched: false,
    edges: Edges::Bulk,
    epilogue: Epilogue { bias: false, activation: None, residual: false },
    columns: 64,
    stages: 2,
    consumers: 1,
    raster: 2,
    cluster: 1,
};

const MOVES: Gemm = Gemm { edges: Edges::Moves, ..SMALL };

/// Operands in -1..1 of as many bits as the type has: its elements exactly, and such that their
/// sums must be rounded.
fn operands(gemm: &Gemm, sizes: Sizes) -> Inputs {
    let Sizes { m, n, k, batch, blocks } = sizes;
    let symbols =
        [("M", m), ("N", n), ("K", k), ("batch", batch), ("blocks", blocks), ("clusters", blocks)];
    let symbols = symbols.map(|(name, value)| (name, i64::try_from(value).unwrap()));
    let half = if gemm.scalar == Scalar::F16 { 1 << 10 } else { 1 << 7 };
    let mut random = Random::new(1);
    let values: Vec<f64> =
        (0..65_521).map(|_| random.within(-half, half) as f64 / half as f64).collect();
    inputs(&gemm.kernel().unwrap(), &symbols, |param, i| values[(10_007 * param + i) % 65_521])
}

/// An activation's value, and the most that its slope can be.
fn activation(function: Option<Unary>, x: f64) -> (f64, f64) {
    match function {
        None => (x, 1.0),
        Some(Unary::Relu) => (x.max(0.0), 1.0),
        Some(Unary::Tanh) => (x.tanh(), 1.0),
        Some(Unary::Silu) => (x / (1.0 + (-x).exp()), 1.1),
        Some(Unary::Gelu) => (gelu(x), 1.13),
        Some(other) => panic!("no {other} in these tests"),
    }
}

/// Each element of C in double precision, and how far from it the kernel's may be.
///
/// A sum of k products in single precision errs by at most 4k·2⁻²⁴ of the sum S of their absolute
/// values; a bias is one summand more. The activation multiplies that error by its slope. Its own
/// value is rounded to single precision, and so is the sum with the residual: 2⁻²⁴ of each, taken
/// twice to cover the errors' products. The result is rounded to the type of C: 2⁻¹¹ of it for
/// fp16, 2⁻⁸ for bf16.
fn expected(gemm: &Gemm, sizes: Sizes, inputs: &Inputs) -> Vec<(f64, f64)> {
    let Sizes { m, n, k, batch, .. } = sizes;
    let (a, b) = (data(inputs, "A"), data(inputs, "B"));
    let (bias, residual) = (inputs.buffers.get("bias"), inputs.buffers.get("R"));
    let single = 2f64.powi(-24);
    let half = 2f64.powi(if gemm.scalar == Scalar::F16 { -11 } else { -8 });
    let mut all = Vec::new();
    for at in 0..batch * m * n {
        let (p, row, column) = (at / (m * n), at / n % m, at % n);
        let a_at = |i| p * m * k + if gemm.a_transposed { row + m * i } else { row * k + i };
        let b_at = |i| p * n * k + if gemm.b_transposed { i * n + column } else { column * k + i };
        let products = (0..k).map(|i| a[a_at(i)] * b[b_at(i)]);
        let (sum, size) =
            products.fold((0.0, 0.0), |(sum, size), x: f64| (sum + x, size + x.abs()));
        let (bias, terms) = bias.map_or((0.0, k), |_| (data(inputs, "bias")[column], k + 1));
        let residual = residual.map_or(0.0, |_| data(inputs, "R")[at]);
        let (active, slope) = activation(gemm.epilogue.activation, sum + bias);
        let mut error = slope * 4.0 * terms as f64 * single * (size + bias.abs());
        if gemm.epilogue != SMALL.epilogue {
            error += 2.0 * single * (active.abs() + residual.abs());
        }
        let y = active + residual;
        all.push((y, half * y.abs() + error));
    }
    all
}

fn check_product(gemm: &Gemm, sizes: Sizes, random_orders: u64) -> Outcome {
    let name = format!("{gemm:?} {sizes:?}");
    let kernel = gemm.kernel().unwrap();
    let inputs = operands(gemm, sizes);
    let expected = expected(gemm, sizes, &inputs);
    let mut last = None;
    for seed in orders(random_orders) {
        let outcome = run(&kernel, &inputs, seed);
        check_clean(&format!("{name} {seed:?}"), &outcome);
        let found = &outcome.buffers["C"];
        assert_eq!(found.len(), expected.len(), "{name}");
        for (i, (found, (y, bound))) in found.iter().zip(&expected).enumerate() {
            let near = found.is_some_and(|found| (found - y).abs() <= *bound);
            assert!(near, "{name} {seed:?}: C[{i}] is {found:?}, not {y} ± {bound}");
        }
        last = Some(outcome);
    }
    last.unwrap()
}

/// All parameters that this file tries; each with sizes, and in how many random orders.
fn rows() -> Vec<(Gemm, Sizes, u64)> {
    let all = Epilogue { bias: true, activation: Some(Unary::Gelu), residual: true };
    let bias = Epilogue { bias: true, ..SMALL.epilogue };
    let residual = Epilogue { residual: true, ..SMALL.epilogue };
    let active = |function| Epilogue { activation: Some(function), ..SMALL.epilogue };
    let batched = Sizes { batch: 3, ..Sizes::of([40, 72, 72], 2) };
    let partial = Sizes::of([136, 136, 136], 3);
    let mut rows = vec![
        // Exact, partial, smaller than a tile; depths that are no multiple of 64; none at all.
        (SMALL, Sizes::of([64, 64, 64], 1), 20),
        (SMALL, Sizes::of([128, 128, 256], 1), 20),
        (SMALL, Sizes::of([128, 128, 128], 4), 2),
        (SMALL, Sizes::of([72, 72, 136], 1), 20),
        (SMALL, Sizes::of([8, 8, 8], 1), 2),
        (SMALL, Sizes::of([1, 8, 16], 3), 2),
        (SMALL, Sizes::of([64, 72, 0], 1), 2),
        (SMALL, Sizes::of([200, 136, 72], 2), 2),
        (Gemm { scalar: Scalar::Bf16, ..SMALL }, partial, 2),
        (Gemm { consumers: 2, ..SMALL }, partial, 20),
        (Gemm { consumers: 2, stages: 4, raster: 1, ..SMALL }, Sizes::of([264, 72, 328], 2), 2),
        (Gemm { columns: 128, cluster: 2, ..SMALL }, Sizes::of([200, 136, 200], 2), 20),
        (
            Gemm { columns: 256, cluster: 2, b_transposed: true, ..SMALL },
            Sizes::of([72, 264, 136], 1),
            2,
        ),
        (Gemm { columns: 128, stages: 3, ..SMALL }, Sizes::of([136, 264, 200], 2), 2),
        (Gemm { columns: 128, consumers: 2, ..SMALL }, Sizes::of([136, 264, 136], 1), 5),
        (Gemm { columns: 192, ..SMALL }, Sizes::of([72, 392, 72], 1), 5),
        (Gemm { columns: 256, consumers: 2, ..SMALL }, Sizes::of([136, 264, 72], 1), 2),
        (Gemm::default(), Sizes::of([128, 256, 328], 1), 0),
        (Gemm { batched: true, ..SMALL }, batched, 2),
        // Sizes that no tensor copy can have.
        (MOVES, Sizes::of([64, 64, 64], 1), 1),
        (MOVES, Sizes::of([67, 71, 131], 1), 3),
        (MOVES, Sizes::of([1, 1, 1], 2), 1),
        (MOVES, Sizes::of([65, 3, 65], 1), 1),
        (Gemm { consumers: 2, scalar: Scalar::Bf16, ..MOVES }, Sizes::of([131, 67, 97], 1), 1),
        (Gemm { columns: 128, ..MOVES }, Sizes::of([33, 129, 7], 1), 1),
        (Gemm { batched: true, ..MOVES }, Sizes { batch: 2, ..Sizes::of([5, 67, 35], 1) }, 1),
        (Gemm { batched: true, epilogue: all, ..MOVES }, Sizes { batch: 2, ..partial }, 0),
        (Gemm { epilogue: all, ..MOVES }, Sizes::of([67, 71, 33], 1), 1),
        // Epilogues.
        (Gemm { epilogue: bias, ..SMALL }, partial, 1),
        (Gemm { epilogue: residual, ..SMALL }, partial, 1),
        (Gemm { epilogue: all, ..SMALL }, Sizes::of([72, 72, 0], 1), 1),
        (Gemm { epilogue: all, ..SMALL }, partial, 5),
        (Gemm { epilogue: all, batched: true, ..SMALL }, batched, 1),
        (Gemm { epilogue: all, scalar: Scalar::Bf16, consumers: 2, ..SMALL }, partial, 1),
        (Gemm { epilogue: all, columns: 128, consumers: 2, ..SMALL }, partial, 1),
    ];
    for function in [Unary::Relu, Unary::Tanh, Unary::Silu, Unary::Gelu] {
        rows.push((Gemm { epilogue: active(function), ..SMALL }, Sizes::of([72, 72, 72], 1), 0));
    }
    for (a_transposed, b_transposed) in [(false, true), (true, false), (true, true)] {
        let gemm = Gemm { a_transposed, b_transposed, ..SMALL };
        rows.push((Gemm { columns: 128, consumers: 2, ..gemm }, Sizes::of([136, 136, 72], 1), 1));
        rows.push((Gemm { batched: true, ..gemm }, batched, 1));
        rows.push((Gemm { edges: Edges::Moves, ..gemm }, Sizes::of([67, 71, 69], 1), 1));
        let wide = Gemm { edges: Edges::Moves, columns: 128, consumers: 2, ..gemm };
        rows.push((wide, Sizes::of([35, 67, 9], 1), 0));
        rows.push((gemm, partial, 2));
    }
    rows
}

#[test]
fn kernels_verify_read_back_and_become_cuda() {
    for (gemm, ..) in rows() {
        let kernel = gemm.kernel().unwrap();
        let findings: Vec<String> = verify(&kernel).iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "{gemm:?}: {findings:#?}");
        assert_eq!(parse(&kernel.to_string()).as_ref(), Ok(&kernel), "{gemm:?}");
        let source = emit(&kernel).unwrap().source;
        assert!(source.contains("wgmma.mma_async"), "{gemm:?}");
    }
}

#[test]
fn products_are_right_in_any_order() {
    for (gemm, sizes, random_orders) in rows() {
        check_product(&gemm, sizes, random_orders);
    }
}

/// Warpgroups' products and tensor copies have none by their layouts, which their atoms ask for;
/// the simulator counts those of threads' own accesses, here by `stmatrix` and single moves.
#[test]
fn accesses_to_shared_memory_have_no_bank_conflicts() {
    for (gemm, sizes, _) in rows() {
        let outcome = run(&gemm.kernel().unwrap(), &operands(&gemm, sizes), None);
        let counts = outcome.costs.atoms();
        let atom = if gemm.edges == Edges::Bulk { "stmatrix.x4" } else { "st.shared" };
        assert!(sizes.k == 0 || counts[atom] > 0, "{gemm:?}: {counts:?}");
        assert_eq!(outcome.costs.total().conflicts, 0, "{gemm:?} {sizes:?}");
    }
}
