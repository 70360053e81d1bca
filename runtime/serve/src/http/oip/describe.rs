//! What the server says of itself and its models.

use super::{Answer, Target, answer, datatype};
use crate::repository::State as ModelState;
use crate::server::Server;
use crate::statistics::{Batches, Counted, Statistics};
use crate::version::Version;
use axum::extract::State;
use graphene_runtime::{Dim, Port};
use serde_json::{Value, json};

/// Extensions of the protocol that this server has.
const EXTENSIONS: [&str; 5] =
    ["binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics"];

const PLATFORM: &str = "graphene_onnx";

/// The server: its name, version and extensions.
pub(super) async fn server() -> Answer {
    let version = env!("CARGO_PKG_VERSION");
    answer(&json!({ "name": "graphene", "version": version, "extensions": EXTENSIONS }))
}

/// A model: its versions, inputs and outputs.
pub(super) async fn model(State(server): State<Server>, target: Target) -> Answer {
    let version = target.version;
    let versions: Vec<String> = if target.numbered {
        vec![version.number().to_owned()]
    } else {
        let ready = server.index().into_iter().filter(|entry| entry.state == ModelState::Ready);
        let own = ready.filter(|entry| entry.name == version.name());
        own.map(|entry| entry.version).collect()
    };
    let ports = |ports: &[Port]| -> Vec<Value> {
        let port = |port: &Port| {
            let shape: Vec<i64> = port.dims().iter().map(size).collect();
            let datatype = datatype::name(port.dtype());
            json!({ "name": port.name(), "datatype": datatype, "shape": shape })
        };
        ports.iter().map(port).collect()
    };
    let model = version.model();
    answer(&json!({
        "name": version.name(),
        "versions": versions,
        "platform": PLATFORM,
        "inputs": ports(model.inputs()),
        "outputs": ports(model.outputs()),
    }))
}

/// A dim as the protocol has it: -1 for what requests decide.
fn size(dim: &Dim) -> i64 {
    dim.known().unwrap_or(-1)
}

/// Whether requests are put together, along a first dim that every input and output has beside others.
pub(super) fn has_batch_dim(version: &Version) -> bool {
    let model = version.model();
    let mut ports = model.inputs().iter().chain(model.outputs());
    let open = |port: &Port| port.dims().len() > 1 && port.dims()[0].known().is_none();
    version.batch_rows() > 1 && ports.all(open)
}

/// A model's configuration, as Triton's has it: where requests are put together, dims are without the batch's.
pub(super) async fn config(target: Target) -> Answer {
    let version = target.version;
    let batched = has_batch_dim(&version);
    let dims = |port: &Port| -> Vec<i64> {
        port.dims().iter().skip(usize::from(batched)).map(size).collect()
    };
    let data_type = |port: &Port| format!("TYPE_{}", datatype::name(port.dtype()).to_uppercase());
    let input = |port: &Port| {
        json!({
            "name": port.name(),
            "data_type": data_type(port),
            "format": "FORMAT_NONE",
            "dims": dims(port),
            "is_shape_tensor": false,
            "allow_ragged_batch": false,
            "optional": false,
        })
    };
    let output = |port: &Port| {
        json!({
            "name": port.name(),
            "data_type": data_type(port),
            "dims": dims(port),
            "label_filename": "",
            "is_shape_tensor": false,
        })
    };
    let model = version.model();
    let mut config = json!({
        "name": version.name(),
        "platform": PLATFORM,
        "backend": "graphene",
        "version_policy": { "latest": { "num_versions": 1 } },
        "max_batch_size": if batched { version.batch_rows() } else { 0 },
        "input": model.inputs().iter().map(input).collect::<Vec<_>>(),
        "output": model.outputs().iter().map(output).collect::<Vec<_>>(),
        "instance_group": [{ "name": version.name(), "count": version.contexts() }],
        "default_model_filename": "model.onnx",
    });
    if batched {
        config["dynamic_batching"] = json!({ "max_queue_delay_microseconds": 0 });
    }
    answer(&config)
}

/// What was counted of a model's requests.
pub(super) async fn statistics(target: Target) -> Answer {
    answer(&json!({ "model_stats": [counted(&target.version)] }))
}

/// What was counted of all models' requests.
pub(super) async fn all_statistics(State(server): State<Server>) -> Answer {
    let all: Vec<Value> = server.loaded().iter().map(|version| counted(version)).collect();
    answer(&json!({ "model_stats": all }))
}

fn counted(version: &Version) -> Value {
    let Statistics {
        success,
        fail,
        queue,
        compute_input,
        compute_infer,
        compute_output,
        inferences,
        executions,
        last_ms,
        batches,
        ..
    } = version.statistics();
    let batch = |(&rows, batches): (&usize, &Batches)| {
        json!({
            "batch_size": rows,
            "compute_input": time(batches.compute_input),
            "compute_infer": time(batches.compute_infer),
            "compute_output": time(batches.compute_output),
        })
    };
    json!({
        "name": version.name(),
        "version": version.number(),
        "last_inference": last_ms,
        "inference_count": inferences,
        "execution_count": executions,
        "inference_stats": {
            "success": time(success),
            "fail": time(fail),
            "queue": time(queue),
            "compute_input": time(compute_input),
            "compute_infer": time(compute_infer),
            "compute_output": time(compute_output),
            "cache_hit": time(Counted::default()),
            "cache_miss": time(Counted::default()),
        },
        "response_stats": {},
        "batch_stats": batches.iter().map(batch).collect::<Vec<_>>(),
        "memory_usage": [],
    })
}

fn time(duration: Counted) -> Value {
    json!({ "count": duration.count, "ns": duration.ns })
}
