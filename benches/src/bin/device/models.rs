//! Whole models: outputs beside those of the CPU in single precision, and how long a run takes.

use bytes::Bytes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ExternalData, ExternalDataError, ImportOptions, import};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::{Granularity, plan, plan_in};
use graphene_ir::target::Target;
use graphene_models::{Options, Weights, build};
use graphene_runtime::device::Stream;
use graphene_runtime::gpu::{Kernels, Module};
use graphene_runtime::{Error, cpu};
use half::{bf16, f16};
use std::time::Instant;

use crate::data::Random;
use crate::matmuls::median;
use crate::precision::Precision;

/// A model of the zoo, what it computes in, and batch and sequence of each run.
type Row<'a> = (&'a str, Precision, &'a [[usize; 2]]);

/// A model's weights, a few features of which are outliers, as trained encoders have them: a norm scales them more.
struct Outliers<'a>(&'a Weights);

/// How much more.
const MORE: f32 = 12.0;

/// What all of them run as.
const ROWS: &[Row<'_>] = &[
    ("bert-base-tiny", Precision::Single, &[[2, 16], [3, 29]]),
    ("bert-base-tiny", Precision::Half(DType::F16), &[[2, 16], [3, 29]]),
    ("bert-base-tiny", Precision::Half(DType::BF16), &[[3, 29]]),
    ("roberta-base-tiny", Precision::Half(DType::F16), &[[3, 29]]),
    ("albert-base-tiny", Precision::Half(DType::F16), &[[3, 29]]),
    ("bert-base", Precision::Half(DType::F16), FULL),
    ("bert-base", Precision::Single, &[[7, 93]]),
    ("bert-base", Precision::Tf32, &[[1, 128], [7, 93], [32, 128]]),
];

/// Batch and sequence of models in their full size.
const FULL: &[[usize; 2]] = &[[1, 128], [7, 93], [32, 128], [32, 384]];
const ODD: &[[usize; 2]] = &[[7, 93]];

/// All rows, or one model of the zoo in its full size, in half precision, in single precision and with matmuls of TF32.
pub(crate) fn check(stream: &Stream, only: Option<&str>) -> Result<usize, Error> {
    let mut wrong = 0;
    let all = [Precision::Half(DType::F16), Precision::Single, Precision::Tf32];
    let named = only.map(|name| all.map(|precision| (name, precision, FULL)));
    let rows = named.as_ref().map_or(ROWS, |rows| rows).iter().map(|row| (row, false));
    let outliers = only.map(|name| all.map(|precision| (name, precision, ODD)));
    let more = outliers.iter().flatten().map(|row| (row, true));
    for ((name, precision, shapes), outliers) in rows.chain(more) {
        let label = format!("{name}{} {precision}", if outliers { " with outliers" } else { "" });
        match model(stream, (name, outliers), *precision, shapes, &label) {
            Ok(found) => wrong += found,
            Err(error) => {
                eprintln!("models: {label}: {error}");
                wrong += 1;
            }
        }
    }
    Ok(wrong)
}

