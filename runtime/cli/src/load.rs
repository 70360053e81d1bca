//! The model named on the command line, and the tables of operators and of the zoo.

use crate::args::Arguments;
use crate::error::Error;
use crate::{files, folder, human, report, suspect};
use graphene_frontend::import::{DeclaredInput, ExternalDataError, ImportError, ops};
use graphene_models::{Options, build};
use graphene_runtime::{Given, Imported, Reading, Source};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The prefix of the zoo's models.
const ZOO: &str = "zoo:";

/// A model that has been read, whose errors tell of its files.
pub(crate) struct Opened {
    source: Source,
    /// Its file; a model of the zoo has none.
    file: Option<PathBuf>,
}

/// Reads the model that the command line names, or builds it.
///
/// # Errors
/// [`Error::Model`], [`Error::Zoo`]; [`Error::Unreadable`] for what is no model.
pub(crate) fn open(arguments: &Arguments, reading: Reading) -> Result<Opened, Error> {
    let name = arguments.model.as_deref().unwrap_or_default();
    let Some(zoo) = name.strip_prefix(ZOO) else {
        let file = folder::model_file(Path::new(name))?;
        if let Some(reason) = suspect::cause(&file) {
            return Err(Error::Unreadable { path: file, reason });
        }
        let source = Source::open(&file, reading)?;
        return Ok(Opened { source, file: Some(file) });
    };
    let zoo = built(arguments, zoo)?;
    let (model, (_, weights)) = (zoo.encode(), zoo.into_parts());
    Ok(Opened { source: Source::with_external(model, weights), file: None })
}

/// The model of the zoo of this name, its weights from the command line's seed.
fn built(arguments: &Arguments, name: &str) -> Result<graphene_models::ZooModel, Error> {
    let options = Options { seed: arguments.data.seed, ..Default::default() };
    Ok(build(name, &options)?)
}

/// Writes the model of the zoo that the command line names.
///
/// # Errors
/// [`Error::Flag`] for a model that is a file; [`Error::Zoo`].
pub(crate) fn save(arguments: &Arguments, path: &Path) -> Result<(), Error> {
    let name = arguments.model.as_deref().unwrap_or_default();
    let Some(name) = name.strip_prefix(ZOO) else {
        return Err(Error::flag(
            "--save-model",
            "writes models of the zoo: zoo:NAME, which --list-zoo lists",
        ));
    };
    built(arguments, name)?.write(path)?;
    files::complain(&format!("wrote {}", path.display()));
    Ok(())
}

impl Opened {
    /// The inputs that the model asks for.
    ///
    /// # Errors
    /// [`Error::Unreadable`] for bytes that are no ONNX model.
    pub(crate) fn inputs(&self) -> Result<Vec<DeclaredInput>, Error> {
        self.source.inputs().map_err(|error| self.explained(error))
    }

    /// Imports the model.
    ///
    /// # Errors
    /// [`Error::Model`]; [`Error::Unreadable`] where a file is missing or not what it is taken for.
    pub(crate) fn import(&self, given: &Given) -> Result<Imported, Error> {
        self.source.import(given).map_err(|error| self.explained(error))
    }

    /// The files that it was read from so far, links resolved.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let file = self.file.as_ref().and_then(|file| file.canonicalize().ok());
        self.source.files().into_iter().chain(file).collect()
    }

    /// The folder of what stands beside the model; one of the zoo has none.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.file.as_deref().map(folder::beside)
    }

    /// The error, with what its file is where it is no model, and where its data has to be.
    fn explained(&self, error: graphene_runtime::Error) -> Error {
        use graphene_runtime::Error as E;
        let (Some(file), E::Import(import)) = (&self.file, &error) else { return error.into() };
        let explained = match &**import {
            ImportError::Decode(_) => {
                let reason = format!("not an ONNX model: {}", suspect::no_model(file));
                Some(Error::Unreadable { path: file.clone(), reason })
            }
            ImportError::External { name, error } => external(file, name, error),
            _ => None,
        };
        explained.unwrap_or_else(|| error.into())
    }
}

