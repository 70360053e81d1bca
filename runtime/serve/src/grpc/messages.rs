//! The messages of `grpc_service.proto`, `model_config.proto` and `health.proto`, by their published names, numbers and
//! types, as far as they are read or written here. Fields left out are skipped when read.
//!
//! `tests/it/grpc_fields.rs` compares all of them with a list of the published ones.

use bytes::Bytes;
use prost::{Message, Oneof};
use std::collections::BTreeMap;

/// Asks whether the server works at all.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServerLiveRequest {}

/// Whether it does.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServerLiveResponse {
    #[prost(bool, tag = "1")]
    pub(crate) live: bool,
}

/// Asks whether all models answer.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServerReadyRequest {}

/// Whether they do.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServerReadyResponse {
    #[prost(bool, tag = "1")]
    pub(crate) ready: bool,
}

/// Asks whether a model answers.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelReadyRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

/// Whether it does.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelReadyResponse {
    #[prost(bool, tag = "1")]
    pub(crate) ready: bool,
}

/// Asks what the server is.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServerMetadataRequest {}

/// What it is.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServerMetadataResponse {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) extensions: Vec<String>,
}

/// Asks for a model's inputs and outputs.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelMetadataRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

/// They, and the versions that are served.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelMetadataResponse {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) versions: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) platform: String,
    #[prost(message, repeated, tag = "4")]
    pub(crate) inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) outputs: Vec<TensorMetadata>,
}

/// An input or an output; -1 stands for a size that requests choose.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) shape: Vec<i64>,
}

/// A parameter of a request, of a tensor or of an answer.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferParameter {
    #[prost(oneof = "ParameterChoice", tags = "1, 2, 3, 4, 5")]
    pub(crate) parameter_choice: Option<ParameterChoice>,
}

/// Its value; the variants' published names end in `_param`.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum ParameterChoice {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(int64, tag = "2")]
    Int64(i64),
    #[prost(string, tag = "3")]
    String(String),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(uint64, tag = "5")]
    Uint64(u64),
}

/// A request for inference.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelInferRequest {
    #[prost(string, tag = "1")]
    pub(crate) model_name: String,
    #[prost(string, tag = "2")]
    pub(crate) model_version: String,
    #[prost(string, tag = "3")]
    pub(crate) id: String,
    #[prost(btree_map = "string, message", tag = "4")]
    pub(crate) parameters: BTreeMap<String, InferParameter>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) inputs: Vec<InferInputTensor>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) outputs: Vec<InferRequestedOutputTensor>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub(crate) raw_input_contents: Vec<Bytes>,
}

/// An input of it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferInputTensor {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) shape: Vec<i64>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub(crate) parameters: BTreeMap<String, InferParameter>,
    /// An encoded `InferTensorContents`: `contents` reads it once the shape is known to be within the limits. As long as
    /// it is bytes, nothing is copied or allocated for it.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub(crate) contents: Option<Bytes>,
}

/// An output that is asked for.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferRequestedOutputTensor {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) parameters: BTreeMap<String, InferParameter>,
}

/// The answer: outputs, and their elements in the same order.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelInferResponse {
    #[prost(string, tag = "1")]
    pub(crate) model_name: String,
    #[prost(string, tag = "2")]
    pub(crate) model_version: String,
    #[prost(string, tag = "3")]
    pub(crate) id: String,
    #[prost(btree_map = "string, message", tag = "4")]
    pub(crate) parameters: BTreeMap<String, InferParameter>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) outputs: Vec<InferOutputTensor>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(crate) raw_output_contents: Vec<Bytes>,
}

/// An output of it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferOutputTensor {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) shape: Vec<i64>,
}

/// An answer on a stream: an error has a text, and the id of its request.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelStreamInferResponse {
    #[prost(string, tag = "1")]
    pub(crate) error_message: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) infer_response: Option<ModelInferResponse>,
}

/// Asks for a model's configuration.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelConfigRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

/// It.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelConfigResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<ModelConfig>,
}

/// How a model is served.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelConfig {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) platform: String,
    #[prost(int32, tag = "4")]
    pub(crate) max_batch_size: i32,
    #[prost(message, repeated, tag = "5")]
    pub(crate) input: Vec<ModelInput>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) output: Vec<ModelOutput>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) instance_group: Vec<ModelInstanceGroup>,
    #[prost(string, tag = "8")]
    pub(crate) default_model_filename: String,
    #[prost(message, optional, tag = "11")]
    pub(crate) dynamic_batching: Option<ModelDynamicBatching>,
    #[prost(string, tag = "17")]
    pub(crate) backend: String,
}

/// An input of a configuration; `data_type` is a number of `DataType`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelInput {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "2")]
    pub(crate) data_type: i32,
    #[prost(int64, repeated, tag = "4")]
    pub(crate) dims: Vec<i64>,
}

/// An output of a configuration.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelOutput {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "2")]
    pub(crate) data_type: i32,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) dims: Vec<i64>,
}

