//! Where a model comes from, and its way to a graph.

use super::{RequestedSizes, Roles};
use crate::error::{Error, Result};
use bytes::Bytes;
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{
    DeclaredInput, ExternalData, Import, ImportError, ImportOptions, NoExternalData, Reading,
    declared_inputs, import, read_model,
};
use graphene_frontend::infer::InferError;
use graphene_frontend::tensor::Tensor;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// How often an import may ask for more sizes and values.
const SPECIALISATIONS: usize = 16;

/// A model that has been read but not imported.
pub struct Source {
    model: Bytes,
    weights: Box<dyn ExternalData + Send + Sync>,
}

/// What is known of a model's inputs when it is imported.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Sizes of dims, by name: the model is for these alone.
    pub dims: BTreeMap<String, i64>,
    /// Values of inputs, by name: they become constants.
    pub values: BTreeMap<String, Tensor>,
    /// Shapes of inputs, by name, where the model does not say their rank.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Sizes of dims that the model is made for where a shape depends on them, and only there. One of zero is for all of
    /// the model, since what an import concludes of a dim holds from one on.
    pub sizes: RequestedSizes,
    /// The seed of random numbers that the model draws. Every run of it draws the same.
    pub seed: u64,
}

/// An imported model.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The graph.
    pub graph: Graph,
    /// What was specialised, folded or ignored.
    pub notes: Vec<String>,
    /// The version of ONNX's operator set.
    pub opset: i64,
    /// The tool that wrote the model.
    pub producer: String,
    /// What shapes depend on, and so the graph is made for alone.
    pub specialised: Vec<Specialised>,
}

/// Something that a graph is made for alone. The text is such as `batch=4`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Specialised {
    /// A dim's size.
    Size(String, i64),
    /// A dim is a sum of others, as in `total=past + sequence`, since shapes fit for no other sizes.
    Equal(String, Dim),
    /// The values of an input.
    Values(String),
}

impl Source {
    /// Reads a model file; weights beside it are read when it is imported.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub fn open(path: impl AsRef<Path>, reading: Reading) -> Result<Self> {
        let path = path.as_ref();
        let unread = |error: std::io::Error| Error::Read {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let (model, folder) = read_model(path, reading).map_err(unread)?;
        Ok(Self { model, weights: Box::new(folder) })
    }

    /// A model in memory that has all its weights in it.
    pub fn bytes(model: impl Into<Bytes>) -> Self {
        Self::with_external(model, NoExternalData)
    }

    /// A model in memory, whose other weights `weights` reads.
    pub fn with_external(
        model: impl Into<Bytes>,
        weights: impl ExternalData + Send + Sync + 'static,
    ) -> Self {
        Self { model: model.into(), weights: Box::new(weights) }
    }

    /// The inputs that the model asks for.
    ///
    /// # Errors
    /// [`Error::Import`] for bytes that are no ONNX model.
    pub fn inputs(&self) -> Result<Vec<DeclaredInput>> {
        Ok(declared_inputs(self.model.clone())?)
    }

    /// The files that weights were read from so far.
    pub fn files(&self) -> Vec<PathBuf> {
        self.weights.files()
    }

