//! Matrix products: within their bound on random shapes; `speed`: as fast as cuBLASLt's.

mod cell;
mod gated;
mod single;
mod speed;
mod sustained;

use std::rc::Rc;

use graphene_ir::arch::Arch;
use graphene_ir::atom::cut_to_tf32;
use graphene_ir::emit::emit;
use graphene_ir::kernel::{Kernel, Unary};
use graphene_ir::schedule::dependent;
use graphene_ir::template::epilogue::{Epilogue, Span};
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::mlp::{Layer, Mlp, Warpgroups};
use graphene_ir::template::multistage::Multistage;
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::{Bound, Buffer, Stream};

use crate::data::{Random, decode, encode};
use crate::near::{By, propagate};
use crate::templates::image;

pub(crate) use self::cell::cell;
pub(crate) use self::gated::gated;
pub(crate) use self::single::single;
pub(crate) use self::speed::speed;
pub(crate) use self::sustained::sustained;

/// How many random shapes are checked.
const RANDOM_SHAPES: usize = 40;

/// Elements of C that are checked of each.
const SAMPLES: usize = 2000;

/// Launches in a graph, and graphs whose median counts.
const LAUNCHES: usize = 10;
const GRAPHS: usize = 15;

/// A matmul on the device: its operands on both sides.
#[derive(Clone)]
struct Case {
    matmul: MatMul,
    size: [usize; 3],
    /// Matmuls of a batch.
    batch: usize,
    /// What is read, by name; the operands of each term, then the epilogue's.
    ins: Vec<(String, Rc<Vec<f64>>, Buffer)>,
    c: Buffer,
}

/// `A`, `A_2`, …
fn numbered(name: &str, number: usize) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}_{}", number + 1) }
}

/// A kernel on the device with its buffers and symbols, among which there may be more than it has.
pub(crate) fn bind(
    stream: &Stream,
    kernel: &Kernel,
    buffers: &[(&str, &Buffer)],
    symbols: &[(&str, i64)],
) -> Result<Bound, Error> {
    let emitted = emit(kernel).map_err(kernel_error)?;
    let cubin = image(kernel, &emitted.source)?;
    stream.device().load(&cubin, &emitted.launch)?.bind(stream, buffers, symbols)
}

impl Case {
    fn new(
        stream: &Stream,
        matmul: MatMul,
        size: [usize; 3],
        random: &mut Random,
    ) -> Result<Case, Error> {
        let scalar = matmul.scalar;
        Case::of(stream, matmul, size, |len| {
            let values = random.normal(len, scalar, true);
            let bytes = encode(&values, scalar);
            (values, bytes)
        })
    }

    /// Of operands with so many elements, and their bytes.
    fn of(
        stream: &Stream,
        matmul: MatMul,
        size: [usize; 3],
        mut elements: impl FnMut(usize) -> (Vec<f64>, Vec<u8>),
    ) -> Result<Case, Error> {
        let [m, n, k] = size;
        let batch = if matmul.batched { 3 } else { 1 };
        let scalar = matmul.scalar;
        let mut ins = Vec::new();
        let mut input = |name: String, len: usize| -> Result<(), Error> {
            let (values, bytes) = elements(len);
            ins.push((name, Rc::new(values), stream.upload(&bytes)?));
            Ok(())
        };
        for term in 0..matmul.terms {
            input(numbered("A", term), batch * m * k)?;
            input(numbered("B", term), batch * k * n)?;
        }
        if matmul.gated {
            input(numbered("B", 1), batch * k * n)?;
        }
        for operand in &matmul.epilogue.operands {
            match operand.span {
                Span::Row => input("bias".to_owned(), n)?,
                Span::Column => input("column".to_owned(), m)?,
                Span::Whole => input("R".to_owned(), batch * m * n)?,
                Span::Number => input("number".to_owned(), 1)?,
            }
        }
        let c = stream.upload(&vec![0xff; batch * m * n * scalar.bytes() as usize])?;
        Ok(Case { matmul, size, batch, ins, c })
    }

