//! An inference server for ONNX models: `graphene-serve`.
//!
//! A request goes one way. A protocol (`http`, `grpc`) reads it from the wire and makes an [`InferRequest`] of it, within
//! `limits`; [`Server`] finds the model's version; `batch` puts rows of several requests together, runs them, and cuts the
//! outputs apart; the protocol writes the [`InferResponse`]. Text goes through `text` first: tokens there, vectors back.
//!
//! In reading order: `config` is what may be set, `error` what a client is told, `infer` what a request is, `limits` what
//! it may ask for, `batch` how requests run, `statistics` and `metrics` what is counted of them, `version` a loaded version of a
//! model,
//! `repository` the folder that versions come from, `server` all models by name, `http` and `grpc` the protocols, and
//! `listen` connections and the end of the process.

mod batch;
mod config;
mod error;
mod infer;
mod limits;
mod metrics;
mod repository;
mod server;
mod statistics;
mod text;
mod version;

mod grpc;
mod http;
mod listen;

pub use config::{BatchConfig, ModelConfig, ServerConfig, TextConfig, device};
pub use error::{Error, Result};
pub use graphene_text::Pooling;
pub use infer::{InferRequest, InferResponse, Ran};
pub use limits::Limits;
pub use listen::{Listening, Security, listen};
pub use metrics::Protocol;
pub use repository::{RepositoryEntry, State};
pub use server::Server;
pub use statistics::{Batches, Counted, Statistics};
pub use text::Text;
pub use version::Version;
