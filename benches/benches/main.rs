//! What each part of the pipeline costs, on five kinds of models (`models.rs`).
//!
//! ```text
//! cargo bench -p graphene-benches                      # everything
//! cargo bench -p graphene-benches -- stages/lstm       # what has this in its name
//! ```

mod cpu;
mod models;
mod planner;
mod simulator;
mod stages;

use criterion::{criterion_group, criterion_main};

criterion_group!(
    benches,
    stages::stages,
    planner::planner,
    cpu::runs,
    cpu::kernels,
    simulator::simulator
);
criterion_main!(benches);
