//! Attention: within its bound on samples of each shape, in every way that masks are; and how fast it is.

mod bound;
pub(crate) mod decode;

use std::collections::HashMap;

use graphene_ir::emit::emit;
use graphene_ir::kernel::{Kernel, Number, Unary};
use graphene_ir::template::fmha::{Fmha, Mask};
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::{self, Bound, Buffer, Cubin, Stream};

use crate::data::{Random, decode, encode};
use crate::matmuls::{kernel_error, median};
use crate::templates::image;

/// The anchors' shapes: batch, heads, queries and keys, elements of a head.
const SHAPES: [[usize; 4]; 8] = [
    [32, 12, 128, 64],
    [32, 12, 384, 64],
    [32, 16, 384, 64],
    [1, 12, 128, 64],
    [8, 16, 2048, 64],
    [32, 16, 384, 128],
    [4, 16, 4096, 128],
    [3, 5, 197, 64],
];

/// Shapes that are only checked, with every mask.
const CHECKED: [[usize; 4]; 2] = [[2, 3, 200, 64], [3, 2, 77, 64]];

/// Elements of a head that are checked beside the usual ones.
const DIMS: [usize; 4] = [16, 40, 96, 128];

/// Rows that are checked of each.
const SAMPLES: usize = 50;

/// Numbers that look random; longer operands repeat them.
const PERIOD: usize = 1_048_573;

/// Who makes the matmuls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Warpgroups,
    /// Warps' tensor cores, or single threads in single precision.
    Warps,
    /// Threads, of few queries.
    Threads,
}

/// Attention on the device: queries, keys, values and mask on both sides, and the result. All but the
/// mask lie as `[batch, rows, heads, dim]`; it is `[batch, keys]` or `[batch, rows, keys]`.
struct Case {
    fmha: Fmha,
    /// Batch, heads, keys, elements of a head.
    shape: [usize; 4],
    /// As many as keys, or the first of them.
    queries: usize,
    host: [Vec<f64>; 4],
    buffers: [Buffer; 5],
}

/// The names of [`Case::buffers`].
const NAMES: [&str; 5] = ["Q", "K", "V", "mask", "O"];

/// Kernels by their sources, each compiled once, before the first is launched and by all cores: that
/// takes longer than anything else here.
struct Compiled(HashMap<String, Cubin>);

