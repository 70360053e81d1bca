//! A call: how a method's messages and its deadline are read, and how an answer or an error is written.

use super::codec::{Ask, Frames, limit, unread};
use super::patient::Patient;
use crate::error::{Error, Result};
use crate::server::Server;
use axum::body::Body;
use axum::extract::Request as HttpRequest;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response as HttpResponse};
use axum::routing::{MethodRouter, post};
use futures_util::Stream;
use prost::Message;
use std::time::{Duration, Instant};
use tonic::codec::CompressionEncoding;
use tonic::server::Grpc;
use tonic::{Code, Request, Response, Status, Streaming};

/// The header with the time that a client waits.
const TIMEOUT: &str = "grpc-timeout";

/// Characters of an error's message: it travels as a header, of which clients take a few kilobytes.
const MESSAGE_CHARS: usize = 1024;

/// What every method is given beside its message.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) server: Server,
    /// When the client no longer waits, if it says so.
    pub(super) deadline: Option<Instant>,
}

/// Messages of a client, one after the other.
pub(super) type Incoming<Q> = Streaming<Result<Q>>;

/// A method with one message and one answer.
pub(super) fn unary<Q, A, F>(server: &Server, method: fn(Call, Q) -> F) -> MethodRouter
where
    Q: Ask,
    A: Message + 'static,
    F: Future<Output = Result<A>> + Send + 'static,
{
    let server = server.clone();
    post(move |http: HttpRequest| {
        let server = server.clone();
        async move {
            let call = match begin(server, http.headers()) {
                Ok(call) => call,
                Err(refused) => return *refused,
            };
            let mut grpc = grpc::<Q, A>(&call.server);
            let patience = Duration::from_millis(call.server.limits().read_ms);
            // As a stream of messages, though there is one: so we say ourselves what is wrong with it.
            let service = tower::service_fn(move |request: Request<Incoming<Q>>| {
                let call = call.clone();
                async move {
                    let message = only(&call, request.into_inner()).await?;
                    method(call, message).await.map(Response::new).map_err(|error| status(&error))
                }
            });
            grpc.client_streaming(service, http.map(|body| Patient::new(body, patience)))
                .await
                .map(Body::new)
        }
    })
}

/// A method with a stream of answers.
pub(super) fn streaming<Q, A, S>(
    server: &Server,
    method: fn(Call, Incoming<Q>) -> S,
) -> MethodRouter
where
    Q: Ask,
    A: Message + 'static,
    S: Stream<Item = std::result::Result<A, Status>> + Send + 'static,
{
    let server = server.clone();
    post(move |http: HttpRequest| {
        let server = server.clone();
        async move {
            let call = match begin(server, http.headers()) {
                Ok(call) => call,
                Err(refused) => return *refused,
            };
            let mut grpc = grpc::<Q, A>(&call.server);
            let service = tower::service_fn(move |request: Request<Incoming<Q>>| {
                std::future::ready(Ok(Response::new(method(call.clone(), request.into_inner()))))
            });
            grpc.streaming(service, http).await.map(Body::new)
        }
    })
}

/// The answer to a path of no method.
pub(super) async fn unknown(http: HttpRequest) -> HttpResponse {
    let path: String = http.uri().path().chars().take(MESSAGE_CHARS).collect();
    status(&Error::Unsupported { what: format!("method {path:?}") }).into_http()
}

/// An error as clients get it.
pub(super) fn status(error: &Error) -> Status {
    Status::new(error.class().grpc, message(error))
}

/// What an error says, cut where a client's names make it long.
pub(super) fn message(error: &Error) -> String {
    let mut text = error.to_string();
    if let Some((end, _)) = text.char_indices().nth(MESSAGE_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// tonic's part of a call. Answers are not compressed: tensors gain little, and clients accept gzip without being asked.
fn grpc<Q: Ask, A: Message + 'static>(server: &Server) -> Grpc<Frames<Q, A>> {
    Grpc::new(Frames::new(server))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(limit::<Q>(server))
        .max_encoding_message_size(usize::MAX)
}

fn begin(server: Server, headers: &HeaderMap) -> std::result::Result<Call, Box<HttpResponse>> {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    if !kind.starts_with(b"application/grpc") {
        let what = "this port is for gRPC: Content-Type has to be application/grpc";
        return Err(Box::new((StatusCode::UNSUPPORTED_MEDIA_TYPE, what).into_response()));
    }
    let deadline = deadline(headers).map_err(|error| Box::new(status(&error).into_http()))?;
    Ok(Call { server, deadline })
}

fn deadline(headers: &HeaderMap) -> Result<Option<Instant>> {
    let Some(value) = headers.get(TIMEOUT) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let time = timeout(text).ok_or_else(|| {
        Error::malformed(format!(
            "{TIMEOUT} is {text:?}; it has at most 8 digits and one of the units H, M, S, m, u and n"
        ))
    })?;
    // One that is past all reckoning is none.
    Ok(Instant::now().checked_add(time))
}

fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// The one message of a call, once all of it is there.
async fn only<Q: Ask>(call: &Call, mut incoming: Incoming<Q>) -> std::result::Result<Q, Status> {
    let latest = Instant::now() + call.server.limits().deadline();
    let until = call.deadline.map_or(latest, |asked| asked.min(latest));
    let read = async {
        let first = incoming.message().await?;
        // To the end of the stream: one that is left earlier is reset.
        let second = if first.is_some() { incoming.message().await? } else { None };
        Ok((first, second))
    };
    let late = || {
        Status::new(Code::DeadlineExceeded, "the deadline passed before the request was all there")
    };
    let read = tokio::time::timeout_at(until.into(), read).await.map_err(|_| late())?;
    let needed =
        |found| status(&Error::malformed(format!("the method takes one message, not {found}")));
    match read.map_err(|status| unread::<Q>(&call.server, status))? {
        (Some(message), None) => message.map_err(|error| status(&error)),
        (None, _) => Err(needed("none")),
        (Some(_), Some(_)) => Err(needed("several")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, timeout};

    #[test]
    fn the_time_that_a_client_waits_is_read() {
        let rows = [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("20m", Some(Duration::from_millis(20))),
            ("99999999u", Some(Duration::from_micros(99_999_999))),
            ("0n", Some(Duration::ZERO)),
            ("100000000n", None),
            ("", None),
            ("S", None),
            ("5", None),
            ("-5S", None),
            ("+5S", None),
            ("5s", None),
            ("5µ", None),
        ];
        for (text, expected) in rows {
            assert_eq!(timeout(text), expected, "{text:?}");
        }
    }
}
