//! Tokens of text.

use crate::error::{Error, Result};
use tokenizers::{Encoding, PostProcessor, Tokenizer, TruncationDirection};

/// What tokens are made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A text.
    Text(String),
    /// Two texts, which the model reads beside each other.
    Pair(String, String),
    /// Tokens that a client made, special ones included.
    Ids(Vec<u32>),
}

/// What is done with a text of more tokens than the model takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Truncate {
    /// It is refused.
    No,
    /// It stays whole: no model sees it.
    Whole,
    /// It is cut off at one side.
    At(Side),
}

/// The side where a text is cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize)]
pub enum Side {
    /// Its beginning goes.
    #[serde(alias = "left")]
    Left,
    /// Its end goes.
    #[default]
    #[serde(alias = "right")]
    Right,
}

/// A text's tokens, special ones included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tokens {
    /// Their ids.
    pub ids: Vec<u32>,
    /// 1 for those of the second text of a pair.
    pub types: Vec<u32>,
    /// What each is, as `/tokenize` tells it; of [`Truncate::Whole`] alone.
    pub parts: Vec<Part>,
}

/// A token as its text: a special one's own, else what it stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its text.
    pub text: String,
    /// Whether the tokenizer put it there.
    pub special: bool,
    /// Where it is in the text, in bytes.
    pub offsets: (usize, usize),
}

impl Tokens {
    /// Those that a client made.
    fn given(ids: Vec<u32>) -> Self {
        Self { types: vec![0; ids.len()], ids, parts: Vec::new() }
    }

    fn of(encoding: &Encoding) -> Self {
        let (ids, types) = (encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec());
        Self { ids, types, parts: Vec::new() }
    }

    /// The same with what each is in `text`.
    fn told(encoding: &Encoding, text: &str) -> Self {
        let part = |place: usize| {
            let special = encoding.get_special_tokens_mask()[place] == 1;
            let offsets = encoding.get_offsets()[place];
            let written = text.get(offsets.0..offsets.1).filter(|_| !special);
            let text = written.unwrap_or(&encoding.get_tokens()[place]).to_owned();
            Part { text, special, offsets }
        };
        Self { parts: (0..encoding.len()).map(part).collect(), ..Self::of(encoding) }
    }
}

/// The tokens of a source, of which there may be `most`.
pub(crate) fn encode(
    tokenizer: &Tokenizer,
    source: &Source,
    truncate: Truncate,
    most: usize,
) -> Result<Tokens> {
    let encode = |text: &str| tokenizer.encode(text, false).map_err(Error::tokenizer);
    let (mut first, mut second) = match source {
        Source::Text(text) => (encode(text)?, None),
        Source::Pair(first, second) => (encode(first)?, Some(encode(second)?)),
        Source::Ids(ids) => return given(tokenizer, ids, truncate, most),
    };
    let special =
        tokenizer.get_post_processor().map_or(0, |post| post.added_tokens(second.is_some()));
    let length = first.len() + second.as_ref().map_or(0, Encoding::len) + special;
    match truncate {
        Truncate::No if length > most => return Err(Error::TooLong { length, most }),
        Truncate::At(side) if length > most => {
            cut(&mut first, second.as_mut(), most.saturating_sub(special), side);
        }
        Truncate::No | Truncate::Whole | Truncate::At(_) => {}
    }
    let whole = tokenizer.post_process(first, second, true).map_err(Error::tokenizer)?;
    if whole.is_empty() {
        return Err(Error::NoTokens);
    }
    match (source, truncate) {
        (Source::Text(text), Truncate::Whole) => Ok(Tokens::told(&whole, text)),
        _ => Ok(Tokens::of(&whole)),
    }
}

/// Tokens that a client made, if the tokenizer has them.
fn given(tokenizer: &Tokenizer, ids: &[u32], truncate: Truncate, most: usize) -> Result<Tokens> {
    check(tokenizer, ids)?;
    let kept = match truncate {
        _ if ids.is_empty() => return Err(Error::NoTokens),
        Truncate::No if ids.len() > most => {
            return Err(Error::TooLong { length: ids.len(), most });
        }
        Truncate::At(Side::Left) => &ids[ids.len().saturating_sub(most)..],
        Truncate::Whole => ids,
        Truncate::No | Truncate::At(Side::Right) => &ids[..ids.len().min(most)],
    };
    Ok(Tokens::given(kept.to_vec()))
}

/// The text of tokens, if the tokenizer has them.
pub(crate) fn decode(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Result<String> {
    if ids.is_empty() {
        return Err(Error::NoTokens);
    }
    check(tokenizer, ids)?;
    tokenizer.decode(ids, skip_special).map_err(Error::tokenizer)
}

fn check(tokenizer: &Tokenizer, ids: &[u32]) -> Result<()> {
    match ids.iter().find(|id| tokenizer.id_to_token(**id).is_none()) {
        Some(&id) => Err(Error::UnknownToken { id, size: tokenizer.get_vocab_size(true) }),
        None => Ok(()),
    }
}

/// Leaves `most` tokens of one text or of two, of which the longer one loses first.
fn cut(first: &mut Encoding, second: Option<&mut Encoding>, most: usize, side: Side) {
    let direction = match side {
        Side::Left => TruncationDirection::Left,
        Side::Right => TruncationDirection::Right,
    };
    let Some(second) = second else {
        shorten(first, most, direction);
        return;
    };
    let (a, b) = (first.len(), second.len());
    let half = most / 2;
    let (a, b) = if a <= half {
        (a, most - a)
    } else if b <= most - half {
        (most - b, b)
    } else {
        (half, most - half)
    };
    shorten(first, a, direction);
    shorten(second, b, direction);
}

/// Leaves `most` tokens. What is cut off would be kept in pieces, and each piece of a pair's first text be put together with
/// each of the second's.
fn shorten(encoding: &mut Encoding, most: usize, direction: TruncationDirection) {
    encoding.truncate(most, 0, direction);
    drop(encoding.take_overflowing());
}
