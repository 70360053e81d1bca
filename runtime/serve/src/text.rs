//! Text for models: tokens there, vectors back.
//!
//! A [`Text`] is what a model's folder says of text: `tokenizer.json` and the files beside it that Hugging Face's libraries
//! write. `tokens` makes tokens of text, on `workers`; `head` says what the model's outputs are, and makes vectors of
//! them; `zoo` is a tokenizer for models that come without one.

mod head;
mod pool;
mod tokens;
mod workers;
mod zoo;

pub(crate) use head::{normalise, pooling_of_folder};
pub(crate) use pool::pooled;
pub(crate) use tokens::{Part, Side, Source, Tokens, Truncate};

use crate::config::TextConfig;
use crate::error::{Error, Result};
use crate::infer::{InferRequest, InferResponse};
use crate::metrics::Protocol;
use crate::version::Version;
use futures_util::{StreamExt, TryStreamExt, stream};
use graphene_runtime::{DType, Model, Port, Tensor};
use head::Head;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokenizers::Tokenizer;
use workers::Workers;

/// Tokens of a text where nothing says how many a model takes.
const USUAL_LENGTH: usize = 512;

/// Rows of one request that wait for the model at a time.
const ROWS_AHEAD: usize = 256;

/// The tokenizer of a model, and what the model's outputs are for text.
pub struct Text {
    tokenizer: Arc<Tokenizer>,
    workers: Workers,
    /// What each input of the model takes.
    feeds: Vec<Feed>,
    head: Head,
    max_tokens: usize,
}

/// What an input takes of a text's tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Feed {
    name: String,
    dtype: DType,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Ids,
    Mask,
    Types,
    Positions,
}

/// The parts of `config.json` that count here.
#[derive(Deserialize, Default)]
#[serde(default)]
struct HubConfig {
    architectures: Vec<String>,
    model_type: String,
    max_position_embeddings: Option<usize>,
    pad_token_id: Option<usize>,
    /// Keys are numbers, though JSON writes them as text: "10" comes after "9".
    id2label: BTreeMap<usize, String>,
}

/// The parts of `sentence_bert_config.json` that count here.
#[derive(Deserialize, Default)]
#[serde(default)]
struct SentenceConfig {
    max_seq_length: Option<usize>,
}

/// The parts of `tokenizer_config.json` that count here.
#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenizerConfig {
    model_max_length: Option<f64>,
}

