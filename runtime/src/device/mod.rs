//! NVIDIA GPUs: compiling sources, memory, launches, time and CUDA graphs; [`cublaslt`] and [`cudnn`] are NVIDIA's own.
//!
//! A [`Launch`] says all that there is to know of a kernel; nothing here knows one by name. [`compile`] needs no GPU.
//! [`Device::load`] takes its result, [`Kernel::bind`] buffers and sizes, and [`Bound::launch`] runs it behind all that
//! was launched on the device before. Libraries are loaded when first needed; without them there are errors.

mod bind;
mod compile;
pub mod cublaslt;
pub mod cudnn;
mod sys;

pub(crate) use compile::options;
pub use compile::{CompileLog, Cubin, compile, compile_ptx, compiler, compiles_for};
pub use sys::Library;

use crate::error::{Error, Result};
use bind::Value;
use cudarc::driver::sys::{
    CUdevice_attribute, CUevent_flags, CUfunction_attribute, CUgraphInstantiate_flags,
    CUstreamCaptureMode,
};
use cudarc::driver::{CudaGraph, CudaStream};
use cudarc::nvrtc::Ptx;
use graphene_ir::arch::Arch;
use graphene_ir::launch::Launch;
use std::sync::Arc;
use sys::host::{HostFunction, Recorded, Recording};
use sys::{Memory, Slot, failed};

/// The largest cluster that every GPU with clusters runs.
const PORTABLE_CLUSTER: u32 = 8;

/// A GPU, and one stream of work on it.
pub struct Device {
    stream: Arc<CudaStream>,
    properties: Properties,
    recording: Recording,
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
        let (major, minor) = self.capability;
        let runs = |arch: Arch| {
            let number = compile::number(arch);
            number / 10 == major && number % 10 <= minor
        };
        Arch::ALL.iter().rev().map(|row| row.0).find(|&arch| runs(arch))
    }
}

impl Device {
    /// Opens the GPU of this number, from 0, in its primary context.
    ///
    /// # Errors
    ///
    /// [`Error::MissingLibrary`] or [`Error::OldLibrary`] without a driver that serves; [`Error::NoDevice`] where there
    /// is no such GPU; [`Error::Device`] if the driver refuses.
    pub fn open(index: usize) -> Result<Device> {
        let stream = sys::open(index)?;
        let context = stream.context();
        let multiprocessors =
            context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        let asked = failed("cuDeviceGetAttribute");
        let properties = Properties {
            name: context.name().map_err(failed("cuDeviceGetName"))?,
            multiprocessors: multiprocessors.map_err(&asked)?.unsigned_abs(),
            capability: context.compute_capability().map_err(&asked)?,
            memory: context.total_mem().map_err(failed("cuDeviceTotalMem"))?,
        };
        Ok(Device { stream, properties, recording: Recording::default() })
    }

