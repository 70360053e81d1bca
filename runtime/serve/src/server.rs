//! All models by name.

use crate::config::ServerConfig;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::repository::{Repository, RepositoryEntry, State};
use crate::version::Version;
use graphene_runtime::Engine;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// All models by name, and what is common to them. Clones are the same server.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    engine: Engine,
    config: ServerConfig,
    repository: Repository,
    metrics: Metrics,
    /// Whether it takes no more requests.
    draining: AtomicBool,
}

impl Server {
    /// A server of what `models` names: `zoo:NAME`, a model file, a model's folder, or a folder of such. Models are
    /// loaded and warmed up when this returns.
    ///
    /// # Errors
    /// [`Error::Folder`] for a path that has no model; [`Error::Model`] for one that cannot be loaded where it is the
    /// only one: of a folder of models the others are served.
    pub fn new(engine: &Engine, models: &str, config: ServerConfig) -> Result<Self> {
        let repository = Repository::open(engine, models, &config)?;
        let draining = AtomicBool::new(false);
        let (engine, metrics) = (engine.clone(), Metrics::new());
        Ok(Self(Arc::new(Inner { engine, config, repository, metrics, draining })))
    }

    /// The engine that models run on.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Its settings.
    pub fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    /// What requests may ask for.
    pub fn limits(&self) -> &Limits {
        &self.0.config.limits
    }

    /// The version of a model that answers: the newest where none is asked for.
    ///
    /// # Errors
    /// [`Error::UnknownModel`], [`Error::UnknownVersion`], [`Error::NotReady`]; [`Error::Draining`].
    pub fn find(&self, name: &str, version: Option<&str>) -> Result<Arc<Version>> {
        if self.0.draining.load(Ordering::Relaxed) {
            return Err(Error::Draining);
        }
        let found = self.0.repository.find(name, version)?;
        found.measured_by(&self.0.metrics);
        Ok(found)
    }

    /// The model of requests that name none: the only one, or that of this name.
    ///
    /// # Errors
    /// As for [`find`](Self::find); [`Error::Malformed`] where there are several models and none is named.
    pub fn find_or_only(&self, name: Option<&str>) -> Result<Arc<Version>> {
        match name {
            Some(name) => self.find(name, None),
            None => {
                let only = self.0.repository.only().ok_or_else(|| {
                    Error::malformed("several models are served: name one by `model`")
                })?;
                self.find(&only, None)
            }
        }
    }

    /// What is recorded of requests and connections.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// All models, and how they are.
    pub fn index(&self) -> Vec<RepositoryEntry> {
        self.0.repository.index()
    }

    /// The versions that answer.
    pub(crate) fn loaded(&self) -> Vec<Arc<Version>> {
        let ready = self.index().into_iter().filter(|entry| entry.state == State::Ready);
        let find =
            |entry: RepositoryEntry| self.0.repository.find(&entry.name, Some(&entry.version)).ok();
        ready.filter_map(find).inspect(|found| found.measured_by(&self.0.metrics)).collect()
    }

    /// Loads what is newest of a model in its folder, and swaps it in; an older version that served drains and goes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where clients may not do this; [`Error::UnknownModel`]; what loading gives.
    pub async fn load(&self, name: &str) -> Result<()> {
        self.controlled()?;
        let (server, name) = (self.clone(), name.to_owned());
        blocking(move || server.0.repository.load(&name)).await
    }

    /// Serves a model no more; requests that run are answered.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where clients may not do this; [`Error::UnknownModel`].
    pub async fn unload(&self, name: &str) -> Result<()> {
        self.controlled()?;
        self.0.repository.unload(name)
    }

    fn controlled(&self) -> Result<()> {
        let what = "loading and unloading by clients (it needs `--control`)".to_owned();
        if self.0.config.control { Ok(()) } else { Err(Error::Unsupported { what }) }
    }

    /// Looks at the folder once more: what is new or changed is loaded and swapped in, what is gone goes.
    pub fn refresh(&self) {
        self.0.repository.refresh();
    }

    /// Whether every model answers, and the device works.
    pub fn ready(&self) -> bool {
        let draining = self.0.draining.load(Ordering::Relaxed);
        !draining && self.0.engine.health().is_ok() && self.0.repository.ready()
    }

    /// Whether it can do anything at all: false once the device is lost to the process.
    pub fn live(&self) -> bool {
        self.0.engine.health().is_ok()
    }

    /// Takes no more requests; those that came are answered.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }
}

/// Runs what takes long away from the tasks of connections.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let lost = |error: tokio::task::JoinError| Error::Server { what: error.to_string() };
    tokio::task::spawn_blocking(work).await.map_err(lost)?
}
