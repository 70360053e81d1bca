//! The models by name: a table of rows, and names that carry sizes.

use crate::error::ZooError;
use crate::options::{Activation, Options};

/// What distinguishes one encoder from another. Sizes are counts of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Encoder {
    pub(crate) family: Family,
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) intermediate: usize,
    /// Width of the embeddings; only ALBERT's differs from `hidden`.
    pub(crate) embedding: usize,
    pub(crate) vocabulary: usize,
    pub(crate) positions: usize,
    pub(crate) types: usize,
    pub(crate) epsilon: f32,
}

/// How an encoder's embeddings and layers are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Bert,
    Roberta,
    Albert,
}

/// A model's architecture with its sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Architecture {
    Encoder(Encoder),
    Mlp { depth: usize, width: usize, activation: Activation },
    Lstm { input: usize, hidden: usize, output: usize },
    LstmCell { width: usize },
    LayerNorm { width: usize },
    Attention { heads: usize, head: usize },
}

const BERT_BASE: Encoder = Encoder {
    family: Family::Bert,
    layers: 12,
    hidden: 768,
    heads: 12,
    intermediate: 3072,
    embedding: 768,
    vocabulary: 30522,
    positions: 512,
    types: 2,
    epsilon: 1e-12,
};
const BERT_LARGE: Encoder = Encoder {
    layers: 24,
    hidden: 1024,
    heads: 16,
    intermediate: 4096,
    embedding: 1024,
    ..BERT_BASE
};
const ALBERT_BASE: Encoder =
    Encoder { family: Family::Albert, embedding: 128, vocabulary: 30000, ..BERT_BASE };
const ROBERTA_BASE: Encoder = Encoder {
    family: Family::Roberta,
    vocabulary: 50265,
    positions: 514,
    types: 1,
    epsilon: 1e-5,
    ..BERT_BASE
};
const DISTILROBERTA: Encoder = Encoder { layers: 6, ..ROBERTA_BASE };
const XLM_ROBERTA_BASE: Encoder = Encoder { vocabulary: 250002, ..ROBERTA_BASE };

/// The same architecture at a size that the reference evaluator and a reader can follow.
const fn tiny(encoder: Encoder) -> Encoder {
    let embedding = if encoder.embedding == encoder.hidden { 64 } else { 32 };
    Encoder {
        layers: 2,
        hidden: 64,
        heads: 4,
        intermediate: 128,
        embedding,
        vocabulary: 1000,
        ..encoder
    }
}

struct Row(&'static str, Architecture, &'static str);

const RELU: Activation = Activation::Relu;

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row("bert-base",             Architecture::Encoder(BERT_BASE),              "BERT base: 12 layers of 768, 12 heads, vocabulary 30522"),
    Row("bert-large",            Architecture::Encoder(BERT_LARGE),             "BERT large: 24 layers of 1024, 16 heads, vocabulary 30522"),
    Row("albert-base",           Architecture::Encoder(ALBERT_BASE),            "ALBERT base v2: one layer of 768 used 12 times, embeddings of 128, tanh GELU"),
    Row("roberta-base",          Architecture::Encoder(ROBERTA_BASE),           "RoBERTa base: 12 layers of 768, vocabulary 50265, positions counted from the ids"),
    Row("distilroberta",         Architecture::Encoder(DISTILROBERTA),          "DistilRoBERTa: RoBERTa base with 6 layers"),
    Row("xlm-roberta-base",      Architecture::Encoder(XLM_ROBERTA_BASE),       "XLM-RoBERTa base: RoBERTa base with vocabulary 250002"),
    Row("bert-base-tiny",        Architecture::Encoder(tiny(BERT_BASE)),        "BERT with 2 layers of 64, 4 heads, vocabulary 1000"),
    Row("bert-large-tiny",       Architecture::Encoder(tiny(BERT_LARGE)),       "the same as bert-base-tiny"),
    Row("albert-base-tiny",      Architecture::Encoder(tiny(ALBERT_BASE)),      "ALBERT with one layer of 64 used twice, embeddings of 32"),
    Row("roberta-base-tiny",     Architecture::Encoder(tiny(ROBERTA_BASE)),     "RoBERTa with 2 layers of 64, 4 heads, vocabulary 1000"),
    Row("distilroberta-tiny",    Architecture::Encoder(tiny(DISTILROBERTA)),    "the same as roberta-base-tiny"),
    Row("xlm-roberta-base-tiny", Architecture::Encoder(tiny(XLM_ROBERTA_BASE)), "the same as roberta-base-tiny"),
    Row("mlp",                   Architecture::Mlp { depth: 12, width: 128, activation: RELU },      "12 linear layers of 128 with ReLU; also mlp-[ACTIVATION-]DEPTHxWIDTH"),
    Row("lstm",                  Architecture::Lstm { input: 256, hidden: 256, output: 64 },         "an LSTM of 256 over [time, batch, 256] and a projection; also lstm-HIDDEN"),
    Row("lstm-tiny",             Architecture::Lstm { input: 32, hidden: 48, output: 8 },            "the LSTM with input 32, hidden 48, output 8"),
    Row("lstm-cell",             Architecture::LstmCell { width: 128 },         "relu(x·W + h·U + b) of width 128; also lstm-cell-WIDTH"),
    Row("layernorm",             Architecture::LayerNorm { width: 768 },        "LayerNorm over [batch, sequence, 768]; also layernorm-WIDTH"),
    Row("fmha",                  Architecture::Attention { heads: 12, head: 64 }, "multi-head attention with a mask, 12 heads of 64; also fmha-HEADSxSIZE"),
];

