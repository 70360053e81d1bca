//! What a model says of texts and images, as people want to see it: labels, words, embeddings.

mod print;

use crate::image::Images;
use crate::inputs::Given;
use crate::text::Texts;
use graphene_frontend::graph::Graph;
use graphene_frontend::tensor::Tensor;
use graphene_text::{
    Files, Head, Port, Problem, Row, Source, Tokens, Wanted, normalise, rows, sigmoid, softmax,
};
use serde::Serialize;
use std::path::Path;

/// Words for a mask, and labels of an image.
const BEST: usize = 5;

/// What a model says of what it was given.
#[derive(Serialize, Debug, Default)]
pub(crate) struct Answers {
    /// Of texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Text>,
    /// Of images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<Image>,
}

/// What a model says of texts.
#[derive(Serialize, Debug)]
struct Text {
    /// What it was made for, as Hugging Face's libraries name it.
    task: &'static str,
    /// The output that it is read from.
    output: String,
    /// An entry a text.
    texts: Vec<OfText>,
    /// Cosines of the angles between the embeddings of several texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    cosines: Option<Vec<Vec<f32>>>,
}

/// What a model says of one text.
#[derive(Serialize, Debug)]
struct OfText {
    text: String,
    /// The second text of a pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pair: Option<String>,
    /// How many tokens it has, special ones included.
    length: usize,
    #[serde(flatten)]
    found: Found,
}

/// What is said.
#[derive(Serialize, Debug)]
#[serde(rename_all = "snake_case")]
enum Found {
    /// Labels of the text, the best first.
    Labels(Vec<Label>),
    /// A value of the text.
    Value(Value),
    /// The best label of each token.
    Tokens(Vec<TokenLabel>),
    /// The best words in the place of each mask, or after the text.
    Words(Vec<Words>),
    /// A vector of the text.
    Embedding(Embedding),
}

/// A label with its score, from 0 to 1.
#[derive(Serialize, Debug)]
struct Label {
    label: String,
    score: f32,
}

/// A score of one label alone.
#[derive(Serialize, Debug)]
struct Value {
    label: String,
    value: f32,
    /// Its sigmoid, where the model was not made for values.
    #[serde(skip_serializing_if = "Option::is_none")]
    sigmoid: Option<f32>,
}

/// A token with its best label.
#[derive(Serialize, Debug)]
struct TokenLabel {
    token: String,
    label: String,
    score: f32,
}

/// Words for a place, the best first.
#[derive(Serialize, Debug)]
struct Words {
    /// The place among the text's tokens.
    position: usize,
    best: Vec<Word>,
}

/// A token of the vocabulary with its probability.
#[derive(Serialize, Debug)]
struct Word {
    token: String,
    id: u32,
    score: f32,
}

/// A vector of a text.
#[derive(Serialize, Debug)]
struct Embedding {
    norm: f32,
    vector: Vec<f32>,
}

/// What a model says of an image.
#[derive(Serialize, Debug)]
struct Image {
    input: String,
    path: String,
    /// What was done with it.
    preprocessing: String,
    /// The best labels, if the model gives any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<Label>,
}

/// What a model's outputs say of what it was given, and notes on what they do not.
pub(crate) fn read(given: &Given, graph: &Graph, outputs: &[Tensor]) -> (Answers, Vec<String>) {
    let port =
        |(name, value): &(String, _)| Port { name: name.clone(), ty: graph.ty(*value).clone() };
    let ports: Vec<Port> = graph.outputs().iter().map(port).collect();
    let mut notes = Vec::new();
    let text = given.texts.as_ref().map(|texts| of_texts(texts, &ports, outputs));
    let text = match text.transpose() {
        Ok(text) => text,
        Err(error) => {
            notes.push(format!("what the outputs say of --text is not known: {error}"));
            None
        }
    };
    if text.as_ref().is_some_and(Text::lacks_masks) {
        let mask = given.texts.as_ref().and_then(Texts::mask);
        let mask = mask.unwrap_or_else(|| "the tokenizer's mask".to_owned());
        notes.push(format!("the model guesses words: write {mask} in the place of one"));
    }
    let (images, note) = of_images(&given.images, &ports, outputs);
    notes.extend(note);
    (Answers { text, images }, notes)
}

