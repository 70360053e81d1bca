//! Answers in the summary.

use super::{Answers, Embedding, Found, Image, Label, OfText, Text, Words};
use graphene_frontend::visible::visible;
use std::fmt::{self, Display, Formatter};

/// Numbers of an embedding, and labels of a text, that are shown.
const FIRST: usize = 6;
const LABELS: usize = 10;
/// Characters of a text that are shown.
const TEXT: usize = 70;
/// Texts whose cosines fit beside each other.
const COSINES: usize = 10;

impl Display for Answers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.text.iter().try_for_each(|text| write!(f, "\n{text}"))?;
        self.images
            .iter()
            .filter(|image| !image.labels.is_empty())
            .try_for_each(|image| write!(f, "\n{image}"))
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, from {}", self.task, visible(&self.output))?;
        self.texts.iter().try_for_each(|text| text.fmt(f))?;
        let Some(cosines) = self.cosines.as_ref().filter(|rows| rows.len() <= COSINES) else {
            return Ok(());
        };
        writeln!(f, "  cosine similarity of the texts")?;
        for row in cosines {
            let cells = row.iter().map(|cosine| format!("{cosine:>7.4}"));
            writeln!(f, "    {}", cells.collect::<Vec<_>>().join(" "))?;
        }
        Ok(())
    }
}

impl Display for OfText {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "  {}", quoted(&self.text))?;
        self.pair.iter().try_for_each(|pair| write!(f, " and {}", quoted(pair)))?;
        writeln!(f, ", {} tokens", self.length)?;
        match &self.found {
            Found::Labels(labels) => write_labels(f, labels),
            Found::Value(value) => {
                write!(f, "    {} {:.4}", visible(&value.label), value.value)?;
                value
                    .sigmoid
                    .iter()
                    .try_for_each(|sigmoid| write!(f, " (sigmoid {sigmoid:.4})"))?;
                writeln!(f)
            }
            Found::Tokens(tokens) => {
                let widest = |name: fn(&super::TokenLabel) -> &String| {
                    tokens
                        .iter()
                        .map(|token| visible(name(token)).chars().count())
                        .max()
                        .unwrap_or(0)
                };
                let (token, label) = (widest(|token| &token.token), widest(|token| &token.label));
                tokens.iter().try_for_each(|entry| {
                    let (word, name) = (visible(&entry.token), visible(&entry.label));
                    writeln!(f, "    {word:<token$}  {name:<label$}  {:.4}", entry.score)
                })
            }
            Found::Words(words) => words.iter().try_for_each(|words| write_words(f, words)),
            Found::Embedding(Embedding { norm, vector }) => {
                let first = vector.iter().take(FIRST).map(|x| format!("{x:.4}"));
                let first = first.collect::<Vec<_>>().join(", ");
                let more = if vector.len() > FIRST { ", …" } else { "" };
                writeln!(f, "    [{first}{more}] {} numbers, norm {norm:.4}", vector.len())
            }
        }
    }
}

impl Display for Image {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} as {}", visible(&self.path), visible(&self.input))?;
        write_labels(f, &self.labels)
    }
}

fn write_labels(f: &mut Formatter<'_>, labels: &[Label]) -> fmt::Result {
    let most = labels.iter().take(LABELS);
    let width = most.clone().map(|label| visible(&label.label).chars().count()).max().unwrap_or(0);
    for Label { label, score } in most {
        writeln!(f, "    {:<width$}  {score:.4}", visible(label))?;
    }
    match labels.len().saturating_sub(LABELS) {
        0 => Ok(()),
        more => writeln!(f, "    and {more} more"),
    }
}

fn write_words(f: &mut Formatter<'_>, words: &Words) -> fmt::Result {
    let best = words.best.iter().map(|word| format!("{} {:.4}", visible(&word.token), word.score));
    writeln!(f, "    token {}: {}", words.position, best.collect::<Vec<_>>().join(", "))
}

/// A text in quotes, cut where it is long.
fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(TEXT).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("\"{}{more}\"", visible(&cut))
}
