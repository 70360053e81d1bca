//! `silu(A·B) * (A·B_2)`: one kernel, within its bound, beside cuBLASLt's matmul by both matrices, one below the other, and a
//! pointwise kernel of ours on its result. That kernel by torch.compile is in `peers/gpu_kernels.py`.

use graphene_ir::function::Function;
use graphene_ir::kernel::Unary;
use graphene_ir::template::access::Access;
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::multistage::Multistage;
use graphene_ir::template::pointwise::Pointwise;
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::cublaslt::{BoundGemm, PackedGemm};
use graphene_runtime::device::{Bound, Buffer, Stream};

use super::{Case, bind, kernel_error, median};
use crate::data::{Random, decode, encode};

/// `m, n, k`, of which each matrix has `n` columns.
const SHAPES: [[usize; 3]; 3] = [[4096, 8192, 2048], [16, 8192, 2048], [1, 8192, 2048]];

/// Few, for a sanitizer, and no multiples of tiles.
const SMALL: [usize; 3] = [136, 200, 136];

/// How often all are timed, one after the other, so that a clock that changes favours none.
const ROUNDS: usize = 3;

const SCALAR: Scalar = Scalar::F16;

/// What is tried where there are few rows, or many.
fn tiles(few: bool) -> Vec<Gemm> {
    let matmul = MatMul::gated(Unary::Silu);
    let gemm = Gemm { matmul, weights: true, ..Gemm::default() };
    if few {
        let small = Gemm { consumers: 1, columns: 128, ..gemm }.deepest();
        let splits = [2, 4].map(|split| Gemm { split, ..small.clone() }.deepest());
        let wide = Gemm { columns: 256, ..small.clone() }.deepest();
        return [small, wide].into_iter().chain(splits).collect();
    }
    let ping_pong = Gemm { ping_pong: true, strips: 2, columns: 128, ..gemm.clone() }.deepest();
    let narrow = Gemm { ping_pong: true, ..gemm.clone() }.deepest();
    let one = Gemm { columns: 128, ..gemm.clone() }.deepest();
    let all = [gemm.deepest(), ping_pong, narrow, one];
    let clusters = |gemm: Gemm| [1, 2].map(|cluster| Gemm { cluster, ..gemm.clone() }.deepest());
    all.into_iter().flat_map(clusters).collect()
}

/// Every shape by every tile; and by warps and their own moves, not timed.
pub(crate) fn gated(stream: &Stream) -> Result<usize, Error> {
    let (mut random, mut wrong) = (Random(17), 0);
    let matmul = MatMul::gated(Unary::Silu);
    let case = case(stream, SMALL, &mut random)?;
    for gemm in [tiles(true), tiles(false)].concat() {
        let moves = Gemm { edges: Edges::Moves, cluster: 1, ..gemm.clone() };
        for gemm in [gemm, moves] {
            let bound = case.bind_gemm(stream, &gemm)?;
            wrong += case.run(stream, &bound, &gemm, &mut random, |x| x)?;
        }
    }
    let mma = Multistage { matmul, ..Multistage::mma() };
    let bound = case.bind(stream, &mma.kernel().map_err(kernel_error)?, &[])?;
    wrong += case.run(stream, &bound, &mma, &mut random, |x| x)?;
    if crate::quick() {
        return Ok(wrong);
    }
    for size in SHAPES {
        wrong += shape(stream, size, &mut random)?;
    }
    Ok(wrong)
}

/// Operands so small that two sums multiplied are never too large for fp16.
fn case(stream: &Stream, size: [usize; 3], random: &mut Random) -> Result<Case, Error> {
    Case::of(stream, MatMul::gated(Unary::Silu), size, |len| {
        let values = random.normal(len, SCALAR, false);
        let bytes = encode(&values.into_iter().map(|x| x / 4.0).collect::<Vec<_>>(), SCALAR);
        (decode(&bytes, SCALAR), bytes)
    })
}

