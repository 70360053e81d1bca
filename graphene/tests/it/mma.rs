//! Products by single warps' tensor-core instructions: right within the bound that their arithmetic
//! implies, clean in any order of warps, for every parameter.

use expect_test::expect;
use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::error::{Allowed, Constraint, Error};
use graphene_ir::kernel::Unary;
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::multistage::Multistage;
use graphene_ir::tensor::Scalar;

use crate::products::{Sizes, check_product, layer, two_results};
use crate::support::{OLDER, check_features, check_text};

fn small() -> Multistage {
    Multistage { tile: [32, 32], depth: 32, warps: 2, stages: 3, raster: 2, ..Multistage::mma() }
}

/// All parameters that this file tries; each with sizes, and in how many random orders.
pub(crate) fn rows() -> Vec<(Multistage, Sizes, u64)> {
    let plain = MatMul::default;
    let moves = Multistage { edges: Edges::Moves, ..small() };
    let deep = Sizes { k: [40, 72], ..Sizes::of([40, 40, 0], 1) };
    let mut rows = vec![
        (small(), Sizes::of([32, 32, 32], 1), 1),
        (small(), Sizes::of([40, 72, 136], 1), 1),
        (small(), Sizes::of([1, 8, 8], 1), 1),
        (small(), Sizes::of([33, 40, 0], 1), 1),
        (Multistage { warps: 1, stages: 2, ..small() }, Sizes::of([40, 40, 200], 1), 1),
        (Multistage { warps: 4, stages: 4, depth: 64, ..small() }, Sizes::of([40, 40, 264], 1), 1),
        (Multistage { tile: [64, 48], warps: 4, ..small() }, Sizes::of([72, 104, 72], 1), 1),
        (
            Multistage { tile: [16, 96], depth: 16, warps: 2, ..small() },
            Sizes::of([33, 104, 40], 1),
            1,
        ),
        (Multistage { arch: Arch::Sm90a, ..small() }, Sizes::of([40, 40, 40], 1), 1),
        (Multistage::mma(), Sizes::of([136, 136, 104], 1), 0),
        (Multistage { matmul: MatMul { terms: 2, ..plain() }, ..small() }, deep, 2),
        (Multistage { matmul: MatMul { terms: 2, ..plain() }, ..moves.clone() }, deep, 1),
        (
            Multistage {
                matmul: MatMul { results: Edges::Moves, epilogue: layer(), ..plain() },
                ..small()
            },
            Sizes::of([33, 37, 40], 1),
            1,
        ),
        (moves.clone(), Sizes::of([1, 1, 1], 1), 1),
        (moves.clone(), Sizes::of([37, 43, 71], 1), 1),
    ];
    let batched = Sizes { batch: 3, ..Sizes::of([40, 24, 40], 1) };
    let odd = Sizes { batch: 2, ..Sizes::of([35, 37, 41], 1) };
    for scalar in [Scalar::F16, Scalar::Bf16, Scalar::F32] {
        for (a_transposed, b_transposed) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let matmul = MatMul { scalar, a_transposed, b_transposed, ..plain() };
            let with = |edges, matmul: MatMul| Multistage { edges, matmul, ..small() };
            let batch = MatMul { batched: true, epilogue: layer(), ..matmul.clone() };
            let several = MatMul { epilogue: two_results(), ..matmul.clone() };
            rows.extend([
                (with(Edges::Bulk, matmul.clone()), Sizes::of([40, 40, 72], 1), 1),
                (with(Edges::Bulk, batch.clone()), batched, 1),
                (with(Edges::Moves, batch.clone()), odd, 1),
                (with(Edges::Moves, batch.clone()), Sizes::of([1, 37, 41], 1), 0),
                (with(Edges::Moves, batch), Sizes::of([35, 1, 1], 1), 0),
                (with(Edges::Bulk, several.clone()), Sizes::of([48, 40, 24], 1), 0),
                (with(Edges::Moves, several), Sizes::of([33, 41, 23], 1), 0),
                (
                    Multistage { tile: [64, 64], warps: 4, matmul, ..small() },
                    Sizes::of([72, 72, 40], 1),
                    1,
                ),
            ]);
        }
    }
    rows
}

#[test]
fn mma_kernels_verify_read_back_and_become_cuda() {
    for (mma, ..) in rows() {
        let kernel = mma.kernel().unwrap();
        check_text(&format!("{mma:?}"), &kernel);
        assert!(emit(&kernel).unwrap().source.contains("mma.sync"), "{mma:?}");
    }
}