/// Reads the sizes at the end of a name.
type Sized = fn(&str) -> Option<Architecture>;

/// Names that carry sizes: what they begin with, and how the rest is read. Longer beginnings come first.
#[rustfmt::skip]
const SIZED: &[(&str, Sized)] = &[
    ("lstm-cell-", |rest| Some(Architecture::LstmCell { width: size(rest)? })),
    ("lstm-",      |rest| size(rest).map(|hidden| Architecture::Lstm { input: hidden, hidden, output: hidden })),
    ("layernorm-", |rest| Some(Architecture::LayerNorm { width: size(rest)? })),
    ("fmha-",      |rest| pair(rest).map(|(heads, head)| Architecture::Attention { heads, head })),
    ("mlp-",       mlp),
];

/// Every name in the table with one line on what it is, in the table's order.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    ROWS.iter().map(|Row(name, _, about)| (*name, *about))
}

/// The architecture that `name` stands for, with the sizes that `options` replace.
pub(crate) fn architecture(name: &str, options: &Options) -> Result<Architecture, ZooError> {
    let found = ROWS.iter().find(|row| row.0 == name).map(|row| row.1).or_else(|| sized(name));
    let Some(found) = found else {
        return Err(ZooError::UnknownName { name: name.to_owned(), near: near(name) });
    };
    options.check(name)?;
    let layers = || Options::lacks(name, "layers", options.layers);
    let width = || Options::lacks(name, "width", options.width);
    if !matches!(found, Architecture::Mlp { .. }) {
        Options::lacks(name, "activation", options.activation)?;
    }
    Ok(match found {
        Architecture::Encoder(encoder) => {
            width()?;
            let layers = options.layers.unwrap_or(encoder.layers);
            Architecture::Encoder(Encoder { layers, ..encoder })
        }
        Architecture::Mlp { depth, width, activation } => Architecture::Mlp {
            depth: options.layers.unwrap_or(depth),
            width: options.width.unwrap_or(width),
            activation: options.activation.unwrap_or(activation),
        },
        Architecture::Lstm { input, hidden, output } => {
            layers()?;
            Architecture::Lstm { input, hidden: options.width.unwrap_or(hidden), output }
        }
        Architecture::LstmCell { width } => {
            layers()?;
            Architecture::LstmCell { width: options.width.unwrap_or(width) }
        }
        Architecture::LayerNorm { width } => {
            layers()?;
            Architecture::LayerNorm { width: options.width.unwrap_or(width) }
        }
        Architecture::Attention { .. } => {
            layers()?;
            width()?;
            found
        }
    })
}

fn sized(name: &str) -> Option<Architecture> {
    let (prefix, read) = SIZED.iter().find(|(prefix, _)| name.starts_with(prefix))?;
    read(&name[prefix.len()..])
}

fn mlp(rest: &str) -> Option<Architecture> {
    let (activation, sizes) = match rest.split_once('-') {
        None => (RELU, rest),
        Some((activation, sizes)) => {
            (Activation::ALL.into_iter().find(|known| known.name() == activation)?, sizes)
        }
    };
    let (depth, width) = pair(sizes)?;
    (depth <= 1024).then_some(Architecture::Mlp { depth, width, activation })
}

fn pair(text: &str) -> Option<(usize, usize)> {
    let (first, second) = text.split_once('x')?;
    Some((size(first)?, size(second)?))
}

/// A size without sign or leading zero, 1 to 65536.
fn size(text: &str) -> Option<usize> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|size| canonical && *size <= 1 << 16)
}

/// At most five names of the table that resemble `name`, nearest first.
fn near(name: &str) -> Vec<String> {
    // A name too long to be a slip of the pen is not compared.
    if name.len() > 64 {
        return Vec::new();
    }
    let mut ranked: Vec<(usize, &str)> = ROWS
        .iter()
        .map(|row| {
            let related = !name.is_empty() && (row.0.contains(name) || name.contains(row.0));
            let distance = distance(name, row.0);
            (if related { distance.min(2) } else { distance }, row.0)
        })
        .filter(|(distance, known)| *distance <= known.len().div_ceil(3))
        .collect();
    ranked.sort_by_key(|(distance, _)| *distance);
    ranked.into_iter().take(5).map(|(_, known)| known.to_owned()).collect()
}

/// Levenshtein's distance in bytes.
fn distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}
