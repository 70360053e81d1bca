//! Graphene: an intermediate representation for tensor computations on GPUs.
//!
//! After Hagedorn et al., *Graphene: An IR for Optimized Tensor Computations on GPUs* (ASPLOS 2023): data and threads are both
//! tensors, described by layouts that tile hierarchically, and a kernel is a specification decomposed step by step until every
//! part is an atom, one machine instruction. In reading order:
//!
//! 1. [`target`]: the machines to plan for, as plain values with their rates and limits.
//! 2. [`layout`]: layouts and CuTe's algebra on them, swizzles, and the textual notation. [`fragment`]: what each thread
//!    of an instruction holds, as layouts with names.
//! 3. [`index`] and [`tensor`]: expressions of coordinates, and tiled views of data and threads.
//! 4. [`kernel`]: specs, their decompositions and control flow, as data. [`kind`]: what a spec computes. [`build`] makes kernels,
//!    [`text`] prints them and reads them back.
//! 5. [`atom`]: the instructions, a row each. [`verify`] checks a kernel, [`simulate`] runs it, and
//!    [`emit`] prints it as CUDA C++ with its [`launch`] description, all by those rows.
//! 6. [`function`]s of elements, as data; [`choose`]: decisions as pure functions. [`schedule`] and
//!    [`template`]: decompositions, and the kernels that are composed of them.
//!
//! Every fallible function returns the one [`Error`]. Nothing here reads a device, a clock, the environment or a file. Names that
//! much of the crate is written with are at its root, too.

pub mod arch;
pub mod atom;
pub mod build;
pub mod choose;
mod convert;
pub mod emit;
pub mod error;
pub mod fragment;
pub mod function;
pub mod index;
pub mod kernel;
pub mod kind;
pub mod launch;
pub mod layout;
mod named;
pub mod schedule;
pub mod simulate;
pub mod target;
pub mod template;
pub mod tensor;
pub mod text;
pub mod verify;

pub use arch::{Arch, Feature, WARP};
pub use build::{Builder, Header};
pub(crate) use error::{AtLeast, MultipleOf, Within, needs};
pub use error::{Error, Result};
pub use function::{Function, Step};
pub use index::{Cond, Expr, Relation, Var};
pub use kernel::{
    Binary, Completion, Fence, For, Fused, Group, Kernel, Kind, Number, Operand, Ring, Scope, Spec,
    Stmt, TensorId, Test, ThreadsId, Unary, Window,
};
pub use layout::{IntTuple, Layout, Swizzle, Tiler};
pub use target::Target;
pub use tensor::{Agent, Memory, Scalar, Tensor, Threads, View};
