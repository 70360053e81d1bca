//! Products in single precision by threads' own multiply-adds: right within the bound that their
//! arithmetic implies, clean in any order of warps, for every parameter.

use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::simt::Simt;
use graphene_ir::tensor::Scalar;

use crate::products::{Sizes, check_product, layer, two_results};
use crate::support::check_text;

fn small() -> Simt {
    Simt { tile: [32, 32], thread: [4, 4], depth: 8, warps: 2, stages: 2, ..Simt::default() }
}

/// Several blocks for each tile.
fn split(parts: i64) -> Simt {
    Simt { split: parts, arch: Arch::Sm90a, ..small() }
}

/// All parameters that this file tries; each with sizes, and in how many random orders.
pub(crate) fn rows() -> Vec<(Simt, Sizes, u64)> {
    let plain = small().matmul;
    let deep = Sizes { k: [12, 20], ..Sizes::of([36, 36, 0], 1) };
    let mut rows = vec![
        (small(), Sizes::of([32, 32, 32], 1), 3),
        (small(), Sizes::of([36, 68, 28], 1), 3),
        (small(), Sizes::of([33, 36, 0], 1), 1),
        (Simt { stages: 4, ..small() }, Sizes::of([4, 36, 100], 1), 2),
        (Simt { thread: [4, 8], tile: [64, 64], warps: 4, ..small() }, deep, 2),
        (Simt::default(), Sizes::of([132, 68, 36], 1), 0),
        (Simt { matmul: MatMul { terms: 2, ..plain.clone() }, ..small() }, deep, 2),
    ];
    // K in parts: equal ones, of which the last is shorter, or there is none; with what follows, single elements, a batch.
    let layers = MatMul { epilogue: layer(), ..plain.clone() };
    let wide = Simt { tile: [64, 64], thread: [8, 4], depth: 32, warps: 4, ..Simt::default() };
    let low = Simt { tile: [32, 64], thread: [4, 4], ..wide.clone() };
    rows.extend([
        (split(4), Sizes::of([32, 32, 128], 1), 3),
        (split(2), Sizes::of([36, 68, 44], 1), 3),
        (split(3), Sizes::of([4, 36, 16], 1), 2),
        (split(2), Sizes::of([33, 36, 0], 1), 1),
        (Simt { matmul: layers.clone(), ..split(4) }, Sizes::of([68, 36, 100], 1), 1),
        (
            Simt { matmul: layers.clone(), edges: Edges::Moves, ..split(2) },
            Sizes::of([35, 37, 45], 1),
            2,
        ),
        (
            Simt { matmul: MatMul { batched: true, ..layers }, ..split(2) },
            Sizes { batch: 3, ..Sizes::of([36, 20, 28], 1) },
            1,
        ),
        (split(8), Sizes::of([32, 36, 100], 1), 1),
        (wide, Sizes::of([68, 68, 68], 1), 0),
        (Simt { split: 4, arch: Arch::Sm90a, ..low.clone() }, Sizes::of([36, 68, 132], 1), 0),
        (low, Sizes::of([36, 68, 36], 1), 0),
    ]);
    let batched = Sizes { batch: 3, ..Sizes::of([36, 20, 12], 1) };
    let odd = Sizes { batch: 2, ..Sizes::of([35, 37, 13], 1) };
    for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false), (true, true)]
    {
        let matmul = MatMul { a_transposed, b_transposed, ..plain.clone() };
        let with = |edges, matmul: MatMul| Simt { edges, matmul, ..small() };
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
            (Simt { matmul: several.clone(), ..split(2) }, Sizes::of([36, 40, 52], 1), 1),
            (with(Edges::Moves, several), Sizes::of([33, 41, 7], 1), 0),
            (Simt { matmul, ..Simt::default() }, Sizes::of([132, 132, 20], 1), 0),
        ]);
    }
    rows
}

#[test]
fn simt_kernels_verify_read_back_and_become_cuda() {
    for (simt, ..) in rows() {
        let kernel = simt.kernel().unwrap();
        check_text(&format!("{simt:?}"), &kernel);
        assert!(emit(&kernel).unwrap().source.contains("__fmaf_rn"), "{simt:?}");
    }
}

#[test]
fn simt_parameters_that_no_kernel_has_are_refused() {
    for simt in [
        Simt { depth: 0, ..small() },
        Simt { depth: 6, ..small() },
        Simt { tile: [48, 32], ..small() },
        Simt { thread: [0, 4], ..small() },
        Simt { thread: [4, 6], ..small() },
        Simt { warps: 0, ..small() },
        Simt { stages: 1, ..small() },
        Simt { matmul: MatMul::default(), ..small() },
        Simt { split: 0, ..small() },
        split(9),
        Simt { arch: Arch::Sm80, ..split(2) },
        Simt { matmul: MatMul { terms: 2, ..small().matmul }, ..split(2) },
    ] {
        assert!(simt.kernel().is_err(), "{simt:?}");
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
