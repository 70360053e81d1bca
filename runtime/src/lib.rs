//! Devices, executors, the memory planner and the embedding API.
//!
//! In reading order: [`planner`] gives every intermediate its place in one arena; [`bind`] turns a program and sizes
//! into a [`Plan`]; [`pad`] runs requests at larger sizes than they ask for; [`cpu`] runs programs on the machine's
//! cores, [`gpu`] on a GPU; [`device`] compiles and launches kernels there; [`Error`] is what can go wrong.

mod bind;
pub mod cpu;
pub mod device;
pub mod gpu;
mod indices;
pub mod pad;
pub mod planner;
mod weight;

mod error;

pub use bind::{BoundBuffer, BoundOperand, BoundStep, Place, Plan, bind, largest};
pub use error::{Error, Result};
