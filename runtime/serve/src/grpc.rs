//! The Open Inference Protocol by gRPC, as Triton's clients speak it, and gRPC's own health service.
//!
//! Nothing is generated. `messages` are the published ones by their numbers; `wire` reads what is looked at before it is
//! decoded, `codec` makes messages of frames, `call` serves a method, `patient` ends bodies that do not go on, `tensors` reads
//! and names tensors, and `model`,
//! `infer` and `health` are the methods, a row of [`router`] each.

mod call;
mod codec;
mod health;
mod infer;
mod messages;
mod model;
mod patient;
mod tensors;
mod wire;

use crate::server::Server;
use axum::Router;
use axum::routing::MethodRouter;
use call::{streaming, unary};

/// The service of the Open Inference Protocol.
const SERVICE: &str = "inference.GRPCInferenceService";

/// All methods.
pub(crate) fn router(server: &Server) -> Router {
    let on = server;
    let methods: [(&str, MethodRouter); 20] = [
        ("ServerLive", unary(on, model::server_live)),
        ("ServerReady", unary(on, model::server_ready)),
        ("ModelReady", unary(on, model::model_ready)),
        ("ServerMetadata", unary(on, model::server_metadata)),
        ("ModelMetadata", unary(on, model::model_metadata)),
        ("ModelInfer", unary(on, infer::model_infer)),
        ("ModelStreamInfer", streaming(on, infer::model_stream_infer)),
        ("ModelConfig", unary(on, model::model_config)),
        ("ModelStatistics", unary(on, model::model_statistics)),
        ("RepositoryIndex", unary(on, model::repository_index)),
        ("RepositoryModelLoad", unary(on, model::repository_model_load)),
        ("RepositoryModelUnload", unary(on, model::repository_model_unload)),
        ("SystemSharedMemoryStatus", unary(on, model::no_shared_memory)),
        ("SystemSharedMemoryRegister", unary(on, model::register_shared_memory)),
        ("SystemSharedMemoryUnregister", unary(on, model::no_shared_memory)),
        ("CudaSharedMemoryStatus", unary(on, model::no_shared_memory)),
        ("CudaSharedMemoryRegister", unary(on, model::register_shared_memory)),
        ("CudaSharedMemoryUnregister", unary(on, model::no_shared_memory)),
        ("TraceSetting", unary(on, model::settings)),
        ("LogSettings", unary(on, model::settings)),
    ];
    let health = Router::new()
        .route("/grpc.health.v1.Health/Check", unary(on, health::check))
        .route("/grpc.health.v1.Health/Watch", streaming(on, health::watch));
    let all = methods
        .into_iter()
        .fold(health, |all, (method, route)| all.route(&format!("/{SERVICE}/{method}"), route));
    all.fallback(call::unknown)
}