impl Text {
    /// What lies in a model's folder, if there is a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Folder`] for files that cannot be read or contradict the model.
    pub(crate) fn read(folder: &Path, config: &TextConfig, model: &Model) -> Result<Option<Self>> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            return Ok(None);
        }
        let tokenizer = Tokenizer::from_file(&path).map_err(|error| refused(&path, error))?;
        let hub: HubConfig = read_json(&folder.join("config.json"))?;
        let own: TokenizerConfig = read_json(&folder.join("tokenizer_config.json"))?;
        let sentence: SentenceConfig = read_json(&folder.join("sentence_bert_config.json"))?;
        let pooling = pooling_of_folder(folder)?;
        let said = own.model_max_length.filter(|length| (1.0..1e7).contains(length));
        let positions = hub.max_position_embeddings.map(|all| match &*hub.model_type {
            // Their positions begin behind the padding's.
            "roberta" | "xlm-roberta" | "camembert" => {
                all.saturating_sub(hub.pad_token_id.unwrap_or(1) + 1)
            }
            _ => all,
        });
        let said = said.map(|length| length as usize);
        let lengths = [config.max_tokens, sentence.max_seq_length, said, positions];
        let max_tokens = lengths.into_iter().flatten().min().unwrap_or(USUAL_LENGTH);
        let of_model = |reason: String| refused(folder, reason);
        let head = Head::of(model, config, pooling, &hub.architectures, &hub.id2label)
            .map_err(of_model)?;
        Self::new(tokenizer, model, head, max_tokens).map_err(of_model).map(Some)
    }

    /// That of a model of the zoo which takes tokens: its weights are numbers from a seed, so its vectors mean nothing.
    ///
    /// # Errors
    /// [`Error::Folder`] for a model that takes something else beside tokens.
    pub(crate) fn of_zoo(name: &str, config: &TextConfig, model: &Model) -> Result<Option<Self>> {
        if !model.inputs().iter().any(|port| role(port.name()) == Some(Role::Ids)) {
            return Ok(None);
        }
        let of_model = |reason: String| refused(Path::new(name), reason);
        let tokenizer = zoo::tokenizer().map_err(|error| of_model(error.to_string()))?;
        let head = Head::of(model, config, None, &[], &BTreeMap::new()).map_err(of_model)?;
        let max_tokens = config.max_tokens.unwrap_or(USUAL_LENGTH);
        Self::new(tokenizer, model, head, max_tokens).map_err(of_model).map(Some)
    }

    fn new(
        mut tokenizer: Tokenizer,
        model: &Model,
        head: Head,
        max_tokens: usize,
    ) -> std::result::Result<Self, String> {
        // Each text is a row by itself: rows are padded where they meet, and cut where a request says so.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        let feeds = model.inputs().iter().map(Feed::of).collect::<std::result::Result<_, _>>()?;
        let workers = Workers::new().map_err(|error| format!("no thread for text: {error}"))?;
        Ok(Self { tokenizer: Arc::new(tokenizer), workers, feeds, head, max_tokens })
    }

    /// Tokens of a text at most, special ones included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Threads that make tokens.
    pub fn workers(&self) -> usize {
        self.workers.count()
    }

    /// What text-embeddings-inference calls the type of the model: what it gives.
    pub(crate) fn kind_of_model(&self) -> serde_json::Value {
        match &self.head {
            Head::Tokens { pooling, .. } => {
                let pooling = match pooling {
                    crate::config::Pooling::Cls => "cls",
                    crate::config::Pooling::Mean => "mean",
                    crate::config::Pooling::Last => "last_token",
                };
                serde_json::json!({ "embedding": { "pooling": pooling } })
            }
            Head::Sentence { .. } => serde_json::json!({ "embedding": { "pooling": "model" } }),
            Head::Scores { labels, .. } => {
                let kind = if labels.len() > 1 { "classifier" } else { "reranker" };
                let labels = || labels.iter().enumerate();
                let by_id: BTreeMap<usize, &String> = labels().collect();
                let by_label: BTreeMap<&String, usize> = labels().map(|(id, x)| (x, id)).collect();
                serde_json::json!({ kind: { "id2label": by_id, "label2id": by_label } })
            }
        }
    }

    /// The tokens of texts, made on threads of their own.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a text that is too long or that the tokenizer refuses, with its place.
    pub(crate) async fn tokens(
        &self,
        sources: Vec<Source>,
        truncate: Truncate,
    ) -> Result<Vec<Tokens>> {
        let (tokenizer, most) = (Arc::clone(&self.tokenizer), self.max_tokens);
        let make = move |place: usize, source: &Source| {
            tokens::encode(&tokenizer, source, truncate, most)
                .map_err(|reason| Error::malformed(format!("input {place}: {reason}")))
        };
        self.workers.map(sources, make).await
    }

    /// The text of tokens.
    ///
    /// # Errors
    /// [`Error::Malformed`] for ids that the tokenizer does not have.
    pub(crate) async fn decode(
        &self,
        ids: Vec<Vec<u32>>,
        skip_special: bool,
    ) -> Result<Vec<String>> {
        let tokenizer = Arc::clone(&self.tokenizer);
        let make = move |place: usize, ids: &Vec<u32>| {
            let text = tokens::decode(&tokenizer, ids, skip_special);
            text.map_err(|reason| Error::malformed(format!("input {place}: {reason}")))
        };
        self.workers.map(ids, make).await
    }

    /// A row of the model's for a text.
    fn request(
        &self,
        tokens: &Tokens,
        deadline: Instant,
        protocol: Protocol,
    ) -> Result<InferRequest> {
        let failed =
            |error| Error::Server { what: format!("a text's tokens are no tensor: {error}") };
        let tensor = |feed: &Feed| {
            let number = |place: usize| match feed.role {
                Role::Ids => i64::from(tokens.ids[place]),
                Role::Mask => 1,
                Role::Types => i64::from(tokens.types[place]),
                Role::Positions => place as i64,
            };
            let shape = vec![1, tokens.ids.len()];
            let numbers = (0..tokens.ids.len()).map(number);
            let tensor = match feed.dtype {
                DType::I32 => Tensor::from_vec(shape, numbers.map(|x| x as i32).collect()),
                _ => Tensor::from_vec(shape, numbers.collect()),
            };
            Ok((feed.name.clone(), tensor.map_err(failed)?))
        };
        Ok(InferRequest {
            inputs: self.feeds.iter().map(tensor).collect::<Result<_>>()?,
            outputs: vec![self.head.output().to_owned()],
            deadline: Some(deadline),
            protocol,
            ..InferRequest::default()
        })
    }
}

