//! Hopper's matrix product: right within the bound that its arithmetic implies, clean in any order
//! of warps, for every parameter; and it reads back.

use graphene_ir::atom::cut_to_tf32;
use graphene_ir::emit::emit;
use graphene_ir::kernel::Unary;
use graphene_ir::schedule::dependent;
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::tensor::Scalar;

use crate::products::{Sizes, check_product, layer, two_results};
use crate::support::check_text;

fn plain() -> MatMul {
    MatMul::default()
}

fn small() -> Gemm {
    Gemm { columns: 64, stages: 2, consumers: 1, raster: 2, ..Gemm::default() }
}

fn moves() -> Gemm {
    Gemm { edges: Edges::Moves, ..small() }
}

/// Consumers that take turns, with tiles of 128 rows each.
fn turns() -> Gemm {
    Gemm { ping_pong: true, consumers: 2, strips: 2, stages: 3, ..small() }
}

/// Products of consumers that take turns: of several tiles a block, or one only; and none.
fn rows_of_turns() -> Vec<(Gemm, Sizes, u64)> {
    let with = |epilogue: Epilogue| MatMul { epilogue, ..plain() };
    let batched = MatMul { batched: true, ..plain() };
    let across = MatMul { a_transposed: true, b_transposed: true, ..plain() };
    let two = MatMul { terms: 2, epilogue: two_results(), ..plain() };
    let several = Sizes::of([264, 136, 200], 1);
    let pairs = Gemm { columns: 128, cluster: 2, ..turns() };
    vec![
        (turns(), several, 3),
        (turns(), Sizes::of([264, 136, 136], 2), 1),
        (turns(), Sizes::of([136, 72, 72], 3), 1),
        (turns(), Sizes::of([8, 8, 8], 1), 1),
        (turns(), Sizes::of([136, 72, 0], 1), 1),
        (Gemm { strips: 1, stages: 2, ..turns() }, Sizes::of([200, 72, 136], 1), 1),
        (Gemm { strips: 1, consumers: 3, ..turns() }, Sizes::of([264, 72, 136], 1), 1),
        (Gemm { columns: 128, stages: 4, ..turns() }, several, 2),
        (Gemm { columns: 192, ..turns() }, Sizes::of([264, 200, 72], 1), 1),
        (pairs.clone(), Sizes::of([520, 136, 136], 1), 1),
        (Gemm { matmul: with(layer()), ..pairs }, Sizes::of([264, 264, 72], 2), 1),
        (Gemm { matmul: with(layer()), ..turns() }, several, 2),
        (Gemm { matmul: MatMul { scalar: Scalar::Bf16, ..with(layer()) }, ..turns() }, several, 1),
        (Gemm { matmul: two.clone(), ..turns() }, several, 2),
        (Gemm { matmul: across, ..turns() }, several, 2),
        (
            Gemm { matmul: batched.clone(), ..turns() },
            Sizes { batch: 3, ..Sizes::of([136, 72, 72], 2) },
            1,
        ),
        (
            Gemm { matmul: batched, weights: true, prefetch: true, ..turns() },
            Sizes { batch: 2, ..Sizes::of([40, 72, 72], 1) },
            1,
        ),
        (Gemm { edges: Edges::Moves, ..turns() }, Sizes::of([131, 67, 97], 1), 1),
        (Gemm { edges: Edges::Moves, matmul: two, ..turns() }, Sizes::of([131, 67, 97], 1), 1),
        // Each its rows of a tile of 256.
        (Gemm { ping_pong: false, matmul: with(layer()), ..turns() }, several, 2),
        (Gemm { strips: 2, split: 2, ..small() }, Sizes::of([136, 72, 136], 4), 1),
    ]
}

