//! Decompositions: functions from a spec to smaller ones (as Fireiron's `load` and `epilog`),
//! composed into kernels by [templates](crate::template).
//!
//! A decomposition adds statements to a kernel under construction and hands on what is smaller. It fails as the
//! [builder](crate::build) does, and as the functions that it is given.

mod copies;
mod dependent;
mod grid;
pub mod matmul;
mod multistage;
mod ordered_barrier;
mod pipeline;
pub mod pointwise;
mod quotient;
mod softmax;
pub mod together;
pub mod vectors;

pub use copies::{begin_copy, commit_copies, copying, wait_for_copies};
pub use dependent::dependent;
pub use grid::GridBarrier;
pub use multistage::{Ahead, Fetch, multistage, multistage_through_registers, within};
pub use ordered_barrier::{OrderedBarrier, OrderedConsumer};
pub use pipeline::{Pipeline, PipelineState};
pub use pointwise::{
    WIDTH, computed, constant, copy, each, fetch_inside, load, load_as, load_inside, moved, number,
    pointwise, round, store, store_inside, vector, widen,
};
pub use softmax::{Softmax, Spread, Units, zero_for_nan};
pub use vectors::{Run, Runs, coordinates, each_vector, neighbours, part};
