//! Where models come from, and which version of each answers.
//!
//! A version is read whole into memory, loaded and warmed up beside the one that answers, and takes its place when it is
//! ready; the older one goes when the last of its requests is answered. A version that fails leaves the older one as it is.

mod scan;

use crate::config::{ModelConfig, ServerConfig};
use crate::error::{Error, Result};
use crate::text::{Text, pooled, pooling_of_folder};
use crate::version::Version;
use graphene_runtime::{Engine, Given, Reading, Source};
use scan::{Found, scan};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

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
    /// It does not answer, and why.
    Unavailable(String),
}

/// Models by name, and where they come from.
pub(crate) struct Repository {
    engine: Engine,
    config: ServerConfig,
    root: Root,
    models: Mutex<BTreeMap<String, Slot>>,
    /// Held while models are loaded: one at a time.
    loading: Mutex<()>,
}

/// Where models come from.
enum Root {
    /// A model of the zoo.
    Zoo(String),
    /// A file or a folder.
    Path(PathBuf),
}

/// A model's place.
#[derive(Default)]
struct Slot {
    /// The version that answers.
    serving: Option<Arc<Version>>,
    /// What was loaded last, or failed to be.
    tried: Option<Found>,
    /// Why that failed, if it did.
    failure: Option<Error>,
    /// A client unloaded it: only a client loads it again.
    unloaded: bool,
}

impl Repository {
    /// What `models` names; nothing is loaded yet.
    ///
    /// # Errors
    /// [`Error::Folder`] for a path that cannot be read, or without a model.
    pub(crate) fn open(engine: &Engine, models: &str, config: &ServerConfig) -> Result<Self> {
        let (root, names) = match models.strip_prefix("zoo:") {
            Some(name) => (Root::Zoo(name.to_owned()), vec![name.to_owned()]),
            None => {
                let found = scan(models.as_ref(), config.name.as_deref())?;
                let names: Vec<String> = found.into_keys().collect();
                (Root::Path(models.into()), names)
            }
        };
        if names.is_empty() {
            let reason = "it holds neither model.onnx nor folders with one".to_owned();
            return Err(Error::Folder { path: models.to_owned(), reason });
        }
        let slots = names.into_iter().map(|name| (name, Slot::default())).collect();
        let (engine, config) = (engine.clone(), config.clone());
        Ok(Self { engine, config, root, models: Mutex::new(slots), loading: Mutex::default() })
    }

