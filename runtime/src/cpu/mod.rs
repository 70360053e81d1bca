//! The CPU executor: [`kernels`] are its loops over plain slices.

pub mod kernels;
