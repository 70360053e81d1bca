//! Mutants of the templates whose steps follow each other: recurrent layers of blocks that wait for
//! each other, running sums, rows with several totals, products and attention of single precision.

use graphene_ir::arch::Arch;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Kernel, Number, Unary};
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::fmha::{Fmha, Mask};
use graphene_ir::template::folds::Folds;
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::multistage::{By, Multistage};
use graphene_ir::template::recurrent::{Cell, Direction, Recurrent};
use graphene_ir::template::scan::Scan;
use graphene_ir::tensor::Scalar;

use crate::support::inputs;
use crate::told::{Equivalent, Subject, check_told};
use crate::{fmha, folds, recurrent};

/// Several blocks, steps, and chunks of the depth, partial ones among them; and two tiles of rows.
fn layers() -> Vec<Subject> {
    let small = Recurrent { inputs: 40, hidden: 40, depth: 16, units: 16, ..recurrent::small() };
    let subject = |name, layer: Recurrent, rows, every| {
        let kernel = layer.kernel().unwrap();
        let given =
            [(3, 5, 1, 0), (1, rows, 1, 0)].map(|sizes| recurrent::given(&layer, &kernel, sizes));
        Subject::new(name, kernel, given, 2).sampled(every)
    };
    let gru = Recurrent {
        cell: recurrent::gru_reset_first(),
        direction: Direction::Both,
        scalar: Scalar::F32,
        rows: 8,
        slices: 2,
        edges: Edges::Moves,
        units: 8,
        inputs: 35,
        hidden: 35,
        initial: [true, false],
        results: [false, true, false],
        resident: [false; 2],
        ..small.clone()
    };
    let plain = Recurrent {
        cell: Cell::plain(&Function::identity().unary(Unary::Tanh)),
        resident: [false, true],
        bias: false,
        direction: Direction::Reverse,
        results: [true, true, false],
        ..small.clone()
    };
    let ragged = Recurrent {
        cell: {
            let [f, g] = [Unary::Sigmoid, Unary::Tanh].map(|op| Function::identity().unary(op));
            Cell::lstm_with_peepholes(&f, &g, &g, false)
        },
        direction: Direction::Reverse,
        initial: [true; 2],
        ragged: true,
        ..small.clone()
    };
    vec![
        subject("lstm", small, 17, 3),
        subject("gru", gru, 9, 6),
        subject("plain", plain, 17, 3),
        subject("ragged", ragged, 17, 6),
    ]
}

/// Changes that make no difference.
const OF_LAYERS: &[Equivalent] = &[
    (
        "",
        "== 0 to == 1 in if(@thread_2 == 0)",
        "Any one thread of a block may count its arrival, or wait for the others'.",
    ),
    (
        "gru",
        "remove predicate: if(@k + 1 < 3)",
        "It brings zeros from beyond the last chunk to a stage that is free, and nobody uses them.",
    ),
    (
        "gru",
        "<max> in %sum_16[0]",
        "The last sum begins anew, with what was reset, before anybody uses it.",
    ),
    (
        "",
        "Init<0> to Init<1> in %raw",
        "It is the bias of units that there are not, of which nothing is stored.",
    ),
];

#[test]
fn mutants_of_recurrent_layers_are_told() {
    check_told(&layers(), OF_LAYERS, &[]);
}

fn on(
    name: &'static str,
    kernel: Kernel,
    sizes: &[&[(&str, i64)]],
    element: impl Fn(usize) -> f64,
) -> Subject {
    let given: Vec<_> = sizes
        .iter()
        .map(|symbols| inputs(&kernel, symbols, |param, i| element(1009 * param + i)))
        .collect();
    Subject::new(name, kernel, given, 3)
}

/// A few bits, of both signs, most of them negative.
fn few_bits(i: usize) -> f64 {
    ((i * 37 + 11 * (i / 64)) % 101) as f64 / 64.0 - 1.25
}

