//! Text for models: tokens there, vectors back.

use crate::config::TextConfig;
use crate::error::Result;
use graphene_runtime::Model;
use std::path::Path;

/// The tokenizer of a model, and what the model's outputs are for text.
pub struct Text {}

impl Text {
    /// What lies in a model's folder, if there is a `tokenizer.json`.
    pub(crate) fn read(
        _folder: &Path,
        _config: &TextConfig,
        _model: &Model,
    ) -> Result<Option<Self>> {
        Ok(None)
    }
}
