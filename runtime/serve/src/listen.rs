//! Connections, and the end of the process.

mod auth;

use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::server::Server;
use crate::{grpc, http};
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Who may connect.
#[derive(Clone, Default)]
pub struct Security {
    /// Tokens, one of which a request has to bear. Without any, everybody may ask.
    pub tokens: Vec<String>,
    /// Certificate and key, where connections are encrypted.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

impl Security {
    /// Connections encrypted by this certificate and its key, for HTTP/1.1 and HTTP/2.
    ///
    /// # Errors
    /// Why they don't do.
    pub fn tls(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> std::result::Result<Arc<rustls::ServerConfig>, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, key);
        let mut config = config.map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// A server that takes connections.
pub struct Listening {
    http: SocketAddr,
    grpc: SocketAddr,
    stop: watch::Sender<bool>,
    loops: JoinSet<()>,
}

/// Takes connections at these addresses until it is told to drain.
///
/// # Errors
/// [`Error::Server`] for an address that cannot be had.
pub async fn listen(
    server: &Server,
    (http, grpc): (SocketAddr, SocketAddr),
    security: &Security,
) -> Result<Listening> {
    let (stop, stopped) = watch::channel(false);
    let mut loops = JoinSet::new();
    let mut addresses = [http, grpc];
    let routers = [http::router(server), grpc::router(server)];
    for (address, router) in addresses.iter_mut().zip(routers) {
        let refused = |error: std::io::Error| Error::Server { what: format!("{address}: {error}") };
        let listener = TcpListener::bind(*address).await.map_err(refused)?;
        *address = listener.local_addr().map_err(refused)?;
        let tls = security.tls.clone().map(TlsAcceptor::from);
        let limits = server.limits();
        let accept = Accept {
            router: auth::guard(router, &security.tokens),
            tls,
            slots: Arc::new(Semaphore::new(limits.connections)),
            head: Duration::from_millis(limits.idle_ms),
            metrics: server.metrics().clone(),
        };
        loops.spawn(accept.run(listener, stopped.clone()));
    }
    Ok(Listening { http: addresses[0], grpc: addresses[1], stop, loops })
}

impl Listening {
    /// Where HTTP is.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Where gRPC is.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Takes no more connections, answers what came, and returns when all are closed.
    pub async fn drain(mut self) {
        // Nobody hears it where all loops have ended.
        let _ = self.stop.send(true);
        while self.loops.join_next().await.is_some() {}
    }
}

/// What is done with a listener's connections.
struct Accept {
    router: Router,
    tls: Option<TlsAcceptor>,
    /// Connections that there may still be.
    slots: Arc<Semaphore>,
    /// The time for a request's head.
    head: Duration,
    metrics: Metrics,
}

impl Accept {
    async fn run(self, listener: TcpListener, mut stopped: watch::Receiver<bool>) {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.head);
        builder.http2().timer(TokioTimer::new());
        let builder = Arc::new(builder);
        let graceful = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener, &self.slots) => accepted,
                _ = stopped.wait_for(|&stop| stop) => break,
            };
            let Some((stream, permit)) = accepted else { continue };
            let (router, tls) = (self.router.clone(), self.tls.clone());
            let open = self.metrics.connection();
            let (builder, watcher, head) = (Arc::clone(&builder), graceful.watcher(), self.head);
            tokio::spawn(async move {
                match tls {
                    None => serve(&builder, watcher, stream, router).await,
                    Some(tls) => {
                        let shaken = tokio::time::timeout(head, tls.accept(stream)).await;
                        if let Ok(Ok(stream)) = shaken {
                            serve(&builder, watcher, stream, router).await;
                        }
                    }
                }
                drop((open, permit));
            });
        }
        drop(listener);
        graceful.shutdown().await;
    }
}

/// The next connection, once there may be one more.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Answers are written whole: waiting for more of them only delays.
            let _ = stream.set_nodelay(true);
            Some((stream, permit))
        }
        Err(error) => {
            // No more file descriptors, mostly: others close theirs meanwhile.
            tracing::warn!("a connection was not taken: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    builder: &auto::Builder<TokioExecutor>,
    watcher: hyper_util::server::graceful::Watcher,
    stream: S,
    router: Router,
) {
    let service = TowerToHyperService::new(router);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!("a connection ended early: {error}");
    }
}