/// Rows of several chunks, the last of them partial, of two warps.
fn scans() -> Vec<Subject> {
    let small = Scan { threads: 64, ..Scan::default() };
    let apart = Access { scalar: Scalar::F16, strides: vec![Stride::Symbol, Stride::Packed] };
    let back = Scan { exclusive: true, reverse: true, x: apart, ..small.clone() };
    let whole = Scan {
        numbers: Scalar::I64,
        x: Access::packed(Scalar::I32, 2),
        y: Access::packed(Scalar::I64, 2),
        ..small.clone()
    };
    let sizes: [&[_]; 1] = [&[("N0", 2), ("N1", 150)]];
    vec![
        on("scan", small.kernel().unwrap(), &sizes, few_bits),
        on(
            "backwards",
            back.kernel().unwrap(),
            &[&[("N0", 2), ("N1", 150), ("x_stride0", 160)]],
            few_bits,
        ),
        on("integers", whole.kernel().unwrap(), &sizes, |i| (i * 37 % 101) as f64 - 50.0),
    ]
}

const OF_SCANS: &[Equivalent] = &[
    (
        "",
        "remove predicate: if(64*@chunk + @thread_of_block < @N1) { if(inside(%from))",
        "What comes after the end is part of no sum that is stored.",
    ),
    (
        "",
        "remove predicate: if(64*@chunk + @thread_of_block < @N1) { if(inside(%to))",
        "Forwards, what is inside is before the end. (Backwards, this is told.)",
    ),
    ("", "Init<0> to Init<1> in %value", "It is the element after the end: likewise."),
];

/// Rows of two warps and of a part of one, in partial blocks.
fn totals() -> Vec<Subject> {
    let variance = folds::variance(Scalar::F16);
    let wide = Folds { vector: 4, threads: 64, teams: 2, ..variance };
    let softmax = Folds { threads: 16, teams: 4, ..folds::softmax(1, 3) };
    let sizes: [&[_]; 1] = [&[("N0", 3), ("N1", 300)]];
    vec![
        on("variance", wide.kernel().unwrap(), &sizes, few_bits),
        on("softmax", softmax.kernel().unwrap(), &[&[("N0", 5), ("N1", 4), ("N2", 9)]], |i| {
            // Scores are negative, scales positive: no maximum is 0.
            if i < 1009 { 4.0 * few_bits(i) - 4.0 } else { 1.0 + (i % 3) as f64 / 4.0 }
        }),
    ]
}

const OF_TOTALS: &[Equivalent] = &[
    (
        "",
        "== 0 to == 1 in if(@lane",
        "Exchanges between all lanes have left the same total in each; any of them may hand it on.",
    ),
    ("variance", "== 0 to == 1 in if(@member", "Likewise, of a team's threads."),
    (
        "variance",
        "delete %total_2 <- Move<<<#own, #one>>>(%all_parts_2[0])",
        "The thread that stores the result has its own warp's part, the first, in that register.",
    ),
    ("softmax", "if(@member == 0) {", "There is no result of whole rows: it is empty."),
];

/// Six tiles, partial ones among them, with more steps than there are stages; and none.
fn products() -> Vec<Subject> {
    let matmul = MatMul {
        scalar: Scalar::F32,
        epilogue: Epilogue::layer(true, Some(Unary::Relu), true),
        ..MatMul::default()
    };
    let bulk = Multistage {
        tile: [32, 32],
        by: By::Threads([4, 4]),
        depth: 16,
        warps: 2,
        stages: 3,
        raster: 2,
        matmul,
        ..Multistage::simt()
    };
    let mut moves = Multistage { edges: Edges::Moves, stages: 2, ..bulk.clone() };
    moves.matmul.a_transposed = true;
    moves.matmul.b_transposed = true;
    let shared = Multistage { split: 2, arch: Arch::Sm90a, ..bulk.clone() };
    let sizes = |m, n, k| [("M", m), ("N", n), ("K", k), ("blocks", 1)];
    let on = |name, simt: &Multistage, [m, n, k]: [i64; 3]| {
        on(name, simt.kernel().unwrap(), &[&sizes(m, n, k), &sizes(m, n, 0)], few_bits)
    };
    vec![
        on("simt", &bulk, [68, 36, 52]),
        on("odd simt", &moves, [67, 33, 37]),
        on("split simt", &shared, [68, 36, 148]),
    ]
}

const OF_PRODUCTS: &[Equivalent] = &[
    (
        "simt",
        " swizzle: %sB",
        "The eight lanes whose accesses are of one phase read two columns, one beside the other.",
    ),
    ("split simt", " swizzle: %sB", "Likewise."),
    ("simt", "narrow swizzle: %sA", "They read four rows, for which half of the swizzle does."),
    ("split simt", "narrow swizzle: %sA", "Likewise."),
    (
        "split simt",
        "shift role up: role #block[0] { for(@s",
        "Another thread of the block initialises the barriers and fences that; all of the block and its neighbours meet.",
    ),
    (
        "odd simt",
        " swizzle: %s",
        "Lanes read neighbours in one row, which are in banks of their own with it and without.",
    ),
    (
        "",
        "one less pending: WaitGroup<copy, 1>",
        "It waits for one group more: every order of events is one that there was before.",
    ),
    (
        "",
        "Init<0> to Init<1> in %raw",
        "It is the bias, or the residual, of what there is not, of which nothing is stored.",
    ),
];

