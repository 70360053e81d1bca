//! One suite, three executors: reference, library and fused give the same outputs.

mod check;
mod pointwise;
mod programs;
