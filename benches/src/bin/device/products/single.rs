//! BERT's products in single precision beside cuBLASLt's, both by IEEE multiply-adds.

use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::product::Product;
use graphene_ir::template::simt::Simt;
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::cublaslt::Context;
use graphene_runtime::device::{Device, Kernel};

use super::speed::{Follows, POOL, follows};
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

/// The tiles that plans take, each with a thread's part of them, and into how many parts K is split.
const TILES: [([i64; 2], [i64; 2], i64); 5] = [
    ([128, 64], [8, 8], 1),
    ([64, 64], [8, 4], 1),
    ([32, 64], [4, 4], 1),
    ([32, 64], [4, 4], 2),
    ([32, 64], [4, 4], 4),
];

/// Every shape by every tile, with a bias.
pub(crate) fn single(device: &Device) -> Result<usize, Error> {
    let mut random = Random(11);
    let library = Context::new(device)?;
    let pool = random.normal(POOL, Scalar::F32, false);
    let mut known = follows().into_iter();
    let bias = known.find(|follows| follows.name == "bias").expect("a name of `follows`");
    let kernels = kernels(device, &bias)?;
    let mut wrong = 0;
    for size in SHAPES {
        let epilogue = Epilogue::layer(true, None, true);
        let product =
            Product { epilogue, scalar: Scalar::F32, b_transposed: true, ..Product::default() };
        let mut operand = 0;
        let full = Case::of(device, product, size, |len| {
            let from = pool.iter().copied().cycle().skip(operand * POOL / 7);
            let values: Vec<f64> = from.take(len).collect();
            operand += 1;
            let bytes = encode(&values, Scalar::F32);
            (values, bytes)
        })?;
        let theirs = bias.bind(device, &library, &full)?;
        let case = full.followed(&bias);
        for (simt, kernel) in &kernels {
            let bound = kernel.bind(&case.buffers(), &case.symbols(&[]))?;
            case.spoil()?;
            bound.launch()?;
            device.synchronize()?;
            let error = case.error(&mut random, |x| x)?;
            // One after the other, twice, so that a clock that falls favours neither.
            let (mut us, mut library_us) = (f64::INFINITY, f64::INFINITY);
            for _ in 0..2 {
                us = us.min(median(device, || bound.launch())?);
                library_us = library_us.min(median(device, || theirs.launch())?);
            }
            let ([m, n, k], Simt { tile: [rows, columns], split, .. }) = (size, simt);
            println!(
                "{{\"row\":\"single\",\"m\":{m},\"n\":{n},\"k\":{k},\"rows\":{rows},\"columns\":{columns},\
                 \"split\":{split},\"error_of_bound\":{error:.4},\"us\":{us:.2},\"tflops\":{:.1},\
                 \"cublaslt_us\":{library_us:.2},\"ratio\":{:.3}}}",
                2.0 * (m * n * k) as f64 / us * 1e-6,
                library_us / us
            );
            wrong += usize::from(error > 1.0);
        }
    }
    Ok(wrong)
}

fn kernels(device: &Device, follows: &Follows) -> Result<Vec<(Simt, Kernel)>, Error> {
    let made = TILES.map(|(tile, thread, split)| {
        let epilogue = follows.epilogue.clone();
        let product =
            Product { epilogue, scalar: Scalar::F32, b_transposed: true, ..Product::default() };
        let simt = Simt { product, arch: Arch::Sm90a, tile, thread, split, ..Simt::default() };
        let kernel = simt.kernel().map_err(kernel_error)?;
        let emitted = emit(&kernel).map_err(kernel_error)?;
        let cubin = image(&kernel, &emitted.source)?;
        Ok((simt, device.load(&cubin, &emitted.launch)?))
    });
    made.into_iter().collect()
}
