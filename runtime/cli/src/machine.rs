//! The machine that this runs on.

use crate::args::{Device, Run, is_cpu};
use crate::error::Error;
use crate::report;
use graphene_ir::arch::Arch;
use graphene_ir::target::Target;
use graphene_runtime::device::{self, Library};
use graphene_runtime::gpu::Cache;
use std::sync::Arc;

/// What runs programs: the host's cores, or a GPU.
pub(crate) struct Machine {
    /// What it is.
    pub(crate) report: report::Device,
    /// The GPU, unless the host's cores run programs.
    pub(crate) gpu: Option<Gpu>,
    /// Where machine code for the GPU is kept, unless it is not to be.
    pub(crate) cache: Option<Cache>,
    /// What is worth knowing about the choice.
    pub(crate) note: Option<String>,
}

/// A GPU that kernels are generated for.
pub(crate) struct Gpu {
    /// The open device.
    pub(crate) device: Arc<device::Device>,
    /// What its kernels are compiled for.
    pub(crate) arch: Arch,
    /// It, to plan for.
    pub(crate) target: Target,
}

impl Machine {
    /// What to plan for, given what is asked for: the machine itself unless another target is.
    pub(crate) fn target(&self, run: &Run) -> Target {
        let cores = u32::try_from(self.report.threads).unwrap_or(u32::MAX);
        match (&run.target, &self.gpu) {
            (Some(asked), Some(gpu)) if asked.kind == gpu.target.kind => gpu.target.clone(),
            (Some(asked), _) => Target { tf32: run.dtype.is_tf32(), ..asked.clone() },
            (None, Some(gpu)) => gpu.target.clone(),
            (None, None) => Target::cpu(cores),
        }
    }

    /// Whether plans for a target run here.
    pub(crate) fn runs(&self, target: &Target) -> bool {
        match &self.gpu {
            Some(gpu) => gpu.target.kind == target.kind,
            None => is_cpu(target),
        }
    }

    /// Bytes of the memory that programs run in; `u64::MAX` where the system does not tell.
    pub(crate) fn memory(&self) -> u64 {
        match &self.gpu {
            Some(gpu) => gpu.device.properties().memory as u64,
            None => memory().unwrap_or(u64::MAX),
        }
    }
}

impl Gpu {
    /// Opens a GPU for which kernels can be made here.
    ///
    /// # Errors
    /// As for [`device::Device::open`]; [`graphene_runtime::Error::Unsupported`] for a GPU without kernels, and
    /// [`graphene_runtime::Error::MissingLibrary`] without NVRTC.
    fn open(number: u32) -> Result<Self, graphene_runtime::Error> {
        use graphene_runtime::Error as E;
        let device = device::Device::open(usize::try_from(number).unwrap_or(usize::MAX))?;
        let unsupported =
            E::Unsupported { what: "a GPU that is older than Volta or newer than Hopper" };
        let arch = device.properties().arch().ok_or(unsupported)?;
        let mut target: Target = arch.to_string().parse()?;
        target.cores = device.properties().multiprocessors;
        match Library::Nvrtc.found() {
            true => Ok(Self { device: Arc::new(device), arch, target }),
            false => Err(E::MissingLibrary(Library::Nvrtc)),
        }
    }

    fn report(&self, number: u32) -> report::Gpu {
        let properties = self.device.properties();
        let (major, minor) = properties.capability;
        report::Gpu {
            number,
            multiprocessors: properties.multiprocessors,
            capability: format!("{major}.{minor}"),
            memory_bytes: properties.memory as u64,
            host: processor(),
        }
    }
}

/// Opens the device asked for, and starts the threads.
///
/// # Errors
/// [`Error::Device`] if a GPU is asked for and cannot be used; [`Error::Flag`] for a target of another kind, and if the
/// threads cannot be started.
pub(crate) fn prepare(run: &Run) -> Result<Machine, Error> {
    if let Some(threads) = run.threads {
        let set = graphene_runtime::cpu::set_threads(threads);
        set.map_err(|error| Error::flag("--threads", error.to_string()))?;
    }
    let for_cpu = run.target.as_ref().is_some_and(is_cpu);
    let cpu = |note| Machine { report: describe(), gpu: None, cache: None, note };
    let (number, opened) = match run.device {
        Device::Cpu => return Ok(cpu(None)),
        Device::Auto if for_cpu => return Ok(cpu(None)),
        Device::Auto => (0, Gpu::open(0)),
        Device::Cuda(_) if for_cpu => {
            let reason =
                "a plan for the CPU does not run on a GPU; leave out one of --target and --device";
            return Err(Error::flag("--target", reason));
        }
        Device::Cuda(number) => (number, Gpu::open(number)),
    };
    match (opened, run.device) {
        (Ok(mut gpu), _) => {
            gpu.target.tf32 = run.dtype.is_tf32();
            let name = gpu.device.properties().name.clone();
            let report =
                report::Device { kind: "cuda", name, gpu: Some(gpu.report(number)), ..describe() };
            let folder = Cache::default_folder();
            let note = folder.is_none().then(|| {
                "kernels are not kept for later runs: there is no home; GRAPHENE_CACHE names a folder".to_owned()
            });
            let limit = run.cache_mib.saturating_mul(1 << 20);
            let cache = folder.map(|folder| Cache::new(folder).within(limit));
            let (cache, note) = if run.no_cache { (None, None) } else { (cache, note) };
            Ok(Machine { report, gpu: Some(gpu), cache, note })
        }
        (Err(error), Device::Cuda(_)) => {
            Err(Error::Device(format!("--device cuda:{number}: {error}")))
        }
        (Err(error), Device::Auto | Device::Cpu) => Ok(cpu(unused(&error)?)),
    }
}

/// Whether `--device auto` takes a GPU.
///
/// # Errors
/// Why not.
pub(crate) fn usable() -> Result<(), graphene_runtime::Error> {
    Gpu::open(0).map(drop)
}

/// What to say of a GPU that is there, but not used.
///
/// # Errors
/// [`Error::Device`] for one that would be used, had it memory left: the host's cores are not what is expected then.
fn unused(error: &graphene_runtime::Error) -> Result<Option<String>, Error> {
    use graphene_runtime::Error as E;
    match error {
        E::MissingLibrary(Library::Driver) | E::NoDevice { .. } => Ok(None),
        E::Device { status, .. } if status.starts_with("CUDA_ERROR_OUT_OF_MEMORY") => {
            Err(Error::Device(format!("{error}; --device cpu does without it")))
        }
        error => Ok(Some(format!("the GPU is not used: {error}"))),
    }
}

/// The host.
pub(crate) fn describe() -> report::Device {
    let threads = graphene_runtime::cpu::threads();
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

#[cfg(test)]
mod tests {
    use super::{Library, unused};
    use graphene_runtime::Error as E;

    #[test]
    fn only_a_full_gpu_is_not_passed_over() {
        let failed = |status: &str| E::Device { call: "cuCtxCreate", status: status.to_owned() };
        assert_eq!(unused(&E::MissingLibrary(Library::Driver)).unwrap(), None);
        let note = unused(&failed("CUDA_ERROR_SYSTEM_NOT_READY")).unwrap().unwrap();
        assert!(note.starts_with("the GPU is not used: "), "{note}");
        let error = unused(&failed("CUDA_ERROR_OUT_OF_MEMORY: no memory left")).unwrap_err();
        assert_eq!(error.code(), 6);
        assert!(error.to_string().contains("--device cpu"), "{error}");
    }
}
