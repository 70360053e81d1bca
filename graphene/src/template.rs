//! Kernel templates: short compositions of [decompositions](crate::schedule) with a plain struct of
//! parameters, which is also what a tuner searches.

pub mod access;
pub mod fmha;
pub mod gather;
pub mod gemm;
pub mod pointwise;
pub mod reduce;
pub mod rows;
pub mod simt;
pub mod transpose;
