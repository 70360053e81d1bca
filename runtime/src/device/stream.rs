//! Work in an order of its own.

use super::sys::capture::{self, Used};
use super::sys::host::HostFunction;
use super::sys::memory::Memory;
use super::sys::recording::{keep, refuse};
use super::sys::stream::Shared;
use super::sys::stream::Stream as Raw;
use super::{Buffer, Device};
use crate::error::{Error, Result};
use std::fmt;
use std::sync::{Arc, MutexGuard};

/// A stream of work on a GPU: what is launched on it runs one after the other, beside the work of other streams. Clones are
/// the same stream.
///
/// Several threads may launch on one stream; whose launch comes first is theirs to say.
#[derive(Clone)]
pub struct Stream {
    shared: Shared,
    device: Device,
}

impl Stream {
    pub(super) fn new(device: &Device) -> Result<Stream> {
        Ok(Stream { shared: Raw::new(device.context())?, device: device.clone() })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Its GPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether both are one stream.
    pub fn is(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// A buffer of zeros, aligned to 256 bytes.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMemory`] if there is none left; [`Error::Unsupported`] while this thread records a graph;
    /// [`Error::Device`].
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        Ok(Buffer::new(self, Memory::zeroed(&self.shared, bytes)?, bytes))
    }

    /// A buffer with these bytes.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Stream::alloc).
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.alloc(bytes.len())?;
        buffer.write(bytes)?;
        Ok(buffer)
    }