/// All parameters that this file tries; each with sizes, and in how many random orders.
pub(crate) fn rows() -> Vec<(Gemm, Sizes, u64)> {
    let all = layer();
    let bias = Epilogue::layer(true, None, false);
    let residual = Epilogue::layer(false, None, true);
    let active = |function| Epilogue::layer(false, Some(function), false);
    let batched = Sizes { batch: 3, ..Sizes::of([40, 72, 72], 2) };
    let partial = Sizes::of([136, 136, 136], 3);
    let mut rows = vec![
        // Exact, partial, smaller than a tile; depths that are no multiple of 64; none at all.
        (small(), Sizes::of([64, 64, 64], 1), 1),
        (small(), Sizes::of([128, 128, 256], 1), 1),
        (small(), Sizes::of([128, 128, 128], 4), 1),
        (small(), Sizes::of([72, 72, 136], 1), 1),
        (small(), Sizes::of([8, 8, 8], 1), 1),
        (small(), Sizes::of([1, 8, 16], 3), 1),
        (small(), Sizes::of([64, 72, 0], 1), 1),
        (small(), Sizes::of([200, 136, 72], 2), 1),
        (Gemm { matmul: MatMul { scalar: Scalar::Bf16, ..plain() }, ..small() }, partial, 2),
        (Gemm { consumers: 2, ..small() }, partial, 3),
        (Gemm { consumers: 2, stages: 4, raster: 1, ..small() }, Sizes::of([264, 72, 328], 2), 1),
        (Gemm { columns: 128, cluster: 2, ..small() }, Sizes::of([200, 136, 200], 2), 1),
        (
            Gemm {
                matmul: MatMul { b_transposed: true, ..plain() },
                columns: 256,
                cluster: 2,
                ..small()
            },
            Sizes::of([72, 264, 136], 1),
            1,
        ),
        (Gemm { columns: 128, stages: 3, ..small() }, Sizes::of([136, 264, 200], 2), 1),
        (Gemm { columns: 128, consumers: 2, ..small() }, Sizes::of([136, 264, 136], 1), 1),
        (Gemm { columns: 192, ..small() }, Sizes::of([72, 392, 72], 1), 1),
        (Gemm { columns: 256, consumers: 2, ..small() }, Sizes::of([136, 264, 72], 1), 1),
        (Gemm::default(), Sizes::of([128, 256, 328], 1), 0),
        (Gemm { matmul: MatMul { batched: true, ..plain() }, ..small() }, batched, 2),
        // Sizes that no tensor copy can have.
        (moves(), Sizes::of([64, 64, 64], 1), 1),
        (moves(), Sizes::of([67, 71, 131], 1), 1),
        (moves(), Sizes::of([1, 1, 1], 2), 1),
        (moves(), Sizes::of([65, 3, 65], 1), 1),
        (
            Gemm { matmul: MatMul { scalar: Scalar::Bf16, ..plain() }, consumers: 2, ..moves() },
            Sizes::of([131, 67, 97], 1),
            1,
        ),
        (Gemm { columns: 128, ..moves() }, Sizes::of([33, 129, 7], 1), 1),
        (
            Gemm { matmul: MatMul { batched: true, ..plain() }, ..moves() },
            Sizes { batch: 2, ..Sizes::of([5, 67, 35], 1) },
            1,
        ),
        (
            Gemm { matmul: MatMul { batched: true, epilogue: all.clone(), ..plain() }, ..moves() },
            Sizes { batch: 2, ..partial },
            0,
        ),
        (
            Gemm { matmul: MatMul { epilogue: all.clone(), ..plain() }, ..moves() },
            Sizes::of([67, 71, 33], 1),
            1,
        ),
        // Epilogues.
        (Gemm { matmul: MatMul { epilogue: bias.clone(), ..plain() }, ..small() }, partial, 1),
        (Gemm { matmul: MatMul { epilogue: residual.clone(), ..plain() }, ..small() }, partial, 1),
        (
            Gemm { matmul: MatMul { epilogue: all.clone(), ..plain() }, ..small() },
            Sizes::of([72, 72, 0], 1),
            1,
        ),
        (Gemm { matmul: MatMul { epilogue: all.clone(), ..plain() }, ..small() }, partial, 2),
        (
            Gemm { matmul: MatMul { epilogue: all.clone(), batched: true, ..plain() }, ..small() },
            batched,
            1,
        ),
        (
            Gemm {
                matmul: MatMul { epilogue: all.clone(), scalar: Scalar::Bf16, ..plain() },
                consumers: 2,
                ..small()
            },
            partial,
            1,
        ),
        (
            Gemm {
                matmul: MatMul { epilogue: all.clone(), ..plain() },
                columns: 128,
                consumers: 2,
                ..small()
            },
            partial,
            1,
        ),
    ];
    // Two products added, several results.
    let two = MatMul { terms: 2, ..plain() };
    let deep = Sizes { k: [72, 136], ..Sizes::of([72, 72, 0], 2) };
    let several = MatMul { epilogue: two_results(), ..plain() };
    rows.extend([
        (Gemm { matmul: two.clone(), ..small() }, deep, 2),
        (Gemm { matmul: two.clone(), ..small() }, Sizes { k: [0, 64], ..deep }, 1),
        (Gemm { matmul: two.clone(), columns: 128, cluster: 2, ..small() }, deep, 2),
        (Gemm { matmul: MatMul { batched: true, ..two.clone() }, ..moves() }, batched, 1),
        (Gemm { matmul: several.clone(), ..small() }, partial, 2),
        (
            Gemm { matmul: MatMul { batched: true, ..several.clone() }, ..moves() },
            Sizes { batch: 2, ..Sizes::of([5, 67, 35], 1) },
            1,
        ),
        (
            Gemm { matmul: MatMul { terms: 2, ..several }, consumers: 2, ..small() },
            Sizes::of([136, 72, 72], 1),
            1,
        ),
    ]);
    // K in parts, one of them without any; weights that are asked for before.
    let ahead = Gemm { weights: true, prefetch: true, ..small() };
    let batched_ahead = MatMul { batched: true, ..plain() };
    let across = MatMul { b_transposed: true, ..plain() };
    rows.extend([
        (Gemm { split: 4, ..ahead.clone() }, Sizes::of([64, 64, 256], 1), 1),
        (Gemm { split: 4, ..small() }, Sizes::of([72, 72, 328], 4), 1),
        (Gemm { split: 3, ..small() }, Sizes::of([8, 8, 64], 1), 1),
        (Gemm { matmul: two.clone(), split: 2, ..small() }, Sizes { blocks: 4, ..deep }, 4),
        (
            Gemm { matmul: two.clone(), split: 4, ..small() },
            Sizes { k: [0, 264], blocks: 4, ..deep },
            1,
        ),
        // More blocks than warps, so that some finish nothing; and warps that blocks do not share evenly.
        (Gemm { split: 8, ..small() }, Sizes::of([64, 64, 256], 1), 1),
        (Gemm { split: 3, consumers: 2, ..small() }, Sizes::of([128, 64, 192], 1), 1),
        (Gemm { split: 2, ..small() }, Sizes::of([64, 72, 0], 2), 1),
        (
            Gemm { split: 2, columns: 128, consumers: 2, ..ahead.clone() },
            Sizes::of([136, 136, 136], 4),
            1,
        ),
        (
            Gemm { matmul: MatMul { epilogue: layer(), ..plain() }, split: 2, ..small() },
            Sizes::of([72, 72, 136], 4),
            1,
        ),
        (Gemm { split: 2, ..moves() }, Sizes::of([67, 71, 131], 4), 1),
        // What some warps finish alone, with what comes to all of a block: of two consumers, two strips, several panels.
        (
            Gemm { matmul: layered(), split: 3, consumers: 2, ..ahead.clone() },
            Sizes::of([136, 72, 200], 4),
            1,
        ),
        (
            Gemm { matmul: layered(), split: 2, strips: 2, ..small() },
            Sizes::of([136, 72, 136], 4),
            1,
        ),
        (
            Gemm { matmul: layered(), split: 4, columns: 256, ..ahead.clone() },
            Sizes::of([72, 264, 264], 4),
            0,
        ),
        (Gemm { matmul: layered(), weights: true, ..small() }, Sizes::of([136, 72, 200], 2), 1),
        (Gemm { matmul: across, ..ahead.clone() }, Sizes::of([72, 136, 72], 3), 1),
        // Of two terms, the first one's: more steps than stages, fewer, and none.
        (Gemm { matmul: two.clone(), ..ahead.clone() }, Sizes { k: [200, 72], ..deep }, 2),
        (Gemm { matmul: two.clone(), ..ahead.clone() }, Sizes { k: [64, 200], ..deep }, 1),
        (Gemm { matmul: two.clone(), ..ahead.clone() }, Sizes { k: [0, 136], ..deep }, 1),
        (
            Gemm { matmul: two, split: 2, ..ahead.clone() },
            Sizes { k: [72, 200], blocks: 4, ..deep },
            4,
        ),
        (Gemm { matmul: batched_ahead, ..ahead }, batched, 2),
    ]);
    rows.extend(rows_of_turns());
    // Operands come by tensor copies; rows of results and addends begin anywhere.
    let odd = |matmul: MatMul| MatMul { results: Edges::Moves, ..matmul };
    let terms = MatMul { terms: 2, epilogue: two_results(), ..plain() };
    rows.extend([
        (Gemm { matmul: odd(layered()), ..small() }, Sizes::of([72, 67, 136], 1), 1),
        (Gemm { matmul: odd(layered()), ..small() }, Sizes::of([40, 1, 72], 1), 0),
        (Gemm { matmul: odd(layered()), ..turns() }, Sizes::of([264, 131, 72], 1), 1),
        (Gemm { matmul: odd(layered()), split: 2, ..small() }, Sizes::of([72, 67, 136], 4), 1),
        (
            Gemm { matmul: odd(terms), ..small() },
            Sizes { k: [72, 40], ..Sizes::of([72, 67, 0], 1) },
            1,
        ),
    ]);
    for function in [Unary::Relu, Unary::Tanh, Unary::Silu, Unary::Gelu] {
        rows.push((
            Gemm { matmul: MatMul { epilogue: active(function), ..plain() }, ..small() },
            Sizes::of([72, 72, 72], 1),
            0,
        ));
    }
    for (a_transposed, b_transposed) in [(false, true), (true, false), (true, true)] {
        let gemm = Gemm { matmul: MatMul { a_transposed, b_transposed, ..plain() }, ..small() };
        rows.push((
            Gemm { columns: 128, consumers: 2, ..gemm.clone() },
            Sizes::of([136, 136, 72], 1),
            1,
        ));
        let matmul = MatMul { batched: true, ..gemm.matmul.clone() };
        rows.push((Gemm { matmul, ..gemm.clone() }, batched, 1));
        rows.push((Gemm { edges: Edges::Moves, ..gemm.clone() }, Sizes::of([67, 71, 69], 1), 1));
        let wide = Gemm { edges: Edges::Moves, columns: 128, consumers: 2, ..gemm.clone() };
        rows.push((wide, Sizes::of([35, 67, 9], 1), 0));
        let matmul = MatMul { batched: true, ..gemm.matmul.clone() };
        let odd = Gemm { edges: Edges::Moves, matmul, ..gemm.clone() };
        for sizes in [[45, 45, 64], [45, 64, 45], [67, 71, 69]] {
            rows.push((odd.clone(), Sizes { batch: 3, ..Sizes::of(sizes, 2) }, 1));
        }
        rows.push((gemm, partial, 2));
    }
    rows
}

