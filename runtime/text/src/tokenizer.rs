//! A model's tokenizer, with the tokens that stand for no word.

use crate::error::{Error, Result};
use crate::files::Files;
use crate::tokens::{self, Source, Tokens, Truncate};
use crate::zoo;
use std::path::Path;

/// The file of a tokenizer.
const FILE: &str = "tokenizer.json";

/// What rows are padded with, and what stands for a word to be guessed, where no file says it.
const PAD: [&str; 2] = ["[PAD]", "<pad>"];
const MASK: [&str; 2] = ["[MASK]", "<mask>"];

/// A tokenizer. Texts are rows by themselves: they are padded where they meet, and cut where somebody asks for it.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pad: u32,
    mask: Option<u32>,
}

impl Tokenizer {
    /// The tokenizer of a folder, if it has a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::File`] for one that cannot be read.
    pub fn read(folder: &Path, files: &Files) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        if !path.is_file() {
            return Ok(None);
        }
        let read = tokenizers::Tokenizer::from_file(&path);
        let inner = read.map_err(|error| Error::file(&path, error))?;
        Self::new(inner, files).map(Some)
    }

    /// The tokenizer of the zoo's models, whose vocabularies all have its ids.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn of_zoo() -> Result<Self> {
        Self::new(zoo::tokenizer().map_err(Error::tokenizer)?, &Files::default())
    }

    fn new(mut inner: tokenizers::Tokenizer, files: &Files) -> Result<Self> {
        let known = |names: &[&str]| names.iter().find_map(|name| inner.token_to_id(name));
        let named = |name: &Option<String>| name.as_ref().and_then(|name| inner.token_to_id(name));
        let own = inner.get_padding().map(|padding| padding.pad_id);
        let pad = named(&files.pad_token).or(own).or(files.pad_id).or_else(|| known(&PAD));
        let (pad, mask) = (pad.unwrap_or(0), named(&files.mask_token).or_else(|| known(&MASK)));
        inner.with_padding(None);
        inner.with_truncation(None).map_err(Error::tokenizer)?;
        Ok(Self { inner, pad, mask })
    }

    /// The tokens of a source, of which there may be `most`.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::NoTokens`], [`Error::UnknownToken`], [`Error::Tokenizer`].
    pub fn encode(&self, source: &Source, truncate: Truncate, most: usize) -> Result<Tokens> {
        tokens::encode(&self.inner, source, truncate, most)
    }

    /// The text of tokens.
    ///
    /// # Errors
    /// [`Error::UnknownToken`] and [`Error::NoTokens`] for ids that make none.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        tokens::decode(&self.inner, ids, skip_special)
    }

    /// The token of an id, as the vocabulary has it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id that rows are padded with.
    pub fn pad_id(&self) -> u32 {
        self.pad
    }

    /// The id of the token that stands for a word to be guessed, if there is one.
    pub fn mask_id(&self) -> Option<u32> {
        self.mask
    }

    /// Whether a token stands for no text, as `[CLS]`.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.inner.get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }
}
