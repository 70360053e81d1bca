//! What a thread records, and what may not happen meanwhile.
//!
//! The driver lets a recording thread neither allocate, free, load nor wait: such calls are refused here, and what would
//! be freed is put off until the recording ends.

use super::{Error, Result};
use cudarc::driver::sys;
use std::any::Any;
use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

/// What a graph keeps, so that it can be launched as long as it lives.
pub(super) type Kept = Arc<dyn Any + Send + Sync>;

/// What a thread records.
pub(super) struct Recording {
    /// The stream whose launches are recorded.
    of: sys::CUstream,
    /// Where they go.
    pub(super) to: sys::CUstream,
    pub(super) kept: Vec<Kept>,
    /// What is dropped when the recording has ended.
    pub(super) later: Vec<Box<dyn Any>>,
}

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// Whether this thread records a graph. A thread that ends records none.
pub(in crate::device) fn is_recording() -> bool {
    RECORDING.try_with(|recording| recording.borrow().is_some()).unwrap_or(false)
}

/// Refuses, while this thread records a graph, what cannot be part of one.
pub(in crate::device) fn refuse(what: &'static str) -> Result<()> {
    if is_recording() { Err(Error::Unsupported { what }) } else { Ok(()) }
}

/// This thread records from now on: what it launches on one stream goes to the other, which lives until the recording ends.
pub(super) fn begin(of: sys::CUstream, to: sys::CUstream) {
    let (kept, later) = (Vec::new(), Vec::new());
    RECORDING.set(Some(Recording { of, to, kept, later }));
}

/// What this thread has recorded, if it does; it records no more.
pub(super) fn end() -> Option<Recording> {
    RECORDING.take()
}

/// Where launches on a stream go: to itself, unless this thread records it.
pub(super) fn target(stream: sys::CUstream) -> Result<sys::CUstream> {
    let recorded = RECORDING.try_with(|recording| {
        recording.borrow().as_ref().map(|recording| (recording.of, recording.to))
    });
    match recorded.ok().flatten() {
        None => Ok(stream),
        Some((of, to)) if of == stream => Ok(to),
        Some(_) => Err(Error::Unsupported { what: "a launch on one stream in a graph of another" }),
    }
}

/// Tells the recording of this thread, if there is one, what a launch needs as long as it may run.
pub(in crate::device) fn keep<T: Any + Send + Sync>(what: &Arc<T>) {
    // Without a recording nothing is to be kept.
    let _ = RECORDING.try_with(|recording| {
        if let Some(recording) = &mut *recording.borrow_mut() {
            recording.kept.push(Arc::clone(what) as Kept);
        }
    });
}

/// What must not be dropped while its thread records a graph, since the driver allows no such call then: it is dropped when
/// the recording has ended.
pub(in crate::device) struct Outside<T: 'static>(Option<T>);

impl<T> Outside<T> {
    pub(in crate::device) fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T> Deref for Outside<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only dropping it takes the value")
    }
}

impl<T: 'static> Drop for Outside<T> {
    fn drop(&mut self) {
        let Some(value) = self.0.take() else { return };
        let mut value = Some(value);
        // A thread that ends has no recording any more; dropping the value waits until nothing is borrowed.
        let _ = RECORDING.try_with(|recording| {
            if let Some(recording) = &mut *recording.borrow_mut() {
                recording.later.extend(value.take().map(|value| Box::new(value) as Box<dyn Any>));
            }
        });
    }
}
