//! The only caller of CUDA: what NVRTC and the driver do with raw memory and handles; in `sys/`, streams and what is
//! recorded of them, memory, launches, cuBLASLt and cuDNN.
//!
//! A function here is safe to call with any values. What a kernel does to memory of the device is its
//! emitter's promise, and no memory of the host is reachable from it but what `sys/host.rs` copies.
#![allow(unsafe_code)]

pub(super) mod capture;
pub(super) mod context;
pub(super) mod cublaslt;
pub(super) mod cudnn;
pub(super) mod host;
pub(super) mod launch;
pub(super) mod memory;
mod pinned;
pub(super) mod recording;
pub(super) mod stream;

use super::library::Library;
use crate::error::{Error, Result};
use cudarc::cublaslt::sys as lt_sys;
use cudarc::cudnn::sys as dnn_sys;
use cudarc::driver::{DriverError, sys};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

impl Library {
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

/// The error of a call that says by its status whether it succeeded.
fn done(call: &'static str, status: sys::CUresult) -> Result<()> {
    match status {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        status => Err(failed(call)(DriverError(status))),
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Unsupported { what: "a text with a NUL in it" })
}

// ---- NVRTC

/// What NVRTC makes of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Cubin,
    Ptx,
}

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

// ---- The libraries

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
