//! A C interface to `graphene-runtime`: `include/graphene.h` is generated from this crate.
//!
//! In reading order: `status` is what every function returns and how the last error is told; `raw` turns pointers into
//! references and checks them; `dtype` numbers the element types; `engine`, `model`, `context`, `outputs`, `pool` and
//! `cancel` are the handles, each with its functions; `input` is what a request brings.
//!
//! No function unwinds into its caller: a panic becomes [`Status::Bug`]. Rust programs use `graphene-runtime` itself.

// The head of the header says once what pointers have to be.
#![allow(clippy::missing_safety_doc)]

mod cancel;
mod context;
mod dtype;
mod engine;
mod input;
mod model;
mod outputs;
mod pool;
mod raw;
mod status;

pub use cancel::{Cancel, graphene_cancel_free, graphene_cancel_new, graphene_cancel_set};
pub use context::{
    Context, RunOptions, graphene_context_bind, graphene_context_free, graphene_context_new,
    graphene_context_run, graphene_context_run_into,
};
pub use dtype::{DType, graphene_dtype_size};
pub use engine::{
    Device, Engine, EngineOptions, graphene_engine_device, graphene_engine_free,
    graphene_engine_health, graphene_engine_memory, graphene_engine_new, graphene_engine_threads,
};
pub use input::{Input, OutputBuffer, Size};
pub use model::{
    DimKind, DimRule, Footprint, Model, ModelOptions, Port, Precision, graphene_model_footprint,
    graphene_model_free, graphene_model_inputs, graphene_model_load, graphene_model_load_bytes,
    graphene_model_notes, graphene_model_outputs,
};
pub use outputs::{
    Outputs, Tensor, graphene_outputs_find, graphene_outputs_free, graphene_outputs_tensors,
};
pub use pool::{
    Pool, PoolOptions, graphene_pool_free, graphene_pool_new, graphene_pool_run,
    graphene_pool_run_into,
};
pub use status::{
    ABI_VERSION, Status, graphene_abi_version, graphene_last_error_code,
    graphene_last_error_message, graphene_last_error_status, graphene_version,
};
