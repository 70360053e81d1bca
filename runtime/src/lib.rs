//! Devices, executors, the memory planner and the embedding API.
//!
//! In reading order: [`planner`] gives every intermediate its place in one arena; [`cpu`] runs
//! programs on the machine's cores; [`Error`] is what can go wrong.

pub mod cpu;
pub mod planner;

mod error;

pub use error::{Error, Result};
