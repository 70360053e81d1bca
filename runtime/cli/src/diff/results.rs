//! Results of `--json` as far as they are compared. What an earlier version did not write yet is empty.

use crate::error::Error;
use crate::human::counted;
use crate::report::Report;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What a run has found.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(super) struct Results {
    schema: u32,
    version: String,
    revision: Option<String>,
    pub(super) date: String,
    pub(super) command: String,
    pub(super) model: Model,
    device: Device,
    pub(super) target: String,
    pub(super) dtype: String,
    sizes: BTreeMap<String, i64>,
    pub(super) executors: Vec<Executor>,
    /// What went wrong, if anything did.
    error: Option<Failure>,
    /// The signal that ended measuring, if one did.
    pub(super) interrupted: Option<String>,
}

/// What went wrong: only a message up to schema 1.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Failure {
    Message(String),
    Failure { message: String },
}

/// A model.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(super) struct Model {
    pub(super) name: String,
}

/// A machine.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct Device {
    name: String,
    threads: usize,
    simd: String,
    gpu: Option<Gpu>,
}

/// A GPU's host.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct Gpu {
    host: String,
}

/// An executor.
#[derive(Deserialize, Debug, Default, Clone)]
#[serde(default)]
pub(super) struct Executor {
    pub(super) name: String,
    pub(super) launches: Option<u64>,
    pub(super) memory: Option<Memory>,
    pub(super) time: Option<Time>,
    profile: Option<Vec<Step>>,
    estimate: Option<Vec<Step>>,
}

/// Its memory.
#[derive(Deserialize, Debug, Default, Clone)]
#[serde(default)]
pub(super) struct Memory {
    pub(super) arena_bytes: u64,
}

/// Its times.
#[derive(Deserialize, Debug, Default, Clone)]
#[serde(default)]
pub(super) struct Time {
    pub(super) median_ms: f64,
    pub(super) max_ms: f64,
    pub(super) percentiles_ms: BTreeMap<String, Option<f64>>,
}

/// A step.
#[derive(Deserialize, Debug, Default, Clone)]
#[serde(default)]
pub(super) struct Step {
    pub(super) step: usize,
    pub(super) name: String,
    pub(super) family: String,
    pub(super) time_us: Option<f64>,
    pub(super) library_us: Option<f64>,
}

impl Results {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Results`] if what is in it is no result.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let refused = |reason: String| Error::Results { path: path.to_owned(), reason };
        let text = std::fs::read(path);
        let text = text.map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let parsed = serde_json::from_slice(&text);
        let results: Self = parsed.map_err(|error| refused(format!("no JSON of ours: {error}")))?;
        match results {
            Self { error: Some(error), executors, .. } if executors.is_empty() => {
                let (Failure::Message(message) | Failure::Failure { message }) = error;
                Err(refused(format!("that run failed: {message}")))
            }
            Self { schema, .. } if schema > Report::SCHEMA => {
                let known = Report::SCHEMA;
                Err(refused(format!("schema {schema}, but this version reads up to {known}")))
            }
            Self { schema: 0, .. } => Err(refused("no result: it has no `schema`".to_owned())),
            results => Ok(results),
        }
    }

    /// The executor of a name.
    pub(super) fn executor(&self, name: &str) -> Option<&Executor> {
        self.executors.iter().find(|entry| entry.name == name)
    }

    /// The machine in words.
    pub(super) fn machine(&self) -> String {
        let Device { name, threads, simd, gpu } = &self.device;
        let threads = counted(*threads, "thread", "threads");
        match gpu {
            Some(gpu) => format!("{name}; host {}, {threads}", gpu.host),
            None => format!("{name}, {threads}, {simd}"),
        }
    }

    /// Sizes as text: `batch=8, sequence=128`.
    pub(super) fn sizes(&self) -> String {
        let sizes: Vec<_> =
            self.sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        sizes.join(", ")
    }

    /// The version with its revision, if that is known.
    pub(super) fn version(&self) -> String {
        let revision = self.revision.as_ref();
        let revision = revision.map_or(String::new(), |revision| format!(" ({revision})"));
        format!("{}{revision}", self.version)
    }
}

impl Executor {
    /// Its steps, with times or else estimates.
    pub(super) fn steps(&self) -> &[Step] {
        self.profile.as_ref().or(self.estimate.as_ref()).map_or(&[], Vec::as_slice)
    }

    /// Whether the times of its steps are estimates.
    pub(super) fn is_estimate(&self) -> bool {
        self.profile.is_none() && self.estimate.is_some()
    }
}
