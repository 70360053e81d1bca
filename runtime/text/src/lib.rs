//! Text for models: tokens there, numbers with a meaning back.
//!
//! In reading order: [`Files`] is what the files beside a model say, [`Tokenizer`] makes [`Tokens`] of a [`Source`], a [`Feed`]
//! makes an input of them, and a [`Head`] says what an output is and reads its [`Row`]s. `zoo` is a tokenizer for models that
//! come without one. Nothing here runs a model, or knows of devices and requests.

mod error;
mod feed;
mod files;
mod head;
mod row;
mod tokenizer;
mod tokens;
mod zoo;

pub use error::{Error, Result};
pub use feed::{Feed, Port, Role};
pub use files::{Files, Pooling, Problem};
pub use head::{Head, Wanted};
pub use row::{Row, normalise, rows, sigmoid, softmax};
pub use tokenizer::Tokenizer;
pub use tokens::{Part, Side, Source, Tokens, Truncate};
