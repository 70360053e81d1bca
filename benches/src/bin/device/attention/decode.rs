//! Attention of one query of each head, as when tokens are generated: by the kernels that there are for it, beside each other,
//! of keys and values that are in the cache, and of others at each launch.

use graphene_ir::arch::Arch;
use graphene_ir::template::fmha::{Fmha, Mask};
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::Stream;

use super::{By, Case, Compiled, of};
use crate::data::Random;
use crate::matmuls::{median, median_of};

/// Batch, heads of keys, keys, elements of a head; and queries of each: one, or those of heads that share keys.
const SHAPES: [([usize; 4], usize); 13] = [
    ([1, 8, 1024, 64], 4),
    ([1, 32, 1024, 128], 1),
    ([1, 12, 16, 64], 1),
    ([1, 12, 64, 64], 1),
    ([1, 12, 128, 64], 1),
    ([1, 12, 1023, 64], 1),
    ([1, 12, 1024, 64], 1),
    ([1, 12, 4096, 64], 1),
    ([4, 12, 1024, 64], 1),
    ([8, 12, 128, 64], 1),
    ([8, 12, 1024, 64], 1),
    ([8, 12, 4096, 64], 1),
    ([32, 12, 1024, 64], 1),
];

/// Bytes of keys and values of all copies of a case, of which each launch takes the next: several times the last cache.
const COPIES: usize = 256 << 20;
const MOST_COPIES: usize = 64;

/// Warpgroups (the variant `short`, or `decode` of heads that share keys), warps, and threads, of which blocks share keys.
fn variants(dim: usize, queries: usize) -> Vec<(By, Fmha)> {
    let fmha = of(&Fmha { arch: Arch::Sm90a, few: queries as i64, ..Fmha::default() }, dim);
    let short = Fmha { consumers: 1, ..fmha.clone() };
    let threads =
        |parts, consumers| (By::Threads, Fmha { parts, consumers, ..fmha.clone() }.ahead());
    vec![
        (By::Warpgroups, short.clone()),
        (By::Warps, Fmha { keys: 64, arch: Arch::Sm80, ..short }),
        threads(1, 1),
        threads(1, 3),
        threads(2, 1),
        threads(2, 2),
        threads(4, 1),
        threads(4, 2),
        threads(8, 1),
        threads(8, 2),
    ]
}

/// What is checked only: masks of each kind, types, and a kernel for Ampere.
fn checked() -> Vec<(Fmha, [usize; 4])> {
    let eight = Fmha { arch: Arch::Sm90a, consumers: 1, parts: 8, ..Fmha::default() };
    let shape = [2, 3, 333, 64];
    let mut all: Vec<(Fmha, [usize; 4])> = [
        Mask::PerKey(Scalar::F32),
        Mask::PerKey(Scalar::U8),
        Mask::Dense(Scalar::F16),
        Mask::Dense(Scalar::U8),
    ]
    .map(|mask| (Fmha { mask, ..eight.clone() }, shape))
    .to_vec();
    for scalar in [Scalar::Bf16, Scalar::F32] {
        all.push((Fmha { scalar, ..eight.clone() }, shape));
    }
    all.extend([16, 40, 128].map(|dim| (eight.clone(), [2, 3, 100, dim])));
    all.push((Fmha { arch: Arch::Sm80, parts: 1, consumers: 3, ..eight }, shape));
    all.into_iter().map(|(fmha, shape)| (of(&fmha, shape[3]).ahead(), shape)).collect()
}

/// Each shape by each kernel: within its bound, and, but for quick runs, timed twice.
pub(crate) fn check(stream: &Stream) -> Result<usize, Error> {
    let mut random = Random(19);
    let shapes = if crate::quick() { &SHAPES[..4] } else { &SHAPES };
    let timed: Vec<_> =
        shapes.iter().map(|(shape, queries)| variants(shape[3], *queries)).collect();
    let checked = checked();
    let of_checked = checked.iter().map(|(fmha, _)| (By::Threads, fmha));
    let of_timed = timed.iter().flatten().map(|(by, fmha)| (*by, fmha));
    let compiled = Compiled::all(of_checked.chain(of_timed))?;
    let mut wrong = 0;
    for (fmha, shape) in &checked {
        let mut case = Case::new(stream, fmha, *shape, false, &mut random)?;
        case.queries = 1;
        let bound = case.bind(stream, By::Threads, &compiled)?;
        let error = case.launch(stream, &bound, &mut random)?;
        wrong += usize::from(case.report(By::Threads, false, error, None));
    }
    for ((shape, queries), variants) in shapes.iter().zip(&timed) {
        let [batch, heads, keys, dim] = shape;
        let bytes = 4 * batch * heads * keys * dim;
        let copies = if crate::quick() { 1 } else { (COPIES / bytes).clamp(1, MOST_COPIES) };
        let mut cases = Vec::new();
        for _ in 0..copies {
            let plain = of(&Fmha::default(), *dim);
            let mut case = Case::new(stream, &plain, *shape, false, &mut random)?;
            case.queries = *queries;
            cases.push(case);
        }
        for (by, fmha) in variants {
            let mut bound = Vec::new();
            for case in &mut cases {
                case.fmha = fmha.clone();
                bound.push(case.bind(stream, *by, &compiled)?);
            }
            let error = cases[0].launch(stream, &bound[0], &mut random)?;
            let near = median(stream, || bound[0].launch())?;
            let far = median_of(stream, bound.len(), |i| bound[i].launch())?;
            if error > 1.0 {
                eprintln!("decode: {shape:?} {by:?} {fmha:?}: {error} of its bound");
                wrong += 1;
            }
            println!(
                "{{\"row\":\"decode\",\"by\":\"{by:?}\",\"batch\":{batch},\"heads\":{heads},\"queries\":{queries},\
                 \"keys\":{keys},\"dim\":{dim},\"parts\":{},\"consumers\":{},\"error_of_bound\":{error:.4},\
                 \"us_cached\":{near:.2},\"us\":{far:.2},\"gb_s\":{:.0}}}",
                fmha.parts,
                fmha.consumers,
                bytes as f64 / far * 1e-3,
            );
        }
    }
    Ok(wrong)
}