/// What is wrong with the file of a weight.
fn external(model: &Path, weight: &str, error: &ExternalDataError) -> Option<Error> {
    let at = |location: &str| model.parent().unwrap_or(Path::new("")).join(location);
    match error {
        ExternalDataError::Io { location, kind: std::io::ErrorKind::NotFound } => {
            let reason = format!(
                "weight `{weight}` is in `{location}`, which is missing: it must stand beside the model, as {}",
                at(location).display()
            );
            Some(Error::Unreadable { path: model.to_owned(), reason })
        }
        ExternalDataError::Range { location, size, end, .. } => {
            let path = at(location);
            let short = || {
                let (size, end) = (human::bytes(*size), human::bytes(*end));
                format!(
                    "it has {size}, but weight `{weight}` ends at {end}: it is truncated, or of another model"
                )
            };
            let reason = suspect::cause(&path).unwrap_or_else(short);
            Some(Error::Unreadable { path, reason })
        }
        ExternalDataError::None(_)
        | ExternalDataError::Outside(_)
        | ExternalDataError::Io { .. }
        | ExternalDataError::Changed(_)
        | ExternalDataError::Overlapping(_)
        | ExternalDataError::Malformed(_) => None,
    }
}

/// An operator that is understood.
#[derive(Serialize, Debug)]
struct Operator {
    /// Its domain and name; ONNX's own domain has none.
    name: String,
    /// The first version of its operator set that is.
    since: i64,
}

/// The table of `--list-ops`, as an object of JSON if asked for.
pub(crate) fn operators(json: bool) -> String {
    let mut rows: Vec<_> = ops::rows().map(|row| (row.domain, row.op, row.since)).collect();
    rows.sort_unstable();
    let operator = |&(domain, op, since): &(&str, &str, i64)| {
        let dot = if domain.is_empty() { "" } else { "." };
        Operator { name: format!("{domain}{dot}{op}"), since }
    };
    let operators: Vec<_> = rows.iter().map(operator).collect();
    if json {
        return report::table("operators", &operators);
    }
    let width = operators.iter().map(|operator| operator.name.len()).max().unwrap_or(0);
    let row =
        |Operator { name, since }: &Operator| format!("{name:<width$}  from version {since}\n");
    format!("{} operators; versions are those of their operator set\n", operators.len())
        + &operators.iter().map(row).collect::<String>()
}

/// A model of the zoo.
#[derive(Serialize, Debug)]
struct ZooModel {
    /// Its name, after `zoo:`.
    name: &'static str,
    /// Elements of its weights.
    parameters: u64,
    /// Bytes of its weights.
    bytes: u64,
    /// What it is.
    about: &'static str,
}

/// The table of `--list-zoo`, as an object of JSON if asked for.
///
/// # Errors
/// [`Error::Zoo`].
pub(crate) fn zoo(json: bool) -> Result<String, Error> {
    let model = |(name, about)| {
        let model = build(name, &Options::default())?;
        let (parameters, bytes) = (model.weights().parameters(), model.weights().length());
        Ok(ZooModel { name, parameters, bytes, about })
    };
    let models = graphene_models::names().map(model).collect::<Result<Vec<_>, Error>>()?;
    if json {
        return Ok(report::table("models", &models));
    }
    let width = models.iter().map(|model| ZOO.len() + model.name.len()).max().unwrap_or(0);
    let head = format!("{:<width$}  {:>10}  {:>7}\n", "model", "parameters", "size");
    let row = |ZooModel { name, parameters, bytes, about }: &ZooModel| {
        let (name, count) = (format!("{ZOO}{name}"), human::count(*parameters));
        format!("{name:<width$}  {count:>10}  {:>7}  {about}\n", human::bytes(*bytes))
    };
    Ok(head + &models.iter().map(row).collect::<String>())
}
