//! Why a model cannot be imported, and why one operator cannot.

use super::external::ExternalDataError;
use crate::dim::{Dim, Symbol};
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::infer::InferError;
use crate::tensor::TensorError;
use crate::visible::visible;
use std::borrow::Cow;
use std::fmt;

/// Why a model cannot be imported.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ImportError {
    /// The bytes are no ONNX model.
    #[error("not an ONNX model: {}", shortened(&.0.to_string()))]
    Decode(#[from] prost::DecodeError),
    /// The model breaks a rule of ONNX at a node, or outside of nodes where `op` is empty.
    #[error("{}: {reason}", place(.node, .op))]
    Invalid {
        /// The node, input, output or initializer.
        node: String,
        /// The operator, if it is a node.
        op: String,
        /// What is wrong.
        reason: Reason,
    },
    /// Everything in the model that is not supported, not just the first.
    #[error("{} not supported:{}", parts(.0.len()), .0.iter().map(|u| format!("\n  {u}")).collect::<String>())]
    Unsupported(Vec<Unsupported>),
    /// A shape depends on values or sizes that are not known: import again with these given.
    #[error("{}: a shape or a sequence depends on what is not known{}{}", place(.node, .op), list(" the values of inputs", .inputs), list(" the sizes", .symbols))]
    Resists {
        /// The node.
        node: String,
        /// Its operator.
        op: String,
        /// Inputs of the graph whose values decide.
        inputs: Vec<String>,
        /// Symbols whose sizes decide.
        symbols: Vec<Symbol>,
        /// Equations of which each makes the shape fit whatever the sizes, such as `total = past + sequence`.
        equal: Vec<(Symbol, Dim)>,
    },
    /// Data outside of the model file cannot be read.
    #[error("initializer `{name}`: {error}")]
    External {
        /// The initializer.
        name: String,
        /// Why not.
        error: ExternalDataError,
    },
    /// Operands do not fit an operation that a node stands for.
    #[error("{}: {error}", place(.node, .op))]
    Infer {
        /// The node.
        node: String,
        /// Its operator.
        op: String,
        /// Why they do not fit.
        error: Box<InferError>,
    },
}

/// Something that is not supported.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Unsupported {
    /// The node.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// The operator's domain; empty for ONNX's own.
    pub domain: String,
    /// What about it is not supported.
    pub why: String,
}

/// Which rule a model breaks.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Reason {
    /// The model has no graph.
    #[error("holds no graph")]
    NoGraph,
    /// No version of the operator set of this domain is given, or one that is unknown.
    #[error("asks for version {version} of the operator set `{}`, which is not known", if .domain.is_empty() { "ai.onnx" } else { .domain })]
    Opset {
        /// The domain.
        domain: String,
        /// The version; 0 if none is given.
        version: i64,
    },
    /// Two values have one name.
    #[error("the name `{0}` is given twice")]
    Duplicate(String),
    /// A value is used that nothing gives.
    #[error("uses `{0}`, which nothing gives")]
    Dangling(String),
    /// Nothing gives an output of the model.
    #[error("nothing gives this output")]
    NoOutput,
    /// A node names more outputs than its operator has.
    #[error("names output {named}, but its operator has {}", count(*.given, "output"))]
    OutputCount {
        /// The output that there is not, counted from one.
        named: usize,
        /// How many there are.
        given: usize,
    },
    /// Nodes use each other's outputs.
    #[error("nodes depend on each other: {}", .0.join(", "))]
    Cycle(Vec<String>),
    /// A required input was left out.
    #[error("input {0} is required")]
    MissingInput(usize),
    /// A required attribute was left out.
    #[error("attribute `{0}` is required")]
    MissingAttribute(String),
    /// An axis is outside of the rank.
    #[error("axis {axis} does not fit {rank} dims")]
    Axis {
        /// The axis as given.
        axis: i64,
        /// The rank that it counts in.
        rank: usize,
    },
    /// A type is missing, or no tensor of one of our element types.
    #[error("has no tensor type that is supported ({0})")]
    Type(String),
    /// A size is negative.
    #[error("has the size {0}")]
    NegativeSize(i64),
    /// An element type is none of ours.
    #[error("element type {0} is not supported")]
    DType(i32),
    /// A tensor's elements do not fit its shape or type.
    #[error("{0}")]
    Tensor(TensorError),
    /// A given value does not have the type of its input.
    #[error("the value given for it is {given}, but its type is {declared}")]
    Given {
        /// The type of the value.
        given: String,
        /// The declared type.
        declared: String,
    },
    /// Functions, bodies or expressions nest too deeply, or functions call themselves.
    #[error("functions or bodies nest too deeply")]
    Depth,
    /// The model asks for more nodes than any real one has.
    #[error("the graph grows beyond {0} nodes")]
    Nodes(usize),
    /// The model asks for more computation at import than any real one does.
    #[error("takes longer to import than a model of its size may")]
    Work,
    /// The model asks for more memory at import than any real one does.
    #[error("takes more memory to import than a model of its size may")]
    Memory,
    /// A rule of one operator.
    #[error("{}", visible(.0))]
    Operator(String),
}

