//! Tokens of text.

use tokenizers::{Encoding, PostProcessor, Tokenizer, TruncationDirection};

/// What tokens are made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// A text.
    Text(String),
    /// Two texts, which the model reads beside each other.
    Pair(String, String),
    /// Tokens that a client made, special ones included.
    Ids(Vec<u32>),
}

/// What is done with a text of more tokens than the model takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Truncate {
    /// It is refused.
    No,
    /// It is cut off at one side.
    At(Side),
}

/// The side where a text is cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize)]
pub(crate) enum Side {
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
pub(crate) struct Tokens {
    /// Their ids.
    pub(crate) ids: Vec<u32>,
    /// 1 for those of the second text of a pair.
    pub(crate) types: Vec<u32>,
    /// What each is, as `/tokenize` tells it.
    pub(crate) parts: Vec<Part>,
}

/// A token as its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) text: String,
    pub(crate) special: bool,
    /// Where it is in the text, in bytes.
    pub(crate) offsets: (usize, usize),
}

impl Tokens {
    /// Those that a client made.
    fn given(ids: Vec<u32>) -> Self {
        Self { types: vec![0; ids.len()], ids, parts: Vec::new() }
    }

    fn of(encoding: &Encoding) -> Self {
        let parts = (0..encoding.len()).map(|place| Part {
            text: encoding.get_tokens()[place].clone(),
            special: encoding.get_special_tokens_mask()[place] == 1,
            offsets: encoding.get_offsets()[place],
        });
        Self {
            ids: encoding.get_ids().to_vec(),
            types: encoding.get_type_ids().to_vec(),
            parts: parts.collect(),
        }
    }
}

/// The tokens of a source, of which there may be `most`, or why it has none.
pub(super) fn encode(
    tokenizer: &Tokenizer,
    source: &Source,
    truncate: Truncate,
    most: usize,
) -> Result<Tokens, String> {
    let encode = |text: &str| tokenizer.encode(text, false).map_err(|error| error.to_string());
    let (mut first, mut second) = match source {
        Source::Text(text) => (encode(text)?, None),
        Source::Pair(first, second) => (encode(first)?, Some(encode(second)?)),
        Source::Ids(ids) => return given(tokenizer, ids, truncate, most),
    };
    let special =
        tokenizer.get_post_processor().map_or(0, |post| post.added_tokens(second.is_some()));
    let length = first.len() + second.as_ref().map_or(0, Encoding::len) + special;
    match truncate {
        Truncate::No if length > most => return Err(too_long(length, most)),
        Truncate::At(side) if length > most => {
            cut(&mut first, second.as_mut(), most.saturating_sub(special), side);
        }
        Truncate::No | Truncate::At(_) => {}
    }
    let whole = tokenizer.post_process(first, second, true).map_err(|error| error.to_string())?;
    if whole.is_empty() {
        return Err("it has no tokens".to_owned());
    }
    Ok(Tokens::of(&whole))
}

/// Tokens that a client made, if the tokenizer has them.
fn given(
    tokenizer: &Tokenizer,
    ids: &[u32],
    truncate: Truncate,
    most: usize,
) -> Result<Tokens, String> {
    if let Some(id) = ids.iter().find(|id| tokenizer.id_to_token(**id).is_none()) {
        let size = tokenizer.get_vocab_size(true);
        return Err(format!("{id} is no token of the vocabulary, which has {size}"));
    }
    let kept = match truncate {
        _ if ids.is_empty() => return Err("it has no tokens".to_owned()),
        Truncate::No if ids.len() > most => return Err(too_long(ids.len(), most)),
        Truncate::At(Side::Left) => &ids[ids.len().saturating_sub(most)..],
        Truncate::No | Truncate::At(Side::Right) => &ids[..ids.len().min(most)],
    };
    Ok(Tokens::given(kept.to_vec()))
}

fn too_long(length: usize, most: usize) -> String {
    format!("it has {length} tokens, and the model takes {most}: shorten it, or ask for `truncate`")
}

/// Leaves `most` tokens of one text or of two, of which the longer one loses first.
fn cut(first: &mut Encoding, second: Option<&mut Encoding>, most: usize, side: Side) {
    let direction = match side {
        Side::Left => TruncationDirection::Left,
        Side::Right => TruncationDirection::Right,
    };
    let Some(second) = second else {
        first.truncate(most, 0, direction);
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
    first.truncate(a, 0, direction.clone());
    second.truncate(b, 0, direction);
}
