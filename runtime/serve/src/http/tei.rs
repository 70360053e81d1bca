//! The endpoints of text-embeddings-inference. They are for the model of text that is served; where there are several, a
//! field `model` names one.

use super::body;
use super::error::{Dialect, json};
use super::json::parse;
use super::openai::{Input, check_count};
use crate::error::{Error, Result};
use crate::metrics::Protocol;
use crate::server::Server;
use crate::text::{not_text, run};
use crate::version::Version;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use graphene_text::{Part, Side, Source, Tokens, Truncate, normalise, sigmoid, softmax};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

/// The routes.
pub(super) fn routes() -> Router<Server> {
    Router::new()
        .route("/embed", post(embed))
        .route("/embed_all", post(embed_all))
        .route("/rerank", post(rerank))
        .route("/predict", post(predict))
        .route("/tokenize", post(tokenize))
        .route("/decode", post(decode))
        .route("/info", get(info))
        .route("/health", get(health))
}

/// An error as this protocol writes it.
struct Refused(Error);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        Dialect::Tei.respond(&self.0)
    }
}

type Answer = std::result::Result<Response, Refused>;

/// What all of its requests may say.
#[derive(Deserialize)]
struct Common {
    model: Option<String>,
    truncate: Option<bool>,
    #[serde(default)]
    truncation_direction: Side,
}

impl Common {
    fn truncate(&self) -> Truncate {
        match self.truncate {
            Some(true) => Truncate::At(self.truncation_direction),
            Some(false) | None => Truncate::No,
        }
    }
}

#[derive(Deserialize)]
struct EmbedRequest {
    #[serde(flatten)]
    common: Common,
    inputs: Input,
    #[serde(default = "yes")]
    normalize: bool,
}

fn yes() -> bool {
    true
}

/// A request's value.
async fn read<T: for<'a> Deserialize<'a>>(server: &Server, request: Request) -> Result<T> {
    let (head, body) = request.into_parts();
    let body = body::read(server.limits(), &head.headers, body, 0).await?;
    parse("the body", &body)
}

async fn embed(State(server): State<Server>, request: Request) -> Answer {
    let asked: EmbedRequest = read(&server, request).await?;
    let version = server.find_text(asked.common.model.as_deref())?;
    let sources = asked.inputs.sources(server.limits().rows)?;
    let tokens = version.text()?.tokens(sources, asked.common.truncate()).await?;
    let vectors = run(&version, &tokens, Protocol::Tei, |head, row| {
        let vector = head.embedding(row).map_err(|error| not_text(version.name(), &error));
        let mut vector = vector?;
        if asked.normalize {
            normalise(&mut vector);
        }
        Ok(vector)
    });
    Ok(json(StatusCode::OK, &vectors.await?))
}

async fn embed_all(State(server): State<Server>, request: Request) -> Answer {
    let asked: EmbedRequest = read(&server, request).await?;
    let version = server.find_text(asked.common.model.as_deref())?;
    let sources = asked.inputs.sources(server.limits().rows)?;
    let tokens = version.text()?.tokens(sources, asked.common.truncate()).await?;
    let name = version.name();
    let vectors = run(&version, &tokens, Protocol::Tei, |head, row| {
        head.token_embeddings(row).map_err(|error| not_text(name, &error))
    });
    Ok(json(StatusCode::OK, &vectors.await?))
}

#[derive(Deserialize)]
struct RerankRequest {
    #[serde(flatten)]
    common: Common,
    query: String,
    texts: Vec<String>,
    #[serde(default)]
    raw_scores: bool,
    #[serde(default)]
    return_text: bool,
}

/// A text of a ranking.
#[derive(Serialize)]
struct Rank {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

async fn rerank(State(server): State<Server>, request: Request) -> Answer {
    let asked: RerankRequest = read(&server, request).await?;
    let version = server.find_text(asked.common.model.as_deref())?;
    check_count(asked.texts.len(), server.limits().rows)?;
    let pair = |text: &String| Source::Pair(asked.query.clone(), text.clone());
    let sources = asked.texts.iter().map(pair).collect();
    let tokens = version.text()?.tokens(sources, asked.common.truncate()).await?;
    let name = version.name();
    let scores = run(&version, &tokens, Protocol::Tei, |head, row| {
        let scores = head.scores(row).map_err(|error| not_text(name, &error))?;
        let [(_, score)] = &*scores else {
            let reason = format!("it has {} labels; ranking needs a model of one", scores.len());
            return Err(Error::NotText { name: name.to_owned(), reason });
        };
        Ok(if asked.raw_scores { *score } else { sigmoid(*score) })
    });
    let mut texts = asked.texts.into_iter();
    let rank = |(index, score): (usize, f32)| {
        let text = texts.next().filter(|_| asked.return_text);
        Rank { index, score, text }
    };
    let mut ranks: Vec<Rank> = scores.await?.into_iter().enumerate().map(rank).collect();
    ranks.sort_by(|a, b| b.score.total_cmp(&a.score));
    Ok(json(StatusCode::OK, &ranks))
}

#[derive(Deserialize)]
struct PredictRequest {
    #[serde(flatten)]
    common: Common,
    inputs: PredictInput,
    #[serde(default)]
    raw_scores: bool,
}

/// A text, a pair of texts that are read beside each other, or a list of pairs and of lists of one text.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "inputs has to be a text, a list of one text or two, or a list of such lists"
)]
enum PredictInput {
    Text(String),
    Pair(Vec<String>),
    Lists(Vec<Vec<String>>),
}

