//! Functions of the host between launches: bytes come down, a function reads and writes them, bytes go up.

use super::{bind, failed};
use crate::error::{Error, Result};
use cudarc::driver::{CudaStream, result, sys};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is done with the bytes that came down, and those that go up.
pub(in crate::device) type Work = dyn FnMut(&[&[u8]], &mut [&mut [u8]]) + Send;

/// A function with the memory that it reads and writes.
pub(in crate::device) struct HostFunction {
    /// Where copies read and write memory of the device: of `shared.down`, then of `shared.up`.
    at: [Vec<u64>; 2],
    shared: Kept,
    recording: Recording,
}

/// What launches call, for as long as somebody may launch it.
struct Kept {
    shared: ManuallyDrop<Arc<Shared>>,
    stream: Arc<CudaStream>,
}

/// What a recording launches, while there is one: a graph keeps that, so that it can be launched as long as it lives.
#[derive(Clone, Default)]
pub(in crate::device) struct Recording(Arc<Mutex<Option<Vec<Kept>>>>);

/// What a graph keeps.
pub(in crate::device) struct Recorded(#[expect(dead_code, reason = "it is dropped")] Vec<Kept>);

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
        (stream, recording): (&Arc<CudaStream>, &Recording),
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
        let shared = Kept { shared: ManuallyDrop::new(Arc::new(shared)), stream: stream.clone() };
        Ok(HostFunction { at, shared, recording: recording.clone() })
    }

    /// Calls it, behind all work of the stream, and does not wait.
    pub(in crate::device) fn launch(&self) -> Result<()> {
        let Kept { shared, stream } = &self.shared;
        bind(stream)?;
        self.recording.keep(&self.shared);
        let Shared { down, up, work: _ } = &***shared;
        let stream = stream.cu_stream();
        for (&from, to) in self.at[0].iter().zip(down).filter(|(_, to)| to.len > 0) {
            // SAFETY: both sides have the bytes, and live until the stream's work is done.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.pointer.cast(), from, to.len, stream) }
                .result()
                .map_err(failed("cuMemcpyDtoHAsync"))?;
        }
        let shared: *const Shared = Arc::as_ptr(shared);
        // SAFETY: what the function is given lives until the stream's work is done, and as long as a graph that records it.
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

impl Recording {
    /// Begins one; what is launched until its end is kept.
    pub(in crate::device) fn begin(&self) {
        *self.lock() = Some(Vec::new());
    }

    /// Ends it.
    pub(in crate::device) fn end(&self) -> Recorded {
        Recorded(self.lock().take().unwrap_or_default())
    }

    fn keep(&self, launched: &Kept) {
        if let Some(all) = &mut *self.lock() {
            let (shared, stream) = (launched.shared.clone(), launched.stream.clone());
            all.push(Kept { shared, stream });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Kept>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // What was launched may still come. A failure that was recorded before says nothing of this wait.
        let context = self.stream.context();
        let before = context.check_err();
        let waited = self.stream.synchronize();
        context.record_err(before);
        match waited {
            // SAFETY: it is taken once, here, and not used afterwards.
            Ok(()) => drop(unsafe { ManuallyDrop::take(&mut self.shared) }),
            // Nobody knows whether it is still to be called, so that it stays.
            Err(error) => context.record_err(Err::<(), _>(error)),
        }
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
