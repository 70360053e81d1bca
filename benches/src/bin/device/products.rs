//! Matrix products: within their bound on random shapes, and as fast as cuBLASLt's.

use graphene_ir::emit::emit;
use graphene_ir::kernel::Unary;
use graphene_ir::template::gemm::{Edges, Epilogue, Gemm};
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::cublaslt::{Matmul, Product};
use graphene_runtime::device::{Bound, Buffer, Device, compile};

use crate::data::{Random, decode, encode};

/// The shapes of the anchors: `m, n, k`.
const SHAPES: [[usize; 3]; 9] = [
    [4096, 4096, 4096],
    [8192, 8192, 8192],
    [5376, 5376, 2048],
    [12288, 768, 768],
    [12288, 2304, 768],
    [12288, 3072, 768],
    [12288, 768, 3072],
    [4096, 3072, 768],
    [4096, 768, 3072],
];

/// How many random shapes are checked.
const RANDOM_SHAPES: usize = 40;

/// Elements of C that are checked of each.
const SAMPLES: usize = 2000;

/// Launches in a graph, and graphs whose median counts.
const LAUNCHES: usize = 10;
const GRAPHS: usize = 15;

/// A product on the device: its operands on both sides.
struct Case {
    gemm: Gemm,
    size: [usize; 3],
    /// Products of a batch.
    batch: usize,
    /// A, B, the bias and the residual.
    host: [Vec<f64>; 4],
    /// The same, and C.
    buffers: [Buffer; 5],
}

/// The names of [`Case::buffers`].
const NAMES: [&str; 5] = ["A", "B", "bias", "R", "C"];

impl Case {
    fn new(
        device: &Device,
        gemm: Gemm,
        size: [usize; 3],
        random: &mut Random,
    ) -> Result<Case, Error> {
        let [m, n, k] = size;
        let batch = if gemm.batched { 3 } else { 1 };
        let scalar = gemm.scalar;
        let mut normal = |len: usize| random.normal(len, scalar, true);
        let host = [normal(batch * m * k), normal(batch * k * n), normal(n), normal(batch * m * n)];
        let upload = |values: &[f64]| device.upload(&encode(values, scalar));
        let [a, b, bias, residual] = host.each_ref().map(|values| upload(values));
        let c = device.upload(&vec![0xff; batch * m * n * scalar.bytes() as usize])?;
        Ok(Case { gemm, size, batch, host, buffers: [a?, b?, bias?, residual?, c] })
    }

    fn bind(&self, device: &Device) -> Result<Bound, Error> {
        let kernel = self.gemm.kernel().map_err(kernel_error)?;
        let emitted = emit(&kernel).map_err(kernel_error)?;
        let cubin = compile(&emitted.source, kernel.arch, &kernel.name)?;
        let loaded = device.load(&cubin, &emitted.launch)?;
        let [m, n, k] = self.size.map(|size| size as i64);
        let tiles = (m as usize).div_ceil(self.gemm.rows() as usize)
            * (n as usize).div_ceil(self.gemm.columns as usize)
            * self.batch;
        let blocks = tiles.min(device.properties().multiprocessors as usize).max(1) as i64;
        let clusters = (blocks / self.gemm.cluster).max(1);
        let batch = ("batch", self.batch as i64);
        let symbols =
            [("M", m), ("N", n), ("K", k), ("blocks", blocks), ("clusters", clusters), batch];
        let buffers: Vec<(&str, &Buffer)> = NAMES.into_iter().zip(&self.buffers).collect();
        loaded.bind(&buffers, &symbols)
    }

    /// The largest error as a fraction of its bound, over samples of C.
    ///
    /// A sum of k products in single precision errs by at most 4k·2⁻²⁴ of the sum of their absolute
    /// values, a bias being one summand more; GELU multiplies that by 1.13 at most, and is itself
    /// rounded, as is the sum with the residual; the result is rounded to C's type.
    fn error(&self, random: &mut Random) -> Result<f64, Error> {
        let [m, n, k] = self.size;
        let Gemm { a_transposed, b_transposed, epilogue, scalar, .. } = self.gemm;
        let found = decode(&self.buffers[4].download()?, scalar);
        let [a, b, bias, residual] = &self.host;
        let half = if scalar == Scalar::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        let single = 2f64.powi(-24);
        let mut worst = 0f64;
        for _ in 0..SAMPLES {
            let at = [self.batch, m, n].map(|size| random.within(0, size - 1));
            let [p, i, j] = at;
            let a_at = |l: usize| p * m * k + if a_transposed { l * m + i } else { i * k + l };
            let b_at = |l: usize| p * k * n + if b_transposed { l * n + j } else { j * k + l };
            let (mut sum, mut size) = (0.0, 0.0);
            for l in 0..k {
                let term = a[a_at(l)] * b[b_at(l)];
                sum += term;
                size += term.abs();
            }
            if epilogue.bias {
                sum += bias[j];
                size += bias[j].abs();
            }
            let mut error = 4.0 * (k + 1) as f64 * single * size;
            if let Some(function) = epilogue.activation {
                sum = function.value(sum);
                error = 1.13 * error + 2.0 * single * sum.abs();
            }
            let place = (p * m + i) * n + j;
            if epilogue.residual {
                sum += residual[place];
                error += 2.0 * single * residual[place].abs();
            }
            let bound = half * sum.abs() + error;
            let error = (found[place] - sum).abs();
            let share = if error == 0.0 { 0.0 } else { error / bound };
            worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
        }
        Ok(worst)
    }
}