async fn predict(State(server): State<Server>, request: Request) -> Answer {
    let asked: PredictRequest = read(&server, request).await?;
    let version = server.find_text(asked.common.model.as_deref())?;
    let one = !matches!(asked.inputs, PredictInput::Lists(_));
    let sources: Vec<Source> = match asked.inputs {
        PredictInput::Text(text) => vec![Source::Text(text)],
        PredictInput::Pair(list) => vec![texts((0, list))?],
        PredictInput::Lists(lists) => {
            lists.into_iter().enumerate().map(texts).collect::<Result<_>>()?
        }
    };
    check_count(sources.len(), server.limits().rows)?;
    let tokens = version.text()?.tokens(sources, asked.common.truncate()).await?;
    let name = version.name();
    let scores = run(&version, &tokens, Protocol::Tei, |head, row| {
        let mut scores = head.scores(row).map_err(|error| not_text(name, &error))?;
        if !asked.raw_scores {
            as_probabilities(&mut scores);
        }
        scores.sort_by(|a, b| b.1.total_cmp(&a.1));
        let label = |(label, score): (String, f32)| json!({ "label": label, "score": score });
        Ok(Value::Array(scores.into_iter().map(label).collect()))
    });
    let mut scores = scores.await?;
    match scores.pop() {
        Some(only) if one => Ok(json(StatusCode::OK, &only)),
        last => {
            scores.extend(last);
            Ok(json(StatusCode::OK, &scores))
        }
    }
}

/// One text, or two of a pair.
fn texts((place, list): (usize, Vec<String>)) -> Result<Source> {
    let count = list.len();
    let mut list = list.into_iter();
    match (list.next(), list.next(), list.next()) {
        (Some(text), None, None) => Ok(Source::Text(text)),
        (Some(first), Some(second), None) => Ok(Source::Pair(first, second)),
        _ => Err(Error::malformed(format!("input {place} has {count} texts; it needs one or two"))),
    }
}

/// The softmax of scores; of a single one its sigmoid.
fn as_probabilities(scores: &mut [(String, f32)]) {
    if let [(_, score)] = scores {
        *score = sigmoid(*score);
        return;
    }
    let mut all: Vec<f32> = scores.iter().map(|score| score.1).collect();
    softmax(&mut all);
    scores.iter_mut().zip(all).for_each(|(score, probability)| score.1 = probability);
}

#[derive(Deserialize)]
struct TokenizeRequest {
    model: Option<String>,
    inputs: Input,
    #[serde(default = "yes")]
    add_special_tokens: bool,
}

async fn tokenize(State(server): State<Server>, request: Request) -> Answer {
    let asked: TokenizeRequest = read(&server, request).await?;
    let version = server.find_text(asked.model.as_deref())?;
    let sources = asked.inputs.sources(server.limits().rows)?;
    let all = version.text()?.tokens(sources, Truncate::Whole).await?;
    let of_text = |tokens: &Tokens| -> Vec<Value> {
        let parts = tokens.ids.iter().zip(&tokens.parts);
        let kept = parts.filter(|(_, part)| asked.add_special_tokens || !part.special);
        let value = |(id, part): (&u32, &Part)| {
            let (start, stop) = part.offsets;
            let place = |at: usize| if part.special { Value::Null } else { at.into() };
            json!({
                "id": id, "text": part.text, "special": part.special,
                "start": place(start), "stop": place(stop)
            })
        };
        kept.map(value).collect()
    };
    let all: Vec<Vec<Value>> = all.iter().map(of_text).collect();
    Ok(json(StatusCode::OK, &all))
}

#[derive(Deserialize)]
struct DecodeRequest {
    model: Option<String>,
    ids: Ids,
    #[serde(default = "yes")]
    skip_special_tokens: bool,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "ids has to be a list of token ids, or a list of such lists")]
enum Ids {
    One(Vec<u32>),
    Several(Vec<Vec<u32>>),
}

async fn decode(State(server): State<Server>, request: Request) -> Answer {
    let asked: DecodeRequest = read(&server, request).await?;
    let version = server.find_text(asked.model.as_deref())?;
    let ids = match asked.ids {
        Ids::One(ids) => vec![ids],
        Ids::Several(lists) => lists,
    };
    check_count(ids.len(), server.limits().rows)?;
    let texts = version.text()?.decode(ids, asked.skip_special_tokens).await?;
    Ok(json(StatusCode::OK, &texts))
}

async fn info(State(server): State<Server>) -> Answer {
    let version: Arc<Version> = server.find_text(None)?;
    let (text, limits, batch) = (version.text()?, server.limits(), &version.config().batch);
    let value = json!({
        "model_id": version.name(),
        "model_sha": null,
        "model_dtype": version.config().dtype,
        "model_type": text.kind_of_model(),
        "max_concurrent_requests": limits.queue,
        "max_input_length": text.max_tokens(),
        "max_batch_tokens": batch.tokens,
        "max_batch_requests": batch.rows,
        "max_client_batch_size": limits.rows,
        "auto_truncate": false,
        "tokenization_workers": text.workers(),
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null
    });
    Ok(json(StatusCode::OK, &value))
}

async fn health(State(server): State<Server>) -> StatusCode {
    if server.ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