/// Two tiles of queries, several of keys, partial ones among them; and one key.
fn attention() -> Vec<Subject> {
    let small = Fmha {
        scalar: Scalar::F32,
        head_dim: 16,
        value_dim: 16,
        consumers: 1,
        keys: 16,
        ..Fmha::default()
    };
    let causal = Fmha { causal: true, mask: Mask::Dense(Scalar::F32), ..small.clone() };
    let filled = Fmha {
        scalar: Scalar::F16,
        mask: Mask::PerKey(Scalar::U8),
        // Keys beyond the end would have as much weight as those that are forbidden.
        fill: Number(0.25),
        ..small.clone()
    };
    let subject = |name, fmha: Fmha, sizes: &[[usize; 2]]| {
        let kernel = fmha.ampere().unwrap();
        let sizes = sizes.iter().map(|&[q, k]| fmha::Sizes::of(q, k));
        let sizes = sizes.chain([fmha::Sizes::grouped(3, 40)]);
        let given: Vec<_> = sizes.map(|sizes| fmha::operands(&fmha, sizes)).collect();
        Subject::new(name, kernel, given, 2)
    };
    let rounded = Fmha { tf32: true, ..small.clone() };
    vec![
        subject("rounded", rounded, &[[70, 40], [3, 1]]).sampled(3),
        subject("threads", small.clone(), &[[70, 40], [3, 1]]).sampled(3),
        subject("causal", causal, &[[70, 40], [3, 1]]).sampled(6),
        subject("halves", Fmha { scalar: Scalar::F16, ..small }, &[[70, 40], [3, 1]]).sampled(3),
        subject("filled", filled, &[[70, 40], [3, 1]]).sampled(6),
    ]
}

const OF_ATTENTION: &[Equivalent] = &[
    (
        "",
        "one less pending: WaitGroup<copy, 1>",
        "It waits for one group more: every order of events is one that there was before.",
    ),
    (
        "",
        "Init<0> to Init<1> in %word",
        "It is the term of a query or a key that there is not: neither has a result.",
    ),
    (
        "",
        "Init<0> to Init<1> in %pair[@p]",
        "The first tile multiplies the sums by 0: by 2 to the power of less than -10²⁸.",
    ),
    (
        "threads",
        "one more pending: WaitGroup<copy, 1><<<#cta, #block>>>() #1",
        "Threads first read queries in the first step, which waits once more.",
    ),
    ("threads", "delete Sync: Sync<<<#cta, #block>>>() #2", "Likewise."),
    ("rounded", "delete WaitGroup: WaitGroup<copy, 1><<<#cta, #block>>>() #1", "Likewise."),
    ("causal", "one more pending: WaitGroup<copy, 1><<<#cta, #block>>>() #1", "Likewise."),
    (
        "threads",
        "remove swizzle: %sQ",
        "Lanes of a phase read two rows, which are in banks of their own with it and without.",
    ),
    ("causal", "remove swizzle: %sQ", "Likewise."),
];

/// Changes of all of these kernels that make no difference.
pub(crate) fn known() -> impl Iterator<Item = &'static Equivalent> {
    [OF_LAYERS, OF_SCANS, OF_TOTALS, OF_PRODUCTS, OF_ATTENTION].into_iter().flatten()
}

/// All of these kernels.
pub(crate) fn all() -> Vec<Subject> {
    [layers(), scans(), totals(), products(), attention()].into_iter().flatten().collect()
}

#[test]
fn mutants_of_scans_are_told() {
    check_told(&scans(), OF_SCANS, &[]);
}

#[test]
fn mutants_of_rows_with_totals_are_told() {
    check_told(&totals(), OF_TOTALS, &[]);
}

#[test]
fn mutants_of_products_by_threads_are_told() {
    check_told(&products(), OF_PRODUCTS, &[]);
}

#[test]
fn mutants_of_attention_before_hopper_are_told() {
    check_told(&attention(), OF_ATTENTION, &[]);
}
