//! The library executor: cuBLASLt's matmuls beside double precision, whole models beside the CPU and beside fused
//! execution, and each matmul of a model beside a bare call.

use std::collections::HashSet;
use std::path::Path;
use std::time::Instant;

use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, Reading, import, read_model};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::testdata::read_data_set;
use graphene_frontend::text::{content_hash, parse};
use graphene_fusion::{AttentionBy, Granularity, plan, plan_in, plan_library};
use graphene_ir::target::Target;
use graphene_ir::tensor::Scalar;
use graphene_models::{Options, build};
use graphene_runtime::device::cublaslt::{Activation, Context, Gemm, Matrix, Operands, PackedGemm};
use graphene_runtime::device::{Buffer, Stream};
use graphene_runtime::gpu::{Executable, Kernels, Module};
use graphene_runtime::{Error, cpu};

use crate::data::{Random, decode, encode};
use crate::matmuls::median;
use crate::models::{cosine, inputs, numbers};
use crate::precision::Precision;

/// A model of the zoo, what it computes in, batch and sequence of each run, and whether its matmuls are timed one by
/// one.
type Row = (&'static str, Precision, &'static [[usize; 2]], bool);

const ZOO: &[Row] = &[
    ("bert-base-tiny", Precision::Single, &[[2, 16], [3, 29]], false),
    ("bert-base-tiny", Precision::Half(DType::F16), &[[3, 29]], false),
    ("bert-base-tiny", Precision::Half(DType::BF16), &[[3, 29]], false),
    ("bert-base", Precision::Half(DType::F16), &[[1, 128], [7, 93], [32, 128], [32, 384]], true),
    ("bert-base", Precision::Single, &[[1, 128], [7, 93], [32, 128]], true),
    ("bert-base", Precision::Tf32, &[[1, 128], [7, 93], [32, 128]], true),
];

const FIXTURES: [&str; 12] = [
    "bert-tiny",
    "bert-tiny-dynamo",
    "bert-tiny-opset13",
    "bert-tiny-sdpa",
    "distilroberta-tiny",
    "fmha",
    "layernorm-17",
    "layernorm-decomposed",
    "lstm",
    "lstm-cell-relu",
    "mlp-8x64",
    "mlp-gelu-4x128",
];

/// The share of a bare call's speed that a matmul of a model has at least.
const ENOUGH: f64 = 0.97;

pub(crate) fn check(stream: &Stream) -> Result<usize, Error> {
    let mut wrong = matmuls(stream)?;
    let mut count = |label: &str, found: Result<usize, Error>| match found {
        Ok(found) => wrong += found,
        Err(error) => {
            eprintln!("library: {label}: {error}");
            wrong += 1;
        }
    };
    for fixture in FIXTURES {
        count(fixture, fixture_runs(stream, fixture));
    }
    for (name, op, directions, gates, attributes) in LAYERS {
        for elements in [None, Some(DType::F16)] {
            let graph = layer(op, *directions, *gates, attributes)?;
            let sizes = [("b", 5), ("s", 7)].map(|(name, size)| (Symbol::new(name), size));
            let sizes = sizes.into_iter().collect::<Vec<_>>();
            let precision = Precision::of(elements);
            count(name, model(stream, name, &graph, precision, &[sizes], false));
        }
    }
    for (name, precision, shapes, each) in ZOO {
        let built = build(name, &Options::default()).expect("the zoo has it");
        let (bytes, (_, weights)) = (built.encode(), built.into_parts());
        let graph = import(bytes, &weights, &ImportOptions::default()).expect("it imports").graph;
        let sizes = |shape: &[usize; 2]| {
            let shape = shape.iter().map(|&size| size as i64);
            graph.symbols().into_iter().zip(shape).collect::<Vec<_>>()
        };
        let sizes: Vec<_> = shapes.iter().map(sizes).collect();
        count(name, model(stream, name, &graph, *precision, &sizes, *each));
    }
    Ok(wrong)
}

