//! From the model named on the command line to its graph.

use crate::args::{Arguments, Sizes};
use crate::error::Error;
use crate::inputs::Given;
use crate::report;
use crate::sizes::{Known, sizes_text};
use bytes::Bytes;
use graphene_frontend::dim::Symbol;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{
    DeclaredInput, ExternalData, Import, ImportError, ImportOptions, declared_inputs, import, ops,
    read_model,
};
use graphene_frontend::infer::InferError;
use graphene_models::build;
use serde::Serialize;
use std::path::PathBuf;

/// The prefix of the zoo's models.
const ZOO: &str = "zoo:";
/// Sizes and values that an import may ask for one after another.
const SPECIALISATIONS: usize = 16;

/// A model that has been read but not imported.
pub(crate) struct Source {
    name: String,
    model: Bytes,
    weights: Box<dyn ExternalData>,
}

/// An imported model.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// As named on the command line.
    pub(crate) name: String,
    /// The graph.
    pub(crate) graph: Graph,
    /// What was specialised, folded or ignored.
    pub(crate) notes: Vec<String>,
    /// Version of ONNX's operator set.
    pub(crate) opset: i64,
    /// The tool that wrote the model.
    pub(crate) producer: String,
    /// Sizes and inputs that shapes depend on, where they do not resolve in symbols.
    pub(crate) specialised: Option<String>,
}

/// Reads the model that the command line names, or builds it.
///
/// # Errors
/// [`Error::Read`], [`Error::Zoo`].
pub(crate) fn open(arguments: &Arguments) -> Result<Source, Error> {
    let name = arguments.model.clone().unwrap_or_default();
    if let Some(zoo) = name.strip_prefix(ZOO) {
        let options = graphene_models::Options { seed: arguments.data.seed, ..Default::default() };
        let zoo = build(zoo, &options)?;
        let (model, (_, weights)) = (zoo.encode(), zoo.into_parts());
        return Ok(Source { name, model, weights: Box::new(weights) });
    }
    let path = PathBuf::from(&name);
    let (model, folder) = read_model(&path).map_err(|source| Error::Read { path, source })?;
    Ok(Source { name, model, weights: Box::new(folder) })
}

impl Source {
    /// The inputs that the model asks for.
    ///
    /// # Errors
    /// [`Error::Import`].
    pub(crate) fn inputs(&self) -> Result<Vec<DeclaredInput>, Error> {
        Ok(declared_inputs(self.model.clone())?)
    }

    /// The files that weights were read from.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.weights.files()
    }

    /// Why the model cannot be imported whatever is given, if so.
    pub(crate) fn defect(&self) -> Option<Error> {
        match import(self.model.clone(), &*self.weights, &ImportOptions::default()) {
            Ok(_) | Err(ImportError::Resists { .. }) => None,
            Err(error) => Some(error.into()),
        }
    }

    /// Imports the model; where a shape depends on sizes or on values of inputs, for those that are given.
    ///
    /// # Errors
    /// [`Error::Import`]; [`Error::UnboundDims`] and [`Error::NeedsValue`] for sizes and values that decide a
    /// shape and are not given.
    pub(crate) fn import(
        &self,
        declared: &[DeclaredInput],
        flags: &Sizes,
        given: &Given,
        known: &Known,
    ) -> Result<Loaded, Error> {
        let mut options = ImportOptions::default();
        let mut specialised = Vec::new();
        let specialise = |options: &mut ImportOptions, symbols: &[Symbol]| {
            let left = declared.iter().filter(|input| !options.values.contains_key(&input.name));
            let left = left.filter_map(|input| input.ty.as_ref());
            let sizes = known.specialise(symbols, flags, left)?;
            options.dims.extend(sizes.iter().map(|(s, size)| (s.name().to_owned(), size)));
            Ok::<_, Error>((!symbols.is_empty()).then(|| sizes_text(&sizes)))
        };
        for input in declared.iter().filter(|input| input.ty.is_none()) {
            if let Some((tensor, _)) = given.get(&input.name) {
                options.shapes.insert(input.name.clone(), tensor.shape().to_vec());
            }
        }
        specialised.extend(specialise(&mut options, &known.empty())?);
        for _ in 0..SPECIALISATIONS {
            match import(self.model.clone(), &*self.weights, &options) {
                Ok(import) => return Ok(self.loaded(import, &specialised)),
                Err(ImportError::Resists { node, op, inputs, symbols }) => {
                    let before = (options.dims.len(), options.values.len());
                    for input in inputs {
                        let value = given.get(&input).map(|(tensor, _)| tensor.clone());
                        let needed = || Error::NeedsValue {
                            input: input.clone(),
                            node: node.clone(),
                            op: op.clone(),
                        };
                        options.values.insert(input.clone(), value.ok_or_else(needed)?);
                        specialised.push(format!("the values of {input}"));
                    }
                    specialised.extend(specialise(&mut options, &symbols)?);
                    // Nothing new to give: the same complaint would come again.
                    if before == (options.dims.len(), options.values.len()) {
                        return Err(
                            ImportError::Resists { node, op, inputs: Vec::new(), symbols }.into()
                        );
                    }
                }
                Err(error) if is_too_large(&error) && !specialised.is_empty() => {
                    let (sizes, source) = (specialised.join(", "), Box::new(error));
                    return Err(Error::Oversized { sizes, source });
                }
                Err(error) if is_of_sizes(&error) && !specialised.is_empty() => {
                    let (sizes, source) = (specialised.join(", "), Box::new(error));
                    return Err(Error::Baked { sizes, source });
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::flag("MODEL", "its shapes depend on too many sizes and values"))
    }

    fn loaded(&self, import: Import, specialised: &[String]) -> Loaded {
        Loaded {
            name: self.name.clone(),
            graph: import.graph,
            notes: import.notes,
            opset: import.opset,
            producer: import.producer,
            specialised: Some(specialised.join(", ")).filter(|text| !text.is_empty()),
        }
    }
}

/// Whether sizes are refused for being too large.
fn is_too_large(error: &ImportError) -> bool {
    matches!(error, ImportError::Infer { error, .. } if matches!(**error, InferError::Size(_)))
}

/// Whether an operation does not take shapes that follow from sizes.
fn is_of_sizes(error: &ImportError) -> bool {
    use InferError::{Broadcast, Dims, Elements};
    matches!(error, ImportError::Infer { error, .. }
        if matches!(**error, Elements { .. } | Broadcast { .. } | Dims { .. }))
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
