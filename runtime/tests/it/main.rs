//! One suite, three executors: reference, library and fused give the same outputs.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod attention;
mod bound;
mod check;
mod conv;
mod exact;
mod fixtures;
mod integers;
mod layers;
mod library;
mod padding;
mod pointwise;
mod pool;
mod programs;
mod promises;
mod rnn;
mod row_groups;
mod rows;
mod zoo;
