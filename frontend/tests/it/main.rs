//! Tests of the frontend from outside.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod bad_input;
mod classical;
mod contrib;
mod fixtures;
mod fuzz_corpus;
mod hostile;
mod import;
mod meddled;
mod model;
mod random;
mod sequence;
mod signal;
