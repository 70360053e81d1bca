//! Kernels of every template, small ones, and what they run on: here those whose warps wait for each other by barriers.

use graphene_ir::kernel::{Kernel, Unary};
use graphene_ir::simulate::{Buffer, Inputs};
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::fmha::{Fmha, Mask};
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::mlp::{Layer, Mlp, Warpgroups};
use graphene_ir::template::multistage::Multistage;
use graphene_ir::tensor::Scalar;

use super::{elements, sequences};
use crate::fmha::{Sizes, operands};
use crate::index::Random;
use crate::mlp::of_single;
use crate::support::inputs;

/// A kernel, and what it runs on.
pub(crate) struct Given {
    pub(crate) name: &'static str,
    pub(crate) kernel: Kernel,
    pub(crate) inputs: Vec<Inputs>,
}

/// All of them; and on other values and sizes, too.
pub(crate) fn kernels() -> impl Iterator<Item = Given> {
    let of = |(name, kernel, inputs)| Given { name, kernel, inputs };
    let all = subjects().into_iter().chain(attention()).map(of);
    let all = all.chain(elements::all()).chain(sequences::all()).chain([of(by_warpgroups())]);
    all.map(|mut given| {
        given.inputs.push(reversed(&given.inputs[0]));
        given.inputs.extend(more(given.name, &given.kernel));
        given
    })
}

/// Values that are others, and the same number of them.
fn reversed(inputs: &Inputs) -> Inputs {
    let mut inputs = inputs.clone();
    for buffer in inputs.buffers.values_mut() {
        if let Buffer::Data(data) = buffer {
            data.reverse();
        }
    }
    inputs
}

/// Sizes at which loops run more often than at the others', and what is counted in whole numbers.
fn more(name: &str, kernel: &Kernel) -> Option<Inputs> {
    let product = |m, n, k| vec![("M", m), ("N", n), ("K", k), ("blocks", 1), ("clusters", 1)];
    let symbols = match name {
        "one consumer" | "early" | "moves" => product(200, 72, 64),
        "two consumers" | "epilogue" => product(400, 72, 64),
        "split" => vec![("M", 136), ("N", 136), ("K", 456), ("blocks", 9), ("clusters", 9)],
        "mma" => product(300, 40, 16),
        "gated" => product(300, 72, 16),
        "embedding" => {
            vec![("rows", 2), ("columns", 1024), ("x0_rows", 7), ("x1_rows", 3), ("x2_rows", 2)]
        }
        "mbarrier_cluster" | "st_async_2" => product(1, 1, 1),
        "transpose" => {
            vec![("rows", 34), ("columns", 66), ("x_stride0", 68), ("y_stride0", 36)]
        }
        "transposed" => {
            vec![("images", 2), ("out0", 7), ("out1", 5), ("in0", 4), ("in1", 3)]
        }
        "pointwise" => {
            vec![("N0", 3), ("N1", 207), ("blocks", 1), ("x0_stride0", 208), ("y0_stride0", 208)]
        }
        "joined" => vec![
            ("N0_0", 9),
            ("N0_1", 111),
            ("x0_stride0", 112),
            ("y0_stride0", 112),
            ("N1_0", 15),
            ("N1_1", 27),
            ("y1_stride0", 28),
            ("N2_0", 171),
            ("first2", 9),
            ("blocks", 1),
        ],
        _ => return None,
    };
    Some(inputs(kernel, &symbols, |param, i| {
        ((37 * i + 11 * (i / 64) + param) % 101) as f64 - 50.0
    }))
}

