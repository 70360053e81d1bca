//! The methods of the Open Inference Protocol by gRPC, and of gRPC's health service.

use crate::grpc_client::messages::{
    HealthCheckRequest, HealthCheckResponse, ModelConfigRequest, ModelConfigResponse,
    ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse,
    ModelReadyRequest, ModelReadyResponse, ModelStatisticsRequest, ModelStatisticsResponse,
    RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelLoadRequest,
    RepositoryModelLoadResponse, RepositoryModelUnloadRequest, RepositoryModelUnloadResponse,
    ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse,
    ServerReadyRequest, ServerReadyResponse, SettingsRequest, SettingsResponse,
    SharedMemoryRequest, SharedMemoryResponse,
};
use crate::grpc_client::{Caller, input, ones, output};
use crate::harness::{Running, serve};
use graphene_runtime::Tensor;
use graphene_serve::{InferRequest, ServerConfig};
use prost::Message;
use tokio_stream::StreamExt;
use tonic::{Code, Status};

async fn mlp() -> (Running, Caller) {
    let running = serve("zoo:mlp-2x4", ServerConfig::default()).await;
    let caller = Caller::new(&running).await;
    (running, caller)
}

/// What the model makes of these inputs, asked without a protocol.
async fn direct(running: &Running, inputs: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
    let name = running.server.index()[0].name.clone();
    let version = running.server.find(&name, None).unwrap();
    version.infer(InferRequest { inputs, ..InferRequest::default() }).await.unwrap().outputs
}

#[tokio::test]
async fn the_server_tells_how_it_is() {
    let (running, caller) = mlp().await;
    let live: ServerLiveResponse = caller.call("ServerLive", ServerLiveRequest {}).await.unwrap();
    let ready: ServerReadyResponse =
        caller.call("ServerReady", ServerReadyRequest {}).await.unwrap();
    assert!(live.live && ready.ready);
    let metadata: ServerMetadataResponse =
        caller.call("ServerMetadata", ServerMetadataRequest {}).await.unwrap();
    assert_eq!(metadata.name, "graphene-serve");
    // perf_analyzer asks for no statistics without it.
    assert!(metadata.extensions.iter().any(|extension| extension == "statistics"));
    for (name, version, expected) in
        [("mlp-2x4", "", true), ("mlp-2x4", "1", true), ("mlp-2x4", "2", false), ("m", "", false)]
    {
        let asked = ModelReadyRequest { name: name.to_owned(), version: version.to_owned() };
        let ready: ModelReadyResponse = caller.call("ModelReady", asked).await.unwrap();
        assert_eq!(ready.ready, expected, "{name} {version}");
    }
    running.server.drain();
    let ready: ServerReadyResponse =
        caller.call("ServerReady", ServerReadyRequest {}).await.unwrap();
    assert!(!ready.ready);
}

#[tokio::test]
async fn a_model_tells_its_inputs_and_outputs() {
    let (_running, caller) = mlp().await;
    let asked = ModelMetadataRequest { name: "mlp-2x4".to_owned(), version: String::new() };
    let metadata: ModelMetadataResponse = caller.call("ModelMetadata", asked).await.unwrap();
    assert_eq!((metadata.name.as_str(), metadata.versions), ("mlp-2x4", vec!["1".to_owned()]));
    let ports = [(&metadata.inputs, "x"), (&metadata.outputs, "y")];
    for (port, name) in ports {
        assert_eq!(port.len(), 1);
        assert_eq!((port[0].name.as_str(), port[0].datatype.as_str()), (name, "FP32"));
        assert_eq!(port[0].shape, [-1, 4]);
    }
    let asked = ModelConfigRequest { name: "mlp-2x4".to_owned(), version: "1".to_owned() };
    let config: ModelConfigResponse = caller.call("ModelConfig", asked).await.unwrap();
    let config = config.config.unwrap();
    // TYPE_FP32 is 11. With a batch dim, dims are those after it.
    assert_eq!((config.input[0].data_type, config.output[0].data_type), (11, 11));
    let dims: &[i64] = if config.max_batch_size > 0 { &[4] } else { &[-1, 4] };
    assert_eq!((config.input[0].dims.as_slice(), config.output[0].dims.as_slice()), (dims, dims));
    assert_eq!(config.dynamic_batching.is_some(), config.max_batch_size > 0);
    // KIND_CPU.
    assert_eq!((config.instance_group[0].kind, config.instance_group[0].count), (2, 1));
}