/// How many kernels are wrong.
fn shape(stream: &Stream, size: [usize; 3], random: &mut Random) -> Result<usize, Error> {
    let [m, n, k] = size;
    let case = case(stream, size, random)?;
    let values = |i: usize| case.ins[i].1.iter().copied();
    let both = stream.upload(&encode(&values(1).chain(values(2)).collect::<Vec<_>>(), SCALAR))?;
    let sums = stream.alloc(2 * m * n * SCALAR.bytes() as usize)?;
    let bare = PackedGemm { m, n: 2 * n, k, scalar: SCALAR, transpose_a: false, transpose_b: true };
    let theirs = BoundGemm::tune(stream, bare, [&case.ins[0].2, &both, &sums])?;
    let gate = pointwise(stream, &case, &sums)?;
    let after = || theirs.launch().and_then(|()| gate.launch());
    after()?;
    stream.synchronize()?;
    let their_error = case.error(random, |x| x)?;
    let mut wrong = 0;
    for gemm in tiles(m <= 512) {
        case.spoil()?;
        let bound = case.bind_gemm(stream, &gemm)?;
        bound.launch()?;
        stream.synchronize()?;
        let error = case.error(random, |x| x)?;
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            times[0].push(median(stream, || bound.launch())?);
            times[1].push(median(stream, after)?);
            times[2].push(median(stream, || theirs.launch())?);
        }
        times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
        let [us, after_us, cublaslt_us] = [0, 1, 2].map(|of: usize| times[of][ROUNDS / 2]);
        let Gemm { columns, stages, cluster, ping_pong, split, .. } = gemm;
        println!(
            "{{\"row\":\"gated\",\"m\":{m},\"n\":{n},\"k\":{k},\"rows\":{},\"columns\":{columns},\
             \"ping_pong\":{ping_pong},\"stages\":{stages},\"cluster\":{cluster},\"split\":{split},\
             \"error_of_bound\":{error:.4},\"us\":{us:.2},\"us_least_and_most\":[{:.2},{:.2}],\
             \"tflops\":{:.0},\"cublaslt_then_pointwise_us\":{after_us:.2},\
             \"cublaslt_us\":{cublaslt_us:.2},\"their_error_of_bound\":{their_error:.1},\
             \"ratio\":{:.3}}}",
            gemm.rows(),
            times[0][0],
            times[0][ROUNDS - 1],
            4.0 * (m * n * k) as f64 / us * 1e-6,
            after_us / us,
        );
        if error > 1.0 {
            eprintln!("{m}x{n}x{k} {gemm:?}: {error} of its bound");
            wrong += 1;
        }
    }
    Ok(wrong)
}

/// What the library has no epilogue for.
fn pointwise(stream: &Stream, case: &Case, sums: &Buffer) -> Result<Bound, Error> {
    let [m, n, _] = case.size;
    let [gate, value] = [0, 1].map(Function::input);
    let rows = Access::rows(SCALAR, 2);
    let pointwise = Pointwise {
        function: gate.unary(Unary::Silu) * value,
        ins: vec![rows.clone(), rows],
        outs: vec![Access::packed(SCALAR, 2)],
        ..Pointwise::default()
    };
    let items = pointwise.items(&[m as i64, n as i64]);
    let kernel = pointwise.kernel().map_err(kernel_error)?;
    let half = n * SCALAR.bytes() as usize;
    let value = sums.part(half, sums.len() - half)?;
    let most = 8 * i64::from(stream.device().properties().multiprocessors);
    let blocks = ((items + pointwise.threads - 1) / pointwise.threads).min(most);
    let (n, apart) = (n as i64, 2 * n as i64);
    let symbols = [("N0", m as i64), ("N1", n), ("blocks", blocks)];
    let strides = [("x0_stride0", apart), ("x1_stride0", apart)];
    let buffers = [("x0", sums), ("x1", &value), ("y0", &case.c)];
    bind(stream, &kernel, &buffers, &[&symbols[..], &strides].concat())
}
