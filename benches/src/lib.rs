//! Benchmarks of the stages, comparisons with peers, and the checks of the whole workspace.

pub mod results;
