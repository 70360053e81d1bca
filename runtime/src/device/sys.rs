//! The only caller of CUDA: what NVRTC and the driver do with raw memory and handles; in `sys/`, cuBLASLt and cuDNN.
//!
//! A function here is safe to call with any values. What a kernel does to memory of the device is its
//! emitter's promise, and no memory of the host is reachable from it but what `sys/host.rs` copies.
#![allow(unsafe_code)]

pub(super) mod cublaslt;
pub(super) mod cudnn;
pub(super) mod host;

use super::compile::Form;
use crate::error::{Error, Result};
use cudarc::cublaslt::sys as lt_sys;
use cudarc::cudnn::sys as dnn_sys;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, result, sys};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use graphene_ir::tensor::Scalar;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// A library that is loaded when it is first needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// The driver, `libcuda.so.1`.
    Driver,
    /// The compiler of CUDA C++, `libnvrtc.so.12` or `.13`.
    Nvrtc,
    /// The matrix products, `libcublasLt.so.12` or `.13`.
    CublasLt,
    /// The recurrent layers and softmaxes, `libcudnn.so.9`.
    Cudnn,
}

impl Library {
    /// All of them.
    pub const ALL: [Library; 4] =
        [Library::Driver, Library::Nvrtc, Library::CublasLt, Library::Cudnn];

    /// Whether it can be loaded.
    pub fn found(self) -> bool {
        static FOUND: [OnceLock<bool>; 4] = [const { OnceLock::new() }; 4];
        // SAFETY: loading runs NVIDIA's initialisers, which ask nothing of the process.
        *FOUND[self as usize].get_or_init(|| unsafe {
            match self {
                Library::Driver => sys::is_culib_present(),
                Library::Nvrtc => nvrtc_sys::is_culib_present(),
                Library::CublasLt => lt_sys::is_culib_present(),
                Library::Cudnn => dnn_sys::is_culib_present(),
            }
        })
    }

    /// What `cudarc` would panic without: the library, and its newest functions that are called here.
    ///
    /// # Errors
    ///
    /// [`Error::MissingLibrary`] and [`Error::OldLibrary`].
    pub(crate) fn require(self) -> Result<()> {
        if !self.found() {
            return Err(Error::MissingLibrary(self));
        }
        let newest: &[&CStr] = match self {
            Library::Driver => &[c"cuTensorMapEncodeTiled", c"cuEventElapsedTime_v2"],
            Library::Nvrtc => &[c"nvrtcGetCUBIN", c"nvrtcGetSupportedArchs"],
            Library::CublasLt => &[],
            // Before version 9, errors have other numbers than those known here.
            Library::Cudnn => &[c"cudnnRNNForward", c"cudnnGetLastErrorString"],
        };
        match newest.iter().all(|symbol| self.has(symbol)) {
            true => Ok(()),
            false => Err(Error::OldLibrary(self)),
        }
    }

    /// Whether the library, which is there, has a function of this name.
    fn has(self, symbol: &CStr) -> bool {
        let symbol = symbol.to_bytes_with_nul();
        // SAFETY: the library is there, and what is found is not called.
        unsafe {
            match self {
                Library::Driver => sys::culib().get::<*const ()>(symbol).is_ok(),
                Library::Nvrtc => nvrtc_sys::culib().get::<*const ()>(symbol).is_ok(),
                Library::CublasLt => lt_sys::culib().get::<*const ()>(symbol).is_ok(),
                Library::Cudnn => dnn_sys::culib().get::<*const ()>(symbol).is_ok(),
            }
        }
    }

    /// Its version as its maker writes it, `12.9` or `9.19.0`; of the driver, the newest CUDA that it runs.
    ///
    /// # Errors
    ///
    /// [`Error::MissingLibrary`]; [`Error::OldLibrary`] if it does not tell; [`Error::Device`].
    pub fn version(self) -> Result<String> {
        if !self.found() {
            return Err(Error::MissingLibrary(self));
        }
        let asked = match self {
            Library::Driver => c"cuDriverGetVersion",
            Library::Nvrtc => c"nvrtcVersion",
            Library::CublasLt => c"cublasLtGetVersion",
            Library::Cudnn => c"cudnnGetVersion",
        };
        if !self.has(asked) {
            return Err(Error::OldLibrary(self));
        }
        match self {
            Library::Driver => {
                let mut number = 0;
                // SAFETY: the function is there, needs no driver that is initialised, and writes one integer.
                unsafe { sys::cuDriverGetVersion(&mut number) }
                    .result()
                    .map_err(failed("cuDriverGetVersion"))?;
                Ok(format!("{}.{}", number / 1000, number % 1000 / 10))
            }
            Library::Nvrtc => {
                let (mut major, mut minor) = (0, 0);
                // SAFETY: the function is there, and writes two integers.
                let status = unsafe { nvrtc_sys::nvrtcVersion(&mut major, &mut minor) };
                let broken = |e: nvrtc::NvrtcError| Error::Device {
                    call: "nvrtcVersion",
                    status: e.to_string(),
                };
                status.result().map_err(broken)?;
                Ok(format!("{major}.{minor}"))
            }
            // SAFETY: the function is there, and takes nothing.
            Library::CublasLt => Ok(dotted(unsafe { lt_sys::cublasLtGetVersion() })),
            // SAFETY: as above.
            Library::Cudnn => Ok(dotted(unsafe { dnn_sys::cudnnGetVersion() })),
        }
    }
}

