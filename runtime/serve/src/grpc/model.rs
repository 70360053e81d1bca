//! The methods that tell of the server and its models, and that load and unload them.

use super::call::Call;
use super::codec::Ask;
use super::messages::{
    InferBatchStatistics, InferStatistics, ModelConfig, ModelConfigRequest, ModelConfigResponse,
    ModelDynamicBatching, ModelIndex, ModelInput, ModelInstanceGroup, ModelMetadataRequest,
    ModelMetadataResponse, ModelOutput, ModelReadyRequest, ModelReadyResponse, ModelStatistics,
    ModelStatisticsRequest, ModelStatisticsResponse, RepositoryIndexRequest,
    RepositoryIndexResponse, RepositoryModelLoadRequest, RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest, RepositoryModelUnloadResponse, ServerLiveRequest,
    ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest,
    ServerReadyResponse, SettingsRequest, SettingsResponse, SharedMemoryRequest,
    SharedMemoryResponse, StatisticDuration, TensorMetadata,
};
use super::tensors::{name, number, sizes};
use crate::error::{Error, Result};
use crate::repository::State;
use crate::server::Server;
use crate::statistics::Counted;
use crate::version::Version;
use graphene_runtime::Port;
use std::sync::Arc;

/// What models are for, in the protocol's word.
const PLATFORM: &str = "graphene";

/// Extensions of the protocol that the server has.
const EXTENSIONS: [&str; 4] =
    ["model_repository", "model_configuration", "statistics", "binary_tensor_data"];

/// `ModelInstanceGroup.Kind`: on a GPU.
const KIND_GPU: i32 = 1;
/// `ModelInstanceGroup.Kind`: on the host's cores.
const KIND_CPU: i32 = 2;

impl Ask for ServerLiveRequest {}
impl Ask for ServerReadyRequest {}
impl Ask for ModelReadyRequest {}
impl Ask for ServerMetadataRequest {}
impl Ask for ModelMetadataRequest {}
impl Ask for ModelConfigRequest {}
impl Ask for ModelStatisticsRequest {}
impl Ask for RepositoryIndexRequest {}
impl Ask for RepositoryModelLoadRequest {}
impl Ask for RepositoryModelUnloadRequest {}
impl Ask for SharedMemoryRequest {}
impl Ask for SettingsRequest {}

/// The version of a model that a message names; the newest where it names none.
pub(super) fn find(server: &Server, name: &str, version: &str) -> Result<Arc<Version>> {
    server.find(name, Some(version).filter(|version| !version.is_empty()))
}

/// `ServerLive`.
pub(super) async fn server_live(call: Call, _: ServerLiveRequest) -> Result<ServerLiveResponse> {
    Ok(ServerLiveResponse { live: call.server.live() })
}

/// `ServerReady`.
pub(super) async fn server_ready(call: Call, _: ServerReadyRequest) -> Result<ServerReadyResponse> {
    Ok(ServerReadyResponse { ready: call.server.ready() })
}

/// `ModelReady`: of a model that isn't there, as Triton says it, that it is not ready.
pub(super) async fn model_ready(
    call: Call,
    asked: ModelReadyRequest,
) -> Result<ModelReadyResponse> {
    Ok(ModelReadyResponse { ready: find(&call.server, &asked.name, &asked.version).is_ok() })
}

/// `ServerMetadata`.
pub(super) async fn server_metadata(
    _: Call,
    _: ServerMetadataRequest,
) -> Result<ServerMetadataResponse> {
    Ok(ServerMetadataResponse {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: EXTENSIONS.map(str::to_owned).to_vec(),
    })
}

/// `ModelMetadata`.
pub(super) async fn model_metadata(
    call: Call,
    asked: ModelMetadataRequest,
) -> Result<ModelMetadataResponse> {
    let version = find(&call.server, &asked.name, &asked.version)?;
    let served = call.server.index().into_iter();
    let served = served.filter(|entry| entry.name == asked.name && entry.state == State::Ready);
    let port = |port: &Port| TensorMetadata {
        name: port.name().to_owned(),
        datatype: name(port.dtype()).to_owned(),
        shape: sizes(port.dims()),
    };
    Ok(ModelMetadataResponse {
        name: version.name().to_owned(),
        versions: served.map(|entry| entry.version).collect(),
        platform: PLATFORM.to_owned(),
        inputs: version.model().inputs().iter().map(port).collect(),
        outputs: version.model().outputs().iter().map(port).collect(),
    })
}

/// The rows that a request may have, where a batch dim comes first in all inputs and outputs; zero, as the protocol has
/// it, where requests are not put together.
fn max_batch(version: &Version) -> i32 {
    let model = version.model();
    let mut first = model.inputs().iter().chain(model.outputs()).map(|port| port.dims().first());
    let batch = first.next().flatten().filter(|dim| dim.known().is_none());
    let rows = version.batch_rows();
    let common = batch.is_some() && first.all(|dim| dim == batch);
    if rows > 1 && common { i32::try_from(rows).unwrap_or(i32::MAX) } else { 0 }
}

