//! Tests of the frontend from outside.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod fixtures;
