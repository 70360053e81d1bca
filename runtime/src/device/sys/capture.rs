//! Recording launches as a CUDA graph, on a stream that nobody else has.
//!
//! What a thread launches on a stream while it records that stream goes to the device's private stream instead. Other
//! threads go on using the stream as ever, so that none of their work can be among what is recorded.

use super::context::Context;
use super::recording::{self, Kept, Outside, Recording, refuse};
use super::stream::Shared;
use super::{Error, Result, failed};
use cudarc::driver::{CudaStream, result, sys};
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLockWriteGuard};

/// What work of a stream uses: it is dropped when the stream is done, and never while this thread records a graph.
pub(in crate::device) struct Used<T: 'static>(Outside<Settled<T>>);

struct Settled<T> {
    value: T,
    stream: Shared,
}

impl<T> Used<T> {
    pub(in crate::device) fn new(stream: &Shared, value: T) -> Self {
        Self(Outside::new(Settled { value, stream: Arc::clone(stream) }))
    }

    /// The stream whose work uses it.
    pub(in crate::device) fn stream(&self) -> &Shared {
        &self.0.stream
    }
}

impl<T> Deref for Used<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Drop for Settled<T> {
    fn drop(&mut self) {
        // The value is dropped after this.
        self.stream.settle();
    }
}

/// Launches that are recorded, on the device.
struct Executable(sys::CUgraphExec);

// SAFETY: the driver asks that one thread at a time uses a graph. This is not `Sync`, and whoever has it may be any thread.
unsafe impl Send for Executable {}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once, when the stream that ran it is done. A failure leaves nothing to do.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

/// A graph, which is launched on the stream that it was recorded of.
pub(in crate::device) struct Graph(Used<(Executable, Vec<Kept>)>);

impl Graph {
    /// Records what `work` launches on the stream, in place of running it.
    pub(in crate::device) fn record(
        stream: &Shared,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<Graph> {
        refuse("a graph that is recorded in another")?;
        let begun = Begun::new(stream)?;
        let outcome = work();
        let (graph, recording) = begun.end();
        outcome?;
        let graph = graph?;
        let none = Error::Unsupported { what: "a graph of nothing" };
        if graph.0.is_null() {
            return Err(none);
        }
        // SAFETY: the graph lives, and nobody else has it.
        let executable =
            unsafe { result::graph::instantiate(graph.0, sys::CUgraphInstantiate_flags(0)) };
        let executable = Executable(executable.map_err(failed("cuGraphInstantiate"))?);
        Ok(Graph(Used::new(stream, (executable, recording.kept))))
    }

    /// Launches it, behind all work of its stream.
    pub(in crate::device) fn launch(&self) -> Result<()> {
        let to = self.0.stream().enter("the launch of a graph in another")?;
        let (graph, _) = &*self.0;
        // SAFETY: both live, and what the graph uses is kept until the stream is done with it.
        unsafe { result::graph::launch(graph.0, to) }.map_err(failed("cuGraphLaunch"))
    }
}

/// A graph as it was recorded.
struct Recorded(sys::CUgraph);

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: it is destroyed once. A failure leaves nothing to do.
            let _ = unsafe { result::graph::destroy(self.0) };
        }
    }
}

/// A recording that has begun, and ends when this goes.
struct Begun<'a> {
    /// The private stream, which this thread has alone; `None` once the recording has ended.
    recorder: Option<RwLockWriteGuard<'a, Option<Arc<CudaStream>>>>,
}

impl<'a> Begun<'a> {
    fn new(stream: &'a Shared) -> Result<Begun<'a>> {
        let context: &'a Context = stream.context();
        context.make_current()?;
        let mut recorder = context.recorder().write().unwrap_or_else(PoisonError::into_inner);
        let to = match &mut *recorder {
            Some(to) => to.cu_stream(),
            none => none.insert(context.new_stream()?).cu_stream(),
        };
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives, and this thread has it alone until the recording ends.
        unsafe { result::stream::begin_capture(to, mode) }
            .map_err(failed("cuStreamBeginCapture"))?;
        recording::begin(stream.raw(), to);
        Ok(Begun { recorder: Some(recorder) })
    }

    fn end(mut self) -> (Result<Recorded>, Ended) {
        self.finish().expect("a recording ends once")
    }

    /// Ends the recording, also where the work failed: the private stream could not be used again otherwise.
    fn finish(&mut self) -> Option<(Result<Recorded>, Ended)> {
        let recorder = self.recorder.take()?;
        let Recording { to, kept, later, .. } = recording::end()?;
        // SAFETY: the stream lives, and the recording is this thread's.
        let graph = unsafe { result::stream::end_capture(to) };
        let graph = graph.map(Recorded).map_err(failed("cuStreamEndCapture"));
        // What was put off may allocate or load, which waits for recordings.
        drop(recorder);
        drop(later);
        Some((graph, Ended { kept }))
    }
}

/// What is left of a recording.
struct Ended {
    kept: Vec<Kept>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        drop(self.finish());
    }
}
