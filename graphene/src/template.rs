//! Kernel templates: short compositions of [decompositions](crate::schedule) with a plain struct of
//! parameters, which is also what a tuner searches.
//!
//! | template | computes | for |
//! |---|---|---|
//! | [`gemm`] | matmuls of fp16, bf16 or TF32 by warpgroups | Hopper |
//! | [`multistage`] | matmuls of fp16, bf16 or TF32 by warps, in single precision by threads | Ampere and newer |
//! | [`conv`] | convolutions, poolings | Ampere and newer |
//! | [`mlp`] | a chain of layers | Ampere and newer |
//! | [`fmha`] | attention | Hopper, Ampere |
//! | [`pointwise`] | functions of elements, copies | all |
//! | [`parts`] | joined and surrounded tensors, ranges | all |
//! | [`transpose`] | copies that change the contiguous axis | all |
//! | [`rows`] | normalisations of rows | all |
//! | [`recurrent`] | recurrent layers, all steps in one launch | Ampere and newer |
//! | [`gather`] | rows of tables, embeddings | all |
//! | [`reduce`] | reductions | all |
//! | [`folds`] | functions of rows and of their totals | all |
//! | [`scan`] | running sums and products | all |
//!
//! A head lists its kernels' levels, specs that others decompose, by these names and by who works together there:
//!
//! | level | computes |
//! |---|---|
//! | kernel | all results, by all blocks |
//! | cluster, step | a tile of them, by several blocks; in steps, by blocks that wait for each other between two |
//! | tile, item | results in global memory of operands there, by threads together; by a thread |
//! | layer | a layer's result, of its input in shared memory |
//! | reduction | sums or other totals in registers, of operands in global memory |
//! | load | nothing: brings operands to shared memory or registers |
//! | stage | sums in registers, of a stage of operands in shared memory |
//! | registers | a function of what registers hold, and its totals among threads |
//! | epilogue | results in global memory, of what registers or shared memory hold |
//!
//! Each fails with [`Error::Constraint`](crate::Error::Constraint) for parameters that no kernel has.
//!
//! A [`matmul`] says what is computed, and its [`epilogue`] what becomes of the sums; they are the
//! same for all templates of matmuls. So are [gated ones](matmul::MatMul::gated).

#[macro_use]
mod parameters;

pub mod access;
pub mod conv;
pub mod epilogue;
pub mod fmha;
pub mod folds;
mod fragments;
mod gated;
pub mod gather;
pub mod gemm;
pub mod matmul;
pub mod mlp;
pub mod multistage;
pub mod parts;
pub mod pointwise;
pub mod recurrent;
pub mod reduce;
pub mod rows;
pub mod scan;
mod split_k;
mod stage;
mod tiled_mma;
pub mod transpose;
