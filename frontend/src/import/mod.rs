//! Import of ONNX models.
//!
//! [`import`] decodes a model, walks its nodes in topological order, and lets a row of the operator table
//! ([`ops`]) add what each stands for to a [`Graph`]. Shape arithmetic leaves nothing in that graph: beside each
//! value the importer keeps its elements in symbols where they are known, and constants are folded on the way.
//! A model file is untrusted: sizes are checked before anything is allocated, nesting is bounded, and every error
//! names the node.

use crate::dim::{Dim, Symbol};
use crate::graph::Graph;
use crate::onnx::{ModelProto, ValueInfoProto, make_names_visible};
use crate::tensor::Tensor;
use crate::types::TensorType;
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, HashSet};

mod budget;
mod build;
mod context;
mod driver;
mod error;
mod external;
pub mod ops;
mod order;
mod scopes;
mod sweep;
mod symbolic;
mod tensor;
mod types;
mod value;

pub use context::Context;
pub use error::{ImportError, OpError, Reason, Unsupported};
pub use external::{
    ExternalData, ExternalDataError, ModelFolder, NoExternalData, Reading, read_model,
};
pub use value::{Sequence, Value};

/// What is known beforehand about a model's inputs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ImportOptions {
    /// Sizes for symbols, by name; zero is one.
    pub dims: BTreeMap<String, i64>,
    /// Symbols that are replaced by dims, one after the other: what [`ImportError::Resists`] offers.
    pub equal: Vec<(Symbol, Dim)>,
    /// Shapes of inputs, by name, where the model does not say their rank.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Values for inputs, by name; such an input becomes a constant.
    pub values: BTreeMap<String, Tensor>,
    /// The seed of random numbers that the model draws; a node's own seed goes before.
    pub seed: u64,
}

/// An input that a model declares.
#[derive(Clone, PartialEq, Debug)]
pub struct DeclaredInput {
    /// Its name.
    pub name: String,
    /// Its type; `None` where its rank is not known or the type not supported, which [`import`] tells of.
    pub ty: Option<TensorType>,
}

/// An imported model.
#[derive(Clone, PartialEq, Debug)]
pub struct Import {
    /// The graph.
    pub graph: Graph,
    /// What was specialised, folded or ignored.
    pub notes: Vec<String>,
    /// The version of ONNX's own operator set that the model asks for.
    pub opset: i64,
    /// The tool that wrote the model, with its version.
    pub producer: String,
}

/// Imports a model. Every weight has memory of its own: those inside of the model are copied out of it, and those
/// elsewhere are as `weights` gives them. So a weight can be dropped by itself, and nothing keeps the model's bytes.
///
/// # Errors
/// [`ImportError`], which names the node.
pub fn import(
    model: Bytes,
    weights: &dyn ExternalData,
    options: &ImportOptions,
) -> Result<Import, ImportError> {
    driver::import(model, weights, options)
}

/// The inputs that a model asks for, in order: those that no initializer gives.
///
/// # Errors
/// [`ImportError::Decode`] for bytes that are no ONNX model.
pub fn declared_inputs(model: Bytes) -> Result<Vec<DeclaredInput>, ImportError> {
    let graph = read(model)?.graph.unwrap_or_default();
    let initial: HashSet<_> = graph.initializer.iter().map(|tensor| &tensor.name).collect();
    let asked = graph.input.iter().filter(|input| !initial.contains(&input.name));
    let declared = |input: &ValueInfoProto| DeclaredInput {
        name: input.name.clone(),
        ty: types::read_type(input, None).ok(),
    };
    Ok(asked.map(declared).collect())
}

/// Decodes a model. Names in it tell where nodes stand, and may be shown as they are.
fn read(model: Bytes) -> Result<ModelProto, ImportError> {
    let mut model = ModelProto::decode(model)?;
    scopes::name_by_scopes(&mut model);
    make_names_visible(&mut model);
    Ok(model)
}

/// Reads a tensor message, for example from a file of test data.
///
/// # Errors
/// [`OpError`] if it is malformed or its element type is not supported.
pub fn read_tensor(
    proto: &crate::onnx::TensorProto,
    weights: &dyn ExternalData,
) -> Result<Tensor, OpError> {
    tensor::read_tensor(proto, weights)
}