#[tokio::test]
async fn what_it_answers_is_what_the_model_gives() {
    let (running, caller) = mlp().await;
    for rows in [0_usize, 1, 3, 1000] {
        let answer: Result<ModelInferResponse, Status> =
            caller.call("ModelInfer", ones(rows)).await;
        if rows == 0 {
            // Whether there may be no rows is the model's matter, not the protocol's.
            match answer {
                Ok(answer) => assert_eq!(answer.outputs[0].shape, [0, 4]),
                Err(refused) => assert_eq!(refused.code(), Code::InvalidArgument, "{refused}"),
            }
            continue;
        }
        let answer = answer.unwrap();
        let x = Tensor::from_vec(vec![rows, 4], vec![1_f32; rows * 4]).unwrap();
        let expected = direct(&running, vec![("x".to_owned(), x)]).await;
        assert_eq!((answer.model_name.as_str(), answer.model_version.as_str()), ("mlp-2x4", "1"));
        assert_eq!(answer.id, "one");
        assert_eq!(answer.outputs[0].name, "y");
        assert_eq!(answer.outputs[0].datatype, "FP32");
        assert_eq!(answer.outputs[0].shape, [i64::try_from(rows).unwrap(), 4]);
        assert_eq!(answer.raw_output_contents, [expected[0].1.shared_bytes().clone()]);
    }
}

/// The part of `InferTensorContents` with 4-byte floats.
#[derive(Clone, PartialEq, Message)]
struct Floats {
    #[prost(float, repeated, tag = "6")]
    packed: Vec<f32>,
}

/// The same, each with a key of its own, as proto2 writes them.
#[derive(Clone, PartialEq, Message)]
struct Single {
    #[prost(float, repeated, packed = "false", tag = "6")]
    single: Vec<f32>,
}

#[tokio::test]
async fn elements_may_come_as_contents() {
    let (_running, caller) = mlp().await;
    let raw: ModelInferResponse = caller.call("ModelInfer", ones(2)).await.unwrap();
    let ways = [
        Floats { packed: vec![1.0; 8] }.encode_to_vec(),
        Single { single: vec![1.0; 8] }.encode_to_vec(),
        [
            Floats { packed: vec![1.0; 3] }.encode_to_vec(),
            Single { single: vec![1.0; 5] }.encode_to_vec(),
        ]
        .concat(),
    ];
    for contents in ways {
        let mut asked = ones(2);
        asked.raw_input_contents.clear();
        asked.inputs[0].contents = Some(contents.into());
        let answer: ModelInferResponse = caller.call("ModelInfer", asked).await.unwrap();
        assert_eq!(answer.raw_output_contents, raw.raw_output_contents);
    }
}

/// Integers as `InferTensorContents` has them: 1 bool, 2 int32, 3 int64.
#[derive(Clone, PartialEq, Message)]
struct Integers {
    #[prost(int32, repeated, tag = "2")]
    ints: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    longs: Vec<i64>,
}