impl Text {
    /// Whether words could be guessed, but none is asked for.
    fn lacks_masks(&self) -> bool {
        self.texts.iter().all(|text| matches!(&text.found, Found::Words(words) if words.is_empty()))
    }
}

impl Texts {
    /// The text of the token that stands for a word to be guessed.
    fn mask(&self) -> Option<String> {
        self.tokenizer.token(self.tokenizer.mask_id()?)
    }
}

fn of_texts(texts: &Texts, ports: &[Port], outputs: &[Tensor]) -> graphene_text::Result<Text> {
    let head = Head::of(ports, &Wanted::default(), &texts.files)?;
    let place = ports.iter().position(|port| port.name == head.output());
    let output =
        place.and_then(|place| outputs.get(place)).ok_or(graphene_text::Error::NoOutput)?;
    let lengths: Vec<usize> = texts.tokens.iter().map(|tokens| tokens.ids.len()).collect();
    let mut of_each = Vec::new();
    for ((row, source), tokens) in
        rows(output, &lengths)?.iter().zip(&texts.sources).zip(&texts.tokens)
    {
        let (text, pair) = match source {
            Source::Text(text) => (text.clone(), None),
            Source::Pair(first, second) => (first.clone(), Some(second.clone())),
            Source::Ids(_) => (String::new(), None),
        };
        let found = found(&head, texts, row, tokens)?;
        of_each.push(OfText { text, pair, length: tokens.ids.len(), found });
    }
    let task = match head {
        Head::Tokens { .. } | Head::Sentence { .. } => "feature-extraction",
        Head::Scores { .. } => "text-classification",
        Head::Labels { .. } => "token-classification",
        Head::Words { next: false, .. } => "fill-mask",
        Head::Words { next: true, .. } => "text-generation",
    };
    let (output, cosines) = (head.output().to_owned(), cosines(&of_each));
    Ok(Text { task, output, texts: of_each, cosines })
}

/// What a row of the output says of a text.
fn found(head: &Head, texts: &Texts, row: &Row, tokens: &Tokens) -> graphene_text::Result<Found> {
    let files = &texts.files;
    match head {
        Head::Scores { .. } => Ok(of_text(head.scores(row)?, files)),
        Head::Tokens { .. } | Head::Sentence { .. } => {
            let mut vector = head.embedding(row)?;
            if files.normalise {
                normalise(&mut vector);
            }
            Ok(Found::Embedding(Embedding { norm: norm(&vector), vector }))
        }
        Head::Labels { .. } => {
            let label = |(vector, &id): (&[f32], &u32)| {
                let (best, score) = best(vector, 1).into_iter().next()?;
                let token = texts.tokenizer.token(id)?;
                Some(TokenLabel { token, label: files.label(best), score })
            };
            let words = row.vectors().zip(&tokens.ids);
            let words = words.filter(|(_, id)| !texts.tokenizer.is_special(**id));
            Ok(Found::Tokens(words.filter_map(label).collect()))
        }
        Head::Words { next, .. } => {
            let word = |(id, score): (usize, f32)| {
                let id = u32::try_from(id).ok()?;
                Some(Word { token: texts.tokenizer.token(id)?, id, score })
            };
            let last = tokens.ids.len().saturating_sub(1);
            let asked = |place: usize| match next {
                true => place == last,
                false => Some(tokens.ids[place]) == texts.tokenizer.mask_id(),
            };
            let places = row.vectors().enumerate().filter(|(place, _)| asked(*place));
            let words = places.map(|(position, vector)| {
                let best = best(vector, BEST).into_iter().filter_map(word).collect();
                Words { position, best }
            });
            Ok(Found::Words(words.collect()))
        }
    }
}