    fn bind(
        &self,
        stream: &Stream,
        kernel: &Kernel,
        symbols: &[(&str, i64)],
    ) -> Result<Bound, Error> {
        let symbols = self.symbols(symbols);
        bind(stream, kernel, &self.buffers(), &symbols)
    }

    fn buffers(&self) -> Vec<(&str, &Buffer)> {
        let ins = self.ins.iter().map(|(name, _, buffer)| (name.as_str(), buffer));
        ins.chain([("C", &self.c)]).collect()
    }

    fn symbols<'a>(&self, more: &[(&'a str, i64)]) -> Vec<(&'a str, i64)> {
        let [m, n, k] = self.size.map(|size| size as i64);
        let row = if self.matmul.a_transposed { m } else { k };
        let batch = self.batch as i64;
        let sizes = [("M", m), ("N", n), ("K", k), ("K_2", k), ("batch", batch)];
        [&sizes[..], &[("A_row", row), ("A_row_2", row)], more].concat()
    }

    /// How many blocks and clusters a kernel has: none without a tile, of which those that share one have no other.
    fn blocks(&self, stream: &Stream, gemm: &Gemm) -> [(&'static str, i64); 2] {
        let [m, n, _] = self.size;
        let tiles =
            m.div_ceil(gemm.rows() as usize) * n.div_ceil(gemm.width() as usize) * self.batch;
        let blocks = tiles.min(stream.device().properties().multiprocessors as usize).max(1) as i64;
        let clusters = if gemm.split > 1 { tiles as i64 } else { (blocks / gemm.cluster).max(1) };
        [("blocks", blocks), ("clusters", clusters)]
    }

    fn bind_gemm(&self, stream: &Stream, gemm: &Gemm) -> Result<Bound, Error> {
        // As plans have it: what comes before it waits for predecessors is done while they finish.
        let kernel = dependent(gemm.kernel().map_err(kernel_error)?);
        self.bind(stream, &kernel, &self.blocks(stream, gemm))
    }

    /// What the checks take for an answer is gone.
    fn spoil(&self) -> Result<(), Error> {
        self.c.write(&vec![0xff; self.c.len()])
    }

    /// The largest error as a fraction of its bound, over samples of C; A and B are as `seen` by the
    /// matmuls.
    ///
    /// A sum of k products in single precision errs by at most 4k·2⁻²⁴ of the sum of their absolute
    /// values; what the epilogue makes of that, [`near`](graphene_ir::function::near) knows; the result is rounded to
    /// C's type.
    fn error(&self, random: &mut Random, seen: impl Fn(f64) -> f64) -> Result<f64, Error> {
        let [m, n, k] = self.size;
        let MatMul { a_transposed, b_transposed, epilogue, scalar, terms, gated, .. } =
            &self.matmul;
        let bytes = self.c.download()?;
        let width = scalar.bytes() as usize;
        let (half, single) = (scalar.unit(), 2f64.powi(-24));
        let mut worst = 0f64;
        for _ in 0..SAMPLES {
            let at = [self.batch, m, n].map(|size| random.within(0, size - 1));
            let [p, i, j] = at;
            let a_at = |l: usize| p * m * k + if *a_transposed { l * m + i } else { i * k + l };
            let b_at = |l: usize| p * k * n + if *b_transposed { l * n + j } else { j * k + l };
            let sum = |terms: &[[usize; 2]]| {
                let (mut sum, mut size) = (0.0, 0.0);
                for [a, b] in terms.iter().map(|term| term.map(|of| &self.ins[of].1)) {
                    for l in 0..k {
                        let term = seen(a[a_at(l)]) * seen(b[b_at(l)]);
                        sum += term;
                        size += term.abs();
                    }
                }
                (sum, 4.0 * (k * terms.len()) as f64 * single * size)
            };
            let added: Vec<_> = (0..*terms).map(|term| [2 * term, 2 * term + 1]).collect();
            let factors = 2 * terms + usize::from(*gated);
            let place = (p * m + i) * n + j;
            let mut arguments = vec![sum(&added)];
            for (operand, (_, values, _)) in epilogue.operands.iter().zip(&self.ins[factors..]) {
                let value = match operand.span {
                    Span::Row => values[j],
                    Span::Column => values[i],
                    Span::Whole => values[place],
                    Span::Number => values[0],
                };
                arguments.push((value, 0.0));
            }
            if *gated {
                arguments.push(sum(&[[0, 2]]));
            }
            let (y, error) = propagate(&epilogue.function, &arguments, By::Device)[0];
            // fp16 has no smaller steps than 2⁻²⁴.
            let least = if *scalar == Scalar::F16 { 2f64.powi(-25) } else { 0.0 };
            let bound = half * y.abs() + (1.0 + half) * error + least;
            let found = decode(&bytes[place * width..(place + 1) * width], *scalar)[0];
            let error = (found - y).abs();
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

/// Random shapes, types, transpositions, tiles and edges, by each template.
pub(crate) fn check(stream: &Stream) -> Result<usize, Error> {
    let mut random = Random(7);
    let mut wrong = 0;
    for i in 0..if crate::quick() { 8 } else { RANDOM_SHAPES } {
        let moves = i % 5 == 4;
        let edges = if moves { Edges::Moves } else { Edges::Bulk };
        let mut size = [(); 3].map(|()| {
            let size = random.within(1, 700);
            if moves { size } else { size.next_multiple_of(8) }
        });
        // Where B's columns lie apart, there may be any number of them.
        let odd = !moves && i / 4 % 2 == 0 && i % 3 == 0;
        let results = if odd { Edges::Moves } else { Edges::Bulk };
        size[1] -= usize::from(odd);
        let full = Epilogue::layer(true, Some(Unary::Gelu), true);
        let matmul = MatMul {
            scalar: if i % 2 == 0 { Scalar::F16 } else { Scalar::Bf16 },
            a_transposed: i / 2 % 2 == 1,
            a_strided: i % 3 == 2,
            b_transposed: i / 4 % 2 == 1,
            batched: i % 3 == 1,
            terms: if i % 7 == 6 { 2 } else { 1 },
            gated: false,
            epilogue: if i % 4 == 2 { full } else { Epilogue::default() },
            results,
        };
        let gemm = Gemm {
            matmul: matmul.clone(),
            edges,
            columns: [64, 128, 192, 256][random.within(0, 3)],
            consumers: [1, 2][random.within(0, 1)],
            stages: [2, 3, 4][random.within(0, 2)],
            ..Gemm::default()
        };
        // Consumers ping-pong in every other matmul of two, with tiles of 64 or 128 rows.
        let ping_pong = gemm.consumers == 2 && i % 2 == 0;
        let strips = if ping_pong && gemm.columns <= 192 { 1 + i as i64 / 2 % 2 } else { 1 };
        let cluster = if gemm.edges == Edges::Bulk && i % 3 == 0 { 2 } else { 1 };
        let gemm = Gemm { ping_pong, strips, cluster, ..gemm };
        let pairs = !moves && gemm.columns % 128 == 0 && i % 3 == 0;
        let [weights, prefetch, split] = [(); 3].map(|()| random.within(0, 1) == 1);
        let prefetch = weights && prefetch;
        let gemm = Gemm { cluster: if pairs { 2 } else { 1 }, weights, prefetch, ..gemm };
        let alone = !ping_pong && !pairs && matmul.terms == 1;
        let gemm = match random.within(2, 8) as i64 {
            split_into if split && alone => Gemm { split: split_into, ..gemm }.deepest(),
            _ => gemm,
        };
        let case = Case::new(stream, matmul.clone(), size, &mut random)?;
        let bound = case.bind_gemm(stream, &gemm)?;
        wrong += case.run(stream, &bound, &gemm, &mut random, |x| x)?;
        let mma = Multistage {
            matmul: matmul.clone(),
            edges,
            tile: [[128, 128], [64, 128], [128, 64], [64, 64]][random.within(0, 3)],
            stages: [2, 3, 4][random.within(0, 2)],
            ..Multistage::mma()
        };
        let bound = case.bind(stream, &mma.kernel().map_err(kernel_error)?, &[])?;
        wrong += case.run(stream, &bound, &mma, &mut random, |x| x)?;
        let matmul = MatMul { scalar: Scalar::F32, ..matmul };
        let case = Case::new(stream, matmul.clone(), size, &mut random)?;
        let mma = Multistage { matmul: matmul.clone(), ..mma };
        let bound = case.bind(stream, &mma.kernel().map_err(kernel_error)?, &[])?;
        wrong += case.run(stream, &bound, &mma, &mut random, |x| Unary::Tf32.value(x))?;
        if !matmul.a_transposed && !matmul.b_transposed {
            let gemm = Gemm { matmul: matmul.clone(), ..gemm };
            let bound = case.bind_gemm(stream, &gemm)?;
            wrong += case.run(stream, &bound, &gemm, &mut random, cut_to_tf32)?;
        }
        let parts = if matmul.terms == 1 { [1, 1, 2, 4][random.within(0, 3)] } else { 1 };
        let arch = if parts == 1 { Arch::Sm80 } else { Arch::Sm90a };
        let simt = Multistage { matmul, edges, arch, split: parts, ..Multistage::simt() };
        let bound = case.bind(stream, &simt.kernel().map_err(kernel_error)?, &[])?;
        wrong += case.run(stream, &bound, &simt, &mut random, |x| x)?;
    }
    for width in [32, 64, 128, 256] {
        for transposed in [false, true] {
            let warps = if width == 256 { 8 } else { 4 };
            let layer = Layer { width, transposed, ..Layer::default() };
            let scalars =
                if width > 128 { &[Scalar::F16][..] } else { &[Scalar::F16, Scalar::F32] };
            for &scalar in scalars {
                let of = |count| Mlp { warps, scalar, ..Mlp::alike(count, layer.clone()) };
                wrong += check_layers(stream, of, Mlp::kernel, &mut random)?;
            }
            if width >= 64 {
                let of = |count| Mlp::alike(count, layer.clone());
                let kernel = |mlp: &Mlp| Warpgroups::fitting(mlp, 1).kernel(mlp);
                wrong += check_layers(stream, of, kernel, &mut random)?;
            }
        }
    }
    Ok(wrong)
}

impl Case {
    /// Runs a kernel, and says whether its error is beyond the bound.
    fn run(
        &self,
        stream: &Stream,
        bound: &Bound,
        template: &impl std::fmt::Debug,
        random: &mut Random,
        seen: impl Fn(f64) -> f64,
    ) -> Result<usize, Error> {
        bound.launch()?;
        stream.synchronize()?;
        let error = self.error(random, seen)?;
        let [m, n, k] = self.size;
        println!(
            "{{\"row\":\"matmuls\",\"m\":{m},\"n\":{n},\"k\":{k},\"error_of_bound\":{error:.4},\"kernel\":\"{template:?}\"}}"
        );
        if error > 1.0 {
            eprintln!("{m}x{n}x{k} {template:?}: {error} of its bound");
        }
        Ok(usize::from(error > 1.0))
    }
}

/// Layers that are each right for the values that the layer before gives: run for 1, 2, … layers, the
/// last one is compared with what it makes of the run before.
fn check_layers(
    stream: &Stream,
    of: impl Fn(i64) -> Mlp,
    kernel: impl Fn(&Mlp) -> graphene_ir::Result<Kernel>,
    random: &mut Random,
) -> Result<usize, Error> {
    const LAYERS: usize = 4;
    let mlp = of(1);
    let (rows, width) = (random.within(1, 700), mlp.width as usize);
    let mut input = |len: usize, scale: f64| -> Vec<f64> {
        let values = random.normal(len, mlp.scalar, false);
        let bytes = encode(&values.iter().map(|x| x * scale).collect::<Vec<_>>(), mlp.scalar);
        decode(&bytes, mlp.scalar)
    };
    let mut x = input(rows * width, 1.0);
    let w = input(LAYERS * width * width, (width as f64).powf(-0.5));
    let bias = input(LAYERS * width, 0.1);
    let upload = |values: &[f64]| stream.upload(&encode(values, mlp.scalar));
    let x_there = upload(&x)?;
    let y_there = stream.upload(&vec![0xff; rows * width * mlp.scalar.bytes() as usize])?;
    let Layer { transposed, epilogue, .. } = mlp.layers[0].clone();
    let (half, single) = (mlp.scalar.unit(), 2f64.powi(-24));
    let mut worst = 0f64;
    for layer in 0..LAYERS {
        let kernel = kernel(&of(layer as i64 + 1)).map_err(kernel_error)?;
        // All but the last layer are stacked, if there are several.
        let parts = [0..layer, layer..layer + 1].into_iter().filter(|part| !part.is_empty());
        let mut there = Vec::new();
        for (number, part) in parts.enumerate() {
            let weights = upload(&w[part.start * width * width..part.end * width * width])?;
            there.push((numbered("W", number), weights));
            there.push((
                numbered("bias", number),
                upload(&bias[part.start * width..part.end * width])?,
            ));
        }
        let weights = there.iter().map(|(name, buffer)| (name.as_str(), buffer));
        let buffers: Vec<_> = weights.chain([("X", &x_there), ("Y", &y_there)]).collect();
        bind(stream, &kernel, &buffers, &[("M", rows as i64)])?.launch()?;
        stream.synchronize()?;
        let y = decode(&y_there.download()?, mlp.scalar);
        for (place, found) in y.iter().enumerate() {
            let (row, column) = (place / width, place % width);
            let (stride, other) = if transposed { (width, 1) } else { (1, width) };
            let (mut sum, mut size) = (0.0, 0.0);
            for i in 0..width {
                let weight = w[layer * width * width + i * stride + column * other];
                sum += x[row * width + i] * weight;
                size += (x[row * width + i] * weight).abs();
            }
            let b = bias[layer * width + column];
            let y = epilogue.function.eval(&[sum, b])[0];
            let error = 4.0 * (width + 1) as f64 * single * (size + b.abs());
            let share = (found - y).abs() / (half * y.abs() + 1.01 * error);
            worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
        }
        x = y;
    }
    println!(
        "{{\"row\":\"matmuls\",\"m\":{rows},\"error_of_bound\":{worst:.4},\"kernel\":\"{mlp:?}\"}}"
    );
    if worst > 1.0 {
        eprintln!("{rows} rows by {mlp:?}: {worst} of its bound");
    }
    Ok(usize::from(worst > 1.0))
}

/// The median of the microseconds of one launch, inside a graph of several.
pub(crate) fn median(
    stream: &Stream,
    launch: impl Fn() -> Result<(), Error>,
) -> Result<f64, Error> {
    median_of(stream, LAUNCHES, |_| launch())
}

/// The same of so many launches, which are given their numbers.
pub(crate) fn median_of(
    stream: &Stream,
    launches: usize,
    launch: impl Fn(usize) -> Result<(), Error>,
) -> Result<f64, Error> {
    if crate::quick() {
        return Ok(f64::NAN);
    }
    let graph = stream.capture(|| (0..launches).try_for_each(&launch))?;
    graph.launch()?;
    stream.synchronize()?;
    let mut times = (0..GRAPHS)
        .map(|_| stream.time(|| graph.launch()).map(|time| time / launches as f64))
        .collect::<Result<Vec<f64>, Error>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[GRAPHS / 2])
}
