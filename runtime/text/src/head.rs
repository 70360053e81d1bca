//! What an output of a model of text is, and what is made of its rows.

use crate::error::{Error, Result};
use crate::feed::Port;
use crate::files::{Files, Pooling, unnamed};
use crate::row::Row;
use graphene_frontend::dtype::DType;

/// What a text model's output is.
#[derive(Clone, PartialEq, Debug)]
pub enum Head {
    /// A vector for each token.
    Tokens {
        /// The output.
        output: String,
        /// How they become one.
        pooling: Pooling,
    },
    /// A vector for the text.
    Sentence {
        /// The output.
        output: String,
    },
    /// A score of each label for the text.
    Scores {
        /// The output.
        output: String,
        /// The labels; as far as they are known, if the output's width is none.
        labels: Vec<String>,
    },
    /// A score of each label for each token.
    Labels {
        /// The output.
        output: String,
    },
    /// A score of each token of the vocabulary for each token.
    Words {
        /// The output.
        output: String,
        /// Whether it is the token after each that is scored; else it is the one in its place, behind a mask.
        next: bool,
    },
}

/// What somebody says of the output, which counts more than what the files do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// Its name.
    pub output: Option<String>,
    /// How the vectors of a text's tokens become one.
    pub pooling: Option<Pooling>,
}

/// What scores are called by most exporters.
const LOGITS: &str = "logits";
/// Scores of where an answer begins and ends in a text: neither a vector nor scores of labels.
const SPAN: [&str; 2] = ["start_logits", "end_logits"];
/// The output of sentence-transformers' whole pipeline.
const SENTENCE: &str = "sentence_embedding";

impl Head {
    /// That of a model: the output that is wanted, else `logits`, else the first of three dims, else the first of two. A
    /// `sentence_embedding` comes before the vectors of tokens where these alone do not make it: other layers follow, or
    /// nobody says how they are pooled.
    ///
    /// # Errors
    /// [`Error::UnknownOutput`] and [`Error::NoOutput`] if there is none; [`Error::OutputType`], [`Error::OutputRank`] and
    /// [`Error::Labels`] for one that is not of text.
    pub fn of(outputs: &[Port], wanted: &Wanted, files: &Files) -> Result<Self> {
        let port = match &wanted.output {
            Some(name) => {
                let unknown = || Error::UnknownOutput { name: name.clone() };
                outputs.iter().find(|port| port.name == *name).ok_or_else(unknown)?
            }
            None => likely(outputs, wanted, files).ok_or(Error::NoOutput)?,
        };
        let told = || port.to_string();
        if !matches!(port.ty.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::OutputType { port: told() });
        }
        let output = port.name.clone();
        let width = port.ty.shape.last().and_then(|dim| usize::try_from(dim.known()?).ok());
        match port.ty.rank() {
            2 if output == LOGITS || files.is_for("ForSequenceClassification") => {
                let known = files.labels.keys().next_back().map_or(0, |last| last + 1);
                let width = width.unwrap_or(known);
                if known > width {
                    return Err(Error::Labels { label: known - 1, port: told(), scores: width });
                }
                Ok(Self::Scores { output, labels: (0..width).map(|id| files.label(id)).collect() })
            }
            2 => Ok(Self::Sentence { output }),
            // A model's class says what it was trained for, and its output what was exported.
            3 if output == LOGITS && is_of_labels(width, files) => Ok(Self::Labels { output }),
            3 if output == LOGITS => {
                let next = files.is_for("ForCausalLM") || files.is_for("LMHeadModel");
                Ok(Self::Words { output, next })
            }
            3 => {
                let pooling = wanted.pooling.or(files.pooling).unwrap_or(Pooling::Mean);
                Ok(Self::Tokens { output, pooling })
            }
            _ => Err(Error::OutputRank { port: told() }),
        }
    }

    /// The output that it is made of.
    pub fn output(&self) -> &str {
        match self {
            Self::Tokens { output, .. }
            | Self::Sentence { output }
            | Self::Scores { output, .. }
            | Self::Labels { output }
            | Self::Words { output, .. } => output,
        }
    }

    /// The vector of a text.
    ///
    /// # Errors
    /// [`Error::OfLabels`], [`Error::OfTokens`] for a model that gives scores.
    pub fn embedding(&self, row: &Row) -> Result<Vec<f32>> {
        match self {
            Self::Sentence { .. } => Ok(row.numbers().to_vec()),
            Self::Tokens { pooling: Pooling::Cls, .. } => Ok(row.vector(0)),
            Self::Tokens { pooling: Pooling::Last, .. } => Ok(row.last()),
            Self::Tokens { pooling: Pooling::Mean, .. } => Ok(row.mean()),
            Self::Scores { .. } => Err(Error::OfLabels),
            Self::Labels { .. } | Self::Words { .. } => Err(Error::OfTokens),
        }
    }

    /// The vectors of a text's tokens.
    ///
    /// # Errors
    /// [`Error::NoTokenVectors`] for a model that gives something else.
    pub fn token_embeddings(&self, row: &Row) -> Result<Vec<Vec<f32>>> {
        match self {
            Self::Tokens { .. } => Ok(row.vectors().map(<[f32]>::to_vec).collect()),
            Self::Sentence { .. }
            | Self::Scores { .. }
            | Self::Labels { .. }
            | Self::Words { .. } => Err(Error::NoTokenVectors),
        }
    }

    /// The scores of a text and their labels.
    ///
    /// # Errors
    /// [`Error::NoScores`] for a model that gives something else.
    pub fn scores(&self, row: &Row) -> Result<Vec<(String, f32)>> {
        let Self::Scores { labels, .. } = self else { return Err(Error::NoScores) };
        let labelled = |(number, &score): (usize, &f32)| {
            (labels.get(number).cloned().unwrap_or_else(|| unnamed(number)), score)
        };
        Ok(row.numbers().iter().enumerate().map(labelled).collect())
    }
}

