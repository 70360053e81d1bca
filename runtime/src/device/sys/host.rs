//! Functions of the host between launches: bytes come down, a function reads and writes them, bytes go up.

use super::pinned::Pinned;
use super::recording::{self, Outside};
use super::stream::{Shared as Stream, Staging};
use super::{Error, Result, failed};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

/// What is done with the bytes that came down, and those that go up.
pub(in crate::device) type Work = dyn FnMut(&[&[u8]], &mut [&mut [u8]]) + Send;

/// A function with the memory that it reads and writes.
pub(in crate::device) struct HostFunction {
    /// Where copies read and write memory of the device: of `shared.down`, then of `shared.up`.
    at: [Vec<u64>; 2],
    shared: Arc<Outside<Kept>>,
}

/// What launches call, for as long as somebody may launch it.
struct Kept {
    shared: ManuallyDrop<Arc<Shared>>,
    stream: Stream,
}

/// What the driver's thread sees.
struct Shared {
    down: Vec<Pinned>,
    up: Vec<Pinned>,
    work: Mutex<Box<Work>>,
}

impl HostFunction {
    /// A function of so many bytes at each of these places of the device's memory, which must live as long as this.
    pub(in crate::device) fn new(
        stream: &Stream,
        down: &[(u64, usize)],
        up: &[(u64, usize)],
        work: Box<Work>,
    ) -> Result<HostFunction> {
        let guard =
            stream.context().exclude_recording("memory of the host while a graph is recorded")?;
        let pinned = |of: &[(u64, usize)]| -> Result<Vec<Pinned>> {
            of.iter().map(|&(_, len)| Pinned::zeroed(len)).collect()
        };
        let shared = Shared { down: pinned(down)?, up: pinned(up)?, work: Mutex::new(work) };
        let at = [down, up].map(|of| of.iter().map(|&(at, _)| at).collect());
        drop(guard);
        let shared = Kept { shared: ManuallyDrop::new(Arc::new(shared)), stream: stream.clone() };
        Ok(HostFunction { at, shared: Arc::new(Outside::new(shared)) })
    }

    /// Calls it, behind all work of the stream, and does not wait.
    pub(in crate::device) fn launch(&self) -> Result<()> {
        let Kept { shared, stream } = &**self.shared;
        let stream = stream.target()?;
        recording::keep(&self.shared);
        let Shared { down, up, work: _ } = &***shared;
        for (&from, to) in self.at[0].iter().zip(down).filter(|(_, to)| to.len() > 0) {
            // SAFETY: both sides have the bytes, and live until the stream's work is done.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.pointer().cast(), from, to.len(), stream) }
                .result()
                .map_err(failed("cuMemcpyDtoHAsync"))?;
        }
        let shared: *const Shared = Arc::as_ptr(shared);
        // SAFETY: what the function is given lives until the stream's work is done, and as long as a graph that records it.
        unsafe { sys::cuLaunchHostFunc(stream, Some(call), shared.cast_mut().cast()) }
            .result()
            .map_err(failed("cuLaunchHostFunc"))?;
        for (&to, from) in self.at[1].iter().zip(up).filter(|(_, from)| from.len() > 0) {
            // SAFETY: as above.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.pointer().cast(), from.len(), stream) }
                .result()
                .map_err(failed("cuMemcpyHtoDAsync"))?;
        }
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // What was launched may still come.
        if self.stream.synchronize().is_ok() {
            // SAFETY: it is taken once, here, and not used afterwards.
            drop(unsafe { ManuallyDrop::take(&mut self.shared) });
        }
        // Otherwise nobody knows whether it is still to be called, so that it stays.
    }
}

impl Shared {
    fn run(&self) {
        // SAFETY: the memory has so many bytes, which nobody writes meanwhile: the D2H copies are done.
        let down =
            self.down.iter().map(|of| unsafe { slice::from_raw_parts(of.pointer(), of.len()) });
        let down: Vec<&[u8]> = down.collect();
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: likewise, and behind the lock this is the only one: the H2D copies come afterwards.
        let up =
            self.up.iter().map(|of| unsafe { slice::from_raw_parts_mut(of.pointer(), of.len()) });
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

impl Staging {
    /// The bytes, so many at least, with nothing under way that reads or writes them.
    pub(in crate::device) fn ready(&mut self, stream: &Stream, bytes: usize) -> Result<&mut [u8]> {
        if self.busy {
            stream.synchronize()?;
            self.busy = false;
        }
        if self.pinned.as_ref().map_or(0, Pinned::len) < bytes {
            let what = "memory of the host while a graph is recorded";
            let _guard = stream.context().exclude_recording(what)?;
            // The old one goes first, so that both are not there at once.
            self.pinned = None;
            // Shapes that grow step by step take it anew only now and then.
            let bytes = bytes.checked_next_power_of_two().unwrap_or(bytes);
            self.pinned = Some(Pinned::zeroed(bytes)?);
        }
        Ok(self.bytes())
    }

    /// The bytes; the caller has waited for what writes them.
    pub(in crate::device) fn bytes(&mut self) -> &mut [u8] {
        match &mut self.pinned {
            // SAFETY: the memory has so many bytes, and this alone refers to them.
            Some(pinned) => unsafe { slice::from_raw_parts_mut(pinned.pointer(), pinned.len()) },
            None => &mut [],
        }
    }

    /// Copies so many bytes from `first` on to the device's memory, behind all work of the stream, and does not wait. They
    /// stay as they are until somebody has.
    pub(in crate::device) fn up(
        &mut self,
        stream: &Stream,
        (first, len): (usize, usize),
        to: u64,
    ) -> Result<()> {
        let raw = stream.enter("a copy while a graph is recorded")?;
        let from = self.part(first, len)?;
        self.busy = true;
        // SAFETY: both sides have the bytes; whoever frees or writes these waits for the stream.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast_const().cast(), len, raw) }
            .result()
            .map_err(failed("cuMemcpyHtoDAsync"))
    }

    /// Likewise from the device's memory.
    pub(in crate::device) fn down(
        &mut self,
        stream: &Stream,
        (first, len): (usize, usize),
        from: u64,
    ) -> Result<()> {
        let raw = stream.enter("a copy while a graph is recorded")?;
        let to = self.part(first, len)?;
        self.busy = true;
        // SAFETY: as above; whoever reads these waits for the stream.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, len, raw) }
            .result()
            .map_err(failed("cuMemcpyDtoHAsync"))
    }

    fn part(&self, first: usize, len: usize) -> Result<*mut u8> {
        let has = self.pinned.as_ref().map_or(0, Pinned::len);
        match &self.pinned {
            // SAFETY: it has more than `first` bytes, or as many.
            Some(pinned) if first <= has && len <= has - first => {
                Ok(unsafe { pinned.pointer().add(first) })
            }
            _ => Err(Error::Mismatch {
                what: "staged bytes",
                expected: has,
                found: first.saturating_add(len),
            }),
        }
    }
}