fn fixture_runs(stream: &Stream, name: &str) -> Result<usize, Error> {
    let folder = Path::new("frontend/tests/data/fixtures").join(name);
    let Ok((bytes, weights)) = read_model(folder.join("model.onnx"), Reading::Mapped) else {
        eprintln!("library: {name} is not at {}, seen from here", folder.display());
        return Ok(1);
    };
    let graph = import(bytes, &weights, &ImportOptions::default()).expect("it imports").graph;
    let data = read_data_set(&folder.join("test_data_set_0")).expect("it has its data");
    let mut sizes = Vec::new();
    for (&id, (_, tensor)) in graph.inputs().iter().zip(&data.inputs) {
        for (dim, &size) in graph.ty(id.value()).shape.iter().zip(tensor.shape()) {
            sizes.extend(dim.as_symbol().map(|symbol| (symbol.clone(), size as i64)));
        }
    }
    model(stream, name, &graph, Precision::Single, &[sizes], false)
}

/// A model by the library and fused, both beside the CPU in single precision.
fn model(
    stream: &Stream,
    name: &str,
    graph: &Graph,
    precision: Precision,
    all_sizes: &[Vec<(Symbol, i64)>],
    each: bool,
) -> Result<usize, Error> {
    let arch =
        stream.device().properties().arch().ok_or(Error::Unsupported { what: "this GPU" })?;
    let (target, elements) = (precision.target(stream)?, precision.elements());
    let none = Bindings::new();
    let load = |granularity| {
        let program = plan_in(graph, &target, granularity, &none, elements)?.program;
        Module::load(Kernels::compile(program, &target, arch, None, &|_, _| {})?, stream.device())
    };
    let (library, fused) = (load(Granularity::PerOp)?, load(Granularity::Fused)?);
    let by_matmuls = plan_library(graph, &target, &none, elements, AttentionBy::MatMuls)?;
    let by_matmuls = Module::load(
        Kernels::compile(by_matmuls.program, &target, arch, None, &|_, _| {})?,
        stream.device(),
    )?;
    let oracle = plan(graph, &Target::cpu(16), Granularity::Fused, &none)?;
    let oracle = cpu::Module::compile(oracle.program)?;
    let label = format!("{name} {precision}");
    let mut wrong = 0;
    for sizes in all_sizes {
        let mut bindings = Bindings::new();
        for (symbol, size) in sizes {
            bindings.bind(symbol.clone(), *size)?;
        }
        let inputs = inputs(graph, &bindings)?;
        let expected = oracle.executable(&bindings)?.run(&inputs)?;
        let begun = Instant::now();
        let mut by_library = library.bind_on(stream, &bindings)?;
        let (first, timed) = (begun.elapsed(), library.timed());
        let begun = Instant::now();
        drop(library.bind_on(stream, &bindings)?);
        let again = begun.elapsed();
        let mut by_template = fused.bind_on(stream, &bindings)?;
        let (library_error, library_largest) = errors(&by_library.run(&inputs)?, &expected);
        let (fused_error, fused_largest) = errors(&by_template.run(&inputs)?, &expected);
        let library_us = median(stream, || by_library.launch_each())?;
        let fused_us = median(stream, || by_template.launch_each())?;
        let mut by_matmuls = by_matmuls.bind_on(stream, &bindings)?;
        let (matmuls_error, _) = errors(&by_matmuls.run(&inputs)?, &expected);
        let matmuls_us = median(stream, || by_matmuls.launch_each())?;
        let ran = |wanted: &str| by_library.steps().filter(|(_, by)| *by == Some(wanted)).count();
        let (matmuls, layers) = (ran("cublaslt"), ran("cudnn"));
        let worst = library_error.max(matmuls_error).max(fused_error);
        let right = worst <= precision.bound() && library.timed() == timed;
        let sizes: Vec<String> = sizes.iter().map(|(s, n)| format!("{s}={n}")).collect();
        println!(
            "{{\"row\":\"library\",\"model\":\"{label}\",\"sizes\":\"{}\",\"library_us\":{library_us:.1},\
             \"attention_by_matmuls_us\":{matmuls_us:.1},\"fused_us\":{fused_us:.1},\"speedup\":{:.3},\
             \"speedup_over_matmuls\":{:.3},\"cublaslt\":{matmuls},\"cudnn\":{layers},\
             \"kernels\":{},\"fused_launches\":{},\"1-cosine\":{library_error:.2e},\
             \"max_error\":{library_largest:.2e},\"fused_1-cosine\":{fused_error:.2e},\
             \"fused_max_error\":{fused_largest:.2e},\"matmuls_1-cosine\":{matmuls_error:.2e},\"bind_ms\":{:.2},\"bind_again_ms\":{:.2},\
             \"timed\":{timed},\"right\":{right}}}",
            sizes.join(" "),
            library_us / fused_us,
            matmuls_us / fused_us,
            by_library.launches() - matmuls - layers,
            by_template.launches(),
            first.as_secs_f64() * 1e3,
            again.as_secs_f64() * 1e3,
        );
        wrong += usize::from(!right);
        if each {
            wrong += beside_bare_calls(stream, &by_library, &label)?;
        }
    }
    Ok(wrong)
}