    /// Imports the model. Where a shape depends on sizes or on values of inputs, the graph is made for those given.
    ///
    /// # Errors
    /// [`Error::Import`]; [`Error::NeedsSize`] and [`Error::NeedsValue`] for what decides a shape and is not known;
    /// [`Error::Oversized`] and [`Error::Baked`] for sizes that the model is not made for; [`Error::Contradiction`] for
    /// sizes of one dim that differ.
    pub fn import(&self, given: &Given) -> Result<Imported> {
        let (shapes, seed) = (given.shapes.clone(), given.seed);
        let mut options = ImportOptions { shapes, seed, ..Default::default() };
        let sizes = given.dims.iter().map(|(name, &size)| (name.clone(), size));
        options.dims.extend(sizes);
        let mut specialised = Vec::new();
        let empty = given.sizes.specialise(&given.sizes.empty(), &Roles::default())?;
        fix(&mut options, &empty, &mut specialised);
        for _ in 0..SPECIALISATIONS {
            let (node, op, inputs, symbols, equal) =
                match import(self.model.clone(), &*self.weights, &options) {
                    Ok(import) => return Ok(Imported::new(import, specialised)),
                    Err(ImportError::Resists { node, op, inputs, symbols, equal }) => {
                        (node, op, inputs, symbols, equal)
                    }
                    Err(error) => return Err(refused(error, &specialised)),
                };
            let before = specialised.len();
            for input in &inputs {
                let needed = || Error::NeedsValue {
                    input: input.clone(),
                    node: node.clone(),
                    op: op.clone(),
                };
                let value = given.values.get(input).cloned().ok_or_else(needed)?;
                if options.values.insert(input.clone(), value).is_none() {
                    specialised.push(Specialised::Values(input.clone()));
                }
            }
            if !symbols.is_empty() {
                let declared = self.inputs()?;
                let left = declared.iter().filter(|i| !options.values.contains_key(&i.name));
                let roles = Roles::of(left.filter_map(|input| input.ty.as_ref()));
                let sizes = given.sizes.specialise(&symbols, &roles);
                match (equation(equal, &sizes, &roles), sizes) {
                    (Some((symbol, dim)), _) => {
                        let name = symbol.name().to_owned();
                        specialised.push(Specialised::Equal(name, dim.clone()));
                        options.equal.push((symbol, dim));
                    }
                    (None, Ok(sizes)) => fix(&mut options, &sizes, &mut specialised),
                    (None, Err(Error::NoSize { symbols })) => {
                        let symbols = symbols.iter().map(|s| s.name().to_owned()).collect();
                        return Err(Error::NeedsSize { node, op, symbols });
                    }
                    (None, Err(error)) => return Err(error),
                }
            }
            // Nothing new to give: the same complaint would come again.
            if before == specialised.len() {
                let (inputs, equal) = (Vec::new(), Vec::new());
                return Err(ImportError::Resists { node, op, inputs, symbols, equal }.into());
            }
        }
        Err(Error::Unsupported { what: "a model whose shapes depend on so many values" })
    }
}

/// The equation to import with rather than with sizes: one that the sizes asked for do not contradict. Of several, one
/// that keeps the dims that have a role.
fn equation(
    equal: Vec<(Symbol, Dim)>,
    sizes: &Result<Bindings>,
    roles: &Roles,
) -> Option<(Symbol, Dim)> {
    let holds = |(symbol, dim): &(Symbol, Dim)| match sizes {
        Ok(sizes) => sizes.get(symbol).is_some_and(|size| dim.eval(sizes) == Ok(size)),
        Err(Error::NoSize { .. }) => true,
        Err(_) => false,
    };
    let fits = equal.into_iter().filter(holds);
    fits.min_by_key(|(symbol, _)| roles.role(symbol).is_some())
}

/// Imports for these sizes alone.
fn fix(options: &mut ImportOptions, sizes: &Bindings, specialised: &mut Vec<Specialised>) {
    for (symbol, size) in sizes.iter() {
        if options.dims.insert(symbol.name().to_owned(), size).is_none() {
            specialised.push(Specialised::Size(symbol.name().to_owned(), size));
        }
    }
}

/// What an import says, with the sizes that it is for where these may be why.
fn refused(error: ImportError, specialised: &[Specialised]) -> Error {
    use InferError::{Broadcast, Dims, Elements, Size};
    let sizes = Specialised::list(specialised);
    match &error {
        ImportError::Infer { error: of, .. } if !specialised.is_empty() => match **of {
            Size(_) => Error::Oversized { sizes, source: Box::new(error) },
            Elements { .. } | Broadcast { .. } | Dims { .. } => {
                Error::Baked { sizes, source: Box::new(error) }
            }
            _ => error.into(),
        },
        _ => error.into(),
    }
}

impl Imported {
    fn new(import: Import, specialised: Vec<Specialised>) -> Self {
        let Import { graph, notes, opset, producer } = import;
        Self { graph, notes, opset, producer, specialised }
    }
}

impl Specialised {
    /// All of them, as text.
    pub fn list(all: &[Self]) -> String {
        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
        all.join(", ")
    }
}

impl fmt::Display for Specialised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(dim, size) => write!(f, "{dim}={size}"),
            Self::Equal(dim, sum) => write!(f, "{dim}={sum}"),
            Self::Values(input) => write!(f, "the values of {input}"),
        }
    }
}
