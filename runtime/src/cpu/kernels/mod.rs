//! CPU kernels: loops over plain slices, vectorised for the machine at run time and spread over its
//! cores by rayon. They know nothing of graphs.
//!
//! In reading order: [`pointwise`] functions on blocks; [`copy`] and [`gather`] move elements;
//! [`softmax`], [`norm`] and [`reduce`] fold rows; [`matmul`] multiplies matrices. Every kernel
//! checks the sizes and strides that it is given before it touches an element.

pub mod copy;
pub mod gather;
pub mod matmul;
pub mod norm;
pub mod pointwise;
pub mod reduce;
pub mod softmax;

mod gemm;
mod math;
mod simd;
mod view;
