//! Products in single precision by threads' own multiply-adds: right within the bound that their
//! arithmetic implies, clean in any order of warps, for every parameter.

use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::template::epilogue::{Epilogue, Span};
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::multistage::{By, Multistage};
use graphene_ir::tensor::Scalar;

use crate::products::{Sizes, check_product, layer, two_results};
use crate::support::{OLDER, check_clean, check_features, check_text, inputs, run};

fn small() -> Multistage {
    Multistage {
        tile: [32, 32],
        by: By::Threads([4, 4]),
        depth: 8,
        warps: 2,
        stages: 2,
        ..Multistage::simt()
    }
}

/// Several blocks for each tile.
fn split(parts: i64) -> Multistage {
    Multistage { split: parts, arch: Arch::Sm90a, ..small() }
}

/// A sum of integers as it is, which single precision would round, and in single precision.
fn both_types() -> Epilogue {
    let mut both = Epilogue::new(Function::all([Function::input(0), Function::input(0)]), []);
    both.outputs[1] = Some(Scalar::F32);
    both
}

/// All parameters that this file tries; each with sizes, and in how many random orders.
pub(crate) fn rows() -> Vec<(Multistage, Sizes, u64)> {
    let plain = small().matmul;
    let deep = Sizes { k: [12, 20], ..Sizes::of([36, 36, 0], 1) };
    let mut rows = vec![
        (small(), Sizes::of([32, 32, 32], 1), 1),
        (small(), Sizes::of([36, 68, 28], 1), 1),
        (small(), Sizes::of([33, 36, 0], 1), 1),
        (Multistage { stages: 4, ..small() }, Sizes::of([4, 36, 100], 1), 1),
        (Multistage { by: By::Threads([4, 8]), tile: [64, 64], warps: 4, ..small() }, deep, 2),
        (Multistage::simt(), Sizes::of([132, 68, 36], 1), 0),
        (Multistage { matmul: MatMul { terms: 2, ..plain.clone() }, ..small() }, deep, 2),
    ];
    // Of integers: the sums themselves, and what becomes of them in single precision.
    let whole = MatMul { scalar: Scalar::I32, ..plain.clone() };
    let mut scaled = Epilogue::new(Function::input(0) * Function::input(1), [Span::Row]);
    (scaled.operands[0].scalar, scaled.outputs[0]) = (Some(Scalar::F32), Some(Scalar::F32));
    let mut real = Epilogue::default();
    real.outputs[0] = Some(Scalar::F32);
    for epilogue in [both_types(), real] {
        let matmul = MatMul { b_transposed: true, epilogue, ..whole.clone() };
        rows.push((Multistage { matmul, ..small() }, Sizes::of([36, 68, 100], 1), 1));
    }
    let gated = Multistage { by: By::Threads([4, 8]), tile: [64, 64], warps: 4, ..small() };
    let mut both = Epilogue::new(Function::input(0) * 2f64.powi(-24) * Function::input(1), []);
    both.outputs[0] = Some(Scalar::F32);
    let both = MatMul { epilogue: both, gated: true, ..whole.clone() };
    rows.extend([
        (Multistage { matmul: whole.clone(), ..small() }, Sizes::of([36, 68, 100], 1), 1),
        (
            Multistage {
                matmul: MatMul { b_transposed: true, ..whole.clone() },
                edges: Edges::Moves,
                ..small()
            },
            Sizes::of([35, 37, 45], 1),
            1,
        ),
        (
            Multistage { matmul: MatMul { epilogue: scaled, ..whole }, ..small() },
            Sizes::of([36, 68, 28], 1),
            1,
        ),
        (Multistage { matmul: both, ..gated }, Sizes::of([36, 20, 12], 1), 1),
    ]);
    // K in parts: equal ones, of which the last is shorter, or there is none; with what follows, single elements, a batch.
    let layers = MatMul { epilogue: layer(), ..plain.clone() };
    let wide = Multistage {
        tile: [64, 64],
        by: By::Threads([8, 4]),
        depth: 32,
        warps: 4,
        ..Multistage::simt()
    };
    let low = Multistage { tile: [32, 64], by: By::Threads([4, 4]), ..wide.clone() };
    rows.extend([
        (split(4), Sizes::of([32, 32, 128], 1), 1),
        (split(2), Sizes::of([36, 68, 44], 1), 1),
        (split(3), Sizes::of([4, 36, 16], 1), 1),
        (split(2), Sizes::of([33, 36, 0], 1), 1),
        (Multistage { matmul: layers.clone(), ..split(4) }, Sizes::of([68, 36, 100], 1), 1),
        (
            Multistage { matmul: layers.clone(), edges: Edges::Moves, ..split(2) },
            Sizes::of([35, 37, 45], 1),
            1,
        ),
        (
            Multistage { matmul: MatMul { batched: true, ..layers }, ..split(2) },
            Sizes { batch: 3, ..Sizes::of([36, 20, 28], 1) },
            1,
        ),
        (split(8), Sizes::of([32, 36, 100], 1), 1),
        (wide, Sizes::of([68, 68, 68], 1), 0),
        (Multistage { split: 4, arch: Arch::Sm90a, ..low.clone() }, Sizes::of([36, 68, 132], 1), 0),
        (low, Sizes::of([36, 68, 36], 1), 0),
    ]);
    let batched = Sizes { batch: 3, ..Sizes::of([36, 20, 12], 1) };
    let odd = Sizes { batch: 2, ..Sizes::of([35, 37, 13], 1) };
    for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false), (true, true)]
    {
        let matmul = MatMul { a_transposed, b_transposed, ..plain.clone() };
        let with = |edges, matmul: MatMul| Multistage { edges, matmul, ..small() };
        let batch = MatMul { batched: true, epilogue: layer(), ..matmul.clone() };
        let mut several = MatMul { epilogue: two_results(), ..matmul.clone() };
        several.epilogue.outputs[0] = Some(Scalar::Bf16);
        rows.extend([
            (with(Edges::Bulk, matmul.clone()), Sizes::of([40, 40, 20], 1), 1),
            (with(Edges::Bulk, batch.clone()), batched, 1),
            (with(Edges::Moves, batch.clone()), odd, 1),
            (with(Edges::Moves, batch.clone()), Sizes::of([1, 37, 13], 1), 0),
            (with(Edges::Moves, batch), Sizes::of([35, 1, 1], 1), 0),
            (with(Edges::Bulk, several.clone()), Sizes::of([48, 40, 8], 1), 0),
            (Multistage { matmul: several.clone(), ..split(2) }, Sizes::of([36, 40, 52], 1), 1),
            (with(Edges::Moves, several), Sizes::of([33, 41, 7], 1), 0),
            (Multistage { matmul, ..Multistage::simt() }, Sizes::of([132, 132, 20], 1), 0),
        ]);
    }
    rows
}