/// The scores of a text, as its labels mean them.
fn of_text(mut scores: Vec<(String, f32)>, files: &Files) -> Found {
    if let [(label, value)] = &scores[..] {
        let is_value = files.problem == Some(Problem::Regression);
        let sigmoid = (!is_value).then(|| sigmoid(*value));
        return Found::Value(Value { label: label.clone(), value: *value, sigmoid });
    }
    match files.problem {
        Some(Problem::Regression) => {}
        Some(Problem::MultiLabelClassification) => {
            scores.iter_mut().for_each(|(_, score)| *score = sigmoid(*score));
        }
        Some(Problem::SingleLabelClassification) | None => {
            let mut all: Vec<f32> = scores.iter().map(|(_, score)| *score).collect();
            softmax(&mut all);
            scores.iter_mut().zip(all).for_each(|((_, score), of_all)| *score = of_all);
        }
    }
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    Found::Labels(scores.into_iter().map(|(label, score)| Label { label, score }).collect())
}

/// The probabilities of the best of some scores, and their numbers.
fn best(scores: &[f32], count: usize) -> Vec<(usize, f32)> {
    let mut all = scores.to_vec();
    softmax(&mut all);
    highest(&all, count)
}

/// The highest of some numbers, with their places.
fn highest(all: &[f32], count: usize) -> Vec<(usize, f32)> {
    let mut order: Vec<(usize, f32)> = all.iter().copied().enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    order.truncate(count);
    order
}

fn norm(vector: &[f32]) -> f32 {
    vector.iter().map(|x| x * x).sum::<f32>().sqrt()
}

/// The cosines between embeddings, if there are several.
fn cosines(texts: &[OfText]) -> Option<Vec<Vec<f32>>> {
    let embedding = |text: &OfText| match &text.found {
        Found::Embedding(embedding) => Some(embedding.vector.clone()),
        Found::Labels(_) | Found::Value(_) | Found::Tokens(_) | Found::Words(_) => None,
    };
    let mut all: Vec<Vec<f32>> = texts.iter().map(embedding).collect::<Option<_>>()?;
    all.iter_mut().for_each(|vector| normalise(vector));
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    let row = |a: &Vec<f32>| all.iter().map(|b| product(a, b)).collect();
    (all.len() > 1).then(|| all.iter().map(row).collect())
}

/// What a model says of images: the best labels, where its scores have names.
fn of_images(images: &Images, ports: &[Port], outputs: &[Tensor]) -> (Vec<Image>, Option<String>) {
    let Some(folder) = images.folder.as_deref() else {
        return (images.all.iter().map(|image| described(image, Vec::new())).collect(), None);
    };
    let (labels, note) = match image_labels(folder, ports, outputs) {
        Ok(labels) => (labels, None),
        Err(error) => (Vec::new(), Some(format!("the image's labels are not known: {error}"))),
    };
    let mut labels = Some(labels);
    let image = |image| described(image, labels.take().unwrap_or_default());
    (images.all.iter().map(image).collect(), note)
}

fn described(image: &crate::image::Image, labels: Vec<Label>) -> Image {
    let crate::image::Image { input, path, done } = image;
    Image {
        input: input.clone(),
        path: path.display().to_string(),
        preprocessing: done.clone(),
        labels,
    }
}

/// The best labels of the first row of a model's scores; none where its folder names none.
fn image_labels(
    folder: &Path,
    ports: &[Port],
    outputs: &[Tensor],
) -> graphene_text::Result<Vec<Label>> {
    let files = Files::read(folder)?;
    let is_scores = |(port, output): &(&Port, &Tensor)| {
        let width = output.shape().last().copied();
        port.ty.rank() == 2 && width == Some(files.labels.len()).filter(|count| *count > 1)
    };
    let Some((_, scores)) = ports.iter().zip(outputs).find(is_scores) else {
        return Ok(Vec::new());
    };
    let row = Row::of(scores);
    let Some(scores) = row.vectors().next() else { return Ok(Vec::new()) };
    // Some models end with a softmax of their own.
    let is_share = |score: &f32| (0.0..=1.0).contains(score);
    let shares = scores.iter().all(is_share) && (scores.iter().sum::<f32>() - 1.0).abs() < 1e-3;
    let best = if shares { highest(scores, BEST) } else { best(scores, BEST) };
    Ok(best.into_iter().map(|(id, score)| Label { label: files.label(id), score }).collect())
}