fn layered() -> MatMul {
    MatMul { epilogue: layer(), ..plain() }
}

/// Weights are on their way before predecessors are done, and nothing else is; light blocks take no more registers than they
/// need.
#[test]
fn small_blocks_begin_with_weights() {
    let text = |gemm: &Gemm| dependent(gemm.kernel().unwrap()).to_string();
    let gemm = Gemm { weights: true, stages: 4, ..small() };
    let early = text(&gemm);
    let (before, after) = early.split_once("GridDependencyWait<<<").unwrap();
    let copies = |text: &str, from| text.lines().filter(|line| line.contains(from)).count();
    let [a, b] = ["(%gA", "(%gB"].map(|from| [copies(before, from), copies(after, from)]);
    assert_eq!((a, b), ([0, 1], [1, 1]), "{early}");
    assert!(early.contains(".const") && !early.contains("Registers<"), "{early}");
    let others = [
        (Gemm { weights: false, ..gemm.clone() }, false),
        (Gemm { cluster: 2, ..gemm.clone() }, false),
        (Gemm { consumers: 2, ..gemm.clone() }, true),
        (Gemm { columns: 256, ..gemm.clone() }, true),
    ];
    for (other, moves_registers) in others {
        let text = text(&other);
        let (before, _) = text.split_once("GridDependencyWait<<<").unwrap();
        assert!(!before.contains("%gB"), "{text}");
        assert_eq!(text.contains("Registers<"), moves_registers, "{text}");
    }
    assert!(Gemm { prefetch: true, ..small() }.kernel().is_err());
}

