//! OpenAI's API: embeddings, and the list of models.

use super::body;
use super::error::{Dialect, json};
use super::json::parse;
use crate::error::{Error, Result};
use crate::metrics::Protocol;
use crate::server::Server;
use crate::text::{not_text, run};
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use graphene_text::{Source, Truncate, normalise};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The routes.
pub(super) fn routes() -> Router<Server> {
    Router::new()
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        .route("/v1/models/{model}", get(model))
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
        Dialect::OpenAi.respond(&self.0)
    }
}

#[derive(Deserialize)]
struct EmbeddingsRequest {
    model: Option<String>,
    input: Input,
    encoding_format: Option<Format>,
    dimensions: Option<usize>,
}

/// One text or several, as text or as tokens.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "the input has to be a text, a list of texts, a list of token ids or a list of such lists"
)]
pub(super) enum Input {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    IdLists(Vec<Vec<u32>>),
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Float,
    Base64,
}

#[derive(Serialize)]
struct Embeddings<'a> {
    object: &'static str,
    data: Vec<Embedding>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    /// Little-endian fp32.
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Input {
    /// The texts, of which there may be `most`.
    ///
    /// # Errors
    /// [`Error::Malformed`] for none, and for an empty one; [`Error::Limit`] for too many.
    pub(super) fn sources(self, most: usize) -> Result<Vec<Source>> {
        let all: Vec<Source> = match self {
            Self::Text(text) => vec![Source::Text(text)],
            Self::Texts(texts) => texts.into_iter().map(Source::Text).collect(),
            Self::Ids(ids) => vec![Source::Ids(ids)],
            Self::IdLists(lists) => lists.into_iter().map(Source::Ids).collect(),
        };
        check_count(all.len(), most)?;
        let is_empty = |source: &Source| match source {
            Source::Text(text) => text.is_empty(),
            Source::Ids(ids) => ids.is_empty(),
            Source::Pair(..) => false,
        };
        match all.iter().position(is_empty) {
            Some(place) => Err(Error::malformed(format!("input {place} is empty"))),
            None => Ok(all),
        }
    }
}

/// Checks the number of a request's texts.
///
/// # Errors
/// [`Error::Malformed`] for none; [`Error::Limit`] for too many.
pub(super) fn check_count(count: usize, most: usize) -> Result<()> {
    if count == 0 {
        return Err(Error::malformed("there is no input: one text at least is needed"));
    }
    if count > most {
        let what = "the number of texts".to_owned();
        let (found, limit) = (count as u64, most as u64);
        return Err(Error::Limit { what, found, limit, setting: "rows" });
    }
    Ok(())
}

async fn embeddings(
    State(server): State<Server>,
    request: Request,
) -> std::result::Result<Response, Refused> {
    let (head, body) = request.into_parts();
    let body = body::read(server.limits(), &head.headers, body, 0).await?;
    let EmbeddingsRequest { model, input, encoding_format, dimensions } = parse("the body", &body)?;
    let version = server.find_text(model.as_deref())?;
    let sources = input.sources(server.limits().rows)?;
    let tokens = version.text()?.tokens(sources, Truncate::No).await?;
    let name = version.name();
    let vectors = run(&version, &tokens, Protocol::OpenAi, |head, row| {
        let mut vector = head.embedding(row).map_err(|error| not_text(name, &error))?;
        if let Some(width) = dimensions {
            if width == 0 || width > vector.len() {
                let most = vector.len();
                return Err(Error::malformed(format!(
                    "dimensions is {width}; it may be 1 to {most}"
                )));
            }
            vector.truncate(width);
        }
        normalise(&mut vector);
        Ok(vector)
    })
    .await?;
    let embedding = |(index, vector): (usize, Vec<f32>)| {
        let embedding = match encoding_format.unwrap_or_default() {
            Format::Float => Vector::Float(vector),
            Format::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Vector::Base64(STANDARD.encode(bytes))
            }
        };
        Embedding { object: "embedding", index, embedding }
    };
    let count = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    let answer = Embeddings {
        object: "list",
        data: vectors.into_iter().enumerate().map(embedding).collect(),
        model: name,
        usage: Usage { prompt_tokens: count, total_tokens: count },
    };
    Ok(json(StatusCode::OK, &answer))
}

async fn models(State(server): State<Server>) -> Response {
    let all: Vec<_> = server.loaded().iter().map(|version| describe(version.name())).collect();
    json(StatusCode::OK, &json!({ "object": "list", "data": all }))
}

async fn model(
    State(server): State<Server>,
    Path(name): Path<String>,
) -> std::result::Result<Response, Refused> {
    let version = server.find(&name, None)?;
    Ok(json(StatusCode::OK, &describe(version.name())))
}

fn describe(name: &str) -> serde_json::Value {
    json!({ "id": name, "object": "model", "created": 0, "owned_by": "graphene-serve" })
}