    /// Another stream's buffer as one of this stream, whose later work waits for all that the other has launched so far.
    /// It is the same memory: what the other stream does to it from here on has no order with this stream's work, until
    /// the other one [waits](Stream::wait_for) or adopts it in turn.
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`] for a buffer of another device; [`Error::Unsupported`] while this thread records a graph;
    /// [`Error::Device`].
    pub fn adopt(&self, buffer: &Buffer) -> Result<Buffer> {
        self.check_device("an adopted buffer", buffer.stream().device())?;
        if !buffer.is_read_only() {
            self.wait_for(buffer.stream())?;
        }
        let mut adopted = buffer.clone();
        if !buffer.is_read_only() {
            adopted.stream = self.clone();
        }
        Ok(adopted)
    }

    /// Its later work waits for all that another stream has launched so far. The caller does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`] for a stream of another device; [`Error::Unsupported`] while this thread records a graph;
    /// [`Error::Device`].
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        self.check_device("a stream to wait for", &other.device)?;
        self.shared.wait_for(&other.shared)
    }

    /// Waits until all that was launched on it is done.
    ///
    /// # Errors
    ///
    /// [`Error::Device`], also for what a kernel did wrong, after which the device is lost to this process.
    pub fn synchronize(&self) -> Result<()> {
        self.shared.synchronize()
    }

    /// Whether all that was launched on it is done.
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Stream::synchronize).
    pub fn is_done(&self) -> Result<bool> {
        self.shared.is_done()
    }

    /// A function of the host that is called between launches: it reads the bytes that `inputs` have when all that was
    /// launched before is done, and writes those of `outputs`. It is called on a thread of the driver's, must not use the
    /// device, and says by itself whether it succeeded: a panic ends there.
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`] for a buffer of another stream, [`Error::Memory`], [`Error::Device`].
    pub(crate) fn host_call(
        &self,
        inputs: Vec<Buffer>,
        outputs: Vec<Buffer>,
        work: impl FnMut(&[&[u8]], &mut [&mut [u8]]) + Send + 'static,
    ) -> Result<HostCall> {
        let all = inputs.iter().chain(&outputs);
        all.clone().try_for_each(|buffer| self.check_own("a host call", buffer))?;
        outputs.iter().try_for_each(Buffer::check_writable)?;
        let at = |buffers: &[Buffer]| -> Vec<(u64, usize)> {
            buffers.iter().map(|buffer| (buffer.pointer(), buffer.len())).collect()
        };
        let (down, up) = (at(&inputs), at(&outputs));
        let function = HostFunction::new(&self.shared, &down, &up, Box::new(work))?;
        let buffers = all.cloned().collect();
        Ok(HostCall(Arc::new(Used::new(&self.shared, (function, buffers)))))
    }

    /// Microseconds on the device from the first launch of `work` on this stream to the end of its last.
    ///
    /// # Errors
    ///
    /// Those of `work`; [`Error::Device`].
    pub fn time(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.shared.time(work)
    }

    /// Records what `work` launches on this stream as a CUDA graph instead of running it, and what other threads launch
    /// meanwhile not. The graph keeps the kernels and buffers that it uses.
    ///
    /// In `work`, this thread's launches on other streams are refused, and so is what is no launch: making, writing and
    /// reading buffers, loading kernels, waiting, other graphs.
    ///
    /// # Errors
    ///
    /// Those of `work`; [`Error::Unsupported`] in the `work` of another recording; [`Error::Device`].
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        capture::Graph::record(&self.shared, work).map(Graph)
    }

    /// What a request's bytes go through to the device and back, which is this request's until it is dropped. `bytes` are
    /// those of all that goes either way.
    pub(crate) fn transfer(&self, bytes: usize) -> Result<Transfer<'_>> {
        // Whoever has the staging memory may wait until no graph is recorded: one that records must not wait for that.
        refuse("a request while a graph is recorded")?;
        let mut staging = self.shared.staging();
        staging.ready(&self.shared, bytes)?;
        Ok(Transfer { staging, stream: self })
    }

    /// Copies the first bytes of a buffer, of whichever stream, to one of this stream, behind all work of both, and does not
    /// wait.
    pub(crate) fn copy(&self, to: &Buffer, from: &Buffer, len: usize) -> Result<()> {
        let both = [to, from];
        both.iter().try_for_each(|of| self.check_device("a copy", of.stream.device()))?;
        both.iter().filter(|of| !of.read_only).try_for_each(|of| self.wait_for(&of.stream))?;
        to.copy_on(self, from, len)?;
        // What the buffers' streams do next comes behind the copy.
        both.iter().filter(|of| !of.read_only).try_for_each(|of| of.stream.wait_for(self))?;
        both.iter().try_for_each(|of| self.finish_before_free(of))
    }

    /// Lets memory be freed behind what this stream has launched so far. What launches use they keep until then; copies
    /// that nobody waits for do not.
    pub(crate) fn finish_before_free(&self, buffer: &Buffer) -> Result<()> {
        buffer.memory.home().wait_for(&self.shared)
    }

    /// Whether work of this stream may use the buffer.
    pub(crate) fn check_own(&self, name: &str, buffer: &Buffer) -> Result<()> {
        if self.is(&buffer.stream) || (buffer.read_only && self.device.is(&buffer.stream.device)) {
            Ok(())
        } else {
            Err(Error::Foreign { tensor: name.to_owned() })
        }
    }

    /// Likewise to write it.
    pub(crate) fn check_written(&self, name: &str, buffer: &Buffer) -> Result<()> {
        self.check_own(name, buffer)?;
        buffer.check_writable()
    }

    pub(super) fn check_device(&self, name: &str, device: &Device) -> Result<()> {
        match self.device.is(device) {
            true => Ok(()),
            false => Err(Error::Foreign { tensor: name.to_owned() }),
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("device", &self.device).finish_non_exhaustive()
    }
}

/// A function of the host with the memory of the device that it reads and writes.
pub(crate) struct HostCall(Arc<Used<(HostFunction, Vec<Buffer>)>>);

impl HostCall {
    /// Calls it, behind all that was launched before, and does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub(crate) fn launch(&self) -> Result<()> {
        keep(&self.0);
        self.0.0.launch()
    }
}

/// Launches that are recorded, to be replayed as one. One thread at a time uses it.
pub struct Graph(capture::Graph);

impl Graph {
    /// Launches all, behind all that was launched on its stream before, and does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn launch(&self) -> Result<()> {
        self.0.launch()
    }
}

/// What a request's bytes go through: memory of the host that the device copies at full speed, made once and used by one
/// request of a stream after the other.
pub(crate) struct Transfer<'a> {
    staging: MutexGuard<'a, super::sys::stream::Staging>,
    stream: &'a Stream,
}

impl Transfer<'_> {
    /// Copies bytes to a buffer by way of those from `first` on, behind all work of the stream, and does not wait.
    pub(crate) fn up(&mut self, first: usize, bytes: &[u8], to: &Buffer) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.stream.check_written("an input", to)?;
        let staged = self.staging.bytes().get_mut(first..first + bytes.len());
        let what =
            Error::Mismatch { what: "bytes of a buffer", expected: to.len(), found: bytes.len() };
        let staged = staged.filter(|_| bytes.len() <= to.len()).ok_or(what)?;
        staged.copy_from_slice(bytes);
        self.staging.up(self.stream.shared(), (first, bytes.len()), to.pointer())
    }

    /// Copies a buffer's first bytes to those from `first` on, behind all work of the stream, and does not wait.
    pub(crate) fn down(&mut self, first: usize, len: usize, from: &Buffer) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.stream.check_own("an output", from)?;
        if len > from.len() {
            let (expected, found) = (from.len(), len);
            return Err(Error::Mismatch { what: "bytes of a buffer", expected, found });
        }
        self.staging.down(self.stream.shared(), (first, len), from.pointer())
    }

    /// What came down, once the caller has waited for the stream: the transfer is over.
    pub(crate) fn finish(&mut self) -> &[u8] {
        self.staging.busy = false;
        self.staging.bytes()
    }
}