    fn models(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads what is new or changed, and lets go of what is gone.
    ///
    /// # Errors
    /// The first of those that loading gave, which the index gives too.
    pub(crate) fn refresh(&self) -> Result<()> {
        let _alone = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let path = match &self.root {
            Root::Zoo(name) => {
                return if self
                    .models()
                    .get(name)
                    .is_some_and(|slot| slot.serving.is_none() && !slot.unloaded)
                {
                    self.load_zoo(name)
                } else {
                    Ok(())
                };
            }
            Root::Path(path) => path,
        };
        let found = scan(path, self.config.name.as_deref())?;
        self.models().retain(|name, _| found.contains_key(name));
        let mut first = Ok(());
        for (name, found) in found {
            let is_new = {
                let mut models = self.models();
                let slot = models.entry(name.clone()).or_default();
                !slot.unloaded && slot.tried.as_ref() != Some(&found)
            };
            if is_new {
                first = first.and(self.load_found(&name, found));
            }
        }
        first
    }

    /// Loads what is newest of a model, whatever was tried before.
    ///
    /// # Errors
    /// [`Error::UnknownModel`], [`Error::Folder`], and what loading gives.
    pub(crate) fn load(&self, name: &str) -> Result<()> {
        let _alone = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown = || Error::UnknownModel { name: name.to_owned() };
        match &self.root {
            Root::Zoo(known) if known == name => self.load_zoo(name),
            Root::Zoo(_) => Err(unknown()),
            Root::Path(path) => {
                let mut found = scan(path, self.config.name.as_deref())?;
                let found = found.remove(name).ok_or_else(unknown)?;
                self.load_found(name, found)
            }
        }
    }

    /// Lets go of a model until a client loads it again.
    ///
    /// # Errors
    /// [`Error::UnknownModel`].
    pub(crate) fn unload(&self, name: &str) -> Result<()> {
        let unknown = || Error::UnknownModel { name: name.to_owned() };
        let mut models = self.models();
        let slot = models.get_mut(name).ok_or_else(unknown)?;
        slot.unloaded = true;
        slot.tried = None;
        let gone = slot.serving.take();
        drop(models);
        drop(gone);
        Ok(())
    }

    fn load_zoo(&self, name: &str) -> Result<()> {
        let refused = |reason: String| Error::Folder { path: format!("zoo:{name}"), reason };
        let version = || {
            let zoo = graphene_models::build(name, &graphene_models::Options::default());
            let zoo = zoo.map_err(|error| refused(error.to_string()))?;
            let source = Source::with_external(zoo.encode(), zoo.weights().clone());
            self.version(name, 1, &source, None)
        };
        self.settle(name, None, version())
    }

    fn load_found(&self, name: &str, found: Found) -> Result<()> {
        let version = || {
            let failed = |error| Error::Model { name: name.to_owned(), error };
            let source = Source::open(&found.file, Reading::Owned).map_err(failed)?;
            let version = self.version(name, found.number, &source, Some(&found))?;
            if found.is_unchanged() {
                return Ok(version);
            }
            let path = found.file.display().to_string();
            let reason =
                "it changed while it was read; it is read again when it has settled".to_owned();
            Err(Error::Folder { path, reason })
        };
        let version = version();
        self.settle(name, Some(found), version)
    }

    /// A version, warmed up.
    fn version(
        &self,
        name: &str,
        number: u64,
        source: &Source,
        found: Option<&Found>,
    ) -> Result<Version> {
        let began = Instant::now();
        let config = match found {
            Some(found) => ModelConfig::read(found.folder_with("serve.toml"), &self.config.model)?,
            None => self.config.model.clone(),
        };
        let refused = |reason: String| Error::Folder { path: name.to_owned(), reason };
        let mut builder = self.engine.model().dtype(config.elements().map_err(refused)?);
        for (dim, &size) in &config.dims {
            builder = builder.dim(dim, size);
        }
        let failed = |error| Error::Model { name: name.to_owned(), error };
        let model = if config.text.pooled {
            let dims = config.dims.iter().map(|(dim, &size)| (dim.clone(), size as i64)).collect();
            let imported = source.import(&Given { dims, ..Given::default() }).map_err(failed)?;
            let folder = found.map(|found| found.folder_with("tokenizer.json"));
            let pooling = folder.map(pooling_of_folder).transpose()?.flatten();
            let graph = pooled(imported.graph, &config.text, pooling).map_err(refused)?;
            builder.load_graph(graph).map_err(failed)?
        } else {
            builder.load_from(source).map_err(failed)?
        };
        let text = match found {
            Some(found) => Text::read(found.folder_with("tokenizer.json"), &config.text, &model)?,
            None => Text::of_zoo(name, &config.text, &model)?,
        };
        let limits = self.config.limits.clone();
        let version = Version::new((name, &number.to_string()), model, text, config, limits)?;
        version.warm()?;
        for note in version.notes() {
            tracing::info!(model = name, "{note}");
        }
        tracing::info!(model = name, version = number, "ready after {:.2?}", began.elapsed());
        Ok(version)
    }

    /// Puts a version in its place, or writes down why there is none.
    fn settle(&self, name: &str, found: Option<Found>, version: Result<Version>) -> Result<()> {
        let mut models = self.models();
        let slot = models.entry(name.to_owned()).or_default();
        slot.tried = found;
        let (answer, gone) = match version {
            Ok(version) => {
                slot.failure = None;
                slot.unloaded = false;
                (Ok(()), slot.serving.replace(Arc::new(version)))
            }
            Err(error) => {
                let stays =
                    if slot.serving.is_some() { "; the version before goes on" } else { "" };
                tracing::error!(model = name, "{error}{stays}");
                slot.failure = Some(error.clone());
                (Err(error), None)
            }
        };
        // Weights are freed without the lock.
        drop(models);
        drop(gone);
        answer
    }

    /// The version of a model that answers.
    ///
    /// # Errors
    /// [`Error::UnknownModel`], [`Error::UnknownVersion`], [`Error::NotReady`].
    pub(crate) fn find(&self, name: &str, version: Option<&str>) -> Result<Arc<Version>> {
        let models = self.models();
        let unknown = || Error::UnknownModel { name: name.to_owned() };
        let slot = models.get(name).ok_or_else(unknown)?;
        let Some(found) = &slot.serving else {
            return Err(Error::NotReady { name: name.to_owned(), reason: slot.reason() });
        };
        match version {
            Some(asked) if asked != found.number() => Err(Error::UnknownVersion {
                name: name.to_owned(),
                version: asked.to_owned(),
                served: vec![found.number().to_owned()],
            }),
            Some(_) | None => Ok(Arc::clone(found)),
        }
    }

    /// The name of the only model, if there is one.
    pub(crate) fn only(&self) -> Option<String> {
        let models = self.models();
        let name = models.keys().next().cloned();
        name.filter(|_| models.len() == 1)
    }

    /// All versions, in the order of their names.
    pub(crate) fn index(&self) -> Vec<RepositoryEntry> {
        let mut entries = Vec::new();
        for (name, slot) in self.models().iter() {
            let mut add = |version: String, state| {
                entries.push(RepositoryEntry { name: name.clone(), version, state });
            };
            if let Some(serving) = &slot.serving {
                add(serving.number().to_owned(), State::Ready);
            }
            let tried = slot.tried.as_ref().map_or(String::new(), |found| found.number.to_string());
            match &slot.failure {
                Some(failure) => add(tried, State::Unavailable(failure.to_string())),
                None if slot.serving.is_some() => {}
                None if slot.unloaded => add(tried, State::Unavailable("unloaded".to_owned())),
                None => add(tried, State::Loading),
            }
        }
        entries
    }

    /// Whether every model answers, was refused, or was unloaded; and one answers, unless all were unloaded.
    pub(crate) fn ready(&self) -> bool {
        let models = self.models();
        let settled =
            |slot: &Slot| slot.serving.is_some() || slot.failure.is_some() || slot.unloaded;
        models.values().all(settled)
            && (models.values().any(|slot| slot.serving.is_some())
                || models.values().all(|slot| slot.unloaded))
    }
}

impl Slot {
    /// Why nothing answers.
    fn reason(&self) -> String {
        match &self.failure {
            Some(failure) => failure.to_string(),
            None if self.unloaded => "it was unloaded".to_owned(),
            None => "it is being loaded".to_owned(),
        }
    }
}
