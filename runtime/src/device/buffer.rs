//! Memory of a GPU, as launches and copies of a stream use it.

use super::Stream;
use super::sys::memory::Memory;
use crate::error::{Error, Result};
use std::sync::Arc;

/// Memory of a stream, or a part of it. Clones and parts are the same memory, which is freed with the last of them, behind
/// all that was launched on the stream: dropping a buffer waits for nothing.
///
/// Other streams' work has an order of its own, and does not take the buffer: [`Stream::adopt`] gives one of that
/// stream.
#[derive(Clone)]
pub struct Buffer {
    pub(super) memory: Arc<Memory>,
    /// The stream whose launches use it; that of the memory itself where any stream may read it, and none writes it.
    pub(super) stream: Stream,
    pub(super) read_only: bool,
    first: usize,
    len: usize,
}

impl Buffer {
    pub(super) fn new(stream: &Stream, memory: Memory, len: usize) -> Buffer {
        let memory = Arc::new(memory);
        Buffer { memory, stream: stream.clone(), read_only: false, first: 0, len }
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The stream whose launches use it.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether every stream may read it and none writes it, as a module's weights.
    pub fn is_read_only(&self) -> bool {
        self.read_only
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
        Ok(Buffer { first: self.first + first, len, ..self.clone() })
    }

    /// Overwrites the first bytes, behind all that was launched on the stream, and waits until that is done.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] if the buffer is shorter; [`Error::Unsupported`] if it is read-only, and while this thread
    /// records a graph; [`Error::Device`].
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.len {
            let (expected, found) = (self.len, bytes.len());
            return Err(Error::Mismatch { what: "bytes of a buffer", expected, found });
        }
        self.check_writable()?;
        self.memory.write(self.stream.shared(), self.first, bytes)
    }

    /// What it holds after all that was launched on the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] while this thread records a graph; [`Error::Device`].
    pub fn download(&self) -> Result<Vec<u8>> {
        self.memory.read(self.stream.shared(), self.first, self.len)
    }

    /// The same memory for all streams to read, once what its own has launched is done. Nothing writes it any more.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub(crate) fn into_read_only(mut self) -> Result<Buffer> {
        self.stream.synchronize()?;
        self.read_only = true;
        Ok(self)
    }

    /// Whether both begin with the same byte of the same memory.
    pub(crate) fn is_same(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory) && self.first == other.first
    }

    /// Whether both have a byte of the device in common.
    pub(crate) fn overlaps(&self, other: &Buffer) -> bool {
        let (a, b) = (self.pointer(), other.pointer());
        let some = !self.is_empty() && !other.is_empty();
        some && a < b + other.len as u64 && b < a + self.len as u64
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        match self.read_only {
            true => Err(Error::Unsupported { what: "writing to memory that all streams read" }),
            false => Ok(()),
        }
    }

    /// Copies the first bytes of another buffer to its own first ones, behind all work of `stream`, and does not wait.
    pub(super) fn copy_on(&self, stream: &Stream, from: &Buffer, len: usize) -> Result<()> {
        if len > self.len || len > from.len {
            let expected = self.len.min(from.len);
            return Err(Error::Mismatch { what: "bytes of a buffer", expected, found: len });
        }
        self.check_writable()?;
        self.memory.copy(stream.shared(), self.first, (&from.memory, from.first), len)
    }

    pub(super) fn pointer(&self) -> u64 {
        self.memory.pointer() + self.first as u64
    }
}