/// Batches that run side by side; `kind` is a number of `ModelInstanceGroup.Kind`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelInstanceGroup {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "2")]
    pub(crate) count: i32,
    #[prost(int32, repeated, tag = "3")]
    pub(crate) gpus: Vec<i32>,
    #[prost(int32, tag = "4")]
    pub(crate) kind: i32,
}

/// Says that requests are put together.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelDynamicBatching {}

/// Asks for what was counted; of all models where there is no name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelStatisticsRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

/// What was counted, by model.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelStatisticsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) model_stats: Vec<ModelStatistics>,
}

/// How often, and how many nanoseconds in all.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct StatisticDuration {
    #[prost(uint64, tag = "1")]
    pub(crate) count: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) ns: u64,
}

/// What was counted of requests.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferStatistics {
    #[prost(message, optional, tag = "1")]
    pub(crate) success: Option<StatisticDuration>,
    #[prost(message, optional, tag = "2")]
    pub(crate) fail: Option<StatisticDuration>,
    #[prost(message, optional, tag = "3")]
    pub(crate) queue: Option<StatisticDuration>,
    #[prost(message, optional, tag = "4")]
    pub(crate) compute_input: Option<StatisticDuration>,
    #[prost(message, optional, tag = "5")]
    pub(crate) compute_infer: Option<StatisticDuration>,
    #[prost(message, optional, tag = "6")]
    pub(crate) compute_output: Option<StatisticDuration>,
    #[prost(message, optional, tag = "7")]
    pub(crate) cache_hit: Option<StatisticDuration>,
    #[prost(message, optional, tag = "8")]
    pub(crate) cache_miss: Option<StatisticDuration>,
}

/// What was counted of batches of as many rows.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferBatchStatistics {
    #[prost(uint64, tag = "1")]
    pub(crate) batch_size: u64,
    #[prost(message, optional, tag = "2")]
    pub(crate) compute_input: Option<StatisticDuration>,
    #[prost(message, optional, tag = "3")]
    pub(crate) compute_infer: Option<StatisticDuration>,
    #[prost(message, optional, tag = "4")]
    pub(crate) compute_output: Option<StatisticDuration>,
}

/// What was counted of a model.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelStatistics {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(uint64, tag = "3")]
    pub(crate) last_inference: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) inference_count: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) execution_count: u64,
    #[prost(message, optional, tag = "6")]
    pub(crate) inference_stats: Option<InferStatistics>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) batch_stats: Vec<InferBatchStatistics>,
}

/// A parameter of loading or unloading.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelRepositoryParameter {
    #[prost(oneof = "RepositoryParameterChoice", tags = "1, 2, 3, 4")]
    pub(crate) parameter_choice: Option<RepositoryParameterChoice>,
}

/// Its value; the variants' published names end in `_param`.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum RepositoryParameterChoice {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(int64, tag = "2")]
    Int64(i64),
    #[prost(string, tag = "3")]
    String(String),
    #[prost(bytes = "bytes", tag = "4")]
    Bytes(Bytes),
}

/// Asks which models there are.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RepositoryIndexRequest {
    #[prost(string, tag = "1")]
    pub(crate) repository_name: String,
    #[prost(bool, tag = "2")]
    pub(crate) ready: bool,
}

/// The models.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RepositoryIndexResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) models: Vec<ModelIndex>,
}

/// A model, and how it is.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelIndex {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(string, tag = "3")]
    pub(crate) state: String,
    #[prost(string, tag = "4")]
    pub(crate) reason: String,
}

/// Asks that a model be loaded.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RepositoryModelLoadRequest {
    #[prost(string, tag = "1")]
    pub(crate) repository_name: String,
    #[prost(string, tag = "2")]
    pub(crate) model_name: String,
    #[prost(btree_map = "string, message", tag = "3")]
    pub(crate) parameters: BTreeMap<String, ModelRepositoryParameter>,
}

/// It is.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RepositoryModelLoadResponse {}

/// Asks that a model be served no more.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RepositoryModelUnloadRequest {
    #[prost(string, tag = "1")]
    pub(crate) repository_name: String,
    #[prost(string, tag = "2")]
    pub(crate) model_name: String,
    #[prost(btree_map = "string, message", tag = "3")]
    pub(crate) parameters: BTreeMap<String, ModelRepositoryParameter>,
}

/// It is not.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RepositoryModelUnloadResponse {}

/// A request of the shared-memory extension; there are no regions, so none of its fields are read.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SharedMemoryRequest {}

/// The answer to it: no regions.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SharedMemoryResponse {}

/// A request of the trace or the logging extension: settings by name, whose values are not read.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SettingsRequest {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) settings: BTreeMap<String, SettingValue>,
}

/// A setting's value.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SettingValue {}

/// The answer to it: no settings.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SettingsResponse {}

/// Asks how a service is; the server itself where there is no name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
}

/// How it is: a number of `HealthCheckResponse.ServingStatus`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    pub(crate) status: i32,
}
