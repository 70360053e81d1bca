//! Connections, and the end of the process.

mod auth;
mod socket;

use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::server::Server;
use crate::{grpc, http};
use axum::Router;
use axum::extract::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use socket::{Socket, Unread};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

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
    stop: watch::Sender<Option<Duration>>,
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
    let (stop, stopped) = watch::channel(None);
    let mut loops = JoinSet::new();
    let mut addresses = [http, grpc];
    let routers = [(http::router(server), true), (grpc::router(server), false)];
    let answered = Arc::new(Barrier::new(routers.len()));
    for (address, (router, stays)) in addresses.iter_mut().zip(routers) {
        let refused = |error: std::io::Error| Error::Server { what: format!("{address}: {error}") };
        let listener = TcpListener::bind(*address).await.map_err(refused)?;
        *address = listener.local_addr().map_err(refused)?;
        let tls = security.tls.clone().map(TlsAcceptor::from);
        let limits = server.limits();
        let accept = Accept {
            router: auth::guard(router, &security.tokens),
            tls,
            slots: Arc::new(Semaphore::new(limits.connections)),
            limits: limits.clone(),
            metrics: server.metrics().clone(),
            stays,
            answered: Arc::clone(&answered),
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

    /// Answers what came, and returns when all connections are closed. gRPC takes no more connections, and its clients are
    /// told to go elsewhere; HTTP takes some until all is answered, and for `grace` at least, so that a server that
    /// [drains](Server::drain) tells those that ask that it isn't ready.
    pub async fn drain(mut self, grace: Duration) {
        // Nobody hears it where all loops have ended.
        let _ = self.stop.send(Some(grace));
        while self.loops.join_next().await.is_some() {}
    }
}

/// What is done with a listener's connections.
struct Accept {
    router: Router,
    tls: Option<TlsAcceptor>,
    /// Connections that there may still be.
    slots: Arc<Semaphore>,
    limits: Limits,
    metrics: Metrics,
    /// Whether it takes connections while others are still answered.
    stays: bool,
    /// All listeners have answered what came before the end was told.
    answered: Arc<Barrier>,
}

impl Accept {
    async fn run(self, listener: TcpListener, mut stopped: watch::Receiver<Option<Duration>>) {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.head());
        // HTTP/2 may be idle for as long as its client is there.
        let mut http2 = builder.http2();
        http2.timer(TokioTimer::new());
        http2.keep_alive_interval(self.head()).keep_alive_timeout(self.head());
        let builder = Arc::new(builder);
        let (before, after) = (GracefulShutdown::new(), GracefulShutdown::new());
        self.accept(&listener, &builder, &before, stopped.wait_for(Option::is_some)).await;
        let grace = stopped.borrow().unwrap_or_default();
        if !self.stays {
            drop(listener);
            before.shutdown().await;
            self.answered.wait().await;
            return;
        }
        let answered = async {
            tokio::time::sleep(grace).await;
            before.shutdown().await;
            self.answered.wait().await;
        };
        self.accept(&listener, &builder, &after, answered).await;
        drop(listener);
        after.shutdown().await;
    }

    /// The time for a request's head.
    fn head(&self) -> Duration {
        Duration::from_millis(self.limits.idle_ms)
    }

    /// Takes connections until something is so, and has them watched.
    async fn accept(
        &self,
        listener: &TcpListener,
        builder: &Arc<auto::Builder<TokioExecutor>>,
        graceful: &GracefulShutdown,
        until: impl Future,
    ) {
        let mut until = std::pin::pin!(until);
        loop {
            let accepted = tokio::select! {
                accepted = accept(listener, &self.slots) => accepted,
                _ = &mut until => return,
            };
            let Some((stream, permit)) = accepted else { continue };
            let (router, tls) = (self.router.clone(), self.tls.clone());
            let (builder, watcher) = (Arc::clone(builder), graceful.watcher());
            let (head, limits) = (self.head(), self.limits.clone());
            let open = self.metrics.connection();
            tokio::spawn(async move {
                match tls {
                    None => serve(&builder, watcher, stream, router, limits).await,
                    Some(tls) => {
                        let shaken = tokio::time::timeout(head, tls.accept(stream)).await;
                        if let Ok(Ok(stream)) = shaken {
                            serve(&builder, watcher, stream, router, limits).await;
                        }
                    }
                }
                drop((open, permit));
            });
        }
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
    limits: Limits,
) {
    let unread = Unread::default();
    let socket = Socket::new(stream, unread.clone(), limits);
    let service = router.map_request(move |request: Request<_>| unread.watch(request));
    let service = TowerToHyperService::new(service);
    let connection = builder.serve_connection(TokioIo::new(socket), service);
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!("a connection ended early: {error}");
    }
}
