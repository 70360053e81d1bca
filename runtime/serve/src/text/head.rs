//! What a text model's outputs are, and the vectors that are made of them.

use crate::config::{Pooling, TextConfig};
use crate::error::{Error, Result};
use graphene_runtime::{DType, Model, Tensor};
use half::{bf16, f16};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What a text model's output is.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Head {
    /// A vector for each token.
    Tokens {
        /// The output.
        output: String,
        /// How they become one.
        pooling: Pooling,
    },
    /// A vector for the text.
    Sentence {
        /// The output.
        output: String,
    },
    /// A score for each label.
    Scores {
        /// The output.
        output: String,
        /// The labels; as far as they are known, if the output's width is none.
        labels: Vec<String>,
    },
}

/// How sentence-transformers pools: `1_Pooling/config.json`.
#[derive(Deserialize, Default)]
#[serde(default)]
struct PoolingConfig {
    pooling_mode_cls_token: bool,
    pooling_mode_mean_tokens: bool,
    pooling_mode_lasttoken: bool,
}

/// The pooling that a folder of sentence-transformers says, if it is one.
///
/// # Errors
/// [`Error::Folder`] for one that this server does not have.
pub(crate) fn pooling_of_folder(folder: &Path) -> Result<Option<Pooling>> {
    let path = folder.join("1_Pooling").join("config.json");
    if !path.is_file() {
        return Ok(None);
    }
    let config: PoolingConfig = super::read_json(&path)?;
    let modes = [
        (config.pooling_mode_cls_token, Pooling::Cls),
        (config.pooling_mode_mean_tokens, Pooling::Mean),
        (config.pooling_mode_lasttoken, Pooling::Last),
    ];
    let mut asked = modes.into_iter().filter(|mode| mode.0);
    match (asked.next(), asked.next()) {
        (Some((_, pooling)), None) => Ok(Some(pooling)),
        _ => {
            Err(super::refused(&path, "one of the cls token, mean tokens and last token is needed"))
        }
    }
}

impl Head {
    /// That of a model: the output that the settings name, else the first of three dims, else the first of two.
    pub(super) fn of(
        model: &Model,
        config: &TextConfig,
        pooling: Option<Pooling>,
        architectures: &[String],
        labels: &BTreeMap<usize, String>,
    ) -> std::result::Result<Self, String> {
        let outputs = model.outputs();
        let of_rank = |rank: usize| outputs.iter().find(|port| port.dims().len() == rank);
        let port = match &config.output {
            // A pooled model has one output, made of the one that is named.
            Some(name) if !config.pooled => {
                let found = outputs.iter().find(|port| port.name() == name);
                found.ok_or_else(|| {
                    format!("the model has no output {name:?}, which serve.toml names")
                })?
            }
            Some(_) | None => {
                of_rank(3).or(of_rank(2)).ok_or("no output has a vector for each text or token")?
            }
        };
        if !matches!(port.dtype(), DType::F32 | DType::F16 | DType::BF16) {
            return Err(format!("output {port} has to be of fp32, fp16 or bf16"));
        }
        let output = port.name().to_owned();
        let classifies =
            architectures.iter().any(|name| name.ends_with("ForSequenceClassification"));
        match port.dims().len() {
            2 if classifies => {
                let known = labels.keys().next_back().map_or(0, |last| last + 1);
                let width = port.dims()[1].known().map_or(known, |width| width as usize);
                if known > width {
                    return Err(format!(
                        "config.json has a label {}, and output {port} has {width} scores",
                        known - 1
                    ));
                }
                let label = |id| labels.get(&id).cloned().unwrap_or_else(|| label(id));
                Ok(Self::Scores { output, labels: (0..width).map(label).collect() })
            }
            2 => Ok(Self::Sentence { output }),
            3 => {
                let pooling = config.pooling.or(pooling).unwrap_or(Pooling::Mean);
                Ok(Self::Tokens { output, pooling })
            }
            _ => Err(format!("output {port} has to have two dims or three")),
        }
    }

    /// The output that it is made of.
    pub(crate) fn output(&self) -> &str {
        match self {
            Self::Tokens { output, .. }
            | Self::Sentence { output }
            | Self::Scores { output, .. } => output,
        }
    }

    /// The vector of a text, of the output of its row.
    ///
    /// # Errors
    /// [`Error::NotText`] for a model that gives scores.
    pub(crate) fn embedding(&self, name: &str, output: &Tensor) -> Result<Vec<f32>> {
        let all = numbers(output);
        let width = output.shape().last().copied().unwrap_or(0).max(1);
        match self {
            Self::Sentence { .. } => Ok(all),
            Self::Tokens { pooling: Pooling::Cls, .. } => Ok(all[..width].to_vec()),
            Self::Tokens { pooling: Pooling::Last, .. } => Ok(all[all.len() - width..].to_vec()),
            Self::Tokens { pooling: Pooling::Mean, .. } => Ok(mean(&all, width)),
            Self::Scores { .. } => Err(not_text(
                name,
                "it gives scores of labels, no embeddings: ask /rerank or /predict",
            )),
        }
    }

    /// The vectors of a text's tokens.
    ///
    /// # Errors
    /// [`Error::NotText`] for a model that gives one vector for a text.
    pub(crate) fn token_embeddings(&self, name: &str, output: &Tensor) -> Result<Vec<Vec<f32>>> {
        match self {
            Self::Tokens { .. } => {
                let width = output.shape().last().copied().unwrap_or(0).max(1);
                Ok(numbers(output).chunks(width).map(<[f32]>::to_vec).collect())
            }
            Self::Sentence { .. } | Self::Scores { .. } => {
                Err(not_text(name, "it has no vectors of tokens"))
            }
        }
    }

    /// The scores of a text and their labels.
    ///
    /// # Errors
    /// [`Error::NotText`] for a model that gives embeddings.
    pub(crate) fn scores(&self, name: &str, output: &Tensor) -> Result<Vec<(String, f32)>> {
        let Self::Scores { labels, .. } = self else {
            let reason = "it gives embeddings, no scores: its config.json names no \
                          ForSequenceClassification architecture";
            return Err(not_text(name, reason));
        };
        let labelled = |(number, score): (usize, f32)| {
            (labels.get(number).cloned().unwrap_or_else(|| label(number)), score)
        };
        Ok(numbers(output).into_iter().enumerate().map(labelled).collect())
    }
}

/// What a label without a name is called.
fn label(number: usize) -> String {
    format!("LABEL_{number}")
}

fn not_text(name: &str, reason: &str) -> Error {
    Error::NotText { name: name.to_owned(), reason: reason.to_owned() }
}

/// Elements in single precision.
fn numbers(tensor: &Tensor) -> Vec<f32> {
    if let Ok(all) = tensor.as_slice::<f32>() {
        return all.to_vec();
    }
    if let Ok(all) = tensor.as_slice::<f16>() {
        return all.iter().map(|x| x.to_f32()).collect();
    }
    tensor
        .as_slice::<bf16>()
        .map_or_else(|_| Vec::new(), |all| all.iter().map(|x| x.to_f32()).collect())
}

/// The mean of vectors that lie one after the other.
fn mean(all: &[f32], width: usize) -> Vec<f32> {
    let mut sum = vec![0.0_f32; width];
    for vector in all.chunks_exact(width) {
        sum.iter_mut().zip(vector).for_each(|(sum, x)| *sum += x);
    }
    let count = (all.len() / width).max(1) as f32;
    sum.iter_mut().for_each(|sum| *sum /= count);
    sum
}

/// Divides a vector by its length, unless that is zero.
pub(crate) fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x /= length);
    }
}
