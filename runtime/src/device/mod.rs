//! NVIDIA GPUs: compiling sources, memory, launches, time and CUDA graphs; [`cublaslt`] and [`cudnn`] are NVIDIA's own.
//!
//! A [`Launch`] says all that there is to know of a kernel; nothing here knows one by name. [`compile`] needs no GPU.
//! A [`Device`] is a GPU as the whole process shares it: [`Device::load`] takes compiled code. A [`Stream`] is work in an
//! order of its own, beside that of other streams: [`Stream::alloc`] gives memory of it, [`Kernel::bind`] takes buffers and
//! sizes, and [`Bound::launch`] runs it behind all that was launched on the stream before. Libraries are loaded when first
//! needed; without them there are errors.
//!
//! All of these may be used from any thread, several at once. [`Stream::capture`] records what its own thread launches, and
//! nothing else, whatever other threads do meanwhile.

mod bind;
mod buffer;
mod compile;
pub mod cublaslt;
pub mod cudnn;
pub mod dlpack;
mod kernel;
pub(crate) mod library;
mod stream;
mod sys;

pub use buffer::Buffer;
pub(crate) use compile::options;
pub use compile::{CompileLog, Cubin, compile, compile_ptx, compiler, compiles_for};
pub use kernel::{Bound, Kernel};
pub use library::Library;
pub(crate) use stream::HostCall;
pub use stream::{Graph, Stream};

use crate::error::Result;
use cudarc::driver::sys::CUdevice_attribute;
use graphene_ir::arch::Arch;
use graphene_ir::launch::Launch;
use std::fmt;
use std::sync::Arc;
use sys::context::Context;
use sys::failed;

/// A GPU, as all threads of the process share it. Clones are the same.
#[derive(Clone)]
pub struct Device(Arc<Opened>);

/// A GPU's context, and what it is.
struct Opened {
    context: Arc<Context>,
    properties: Properties,
}

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// Its name.
    pub name: String,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Global memory, in bytes.
    pub memory: usize,
}

impl Properties {
    /// The newest architecture whose machine code it runs.
    pub fn arch(&self) -> Option<Arch> {
        let runs =
            Arch::ALL.map(|row| row.0).into_iter().filter(|arch| arch.runs_on(self.capability));
        runs.max_by_key(|arch| arch.capability())
    }
}

impl Device {
    /// Opens the GPU of this number, from 0, in its primary context.
    ///
    /// # Errors
    ///
    /// [`crate::Error::MissingLibrary`] or [`crate::Error::OldLibrary`] without a driver that serves; [`crate::Error::NoDevice`]
    /// where there is no such GPU; [`crate::Error::Device`] if the driver refuses.
    pub fn open(index: usize) -> Result<Device> {
        let context = Context::open(index)?;
        context.make_current()?;
        let cuda = context.cuda();
        let multiprocessors =
            cuda.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        let asked = failed("cuDeviceGetAttribute");
        let properties = Properties {
            name: cuda.name().map_err(failed("cuDeviceGetName"))?,
            multiprocessors: multiprocessors.map_err(&asked)?.unsigned_abs(),
            capability: cuda.compute_capability().map_err(&asked)?,
            memory: cuda.total_mem().map_err(failed("cuDeviceTotalMem"))?,
        };
        Ok(Device(Arc::new(Opened { context, properties })))
    }

    /// What the GPU is.
    pub fn properties(&self) -> &Properties {
        &self.0.properties
    }

    /// Bytes of its memory that can be allocated: those that nobody has, and those that were freed and are kept for this
    /// process.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Device`].
    pub fn free_bytes(&self) -> Result<usize> {
        Ok(self.0.context.memory()?.0)
    }

    /// A new stream of work on it.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Device`].
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// Loads a kernel.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Parameters`] if the kernel's parameters have not the sizes that the description says;
    /// [`crate::Error::Device`] if the cubin is for another GPU, has no such entry, or asks for more shared memory than a block
    /// may have.
    pub fn load(&self, cubin: &Cubin, launch: &Launch) -> Result<Kernel> {
        Kernel::load(self, cubin, launch)
    }

    /// Whether both are one GPU.
    pub fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0.context, &other.0.context)
    }

    fn context(&self) -> &Arc<Context> {
        &self.0.context
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.0.properties).finish()
    }
}

/// What threads share, and what goes from one to another, says so here: a field that cannot be shared fails to compile.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    const fn sent<T: Send>() {}
    shared::<Device>();
    shared::<Stream>();
    shared::<Buffer>();
    shared::<Kernel>();
    shared::<Bound>();
    shared::<cublaslt::Context>();
    shared::<cublaslt::BoundGemm>();
    shared::<cudnn::Context>();
    shared::<cudnn::Weights>();
    sent::<Graph>();
};