#[test]
fn mma_parameters_that_no_kernel_has_are_refused() {
    let of = |scalar| MatMul { scalar, ..MatMul::default() };
    for mma in [
        Multistage { depth: 0, ..small() },
        Multistage { depth: 24, ..small() },
        Multistage { tile: [24, 32], ..small() },
        Multistage { tile: [0, 32], ..small() },
        Multistage { tile: [32, 32], warps: 3, ..small() },
        Multistage { warps: 0, ..small() },
        Multistage { stages: 1, ..small() },
        Multistage { arch: Arch::Sm75, matmul: of(Scalar::Bf16), ..small() },
        Multistage { arch: Arch::Sm75, matmul: of(Scalar::F32), ..small() },
        Multistage { tile: [256, 256], ..Multistage::mma() },
        Multistage { matmul: MatMul { terms: 0, ..MatMul::default() }, ..small() },
    ] {
        assert!(mma.kernel().is_err(), "{mma:?}");
    }
    let refused = Multistage { arch: Arch::Sm70, matmul: of(Scalar::Bf16), ..small() }.kernel();
    assert_eq!(refused.unwrap_err().to_string(), "needs ldmatrix, which sm_70 lacks");
    let refused = Multistage { warps: 40, ..small() }.kernel().unwrap_err();
    let warps = Constraint::Number { what: "warps", allowed: Allowed::Within(1, 32), got: 40 };
    assert_eq!(refused, Error::Constraint(warps));
    assert_eq!(refused.to_string(), "needs 1 to 32 warps; got 40");
}

#[test]
fn mma_products_are_right_in_any_order_and_free_of_bank_conflicts() {
    for (mma, sizes, random_orders) in rows() {
        let (name, kernel) = (format!("{mma:?}"), mma.kernel().unwrap());
        let single = mma.matmul.scalar == Scalar::F32;
        let seen = |x| if single { Unary::Tf32.value(x) } else { x };
        let outcome = check_product(&name, &mma.matmul, &kernel, sizes, random_orders, seen);
        assert_eq!(outcome.costs.total().conflicts, 0, "{name} {sizes:?}");
    }
}

/// Volta's quad pairs and Turing's instructions multiply half precision; copies are loads and stores.
#[test]
fn products_of_older_architectures_are_right_in_any_order() {
    let halves = rows().into_iter().filter(|row| row.0.matmul.scalar == Scalar::F16);
    for (mma, sizes, random_orders) in halves.step_by(2) {
        for arch in OLDER {
            let mma = Multistage { arch, ..mma.clone() };
            let (name, kernel) = (format!("{mma:?}"), mma.kernel().unwrap());
            check_text(&name, &kernel);
            check_features(&name, &kernel, true);
            check_product(&name, &mma.matmul, &kernel, sizes, random_orders.min(1), |x| x);
        }
    }
}

/// Software pipelining: a step is multiplied while the copies for all stages but its own are under way.
#[test]
fn copies_run_ahead_of_products() {
    for stages in [2, 3, 4] {
        let text = Multistage { stages, ..small() }.kernel().unwrap().to_string();
        let (before, after) = text.split_once("WaitGroup<copy, ").unwrap();
        assert_eq!(before.matches("Commit<copy>").count() as i64, stages - 1, "{text}");
        assert!(after.starts_with(&format!("{}>", stages - 2)), "{text}");
    }
}

#[test]
fn what_an_mma_kernel_asks_of_its_host() {
    let matmul = MatMul { batched: true, epilogue: layer(), ..MatMul::default() };
    for (edges, expected) in [
        (
            Edges::Bulk,
            expect![[r#"
            requires the pointer of %A to be a multiple of 16
            requires the pointer of %B to be a multiple of 16
            requires the pointer of %bias to be a multiple of 4
            requires the pointer of %R to be a multiple of 4
            requires the pointer of %C to be a multiple of 4
            requires 2*@K*@M to be a multiple of 16
            requires 2*@K to be a multiple of 16
            requires 2*@K*@N to be a multiple of 16
            requires 2*@M*@N to be a multiple of 4
            requires 2*@N to be a multiple of 4"#]],
        ),
        (Edges::Moves, expect![[""]]),
    ] {
        let mma = Multistage { matmul: matmul.clone(), edges, ..Multistage::mma() };
        let launch = emit(&mma.kernel().unwrap()).unwrap().launch;
        let conditions: Vec<String> = launch.conditions.iter().map(ToString::to_string).collect();
        expected.assert_eq(&conditions.join("\n"));
    }
}
