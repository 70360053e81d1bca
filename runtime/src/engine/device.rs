//! The device of an engine.

#[cfg(feature = "cuda")]
use crate::error::Error;
use crate::error::Result;
#[cfg(feature = "cuda")]
use crate::{device, gpu};
use graphene_ir::arch::Arch;
use graphene_ir::target::Target;
use std::path::PathBuf;

/// Where models run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Device {
    /// The first GPU that kernels can be made for, else the host's cores.
    #[default]
    Auto,
    /// The host's cores.
    Cpu,
    /// The GPU of this number, from 0.
    Cuda(usize),
}

/// What a device is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// `cpu`, or a GPU's name.
    pub name: String,
    /// Bytes of its memory; `u64::MAX` where the system does not tell.
    pub memory: u64,
    /// What there is to know of it as a GPU, if it is one.
    pub gpu: Option<GpuInfo>,
    /// What is worth knowing about the choice: why [`Device::Auto`] did not take a GPU that is there, or why kernels are
    /// not kept.
    pub note: Option<String>,
}

/// What a GPU is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GpuInfo {
    /// Its number, from 0.
    pub number: usize,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// The architecture that kernels are compiled for.
    pub arch: Arch,
}

/// Where kernels for a GPU are kept, and how many bytes of them, if not as many as by default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct CacheChoice {
    pub(crate) place: CachePlace,
    pub(crate) limit: Option<u64>,
}

/// Where kernels for a GPU are kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum CachePlace {
    /// A folder of the user's own.
    #[default]
    User,
    /// This folder.
    Folder(PathBuf),
    /// Nowhere.
    None,
}

/// An open device.
pub(crate) enum Opened {
    /// The host's cores.
    Cpu {
        /// Why no GPU was taken, where one is there.
        note: Option<String>,
    },
    /// A GPU.
    #[cfg(feature = "cuda")]
    Cuda(Box<Cuda>),
}

/// An open GPU.
#[cfg(feature = "cuda")]
pub(crate) struct Cuda {
    number: usize,
    pub(crate) device: device::Device,
    /// What kernels are compiled for.
    pub(crate) arch: Arch,
    pub(crate) target: Target,
    /// The order of what no context does.
    pub(crate) stream: device::Stream,
    /// Where kernels are kept, if they are.
    pub(crate) cache: Option<gpu::Cache>,
    /// Why they are not, if that is not what was asked for.
    note: Option<String>,
}

impl Opened {
    /// Opens a device.
    ///
    /// # Errors
    /// See [`EngineBuilder::build`](super::EngineBuilder::build).
    #[cfg(feature = "cuda")]
    pub(crate) fn open(device: Device, cache: &CacheChoice) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Self::Cpu { note: None }),
            Device::Cuda(number) => Ok(Self::Cuda(Box::new(Cuda::open(number, cache)?))),
            Device::Auto => match Cuda::open(0, cache) {
                Ok(cuda) => Ok(Self::Cuda(Box::new(cuda))),
                Err(error) => Ok(Self::Cpu { note: passed_over(error)? }),
            },
        }
    }

    /// Opens a device.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a GPU.
    #[cfg(not(feature = "cuda"))]
    pub(crate) fn open(device: Device, _cache: &CacheChoice) -> Result<Self> {
        match device {
            Device::Auto | Device::Cpu => Ok(Self::Cpu { note: None }),
            Device::Cuda(_) => {
                Err(crate::Error::Unsupported { what: "a GPU, without the feature `cuda`," })
            }
        }
    }

    /// What plans are made for, with so many cores on a CPU.
    pub(crate) fn target(&self, threads: usize) -> Target {
        match self {
            Self::Cpu { .. } => Target::cpu(u32::try_from(threads).unwrap_or(u32::MAX)),
            #[cfg(feature = "cuda")]
            Self::Cuda(cuda) => cuda.target.clone(),
        }
    }

    /// Bytes of its memory; `u64::MAX` where the system does not tell.
    pub(crate) fn memory(&self) -> u64 {
        match self {
            Self::Cpu { .. } => host_memory().unwrap_or(u64::MAX),
            #[cfg(feature = "cuda")]
            Self::Cuda(cuda) => cuda.device.properties().memory as u64,
        }
    }

    /// What it is.
    pub(crate) fn info(&self) -> DeviceInfo {
        let memory = self.memory();
        match self {
            Self::Cpu { note } => {
                DeviceInfo { name: "cpu".to_owned(), memory, gpu: None, note: note.clone() }
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(cuda) => {
                let properties = cuda.device.properties();
                let gpu = GpuInfo {
                    number: cuda.number,
                    multiprocessors: properties.multiprocessors,
                    capability: properties.capability,
                    arch: cuda.arch,
                };
                let warning = || cuda.cache.as_ref().and_then(gpu::Cache::warning);
                let note = cuda.note.clone().or_else(warning);
                DeviceInfo { name: properties.name.clone(), memory, gpu: Some(gpu), note }
            }
        }
    }
}