/// A library's number as a version: 120903 is 12.9.3, and 91900 is 9.19.0; before 9, cuDNN's 8905 was 8.9.5.
fn dotted(number: usize) -> String {
    match number {
        ..10_000 => format!("{}.{}.{}", number / 1000, number % 1000 / 100, number % 100),
        _ => format!("{}.{}.{}", number / 10_000, number % 10_000 / 100, number % 100),
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Driver => {
                "the CUDA driver (libcuda.so.1; install NVIDIA's driver, 570 or newer)"
            }
            Library::Nvrtc => {
                "NVRTC (libnvrtc.so; install the CUDA toolkit 12 or 13, or the PyPI package \
                 nvidia-cuda-nvrtc-cu12 and put its folder nvidia/cuda_nvrtc/lib on LD_LIBRARY_PATH)"
            }
            Library::CublasLt => {
                "cuBLASLt (libcublasLt.so; install the CUDA toolkit 12 or 13, or the PyPI package \
                 nvidia-cublas-cu12 and put its folder nvidia/cublas/lib on LD_LIBRARY_PATH)"
            }
            Library::Cudnn => {
                "cuDNN (libcudnn.so; install version 9, or the PyPI package nvidia-cudnn-cu12 or -cu13 \
                 and put its folder nvidia/cudnn/lib on LD_LIBRARY_PATH)"
            }
        })
    }
}

/// The error of a call that failed.
pub(super) fn failed(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| {
        let more = match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                ": the GPU has no memory left for what the driver needs; other processes may hold it"
            }
            _ => "",
        };
        Error::Device { call, status: format!("{:?}{more}", error.0) }
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Unsupported { what: "a text with a NUL in it" })
}

// ---- NVRTC

/// What NVRTC made of a source.
pub(super) struct Compiled {
    /// The cubin, unless there are errors.
    pub(super) image: Option<Vec<u8>>,
    /// What NVRTC and ptxas said.
    pub(super) log: String,
}

struct Program(nvrtc_sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `create_program` and destroyed once. A failure leaves nothing to do.
        let _ = unsafe { nvrtc::destroy_program(self.0) };
    }
}

/// Compiles, to machine code where `options` name a real architecture; they contain no NUL.
pub(super) fn compile(
    source: &str,
    name: &str,
    options: &[String],
    form: Form,
) -> Result<Compiled> {
    Library::Nvrtc.require()?;
    let broken = |call| move |e: nvrtc::NvrtcError| Error::Device { call, status: e.to_string() };
    let (source, name) = (c_string(source)?, c_string(name)?);
    let program = nvrtc::create_program(&source, Some(&name))
        .map(Program)
        .map_err(broken("nvrtcCreateProgram"))?;
    // SAFETY: the program lives, as do its source and name.
    let outcome = unsafe { nvrtc::compile_program(program.0, options) };
    // SAFETY: the program lives.
    let log = unsafe { nvrtc::get_program_log(program.0) }
        .map_err(broken("nvrtcGetProgramLog"))?
        .into_iter()
        .map(|byte| byte as u8)
        .take_while(|&byte| byte != 0)
        .collect::<Vec<u8>>();
    let mut log = String::from_utf8_lossy(&log).into_owned();
    if let Err(error) = outcome {
        log.push_str(&error.to_string());
        return Ok(Compiled { image: None, log });
    }
    let mut len = 0;
    // SAFETY: the program lives and is compiled.
    let status = unsafe {
        match form {
            Form::Cubin => nvrtc_sys::nvrtcGetCUBINSize(program.0, &mut len),
            Form::Ptx => nvrtc_sys::nvrtcGetPTXSize(program.0, &mut len),
        }
    };
    status.result().map_err(broken("the size of NVRTC's image"))?;
    let mut image = vec![0_u8; len];
    // SAFETY: as above, and the image has the bytes that it said; PTX ends with a NUL, as the driver wants it.
    let status = unsafe {
        match form {
            Form::Cubin => nvrtc_sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast::<c_char>()),
            Form::Ptx => nvrtc_sys::nvrtcGetPTX(program.0, image.as_mut_ptr().cast::<c_char>()),
        }
    };
    status.result().map_err(broken("NVRTC's image"))?;
    Ok(Compiled { image: Some(image), log })
}

