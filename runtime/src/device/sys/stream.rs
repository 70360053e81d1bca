//! A stream of a GPU: work in an order of its own, and what that work has for itself.

use super::context::Context;
use super::cudnn::Handle;
use super::pinned::Pinned;
use super::recording::{self, Outside, refuse};
use super::{Result, failed};
use cudarc::driver::{CudaStream, DriverError, result, sys};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a workspace: what cuBLAS itself takes on Hopper.
pub(in crate::device) const WORKSPACE: usize = 32 << 20;

/// A stream, for as long as somebody has memory or work of it.
pub(in crate::device) type Shared = Arc<Outside<Stream>>;

/// A stream with the state that its work needs: no two streams share any of it, so that they can run side by side.
pub(in crate::device) struct Stream {
    /// cuDNN's state.
    cudnn: Mutex<Option<Arc<Outside<Handle>>>>,
    /// Where cuBLASLt's calls keep intermediates.
    workspace: Mutex<Option<u64>>,
    /// Where requests' bytes go through.
    staging: Mutex<Staging>,
    /// What other streams wait for.
    fence: Event,
    cuda: Arc<CudaStream>,
    context: Arc<Context>,
}

/// Memory of the host that the device copies to and from.
#[derive(Default)]
pub(in crate::device) struct Staging {
    pub(in crate::device) pinned: Option<Pinned>,
    /// Whether copies may still run that nobody waited for.
    pub(in crate::device) busy: bool,
}

impl Stream {
    pub(in crate::device) fn new(context: &Arc<Context>) -> Result<Shared> {
        refuse("a new stream while a graph is recorded")?;
        context.make_current()?;
        let stream = Stream {
            cudnn: Mutex::default(),
            workspace: Mutex::default(),
            staging: Mutex::default(),
            fence: Event::new(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?,
            cuda: context.new_stream()?,
            context: Arc::clone(context),
        };
        Ok(Arc::new(Outside::new(stream)))
    }

    pub(in crate::device) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn cuda(&self) -> &Arc<CudaStream> {
        &self.cuda
    }

    /// The stream itself, whoever records.
    pub(super) fn raw(&self) -> sys::CUstream {
        self.cuda.cu_stream()
    }

    /// The stream, in a thread whose context is its own, for what cannot be recorded.
    pub(in crate::device) fn enter(&self, what: &'static str) -> Result<sys::CUstream> {
        refuse(what)?;
        self.context.make_current()?;
        Ok(self.raw())
    }

    /// Where launches go, in a thread whose context is the stream's: to the stream, or among what this thread records.
    pub(in crate::device) fn target(&self) -> Result<sys::CUstream> {
        self.context.make_current()?;
        recording::target(self.raw())
    }

    /// Waits until all its work is done.
    pub(in crate::device) fn synchronize(&self) -> Result<()> {
        let stream = self.enter("waiting for a stream while a graph is recorded")?;
        // SAFETY: the stream lives.
        unsafe { result::stream::synchronize(stream) }.map_err(failed("cuStreamSynchronize"))
    }

    /// Whether all its work is done.
    pub(in crate::device) fn is_done(&self) -> Result<bool> {
        let stream = self.enter("asking a stream while a graph is recorded")?;
        // SAFETY: the stream lives.
        match unsafe { sys::cuStreamQuery(stream) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => Err(failed("cuStreamQuery")(DriverError(status))),
        }
    }

    /// Waits until nothing runs that could use what is about to be freed. A device that is lost runs nothing.
    pub(super) fn settle(&self) {
        if !matches!(self.is_done(), Ok(true)) {
            let _ = self.synchronize();
        }
    }

    /// Its later work waits for all that the other stream has so far.
    pub(in crate::device) fn wait_for(&self, other: &Stream) -> Result<()> {
        let own = self.enter("one stream waiting for another while a graph is recorded")?;
        if own == other.raw() {
            return Ok(());
        }
        // SAFETY: both streams and the event live. If another thread records the event meanwhile, more is waited for.
        unsafe { result::event::record(other.fence.0, other.raw()) }
            .map_err(failed("cuEventRecord"))?;
        let how = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        unsafe { result::stream::wait_event(own, other.fence.0, how) }
            .map_err(failed("cuStreamWaitEvent"))
    }

    /// Where requests' bytes go through, for one of them.
    pub(in crate::device) fn staging(&self) -> MutexGuard<'_, Staging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`WORKSPACE`] bytes for the intermediates of cuBLASLt's calls, which come one after the other on this stream.
    pub(in crate::device) fn workspace(&self) -> Result<u64> {
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pointer) = *workspace {
            return Ok(pointer);
        }
        let stream = self.enter("an allocation while a graph is recorded")?;
        let pointer = self.context.allocate(stream, WORKSPACE);
        let pointer = pointer.map_err(|error| error.wanted_for("cuBLASLt's workspace"))?;
        Ok(*workspace.insert(pointer))
    }

    /// cuDNN's state for this stream, opened when it is first asked for.
    pub(in crate::device) fn cudnn(&self) -> Result<Arc<Outside<Handle>>> {
        let mut cudnn = self.cudnn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = &*cudnn {
            return Ok(Arc::clone(handle));
        }
        let handle = Arc::new(Outside::new(Handle::new(self)?));
        Ok(Arc::clone(cudnn.insert(handle)))
    }

    /// Microseconds on the device from the first launch of `work` to the end of its last.
    pub(in crate::device) fn time(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let stream = self.enter("timing while a graph is recorded")?;
        let event = || Event::new(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let (start, end) = (event()?, event()?);
        let mark = |event: &Event| {
            // SAFETY: both live.
            unsafe { result::event::record(event.0, stream) }.map_err(failed("cuEventRecord"))
        };
        mark(&start)?;
        work()?;
        self.context.make_current()?;
        mark(&end)?;
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(end.0) }.map_err(failed("cuEventSynchronize"))?;
        // SAFETY: both live, are of this stream, and done.
        let milliseconds = unsafe { result::event::elapsed(start.0, end.0) };
        Ok(f64::from(milliseconds.map_err(failed("cuEventElapsedTime"))?) * 1000.0)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // What the host's memory is copied to or from, and what cuDNN has, is dropped after this.
        self.settle();
        let workspace = self.workspace.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(pointer) = workspace.take() {
            self.context.free(self.cuda.cu_stream(), pointer);
        }
    }
}

/// A point in a stream's work.
struct Event(sys::CUevent);

// SAFETY: the driver takes events from any thread, and locks them itself.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event of the context that is current.
    fn new(how: sys::CUevent_flags) -> Result<Event> {
        result::event::create(how).map(Event).map_err(failed("cuEventCreate"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once; the driver does so when nobody waits for it any more. A failure leaves nothing to do.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}
