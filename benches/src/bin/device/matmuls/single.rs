//! BERT's matmuls in single precision beside cuBLASLt's: both by IEEE multiply-adds, and both of TF32.

use graphene_ir::arch::Arch;
use graphene_ir::atom::cut_to_tf32;
use graphene_ir::emit::emit;
use graphene_ir::kernel::Unary;
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::MatMul;
use graphene_ir::template::multistage::{self, Multistage};
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::cublaslt::{BoundGemm, Context};
use graphene_runtime::device::{Kernel, Stream};

use super::speed::{POOL, follows};
use super::{Case, kernel_error, median};
use crate::data::{Random, encode};
use crate::templates::image;

/// `m, n, k`.
const SHAPES: [[usize; 3]; 11] = [
    [12288, 768, 3072],
    [4096, 2304, 768],
    [4096, 768, 768],
    [4096, 3072, 768],
    [4096, 768, 3072],
    [651, 2304, 768],
    [651, 768, 768],
    [651, 3072, 768],
    [651, 768, 3072],
    [128, 768, 3072],
    [128, 3072, 768],
];

/// Tiles by threads, each with a thread's part of them, into how many parts K is split, and stages.
const BY_THREADS: [([i64; 2], [i64; 2], i64, i64); 8] = [
    ([128, 64], [8, 8], 1, 3),
    ([64, 64], [8, 4], 1, 3),
    ([32, 64], [4, 4], 1, 3),
    ([32, 64], [4, 4], 1, 4),
    ([32, 64], [4, 4], 1, 5),
    ([32, 64], [4, 4], 2, 3),
    ([32, 64], [4, 4], 2, 5),
    ([32, 64], [4, 4], 4, 5),
];

/// Tiles by warps, of TF32.
const BY_WARPS: [[i64; 2]; 3] = [[128, 128], [64, 64], [16, 64]];

/// What a kernel is made by.
enum By {
    Threads(Multistage),
    Warps(Multistage),
    Warpgroups(Gemm),
}

/// A tile's kernel.
struct Tried {
    by: By,
    kernel: Kernel,
}

/// Every shape by every tile, with a bias: by IEEE multiply-adds with weights in rows, and of TF32 with weights in columns.
pub(crate) fn single(stream: &Stream) -> Result<usize, Error> {
    let mut random = Random(11);
    let library = Context::new(stream.device())?;
    let pool = random.normal(POOL, Scalar::F32, false);
    let mut known = follows().into_iter();
    let bias = known.find(|follows| follows.name == "bias").expect("a name of `follows`");
    let mut wrong = 0;
    for tf32 in [false, true] {
        let matmul = |epilogue: Epilogue| MatMul {
            epilogue,
            scalar: Scalar::F32,
            b_transposed: !tf32,
            ..MatMul::default()
        };
        let all = all(stream, &matmul(bias.epilogue.clone()), tf32)?;
        for size in SHAPES {
            let mut operand = 0;
            let full = Case::of(stream, matmul(Epilogue::layer(true, None, true)), size, |len| {
                let from = pool.iter().copied().cycle().skip(operand * POOL / 7);
                let values: Vec<f64> = from.take(len).collect();
                operand += 1;
                let bytes = encode(&values, Scalar::F32);
                (values, bytes)
            })?;
            let theirs = bias.bind(stream, &library, &full, tf32)?;
            let case = full.followed(&bias);
            for tried in &all {
                wrong += case.beside(stream, tried, &theirs, &mut random)?;
            }
        }
    }
    Ok(wrong)
}