/// What NVRTC says of itself at the head of the PTX that it makes of an empty source: its version to the build. Where it
/// makes none, its version alone.
pub(super) fn build() -> Result<String> {
    Library::Nvrtc.require()?;
    let mut text = format!("NVRTC {}", Library::Nvrtc.version()?);
    // The last option makes it twice as quick; older ones do not know it. A cache of NVRTC's own might be of another build.
    let options = ["--no-cache", "-minimal"].map(str::to_owned);
    for options in [&options[..], &options[..1]] {
        let Some(ptx) = compile("", "version", options, Form::Ptx)?.image else { continue };
        let ptx = String::from_utf8_lossy(&ptx);
        let says = |line: &&str| line.starts_with("//") && line.contains(char::is_numeric);
        ptx.lines().take_while(|line| !line.starts_with('.')).filter(says).for_each(|line| {
            text.push('\n');
            text.push_str(line);
        });
        break;
    }
    Ok(text)
}

/// The architectures that NVRTC compiles for, as `sm_86`'s 86.
pub(super) fn architectures() -> Result<Vec<i32>> {
    Library::Nvrtc.require()?;
    let broken = |call| move |e: nvrtc::NvrtcError| Error::Device { call, status: e.to_string() };
    let mut count = 0;
    // SAFETY: it writes one integer.
    unsafe { nvrtc_sys::nvrtcGetNumSupportedArchs(&mut count) }
        .result()
        .map_err(broken("nvrtcGetNumSupportedArchs"))?;
    let mut numbers = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: it writes as many integers as it said.
    unsafe { nvrtc_sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) }
        .result()
        .map_err(broken("nvrtcGetSupportedArchs"))?;
    Ok(numbers)
}

// ---- The driver

/// A stream of its own in the primary context of a GPU.
pub(super) fn open(index: usize) -> Result<Arc<CudaStream>> {
    Library::Driver.require()?;
    let count = match CudaContext::device_count() {
        Ok(count) => usize::try_from(count).unwrap_or(0),
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
        // What the toolkit has to link with where there is no driver.
        Err(DriverError(sys::CUresult::CUDA_ERROR_STUB_LIBRARY)) => {
            return Err(Error::MissingLibrary(Library::Driver));
        }
        Err(error) => return Err(failed("cuDeviceGetCount")(error)),
    };
    if index >= count {
        return Err(Error::NoDevice { index, count });
    }
    let context = CudaContext::new(index).map_err(failed("cuDevicePrimaryCtxRetain"))?;
    // SAFETY: no `CudaSlice` is ever made, so that there is nothing to track.
    unsafe { context.disable_event_tracking() };
    context.new_stream().map_err(failed("cuStreamCreate"))
}

/// Memory of a GPU, of at least one byte.
pub(super) struct Memory {
    pointer: sys::CUdeviceptr,
    len: usize,
    stream: Arc<CudaStream>,
}

