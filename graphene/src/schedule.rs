//! Decompositions: functions from a spec to smaller ones (Fireiron's `tile`, `split`, `load`,
//! `epilog`), composed into kernels by [templates](crate::template).
//!
//! A decomposition adds statements to a kernel under construction and hands on what is smaller.

mod dependent;
mod grid;
pub mod matmul;
mod multistage;
mod pipeline;
pub mod pointwise;
mod softmax;
pub mod together;
mod turns;
pub mod vectors;

pub use dependent::dependent;
pub use grid::GridBarrier;
pub use multistage::{Ahead, Fetch, multistage, multistage_through_registers, within};
pub use pipeline::{Pipeline, consume, give_back, leave, look_ahead, produce, take};
pub use softmax::{Softmax, Units};
pub use turns::{Turn, Turns};