/// 1 less the least cosine of an output, and the largest error of an element.
pub(crate) fn errors(found: &[Tensor], expected: &[Tensor]) -> (f64, f64) {
    let (mut worst, mut largest) = (0f64, 0f64);
    for (found, expected) in found.iter().zip(expected) {
        let (found, expected) = (numbers(found), numbers(expected));
        worst = worst.max(1.0 - cosine(&found, &expected));
        let errors = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        largest = errors.fold(largest, |most, e| if e.is_nan() { e } else { most.max(e) });
    }
    (worst, largest)
}

/// Every matmul of a model, equal ones once, beside a call with packed operands: the same matmul with its epilogue, and
/// without, their algorithms chosen likewise: what a program adds to a call. They share its workspace, and its operands where
/// the model's are packed, since a call of 3 us takes up to a tenth more or less depending on where its operands lie (A, D
/// and the bias within one page of memory or apart). Says how many are slower than [`ENOUGH`].
fn beside_bare_calls(
    stream: &Stream,
    executable: &Executable,
    label: &str,
) -> Result<usize, Error> {
    let mut slow = 0;
    let mut random = Random(3);
    let mut seen = HashSet::new();
    for (number, (step, _)) in executable.steps().enumerate() {
        let Some(matmul) = executable.matmul(number) else { continue };
        let gemm = *matmul.gemm();
        if !seen.insert(gemm) {
            continue;
        }
        let bare = gemm.bare();
        let addend = gemm.c.map(|_| bare.d);
        let Gemm { bias, activation, scale_bits, .. } = gemm;
        let same = Gemm { c: addend, bias, activation, scale_bits, ..bare };
        let operands = match same == gemm {
            true => matmul.operands().clone(),
            false => made(stream, &same, &mut random)?.0,
        };
        let plain = Operands { c: None, bias: None, ..operands.clone() };
        let context = matmul.beside();
        let (same, bare) =
            (context.bind(stream, &same, operands)?, context.bind(stream, &bare, plain)?);
        // One after the other, twice and more, so that a clock that falls favours none.
        let (mut ours, mut theirs, mut least) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
        for round in 0..6 {
            if round >= 2 && theirs / ours >= ENOUGH {
                break;
            }
            ours = ours.min(median(stream, || executable.launch_step(number))?);
            theirs = theirs.min(median(stream, || same.launch())?);
            least = least.min(median(stream, || bare.launch())?);
        }
        println!(
            "{{\"row\":\"library matmuls\",\"model\":\"{label}\",\"step\":\"{}\",\"batch\":{},\"m\":{},\
             \"n\":{},\"k\":{},\"us\":{ours:.2},\"bare_us\":{theirs:.2},\"without_epilogue_us\":{least:.2},\
             \"chosen_us\":[{:.2},{:.2}],\
             \"tflops\":{:.0},\"ratio\":{:.3},\"enough\":{}}}",
            step.name,
            gemm.batch,
            gemm.m,
            gemm.n,
            gemm.k,
            matmul.microseconds(),
            same.microseconds(),
            gemm.operations() / ours * 1e-6,
            theirs / ours,
            theirs / ours >= ENOUGH,
        );
        slow += usize::from(theirs / ours < ENOUGH);
    }
    Ok(slow)
}

/// Operands of random numbers, and these numbers: A, B, C and the bias.
fn made(
    stream: &Stream,
    gemm: &Gemm,
    random: &mut Random,
) -> Result<(Operands, [Vec<f64>; 4]), Error> {
    let [a, b, c, d] = gemm.spans().ok_or(Error::TooLarge { what: "a matmul" })?;
    let lens = [a, b, c, if gemm.bias { gemm.n } else { 0 }];
    let numbers = lens.map(|len| random.normal(len, gemm.scalar, false));
    let upload = |numbers: &Vec<f64>| stream.upload(&encode(numbers, gemm.scalar));
    let some = |is: bool, numbers| is.then(|| upload(numbers)).transpose();
    let operands = Operands {
        a: upload(&numbers[0])?,
        b: upload(&numbers[1])?,
        c: some(gemm.c.is_some(), &numbers[2])?,
        d: stream.alloc(d * gemm.scalar.bytes() as usize)?,
        bias: some(gemm.bias, &numbers[3])?,
    };
    Ok((operands, numbers))
}

