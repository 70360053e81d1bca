//! What may be set: of the server, and of a model by the `serve.toml` of its folder.

use crate::error::{Error, Result};
use crate::limits::Limits;
use graphene_runtime::{Device, Dtype};
use graphene_text::Pooling;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What may be set of the server. A file of `--config` has the same names.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// What requests may ask for.
    pub limits: Limits,
    /// What every model is set to where its own `serve.toml` says nothing.
    pub model: ModelConfig,
    /// The model's name where one is served, from a file or from its folder; models of a folder of such have their own.
    pub name: Option<String>,
    /// Seconds between two looks at the folder of models; zero looks once.
    pub poll_s: u64,
    /// Whether clients may load and unload models of the folder.
    pub control: bool,
}

/// What may be set of a model: its `serve.toml`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Elements that it computes with: `model`, `f32`, `tf32`, `f16` or `bf16`.
    pub dtype: String,
    /// Batches that run side by side, each with an arena of its own; by default two on a GPU, else one.
    pub contexts: Option<usize>,
    /// Sizes of dims that the model is made for alone.
    pub dims: BTreeMap<String, usize>,
    /// How requests are put together.
    pub batch: BatchConfig,
    /// What its outputs are for text.
    pub text: TextConfig,
}

/// How requests are put together.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchConfig {
    /// Whether they are at all, where the plan proves that rows are independent.
    pub enabled: bool,
    /// Rows of a batch at most.
    pub rows: usize,
    /// Positions of a batch at most, padding included: rows times the length.
    pub tokens: usize,
    /// The part of a batch's positions that may be padding, 0 to 1.
    pub padding: f64,
    /// Lengths are padded up to a multiple of it, and rows to few sizes, so that fewer shapes are bound; by default 16 on a
    /// GPU, where that takes milliseconds, and 1 on a CPU.
    pub multiple: Option<usize>,
}

/// What a text model's outputs are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TextConfig {
    /// How the vectors of a text's tokens become one.
    pub pooling: Option<Pooling>,
    /// Whether the model gives the vectors of texts alone, and not those of their tokens: it is faster, most of all on a
    /// GPU, and its other outputs are not there.
    pub pooled: bool,
    /// Tokens of a text at most; by default what the tokenizer or the model says.
    pub max_tokens: Option<usize>,
    /// The output that embeddings are made of; by default the first of three dims, or of two where there is none.
    pub output: Option<String>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            model: ModelConfig::default(),
            name: None,
            poll_s: 5,
            control: false,
        }
    }
}

impl ServerConfig {
    /// The settings of a file.
    ///
    /// # Errors
    /// [`Error::Folder`] for a file that cannot be read, or is not such settings.
    pub fn read(path: &Path) -> Result<Self> {
        let refused = |reason: String| Error::Folder { path: path.display().to_string(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        let config: Self = toml::from_str(&text).map_err(|error| refused(error.to_string()))?;
        config.model.elements().map_err(refused)?;
        Ok(config)
    }
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            dtype: "model".to_owned(),
            contexts: None,
            dims: BTreeMap::new(),
            batch: BatchConfig::default(),
            text: TextConfig::default(),
        }
    }
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self { enabled: true, rows: 64, tokens: 16_384, padding: 0.15, multiple: None }
    }
}

impl ModelConfig {
    /// The settings in a model's folder, or `default` where there is no `serve.toml`.
    ///
    /// # Errors
    /// [`Error::Folder`] for a file that cannot be read, or is not such settings.
    pub fn read(folder: &Path, default: &Self) -> Result<Self> {
        let path = folder.join("serve.toml");
        let refused = |reason: String| Error::Folder { path: path.display().to_string(), reason };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(default.clone());
            }
            Err(error) => return Err(refused(error.to_string())),
        };
        let config: Self = toml::from_str(&text).map_err(|error| refused(error.to_string()))?;
        config.elements().map_err(refused)?;
        Ok(config)
    }

    /// The elements that the model computes with.
    pub(crate) fn elements(&self) -> std::result::Result<Dtype, String> {
        match &*self.dtype {
            "model" => Ok(Dtype::Model),
            "f32" => Ok(Dtype::F32),
            "tf32" => Ok(Dtype::Tf32),
            "f16" => Ok(Dtype::F16),
            "bf16" => Ok(Dtype::Bf16),
            other => Err(format!("dtype is {other:?}; it may be model, f32, tf32, f16 or bf16")),
        }
    }
}

/// The device of a name: `auto`, `cpu`, `cuda` or `cuda:1`.
pub fn device(name: &str) -> std::result::Result<Device, String> {
    let number = |text: &str| text.parse().ok().map(Device::Cuda);
    match name {
        "auto" => Ok(Device::Auto),
        "cpu" => Ok(Device::Cpu),
        "cuda" => Ok(Device::Cuda(0)),
        other => other.strip_prefix("cuda:").and_then(number).ok_or_else(|| {
            format!("{other:?} is no device; there are auto, cpu, cuda and cuda:NUMBER")
        }),
    }
}
