//! Where models come from: the zoo, a file, or a folder of models.

use crate::config::{ModelConfig, ServerConfig};
use crate::error::{Error, Result};
use crate::text::Text;
use crate::version::Version;
use graphene_runtime::{Engine, Model, Source};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A model of the repository, and how it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepositoryEntry {
    /// Its name.
    pub name: String,
    /// The version.
    pub version: String,
    /// How it is.
    pub state: State,
}

/// How a version of a model is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// It answers.
    Ready,
    /// It is being loaded.
    Loading,
    /// It is not loaded, and why.
    Unavailable(String),
}

pub(crate) struct Repository {
    engine: Engine,
    config: ServerConfig,
    root: Option<PathBuf>,
    models: Mutex<BTreeMap<String, Arc<Version>>>,
}

impl Repository {
    pub(crate) fn open(engine: &Engine, models: &str, config: &ServerConfig) -> Result<Self> {
        let repository = Self {
            engine: engine.clone(),
            config: config.clone(),
            root: None,
            models: Mutex::default(),
        };
        let version = match models.strip_prefix("zoo:") {
            Some(name) => repository.load_zoo(name)?,
            None => repository.load_folder(Path::new(models))?,
        };
        repository.models().insert(version.name().to_owned(), Arc::new(version));
        Ok(repository)
    }

    fn models(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Version>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_zoo(&self, name: &str) -> Result<Version> {
        let refused = |reason: String| Error::Folder { path: format!("zoo:{name}"), reason };
        let zoo = graphene_models::build(name, &graphene_models::Options::default());
        let zoo = zoo.map_err(|error| refused(error.to_string()))?;
        let source = Source::with_external(zoo.encode(), zoo.weights().clone());
        self.version(name, "1", &source, None, self.config.model.clone())
    }

    fn load_folder(&self, folder: &Path) -> Result<Version> {
        let config = ModelConfig::read(folder, &self.config.model)?;
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or("model").to_owned();
        let unread = |error| Error::Model { name: name.clone(), error };
        let source = Source::open(folder.join("model.onnx"), graphene_runtime::Reading::Owned);
        let source = source.map_err(unread)?;
        self.version(&name, "1", &source, Some(folder), config)
    }

    fn version(
        &self,
        name: &str,
        number: &str,
        source: &Source,
        folder: Option<&Path>,
        config: ModelConfig,
    ) -> Result<Version> {
        let refused = |reason: String| Error::Folder { path: name.to_owned(), reason };
        let mut builder = self.engine.model().dtype(config.elements().map_err(refused)?);
        for (dim, &size) in &config.dims {
            builder = builder.dim(dim, size);
        }
        let failed = |error| Error::Model { name: name.to_owned(), error };
        let model: Model = builder.load_from(source).map_err(failed)?;
        let text = folder.map(|folder| Text::read(folder, &config.text, &model)).transpose()?;
        let limits = self.config.limits.clone();
        Version::new((name, number), model, text.flatten(), config, limits)
    }

    pub(crate) fn find(&self, name: &str, version: Option<&str>) -> Result<Arc<Version>> {
        let unknown = || Error::UnknownModel { name: name.to_owned() };
        let found = self.models().get(name).cloned().ok_or_else(unknown)?;
        match version {
            Some(asked) if asked != found.number() => Err(Error::UnknownVersion {
                name: name.to_owned(),
                version: asked.to_owned(),
                served: vec![found.number().to_owned()],
            }),
            Some(_) | None => Ok(found),
        }
    }

    pub(crate) fn only(&self) -> Option<String> {
        let models = self.models();
        let name = models.keys().next().cloned();
        name.filter(|_| models.len() == 1)
    }

    pub(crate) fn index(&self) -> Vec<RepositoryEntry> {
        let entry = |version: &Arc<Version>| RepositoryEntry {
            name: version.name().to_owned(),
            version: version.number().to_owned(),
            state: State::Ready,
        };
        self.models().values().map(entry).collect()
    }

    pub(crate) fn load(&self, name: &str) -> Result<()> {
        self.find(name, None).map(drop)
    }

    pub(crate) fn unload(&self, name: &str) -> Result<()> {
        let unknown = || Error::UnknownModel { name: name.to_owned() };
        self.models().remove(name).map(drop).ok_or_else(unknown)
    }

    pub(crate) fn refresh(&self) {}

    pub(crate) fn ready(&self) -> bool {
        !self.models().is_empty()
    }

    pub(crate) fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }
}
