//! Functions of the host between launches: bytes come down, a function reads and writes them, bytes go up.

use super::{bind, failed};
use crate::error::{Error, Result};
use cudarc::driver::{CudaStream, result, sys};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

/// What is done with the bytes that came down, and those that go up.
pub(in crate::device) type Work = dyn FnMut(&[&[u8]], &mut [&mut [u8]]) + Send;

/// A function with the memory that it reads and writes.
pub(in crate::device) struct HostFunction {
    /// Where copies read and write memory of the device: of `shared.down`, then of `shared.up`.
    at: [Vec<u64>; 2],
    /// In a place of its own, which recorded launches know.
    shared: Box<Shared>,
    stream: Arc<CudaStream>,
}

/// What the driver's thread sees.
struct Shared {
    down: Vec<Pinned>,
    up: Vec<Pinned>,
    work: Mutex<Box<Work>>,
}

/// Memory of the host that the device copies from and to while the host does something else.
struct Pinned {
    pointer: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to this object alone; the driver's copies and the function take turns in a stream's order.
unsafe impl Send for Pinned {}
// SAFETY: as above; the function, which writes, runs behind a lock.
unsafe impl Sync for Pinned {}

impl HostFunction {
    /// A function of so many bytes at each of these places of the device's memory, which must live as long as this.
    pub(in crate::device) fn new(
        stream: &Arc<CudaStream>,
        down: &[(u64, usize)],
        up: &[(u64, usize)],
        work: Box<Work>,
    ) -> Result<HostFunction> {
        bind(stream)?;
        let pinned = |of: &[(u64, usize)]| -> Result<Vec<Pinned>> {
            of.iter().map(|&(_, len)| Pinned::zeroed(len)).collect()
        };
        let shared = Shared { down: pinned(down)?, up: pinned(up)?, work: Mutex::new(work) };
        let at = [down, up].map(|of| of.iter().map(|&(at, _)| at).collect());
        Ok(HostFunction { at, shared: Box::new(shared), stream: stream.clone() })
    }

    /// Calls it, behind all work of the stream, and does not wait.
    pub(in crate::device) fn launch(&self) -> Result<()> {
        bind(&self.stream)?;
        let Shared { down, up, work: _ } = &*self.shared;
        let stream = self.stream.cu_stream();
        for (&from, to) in self.at[0].iter().zip(down).filter(|(_, to)| to.len > 0) {
            // SAFETY: both sides have the bytes, and live until the stream's work is done.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.pointer.cast(), from, to.len, stream) }
                .result()
                .map_err(failed("cuMemcpyDtoHAsync"))?;
        }
        let shared: *const Shared = &*self.shared;
        // SAFETY: what the function is given lives until the stream's work is done.
        unsafe { sys::cuLaunchHostFunc(stream, Some(call), shared.cast_mut().cast()) }
            .result()
            .map_err(failed("cuLaunchHostFunc"))?;
        for (&to, from) in self.at[1].iter().zip(up).filter(|(_, from)| from.len > 0) {
            // SAFETY: as above.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.pointer.cast(), from.len, stream) }
                .result()
                .map_err(failed("cuMemcpyHtoDAsync"))?;
        }
        Ok(())
    }
}

impl Drop for HostFunction {
    fn drop(&mut self) {
        // What was launched may still come.
        let context = self.stream.context();
        context.record_err(self.stream.synchronize());
    }
}

impl Shared {
    fn run(&self) {
        // SAFETY: the memory has so many bytes, which nobody writes meanwhile: the copies down are done.
        let down = self.down.iter().map(|of| unsafe { slice::from_raw_parts(of.pointer, of.len) });
        let down: Vec<&[u8]> = down.collect();
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: likewise, and behind the lock this is the only one: the copies up come afterwards.
        let up = self.up.iter().map(|of| unsafe { slice::from_raw_parts_mut(of.pointer, of.len) });
        (*work)(&down, &mut up.collect::<Vec<&mut [u8]>>());
    }
}

/// What the driver calls, on a thread of its own.
unsafe extern "C" fn call(shared: *mut c_void) {
    // SAFETY: the launch gave it this, which lives until the stream's work is done.
    let shared = unsafe { &*shared.cast_const().cast::<Shared>() };
    // A panic must not reach the driver. The function's owner knows of it by what the function did not say.
    drop(catch_unwind(AssertUnwindSafe(|| shared.run())));
}

impl Pinned {
    fn zeroed(len: usize) -> Result<Pinned> {
        let bytes = len.max(1);
        // SAFETY: the memory is set below, before anyone has it.
        let pointer = unsafe { result::malloc_host(bytes, 0) };
        let pointer = pointer.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::Memory { bytes },
            _ => failed("cuMemHostAlloc")(error),
        })?;
        let pointer = pointer.cast::<u8>();
        // SAFETY: it has so many bytes.
        unsafe { pointer.write_bytes(0, bytes) };
        Ok(Pinned { pointer, len })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the memory is freed once, after the stream's work is done. A failure leaves nothing to do.
        let _ = unsafe { result::free_host(self.pointer.cast()) };
    }
}