fn model(
    stream: &Stream,
    (name, outliers): (&str, bool),
    precision: Precision,
    shapes: &[[usize; 2]],
    label: &str,
) -> Result<usize, Error> {
    let Ok(built) = build(name, &Options::default()) else {
        return Err(Error::Unsupported { what: "a model that the zoo does not have" });
    };
    let (bytes, (_, weights)) = (built.encode(), built.into_parts());
    let with_outliers = Outliers(&weights);
    let weights: &dyn ExternalData = if outliers { &with_outliers } else { &weights };
    let graph = import(bytes, weights, &ImportOptions::default()).expect("it imports").graph;
    let arch =
        stream.device().properties().arch().ok_or(Error::Unsupported { what: "this GPU" })?;
    let target = precision.target(stream)?;
    let none = Bindings::new();
    let begun = Instant::now();
    let planned = plan_in(&graph, &target, Granularity::Fused, &none, precision.elements())?;
    let planning = begun.elapsed();
    let kernels = Kernels::compile(planned.program, &target, arch, None, &|_, _| {})?;
    let (compiling, count) = (begun.elapsed() - planning, kernels.len());
    let free = stream.device().free_bytes()?;
    let module = Module::load(kernels, stream.device())?;
    let loading = begun.elapsed() - planning - compiling;
    println!(
        "{{\"model\": \"{label}\", \"steps\": {}, \"kernels\": {count}, \"plan_s\": {:.3}, \
         \"compile_s\": {:.3}, \"load_s\": {:.3}}}",
        module.program().steps().len(),
        planning.as_secs_f64(),
        compiling.as_secs_f64(),
        loading.as_secs_f64(),
    );
    let oracle = plan(&graph, &Target::cpu(16), Granularity::Fused, &none)?;
    let oracle = cpu::Module::compile(oracle.program)?;
    let mut wrong = 0;
    for &[batch, sequence] in shapes {
        let mut sizes = Bindings::new();
        let symbols = graph.symbols().into_iter().zip([batch, sequence]);
        for (symbol, size) in symbols {
            sizes.bind(symbol, size as i64)?;
        }
        let inputs = inputs(&graph, &sizes)?;
        let mut bound_to = module.bind_on(stream, &sizes)?;
        let found = bound_to.run(&inputs)?;
        let expected = oracle.executable(&sizes)?.run(&inputs)?;
        let (mut worst, mut largest) = (0f64, 0f64);
        for (found, expected) in found.iter().zip(&expected) {
            let (found, expected) = (numbers(found), numbers(expected));
            worst = worst.max(1.0 - cosine(&found, &expected));
            let errors = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            largest = errors.fold(largest, |most, e| if e.is_nan() { e } else { most.max(e) });
        }
        // What all of it takes, beyond the context itself.
        let taken = free.saturating_sub(stream.device().free_bytes()?);
        let microseconds = median(stream, || bound_to.launch_each())?;
        let right = worst <= precision.bound();
        println!(
            "{{\"model\": \"{label}\", \"batch\": {batch}, \"sequence\": {sequence}, \"launches\": {}, \
             \"us\": {microseconds:.1}, \"1-cosine\": {worst:.2e}, \"max_error\": {largest:.2e}, \
             \"weight_bytes\": {}, \"arena_bytes\": {}, \"arena_lower_bound\": {}, \"taken_bytes\": {taken}, \
             \"right\": {right}}}",
            bound_to.launches(),
            module.weight_bytes(),
            bound_to.plan().arena_bytes(),
            bound_to.plan().lower_bound_bytes(),
        );
        wrong += usize::from(!right);
    }
    Ok(wrong)
}

impl ExternalData for Outliers<'_> {
    fn read(
        &self,
        location: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Bytes, ExternalDataError> {
        let bytes = self.0.read(location, offset, length)?;
        let scale = self.0.iter().find(|weight| weight.offset() == offset);
        let is_norm =
            |name: &str| name.ends_with("LayerNorm.weight") || name.ends_with("layer_norm.weight");
        if !scale.is_some_and(|weight| is_norm(weight.name())) {
            return Ok(bytes);
        }
        let mut bytes = bytes.to_vec();
        let (features, _) = bytes.as_chunks_mut::<4>();
        let count = features.len();
        for feature in [count / 7, count / 3, count / 2 + 1] {
            let feature = &mut features[feature];
            *feature = (MORE * f32::from_le_bytes(*feature)).to_le_bytes();
        }
        Ok(bytes.into())
    }
}

/// Token ids, masks that leave out the last fifth of every other row, and numbers.
pub(crate) fn inputs(graph: &Graph, sizes: &Bindings) -> Result<Vec<Tensor>, Error> {
    let mut random = Random(7);
    let mut inputs = Vec::new();
    for &id in graph.inputs() {
        let node = graph.node(id);
        let ty = &node.outputs()[0];
        let shape = ty.bound_shape(sizes)?;
        let (len, row) = (shape.iter().product::<usize>(), shape.last().copied().unwrap_or(1));
        let padded = |i: usize| i / row % 2 == 1 && i % row >= row - row / 5;
        inputs.push(match ty.dtype {
            DType::I64 => {
                let element = |i: usize| match node.name() {
                    name if name.contains("mask") => i64::from(!padded(i)),
                    name if name.contains("type") => i64::from(i % row > row / 2),
                    _ => random.within(3, 999) as i64,
                };
                Tensor::from_vec(shape, (0..len).map(element).collect())?
            }
            _ => {
                let values = random.normal(len, graphene_ir::tensor::Scalar::F32, true);
                Tensor::from_vec(shape, values.iter().map(|&x| x as f32).collect())?
            }
        });
    }
    Ok(inputs)
}

pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    let single = |values: &[f32]| values.iter().map(|&x| x.into()).collect();
    match tensor.dtype() {
        DType::F16 => {
            tensor.as_slice::<f16>().unwrap_or_default().iter().map(|x| x.to_f64()).collect()
        }
        DType::BF16 => {
            tensor.as_slice::<bf16>().unwrap_or_default().iter().map(|x| x.to_f64()).collect()
        }
        _ => single(tensor.as_slice::<f32>().unwrap_or_default()),
    }
}

pub(crate) fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    if cosine.is_nan() { -1.0 } else { cosine }
}
