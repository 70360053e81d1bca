//! Memory of a GPU, which is freed behind the work of the stream that it was allocated on.

use super::recording::Outside;
use super::stream::{Shared, Stream};
use super::{Error, Result, failed};
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// What memory is while a graph is recorded: out of reach.
const RECORDING: &str = "memory that is made, read or written while a graph is recorded";

/// Memory of a GPU.
pub(in crate::device) struct Memory {
    held: Outside<Held>,
    len: usize,
}

/// Memory that somebody has to give back.
struct Held {
    pointer: sys::CUdeviceptr,
    /// The stream whose work it is freed behind.
    home: Shared,
    owner: Owner,
}

/// Whose memory it is.
enum Owner {
    /// The runtime's.
    Own,
    /// Somebody else's, who is told of the end when this is dropped.
    Foreign(Option<Box<dyn Send + Sync>>),
}

impl Memory {
    /// Memory of zeros, of at least one byte.
    pub(in crate::device) fn zeroed(home: &Shared, len: usize) -> Result<Memory> {
        let stream = home.enter(RECORDING)?;
        let bytes = len.max(1);
        let pointer = home.context().allocate(stream, bytes)?;
        let held = Held { pointer, home: Arc::clone(home), owner: Owner::Own };
        let memory = Memory { held: Outside::new(held), len };
        // SAFETY: the memory has so many bytes, and is the stream's from here on.
        unsafe { result::memset_d8_async(pointer, 0, bytes, stream) }
            .map_err(failed("cuMemsetD8Async"))?;
        Ok(memory)
    }

    /// Memory of somebody else's, whose `guard` is dropped when the work of `home` is done with it.
    ///
    /// # Safety
    ///
    /// There are so many bytes of the stream's device at the pointer until the guard is dropped.
    pub(in crate::device) unsafe fn foreign(
        home: &Shared,
        (pointer, len): (u64, usize),
        guard: Box<dyn Send + Sync>,
    ) -> Memory {
        let owner = Owner::Foreign(Some(guard));
        Memory { held: Outside::new(Held { pointer, home: Arc::clone(home), owner }), len }
    }

    pub(in crate::device) fn pointer(&self) -> u64 {
        self.held.pointer
    }

    /// The stream that it was allocated on.
    pub(in crate::device) fn home(&self) -> &Shared {
        &self.held.home
    }

    /// Where so many bytes from `first` on are.
    fn part(&self, first: usize, bytes: usize) -> Result<sys::CUdeviceptr> {
        if first > self.len || bytes > self.len - first {
            let found = first.saturating_add(bytes);
            return Err(Error::Mismatch { what: "bytes of a buffer", expected: self.len, found });
        }
        Ok(self.pointer() + first as u64)
    }

    /// Writes some of the memory's bytes, behind all work of the stream, and waits for it.
    pub(in crate::device) fn write(
        &self,
        stream: &Stream,
        first: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let to = self.part(first, bytes.len())?;
        let raw = stream.enter(RECORDING)?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: both sides have the bytes, and the source is borrowed until the copy is done.
        unsafe { result::memcpy_htod_async(to, bytes, raw) }
            .map_err(failed("cuMemcpyHtoDAsync"))?;
        stream.synchronize()
    }

    /// What some of the memory's bytes are after all work of the stream.
    pub(in crate::device) fn read(
        &self,
        stream: &Stream,
        first: usize,
        len: usize,
    ) -> Result<Vec<u8>> {
        let from = self.part(first, len)?;
        let raw = stream.enter(RECORDING)?;
        let mut bytes = vec![0; len];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        // SAFETY: both sides have the bytes, and the target is kept until the copy is done.
        unsafe { result::memcpy_dtoh_async(&mut bytes, from, raw) }
            .map_err(failed("cuMemcpyDtoHAsync"))?;
        stream.synchronize()?;
        Ok(bytes)
    }

    /// Copies some of another memory's bytes here, behind all work of the stream, and does not wait. Both memories must
    /// live until that is done.
    pub(in crate::device) fn copy(
        &self,
        stream: &Stream,
        first: usize,
        (from, from_first): (&Memory, usize),
        len: usize,
    ) -> Result<()> {
        let (to, from) = (self.part(first, len)?, from.part(from_first, len)?);
        let raw = stream.enter(RECORDING)?;
        if len == 0 || to == from {
            return Ok(());
        }
        if to < from + len as u64 && from < to + len as u64 {
            return Err(Error::Unsupported {
                what: "a copy from a buffer to one that overlaps it",
            });
        }
        // SAFETY: both sides have the bytes, and none of them in common.
        unsafe { result::memcpy_dtod_async(to, from, len, raw) }
            .map_err(failed("cuMemcpyDtoDAsync"))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match &mut self.owner {
            Owner::Own => self.home.context().free(self.home.raw(), self.pointer),
            Owner::Foreign(guard) => {
                // Its owner knows nothing of this stream.
                self.home.settle();
                drop(guard.take());
            }
        }
    }
}
