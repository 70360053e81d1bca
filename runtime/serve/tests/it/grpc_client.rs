//! A client by gRPC, and one that sends any bytes.

use crate::harness::Running;
use axum::body::{Body, Bytes};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Method, Request};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use messages::{InferInputTensor, InferRequestedOutputTensor, ModelInferRequest};
use prost::Message;
use std::net::SocketAddr;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codec::CompressionEncoding;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

/// The server's own; `grpc_fields` compares their numbers with the published ones.
#[path = "../../src/grpc/messages.rs"]
pub(crate) mod messages;

/// The service of the Open Inference Protocol.
pub(crate) const SERVICE: &str = "inference.GRPCInferenceService";

/// A client by gRPC.
#[derive(Clone)]
pub(crate) struct Caller(Grpc<Channel>);

impl Caller {
    pub(crate) async fn new(running: &Running) -> Self {
        Self::at(running.listening.grpc()).await
    }

    pub(crate) async fn at(address: SocketAddr) -> Self {
        let address = format!("http://{address}");
        let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
        Self(Grpc::new(channel).max_decoding_message_size(usize::MAX))
    }

    pub(crate) fn compressed(self) -> Self {
        Self(self.0.send_compressed(CompressionEncoding::Gzip))
    }

    /// Calls a method of the protocol.
    pub(crate) async fn call<Q, A>(&self, method: &str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.call_at(&format!("/{SERVICE}/{method}"), message).await
    }

    /// Calls a method of any service.
    pub(crate) async fn call_at<Q, A>(&self, path: &str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.0.clone();
        grpc.ready().await.unwrap();
        let path = PathAndQuery::try_from(path).unwrap();
        let answer = grpc.unary(tonic::Request::new(message), path, ProstCodec::default());
        Ok(answer.await?.into_inner())
    }

    /// Opens a stream.
    pub(crate) async fn stream<Q, A>(
        &self,
        path: &str,
        messages: impl Stream<Item = Q> + Send + 'static,
    ) -> Streaming<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.0.clone();
        grpc.ready().await.unwrap();
        let path = PathAndQuery::try_from(path).unwrap();
        let request = tonic::Request::new(messages);
        grpc.streaming(request, path, ProstCodec::default()).await.unwrap().into_inner()
    }
}

/// What a server said to bytes.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) http: u16,
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// A frame of a message.
pub(crate) fn frame(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat().into()
}

/// Sends these bytes as the body of a call, with these headers beside `content-type`.
pub(crate) async fn send(
    running: &Running,
    path: &str,
    headers: &[(&'static str, &str)],
    body: impl Into<Body>,
) -> Said {
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let uri = format!("http://{}{path}", running.listening.grpc());
    let mut request = Request::new(body.into());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri.parse().unwrap();
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    let (head, body) = client.request(request).await.unwrap().into_parts();
    let trailers = body.collect().await.unwrap().trailers().cloned();
    let status = |headers: &HeaderMap| Status::from_header_map(headers);
    let status = status(&head.headers).or_else(|| trailers.as_ref().and_then(status));
    let status = status.unwrap_or_else(|| Status::unknown("the server gave no status"));
    Said { http: head.status.as_u16(), code: status.code(), message: status.message().to_owned() }
}

/// A request for `mlp-2x4`: `rows` of ones.
pub(crate) fn ones(rows: usize) -> ModelInferRequest {
    let elements: Vec<u8> = [1_f32.to_le_bytes()].repeat(rows * 4).concat();
    ModelInferRequest {
        model_name: "mlp-2x4".to_owned(),
        id: "one".to_owned(),
        inputs: vec![input("x", "FP32", &[i64::try_from(rows).unwrap(), 4])],
        raw_input_contents: vec![elements.into()],
        ..ModelInferRequest::default()
    }
}

/// An input without elements.
pub(crate) fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..InferInputTensor::default()
    }
}

/// An output that is asked for.
pub(crate) fn output(name: &str) -> InferRequestedOutputTensor {
    InferRequestedOutputTensor { name: name.to_owned(), ..InferRequestedOutputTensor::default() }
}