impl Case {
    /// Times a kernel beside the library, and says whether it is wrong.
    fn beside(
        &self,
        stream: &Stream,
        Tried { by, kernel }: &Tried,
        theirs: &BoundGemm,
        random: &mut Random,
    ) -> Result<usize, Error> {
        let blocks = match by {
            By::Warpgroups(gemm) => &self.blocks(stream, gemm)[..],
            By::Threads(_) | By::Warps(_) => &[],
        };
        let bound = kernel.bind(stream, &self.buffers(), &self.symbols(blocks))?;
        self.spoil()?;
        bound.launch()?;
        stream.synchronize()?;
        let error = match by {
            By::Threads(_) => self.error(random, |x| x)?,
            By::Warps(_) => self.error(random, |x| Unary::Tf32.value(x))?,
            By::Warpgroups(_) => self.error(random, cut_to_tf32)?,
        };
        // One after the other, twice, so that a clock that falls favours neither.
        let (mut us, mut library_us) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..2 {
            us = us.min(median(stream, || bound.launch())?);
            library_us = library_us.min(median(stream, || theirs.launch())?);
        }
        let [m, n, k] = self.size;
        let (name, [rows, columns], stages, split) = match by {
            By::Threads(simt) => ("threads", simt.tile, simt.stages, simt.split),
            By::Warps(mma) => ("warps", mma.tile, mma.stages, 1),
            By::Warpgroups(gemm) => {
                let name = if gemm.ping_pong { "ping_pong" } else { "warpgroups" };
                (name, [gemm.rows(), gemm.columns], gemm.stages, gemm.split)
            }
        };
        println!(
            "{{\"row\":\"single\",\"by\":\"{name}\",\"m\":{m},\"n\":{n},\"k\":{k},\"rows\":{rows},\
             \"columns\":{columns},\"stages\":{stages},\"split\":{split},\"error_of_bound\":{error:.4},\
             \"us\":{us:.2},\"tflops\":{:.1},\"cublaslt_us\":{library_us:.2},\"ratio\":{:.3}}}",
            2.0 * (m * n * k) as f64 / us * 1e-6,
            library_us / us
        );
        Ok(usize::from(error > 1.0))
    }
}

fn all(stream: &Stream, matmul: &MatMul, tf32: bool) -> Result<Vec<Tried>, Error> {
    let (matmul, arch) = (|| matmul.clone(), Arch::Sm90a);
    let load = |by: By| {
        let kernel = match &by {
            By::Threads(matmul) | By::Warps(matmul) => matmul.kernel(),
            By::Warpgroups(gemm) => gemm.kernel(),
        };
        let kernel = kernel.map_err(kernel_error)?;
        let emitted = emit(&kernel).map_err(kernel_error)?;
        let kernel = stream.device().load(&image(&kernel, &emitted.source)?, &emitted.launch)?;
        Ok(Tried { by, kernel })
    };
    if !tf32 {
        let simts = BY_THREADS.map(|(tile, thread, split, stages)| Multistage {
            matmul: matmul(),
            arch,
            tile,
            by: multistage::By::Threads(thread),
            split,
            stages,
            ..Multistage::simt()
        });
        return simts.map(|simt| load(By::Threads(simt))).into_iter().collect();
    }
    let warps = BY_WARPS.map(|tile| Multistage {
        matmul: matmul(),
        arch,
        tile,
        depth: 16,
        ..Multistage::mma()
    });
    let gemm = Gemm { matmul: matmul(), ..Gemm::default() };
    let small = Gemm { consumers: 1, columns: 64, weights: true, prefetch: true, ..gemm.clone() };
    let ping_pong = Gemm { ping_pong: true, strips: 2, ..gemm.clone() };
    let warpgroups = [
        Gemm { columns: 192, ..ping_pong.clone() }.deepest(),
        Gemm { columns: 128, ..ping_pong }.deepest(),
        Gemm { columns: 256, ..gemm.clone() }.deepest(),
        Gemm { columns: 192, ..gemm.clone() }.deepest(),
        Gemm { columns: 128, ..gemm }.deepest(),
        Gemm { columns: 128, ..small.clone() }.deepest(),
        small.clone().deepest(),
        Gemm { split: 2, stages: 6, ..small.clone() },
        Gemm { split: 4, stages: 4, ..small },
    ];
    let warps = warps.into_iter().map(By::Warps);
    warps.chain(warpgroups.into_iter().map(By::Warpgroups)).map(load).collect()
}
