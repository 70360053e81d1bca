//! BERT's matmuls at 32×384 launched without a pause, beside cuBLASLt's: a GPU soon reaches its limit of power then,
//! and lowers its clocks, so that what a kernel does with energy decides, rather than how long it takes alone.

use std::time::{Duration, Instant};

use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::MatMul;
use graphene_runtime::Error;
use graphene_runtime::device::Stream;
use graphene_runtime::device::cublaslt::Context;

use super::Case;
use super::speed::{Follows, POOL, follows};
use crate::data::{Random, encode};

/// `m, n, k`, and what follows.
const CASES: [([usize; 3], &str); 6] = [
    ([12288, 2304, 768], "none"),
    ([12288, 2304, 768], "bias"),
    ([12288, 768, 768], "bias+residual"),
    ([12288, 3072, 768], "bias"),
    ([12288, 3072, 768], "bias+gelu_half"),
    ([12288, 768, 3072], "bias+residual"),
];

/// Launches in a graph.
const LAUNCHES: usize = 20;

/// How long a kernel runs before it is timed, and while it is.
const BEFORE: Duration = Duration::from_millis(150);
const TIMED: Duration = Duration::from_millis(400);

/// Every case by the two tiles that plans take.
pub(crate) fn sustained(stream: &Stream) -> Result<usize, Error> {
    let mut random = Random(11);
    let library = Context::new(stream.device())?;
    let scalar = MatMul::default().scalar;
    let pool = random.normal(POOL, scalar, false);
    for (size, name) in CASES {
        let epilogue = Epilogue::layer(true, None, true);
        let matmul = MatMul { epilogue, b_transposed: true, ..MatMul::default() };
        let mut operand = 0;
        let full = Case::of(stream, matmul, size, |len| {
            // Sums as large as A's elements, as models have them.
            let scale = if operand == 1 { (size[2] as f64).powf(-0.5) } else { 1.0 };
            let from = pool.iter().cycle().skip(operand * POOL / 7);
            let values: Vec<f64> = from.take(len).map(|x| x * scale).collect();
            operand += 1;
            let bytes = encode(&values, scalar);
            (values, bytes)
        })?;
        let mut known = follows().into_iter();
        let follows = known.find(|follows| follows.name == name).expect("a name of `follows`");
        let bound = follows.bind(stream, &library, &full, false)?;
        let theirs = held(stream, || bound.launch())?;
        for ping_pong in [true, false] {
            let us = ours(stream, &full, &follows, ping_pong)?;
            let [m, n, k] = size;
            println!(
                "{{\"row\":\"sustained\",\"follows\":\"{name}\",\"m\":{m},\"n\":{n},\"k\":{k},\
                 \"ping_pong\":{ping_pong},\"us\":{us:.2},\"cublaslt_us\":{theirs:.2},\"ratio\":{:.3}}}",
                theirs / us
            );
        }
    }
    Ok(0)
}

/// What a kernel with tiles of 128×192 takes, in microseconds.
fn ours(stream: &Stream, full: &Case, follows: &Follows, ping_pong: bool) -> Result<f64, Error> {
    let case = full.followed(follows);
    let strips = if ping_pong { 2 } else { 1 };
    let matmul = case.matmul.clone();
    let gemm = Gemm { matmul, columns: 192, strips, ping_pong, ..Gemm::default() }.deepest();
    let bound = case.bind_gemm(stream, &gemm)?;
    held(stream, || bound.launch())
}

/// The microseconds of one launch after another, without a pause.
fn held(stream: &Stream, launch: impl Fn() -> Result<(), Error>) -> Result<f64, Error> {
    let graph = stream.capture(|| (0..LAUNCHES).try_for_each(|_| launch()))?;
    let run = |time: Duration| -> Result<f64, Error> {
        let (begun, mut launches) = (Instant::now(), 0);
        while begun.elapsed() < time {
            for _ in 0..5 {
                graph.launch()?;
                launches += LAUNCHES;
            }
            stream.synchronize()?;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e6 / launches as f64)
    };
    if crate::quick() {
        return Ok(f64::NAN);
    }
    run(BEFORE)?;
    run(TIMED)
}