#[test]
fn kernels_verify_read_back_and_become_cuda() {
    for (gemm, ..) in rows() {
        let kernel = gemm.kernel().unwrap();
        check_text(&format!("{gemm:?}"), &kernel);
        let source = emit(&kernel).unwrap().source;
        assert!(source.contains("wgmma.mma_async"), "{gemm:?}");
    }
}

/// Bank conflicts: warpgroups' products and tensor copies have none by their layouts, which their
/// atoms ask for; the simulator counts those of threads' own accesses, here by `stmatrix` and single
/// moves.
#[test]
fn products_are_right_in_any_order_and_free_of_bank_conflicts() {
    for (gemm, sizes, random_orders) in rows() {
        let (name, kernel) = (format!("{gemm:?}"), gemm.kernel().unwrap());
        let outcome = check_product(&name, &gemm.matmul, &kernel, sizes, random_orders, |x| x);
        let costs = &outcome.costs.statements;
        let atom = match (gemm.edges, gemm.split) {
            (Edges::Moves, _) => "st.shared",
            (Edges::Bulk, 1) => "stmatrix.x4",
            (Edges::Bulk, _) => "st.async.v2.b32",
        };
        let used = costs.iter().any(|cost| cost.atom == atom && cost.executions > 0);
        let used = used == (gemm.matmul.results == Edges::Bulk || gemm.split > 1);
        assert!(sizes.k[0] == 0 || used, "{gemm:?}: {costs:?}");
        assert_eq!(outcome.costs.total().conflicts, 0, "{gemm:?} {sizes:?}");
    }
}

/// The same of single precision, where K is contiguous in both operands; in one order, for they are ordered alike.
#[test]
fn products_of_single_precision_are_cut_to_tf32() {
    let along = |matmul: &MatMul| !matmul.a_transposed && !matmul.b_transposed;
    let halves = rows().into_iter().filter(|row| along(&row.0.matmul));
    for (gemm, sizes, _) in halves.filter(|row| row.0.matmul.scalar == Scalar::F16) {
        let matmul = MatMul { scalar: Scalar::F32, ..gemm.matmul.clone() };
        let gemm = Gemm { matmul, ..gemm };
        let (name, kernel) = (format!("{gemm:?}"), gemm.kernel().unwrap());
        check_text(&name, &kernel);
        assert!(emit(&kernel).unwrap().source.contains("k8.f32.tf32.tf32"), "{name}");
        let outcome = check_product(&name, &gemm.matmul, &kernel, sizes, 0, cut_to_tf32);
        assert_eq!(outcome.costs.total().conflicts, 0, "{name} {sizes:?}");
    }
}