/// Why kernels are not kept where no folder is named.
#[cfg(feature = "cuda")]
const HOMELESS: &str =
    "kernels are not kept for later runs: there is no home; GRAPHENE_CACHE names a folder";

#[cfg(feature = "cuda")]
impl Cuda {
    /// Opens a GPU for which kernels can be made here.
    fn open(number: usize, cache: &CacheChoice) -> Result<Self> {
        let device = device::Device::open(number)?;
        let unsupported =
            Error::Unsupported { what: "a GPU that is older than Volta or newer than Hopper" };
        let arch = device.properties().arch().ok_or(unsupported)?;
        let mut target: Target = arch.to_string().parse()?;
        target.cores = device.properties().multiprocessors;
        if !device::Library::Nvrtc.found() {
            return Err(Error::MissingLibrary(device::Library::Nvrtc));
        }
        let (folder, note) = match &cache.place {
            CachePlace::User => match gpu::Cache::default_folder() {
                Some(folder) => (Some(folder), None),
                None => (None, Some(HOMELESS.to_owned())),
            },
            CachePlace::Folder(folder) => (Some(folder.clone()), None),
            CachePlace::None => (None, None),
        };
        let limit = cache.limit.unwrap_or(gpu::Cache::LIMIT);
        let cache = folder.map(|folder| gpu::Cache::new(folder).within(limit));
        let stream = device.stream()?;
        Ok(Self { number, device, arch, target, stream, cache, note })
    }
}

/// What to say of a GPU that is there, but not used.
///
/// # Errors
/// The error of one that would be used, had it memory left: the host's cores are not what is expected then.
#[cfg(feature = "cuda")]
fn passed_over(error: Error) -> Result<Option<String>> {
    match error {
        Error::MissingLibrary(device::Library::Driver) | Error::NoDevice { .. } => Ok(None),
        Error::Device { ref status, .. } if status.starts_with("CUDA_ERROR_OUT_OF_MEMORY") => {
            Err(error)
        }
        error => Ok(Some(format!("the GPU is not used: {error}"))),
    }
}

/// Bytes of the host's memory that this process may have: the machine's, or its control group's if that has fewer.
pub(crate) fn host_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let machine = kibibytes.checked_mul(1024)?;
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse().ok());
    Some(group.map_or(machine, |group: u64| group.min(machine)))
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::{device::Library, passed_over};
    use crate::Error;

    #[test]
    fn only_a_full_gpu_is_not_passed_over() {
        let failed =
            |status: &str| Error::Device { call: "cuCtxCreate", status: status.to_owned() };
        assert_eq!(passed_over(Error::MissingLibrary(Library::Driver)), Ok(None));
        let note = passed_over(failed("CUDA_ERROR_SYSTEM_NOT_READY")).expect("it is passed over");
        assert!(note.expect("it is said").starts_with("the GPU is not used: "));
        assert!(passed_over(failed("CUDA_ERROR_OUT_OF_MEMORY: none left")).is_err());
    }
}
