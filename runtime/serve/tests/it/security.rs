//! Tokens and encrypted connections.

use crate::harness::cpu;
use axum::body::Bytes;
use graphene_serve::{Security, Server, ServerConfig, listen};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// The status and the text of an answer to `GET path` on a stream.
async fn get(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    header: &str,
) -> (u16, String) {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // An encrypted stream may end without a farewell.
    let _ = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8(answer).unwrap();
    let status = text.split(' ').nth(1).unwrap_or_else(|| panic!("{text:?}")).parse().unwrap();
    (status, text)
}

#[tokio::test]
async fn requests_bear_a_token_where_one_is_asked_for() {
    let server = Server::new(&cpu(), "zoo:mlp-2x4", ServerConfig::default()).unwrap();
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    let tokens = vec!["first".to_owned(), "second".to_owned()];
    let security = Security { tokens, ..Security::default() };
    let listening = listen(&server, (free, free), &security).await.unwrap();
    let rows = [
        ("/v2", "", 401),
        ("/v2", "Authorization: Bearer third\r\n", 401),
        ("/v2", "Authorization: Bearer firs\r\n", 401),
        ("/v2", "Authorization: Basic first\r\n", 401),
        ("/v2", "Authorization: Bearer first\r\n", 200),
        ("/v2", "authorization: bearer second\r\n", 200),
        ("/metrics", "", 401),
        ("/nothing", "", 401),
        ("/v2/health/live", "", 200),
        ("/v2/health/ready", "", 200),
    ];
    for (path, header, expected) in rows {
        let stream = TcpStream::connect(listening.http()).await.unwrap();
        let (status, text) = get(stream, path, header).await;
        assert_eq!(status, expected, "{path} {header:?}: {text}");
        if status == 401 {
            assert!(text.to_ascii_lowercase().contains("www-authenticate: bearer"), "{text}");
        }
    }
    let refused = grpc_status(listening.grpc()).await;
    assert_eq!(refused, 16);
}

/// The status of a call of gRPC's without a token.
async fn grpc_status(address: SocketAddr) -> i32 {
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = tonic::client::Grpc::new(channel.connect().await.unwrap());
    client.ready().await.unwrap();
    let path = "/inference.GRPCInferenceService/ServerMetadata".parse().unwrap();
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let answer = client.unary(tonic::Request::new(()), path, codec).await;
    answer.err().map_or(0, |status| status.code() as i32)
}

#[tokio::test]
async fn connections_are_encrypted_where_a_certificate_is_given() {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let certificate = certified.cert.der().clone();
    let security = Security {
        tls: Some(Security::tls(vec![certificate.clone()], key).unwrap()),
        ..Security::default()
    };
    let server = Server::new(&cpu(), "zoo:mlp-2x4", ServerConfig::default()).unwrap();
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    let listening = listen(&server, (free, free), &security).await.unwrap();

    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(listening.http()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, stream).await.unwrap();
    let (status, text) = get(stream, "/v2/health/ready", "").await;
    assert_eq!(status, 200, "{text}");

    // Who speaks plainly, or says nothing, gets nothing and is in nobody's way.
    let mut plain = TcpStream::connect(listening.http()).await.unwrap();
    plain.write_all(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    plain.read_to_end(&mut answer).await.expect("it is closed, not reset");
    // At most an alert of TLS's.
    assert!(answer.is_empty() || answer[0] == 0x15, "{:?}", Bytes::from(answer));
    drop(plain);
    tokio::time::timeout(Duration::from_secs(5), listening.drain(Duration::ZERO)).await.unwrap();
}
