//! What is fuzzed, free of any fuzzer: a function a target, which panics where a promise is broken.
//!
//! [`import`] takes the bytes of a model and [`text`] those of a graph in text form. [`mutate`] changes a model to
//! another that is still one, so that what comes out of a fuzzer reaches the operators. All of it is a function
//! of its arguments, and runs as a plain test over the corpus too.

mod checks;
mod mutate;
mod operators;
mod random;

pub use checks::{import, text};
pub use mutate::mutate;