impl Memory {
    /// Memory of zeros.
    pub(super) fn zeroed(stream: &Arc<CudaStream>, len: usize) -> Result<Memory> {
        bind(stream)?;
        let bytes = len.max(1);
        // SAFETY: what the memory holds is set below, before anyone has it.
        let pointer = unsafe { result::malloc_sync(bytes) }.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                // Where even this fails, nothing is known to be free.
                let (free, total) = stream.context().mem_get_info().unwrap_or((0, 0));
                Error::DeviceMemory { what: "a buffer".to_owned(), bytes, free, total }
            }
            _ => failed("cuMemAlloc")(error),
        })?;
        let memory = Memory { pointer, len, stream: stream.clone() };
        // SAFETY: the memory has so many bytes.
        unsafe { result::memset_d8_async(pointer, 0, bytes, stream.cu_stream()) }
            .map_err(failed("cuMemsetD8Async"))?;
        Ok(memory)
    }

    pub(super) fn pointer(&self) -> u64 {
        self.pointer
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Where so many bytes from `first` on are.
    fn part(&self, first: usize, bytes: usize) -> Result<sys::CUdeviceptr> {
        if first > self.len || bytes > self.len - first {
            let found = first.saturating_add(bytes);
            return Err(Error::Mismatch { what: "bytes of a buffer", expected: self.len, found });
        }
        Ok(self.pointer + first as u64)
    }

    /// Writes some of the memory's bytes, behind all work of the stream, and waits for it.
    pub(super) fn write(&self, first: usize, bytes: &[u8]) -> Result<()> {
        let to = self.part(first, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        bind(&self.stream)?;
        // SAFETY: both sides have the bytes, and the source is borrowed until the copy is done.
        unsafe { result::memcpy_htod_async(to, bytes, self.stream.cu_stream()) }
            .map_err(failed("cuMemcpyHtoDAsync"))?;
        self.stream.synchronize().map_err(failed("cuStreamSynchronize"))
    }

    /// What some of the memory's bytes are after all work of the stream.
    pub(super) fn read(&self, first: usize, len: usize) -> Result<Vec<u8>> {
        let from = self.part(first, len)?;
        let mut bytes = vec![0; len];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        bind(&self.stream)?;
        // SAFETY: both sides have the bytes, and the target is kept until the copy is done.
        unsafe { result::memcpy_dtoh_async(&mut bytes, from, self.stream.cu_stream()) }
            .map_err(failed("cuMemcpyDtoHAsync"))?;
        self.stream.synchronize().map_err(failed("cuStreamSynchronize"))?;
        Ok(bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The context hands out errors recorded here at its next call.
        let context = self.stream.context();
        context.record_err(self.stream.synchronize());
        // SAFETY: the memory is freed once, when the work that may use it is done.
        context.record_err(unsafe { result::free_sync(self.pointer) });
    }
}

/// An object of a library, and what frees it.
struct Owned<T: Copy, E>(T, unsafe fn(T) -> E);

// SAFETY: objects of libraries are memory of the host without a thread of its own; whoever has one may use it from any
// thread, and what writes to it takes it exclusively or stands behind a lock.
unsafe impl<T: Copy, E> Send for Owned<T, E> {}
// SAFETY: as above; what is called through a shared reference only reads.
unsafe impl<T: Copy, E> Sync for Owned<T, E> {}

impl<T: Copy, E> Drop for Owned<T, E> {
    fn drop(&mut self) {
        // SAFETY: the object is freed once, by what frees its kind. A failure leaves nothing to do.
        let _ = unsafe { (self.1)(self.0) };
    }
}

fn bind(stream: &CudaStream) -> Result<()> {
    stream.context().bind_to_thread().map_err(failed("cuCtxSetCurrent"))
}

/// A tensor map to encode, all expressions evaluated; see [`graphene_ir::launch::TensorMap`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Map {
    pub(super) pointer: u64,
    pub(super) scalar: Scalar,
    pub(super) sizes: Vec<u64>,
    pub(super) strides: Vec<u64>,
    pub(super) window: Vec<u32>,
    pub(super) swizzle: u32,
}

/// Encodes a tensor map; coordinates outside give zeros.
pub(super) fn encode(map: &Map) -> Result<sys::CUtensorMap> {
    use sys::{CUtensorMapDataType as Type, CUtensorMapSwizzle as Swizzle};
    let rank = map.sizes.len();
    if !(1..=5).contains(&rank) || map.strides.len() + 1 != rank || map.window.len() != rank {
        return Err(Error::Unsupported { what: "a tensor map of another rank than 1 to 5" });
    }
    let scalar = match map.scalar {
        Scalar::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        Scalar::Bf16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Scalar::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        Scalar::I32 => Type::CU_TENSOR_MAP_DATA_TYPE_INT32,
        Scalar::I64 => Type::CU_TENSOR_MAP_DATA_TYPE_INT64,
        Scalar::U32 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        Scalar::U8 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        Scalar::Mbar => return Err(Error::Unsupported { what: "a tensor map of barriers" }),
    };
    let swizzle = match map.swizzle {
        0 => Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        32 => Swizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        64 => Swizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        128 => Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        _ => {
            return Err(Error::Unsupported { what: "a swizzle of other than 32, 64 or 128 bytes" });
        }
    };
    let steps = [1_u32; 5];
    let mut encoded = MaybeUninit::<sys::CUtensorMap>::uninit();
    // SAFETY: the arrays have `rank` elements, the strides one fewer, and `encoded` is aligned to 64 bytes. The
    // pointer to global memory is stored, not followed.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            encoded.as_mut_ptr(),
            scalar,
            rank as u32,
            map.pointer as *mut c_void,
            map.sizes.as_ptr(),
            map.strides.as_ptr(),
            map.window.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    match status {
        // SAFETY: the call succeeded, and it writes all of it.
        sys::CUresult::CUDA_SUCCESS => Ok(unsafe { encoded.assume_init() }),
        _ => Err(Error::Device {
            call: "cuTensorMapEncodeTiled",
            status: format!("{status:?} of {map:?}"),
        }),
    }
}

/// The value of one parameter of a kernel.
pub(super) enum Slot {
    Pointer(u64),
    Symbol(i32),
    Map(Box<sys::CUtensorMap>),
}

/// A function whose parameters have the sizes that its launches pass.
#[derive(Clone)]
pub(super) struct Function {
    function: CudaFunction,
    sizes: Vec<usize>,
}

impl Function {
    /// The function, if its parameters have these sizes, in bytes. Whether it takes more is not asked: a question past
    /// the last parameter is an error that tools report.
    pub(super) fn new(function: CudaFunction, sizes: Vec<usize>) -> Result<Function> {
        let mut found = Vec::new();
        while found.len() < sizes.len() {
            let (mut offset, mut size) = (0, 0);
            let raw = function.cu_function();
            // SAFETY: the function's module is loaded; two integers are written.
            match unsafe { sys::cuFuncGetParamInfo(raw, found.len(), &mut offset, &mut size) } {
                sys::CUresult::CUDA_SUCCESS => found.push(size),
                sys::CUresult::CUDA_ERROR_INVALID_VALUE => break,
                status => return Err(failed("cuFuncGetParamInfo")(DriverError(status))),
            }
        }
        if found != sizes {
            return Err(Error::Parameters { expected: sizes, found });
        }
        Ok(Function { function, sizes })
    }
}

/// The shape of a launch; see [`graphene_ir::launch::Launch`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) grid: u32,
    pub(super) cluster: u32,
    pub(super) block: u32,
    pub(super) shared_bytes: u32,
    pub(super) dependent: bool,
    pub(super) cooperative: bool,
}

