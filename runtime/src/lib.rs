//! The embedding API, devices, executors and the memory planner.
//!
//! In reading order: an [`Engine`] is a device with threads and a memory limit; a [`Model`] is loaded on it, by
//! [`ModelBuilder`]; a [`Context`] runs it, one request at a time, [`Input`]s to [`Outputs`]; [`RunOptions`] end a run
//! early; [`Error`] is what can go wrong.
//!
//! Loading has stages, for callers that look between them: a [`Source`] is read and imported, by what is [`Given`], such as
//! the [`RequestedSizes`] of its dims; [`ModelBuilder::plan`] makes a program of the graph, and
//! [`ModelBuilder::compile`] a model of that. A [`BoundModel`] is what a context has bound to sizes.
//!
//! ```
//! # let folder = std::env::temp_dir().join(format!("graphene-embed-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # std::env::set_current_dir(&folder)?;
//! # let zoo = graphene_models::build("bert-base-tiny", &graphene_models::Options::default())?;
//! # zoo.write("bert.onnx".as_ref())?;
#![doc = include_str!("embed.txt")]
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Below: [`planner`] gives every intermediate its place in one arena; [`bind`] turns a program and sizes into a [`Plan`];
//! [`cpu`] runs programs on the machine's cores, [`gpu`] on a GPU; [`device`] compiles and launches kernels there.
//!
//! Modules use those before them, and none behind:
//!
//! ```text
//! error < planner < bind < threads < cpu < device < gpu < engine < executor < model < context < load < pool
//! ```
//!
//! Some steps of a program on a [`gpu`] are computed by [`cpu`]; an `engine` is an open device with its threads, and an
//! `executor` either of both on it; `load` makes models, and warms them up by contexts. `error` alone names something of
//! [`device`], the libraries that may be missing, which use nothing themselves.
//!
//! The executors are features, both of them on by default: without `cuda` there are neither [`gpu`] nor [`device`], and
//! nothing of CUDA is built; without `cpu`, which `cuda` includes, programs are planned and bound to sizes only.

#[cfg(feature = "cpu")]
mod context;
#[cfg(feature = "cpu")]
mod control;
#[cfg(feature = "cpu")]
mod engine;
#[cfg(feature = "cpu")]
mod executor;
#[cfg(feature = "cpu")]
mod load;
#[cfg(feature = "cpu")]
mod model;
#[cfg(feature = "cpu")]
mod pool;
#[cfg(feature = "cpu")]
mod sync;
#[cfg(feature = "cpu")]
mod threads;
#[cfg(feature = "cpu")]
mod trace;

mod bind;
#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod device;
#[cfg(feature = "cuda")]
pub mod gpu;
#[cfg(feature = "cuda")]
mod indices;
#[cfg(feature = "cpu")]
mod pad;
pub mod planner;
mod reach;
#[cfg(feature = "cpu")]
mod weight;

mod error;

pub use bind::{BoundBuffer, BoundOperand, BoundStep, Place, Plan, bind, largest};
#[cfg(feature = "cuda")]
pub use context::DeviceTensor;
#[cfg(feature = "cpu")]
pub use context::{BoundModel, Context, Input, OutputMut, Outputs};
#[cfg(feature = "cpu")]
pub use control::{Cancel, RunOptions};
#[cfg(feature = "cpu")]
pub use engine::{Device, DeviceInfo, Engine, EngineBuilder, GpuInfo};
pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "cpu")]
pub use executor::{Built, Progress};
pub use graphene_frontend::dim::{Bindings, Dim};
pub use graphene_frontend::dtype::DType;
pub use graphene_frontend::import::{ExternalData, ExternalDataError, Reading};
pub use graphene_frontend::tensor::{Element, Tensor, TensorError};
#[cfg(feature = "cpu")]
pub use load::{
    Dtype, Execution, Given, Imported, ModelBuilder, RequestedSizes, Role, Roles, Sizing, Source,
    Specialised,
};
#[cfg(feature = "cpu")]
pub use model::{DimAxes, Footprint, Model, Port, Profile};
#[cfg(feature = "cpu")]
pub use pool::{Acquire, Lease, Pending, Pool, PoolBuilder, Request};
#[cfg(feature = "cpu")]
pub use threads::{MOST_THREADS, Threads};