#[test]
fn simt_kernels_verify_read_back_and_become_cuda() {
    for (simt, ..) in rows() {
        let kernel = simt.kernel().unwrap();
        check_text(&format!("{simt:?}"), &kernel);
        let integers = simt.matmul.scalar == Scalar::I32;
        let multiplies = if integers { "= (int)((unsigned)(" } else { "__fmaf_rn" };
        assert!(emit(&kernel).unwrap().source.contains(multiplies), "{simt:?}");
    }
}

#[test]
fn simt_parameters_that_no_kernel_has_are_refused() {
    for simt in [
        Multistage { depth: 0, ..small() },
        Multistage { depth: 6, ..small() },
        Multistage { tile: [48, 32], ..small() },
        Multistage { by: By::Threads([0, 4]), ..small() },
        Multistage { by: By::Threads([4, 6]), ..small() },
        Multistage { warps: 0, ..small() },
        Multistage { stages: 1, ..small() },
        Multistage { matmul: MatMul::default(), ..small() },
        Multistage { split: 0, ..small() },
        split(9),
        Multistage { arch: Arch::Sm80, ..split(2) },
        Multistage { matmul: MatMul { terms: 2, ..small().matmul }, ..split(2) },
        Multistage { matmul: MatMul { scalar: Scalar::I32, ..small().matmul }, ..split(2) },
        Multistage { matmul: MatMul { scalar: Scalar::I8, ..small().matmul }, ..small() },
    ] {
        assert!(simt.kernel().is_err(), "{simt:?}");
    }
}

#[test]
fn simt_products_of_older_architectures_are_right() {
    for (simt, sizes, _) in rows().into_iter().filter(|row| row.0.split == 1).step_by(3) {
        for arch in OLDER {
            let simt = Multistage { arch, ..simt.clone() };
            let (name, kernel) = (format!("{simt:?}"), simt.kernel().unwrap());
            check_features(&name, &kernel, false);
            check_product(&name, &simt.matmul, &kernel, sizes, 0, |x| x);
        }
    }
}

#[test]
fn simt_products_are_right_in_any_order_and_free_of_bank_conflicts() {
    for (simt, sizes, random_orders) in rows() {
        let (name, kernel) = (format!("{simt:?}"), simt.kernel().unwrap());
        let outcome = check_product(&name, &simt.matmul, &kernel, sizes, random_orders, |x| x);
        assert_eq!(outcome.costs.total().conflicts, 0, "{name} {sizes:?}");
    }
}

/// Sums of integers that 32 bits do not hold are those modulo 2³², as an evaluation in integers has them.
#[test]
fn sums_of_integers_wrap() {
    let matmul = MatMul { scalar: Scalar::I32, epilogue: both_types(), ..small().matmul };
    let kernel = Multistage { matmul, ..small() }.kernel().unwrap();
    let (m, n, k) = (36, 36, 20);
    let element = |param: usize, i: usize| (i * 7_919 + param * 104_729) as i32 % 65_521 - 32_000;
    let symbols = [("M", m), ("N", n), ("K", k)];
    let given = inputs(&kernel, &symbols, |param, i| f64::from(element(param, i) * 3));
    let outcome = run(&kernel, &given, None);
    check_clean("sums that wrap", &outcome);
    let mut wrapped = 0;
    for at in 0..(m * n) as usize {
        let (row, column, deep) = (at / n as usize, at % n as usize, k as usize);
        let product = |i: usize| {
            let (a, b) = (element(0, row * deep + i), element(1, column * deep + i));
            i64::from(a * 3) * i64::from(b * 3)
        };
        let sum: i64 = (0..deep).map(product).sum();
        wrapped += usize::from(i32::try_from(sum).is_err());
        let found = ["C", "C_2"].map(|name| outcome.buffers[name][at].unwrap());
        assert_eq!(found, [f64::from(sum as i32), f64::from(sum as i32 as f32)], "{at}");
    }
    assert!(wrapped > 100, "{wrapped} sums wrap");
}