/// Launches a kernel, behind all work of the stream.
pub(super) fn launch(
    stream: &CudaStream,
    function: &Function,
    shape: Shape,
    slots: &[Slot],
) -> Result<()> {
    bind(stream)?;
    let mut values = Vec::with_capacity(slots.len());
    for slot in slots {
        values.push(match slot {
            Slot::Pointer(value) => (ptr::from_ref(value).cast_mut().cast::<c_void>(), 8),
            Slot::Symbol(value) => (ptr::from_ref(value).cast_mut().cast::<c_void>(), 4),
            Slot::Map(value) => (ptr::from_ref(&**value).cast_mut().cast::<c_void>(), 128),
        });
    }
    let (mut values, sizes): (Vec<*mut c_void>, Vec<usize>) = values.into_iter().unzip();
    if sizes != function.sizes {
        return Err(Error::Parameters { expected: function.sizes.clone(), found: sizes });
    }
    let mut attributes = attributes(shape);
    let config = sys::CUlaunchConfig {
        gridDimX: shape.grid,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: shape.block,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shape.shared_bytes,
        hStream: stream.cu_stream(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    };
    let raw = function.function.cu_function();
    // SAFETY: the module is loaded, every parameter has a value of its size, which the call copies, and the attributes
    // outlive the call.
    unsafe { sys::cuLaunchKernelEx(&config, raw, values.as_mut_ptr(), ptr::null_mut()) }
        .result()
        .map_err(failed("cuLaunchKernelEx"))
}

fn attributes(shape: Shape) -> Vec<sys::CUlaunchAttribute> {
    use sys::CUlaunchAttributeID as Id;
    let attribute = |id| sys::CUlaunchAttribute {
        id,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { pad: [0; 64] },
    };
    let mut attributes = Vec::new();
    if shape.cluster > 1 {
        let mut one = attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
        one.value.clusterDim =
            sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: shape.cluster, y: 1, z: 1 };
        attributes.push(one);
    }
    if shape.dependent {
        let mut one = attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
        one.value.programmaticStreamSerializationAllowed = 1;
        attributes.push(one);
    }
    if shape.cooperative {
        let mut one = attribute(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
        one.value.cooperative = 1;
        attributes.push(one);
    }
    attributes
}