impl Compiled {
    fn all<'a>(kernels: impl Iterator<Item = (By, &'a Fmha)>) -> Result<Compiled, Error> {
        let mut sources: Vec<(String, Kernel)> = Vec::new();
        for (by, fmha) in kernels {
            let kernel = by.kernel(fmha)?;
            sources.push((emit(&kernel).map_err(kernel_error)?.source, kernel));
        }
        sources.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        sources.dedup_by(|a, b| a.0 == b.0);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let each = sources.len().div_ceil(cores).max(1);
        let part = |sources: &[(String, Kernel)]| -> Result<Vec<(String, Cubin)>, Error> {
            let one =
                |(source, kernel): &(String, Kernel)| Ok((source.clone(), image(kernel, source)?));
            sources.iter().map(one).collect()
        };
        let parts: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                sources.chunks(each).map(|sources| scope.spawn(move || part(sources))).collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        let mut all = HashMap::new();
        for part in parts {
            all.extend(part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(Compiled(all))
    }

    fn kernel(&self, stream: &Stream, kernel: &Kernel) -> Result<device::Kernel, Error> {
        let emitted = emit(kernel).map_err(kernel_error)?;
        stream.device().load(&self.0[&emitted.source], &emitted.launch)
    }
}

impl By {
    fn kernel(self, fmha: &Fmha) -> Result<Kernel, Error> {
        let kernel = match self {
            By::Warpgroups => fmha.kernel(),
            By::Warps => fmha.ampere(),
            By::Threads => fmha.decode(),
        };
        kernel.map_err(kernel_error)
    }
}

impl Case {
    fn new(
        stream: &Stream,
        fmha: &Fmha,
        shape: [usize; 4],
        outliers: bool,
        random: &mut Random,
    ) -> Result<Case, Error> {
        let [batch, heads, rows, dim] = shape;
        let len = batch * heads * rows * dim;
        let [q, k, v] = [(); 3].map(|()| {
            let period = random.normal(len.min(PERIOD), fmha.scalar, outliers);
            period.into_iter().cycle().take(len).collect::<Vec<f64>>()
        });
        let upload = |values: &[f64], scalar| stream.upload(&encode(values, scalar));
        let [to_q, to_k, to_v] = [&q, &k, &v].map(|values| upload(values, fmha.scalar));
        let seen = |x: f64| if fmha.tf32 { Unary::Tf32.value(x) } else { x };
        let [q, k, v] = [q, k, v].map(|values| values.into_iter().map(seen).collect());
        let o = stream.upload(&vec![0xff; len * fmha.scalar.bytes() as usize])?;
        let mut case = Case {
            fmha: fmha.clone(),
            shape,
            queries: rows,
            host: [q, k, v, Vec::new()],
            buffers: [to_q?, to_k?, to_v?, upload(&[0.0], Scalar::F32)?, o],
        };
        case.mask(stream, fmha, random)?;
        Ok(case)
    }

    /// Goes on with other parameters, and their mask. One of an element a key leaves out what is padded,
    /// as BERT does: the last fifth of the keys of every other sequence, or of bytes that fill scores all
    /// keys of every third. One of an element a score forbids a third of them, and if it fills them all of
    /// every third row; or it adds something in -4..4.
    fn mask(&mut self, stream: &Stream, fmha: &Fmha, random: &mut Random) -> Result<(), Error> {
        let [batch, _, rows, _] = self.shape;
        self.fmha = fmha.clone();
        let fills = fmha.fill.0.is_finite();
        let padded = |i: usize| {
            (i / rows % 2 == 1 && i % rows >= rows - rows / 5) || (fills && i / rows % 3 == 2)
        };
        let (scalar, mask): (Scalar, Vec<f64>) = match fmha.mask {
            Mask::None => return Ok(()),
            Mask::PerKey(Scalar::U8) => {
                let keep = |i: usize| f64::from(u8::from(!padded(i)));
                (Scalar::U8, (0..batch * rows).map(keep).collect())
            }
            Mask::PerKey(scalar) => {
                let bias = |i: usize| if padded(i) { -10_000.0 } else { 0.0 };
                (scalar, (0..batch * rows).map(bias).collect())
            }
            Mask::Dense(scalar) => {
                let mut element = |i: usize| match (scalar, random.within(0, 2)) {
                    (Scalar::U8, third) => {
                        f64::from(u8::from(third > 0 && !(fills && i / rows % 3 == 2)))
                    }
                    (_, 0) => f64::NEG_INFINITY,
                    (_, _) => random.within(0, 64) as f64 / 8.0 - 4.0,
                };
                (scalar, (0..batch * rows * rows).map(&mut element).collect())
            }
        };
        let bytes = encode(&mask, scalar);
        // What the type holds.
        self.host[3] = decode(&bytes, scalar);
        self.buffers[3] = stream.upload(&bytes)?;
        Ok(())
    }

    fn bind(&self, stream: &Stream, by: By, compiled: &Compiled) -> Result<Bound, Error> {
        let [batch, heads, rows, dim] = self.shape.map(|size| size as i64);
        let queries = self.queries as i64;
        let tiles = batch * heads * ((queries + self.fmha.rows() - 1) / self.fmha.rows());
        let blocks = match by {
            By::Warpgroups => tiles.min(i64::from(stream.device().properties().multiprocessors)),
            By::Warps | By::Threads => tiles,
        };
        let kernel = compiled.kernel(stream, &by.kernel(&self.fmha)?)?;
        let mut symbols = vec![
            ("batch", batch),
            ("heads", heads),
            ("kv_heads", heads),
            ("queries", queries),
            ("keys", rows),
            ("blocks", blocks),
        ];
        for names in [
            ["q_batch", "q_head", "q_row"],
            ["k_batch", "k_head", "k_row"],
            ["v_batch", "v_head", "v_row"],
            ["o_batch", "o_head", "o_row"],
        ] {
            symbols.extend(names.into_iter().zip([rows * heads * dim, dim, heads * dim]));
        }
        match self.fmha.mask {
            Mask::None => {}
            Mask::PerKey(_) => symbols.push(("mask_batch", rows)),
            Mask::Dense(_) => {
                let strides = [rows * rows, 0, rows];
                symbols.extend(["mask_batch", "mask_head", "mask_row"].into_iter().zip(strides));
            }
        }
        let masked = self.fmha.mask != Mask::None;
        let buffers: Vec<(&str, &Buffer)> = NAMES
            .into_iter()
            .zip(&self.buffers)
            .filter(|(name, _)| masked || *name != "mask")
            .collect();
        kernel.bind(stream, &buffers, &symbols)
    }

    /// Launches once, and says how far the result is from what it should be.
    fn launch(&self, stream: &Stream, bound: &Bound, random: &mut Random) -> Result<f64, Error> {
        self.buffers[4].write(&vec![0xff; self.buffers[4].len()])?;
        bound.launch()?;
        stream.synchronize()?;
        self.error(random)
    }

    /// A line of JSON; whether the result is wrong.
    fn report(&self, by: By, outliers: bool, error: f64, time: Option<f64>) -> bool {
        let [batch, heads, rows, dim] = self.shape;
        let queries = self.queries;
        let Fmha { scalar, tf32, consumers, keys, stages, causal, mask, fill, .. } = &self.fmha;
        let speed = time.map_or(String::new(), |time| {
            let operations = 4.0 * (batch * heads * queries * rows * dim) as f64;
            let rate = operations / time * 1e-6 / if *causal { 2.0 } else { 1.0 };
            format!(",\"us\":{time:.2},\"tflops\":{rate:.0}")
        });
        println!(
            "{{\"row\":\"attention\",\"by\":\"{by:?}\",\"type\":\"{scalar:?}\",\"tf32\":{tf32},\"batch\":{batch},\
             \"heads\":{heads},\"rows\":{rows},\"dim\":{dim},\"consumers\":{consumers},\
             \"keys\":{keys},\"stages\":{stages},\"causal\":{causal},\"mask\":\"{mask:?}\",\
             \"fill\":\"{}\",\"outliers\":{outliers},\"error_of_bound\":{error:.4}{speed}}}",
            fill.0
        );
        let wrong = error > 1.0;
        if wrong {
            eprintln!("{:?} {by:?} {:?}: {error} of its bound", self.shape, self.fmha);
        }
        wrong
    }
}

/// Of heads of so many elements.
fn of(fmha: &Fmha, dim: usize) -> Fmha {
    let scale = Number(f64::from((1.0 / (dim as f64).sqrt()) as f32));
    Fmha { head_dim: dim as i64, value_dim: dim as i64, scale, ..fmha.clone() }
}

/// The tiles and masks that are timed.
fn variants(dim: usize) -> Vec<Fmha> {
    let fmha = of(&Fmha::default(), dim);
    let with = |consumers, keys, stages| Fmha { consumers, keys, stages, ..fmha.clone() };
    let mut all = vec![with(2, 128, 2), with(1, 128, 2), with(2, 64, 3), with(1, 64, 3)];
    if dim <= 64 {
        all.extend([with(3, 128, 2), with(3, 64, 3), with(2, 192, 2), with(3, 96, 3)]);
    }
    let masked = |mask: Mask| Fmha { mask, ..fmha.clone() };
    let bytes = masked(Mask::PerKey(Scalar::U8));
    let filled = Fmha { fill: Number(f64::from(f32::MIN)), ..bytes.clone() };
    let causal = Fmha { causal: true, ..fmha.clone() };
    let masks =
        [masked(Mask::PerKey(Scalar::F32)), masked(Mask::PerKey(Scalar::F16)), bytes, filled];
    if dim <= 64 {
        let tall = |fmha: &Fmha| Fmha { consumers: 3, keys: 96, stages: 3, ..fmha.clone() };
        all.extend(masks.iter().chain([&causal]).map(tall));
    }
    all.extend(masks);
    all.push(causal);
    all
}

/// Every mask that there is, with operands of a type.
fn masks(scalar: Scalar) -> Vec<Fmha> {
    let masked = |mask: Mask| Fmha { scalar, mask, ..Fmha::default() };
    let filled = |mask: Mask, fill: f64| Fmha { fill: Number(fill), ..masked(mask) };
    vec![
        masked(Mask::None),
        Fmha { causal: true, ..masked(Mask::None) },
        masked(Mask::PerKey(Scalar::F32)),
        masked(Mask::PerKey(scalar)),
        masked(Mask::PerKey(Scalar::U8)),
        filled(Mask::PerKey(Scalar::U8), f64::from(f32::MIN)),
        masked(Mask::Dense(scalar)),
        masked(Mask::Dense(Scalar::U8)),
        filled(Mask::Dense(Scalar::U8), -1e9),
    ]
}

/// Every mask, and every number of elements, with every way of making matmuls.
fn checked() -> Vec<(By, Fmha, [usize; 4])> {
    let mut all = Vec::new();
    for (by, scalar, tf32) in [
        (By::Warpgroups, Scalar::F16, false),
        (By::Warps, Scalar::F16, false),
        (By::Warps, Scalar::Bf16, false),
        (By::Warps, Scalar::F32, false),
        (By::Warps, Scalar::F32, true),
    ] {
        let tiles = |fmha: Fmha| match (by, scalar) {
            (By::Warpgroups | By::Threads, _) => fmha,
            (By::Warps, Scalar::F32) => Fmha { tf32, consumers: 1, keys: 32, ..fmha },
            (By::Warps, _) => Fmha { consumers: 1, keys: 64, ..fmha },
        };
        let dims = DIMS.map(|dim| ([2, 3, 100, dim], Fmha { scalar, ..Fmha::default() }));
        let masked = masks(scalar).into_iter();
        let masked = masked.flat_map(|fmha| CHECKED.map(|shape| (shape, fmha.clone())));
        let each = |(shape, fmha): ([usize; 4], Fmha)| (by, of(&tiles(fmha), shape[3]), shape);
        all.extend(masked.chain(dims).map(each));
    }
    all
}

/// Every mask and every way of making matmuls, every other case with outliers among its operands;
/// then every shape with every variant, timed.
pub(crate) fn check(stream: &Stream) -> Result<usize, Error> {
    let (checked, mut random) = (checked(), Random(13));
    let dims = if crate::quick() { &[][..] } else { &[64, 128] };
    let timed: Vec<Fmha> = dims.iter().flat_map(|&dim| variants(dim)).collect();
    let of_timed = timed.iter().map(|fmha| (By::Warpgroups, fmha));
    let of_checked = checked.iter().map(|(by, fmha, _)| (*by, fmha));
    let compiled = Compiled::all(of_checked.chain(of_timed))?;
    let mut wrong = 0;
    for (number, (by, fmha, shape)) in checked.iter().enumerate() {
        let outliers = number % 2 == 1;
        let case = Case::new(stream, fmha, *shape, outliers, &mut random)?;
        let bound = case.bind(stream, *by, &compiled)?;
        let error = case.launch(stream, &bound, &mut random)?;
        wrong += usize::from(case.report(*by, outliers, error, None));
    }
    for shape in SHAPES.into_iter().filter(|_| !crate::quick()) {
        let plain = of(&Fmha::default(), shape[3]);
        let mut case = Case::new(stream, &plain, shape, false, &mut random)?;
        for fmha in variants(shape[3]) {
            case.mask(stream, &fmha, &mut random)?;
            let bound = case.bind(stream, By::Warpgroups, &compiled)?;
            let error = case.launch(stream, &bound, &mut random)?;
            let time = median(stream, || bound.launch())?;
            wrong += usize::from(case.report(By::Warpgroups, false, error, Some(time)));
        }
    }
    Ok(wrong)
}
