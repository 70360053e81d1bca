//! What changes the server, or asks for what it can change: the model repository, and settings that it does not have.

use super::{Answer, Refused, answer, json};
use crate::error::Error;
use crate::http::{body, json};
use crate::repository::State as ModelState;
use crate::server::Server;
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The routes.
pub(super) fn routes() -> Router<Server> {
    let mut routes = Router::new()
        .route("/v2/repository/index", get(index).post(index))
        .route("/v2/repository/models/{model}/load", post(load))
        .route("/v2/repository/models/{model}/unload", post(unload))
        .route("/v2/trace/setting", get(trace).post(fixed_trace))
        .route("/v2/models/{model}/trace/setting", get(trace).post(fixed_trace))
        .route("/v2/logging", get(logging).post(fixed_logging));
    for kind in ["systemsharedmemory", "cudasharedmemory"] {
        for region in ["", "/region/{region}"] {
            let path = |action| format!("/v2/{kind}{region}/{action}");
            routes = routes
                .route(&path("status"), get(no_regions))
                .route(&path("register"), post(no_shared_memory))
                .route(&path("unregister"), post(nothing_to_do));
        }
    }
    routes
}

#[derive(Deserialize, Default)]
struct IndexRequest<'a> {
    #[serde(borrow)]
    ready: Option<&'a RawValue>,
}

/// All models, and how they are; those that answer alone if asked so.
async fn index(State(server): State<Server>, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    let body = body::read(server.limits(), &head.headers, body, 0).await?;
    let asked: IndexRequest<'_> = optional(&body)?;
    let only_ready = match asked.ready.map(RawValue::get) {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Error::malformed("`ready` needs true or false").into()),
    };
    let mut entries = server.index();
    entries.retain(|entry| !only_ready || entry.state == ModelState::Ready);
    let entry = |entry: &crate::RepositoryEntry| {
        let (state, reason) = match &entry.state {
            ModelState::Ready => ("READY", ""),
            ModelState::Loading => ("LOADING", ""),
            ModelState::Unavailable(reason) => ("UNAVAILABLE", reason.as_str()),
        };
        serde_json::json!({
            "name": entry.name, "version": entry.version, "state": state, "reason": reason,
        })
    };
    answer(&entries.iter().map(entry).collect())
}

#[derive(Deserialize, Default)]
struct ControlRequest<'a> {
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
}

/// Loads what is newest of a model in its folder.
async fn load(
    State(server): State<Server>,
    Path(model): Path<String>,
    request: Request,
) -> Result<StatusCode, Refused> {
    let (head, body) = request.into_parts();
    let body = body::read(server.limits(), &head.headers, body, 0).await?;
    let asked: ControlRequest<'_> = optional(&body)?;
    let some = |parameters: &&RawValue| !parameters.get().trim_matches(is_of_empty).is_empty();
    if let Some(parameters) = asked.parameters.filter(some) {
        let found = super::data::shortened(parameters.get());
        let what = format!("a load with parameters (models come from their folders; got {found})");
        return Err(Error::Unsupported { what }.into());
    }
    server.load(&model).await?;
    Ok(StatusCode::OK)
}

/// Serves a model no more. Models have no dependents, so `unload_dependents` says nothing.
async fn unload(
    State(server): State<Server>,
    Path(model): Path<String>,
    request: Request,
) -> Result<StatusCode, Refused> {
    let (head, body) = request.into_parts();
    let body = body::read(server.limits(), &head.headers, body, 0).await?;
    let _: ControlRequest<'_> = optional(&body)?;
    server.unload(&model).await?;
    Ok(StatusCode::OK)
}

fn is_of_empty(character: char) -> bool {
    matches!(character, '{' | '}') || character.is_ascii_whitespace()
}

/// What a body says, if there is one.
fn optional<'a, T: Deserialize<'a> + Default>(body: &'a [u8]) -> Result<T, Error> {
    if body.is_empty() { Ok(T::default()) } else { json::parse("the request", body) }
}

/// Requests are not traced.
async fn trace() -> Answer {
    answer(&serde_json::json!({
        "trace_level": ["OFF"],
        "trace_rate": "0",
        "trace_count": "0",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "triton",
    }))
}

async fn fixed_trace() -> Refused {
    Refused(Error::Unsupported { what: "tracing of requests".to_owned() })
}

/// What is logged is set when the process starts.
async fn logging() -> Answer {
    answer(&serde_json::json!({
        "log_file": "",
        "log_info": tracing::enabled!(tracing::Level::INFO),
        "log_warning": tracing::enabled!(tracing::Level::WARN),
        "log_error": tracing::enabled!(tracing::Level::ERROR),
        "log_verbose_level": u8::from(tracing::enabled!(tracing::Level::DEBUG)),
        "log_format": "default",
    }))
}

async fn fixed_logging() -> Refused {
    Refused(Error::Unsupported { what: "setting what is logged while the server runs".to_owned() })
}

async fn no_regions() -> Answer {
    Ok(json(StatusCode::OK, &serde_json::json!([])))
}

async fn no_shared_memory() -> Refused {
    Refused(Error::Unsupported { what: "shared memory".to_owned() })
}

/// There are no regions, so none is left.
async fn nothing_to_do() -> StatusCode {
    StatusCode::OK
}
