//! Several callers of one model on a CPU: what each of them waits for, and what all together get done.
//!
//! ```text
//! callers [MODEL BATCHxSEQUENCE [CALLERS [REQUESTS [THREADS]]]]
//! ```
//!
//! Without a model: bert-base 1x128 by 4 callers; bert-base-tiny 1x32, mlp and lstm by one, on one thread and on all.
//! Lines of JSON on stdout: a caller alone, with the time of `Context::run_into` beyond its steps' kernels, and then all
//! callers side by side, each with a context of its own. Times are in milliseconds.

use graphene_frontend::dim::Symbol;
use graphene_frontend::import::{ImportOptions, import};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::{Granularity, plan};
use graphene_models::{Options, build};
use graphene_runtime::cpu::Module;
use graphene_runtime::{
    Bindings, Context, DType, Device, Engine, Input, Model, OutputMut, RunOptions, Source, Threads,
};
use std::error::Error;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What is measured.
struct Case<'a> {
    model: &'a str,
    sizes: [usize; 2],
    callers: usize,
    requests: usize,
    threads: usize,
}

fn main() -> Outcome<()> {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let cores = thread::available_parallelism()?.get();
    if all.is_empty() {
        let sizes = [1, 128];
        let base = Case { model: "bert-base", sizes, callers: 4, requests: 250, threads: cores };
        measure(&base)?;
        for (model, sizes) in [("bert-base-tiny", [1, 32]), ("mlp", [1, 1]), ("lstm", [1, 64])] {
            for threads in [1, cores] {
                measure(&Case { model, sizes, callers: 1, requests: 2000, threads })?;
            }
        }
        return Ok(());
    }
    let number = |place: usize, other: usize| match all.get(place) {
        Some(text) => text.parse::<usize>(),
        None => Ok(other),
    };
    let (batch, sequence) =
        all.get(1).and_then(|sizes| sizes.split_once('x')).unwrap_or(("1", "128"));
    measure(&Case {
        model: &all[0],
        sizes: [batch.parse()?, sequence.parse()?],
        callers: number(2, 1)?,
        requests: number(3, 100)?,
        threads: number(4, cores)?,
    })
}

fn measure(case: &Case<'_>) -> Outcome<()> {
    let &Case { model: name, sizes: [batch, sequence], callers, requests, threads } = case;
    let engine = Engine::builder().device(Device::Cpu).threads(threads).build()?;
    let zoo = build(name, &Options::default())?;
    let source = Source::with_external(zoo.encode(), zoo.into_parts().1);
    let model = engine.model().load_from(&source)?;
    let mut sizes = Bindings::new();
    for dim in model.dims() {
        let size = if dim == "batch" { batch } else { sequence };
        sizes.bind(Symbol::new(dim), i64::try_from(size)?)?;
    }
    let inputs = inputs(&model, &sizes)?;
    let case = format!("{name} {batch}x{sequence}, {threads} threads");
    let mut alone = calls(&mut model.context(), &inputs, &sizes, requests)?;
    let mut kernels = kernels(name, &engine, &inputs, &sizes, requests)?;
    let (whole, kernels) = (percentile(&mut alone, 0.5), percentile(&mut kernels, 0.5));
    let steps = model.program().steps().len();
    println!(
        r#"{{"case": "{case}", "callers": 1, {}, "steps": {steps}, "kernels": {kernels:.4}, "beyond": {:.4}}}"#,
        shown(&mut alone),
        whole - kernels,
    );
    if callers == 1 {
        return Ok(());
    }
    let barrier = Barrier::new(callers + 1);
    let (mut each, wall) = thread::scope(|scope| -> Outcome<_> {
        let call = || {
            let mut context = model.context();
            barrier.wait();
            calls(&mut context, &inputs, &sizes, requests)
        };
        let running: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        barrier.wait();
        let start = Instant::now();
        let mut each = Vec::new();
        for running in running {
            each.extend(running.join().map_err(|_| "a caller panicked")??);
        }
        Ok((each, start.elapsed()))
    })?;
    let wall = wall.as_secs_f64() * 1e3 / (each.len() + callers) as f64;
    println!(
        r#"{{"case": "{case}", "callers": {callers}, {}, "each": {wall:.4}, "throughput": {:.3}}}"#,
        shown(&mut each),
        mean(&alone) / wall,
    );
    Ok(())
}

/// Token ids and masks of ones, numbers otherwise.
fn inputs(model: &Model, sizes: &Bindings) -> Outcome<Vec<Tensor>> {
    let input = |port: &graphene_runtime::Port| {
        let shape = port.dims().iter().map(|dim| Ok(usize::try_from(dim.eval(sizes)?)?));
        let shape = shape.collect::<Outcome<Vec<_>>>()?;
        let len = shape.iter().product();
        Ok(match port.dtype() {
            DType::I64 => Tensor::from_vec(shape, vec![1_i64; len])?,
            _ => Tensor::from_vec(shape, vec![0.5_f32; len])?,
        })
    };
    model.inputs().iter().map(input).collect()
}

/// What the kernels of all steps take together, in each of so many runs of the executor.
fn kernels(
    name: &str,
    engine: &Engine,
    inputs: &[Tensor],
    sizes: &Bindings,
    requests: usize,
) -> Outcome<Vec<f64>> {
    let zoo = build(name, &Options::default())?;
    let graph = import(zoo.encode(), zoo.weights(), &ImportOptions::default())?.graph;
    let planned = plan(&graph, &engine.target(), Granularity::Fused, &Bindings::new())?;
    let mut executable = Module::compile(planned.program)?.executable(sizes)?;
    let mut kernels = Vec::with_capacity(requests);
    Threads::new(engine.threads())?.run(|| {
        for _ in 0..requests {
            let mut times = Vec::new();
            executable.run_profiled(inputs, &mut times)?;
            kernels.push(times.iter().sum::<Duration>().as_secs_f64() * 1e3);
        }
        Ok(kernels)
    })
}

/// What each of so many requests takes, after one that warms up.
fn calls(
    context: &mut Context,
    inputs: &[Tensor],
    sizes: &Bindings,
    requests: usize,
) -> Outcome<Vec<f64>> {
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let mut results = Vec::new();
    for port in context.model().outputs() {
        let shape = port.dims().iter().map(|dim| Ok(usize::try_from(dim.eval(sizes)?)?));
        let len = shape.product::<Outcome<usize>>()?;
        results.push(vec![0.0_f32; len]);
    }
    let mut results: Vec<OutputMut<'_>> =
        results.iter_mut().map(|elements| OutputMut::new(elements)).collect();
    let (mut times, options) = (Vec::with_capacity(requests), RunOptions::new());
    for request in 0..=requests {
        let start = Instant::now();
        context.run_into(&inputs, &mut results, &options)?;
        if request > 0 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(times)
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}

fn percentile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * share) as usize]
}

fn shown(times: &mut [f64]) -> String {
    let mut at = |share| percentile(times, share);
    let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(&mut at);
    let mean = mean(times);
    format!(
        r#""mean": {mean:.4}, "p50": {p50:.4}, "p90": {p90:.4}, "p99": {p99:.4}, "max": {max:.4}"#
    )
}
