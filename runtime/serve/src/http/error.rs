//! Errors as the protocols write them.

use crate::error::Error;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use serde_json::json;

/// A protocol's way to write an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dialect {
    /// The Open Inference Protocol: the text alone.
    Oip,
    /// OpenAI's API: an object with a type and a code.
    OpenAi,
    /// text-embeddings-inference: the text, and a type of few.
    Tei,
}

impl Dialect {
    /// The response that tells a client of an error.
    pub(super) fn respond(self, error: &Error) -> Response {
        let class = error.class();
        let (text, name) = (error.to_string(), class.name);
        // 499 is no status of the standard's, but one that is known.
        let status = StatusCode::from_u16(class.http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = match self {
            Self::Oip => json(status, &json!({ "error": text })),
            Self::OpenAi => {
                let kind = match class.http {
                    401 => "authentication_error",
                    429 => "rate_limit_error",
                    500.. => "server_error",
                    _ => "invalid_request_error",
                };
                let error = json!({ "message": text, "type": kind, "param": null, "code": name });
                json(status, &json!({ "error": error }))
            }
            Self::Tei => {
                let kind = match class.http {
                    429 => "Overloaded",
                    503 => "Unhealthy",
                    400..500 => "Validation",
                    _ => "Backend",
                };
                json(status, &json!({ "error": text, "error_type": kind }))
            }
        };
        let (name, value) = match error {
            // Another connection may reach another replica; or this one has a body that nobody reads.
            Error::Draining | Error::Body { .. } | Error::SlowBody { .. } => {
                (header::CONNECTION, "close")
            }
            _ if class.http == 429 => (header::RETRY_AFTER, "1"),
            _ => return response,
        };
        response.headers_mut().insert(name, HeaderValue::from_static(value));
        response
    }
}

/// A response of JSON.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => json_text(status, Body::from(text)),
        Err(error) => {
            let what = format!("the response is no JSON: {error}");
            Dialect::Oip.respond(&Error::Server { what })
        }
    }
}

/// A response of text that is JSON.
pub(super) fn json_text(status: StatusCode, text: Body) -> Response {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
