//! The machine that this runs on.

use crate::args::{self, Run, is_cpu};
use crate::error::Error;
use crate::report;
use graphene_ir::target::Target;
use graphene_runtime::{Device, DeviceInfo, Engine};

/// What runs programs.
pub(crate) struct Machine {
    /// The host's cores or a GPU.
    pub(crate) engine: Engine,
    /// What it is.
    pub(crate) report: report::Device,
}

impl Machine {
    /// Whether plans for a target run here.
    pub(crate) fn runs(&self, target: &Target) -> bool {
        self.engine.target().kind == target.kind
    }
}

/// Opens the device asked for, and starts the threads.
///
/// # Errors
/// [`Error::Device`] if a GPU is asked for and cannot be used; [`Error::Flag`] for a target of another kind, and if the
/// threads cannot be started.
pub(crate) fn prepare(run: &Run) -> Result<Machine, Error> {
    let for_cpu = run.target.as_ref().is_some_and(is_cpu);
    let device = match run.device {
        args::Device::Cpu => Device::Cpu,
        args::Device::Auto if for_cpu => Device::Cpu,
        args::Device::Auto => Device::Auto,
        args::Device::Cuda(_) if for_cpu => {
            let reason =
                "a plan for the CPU does not run on a GPU; leave out one of --target and --device";
            return Err(Error::flag("--target", reason));
        }
        args::Device::Cuda(number) => Device::Cuda(number),
    };
    let limit = run.cache_mib.saturating_mul(1 << 20);
    let mut builder = Engine::builder().device(device).kernel_cache_limit(limit);
    if let Some(threads) = run.threads {
        builder = builder.threads(threads);
    }
    if run.no_cache {
        builder = builder.without_kernel_cache();
    }
    let engine = builder.build().map_err(|error| match (error, device) {
        (error @ graphene_runtime::Error::Threads { .. }, _) => {
            Error::flag("--threads", error.to_string())
        }
        (error, Device::Cuda(number)) => Error::Device(format!("--device cuda:{number}: {error}")),
        (error, _) => Error::Device(format!("{error}; --device cpu does without it")),
    })?;
    let report = describe(&engine.device(), engine.threads());
    if let (Some(threads), Some(_)) = (run.threads, &report.gpu) {
        // Steps that fall back to the CPU run on threads of the process.
        let set = graphene_runtime::cpu::set_threads(threads);
        set.map_err(|error| Error::flag("--threads", error.to_string()))?;
    }
    Ok(Machine { engine, report })
}

/// Whether `--device auto` takes a GPU.
///
/// # Errors
/// Why not.
pub(crate) fn usable() -> Result<(), graphene_runtime::Error> {
    Engine::builder().device(Device::Cuda(0)).threads(1).build().map(drop)
}

/// What there is to say of a device, and of the host.
fn describe(device: &DeviceInfo, threads: usize) -> report::Device {
    let host = host(threads);
    let Some(gpu) = &device.gpu else { return host };
    let (major, minor) = gpu.capability;
    let gpu = report::Gpu {
        number: gpu.number,
        multiprocessors: gpu.multiprocessors,
        capability: format!("{major}.{minor}"),
        memory_bytes: device.memory,
        host: host.name,
    };
    report::Device { kind: "cuda", name: device.name.clone(), gpu: Some(gpu), ..host }
}

/// The host, on which so many threads compute.
pub(crate) fn host(threads: usize) -> report::Device {
    report::Device { kind: "cpu", name: processor(), threads, simd: simd(), gpu: None }
}

fn processor() -> String {
    let found = field("/proc/cpuinfo", "model name");
    found.unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

/// A field of one of Linux's `name : value` files.
pub(crate) fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Bytes of physical memory, where the system tells.
pub(crate) fn memory() -> Option<u64> {
    let text = field("/proc/meminfo", "MemTotal")?;
    let kibibytes: u64 = text.strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The widest vector instructions.
#[cfg(target_arch = "x86_64")]
fn simd() -> &'static str {
    if std::arch::is_x86_feature_detected!("avx512f") {
        "AVX-512"
    } else if std::arch::is_x86_feature_detected!("avx2") {
        "AVX2"
    } else {
        "SSE2"
    }
}

/// The widest vector instructions.
#[cfg(not(target_arch = "x86_64"))]
fn simd() -> &'static str {
    if cfg!(target_arch = "aarch64") { "NEON" } else { "none known" }
}
