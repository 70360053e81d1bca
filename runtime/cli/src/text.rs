//! `--text`: texts as inputs of a model.

use crate::args::Data;
use crate::error::{Error, Origin};
use crate::inputs::{Asked, Given};
use crate::suspect;
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::import::DeclaredInput;
use graphene_frontend::types::TensorType;
use graphene_text::{Feed, Files, Port, Role, Source, Tokenizer, Tokens, Truncate};
use std::path::Path;

/// Tokens of a text where nothing says how many a model takes.
const USUAL_LENGTH: usize = 512;

/// Files of tokenizers that tokenizer.json is made of.
const OLDER: [&str; 6] = [
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "tokenizer_config.json",
];

/// Texts that are inputs, and what is known of them.
pub(crate) struct Texts {
    /// What made tokens of them.
    pub(crate) tokenizer: Tokenizer,
    /// What the files beside the model say.
    pub(crate) files: Files,
    /// The texts.
    pub(crate) sources: Vec<Source>,
    /// Their tokens.
    pub(crate) tokens: Vec<Tokens>,
}

impl std::fmt::Debug for Texts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Texts").field(&self.sources).finish()
    }
}

/// Gives the inputs that nothing is given for the tokens of `--text`, if there are texts.
///
/// # Errors
/// [`Error::Flag`] for texts and models that do not go together, [`Error::Data`] for files that cannot be read.
pub(crate) fn read(data: &Data, asked: &Asked<'_>, given: &mut Given) -> Result<(), Error> {
    if data.text.is_empty() {
        return Ok(());
    }
    let left = asked.declared.iter().filter(|input| given.get(&input.name).is_none());
    let ports: Vec<Port> = left.map(port).collect();
    if !ports.iter().any(|port| Role::of(&port.name) == Some(Role::Ids)) {
        let names: Vec<_> = asked.declared.iter().map(|input| &*input.name).collect();
        return Err(refused(format!(
            "the model takes no tokens: it has no input named input_ids, but {}",
            names.join(", ")
        )));
    }
    let feed = |port: &Port| match Feed::of(port) {
        Ok(feed) => Ok(feed),
        Err(_) => Err(refused(format!(
            "input {port} takes neither ids, nor a mask, types or positions: give it by --input"
        ))),
    };
    let feeds: Vec<Feed> = ports.iter().map(feed).collect::<Result<_, _>>()?;
    let (tokenizer, files) = tokenizer(asked.folder.as_deref())?;
    let fixed = fixed_length(&ports);
    let most = files.max_tokens.into_iter().chain(fixed).min().unwrap_or(USUAL_LENGTH);
    let sources = sources(data)?;
    let encode = |(place, source): (usize, &Source)| {
        let tokens = tokenizer.encode(source, Truncate::No, most);
        tokens.map_err(|error| refused(format!("text {} of {}: {error}", place + 1, sources.len())))
    };
    let tokens: Vec<Tokens> = sources.iter().enumerate().map(encode).collect::<Result<_, _>>()?;
    let longest = tokens.iter().map(|tokens| tokens.ids.len()).max().unwrap_or(0);
    for feed in &feeds {
        let tensor = feed.tensor(&tokens, fixed.unwrap_or(longest), tokenizer.pad_id());
        let tensor = tensor.map_err(|error| refused(error.to_string()))?;
        given.add(feed.name().to_owned(), tensor, Origin::Text)?;
    }
    given.texts = Some(Texts { tokenizer, files, sources, tokens });
    Ok(())
}

/// The texts, alone or in pairs.
fn sources(data: &Data) -> Result<Vec<Source>, Error> {
    let (texts, seconds) = (&data.text, &data.text_pair);
    let pair = |(a, b): (&String, &String)| Source::Pair(a.clone(), b.clone());
    match (&texts[..], seconds.len()) {
        (_, 0) => Ok(texts.iter().cloned().map(Source::Text).collect()),
        ([one], _) => Ok(seconds.iter().map(|second| pair((one, second))).collect()),
        (all, count) if all.len() == count => Ok(all.iter().zip(seconds).map(pair).collect()),
        (all, count) => {
            let reason = format!(
                "one is needed for each of {} texts, or there is one text; got {count}",
                all.len()
            );
            Err(Error::flag("--text-pair", reason))
        }
    }
}

/// The tokenizer of a folder; that of the zoo where there is none.
fn tokenizer(folder: Option<&Path>) -> Result<(Tokenizer, Files), Error> {
    let Some(folder) = folder else {
        let tokenizer = Tokenizer::of_zoo().map_err(|error| refused(error.to_string()))?;
        return Ok((tokenizer, Files::default()));
    };
    let files = Files::read(folder).map_err(of_file)?;
    let tokenizer = Tokenizer::read(folder, &files).map_err(of_file)?;
    let tokenizer = tokenizer.ok_or_else(|| without_tokenizer(folder))?;
    Ok((tokenizer, files))
}

/// How a folder gets its tokenizer.
fn without_tokenizer(folder: &Path) -> Error {
    let shown = folder.display();
    let older = OLDER.iter().find(|name| folder.join(name).is_file());
    let get = match older {
        Some(name) => format!(
            "it has {name}, of which `AutoTokenizer.from_pretrained(\"{shown}\").save_pretrained(\"{shown}\")` of \
             transformers makes it"
        ),
        None => "`optimum-cli export onnx --model NAME FOLDER/` writes model.onnx with tokenizer.json and config.json, \
                 and `AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)` the tokenizer alone"
            .to_owned(),
    };
    refused(format!("{shown} has no tokenizer.json, which makes tokens of text: {get}"))
}

/// An error about a file beside the model, with what it is where that shows.
pub(crate) fn of_file(error: graphene_text::Error) -> Error {
    match error {
        graphene_text::Error::File { path, reason } => {
            let reason = suspect::cause(&path).unwrap_or(reason);
            Error::Data { path, reason }
        }
        error => refused(error.to_string()),
    }
}

fn refused(reason: String) -> Error {
    Error::flag("--text", reason)
}

/// An input as text sees it; one that says nothing of its type takes what tokens have.
fn port(input: &DeclaredInput) -> Port {
    let usual = || TensorType::new(DType::I64, vec![Dim::symbol("batch"), Dim::symbol("sequence")]);
    Port { name: input.name.clone(), ty: input.ty.clone().unwrap_or_else(usual) }
}

/// The length that the model is made for alone, if so.
fn fixed_length(ports: &[Port]) -> Option<usize> {
    let known = |port: &Port| usize::try_from(port.ty.shape.get(1)?.known()?).ok();
    ports.iter().find_map(known)
}
