//! Tokens that requests bear.

use crate::error::Error;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use std::sync::Arc;

/// What probes ask: it is answered without a token.
const OPEN: &[&str] = &[
    "/health",
    "/v2/health/live",
    "/v2/health/ready",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
];

/// The same routes, for requests that bear one of the tokens; for all where there are none.
pub(super) fn guard(router: Router, tokens: &[String]) -> Router {
    if tokens.is_empty() {
        return router;
    }
    let tokens: Arc<[String]> = tokens.into();
    router.layer(from_fn_with_state(tokens, check))
}

async fn check(State(tokens): State<Arc<[String]>>, request: Request, next: Next) -> Response {
    let borne = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = borne
        .and_then(|value| value.split_once(' '))
        .and_then(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer").then_some(token.trim()));
    let known = token.is_some_and(|token| is_one_of(token, &tokens));
    if known || OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let kind = request.headers().get(header::CONTENT_TYPE);
    let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    refusal(is_grpc)
}

/// Whether a token is one of these. How long it takes says nothing of how far it agrees.
fn is_one_of(token: &str, tokens: &[String]) -> bool {
    let same = |known: &String| {
        let pairs = known.bytes().zip(token.bytes());
        let differing = pairs.fold(0, |all, (known, given)| all | (known ^ given));
        differing == 0 && known.len() == token.len()
    };
    tokens.iter().fold(false, |any, known| any | same(known))
}

fn refusal(is_grpc: bool) -> Response {
    let error = Error::Unauthorized;
    if is_grpc {
        return tonic::Status::new(error.class().grpc, error.to_string()).into_http();
    }
    let text = serde_json::json!({ "error": error.to_string() }).to_string();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    let headers = response.headers_mut();
    headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
