//! What can go wrong when a zoo model is asked for, generated or written.

use std::path::PathBuf;

use thiserror::Error;

/// The crate's error.
#[derive(Debug, Error)]
pub enum ZooError {
    /// No zoo model has this name. `near` lists names that resemble it, nearest first.
    #[error("no zoo model is called `{name}`{}", suggestion(.near))]
    UnknownName {
        /// The name as given.
        name: String,
        /// Names of the zoo that resemble it, nearest first, at most five.
        near: Vec<String>,
    },
    /// An option's value is out of its range, or the option has no meaning for this model.
    #[error("`{model}` cannot be built with `{option}` = {value}: {reason}")]
    Option {
        /// The model's name.
        model: String,
        /// The option's field name.
        option: &'static str,
        /// The value as given.
        value: String,
        /// What would have been accepted.
        reason: String,
    },
    /// The weights of the model would exceed what one file can hold.
    #[error("`{model}` would need more than {limit} bytes of weights")]
    TooLarge {
        /// The model's name.
        model: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// The path to write to names no file.
    #[error("{} is not a file name", .0.display())]
    NotAFile(PathBuf),
    /// Writing a file failed; nothing was left at its final name.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

fn suggestion(near: &[String]) -> String {
    if near.is_empty() {
        "; `graphene-run --list-zoo` lists them".to_owned()
    } else {
        format!("; near it are: {}", near.join(", "))
    }
}
