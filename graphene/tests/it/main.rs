//! Tests of the crate's public functions.

// The checks that the tests share are not themselves marked as tests.
#![allow(clippy::unwrap_used)]

mod atoms;
mod carry;
mod checked;
mod choose;
mod conv;
mod emit;
mod error;
mod faults;
mod fireiron;
mod fmha;
mod folds;
mod fragment;
mod function;
mod gated;
mod gather;
mod gemm;
mod index;
mod kernel_text;
mod kind;
mod levels;
mod levels_matmul;
mod mlp;
mod mma;
mod near;
mod norms;
mod parts;
mod pointwise;
mod products;
mod property;
mod quad_pairs;
mod recurrent;
mod reduce;
mod rows;
mod scan;
mod simt;
mod simulate;
mod support;
mod target;
mod transpose;
mod verifier;
mod views;
