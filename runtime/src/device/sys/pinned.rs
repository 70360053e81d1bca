//! Memory of the host that the device reads and writes at full speed.

use super::{Error, Result, failed};
use cudarc::driver::{result, sys};

/// Memory of the host that the device copies from and to while the host does something else.
pub(in crate::device) struct Pinned {
    pointer: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to this object alone; the driver's copies and the function take turns in a stream's order.
unsafe impl Send for Pinned {}
// SAFETY: as above; the function, which writes, runs behind a lock.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn zeroed(len: usize) -> Result<Pinned> {
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

    /// Where it lies.
    pub(super) fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Its bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the memory is freed once, after the stream's work is done. A failure leaves nothing to do.
        let _ = unsafe { result::free_host(self.pointer.cast()) };
    }
}
