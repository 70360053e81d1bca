//! Text for models: tokens there, vectors back.
//!
//! A [`Text`] is what [`graphene_text`] reads of a model's folder. `workers` make tokens of texts; `pool` makes a model of
//! texts' vectors of one of tokens' vectors.

mod pool;
mod workers;

pub(crate) use pool::pooled;

use crate::config::TextConfig;
use crate::error::{Error, Result};
use crate::infer::{InferRequest, InferResponse};
use crate::metrics::Protocol;
use crate::version::Version;
use futures_util::{StreamExt, TryStreamExt, stream};
use graphene_frontend::types::TensorType;
use graphene_runtime::Model;
use graphene_text::{
    Feed, Files, Head, Pooling, Port, Role, Row, Source, Tokenizer, Tokens, Truncate, Wanted,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
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

impl Text {
    /// What lies in a model's folder, if there is a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Folder`] for files that cannot be read or contradict the model.
    pub(crate) fn read(folder: &Path, config: &TextConfig, model: &Model) -> Result<Option<Self>> {
        let files = Files::read(folder).map_err(of_file)?;
        match Tokenizer::read(folder, &files).map_err(of_file)? {
            Some(tokenizer) => Self::new(tokenizer, &files, config, model, folder).map(Some),
            None => Ok(None),
        }
    }

    /// That of a model of the zoo which takes tokens: its weights are numbers from a seed, so its vectors mean nothing.
    ///
    /// # Errors
    /// [`Error::Folder`] for a model that takes something else beside tokens.
    pub(crate) fn of_zoo(name: &str, config: &TextConfig, model: &Model) -> Result<Option<Self>> {
        if !model.inputs().iter().any(|port| Role::of(port.name()) == Some(Role::Ids)) {
            return Ok(None);
        }
        let tokenizer = Tokenizer::of_zoo().map_err(|error| refused(name, error))?;
        Self::new(tokenizer, &Files::default(), config, model, Path::new(name)).map(Some)
    }

    fn new(
        tokenizer: Tokenizer,
        files: &Files,
        config: &TextConfig,
        model: &Model,
        folder: &Path,
    ) -> Result<Self> {
        // A pooled model has one output, made of the one that is named.
        let output = config.output.clone().filter(|_| !config.pooled);
        let wanted = Wanted { output, pooling: config.pooling };
        let folder = folder.display().to_string();
        let head = Head::of(&ports(model.outputs()), &wanted, files).map_err(|error| {
            let by = match error {
                graphene_text::Error::UnknownOutput { .. } => ", which serve.toml names",
                _ => "",
            };
            refused(&folder, format!("{error}{by}"))
        })?;
        let feed = |port: &Port| Feed::of(port).map_err(|error| refused(&folder, error));
        let feeds = ports(model.inputs()).iter().map(feed).collect::<Result<_>>()?;
        let workers = Workers::new();
        let workers =
            workers.map_err(|error| refused(&folder, format!("no thread for text: {error}")))?;
        let lengths = [config.max_tokens, files.max_tokens];
        let max_tokens = lengths.into_iter().flatten().min().unwrap_or(USUAL_LENGTH);
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
                    Pooling::Cls => "cls",
                    Pooling::Mean => "mean",
                    Pooling::Last => "last_token",
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
            // Its protocol has no name for these, and no endpoint.
            Head::Labels { .. } => serde_json::json!({ "token_classifier": {} }),
            Head::Words { .. } => serde_json::json!({ "language_model": {} }),
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
            let tokens = tokenizer.encode(source, truncate, most);
            tokens.map_err(|error| {
                let help = match error {
                    graphene_text::Error::TooLong { .. } => ": shorten it, or ask for `truncate`",
                    _ => "",
                };
                Error::malformed(format!("input {place}: {error}{help}"))
            })
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
            let text = tokenizer.decode(ids, skip_special);
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
        let (texts, length) = (std::slice::from_ref(tokens), tokens.ids.len());
        let tensor = |feed: &Feed| {
            let tensor = feed.tensor(texts, length, self.tokenizer.pad_id());
            Ok((feed.name().to_owned(), tensor.map_err(failed)?))
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
    make: impl Fn(&Head, &Row) -> Result<T> + Sync,
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
        Ok((place, make(&text.head, &Row::of(output))?))
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

/// Inputs or outputs of a model.
fn ports(of: &[graphene_runtime::Port]) -> Vec<Port> {
    let port = |port: &graphene_runtime::Port| Port {
        name: port.name().to_owned(),
        ty: TensorType::new(port.dtype(), port.dims().to_vec()),
    };
    of.iter().map(port).collect()
}

/// The pooling that a folder of sentence-transformers says, if it is one.
///
/// # Errors
/// [`Error::Folder`] for one that this server does not have.
pub(crate) fn pooling_of_folder(folder: &Path) -> Result<Option<Pooling>> {
    Ok(Files::read(folder).map_err(of_file)?.pooling)
}

/// What a model's outputs are not, of a model of this name.
pub(crate) fn not_text(name: &str, error: &graphene_text::Error) -> Error {
    let help = match error {
        graphene_text::Error::OfLabels => ": ask /rerank or /predict",
        _ => "",
    };
    Error::NotText { name: name.to_owned(), reason: format!("{error}{help}") }
}

/// An error about a file, which names it.
fn of_file(error: graphene_text::Error) -> Error {
    match error {
        graphene_text::Error::File { path, reason } => refused(path.display(), reason),
        error => Error::Server { what: error.to_string() },
    }
}

fn refused(path: impl ToString, reason: impl ToString) -> Error {
    Error::Folder { path: path.to_string(), reason: reason.to_string() }
}