/// `ModelConfig`: dims are without that of the batch where there is one, other than in the metadata.
pub(super) async fn model_config(
    call: Call,
    asked: ModelConfigRequest,
) -> Result<ModelConfigResponse> {
    let version = find(&call.server, &asked.name, &asked.version)?;
    let max_batch_size = max_batch(&version);
    let dims = |port: &Port| sizes(&port.dims()[usize::from(max_batch_size > 0)..]);
    let input = |port: &Port| ModelInput {
        name: port.name().to_owned(),
        data_type: number(port.dtype()),
        dims: dims(port),
    };
    let output = |port: &Port| ModelOutput {
        name: port.name().to_owned(),
        data_type: number(port.dtype()),
        dims: dims(port),
    };
    let gpu = call.server.engine().device().gpu.map(|gpu| gpu.number);
    let config = ModelConfig {
        name: version.name().to_owned(),
        platform: PLATFORM.to_owned(),
        backend: PLATFORM.to_owned(),
        max_batch_size,
        input: version.model().inputs().iter().map(input).collect(),
        output: version.model().outputs().iter().map(output).collect(),
        instance_group: vec![ModelInstanceGroup {
            name: version.name().to_owned(),
            count: i32::try_from(version.contexts()).unwrap_or(i32::MAX),
            gpus: gpu.and_then(|number| i32::try_from(number).ok()).into_iter().collect(),
            kind: if gpu.is_some() { KIND_GPU } else { KIND_CPU },
        }],
        default_model_filename: "model.onnx".to_owned(),
        dynamic_batching: (max_batch_size > 0).then_some(ModelDynamicBatching {}),
    };
    Ok(ModelConfigResponse { config: Some(config) })
}

/// `ModelStatistics`: of all models that answer where none is named.
pub(super) async fn model_statistics(
    call: Call,
    asked: ModelStatisticsRequest,
) -> Result<ModelStatisticsResponse> {
    let versions = if asked.name.is_empty() {
        let ready = call.server.index().into_iter().filter(|entry| entry.state == State::Ready);
        // One that is unloaded meanwhile is left out.
        ready.filter_map(|entry| find(&call.server, &entry.name, &entry.version).ok()).collect()
    } else {
        vec![find(&call.server, &asked.name, &asked.version)?]
    };
    Ok(ModelStatisticsResponse { model_stats: versions.iter().map(|one| counted(one)).collect() })
}

fn counted(version: &Version) -> ModelStatistics {
    let all = version.statistics();
    let time = |of: Counted| Some(StatisticDuration { count: of.count, ns: of.ns });
    let batches = all.batches.iter().map(|(&rows, batch)| InferBatchStatistics {
        batch_size: rows as u64,
        compute_input: time(batch.compute_input),
        compute_infer: time(batch.compute_infer),
        compute_output: time(batch.compute_output),
    });
    ModelStatistics {
        name: version.name().to_owned(),
        version: version.number().to_owned(),
        last_inference: all.last_ms,
        inference_count: all.inferences,
        execution_count: all.executions,
        inference_stats: Some(InferStatistics {
            success: time(all.success),
            fail: time(all.fail),
            queue: time(all.queue),
            compute_input: time(all.compute_input),
            compute_infer: time(all.compute_infer),
            compute_output: time(all.compute_output),
            // Answers are not kept.
            cache_hit: time(Counted::default()),
            cache_miss: time(Counted::default()),
        }),
        batch_stats: batches.collect(),
    }
}

/// `RepositoryIndex`.
pub(super) async fn repository_index(
    call: Call,
    asked: RepositoryIndexRequest,
) -> Result<RepositoryIndexResponse> {
    only_repository(&asked.repository_name)?;
    let mut entries = call.server.index();
    entries.retain(|entry| !asked.ready || entry.state == State::Ready);
    let models = entries.into_iter().map(|entry| {
        let (state, reason) = match entry.state {
            State::Ready => ("READY", String::new()),
            State::Loading => ("LOADING", String::new()),
            State::Unavailable(reason) => ("UNAVAILABLE", reason),
        };
        ModelIndex { name: entry.name, version: entry.version, state: state.to_owned(), reason }
    });
    Ok(RepositoryIndexResponse { models: models.collect() })
}

/// `RepositoryModelLoad`.
pub(super) async fn repository_model_load(
    call: Call,
    asked: RepositoryModelLoadRequest,
) -> Result<RepositoryModelLoadResponse> {
    only_repository(&asked.repository_name)?;
    if let Some(parameter) = asked.parameters.keys().next() {
        let what =
            format!("parameter {parameter:?} of loading (a model's files lie in its folder)");
        return Err(Error::Unsupported { what });
    }
    call.server.load(&asked.model_name).await?;
    Ok(RepositoryModelLoadResponse {})
}

/// `RepositoryModelUnload`. Its parameter `unload_dependents` asks for nothing here: no model depends on another.
pub(super) async fn repository_model_unload(
    call: Call,
    asked: RepositoryModelUnloadRequest,
) -> Result<RepositoryModelUnloadResponse> {
    only_repository(&asked.repository_name)?;
    call.server.unload(&asked.model_name).await?;
    Ok(RepositoryModelUnloadResponse {})
}

fn only_repository(name: &str) -> Result<()> {
    let what = || format!("a repository of its own name ({name:?}; there is one, without a name)");
    if name.is_empty() { Ok(()) } else { Err(Error::Unsupported { what: what() }) }
}

/// The status of shared memory, and its end: there is none, which clients ask for before they begin.
pub(super) async fn no_shared_memory(
    _: Call,
    _: SharedMemoryRequest,
) -> Result<SharedMemoryResponse> {
    Ok(SharedMemoryResponse {})
}

/// Registers no shared memory.
pub(super) async fn register_shared_memory(
    _: Call,
    _: SharedMemoryRequest,
) -> Result<SharedMemoryResponse> {
    let what = "shared memory (send tensors in raw_input_contents)".to_owned();
    Err(Error::Unsupported { what })
}

/// `TraceSetting` and `LogSettings`: there are no settings to be read, and none to be set.
pub(super) async fn settings(_: Call, asked: SettingsRequest) -> Result<SettingsResponse> {
    match asked.settings.keys().next() {
        None => Ok(SettingsResponse {}),
        Some(name) => {
            let what = format!("setting {name:?} of traces or logs by clients");
            Err(Error::Unsupported { what })
        }
    }
}
