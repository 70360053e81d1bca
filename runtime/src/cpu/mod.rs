//! The CPU executor.
//!
//! In reading order: [`Module`] is a program with a kernel chosen for every step, [`Bound`] one with sizes, and
//! [`Executable`] that with an arena; `work` says which steps are spread over threads, and `scratch` is memory that
//! threads keep; `packing` says which weights are prepacked, `weight_matrix` how, and `prepacked` as what; `kernel` chooses,
//! `run` calls, `loops` compiles pointwise groups, `layers` matmuls with their epilogues, `rows` groups over rows, `part`
//! takes a part of a body, and [`kernels`] are the loops over plain slices. [`rates`] measures what the machine gives at most.

mod bound;
mod kernel;
pub mod kernels;
mod layers;
mod loops;
mod memory;
mod module;
mod packing;
mod part;
mod prepacked;
mod rates;
mod rows;
mod run;
mod scratch;
mod weight_matrix;
mod work;

pub use bound::{Bound, Control, Executable};
#[cfg(feature = "cuda")]
pub(crate) use memory::Output;
pub(crate) use memory::Storage;
pub use module::Module;
pub use rates::{Rates, rates};
#[cfg(feature = "cuda")]
pub(crate) use run::{leave, owned};

use crate::error::{Error, Result};
use crate::threads::Threads;
use std::num::NonZero;
use std::sync::OnceLock;
use std::thread;

/// The process's threads, once they have been started.
static THREADS: OnceLock<Threads> = OnceLock::new();

/// The number of threads that runs spread over where whoever runs has none of its own.
pub fn threads() -> usize {
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    THREADS.get().map_or_else(cores, Threads::count)
}

/// Lets such runs spread over this many threads, for the life of the process. It must come before the first run.
///
/// # Errors
/// [`Error::Unsupported`] if the threads have been started already or cannot be.
pub fn set_threads(threads: usize) -> Result<()> {
    let taken = Error::Unsupported { what: "another number of threads" };
    if THREADS.get().is_some() {
        return Err(taken);
    }
    THREADS.set(Threads::new(threads)?).map_err(|_| taken)
}

/// Does work on the calling thread's threads, or else on the process's.
pub(crate) fn on_threads<R>(work: impl FnOnce() -> R) -> R {
    if Threads::current().is_some() {
        return work();
    }
    // Where no threads can be had, the calling one does all of it.
    if THREADS.get().is_none()
        && let Ok(started) = Threads::new(threads())
    {
        // Another thread may have been first.
        let _ = THREADS.set(started);
    }
    match THREADS.get() {
        Some(threads) => threads.run(work),
        None => work(),
    }
}