/// Why one node cannot be imported; the driver adds its name.
#[derive(Clone, PartialEq, Debug)]
pub enum OpError {
    /// What the node asks for is not supported.
    Unsupported(Cow<'static, str>),
    /// The node breaks a rule.
    Invalid(Reason),
    /// Operands do not fit an operation.
    Infer(InferError),
    /// A shape depends on the elements of this value.
    NeedsValue(ValueId),
    /// A failure within a body that has its own node's name.
    Import(Box<ImportError>),
}

impl From<InferError> for OpError {
    fn from(error: InferError) -> Self {
        Self::Infer(error)
    }
}

impl From<TensorError> for OpError {
    fn from(error: TensorError) -> Self {
        Self::Invalid(Reason::Tensor(error))
    }
}

impl From<Reason> for OpError {
    fn from(reason: Reason) -> Self {
        Self::Invalid(reason)
    }
}

impl From<crate::dim::DimError> for OpError {
    fn from(error: crate::dim::DimError) -> Self {
        Self::Infer(error.into())
    }
}

impl From<ImportError> for OpError {
    fn from(error: ImportError) -> Self {
        Self::Import(Box::new(error))
    }
}

impl OpError {
    /// The element type with this number in ONNX is none of ours.
    pub(super) fn dtype(number: i32) -> Self {
        Self::Unsupported(super::types::element_type(number).into())
    }

    /// The element type is not one that the operator takes.
    pub fn refuses(dtype: DType) -> Self {
        Self::Unsupported(format!("elements of {dtype}").into())
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(why) => write!(f, "not supported: {why}"),
            Self::Invalid(reason) => reason.fmt(f),
            Self::Infer(error) => error.fmt(f),
            Self::NeedsValue(value) => write!(f, "a shape depends on the elements of {value}"),
            Self::Import(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, op, domain, why } = self;
        let dot = if domain.is_empty() { "" } else { "." };
        // It may repeat the text of an attribute.
        let why = visible(why);
        write!(f, "{}: {why}", place(node, &format!("{domain}{dot}{op}")))
    }
}

/// The node and its operator, or what else has a name; the model as a whole has none.
fn place(node: &str, op: &str) -> String {
    match (node, op) {
        ("", "") => "the model".to_owned(),
        (node, "") => format!("`{node}`"),
        (node, op) => format!("`{node}` ({op})"),
    }
}

/// The decoder's message, which lists all messages on the way, by its ends.
fn shortened(text: &str) -> String {
    let parts: Vec<_> = text.split(": ").collect();
    match parts.as_slice() {
        [what, first, .., inner, why] if parts.len() > 6 => {
            format!("{what}: {first}: …: {inner}: {why}")
        }
        _ => text.to_owned(),
    }
}

fn parts(n: usize) -> String {
    if n == 1 { "1 part of the model is".to_owned() } else { format!("{n} parts of the model are") }
}

fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

fn list<T: fmt::Display>(what: &str, items: &[T]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    format!(";{what} {}", items.join(", "))
}
