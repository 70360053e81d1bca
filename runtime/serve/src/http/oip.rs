//! The Open Inference Protocol, version 2, by HTTP, with Triton's extensions: binary tensors, statistics, the model
//! repository and the model's configuration.
//!
//! `request` reads a request, `data` its numbers, `response` writes the answer; `describe` is what the server says of
//! itself and its models, `control` what changes it.

mod control;
mod data;
pub(crate) mod datatype;
mod describe;
mod request;
mod response;

use super::body::{self, SHORT};
use super::error::{Dialect, json};
use crate::error::Error;
use crate::metrics::Protocol;
use crate::server::{Server, blocking};
use crate::version::Version;
use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json as object};
use std::sync::Arc;

/// The length of the JSON that is ahead of the binary tensors of a body.
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// The routes.
pub(super) fn routes() -> Router<Server> {
    let mut routes = Router::new()
        .route("/v2", get(describe::server))
        .route("/v2/health/live", get(live))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/stats", get(describe::all_statistics));
    for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        routes = routes
            .route(model, get(describe::model))
            .route(&format!("{model}/ready"), get(model_ready))
            .route(&format!("{model}/config"), get(describe::config))
            .route(&format!("{model}/stats"), get(describe::statistics))
            .route(&format!("{model}/infer"), post(infer));
    }
    routes.merge(control::routes())
}

/// An error as this protocol writes it.
struct Refused(Error);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        Dialect::Oip.respond(&self.0)
    }
}

type Answer = Result<Response, Refused>;

/// The model that the path names, and the version if it does.
struct Target {
    version: Arc<Version>,
    /// Whether the path names the version.
    numbered: bool,
}

impl FromRequestParts<Server> for Target {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, server: &Server) -> Result<Self, Refused> {
        let named = RawPathParams::from_request_parts(parts, server).await;
        let named = named.map_err(|error| Error::malformed(format!("the path: {error}")))?;
        let part = |name| named.iter().find(|part| part.0 == name).map(|part| part.1);
        let number = part("version");
        let version = server.find(part("model").unwrap_or_default(), number)?;
        Ok(Self { version, numbered: number.is_some() })
    }
}

async fn live(State(server): State<Server>) -> Response {
    health(server.live(), &object!({ "live": server.live() }))
}

async fn ready(State(server): State<Server>) -> Response {
    health(server.ready(), &object!({ "ready": server.ready() }))
}

async fn model_ready(State(server): State<Server>, target: Target) -> Response {
    health(server.live(), &object!({ "name": target.version.name(), "ready": server.live() }))
}

/// Health has a status for Triton's clients, and the protocol's object for KServe's.
fn health(good: bool, said: &Value) -> Response {
    let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, said)
}

async fn infer(State(server): State<Server>, target: Target, request: Request) -> Answer {
    let version = target.version;
    let read = read(&server, &version, request).await;
    let read = read.inspect_err(|error| version.refused(Protocol::Http, error));
    let request::Read { request, form } = read?;
    let answer = version.infer(request).await?;
    let written = if response::text_length(&answer, &form) <= SHORT {
        response::write(&version, &answer, &form)
    } else {
        let version = Arc::clone(&version);
        blocking(move || response::write(&version, &answer, &form)).await
    };
    Ok(written.inspect_err(|error| version.refused(Protocol::Http, error))?)
}

/// The request that HTTP's is.
async fn read(
    server: &Server,
    version: &Arc<Version>,
    request: Request,
) -> crate::Result<request::Read> {
    let (head, body) = request.into_parts();
    let json = json_length(&head.headers)?;
    let limits = server.limits();
    let body = body::read(limits, &head.headers, body, json.unwrap_or(0)).await?;
    let length = json.unwrap_or(body.len());
    if length > body.len() {
        let what = format!("{JSON_LENGTH} is {length}; the body has {} bytes", body.len());
        return Err(Error::malformed(what));
    }
    if json == Some(0) {
        return request::raw(version, body);
    }
    let inputs = limits.inputs;
    if length <= SHORT {
        return request::read(version, &body, length, inputs);
    }
    let version = Arc::clone(version);
    blocking(move || request::read(&version, &body, length, inputs)).await
}

/// How long the JSON of a body is; all of the body where nothing says so.
fn json_length(headers: &HeaderMap) -> crate::Result<Option<usize>> {
    let Some(value) = headers.get(JSON_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let needed = || Error::malformed(format!("{JSON_LENGTH} is {value:?}; it needs a byte count"));
    length.map(Some).ok_or_else(needed)
}

/// A response of JSON.
fn answer(value: &serde_json::Value) -> Answer {
    Ok(json(StatusCode::OK, value))
}