/// Matmuls in all layouts, with everything that epilogues do, beside double precision.
fn matmuls(stream: &Stream) -> Result<usize, Error> {
    let context = Context::new(stream.device())?;
    let mut random = Random(5);
    let mut wrong = 0;
    for scalar in [Scalar::F32, Scalar::F16, Scalar::Bf16] {
        for gemm in gemms(scalar) {
            let right = matmul(stream, &context, &gemm, &mut random).unwrap_or_else(|error| {
                eprintln!("library: {gemm:?}: {error}");
                false
            });
            wrong += usize::from(!right);
        }
    }
    Ok(wrong)
}

/// Whether one of them is right.
fn matmul(
    stream: &Stream,
    context: &Context,
    gemm: &Gemm,
    random: &mut Random,
) -> Result<bool, Error> {
    let (operands, numbers) = made(stream, gemm, random)?;
    let matmul = context.bind(stream, gemm, operands.clone())?;
    // What tuning wrote is not what is looked at.
    operands.d.write(&vec![0xff; operands.d.len()])?;
    matmul.launch()?;
    let found = found(gemm, &operands.d)?;
    let activations: &[fn(f64) -> f64] = match gemm.activation {
        None => &[|x| x],
        Some(Activation::Relu) => &[|x| x.max(0.0)],
        Some(Activation::GeluTanh) => &[gelu_tanh, gelu_erf],
    };
    let errors = activations.iter().map(|turn| share(gemm, &numbers, &found, turn));
    let errors: Vec<f64> = errors.collect();
    // The library's GELU is worth its name if it is nearer to the form by a tanh; a fast one has errors of its own.
    let right = match errors[..] {
        [tanh, erf] => tanh < erf || tanh <= 1.0,
        _ => errors[0] <= 1.0,
    };
    println!(
        "{{\"row\":\"library epilogues\",\"errors_of_bound\":{errors:.4?},\"right\":{right},\
         \"gemm\":\"{gemm:?}\"}}"
    );
    Ok(right)
}

fn gemms(scalar: Scalar) -> Vec<Gemm> {
    let mut gemms = Vec::new();
    for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let matmul = PackedGemm { m: 96, n: 72, k: 40, scalar, transpose_a, transpose_b };
        let plain = Gemm::from(matmul);
        let gaps = |matrix: Matrix, apart| Matrix { leading: matrix.leading + 8, apart, ..matrix };
        gemms.push(plain);
        gemms.push(Gemm { bias: true, c: Some(plain.d), ..plain });
        gemms.push(Gemm { bias: true, activation: Some(Activation::Relu), ..plain });
        gemms.push(Gemm { bias: true, activation: Some(Activation::GeluTanh), ..plain });
        let (a, b, d) = (gaps(plain.a, 9000), gaps(plain.b, 8000), gaps(plain.d, 9600));
        let scale_bits = 0.125_f32.to_bits();
        let batched = Gemm { batch: 3, a, b, d, scale_bits, ..plain };
        gemms.push(batched);
        gemms.push(Gemm { b: plain.b, c: Some(d), bias: true, ..batched });
        gemms.push(Gemm { a: plain.a, activation: Some(Activation::Relu), ..batched });
    }
    // Odd sizes, at which rows begin anywhere.
    let odd = PackedGemm { m: 7, n: 5, k: 3, scalar, transpose_a: false, transpose_b: false };
    gemms.push(Gemm { bias: true, ..Gemm::from(odd) });
    gemms.push(Gemm::from(PackedGemm { m: 1, ..odd }));
    gemms
}

fn found(gemm: &Gemm, d: &Buffer) -> Result<Vec<f64>, Error> {
    Ok(decode(&d.download()?, gemm.scalar))
}