/// A kernel's name, the kernel, and what it runs on.
type Tried = (&'static str, Kernel, Vec<Inputs>);

fn given(name: &'static str, kernel: Kernel, sizes: &[[i64; 3]]) -> Tried {
    let mut random = Random::new(3);
    let values: Vec<f64> = (0..65_521).map(|_| random.within(-64, 64) as f64 / 64.0).collect();
    let runs = sizes.iter().map(|&[m, n, k]| {
        let symbols = [("M", m), ("N", n), ("K", k), ("blocks", 1), ("clusters", 1)];
        inputs(&kernel, &symbols, |n, i| values[(10_007 * n + i) % 65_521])
    });
    let runs = runs.collect();
    (name, kernel, runs)
}

fn subjects() -> Vec<Tried> {
    let small = Gemm { columns: 64, stages: 2, raster: 2, consumers: 1, ..Gemm::default() };
    let matmul = MatMul { epilogue: Epilogue::layer(true, None, true), ..MatMul::default() };
    let gemm = |name, gemm: &Gemm, sizes: &[[i64; 3]]| given(name, gemm.kernel().unwrap(), sizes);
    let example = |name| given(name, crate::support::example(name), &[[0; 3]]);
    let staged = |name, kernel: graphene_ir::Result<Kernel>, sizes: &[[i64; 3]]| {
        given(name, kernel.unwrap(), sizes)
    };
    let mma = Multistage { tile: [32, 32], depth: 32, warps: 2, stages: 3, ..Multistage::mma() };
    let gated = MatMul::gated(Unary::Silu);
    let gated = Multistage { matmul: gated, tile: [32, 128], raster: 2, ..mma.clone() };
    // Four tiles, partial ones among them, with more steps than the ring has stages; and none.
    let mut subjects = vec![
        gemm("one consumer", &small, &[[72, 72, 136], [72, 72, 0]]),
        gemm(
            "early",
            &Gemm { weights: true, ..small.clone() },
            &[[72, 72, 136], [72, 72, 64], [0, 72, 72]],
        ),
        gemm(
            "two consumers",
            &Gemm { consumers: 2, ..small.clone() },
            &[[136, 72, 136], [136, 72, 0]],
        ),
        gemm(
            "turns",
            &Gemm { ping_pong: true, consumers: 2, ..small.clone() },
            &[[200, 72, 136], [136, 72, 0]],
        ),
        gemm(
            "moves",
            &Gemm { edges: Edges::Moves, ..small.clone() },
            &[[67, 65, 129], [67, 65, 0]],
        ),
        // More panels than there is room for.
        gemm(
            "epilogue",
            &Gemm { matmul, columns: 256, ..small.clone() },
            &[[72, 200, 264], [72, 200, 0]],
        ),
        gemm("split", &Gemm { split: 2, ..small.clone() }, &[[64, 64, 456], [64, 64, 0]]),
        staged("mma", mma.kernel(), &[[40, 40, 136], [40, 40, 0]]),
        staged("gated", gated.kernel(), &[[40, 72, 136], [40, 72, 0]]),
        example("mbarrier_cluster"),
        example("st_async_2"),
    ];
    subjects.extend(layers());
    subjects
}

/// A loop of layers and a last one, and layers by threads of other widths than stages are deep.
fn layers() -> Vec<Tried> {
    let layer = |width| Layer { width, ..Layer::default() };
    let small = |mlp: Mlp| Mlp { rows: 32, depth: 16, warps: 2, stages: 3, ..mlp };
    let alike = small(Mlp::alike(3, layer(32)));
    let layers = vec![layer(24), layer(32)];
    let single = small(Mlp { scalar: Scalar::F32, width: 32, layers, ..Mlp::default() });
    vec![
        given("alike", alike.kernel().unwrap(), &[[40, 0, 0]]),
        given("single", single.kernel().unwrap(), &[[40, 0, 0]]),
    ]
}

/// Layers whose rows stay in registers, of X in single precision, which is what the result is of, too.
fn by_warpgroups() -> Tried {
    let mlp = of_single(Mlp::alike(2, Layer::default()));
    let kernel = Warpgroups { consumers: 1, stages: 4 }.kernel(&mlp);
    given("warpgroups", kernel.unwrap(), &[[40, 0, 0]])
}

/// Two tiles of queries, five to eight of keys, partial ones among them, or one; and one key.
fn attention() -> Vec<Tried> {
    let small = Fmha { consumers: 1, keys: 16, ..Fmha::default() };
    let masked = Fmha { mask: Mask::PerKey(Scalar::F32), ..small.clone() };
    let turns = Fmha { consumers: 2, ..small.clone() };
    let all = |fmha: &Fmha, sizes: &[(usize, usize)]| {
        let sizes = sizes.iter().map(|&(q, k)| Sizes::of(q, k));
        sizes.chain([Sizes::grouped(3, 40)]).map(|sizes| operands(fmha, sizes)).collect()
    };
    let runs = |sizes: &[(usize, usize)]| all(&small, sizes);
    // Of Ampere's two stages, one tile's last is the next one's first only if steps are odd.
    vec![
        ("attention", small.kernel().unwrap(), runs(&[(70, 120), (70, 104), (70, 9), (3, 1)])),
        (
            "masked",
            masked.kernel().unwrap(),
            all(&masked, &[(70, 120), (70, 104), (70, 9), (3, 5)]),
        ),
        ("alternating", turns.kernel().unwrap(), runs(&[(130, 120), (260, 104), (130, 9), (3, 1)])),
        ("ampere", small.ampere().unwrap(), runs(&[(70, 72), (70, 120), (3, 1)])),
    ]
}
