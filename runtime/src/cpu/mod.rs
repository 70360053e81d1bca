//! The CPU executor.
//!
//! In reading order: [`Module`] is a program with a kernel chosen for every step, [`Executable`] one with
//! sizes and an arena; `kernel` chooses, `run` calls, `loops` compiles pointwise groups, and [`kernels`] are the
//! loops over plain slices.

mod kernel;
pub mod kernels;
mod loops;
mod memory;
mod module;
mod run;

pub use module::{Executable, Module};