pub(crate) fn kernel_error(error: graphene_ir::Error) -> Error {
    eprintln!("{error}");
    Error::Unsupported { what: "a kernel that is not well formed" }
}

/// Random shapes, types, transpositions, tiles and edges.
pub(crate) fn check(device: &Device) -> Result<usize, Error> {
    let mut random = Random(7);
    let mut wrong = 0;
    for i in 0..RANDOM_SHAPES {
        let moves = i % 5 == 4;
        let size = [(); 3].map(|()| {
            let size = random.within(1, 700);
            if moves { size } else { size.next_multiple_of(8) }
        });
        let gemm = Gemm {
            scalar: if i % 2 == 0 { Scalar::F16 } else { Scalar::Bf16 },
            a_transposed: i / 2 % 2 == 1,
            b_transposed: i / 4 % 2 == 1,
            edges: if moves { Edges::Moves } else { Edges::Bulk },
            columns: [64, 128, 192, 256][random.within(0, 3)],
            consumers: [1, 2][random.within(0, 1)],
            stages: [2, 3, 4][random.within(0, 2)],
            ..Gemm::default()
        };
        let pairs = !moves && gemm.columns % 128 == 0 && i % 3 == 0;
        let gemm = Gemm { cluster: if pairs { 2 } else { 1 }, batched: i % 3 == 1, ..gemm };
        let full = Epilogue { bias: true, activation: Some(Unary::Gelu), residual: true };
        let epilogue = if i % 4 == 2 { full } else { Epilogue::default() };
        let gemm = Gemm { epilogue, ..gemm };
        let case = Case::new(device, gemm, size, &mut random)?;
        case.bind(device)?.launch()?;
        device.synchronize()?;
        let error = case.error(&mut random)?;
        wrong += usize::from(error > 1.0);
        let [m, n, k] = size;
        println!(
            "{{\"row\":\"products\",\"m\":{m},\"n\":{n},\"k\":{k},\"error_of_bound\":{error:.4},\"kernel\":\"{:?}\"}}",
            case.gemm
        );
        if error > 1.0 {
            eprintln!("{m}x{n}x{k} {:?}: {error} of its bound", case.gemm);
        }
    }
    Ok(wrong)
}

/// The tiles that are tried for speed.
fn variants() -> [Gemm; 6] {
    let gemm = Gemm::default();
    [
        gemm.clone(),
        Gemm { cluster: 2, ..gemm.clone() },
        Gemm { columns: 192, ..gemm.clone() },
        Gemm { columns: 128, stages: 5, ..gemm.clone() },
        Gemm { columns: 128, stages: 5, cluster: 2, ..gemm.clone() },
        Gemm { raster: 16, ..gemm },
    ]
}

/// The anchors' shapes beside cuBLASLt, all inside CUDA graphs.
pub(crate) fn speed(device: &Device) -> Result<usize, Error> {
    let mut random = Random(11);
    let mut wrong = 0;
    for size in SHAPES {
        let [m, n, k] = size;
        let mut case = Case::new(device, Gemm::default(), size, &mut random)?;
        let product = Product {
            m,
            n,
            k,
            scalar: case.gemm.scalar,
            transpose_a: case.gemm.a_transposed,
            transpose_b: !case.gemm.b_transposed,
        };
        let [a, b, _, _, c] = case.buffers.clone();
        let library = Matmul::tune(device, product, [&a, &b, &c])?;
        for gemm in variants() {
            case.gemm = gemm;
            let bound = case.bind(device)?;
            bound.launch()?;
            device.synchronize()?;
            let error = case.error(&mut random)?;
            wrong += usize::from(error > 1.0);
            // One after the other, twice, so that a clock that falls favours neither.
            let mut ours = median(device, || bound.launch())?;
            let mut theirs = median(device, || library.launch())?;
            ours = ours.min(median(device, || bound.launch())?);
            theirs = theirs.min(median(device, || library.launch())?);
            let rate = |time: f64| 2.0 * (m * n * k) as f64 / time * 1e-6;
            let Gemm { columns, stages, cluster, raster, .. } = case.gemm;
            println!(
                "{{\"row\":\"speed\",\"m\":{m},\"n\":{n},\"k\":{k},\"columns\":{columns},\
                 \"stages\":{stages},\"cluster\":{cluster},\"raster\":{raster},\
                 \"error_of_bound\":{error:.4},\"us\":{ours:.2},\"tflops\":{:.0},\
                 \"cublaslt_us\":{theirs:.2},\"cublaslt_tflops\":{:.0},\"ratio\":{:.3}}}",
                rate(ours),
                rate(theirs),
                theirs / ours
            );
        }
    }
    Ok(wrong)
}

/// The median of the microseconds of one launch, inside a graph of several.
pub(crate) fn median(
    device: &Device,
    launch: impl Fn() -> Result<(), Error>,
) -> Result<f64, Error> {
    let graph = device.capture(|| (0..LAUNCHES).try_for_each(|_| launch()))?;
    graph.launch()?;
    device.synchronize()?;
    let mut times = (0..GRAPHS)
        .map(|_| device.time(|| graph.launch()).map(|time| time / LAUNCHES as f64))
        .collect::<Result<Vec<f64>, Error>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[GRAPHS / 2])
}
