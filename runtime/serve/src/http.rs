//! The protocols by HTTP: a module each, and what they share.
//!
//! A handler reads its request's body by [`body::read`], makes values of it by [`json::parse`], and answers an error by its
//! protocol's [`Dialect`](error::Dialect).

mod body;
mod error;
mod json;
mod oip;
mod openai;
mod tei;

use crate::server::Server;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// All routes by HTTP.
pub(crate) fn router(server: &Server) -> Router {
    server.metrics().spawn_upkeep();
    let routes = oip::routes().merge(openai::routes()).merge(tei::routes());
    let routes = routes.route("/metrics", get(metrics));
    let routes = routes.fallback(nothing).method_not_allowed_fallback(other_method);
    routes.with_state(server.clone())
}

/// What is recorded, as Prometheus reads it.
async fn metrics(State(server): State<Server>) -> Response {
    let engine = server.engine();
    server.metrics().memory(engine.memory_used(), engine.memory_limit());
    for version in server.loaded() {
        version.record_counted();
    }
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, text)], server.metrics().text()).into_response()
}

async fn nothing(uri: axum::http::Uri) -> Response {
    let what = format!("there is no endpoint {:?}", uri.path());
    error::json(StatusCode::NOT_FOUND, &serde_json::json!({ "error": what }))
}

async fn other_method(method: axum::http::Method, uri: axum::http::Uri) -> Response {
    let what = format!("{:?} does not take the method {method}", uri.path());
    error::json(StatusCode::METHOD_NOT_ALLOWED, &serde_json::json!({ "error": what }))
}