/// The output that is most likely meant.
fn likely<'a>(outputs: &'a [Port], wanted: &Wanted, files: &Files) -> Option<&'a Port> {
    let named = |name: &str| outputs.iter().find(|port| port.name == name);
    let is_span = |port: &Port| SPAN.contains(&&*port.name);
    let of_rank = |rank: usize| outputs.iter().find(|p| p.ty.rank() == rank && !is_span(p));
    // This output alone has what follows pooling, and how tokens are pooled where no file says it.
    let only = files.has_layers_after_pooling || wanted.pooling.or(files.pooling).is_none();
    let whole = named(SENTENCE).filter(|_| only);
    named(LOGITS).or(whole).or(of_rank(3)).or(of_rank(2))
}

/// Whether scores of each token are of labels, rather than of the vocabulary.
fn is_of_labels(width: Option<usize>, files: &Files) -> bool {
    let labels = Some(files.labels.len()).filter(|count| *count > 0);
    files.is_for("ForTokenClassification")
        || labels.is_some() && labels == width && files.vocabulary != width
}

#[cfg(test)]
mod tests {
    use super::{Head, Wanted};
    use crate::feed::Port;
    use crate::files::{Files, Pooling};

    fn check(architecture: &str, outputs: &[(&str, &str)], expected: &str) {
        let port = |&(name, ty): &(&str, &str)| Port { name: name.into(), ty: ty.parse().unwrap() };
        let ports: Vec<_> = outputs.iter().map(port).collect();
        let files = Files {
            architectures: vec![architecture.to_owned()],
            labels: [(0, "no".to_owned()), (1, "yes".to_owned())].into(),
            vocabulary: Some(100),
            ..Files::default()
        };
        let found = match Head::of(&ports, &Wanted::default(), &files) {
            Ok(Head::Tokens { output, pooling: Pooling::Mean }) => format!("tokens {output}"),
            Ok(Head::Tokens { output, .. }) => format!("tokens {output}, pooled otherwise"),
            Ok(Head::Sentence { output }) => format!("sentence {output}"),
            Ok(Head::Scores { output, labels }) => format!("scores {output} {}", labels.join(" ")),
            Ok(Head::Labels { output }) => format!("labels {output}"),
            Ok(Head::Words { output, next: true }) => format!("next words {output}"),
            Ok(Head::Words { output, next: false }) => format!("words {output}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected, "{architecture} {outputs:?}");
    }

    #[test]
    fn heads_follow_from_outputs_and_classes() {
        let hidden = ("last_hidden_state", "f32[b, s, 8]");
        let pooled = ("pooler_output", "f32[b, 8]");
        let scores = ("logits", "f32[b, 2]");
        let labels = ("logits", "f32[b, s, 2]");
        let words = ("logits", "f32[b, s, 100]");
        check("BertModel", &[hidden, pooled], "tokens last_hidden_state");
        check("BertModel", &[pooled, hidden], "tokens last_hidden_state");
        check("BertModel", &[pooled], "sentence pooler_output");
        check("BertForSequenceClassification", &[scores], "scores logits no yes");
        check("BertForSequenceClassification", &[hidden, scores], "scores logits no yes");
        check("BertForTokenClassification", &[labels], "labels logits");
        check("", &[labels], "labels logits");
        check("", &[scores], "scores logits no yes");
        check("BertForMaskedLM", &[hidden, words], "words logits");
        check("GPT2LMHeadModel", &[words], "next words logits");
        check("LlamaForCausalLM", &[words], "next words logits");
        // What was exported counts, not what the model was trained for.
        check("BertForMaskedLM", &[hidden], "tokens last_hidden_state");
        let span = [("start_logits", "f32[b, s]"), ("end_logits", "f32[b, s]")];
        check("BertForQuestionAnswering", &span, "no output has a vector for each text or token");
        check("BertModel", &[], "no output has a vector for each text or token");
        check("BertModel", &[("x", "f32[b]")], "no output has a vector for each text or token");
        check(
            "BertModel",
            &[("x", "i64[b, 3]")],
            "output x: i64[b, 3] has to be of fp32, fp16 or bf16",
        );
        check(
            "BertForSequenceClassification",
            &[("logits", "f32[b, 1]")],
            "config.json has a label 1, and output logits: f32[b, 1] has 1 scores",
        );
    }

    #[test]
    fn an_output_of_the_whole_pipeline_is_taken_where_pooling_is_unknown_or_not_its_end() {
        let port = |name: &str, ty: &str| Port { name: name.into(), ty: ty.parse().unwrap() };
        let outputs =
            [port("token_embeddings", "f32[b, s, 8]"), port("sentence_embedding", "f32[b, 4]")];
        let (tokens, sentence) = ("token_embeddings", "sentence_embedding");
        for (of_files, asked, after, expected) in [
            (Some(Pooling::Cls), None, false, tokens),
            (Some(Pooling::Cls), None, true, sentence),
            (None, Some(Pooling::Cls), false, tokens),
            (None, None, false, sentence),
        ] {
            let files =
                Files { pooling: of_files, has_layers_after_pooling: after, ..Files::default() };
            let wanted = Wanted { pooling: asked, ..Wanted::default() };
            assert_eq!(Head::of(&outputs, &wanted, &files).unwrap().output(), expected);
        }
    }
}
