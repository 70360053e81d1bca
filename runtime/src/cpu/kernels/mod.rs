//! CPU kernels: loops over plain slices, vectorised for the machine at run time and spread over the
//! threads of whoever runs them. They know nothing of graphs.
//!
//! In reading order: [`pointwise`] functions on blocks; [`copy`] and [`gather`] move elements, `indexed` those at single
//! places; [`softmax`], [`norm`], [`reduce`] and [`arg`] fold rows, and `fold`, `cumulative` and `top_k` take a `number` of
//! any type; [`matmul`] multiplies matrices, which `matrix` describes, and on it stand
//! [`attention`] and [`conv`]; `packed` multiplies by matrices that were prepacked, and on it stand `rnn` and, for
//! images whose channels are side by side, `channels_last`; `finish` is what follows in both; `bf16` does by weights of
//! half as many bytes what `packed` does; `int8` multiplies integers that fit into bytes; both use `amx` where the machine
//! has it; [`pool`] folds windows.
//! Every kernel checks the sizes and strides that it is given before it touches an element.

pub mod arg;
pub mod attention;
pub mod conv;
pub mod copy;
pub mod gather;
pub mod integer;
pub mod matmul;
pub mod norm;
pub mod place;
pub mod pointwise;
pub mod pool;
pub mod real;
pub mod reduce;
pub mod softmax;

#[cfg(target_arch = "x86_64")]
mod amx;
pub(crate) mod bf16;
pub(crate) mod channels_last;
pub(crate) mod cumulative;
mod depthwise;
pub(crate) mod finish;
pub(crate) mod fold;
pub(crate) mod gemm;
pub(crate) mod indexed;
pub(crate) mod int8;
pub(crate) mod interpolate;
mod math;
mod matrix;
pub(crate) mod number;
pub(crate) mod packed;
mod prefetch;
pub(crate) mod rnn;
pub(crate) mod simd;
pub(crate) mod table;
pub(crate) mod tile;
pub(crate) mod top_k;
pub(crate) mod view;
mod window;

#[cfg(test)]
mod tests;
