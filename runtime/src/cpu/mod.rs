//! The CPU executor.
//!
//! In reading order: [`Module`] is a program with a kernel chosen for every step, [`Executable`] one with sizes and
//! an arena; `packing` lays weights out, `kernel` chooses, `run` calls, `loops` compiles pointwise groups, `layers`
//! products with their epilogues, `rows` groups over rows, and [`kernels`] are the loops over plain slices.

mod kernel;
pub mod kernels;
mod layers;
mod loops;
mod memory;
mod module;
mod packing;
mod rows;
mod run;

pub use module::{Executable, Module};
pub(crate) use run::{Output, leave, owned};

use crate::error::{Error, Result};

/// The number of threads that kernels run on.
pub fn threads() -> usize {
    rayon::current_num_threads()
}

/// Lets kernels run on this many threads, for the life of the process. It must come before the first run.
///
/// # Errors
/// [`Error::Unsupported`] if the threads have been started already or cannot be.
pub fn set_threads(threads: usize) -> Result<()> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    pool.map_err(|_| Error::Unsupported { what: "another number of threads" })
}
