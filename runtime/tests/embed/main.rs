//! The embedding API as a program that depends on it uses it.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod faults;
mod lending;
mod requests;
mod running;
mod stages;
mod zoo;