    /// What the GPU is.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Bytes of its memory that nobody has.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn free_bytes(&self) -> Result<usize> {
        let (free, _) = self.stream.context().mem_get_info().map_err(failed("cuMemGetInfo"))?;
        Ok(free)
    }

    /// A buffer of zeros, aligned to 256 bytes.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMemory`] if there is none left; [`Error::Device`].
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let memory = Arc::new(Memory::zeroed(&self.stream, bytes)?);
        Ok(Buffer { memory, first: 0, len: bytes })
    }

    /// A buffer with these bytes.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Device::alloc).
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.alloc(bytes.len())?;
        buffer.write(bytes)?;
        Ok(buffer)
    }

    /// Loads a kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Parameters`] if the kernel's parameters have not the sizes that the description says;
    /// [`Error::Device`] if the cubin is for another GPU, has no such entry, or asks for more shared memory than a block
    /// may have.
    pub fn load(&self, cubin: &Cubin, launch: &Launch) -> Result<Kernel> {
        if launch.entry.contains('\0') {
            return Err(Error::Unsupported { what: "a name with a NUL in it" });
        }
        let image = Ptx::from_binary(cubin.image().to_vec());
        let context = self.stream.context();
        let module = context.load_module(image).map_err(failed("cuModuleLoadData"))?;
        let function =
            module.load_function(&launch.entry).map_err(failed("cuModuleGetFunction"))?;
        let set = |attribute, value| {
            function.set_attribute(attribute, value).map_err(failed("cuFuncSetAttribute"))
        };
        let shared = i32::try_from(launch.shared_bytes)
            .map_err(|_| Error::TooLarge { what: "a block's shared memory" })?;
        set(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)?;
        if launch.cluster > PORTABLE_CLUSTER {
            set(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
        }
        let function = sys::Function::new(function, bind::sizes(launch))?;
        Ok(Kernel { function, launch: launch.clone(), stream: self.stream.clone() })
    }

    /// Waits until all that was launched is done.
    ///
    /// # Errors
    ///
    /// [`Error::Device`], also for what a kernel did wrong, after which the device is lost to this process.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(failed("cuStreamSynchronize"))
    }

    /// A function of the host that is called between launches: it reads the bytes that `inputs` have when all that was
    /// launched before is done, and writes those of `outputs`. It is called on a thread of the driver's, must not use the
    /// device, and says by itself whether it succeeded: a panic ends there.
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`] for a buffer of another device, [`Error::Memory`], [`Error::Device`].
    pub(crate) fn host_call(
        &self,
        inputs: Vec<Buffer>,
        outputs: Vec<Buffer>,
        work: impl FnMut(&[&[u8]], &mut [&mut [u8]]) + Send + 'static,
    ) -> Result<HostCall> {
        let all = inputs.iter().chain(&outputs);
        all.clone().try_for_each(|buffer| self.check_own("what the host computes", buffer))?;
        let at = |buffers: &[Buffer]| -> Vec<(u64, usize)> {
            buffers.iter().map(|buffer| (buffer.pointer(), buffer.len())).collect()
        };
        let (down, up) = (at(&inputs), at(&outputs));
        let function =
            HostFunction::new((&self.stream, &self.recording), &down, &up, Box::new(work))?;
        Ok(HostCall { function, _buffers: all.cloned().collect() })
    }

    /// Microseconds on the device from the first launch of `work` to the end of its last.
    ///
    /// # Errors
    ///
    /// Those of `work`; [`Error::Device`].
    pub fn time(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let event = || {
            let event = self.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
            event.map_err(failed("cuEventRecord"))
        };
        let start = event()?;
        work()?;
        let milliseconds = start.elapsed_ms(&event()?).map_err(failed("cuEventElapsedTime"))?;
        Ok(f64::from(milliseconds) * 1000.0)
    }

    /// Records the launches of `work` as a CUDA graph instead of running them. No buffer may be made, written, read or
    /// dropped in it, and no other thread may use this device meanwhile.
    ///
    /// # Errors
    ///
    /// Those of `work`; [`Error::Device`].
    pub fn capture<'a>(&self, work: impl Fn() -> Result<()> + 'a) -> Result<Graph<'a>> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(failed("cuStreamBeginCapture"))?;
        self.recording.begin();
        let outcome = work();
        let recorded = self.recording.end();
        // The capture ends also where the work failed, or the stream could not be used again.
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0));
        outcome?;
        let graph = graph.map_err(failed("cuStreamEndCapture"))?;
        let graph = graph.ok_or(Error::Unsupported { what: "a graph of nothing" })?;
        Ok(Graph { graph, _work: Box::new(work), _recorded: recorded })
    }

    /// Whether the buffer is this device's.
    fn check_own(&self, name: &str, buffer: &Buffer) -> Result<()> {
        check_same(&self.stream, name, buffer)
    }
}

fn check_same(stream: &Arc<CudaStream>, name: &str, buffer: &Buffer) -> Result<()> {
    if Arc::ptr_eq(stream, buffer.memory.stream()) {
        Ok(())
    } else {
        Err(Error::Foreign { tensor: name.to_owned() })
    }
}

/// Memory of a device, or a part of it. Clones and parts are the same memory, which is freed with the last of them.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<Memory>,
    first: usize,
    len: usize,
}

impl Buffer {
    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` of its bytes from `first` on.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] if it has fewer.
    pub fn part(&self, first: usize, len: usize) -> Result<Buffer> {
        if first > self.len || len > self.len - first {
            let found = first.saturating_add(len);
            return Err(Error::Mismatch { what: "a part of a buffer", expected: self.len, found });
        }
        Ok(Buffer { memory: self.memory.clone(), first: self.first + first, len })
    }

    /// Overwrites the first bytes, behind all that was launched, and waits until that is done.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] if the buffer is shorter; [`Error::Device`].
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.len {
            let (expected, found) = (self.len, bytes.len());
            return Err(Error::Mismatch { what: "bytes of a buffer", expected, found });
        }
        self.memory.write(self.first, bytes)
    }

    /// What it holds after all that was launched.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn download(&self) -> Result<Vec<u8>> {
        self.memory.read(self.first, self.len)
    }

    fn pointer(&self) -> u64 {
        self.memory.pointer() + self.first as u64
    }
}

