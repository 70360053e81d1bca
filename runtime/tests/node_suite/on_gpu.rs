//! The suite on a GPU, where there is one: by kernels, by libraries, and what neither takes on the host.

use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::{Granularity, plan};
use graphene_ir::arch::Arch;
use graphene_ir::target::Target;
use graphene_runtime::Error;
use graphene_runtime::device::{Device, Library};
use graphene_runtime::gpu::{Cache, Kernels, Module};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The GPU, and what was seen of it.
struct Gpu {
    device: Device,
    arch: Arch,
    target: Target,
    /// Many cases have the same kernels.
    cache: Cache,
    folder: PathBuf,
    /// Reasons of steps that the host computed, and in how many runs.
    on_host: Mutex<BTreeMap<String, usize>>,
    /// Runs, and those in which the host computed something.
    runs: Mutex<[usize; 2]>,
}

fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    GPU.get_or_init(open).as_ref()
}

fn open() -> Option<Gpu> {
    let needed = [Library::Nvrtc, Library::CublasLt, Library::Cudnn];
    let device = Device::open(0).ok().filter(|_| needed.into_iter().all(Library::found))?;
    let arch = device.properties().arch()?;
    let folder = std::env::temp_dir().join(format!("graphene-suite-{}", std::process::id()));
    Some(Gpu {
        device,
        arch,
        target: arch.to_string().parse().ok()?,
        cache: Cache::new(&folder),
        folder,
        on_host: Mutex::default(),
        runs: Mutex::default(),
    })
}

/// Whether there is one, with the libraries that it needs.
pub(crate) fn is_there() -> bool {
    gpu().is_some()
}

/// Plans the graph for the GPU and runs it there.
pub(crate) fn run(
    graph: &Graph,
    inputs: &[Tensor],
    sizes: &Bindings,
    granularity: Granularity,
) -> Result<Vec<Tensor>, String> {
    let gpu = gpu().ok_or("there is no GPU")?;
    let planned = plan(graph, &gpu.target, granularity, &Bindings::new());
    let program = planned.map_err(|error| error.to_string())?.program;
    let text = |error: Error| error.to_string();
    let kernels = Kernels::compile(program, &gpu.target, gpu.arch, Some(&gpu.cache), &|_, _| {})
        .map_err(text)?;
    let reasons: Vec<[String; 2]> =
        kernels.on_host().map(|(step, why)| [step.to_owned(), why.to_owned()]).collect();
    let module = Module::load(kernels, &gpu.device).map_err(text)?;
    let mut executable = module.bind(sizes).map_err(text)?;
    // Those without elements run nowhere.
    let ran = executable.steps().filter(|(_, by)| *by == Some("host"));
    let on_host: Vec<&str> = ran.map(|(step, _)| &*step.name).collect();
    {
        let mut runs = gpu.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs[0] += 1;
        runs[1] += usize::from(!on_host.is_empty());
        let mut counts = gpu.on_host.lock().unwrap_or_else(PoisonError::into_inner);
        for name in on_host {
            let known = reasons.iter().find(|[step, _]| step == name);
            let why = known.map_or("a library refuses it, and there is no kernel", |[_, why]| why);
            *counts.entry(why.to_owned()).or_default() += 1;
        }
    }
    executable.run(inputs).map_err(text)
}

/// Roundings of a type that results may be off by beyond a case's own tolerance, which is that of a reference that rounds
/// after each step: kernels and libraries compute in single precision, and round half precision once.
const ROUNDINGS: f64 = 8.0;

/// Elements from here on are no sums of others.
const LARGEST: f64 = 1e30;

/// A case's tolerance on a GPU, relative and absolute: that of half precision by how they round, and for sums, whose
/// order is another, by how the largest expected element rounds in single precision.
pub(crate) fn tolerance(expected: &Tensor, rtol: f64, atol: f64) -> (f64, f64) {
    let units = |bits: i32| ROUNDINGS * 2_f64.powi(-bits);
    match expected.dtype() {
        DType::BF16 => (rtol.max(units(9)), atol),
        DType::F16 => (rtol.max(units(11)), atol),
        DType::F32 => {
            let elements = expected.as_slice::<f32>().unwrap_or_default().iter();
            // What masks are filled with is no sum.
            let summed = elements.map(|x| f64::from(x.abs())).filter(|x| *x < LARGEST);
            (rtol, atol.max(units(24) * summed.fold(0.0, f64::max)))
        }
        _ => (rtol, atol),
    }
}

/// Prints how often the host computed something, and why; in how many runs that was.
pub(crate) fn summarise() -> usize {
    let Some(gpu) = gpu() else { return 0 };
    let [runs, with_host] = *gpu.runs.lock().unwrap_or_else(PoisonError::into_inner);
    eprintln!("on the GPU: {runs} runs, {with_host} of them with steps on the host:");
    let on_host = gpu.on_host.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rows: Vec<_> = on_host.iter().collect();
    rows.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    rows.iter().for_each(|(why, count)| eprintln!("{count:5} {why}"));
    // What cannot be removed is left to the system.
    let _ = std::fs::remove_dir_all(&gpu.folder);
    with_host
}
