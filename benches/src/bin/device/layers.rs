//! Chains of layers of models in single precision that run in half: one kernel, beside the CPU, beside the library's plan, and
//! beside that plan's calls of cuBLASLt alone, one a layer with its own epilogue.

use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::import::{ImportOptions, import};
use graphene_fusion::{Granularity, plan, plan_in};
use graphene_ir::target::Target;
use graphene_models::{Options, build};
use graphene_runtime::device::Stream;
use graphene_runtime::gpu::{Kernels, Module};
use graphene_runtime::{Error, cpu};

use crate::library::errors;
use crate::matmuls::median;
use crate::models::inputs;
use crate::precision::Precision;

/// Models of the zoo, and how many rows they have.
const CASES: [(&str, i64); 4] =
    [("mlp-20x128", 16384), ("mlp-20x128", 4096), ("mlp-20x64", 4096), ("mlp-20x256", 16384)];

/// Rows that are enough for a sanitizer.
const FEW: i64 = 200;

/// How often all are timed, one after the other, so that a clock that changes favours none.
const ROUNDS: usize = 5;

pub(crate) fn check(stream: &Stream) -> Result<usize, Error> {
    let mut wrong = 0;
    for (name, rows) in CASES {
        wrong += usize::from(!case(stream, name, if crate::quick() { FEW } else { rows })?);
    }
    Ok(wrong)
}

/// Whether a model's outputs are right.
fn case(stream: &Stream, name: &str, rows: i64) -> Result<bool, Error> {
    let precision = Precision::Half(DType::F16);
    let arch =
        stream.device().properties().arch().ok_or(Error::Unsupported { what: "this GPU" })?;
    let built = build(name, &Options::default()).expect("the zoo has it");
    let (bytes, (_, weights)) = (built.encode(), built.into_parts());
    let graph = import(bytes, &weights, &ImportOptions::default()).expect("it imports").graph;
    let mut sizes = Bindings::new();
    for symbol in graph.symbols() {
        sizes.bind(symbol, rows)?;
    }
    let target = precision.target(stream)?;
    let load = |granularity| {
        let program = plan_in(&graph, &target, granularity, &sizes, precision.elements())?.program;
        Module::load(Kernels::compile(program, &target, arch, None, &|_, _| {})?, stream.device())
    };
    let (fused, library) = (load(Granularity::Fused)?, load(Granularity::PerOp)?);
    let (mut fused, mut library) =
        (fused.bind_on(stream, &sizes)?, library.bind_on(stream, &sizes)?);
    let oracle = plan(&graph, &Target::cpu(16), Granularity::Fused, &sizes)?;
    let inputs = inputs(&graph, &sizes)?;
    let expected = cpu::Module::compile(oracle.program)?.executable(&sizes)?.run(&inputs)?;
    let (error, largest) = errors(&fused.run(&inputs)?, &expected);
    let (library_error, library_largest) = errors(&library.run(&inputs)?, &expected);
    let calls = library.steps().enumerate().filter(|(_, (_, by))| *by == Some("cublaslt"));
    let calls: Vec<usize> = calls.map(|(number, _)| number).collect();
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        times[0].push(median(stream, || fused.launch_each())?);
        times[1].push(median(stream, || library.launch_each())?);
        let each = || calls.iter().try_for_each(|&number| library.launch_step(number));
        times[2].push(median(stream, each)?);
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    let [us, library_us, cublaslt_us] = [0, 1, 2].map(|of| times[of][ROUNDS / 2]);
    let right = error.max(library_error) <= precision.bound();
    println!(
        "{{\"row\":\"layers\",\"model\":\"{name} {precision}\",\"rows\":{rows},\"launches\":{},\
         \"us\":{us:.2},\"us_least_and_most\":[{:.2},{:.2}],\"library_us\":{library_us:.2},\
         \"cublaslt\":{},\"cublaslt_us\":{cublaslt_us:.2},\"over_library\":{:.3},\
         \"over_cublaslt\":{:.3},\"1-cosine\":{error:.2e},\"max_error\":{largest:.2e},\
         \"library_1-cosine\":{library_error:.2e},\"library_max_error\":{library_largest:.2e},\
         \"right\":{right}}}",
        fused.launches(),
        times[0][0],
        times[0][ROUNDS - 1],
        calls.len(),
        library_us / us,
        cublaslt_us / us,
    );
    Ok(right)
}
