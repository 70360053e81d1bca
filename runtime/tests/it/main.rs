//! One suite, three executors: reference, library and fused give the same outputs.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod check;
mod fixtures;
mod pointwise;
mod programs;
mod zoo;
