//! What the files beside a model say of text, as Hugging Face's libraries write them.

use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Component, Path};

/// What the files of a model's folder say. What they do not say is what their libraries take then, or nothing.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Files {
    /// Names of the model's classes, as `BertForMaskedLM`.
    pub architectures: Vec<String>,
    /// Names of scores, by number.
    pub labels: BTreeMap<usize, String>,
    /// What scores of labels are.
    pub problem: Option<Problem>,
    /// Tokens of the model's vocabulary.
    pub vocabulary: Option<usize>,
    /// How the vectors of a text's tokens become one.
    pub pooling: Option<Pooling>,
    /// Whether vectors of texts are divided by their length.
    pub normalise: bool,
    /// Whether layers follow that only an output of the whole pipeline has.
    pub has_layers_after_pooling: bool,
    /// Tokens of a text at most, as far as anything says.
    pub max_tokens: Option<usize>,
    /// The id that rows are padded with, by the model.
    pub pad_id: Option<u32>,
    /// The token that rows are padded with, by the tokenizer's settings.
    pub pad_token: Option<String>,
    /// The token that stands for a word to be guessed.
    pub mask_token: Option<String>,
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// The first token's.
    Cls,
    /// Their mean.
    Mean,
    /// The last token's.
    Last,
}

/// What the scores of labels are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// Of one label of several: their softmax sums up to one.
    SingleLabelClassification,
    /// Of each label alone: each has its sigmoid.
    MultiLabelClassification,
    /// The value itself.
    Regression,
}

/// The parts of `config.json` that count here.
#[derive(Deserialize, Default)]
#[serde(default)]
struct HubConfig {
    architectures: Option<Vec<String>>,
    model_type: String,
    max_position_embeddings: Option<usize>,
    pad_token_id: Option<i64>,
    problem_type: Option<Problem>,
    vocab_size: Option<usize>,
    /// Keys are numbers, though JSON writes them as text: "10" comes after "9".
    id2label: Option<BTreeMap<usize, String>>,
}

/// The parts of `tokenizer_config.json` that count here.
#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenizerConfig {
    model_max_length: Option<f64>,
    pad_token: Option<Token>,
    mask_token: Option<Token>,
}

/// A token of `tokenizer_config.json`: its text, alone or among its properties.
#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Added { content: String },
}

/// The parts of `sentence_bert_config.json` that count here.
#[derive(Deserialize, Default)]
#[serde(default)]
struct SentenceConfig {
    max_seq_length: Option<usize>,
}

/// A step of sentence-transformers: `modules.json` lists them.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

/// How sentence-transformers pools: by the name of a mode, or by what older versions write, a truth value for each.
#[derive(Deserialize, Default)]
#[serde(default)]
struct PoolingConfig {
    pooling_mode: Option<String>,
    pooling_mode_cls_token: bool,
    pooling_mode_mean_tokens: bool,
    pooling_mode_lasttoken: bool,
}

impl Files {
    /// Reads the files of a folder; none has to be there.
    ///
    /// # Errors
    /// [`Error::File`] for a file that cannot be read, or is not what its name says.
    pub fn read(folder: &Path) -> Result<Self> {
        let hub: HubConfig = read_json(&folder.join("config.json"))?;
        let own: TokenizerConfig = read_json(&folder.join("tokenizer_config.json"))?;
        let sentence: SentenceConfig = read_json(&folder.join("sentence_bert_config.json"))?;
        let modules: Vec<Module> = read_json(&folder.join("modules.json"))?;
        let said = own.model_max_length.filter(|length| (1.0..1e7).contains(length));
        let said = said.map(|length| length as usize);
        let lengths = [sentence.max_seq_length, said, hub.positions()];
        let is = |module: &Module, name: &str| module.kind.ends_with(&format!(".{name}"));
        let after = ["Transformer", "Pooling", "Normalize"];
        Ok(Self {
            max_tokens: lengths.into_iter().flatten().min(),
            problem: hub.problem_type,
            vocabulary: hub.vocab_size,
            pooling: pooling(folder, modules.iter().find(|module| is(module, "Pooling")))?,
            normalise: modules.iter().any(|module| is(module, "Normalize")),
            has_layers_after_pooling: !modules.iter().all(|m| after.iter().any(|name| is(m, name))),
            pad_id: hub.pad_token_id.and_then(|id| u32::try_from(id).ok()),
            pad_token: own.pad_token.map(Token::text),
            mask_token: own.mask_token.map(Token::text),
            architectures: hub.architectures.unwrap_or_default(),
            labels: hub.id2label.unwrap_or_default(),
        })
    }

    /// Whether one of the model's classes is for this, as `ForMaskedLM`.
    pub(crate) fn is_for(&self, suffix: &str) -> bool {
        self.architectures.iter().any(|name| name.ends_with(suffix))
    }

    /// The name of a score.
    pub fn label(&self, number: usize) -> String {
        self.labels.get(&number).cloned().unwrap_or_else(|| unnamed(number))
    }
}

/// What a label without a name is called.
pub(crate) fn unnamed(number: usize) -> String {
    format!("LABEL_{number}")
}

impl HubConfig {
    /// Tokens that have a position.
    fn positions(&self) -> Option<usize> {
        let padding = self.pad_token_id.and_then(|id| usize::try_from(id).ok()).unwrap_or(1);
        self.max_position_embeddings.map(|all| match &*self.model_type {
            // Their positions begin behind the padding's.
            "roberta" | "xlm-roberta" | "camembert" => all.saturating_sub(padding + 1),
            _ => all,
        })
    }
}

impl Token {
    fn text(self) -> String {
        match self {
            Self::Text(text) | Self::Added { content: text } => text,
        }
    }
}

/// The pooling of a folder of sentence-transformers, if it is one: in the folder of its module, by default `1_Pooling`.
fn pooling(folder: &Path, module: Option<&Module>) -> Result<Option<Pooling>> {
    let inside = Path::new(module.map_or("1_Pooling", |module| &module.path));
    let path = folder.join(inside).join("config.json");
    let is_within = inside.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_within || !path.is_file() {
        return Ok(None);
    }
    let config: PoolingConfig = read_json(&path)?;
    let named = match config.pooling_mode.as_deref() {
        None => None,
        Some("cls") => Some(Pooling::Cls),
        Some("mean") => Some(Pooling::Mean),
        Some("lasttoken") => Some(Pooling::Last),
        Some(other) => {
            let reason =
                format!("its pooling_mode is {other:?}; cls, mean and lasttoken are known");
            return Err(Error::file(&path, reason));
        }
    };
    let modes = [
        (config.pooling_mode_cls_token, Pooling::Cls),
        (config.pooling_mode_mean_tokens, Pooling::Mean),
        (config.pooling_mode_lasttoken, Pooling::Last),
    ];
    let asked = modes.into_iter().filter(|mode| mode.0).map(|mode| mode.1);
    let mut asked = named.into_iter().chain(asked);
    match (asked.next(), asked.next()) {
        (Some(pooling), None) => Ok(Some(pooling)),
        _ => Err(Error::file(&path, "one of the cls token, mean tokens and last token is needed")),
    }
}

/// The values of a JSON file; the defaults where there is none.
fn read_json<T: for<'a> Deserialize<'a> + Default>(path: &Path) -> Result<T> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| Error::file(path, error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(Error::file(path, error)),
    }
}