/// What a model gives for texts, one row each, in their order: `make` makes something of a row's output. Rows of near
/// lengths come one after the other, so that they run together.
///
/// # Errors
/// Those of [`Version::infer`], with the text's place; those of `make`.
pub(crate) async fn run<T: Send>(
    version: &Arc<Version>,
    texts: &[Tokens],
    protocol: Protocol,
    make: impl Fn(&Head, &Tensor) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let text = version.text()?;
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&place| texts[place].ids.len());
    let several = texts.len() > 1;
    // Rows that come later do not have longer, and those of one request alone are never too many for the queue.
    let deadline = Instant::now() + version.limits().deadline();
    let ahead = ROWS_AHEAD.min(version.limits().queue.max(1));
    let make = &make;
    let rows = order.into_iter().map(|place| async move {
        let request = text.request(&texts[place], deadline, protocol)?;
        let response = match several {
            true => version.infer_among_others(request).await,
            false => version.infer(request).await,
        };
        let response = response.map_err(|error| at_place(error, place, several))?;
        let InferResponse { outputs, .. } = response;
        let output = outputs.first().map(|(_, tensor)| tensor);
        let output =
            output.ok_or_else(|| Error::Server { what: "an output is missing".to_owned() })?;
        Ok((place, make(&text.head, output)?))
    });
    let mut made: Vec<(usize, T)> =
        stream::iter(rows).buffer_unordered(ahead).try_collect().await?;
    made.sort_by_key(|(place, _)| *place);
    Ok(made.into_iter().map(|(_, made)| made).collect())
}

/// The error of one text of several, if the text is at fault.
fn at_place(error: Error, place: usize, several: bool) -> Error {
    match error.class().http {
        400 if several => Error::malformed(format!("input {place}: {error}")),
        _ => error,
    }
}

impl Feed {
    fn of(port: &Port) -> std::result::Result<Self, String> {
        let (name, dtype) = (port.name().to_owned(), port.dtype());
        let role = role(&name).ok_or_else(|| {
            format!(
                "tokenizer.json is for models of text, and input {port} takes neither ids, nor a mask, types or positions"
            )
        })?;
        match (dtype, port.dims().len()) {
            (DType::I32 | DType::I64, 2) => Ok(Self { name, dtype, role }),
            _ => Err(format!("input {port} has to be i64 or i32 of two dims, rows and tokens")),
        }
    }
}

/// What an input of this name takes.
fn role(name: &str) -> Option<Role> {
    match name {
        _ if name.contains("attention_mask") || name.contains("input_mask") => Some(Role::Mask),
        _ if name.contains("token_type") || name.contains("segment_ids") => Some(Role::Types),
        _ if name.contains("position_ids") => Some(Role::Positions),
        _ if name.contains("input_ids") => Some(Role::Ids),
        _ => None,
    }
}

/// The values of a JSON file; the defaults where there is none.
fn read_json<T: for<'a> Deserialize<'a> + Default>(path: &Path) -> Result<T> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| refused(path, error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(refused(path, error)),
    }
}

fn refused(path: &Path, reason: impl ToString) -> Error {
    Error::Folder { path: path.display().to_string(), reason: reason.to_string() }
}