#[tokio::test]
async fn integers_may_come_as_contents() {
    let running = serve("zoo:bert-base-tiny", ServerConfig::default()).await;
    let caller = Caller::new(&running).await;
    let version = running.server.find("bert-base-tiny", None).unwrap();
    let mut asked =
        ModelInferRequest { model_name: "bert-base-tiny".to_owned(), ..Default::default() };
    let mut direct_inputs = Vec::new();
    for port in version.model().inputs() {
        let mut one = input(port.name(), "INT64", &[1, 3]);
        one.contents =
            Some(Integers { ints: Vec::new(), longs: vec![1; 3] }.encode_to_vec().into());
        asked.inputs.push(one);
        let tensor = Tensor::from_vec(vec![1, 3], vec![1_i64; 3]).unwrap();
        direct_inputs.push((port.name().to_owned(), tensor));
    }
    let answer: ModelInferResponse = caller.call("ModelInfer", asked.clone()).await.unwrap();
    let expected = direct(&running, direct_inputs).await;
    let bytes: Vec<_> = expected.iter().map(|(_, tensor)| tensor.shared_bytes().clone()).collect();
    assert_eq!(answer.raw_output_contents, bytes);
    // In another type's field.
    asked.inputs[1].contents =
        Some(Integers { ints: vec![1; 3], longs: Vec::new() }.encode_to_vec().into());
    let refused = caller.call::<_, ModelInferResponse>("ModelInfer", asked).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains(version.model().inputs()[1].name()), "{refused}");
}

#[tokio::test]
async fn outputs_come_in_the_order_asked_for() {
    let running = serve("zoo:lstm-4", ServerConfig::default()).await;
    let caller = Caller::new(&running).await;
    for names in [&[][..], &["cell"], &["hidden", "y"], &["cell", "y", "hidden"]] {
        let asked = ModelInferRequest {
            model_name: "lstm-4".to_owned(),
            inputs: vec![input("x", "FP32", &[2, 1, 4])],
            outputs: names.iter().map(|name| output(name)).collect(),
            raw_input_contents: vec![vec![0; 32].into()],
            ..ModelInferRequest::default()
        };
        let answer: ModelInferResponse = caller.call("ModelInfer", asked).await.unwrap();
        let found: Vec<&str> = answer.outputs.iter().map(|output| output.name.as_str()).collect();
        let all = ["y", "hidden", "cell"];
        assert_eq!(found, if names.is_empty() { &all } else { names });
        assert_eq!(answer.raw_output_contents.len(), found.len());
    }
}

#[tokio::test]
async fn messages_may_be_compressed() {
    let (_running, caller) = mlp().await;
    let plain: ModelInferResponse = caller.call("ModelInfer", ones(1000)).await.unwrap();
    let caller = caller.compressed();
    let answer: ModelInferResponse = caller.call("ModelInfer", ones(1000)).await.unwrap();
    assert_eq!(answer, plain);
}

#[tokio::test]
async fn requests_are_counted() {
    let (_running, caller) = mlp().await;
    for rows in [1, 2, 3] {
        caller.call::<_, ModelInferResponse>("ModelInfer", ones(rows)).await.unwrap();
    }
    for name in ["", "mlp-2x4"] {
        let asked = ModelStatisticsRequest { name: name.to_owned(), version: String::new() };
        let counted: ModelStatisticsResponse = caller.call("ModelStatistics", asked).await.unwrap();
        assert_eq!(counted.model_stats.len(), 1);
        let counted = &counted.model_stats[0];
        assert_eq!((counted.name.as_str(), counted.version.as_str()), ("mlp-2x4", "1"));
        let requests = counted.inference_stats.as_ref().unwrap();
        assert_eq!(requests.success.unwrap().count, 3);
        assert!(requests.success.unwrap().ns >= requests.compute_infer.unwrap().ns);
        assert_eq!(requests.fail.unwrap().count, 0);
        assert!(counted.execution_count > 0 && counted.last_inference > 0);
        assert!(!counted.batch_stats.is_empty());
    }
}

