//! Matrix products: within their bound on random shapes, and as fast as cuBLASLt's.

use graphene_ir::emit::emit;
use graphene_ir::template::gemm::{Edges, Gemm};
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
    host: [Vec<f64>; 2],
    buffers: [Buffer; 3],
}

impl Case {
    fn new(
        device: &Device,
        gemm: Gemm,
        size: [usize; 3],
        random: &mut Random,
    ) -> Result<Case, Error> {
        let [m, n, k] = size;
        let scalar = gemm.scalar;
        let a = random.normal(m * k, scalar, true);
        let b = random.normal(k * n, scalar, true);
        let c = device.upload(&vec![0xff; m * n * scalar.bytes() as usize])?;
        let buffers = [device.upload(&encode(&a, scalar))?, device.upload(&encode(&b, scalar))?, c];
        Ok(Case { gemm, size, host: [a, b], buffers })
    }

    fn bind(&self, device: &Device) -> Result<Bound, Error> {
        let kernel = self.gemm.kernel().map_err(kernel_error)?;
        let emitted = emit(&kernel).map_err(kernel_error)?;
        let cubin = compile(&emitted.source, kernel.arch, &kernel.name)?;
        let loaded = device.load(&cubin, &emitted.launch)?;
        let [m, n, k] = self.size.map(|size| size as i64);
        let tiles = (m as usize).div_ceil(self.gemm.rows() as usize)
            * (n as usize).div_ceil(self.gemm.columns as usize);
        let blocks = tiles.min(device.properties().multiprocessors as usize).max(1) as i64;
        let [a, b, c] = &self.buffers;
        let clusters = (blocks / self.gemm.cluster).max(1);
        let symbols = [("M", m), ("N", n), ("K", k), ("blocks", blocks), ("clusters", clusters)];
        loaded.bind(&[("A", a), ("B", b), ("C", c)], &symbols)
    }

    /// The largest error as a fraction of its bound, over samples of C.
    fn error(&self, random: &mut Random) -> Result<f64, Error> {
        let [m, n, k] = self.size;
        let found = decode(&self.buffers[2].download()?, self.gemm.scalar);
        let [a, b] = &self.host;
        let a_at =
            |i: usize, l: usize| a[if self.gemm.a_transposed { l * m + i } else { i * k + l }];
        let b_at =
            |l: usize, j: usize| b[if self.gemm.b_transposed { l * n + j } else { j * k + l }];
        let unit = if self.gemm.scalar == Scalar::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        let mut worst = 0f64;
        for _ in 0..SAMPLES {
            let (i, j) = (random.within(0, m - 1), random.within(0, n - 1));
            let (mut exact, mut size) = (0.0, 0.0);
            for l in 0..k {
                let term = a_at(i, l) * b_at(l, j);
                exact += term;
                size += term.abs();
            }
            let bound = unit * exact.abs() + 4.0 * k as f64 * 2f64.powi(-24) * size;
            let error = (found[i * n + j] - exact).abs();
            let share = if error == 0.0 { 0.0 } else { error / bound };
            worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
        }
        Ok(worst)
    }
}

fn kernel_error(error: graphene_ir::Error) -> Error {
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
        let gemm = Gemm { cluster: if pairs { 2 } else { 1 }, ..gemm };
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
        let [a, b, c] = case.buffers.clone();
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
fn median(device: &Device, launch: impl Fn() -> Result<(), Error>) -> Result<f64, Error> {
    let graph = device.capture(|| (0..LAUNCHES).try_for_each(|_| launch()))?;
    graph.launch()?;
    device.synchronize()?;
    let mut times = (0..GRAPHS)
        .map(|_| device.time(|| graph.launch()).map(|time| time / LAUNCHES as f64))
        .collect::<Result<Vec<f64>, Error>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[GRAPHS / 2])
}