/// The largest error, as a share of what a matmul of this depth may have.
fn share(
    gemm: &Gemm,
    [a, b, c, bias]: &[Vec<f64>; 4],
    found: &[f64],
    turn: &fn(f64) -> f64,
) -> f64 {
    let half = match gemm.scalar {
        Scalar::F16 => 2f64.powi(-11),
        Scalar::Bf16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    };
    let at = |matrix: &Matrix, batch: usize, row: usize, column: usize| {
        let (outer, inner) = if matrix.transposed { (column, row) } else { (row, column) };
        batch * matrix.apart + outer * matrix.leading + inner
    };
    let mut worst = 0f64;
    for batch in 0..gemm.batch {
        for row in 0..gemm.m {
            for column in 0..gemm.n {
                let (mut sum, mut size) = (0.0, 0.0);
                for i in 0..gemm.k {
                    let x = a[at(&gemm.a, batch, row, i)] * b[at(&gemm.b, batch, i, column)];
                    sum += x;
                    size += x.abs();
                }
                let scale = f64::from(gemm.scale());
                let added = gemm.c.as_ref().map_or(0.0, |m| c[at(m, batch, row, column)]);
                let added = added + bias.get(column).copied().unwrap_or(0.0);
                let y = turn(scale * sum + added);
                let error = (found[at(&gemm.d, batch, row, column)] - y).abs();
                let near = 4.0 * (gemm.k + 2) as f64 * 2f64.powi(-24);
                let may = half * y.abs() + near * (scale.abs() * size + added.abs()) * 1.2;
                let share = error / may.max(f64::MIN_POSITIVE);
                worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
            }
        }
    }
    worst
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// By Simpson's rule along the bell curve, to about 1e-9.
fn gelu_erf(x: f64) -> f64 {
    const STEPS: usize = 200;
    let bell = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let width = x.clamp(-9.0, 9.0) / STEPS as f64;
    let weight = |i: usize| if i == 0 || i == STEPS { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 };
    let sum: f64 = (0..=STEPS).map(|i| weight(i) * bell(i as f64 * width)).sum();
    x * (0.5 + sum * width / 3.0)
}

/// A recurrent layer: its operation, directions, gates, and attributes.
type LayerRow = (&'static str, &'static str, usize, usize, &'static str);

const LAYERS: &[LayerRow] = &[
    (
        "lstm both ways",
        "Lstm",
        2,
        4,
        "input_forget: false, direction: bidirectional, hidden: 24, \
         activations: [Sigmoid, Tanh, Tanh, Sigmoid, Tanh, Tanh], clip: none",
    ),
    (
        "gru",
        "Gru",
        1,
        3,
        "linear_before_reset: true, direction: forward, hidden: 24, \
         activations: [Sigmoid, Tanh], clip: none",
    ),
    (
        "gru both ways",
        "Gru",
        2,
        3,
        "linear_before_reset: true, direction: bidirectional, hidden: 24, \
         activations: [Sigmoid, Tanh, Sigmoid, Tanh], clip: none",
    ),
];

/// A layer of 16 inputs and 24 units with biases and a first state, that gives all outputs.
fn layer(op: &str, directions: usize, gates: usize, attributes: &str) -> Result<Graph, Error> {
    let (rows, hidden) = (gates * 24, 24);
    let mut text = format!(
        "symbols b, s\n%0 = Input : f32[s, b, 16] \"x\"\n\
         %1 = Input : f32[{directions}, b, {hidden}] \"h\"\n"
    );
    let mut random = Random(13);
    let mut weights = Vec::new();
    let shapes =
        [vec![directions, rows, 16], vec![directions, rows, hidden], vec![directions, 2 * rows]];
    for (place, shape) in shapes.into_iter().enumerate() {
        let elements = random.normal(shape.iter().product(), Scalar::F32, false);
        let elements = elements.iter().map(|x| (x * 0.2) as f32).collect();
        let weight = Tensor::from_vec(shape.clone(), elements)?;
        let (hash, number) = (content_hash(&weight), place + 2);
        text +=
            &format!("%{number} = Constant(@{place} {hash:016x}) : f32{shape:?} \"w{place}\"\n");
        weights.push(weight);
    }
    let all = format!("f32[s, {directions}, b, {hidden}]");
    let last = format!("f32[{directions}, b, {hidden}]");
    let (cell, given) = match op {
        "Lstm" => (format!(", {last}"), ", \"c\" = %5.2"),
        _ => (String::new(), ""),
    };
    text += &format!(
        "%5 = {op}(%0, %2, %3, %4, _, %1) {{{attributes}}} : {all}, {last}{cell} \"y\"\n\
         return \"y\" = %5, \"h\" = %5.1{given}\n"
    );
    Ok(parse(&text, &weights).unwrap_or_else(|error| panic!("{error}\n{text}")))
}
