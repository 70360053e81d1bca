//! The paper's LSTM cell, `relu(x·W + h·U + b)`: one kernel, within its bound, beside one cuBLASLt call that multiplies both
//! terms side by side. Five kernels of PyTorch's are in `peers/gpu_kernels.py`.

use graphene_ir::kernel::Unary;
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::MatMul;
use graphene_runtime::Error;
use graphene_runtime::device::Stream;
use graphene_runtime::device::cublaslt::{
    Activation, BoundGemm, Context, Gemm as LibraryGemm, Operands, PackedGemm,
};

use super::{Case, median};
use crate::data::{Random, encode};

/// `m, n, k`, of which each term has a depth `k`.
const SHAPES: [[usize; 3]; 2] = [[1024, 1024, 1024], [4096, 1024, 1024]];

/// Few, for a sanitizer, and no multiples of tiles.
const SMALL: [usize; 3] = [136, 200, 136];

/// How often all are timed, one after the other, so that a clock that changes favours none.
const ROUNDS: usize = 3;

/// What is tried where tiles are few, or many.
fn tiles(few: bool) -> Vec<Gemm> {
    let epilogue = Epilogue::layer(true, Some(Unary::Relu), false);
    let matmul = MatMul { terms: 2, epilogue, ..MatMul::default() };
    let gemm = Gemm { matmul, weights: true, ..Gemm::default() };
    let of = |consumers, columns, split| Gemm { consumers, columns, split, ..gemm.clone() };
    if few {
        let all = [(1, 64, 1), (1, 128, 1), (1, 128, 2), (2, 64, 1), (2, 128, 1), (2, 128, 2)];
        let pairs = [(1, 64), (1, 128), (2, 64)]
            .map(|(consumers, columns)| Gemm { cluster: 2, ..of(consumers, columns, 1) });
        let all = all.map(|(consumers, columns, split)| of(consumers, columns, split));
        return all.into_iter().chain(pairs).map(Gemm::deepest).collect();
    }
    let ping_pong = Gemm { ping_pong: true, strips: 2, ..of(2, 128, 1) };
    let all = [of(2, 128, 1), of(2, 192, 1), of(2, 256, 1), ping_pong];
    let clusters = |gemm: Gemm| [1, 2].map(|cluster| Gemm { cluster, ..gemm.clone() }.deepest());
    all.into_iter().flat_map(clusters).collect()
}

/// Every shape by every tile.
pub(crate) fn cell(stream: &Stream) -> Result<usize, Error> {
    let (mut random, mut wrong) = (Random(19), 0);
    let library = Context::new(stream.device())?;
    let shapes = if crate::quick() { vec![SMALL] } else { SHAPES.to_vec() };
    for size in shapes {
        let few = size[0] <= 2048;
        let first = &tiles(few)[0].matmul;
        let scalar = first.scalar;
        let case = Case::of(stream, first.clone(), size, |len| {
            let values = random.normal(len, scalar, true);
            let bytes = encode(&values, scalar);
            (values, bytes)
        })?;
        let theirs = beside(stream, &library, &case)?;
        for gemm in tiles(few) {
            wrong += timed(stream, &case, &gemm, &theirs, &mut random)?;
        }
    }
    Ok(wrong)
}

/// The library's matmul of `[x|h]` by `[W;U]`, whose columns lie as ours do.
fn beside(stream: &Stream, library: &Context, case: &Case) -> Result<BoundGemm, Error> {
    let ([m, n, k], scalar) = (case.size, case.matmul.scalar);
    let both = |[first, second]: [usize; 2]| {
        let rows = case.ins[first].1.chunks(k).zip(case.ins[second].1.chunks(k));
        let values: Vec<f64> = rows.flat_map(|(x, h)| [x, h].concat()).collect();
        stream.upload(&encode(&values, scalar))
    };
    let bare = PackedGemm { m, n, k: 2 * k, scalar, transpose_a: false, transpose_b: true };
    let gemm = LibraryGemm { bias: true, activation: Some(Activation::Relu), ..bare.into() };
    let operands = Operands {
        a: both([0, 2])?,
        b: both([1, 3])?,
        c: None,
        d: case.c.clone(),
        bias: Some(case.ins[4].2.clone()),
    };
    library.bind(stream, &gemm, operands)
}

/// Times a kernel beside the library, and says whether either is wrong.
fn timed(
    stream: &Stream,
    case: &Case,
    gemm: &Gemm,
    theirs: &BoundGemm,
    random: &mut Random,
) -> Result<usize, Error> {
    let bound = case.bind_gemm(stream, gemm)?;
    let mut errors = [0.0; 2];
    for (error, launch) in errors
        .iter_mut()
        .zip([&(|| bound.launch()) as &dyn Fn() -> Result<(), Error>, &|| theirs.launch()])
    {
        case.spoil()?;
        launch()?;
        stream.synchronize()?;
        *error = case.error(random, |x| x)?;
    }
    let ([m, n, k], Gemm { columns, stages, cluster, ping_pong, split, .. }) = (case.size, gemm);
    if !crate::quick() {
        let mut times = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            times[0].push(median(stream, || bound.launch())?);
            times[1].push(median(stream, || theirs.launch())?);
        }
        times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
        let [us, cublaslt_us] = [0, 1].map(|of: usize| times[of][ROUNDS / 2]);
        println!(
            "{{\"row\":\"cell\",\"m\":{m},\"n\":{n},\"k\":{k},\"rows\":{},\"columns\":{columns},\
             \"ping_pong\":{ping_pong},\"stages\":{stages},\"cluster\":{cluster},\"split\":{split},\
             \"error_of_bound\":{:.4},\"their_error_of_bound\":{:.4},\"us\":{us:.2},\
             \"us_least_and_most\":[{:.2},{:.2}],\"cublaslt_us\":{cublaslt_us:.2},\"ratio\":{:.3}}}",
            gemm.rows(),
            errors[0],
            errors[1],
            times[0][0],
            times[0][ROUNDS - 1],
            cublaslt_us / us,
        );
    }
    let wrong = errors.iter().filter(|error| **error > 1.0).count();
    if wrong > 0 {
        eprintln!("{m}x{n}x{k} {gemm:?}: {errors:?} of its bound, ours and the library's");
    }
    Ok(wrong)
}