/// A kernel that is loaded on a device.
pub struct Kernel {
    function: sys::Function,
    launch: Launch,
    stream: Arc<CudaStream>,
}

impl Kernel {
    /// Its name in the source.
    pub fn name(&self) -> &str {
        &self.launch.entry
    }

    /// Gives a launch its tensors and sizes, by name; what the kernel does not ask for is left aside.
    ///
    /// # Errors
    ///
    /// [`Error::Unbound`] for what is not given, [`Error::Symbol`] for a value outside its range, [`Error::Condition`]
    /// for one that does not hold, [`Error::Short`] for a buffer that ends before its tensor, [`Error::Foreign`] for
    /// one of another device, [`Error::Grid`] for a number of blocks that cannot be launched, and [`Error::Device`] for
    /// a tensor map that the driver refuses.
    pub fn bind(&self, buffers: &[(&str, &Buffer)], symbols: &[(&str, i64)]) -> Result<Bound> {
        for (name, buffer) in buffers {
            check_same(&self.stream, name, buffer)?;
        }
        let span = |buffer: &Buffer| bind::Span { pointer: buffer.pointer(), bytes: buffer.len() };
        let tensors: Vec<_> = buffers.iter().map(|&(name, buffer)| (name, span(buffer))).collect();
        let values = bind::values(&self.launch, &tensors, symbols)?;
        let slot = |value| {
            Ok(match value {
                Value::Pointer(pointer) => Slot::Pointer(pointer),
                Value::Symbol(value) => Slot::Symbol(value),
                Value::Map(map) => Slot::Map(Box::new(sys::encode(&map)?)),
            })
        };
        let slots = values.params.into_iter().map(slot).collect::<Result<_>>()?;
        let shape = sys::Shape {
            grid: values.grid,
            cluster: self.launch.cluster,
            block: self.launch.block,
            shared_bytes: self.launch.shared_bytes,
            dependent: self.launch.dependent,
            cooperative: self.launch.cooperative,
        };
        Ok(Bound {
            name: self.launch.entry.clone(),
            function: self.function.clone(),
            shape,
            slots,
            stream: self.stream.clone(),
            _buffers: buffers.iter().map(|&(_, buffer)| buffer.clone()).collect(),
        })
    }
}

/// A kernel with all that a launch needs.
pub struct Bound {
    name: String,
    function: sys::Function,
    shape: sys::Shape,
    slots: Vec<Slot>,
    stream: Arc<CudaStream>,
    /// Kept, so that the pointers stay good.
    _buffers: Vec<Buffer>,
}

impl Bound {
    /// The name of its kernel.
    pub fn kernel(&self) -> &str {
        &self.name
    }

    /// Launches, behind all that was launched before, and does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn launch(&self) -> Result<()> {
        sys::launch(&self.stream, &self.function, self.shape, &self.slots)
    }
}

/// A function of the host with the memory of the device that it reads and writes.
pub(crate) struct HostCall {
    function: HostFunction,
    /// Kept, so that the pointers stay good.
    _buffers: Vec<Buffer>,
}

impl HostCall {
    /// Calls it, behind all that was launched before, and does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub(crate) fn launch(&self) -> Result<()> {
        self.function.launch()
    }
}

/// Launches that are recorded, to be replayed as one.
pub struct Graph<'a> {
    graph: CudaGraph,
    /// Kept, so that what it launches, kernels and buffers, lives as long as the graph.
    _work: Box<dyn Fn() -> Result<()> + 'a>,
    _recorded: Recorded,
}

impl Graph<'_> {
    /// Launches all, behind all that was launched before, and does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn launch(&self) -> Result<()> {
        self.graph.launch().map_err(failed("cuGraphLaunch"))
    }
}
