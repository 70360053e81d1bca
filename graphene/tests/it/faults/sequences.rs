//! Kernels of the templates whose steps follow each other: recurrent layers of blocks that wait for each other, running
//! sums, rows with several totals, matmuls and attention of single precision.

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

use super::Given;
use crate::support::inputs;
use crate::{fmha, folds, recurrent};

/// Several blocks, steps, and chunks of the depth, and two tiles of rows, partial ones among them; and one step.
fn layers() -> Vec<Given> {
    let small = Recurrent { inputs: 40, hidden: 40, depth: 16, units: 16, ..recurrent::small() };
    let subject = |name, layer: Recurrent, rows| {
        let kernel = layer.kernel().unwrap();
        let inputs =
            [(3, rows, 1, 0), (1, 5, 1, 0)].map(|sizes| recurrent::given(&layer, &kernel, sizes));
        Given { name, kernel, inputs: inputs.into() }
    };
    let gru = Recurrent {
        cell: recurrent::gru_reset_first(),
        direction: Direction::Both,
        scalar: Scalar::F32,
        rows: 8,
        slices: 2,
        edges: Edges::Moves,
        units: 8,
        inputs: 19,
        hidden: 19,
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
        subject("lstm", small, 17),
        subject("gru", gru, 9),
        subject("plain", plain, 17),
        subject("ragged", ragged, 17),
    ]
}

fn on(
    name: &'static str,
    kernel: Kernel,
    sizes: &[&[(&str, i64)]],
    element: impl Fn(usize) -> f64,
) -> Given {
    let inputs = sizes
        .iter()
        .map(|symbols| inputs(&kernel, symbols, |param, i| element(1009 * param + i)))
        .collect();
    Given { name, kernel, inputs }
}

/// A few bits, of both signs, most of them negative.
fn few_bits(i: usize) -> f64 {
    ((i * 37 + 11 * (i / 64)) % 101) as f64 / 64.0 - 1.25
}

/// Rows of several chunks, the last of them partial, of two warps.
fn scans() -> Vec<Given> {
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

/// Rows of two warps and of a part of one, in partial blocks.
fn totals() -> Vec<Given> {
    let variance = folds::variance(Scalar::F16);
    let wide = Folds { vector: 4, threads: 64, teams: 2, ..variance };
    let softmax = Folds { threads: 16, teams: 4, ..folds::softmax(1, 3) };
    let sizes: [&[_]; 1] = [&[("N0", 3), ("N1", 300)]];
    vec![
        on("variance", wide.kernel().unwrap(), &sizes, few_bits),
        on(
            "folded softmax",
            softmax.kernel().unwrap(),
            &[&[("N0", 5), ("N1", 4), ("N2", 9)]],
            |i| {
                // Scores are negative, scales positive: no maximum is 0.
                if i < 1009 { 4.0 * few_bits(i) - 4.0 } else { 1.0 + (i % 3) as f64 / 4.0 }
            },
        ),
    ]
}

/// Six tiles, partial ones among them, with more steps than there are stages; and none.
fn products() -> Vec<Given> {
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

/// Two tiles of queries, several of keys, partial ones among them; and one key.
fn attention() -> Vec<Given> {
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
        let inputs = sizes.map(|sizes| fmha::operands(&fmha, sizes)).collect();
        Given { name, kernel, inputs }
    };
    let rounded = Fmha { tf32: true, ..small.clone() };
    vec![
        subject("rounded", rounded, &[[70, 40], [3, 1]]),
        subject("threads", small.clone(), &[[70, 40], [3, 1]]),
        subject("causal", causal, &[[70, 40], [3, 1]]),
        subject("halves", Fmha { scalar: Scalar::F16, ..small }, &[[70, 40], [3, 1]]),
        subject("filled", filled, &[[70, 40], [3, 1]]),
    ]
}

/// All of these kernels.
pub(super) fn all() -> impl Iterator<Item = Given> {
    [layers(), scans(), totals(), products(), attention()].into_iter().flatten()
}
