//! Why text cannot be given to a model, or its outputs not be read.

use std::path::{Path, PathBuf};

/// The result of what can fail here.
pub type Result<T> = std::result::Result<T, Error>;

/// An error about a model's files, its inputs and outputs, or a text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// A file beside the model cannot be read, or is not what its name says.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An input takes nothing that text has.
    #[error(
        "tokenizer.json is for models of text, and input {port} takes neither ids, nor a mask, types or positions"
    )]
    Input {
        /// The input with its type.
        port: String,
    },
    /// An input has another type than tokens have.
    #[error("input {port} has to be i64 or i32 of two dims, rows and tokens")]
    InputType {
        /// The input with its type.
        port: String,
    },
    /// The output that is asked for is not there.
    #[error("the model has no output {name:?}")]
    UnknownOutput {
        /// Its name.
        name: String,
    },
    /// No output is one of text.
    #[error("no output has a vector for each text or token")]
    NoOutput,
    /// An output has elements that are no scores and no vectors.
    #[error("output {port} has to be of fp32, fp16 or bf16")]
    OutputType {
        /// The output with its type.
        port: String,
    },
    /// An output has too few or too many dims.
    #[error("output {port} has to have two dims or three")]
    OutputRank {
        /// The output with its type.
        port: String,
    },
    /// A label for a score that the output does not have.
    #[error("config.json has a label {label}, and output {port} has {scores} scores")]
    Labels {
        /// The label's number.
        label: usize,
        /// The output with its type.
        port: String,
        /// How many scores it has.
        scores: usize,
    },
    /// An output that does not have a row for each text.
    #[error("the output has the shape {shape:?}, which is not a row for each of {texts} texts")]
    Rows {
        /// Its shape.
        shape: Vec<usize>,
        /// How many texts there are.
        texts: usize,
    },
    /// Embeddings are asked of scores of labels.
    #[error("it gives scores of labels, no embeddings")]
    OfLabels,
    /// Embeddings are asked of scores for each token.
    #[error("it gives scores for each token, no embeddings")]
    OfTokens,
    /// Vectors of tokens are asked of another output.
    #[error("it has no vectors of tokens")]
    NoTokenVectors,
    /// Scores of texts are asked of another output.
    #[error(
        "it gives no scores of texts: its output is not named logits, and its config.json names no ForSequenceClassification architecture"
    )]
    NoScores,
    /// A text of too many tokens.
    #[error("it has {length} tokens, and the model takes {most}")]
    TooLong {
        /// How many it has.
        length: usize,
        /// How many the model takes.
        most: usize,
    },
    /// A text of no tokens.
    #[error("it has no tokens")]
    NoTokens,
    /// An id of no token.
    #[error("{id} is no token of the vocabulary, which has {size}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Tokens that there are.
        size: usize,
    },
    /// The tokenizer refuses a text.
    #[error("{0}")]
    Tokenizer(String),
    /// Tokens that make no tensor: more than can be addressed.
    #[error("tokens of {rows} texts of {length} make no tensor")]
    TooLarge {
        /// Texts.
        rows: usize,
        /// Tokens of each.
        length: usize,
    },
}

impl Error {
    /// An error of a file.
    pub(crate) fn file(path: &Path, reason: impl ToString) -> Self {
        Self::File { path: path.to_owned(), reason: reason.to_string() }
    }

    /// What the tokenizer says.
    pub(crate) fn tokenizer(error: impl ToString) -> Self {
        Self::Tokenizer(error.to_string())
    }
}
