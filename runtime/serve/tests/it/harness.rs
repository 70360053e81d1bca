//! A server on free ports of the loopback, and a client that says what it sends.

use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode};
use graphene_runtime::{Device, Engine};
use graphene_serve::{Listening, Security, Server, ServerConfig, listen};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::net::SocketAddr;

/// A server that a test asks.
pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) listening: Listening,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// An answer by HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {text:?}"))
    }
}

/// An engine on two cores.
pub(crate) fn cpu() -> Engine {
    Engine::builder().device(Device::Cpu).threads(2).build().unwrap()
}

/// Serves what `models` names on two cores.
pub(crate) async fn serve(models: &str, config: ServerConfig) -> Running {
    let server = Server::new(&cpu(), models, config).unwrap();
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    let listening = listen(&server, (free, free), &Security::default()).await.unwrap();
    let client = Client::builder(TokioExecutor::new()).build_http();
    Running { server, listening, client }
}

impl Running {
    /// A request by HTTP; headers as `name: value`.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let uri = format!("http://{}{path}", self.listening.http());
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let answer = self.client.request(request).await.unwrap();
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        Answer { status, headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    pub(crate) async fn post(&self, path: &str, json: &serde_json::Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.send(Method::POST, path, &headers, json.to_string()).await
    }
}

/// Writes a model of the zoo, with weights of a seed, as `model.onnx` into a folder.
pub(crate) fn write_zoo(name: &str, seed: u64, folder: &std::path::Path) {
    let options = graphene_models::Options { seed, ..<_>::default() };
    let zoo = graphene_models::build(name, &options).unwrap();
    std::fs::create_dir_all(folder).unwrap();
    zoo.write(&folder.join("model.onnx")).unwrap();
}
