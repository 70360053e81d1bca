//! An engine: a device, threads of its own, and a limit on the memory of all that runs there.

mod budget;
mod device;

pub use device::{Device, DeviceInfo, GpuInfo};

pub(crate) use budget::{Budget, Reservation};
pub(crate) use device::Opened;

use crate::error::{Error, Result};
use crate::threads::Threads;
use graphene_ir::target::Target;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// What models are loaded on: a device, threads and a memory limit. Clones are the same engine; it ends with the last of
/// them and of its models.
///
/// ```
/// use graphene_runtime::{Device, Engine};
///
/// let engine = Engine::builder().device(Device::Cpu).threads(2).memory_limit(4 << 30).build()?;
/// assert_eq!(engine.threads(), 2);
/// # Ok::<_, graphene_runtime::Error>(())
/// ```
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    opened: Opened,
    threads: Threads,
    budget: Budget,
    /// The error after which the device is lost, once there was one.
    lost: Mutex<Option<String>>,
}

/// How an engine is to be; see [`Engine::builder`].
#[derive(Clone, Debug, Default)]
pub struct EngineBuilder {
    device: Device,
    threads: Option<usize>,
    memory: Option<u64>,
    cache: device::CacheChoice,
}

impl Engine {
    /// An engine on the machine's GPU, or on all of its cores where there is none that can be used.
    ///
    /// # Errors
    /// As for [`EngineBuilder::build`].
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// An engine with settings of one's own.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// The device.
    pub fn device(&self) -> DeviceInfo {
        self.0.opened.info()
    }

    /// What plans are made for.
    pub fn target(&self) -> Target {
        self.0.opened.target(self.threads())
    }

    /// Where kernels for its GPU are kept, if they are.
    #[cfg(feature = "cuda")]
    pub fn kernel_cache(&self) -> Option<&crate::gpu::Cache> {
        match &self.0.opened {
            Opened::Cpu { .. } => None,
            Opened::Cuda(cuda) => cuda.cache.as_ref(),
        }
    }

    /// How many threads compute: the caller's own, and the engine's.
    pub fn threads(&self) -> usize {
        self.0.threads.count()
    }

    /// The memory limit, in bytes, of weights, arenas and buffers on the device.
    pub fn memory_limit(&self) -> u64 {
        self.0.budget.limit()
    }

    /// Bytes of the limit that models and contexts have.
    pub fn memory_used(&self) -> u64 {
        self.0.budget.used()
    }

    /// Whether the device still takes work: after some errors a GPU is lost to its process.
    ///
    /// # Errors
    /// [`Error::Unhealthy`].
    pub fn health(&self) -> Result<()> {
        let lost = self.0.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.as_ref().map_or(Ok(()), |cause| Err(Error::Unhealthy { cause: cause.clone() }))
    }

    /// The error of something that was done on the device; after one that the device doesn't recover from the engine is
    /// unhealthy.
    pub(crate) fn noted(&self, error: Error) -> Error {
        if error.is_sticky() {
            let mut lost = self.0.lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.get_or_insert_with(|| error.to_string());
        }
        error
    }

    pub(crate) fn opened(&self) -> &Opened {
        &self.0.opened
    }

    pub(crate) fn pool(&self) -> &Threads {
        &self.0.threads
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.0.budget
    }
}

impl EngineBuilder {
    /// The device; [`Device::Auto`] by default.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// How many threads compute, the caller's included; by default as many as the machine has cores.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Bytes that weights, arenas and buffers may take together; by default the device's memory.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// The folder in which kernels for a GPU are kept for later processes, and the bytes that they may take there. By
    /// default a folder of the user's own.
    #[must_use]
    pub fn kernel_cache(mut self, folder: impl AsRef<Path>, bytes: u64) -> Self {
        let place = device::CachePlace::Folder(folder.as_ref().to_owned());
        self.cache = device::CacheChoice { place, limit: Some(bytes) };
        self
    }

    /// The bytes that kernels for a GPU may take where they are kept; 1 GiB by default. Those that nobody has used for
    /// longest are removed beyond that.
    #[must_use]
    pub fn kernel_cache_limit(mut self, bytes: u64) -> Self {
        self.cache.limit = Some(bytes);
        self
    }

    /// Kernels are not kept.
    #[must_use]
    pub fn without_kernel_cache(mut self) -> Self {
        self.cache.place = device::CachePlace::None;
        self
    }

    /// Opens the device and starts the threads.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::MissingLibrary`], [`Error::OldLibrary`], [`Error::Unsupported`] and
    /// [`Error::Device`] for a GPU that was asked for and cannot be used; [`Error::Threads`].
    pub fn build(self) -> Result<Engine> {
        let opened = Opened::open(self.device, &self.cache)?;
        let threads = Threads::new(self.threads.unwrap_or_else(cores).max(1))?;
        let limit = self.memory.unwrap_or_else(|| opened.memory());
        let (budget, lost) = (Budget::new(limit), Mutex::default());
        Ok(Engine(Arc::new(Inner { opened, threads, budget, lost })))
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("device", &self.device())
            .field("threads", &self.threads())
            .finish()
    }
}

/// Cores that the process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