#[tokio::test]
async fn models_are_listed_loaded_and_unloaded() {
    let config = ServerConfig { control: true, ..ServerConfig::default() };
    let running = serve("zoo:mlp-2x4", config).await;
    let caller = Caller::new(&running).await;
    let asked = RepositoryIndexRequest { ready: true, ..RepositoryIndexRequest::default() };
    let index: RepositoryIndexResponse = caller.call("RepositoryIndex", asked).await.unwrap();
    assert_eq!(index.models.len(), 1);
    assert_eq!(
        (index.models[0].name.as_str(), index.models[0].state.as_str()),
        ("mlp-2x4", "READY")
    );
    let load = |name: &str| RepositoryModelLoadRequest {
        model_name: name.to_owned(),
        ..RepositoryModelLoadRequest::default()
    };
    let _: RepositoryModelLoadResponse =
        caller.call("RepositoryModelLoad", load("mlp-2x4")).await.unwrap();
    let unknown =
        caller.call::<_, RepositoryModelLoadResponse>("RepositoryModelLoad", load("m")).await;
    assert_eq!(unknown.unwrap_err().code(), Code::NotFound);
    let mut changed = load("mlp-2x4");
    changed.parameters.insert("config".to_owned(), Default::default());
    let changed =
        caller.call::<_, RepositoryModelLoadResponse>("RepositoryModelLoad", changed).await;
    assert_eq!(changed.unwrap_err().code(), Code::Unimplemented);
    let unload = RepositoryModelUnloadRequest {
        model_name: "mlp-2x4".to_owned(),
        ..RepositoryModelUnloadRequest::default()
    };
    let _: RepositoryModelUnloadResponse =
        caller.call("RepositoryModelUnload", unload).await.unwrap();
    let gone = caller.call::<_, ModelInferResponse>("ModelInfer", ones(1)).await.unwrap_err();
    assert!(matches!(gone.code(), Code::NotFound | Code::Unavailable), "{gone}");
}

#[tokio::test]
async fn extensions_that_are_not_there_say_so() {
    let (_running, caller) = mlp().await;
    let memory = ["SystemSharedMemory", "CudaSharedMemory"];
    for method in
        memory.iter().flat_map(|memory| [format!("{memory}Status"), format!("{memory}Unregister")])
    {
        let _: SharedMemoryResponse = caller.call(&method, SharedMemoryRequest {}).await.unwrap();
    }
    for method in memory.map(|memory| format!("{memory}Register")) {
        let refused = caller.call::<_, SharedMemoryResponse>(&method, SharedMemoryRequest {}).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
        assert!(refused.message().contains("raw_input_contents"), "{refused}");
    }
    for method in ["TraceSetting", "LogSettings"] {
        let _: SettingsResponse = caller.call(method, SettingsRequest::default()).await.unwrap();
        let mut asked = SettingsRequest::default();
        asked.settings.insert("trace_level".to_owned(), Default::default());
        let refused = caller.call::<_, SettingsResponse>(method, asked).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
        assert!(refused.message().contains("trace_level"), "{refused}");
    }
}

#[tokio::test]
async fn kubernetes_asks_for_health() {
    let (running, caller) = mlp().await;
    let ask = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let check = "/grpc.health.v1.Health/Check";
    for service in ["", "inference.GRPCInferenceService"] {
        let health: HealthCheckResponse = caller.call_at(check, ask(service)).await.unwrap();
        assert_eq!(health.status, 1, "SERVING");
    }
    let unknown = caller.call_at::<_, HealthCheckResponse>(check, ask("other")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    let watch = "/grpc.health.v1.Health/Watch";
    let mut watched =
        caller.stream::<_, HealthCheckResponse>(watch, tokio_stream::once(ask(""))).await;
    assert_eq!(watched.next().await.unwrap().unwrap().status, 1, "SERVING");
    running.server.drain();
    assert_eq!(watched.next().await.unwrap().unwrap().status, 2, "NOT_SERVING");
    assert!(watched.next().await.is_none());
    let health: HealthCheckResponse = caller.call_at(check, ask("")).await.unwrap();
    assert_eq!(health.status, 2, "NOT_SERVING");
}
