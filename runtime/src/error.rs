//! What can go wrong in the runtime.
//!
//! One enum for everything. [`Error::kind`] says whose fault it is and what a caller can do, [`Error::code`] is a
//! number for it that stays; texts name the port or the node, say what is needed and what was given.

mod kind;

pub use kind::ErrorKind;

use graphene_frontend::dim::{Dim, DimError, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::EvalError;
use graphene_frontend::import::ImportError;
use graphene_frontend::infer::InferError;
use graphene_frontend::tensor::TensorError;
use graphene_fusion::FusionError;
use graphene_fusion::kernels::Refusal;
use graphene_fusion::program::BufferId;
use graphene_ir::arch::{Arch, Feature};

#[cfg(feature = "cuda")]
use crate::device::library::Library;
use std::path::PathBuf;

/// An error of the runtime.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name of no input or output of the model.
    #[error("the model has no {what} {name:?}; it has {}", listed(known))]
    UnknownPort {
        /// `input` or `output`.
        what: &'static str,
        /// The name given.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// An input that a request does not have.
    #[error("input {name:?} ({expected}) is missing")]
    MissingInput {
        /// Its name.
        name: String,
        /// Its type.
        expected: String,
    },
    /// An input or output that a request has twice.
    #[error("{what} {name:?} is given twice")]
    RepeatedPort {
        /// `input` or `output`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A caller's memory for an output is of another type or length than the output.
    #[error(
        "output {name:?} is {expected}, {needed} bytes; its memory is for {found}, {bytes} bytes"
    )]
    Output {
        /// Its name.
        name: String,
        /// Type and shape under the request's sizes.
        expected: String,
        /// Bytes that it has.
        needed: usize,
        /// The element type of the memory.
        found: String,
        /// Bytes of the memory.
        bytes: usize,
    },
    /// An array whose elements do not lie in row-major order without gaps.
    #[error(
        "the elements of an array of shape {shape:?} do not lie in row-major order without gaps"
    )]
    NotContiguous {
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Two inputs give a dim two sizes.
    #[error("input {name:?} has {size} along axis {axis}, where {} is {expected}{}", if dim.known().is_some() { "it".to_owned() } else { format!("`{dim}`") }, by.as_ref().map(|by| format!(" by input {by:?}")).unwrap_or_default())]
    Conflict {
        /// The input.
        name: String,
        /// The axis.
        axis: usize,
        /// The dim, an expression of symbols.
        dim: Dim,
        /// The size given.
        size: usize,
        /// The size that the dim has.
        expected: i64,
        /// The input that gave it.
        by: Option<String>,
    },
    /// No input's shape says how large a dim is.
    #[error("no input gives the dim `{symbol}` a size")]
    Unsized {
        /// The dim.
        symbol: Symbol,
    },
    /// A size that the model's profile does not have.
    #[error("{symbol}={size} is not in the model's profile: {allowed}")]
    Profile {
        /// The dim.
        symbol: Symbol,
        /// The size asked for.
        size: i64,
        /// The sizes that the profile allows.
        allowed: String,
    },
    /// A profile that leaves a dim no size.
    #[error(
        "the profile has no size for the dim {name:?}: a range goes upwards, and buckets are one or more"
    )]
    EmptyProfile {
        /// The dim.
        name: String,
    },
    /// A name of no dim of the model.
    #[error("the model has no dim {name:?}; it has {}", listed(known))]
    UnknownDim {
        /// The name given.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// A shape of the model depends on sizes that are to be given when it is loaded.
    #[error(
        "{op} `{node}`: a shape depends on the size of {}, which has to be given when the model is loaded",
        listed(symbols)
    )]
    NeedsSize {
        /// The node.
        node: String,
        /// Its operator.
        op: String,
        /// The dims.
        symbols: Vec<String>,
    },
    /// A shape of the model depends on the values of an input, which are to be given when it is loaded.
    #[error(
        "{op} `{node}`: a shape depends on the values of input {input:?}, which have to be given when the model is loaded"
    )]
    NeedsValue {
        /// The input.
        input: String,
        /// The node.
        node: String,
        /// Its operator.
        op: String,
    },
    /// Two sizes that callers give one dim.
    #[error("{origin}: dimension `{symbol}` cannot be {size}: it is {before} by {by}")]
    Contradiction {
        /// Where the size came from, in the caller's words.
        origin: String,
        /// The dim.
        symbol: Symbol,
        /// The size.
        size: i64,
        /// The size that it has already.
        before: i64,
        /// Where that came from.
        by: String,
    },
    /// A size for the batch or the sequence of a model that has it at another, or has none.
    #[error("{origin}: {}", match fixed {
        Some(fixed) => format!("the model's {role} is fixed at {fixed}"),
        None => "the model has no such dim".to_owned(),
    })]
    Role {
        /// Where the size came from, in the caller's words.
        origin: String,
        /// `batch` or `sequence`.
        role: &'static str,
        /// The size that the model has.
        fixed: Option<i64>,
    },
    /// Dims without a size.
    #[error("the model has dims without a size: {}", ticked(symbols))]
    NoSize {
        /// The dims.
        symbols: Vec<Symbol>,
    },
    /// The model cannot be imported for sizes as large as these, on which a shape depends.
    #[error("{sizes}: {source}")]
    Oversized {
        /// The sizes, and inputs whose values count.
        sizes: String,
        /// What the importer says.
        source: Box<ImportError>,
    },
    /// The model cannot be imported for these sizes, on which a shape depends; it may be made for others.
    #[error("{source}; this is so with {sizes}")]
    Baked {
        /// The sizes, and inputs whose values count.
        sizes: String,
        /// What the importer says.
        source: Box<ImportError>,
    },
    /// The model has floats of a type that is not computed in another.
    #[error("the model computes in {found}, not in {wanted}")]
    Elements {
        /// The model's type.
        found: DType,
        /// The type asked for.
        wanted: DType,
    },
    /// Floats that are not computed with on a target.
    #[error("{wanted} is for GPUs{}, not for {target}", needs.map(|needs| format!(" that have {needs}")).unwrap_or_default())]
    Target {
        /// The elements asked for: `tf32` or `f16`.
        wanted: String,
        /// What they need of a GPU.
        needs: Option<Feature>,
        /// The target.
        target: String,
    },
    /// The engine's memory limit leaves too little.
    #[error("{what} needs {}; the engine's memory limit is {}, of which {} are in use", sized(*needed), sized(*limit), sized(*used))]
    MemoryLimit {
        /// What the memory is for.
        what: String,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that are reserved by others.
        used: u64,
        /// Bytes of the limit.
        limit: u64,
    },
    /// All contexts are taken and the queue is full.
    #[error("all contexts are in use and the queue is full: {waiting} requests wait")]
    Busy {
        /// The queue's length.
        waiting: usize,
    },
    /// The caller cancelled the run.
    #[error("the run was cancelled")]
    Cancelled,
    /// The deadline passed before the run was done.
    #[error("the deadline has passed")]
    Deadline,
    /// The engine's GPU is lost to this process.
    #[error("the engine is unhealthy and takes no more runs: {cause}")]
    Unhealthy {
        /// The error after which it was.
        cause: String,
    },
    /// A run panicked: a defect of this crate. The context is replaced.
    #[error("a run panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// A model file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A model cannot be imported.
    #[error(transparent)]
    Import(#[from] Box<ImportError>),
    /// Threads cannot be started.
    #[error("cannot start a thread: {reason}")]
    Threads {
        /// What the system says.
        reason: String,
    },
    /// A view reaches an element outside the slice that it looks at.
    #[error("{what} reaches element {needed}, but the slice holds {len}")]
    OutOfBounds {
        /// The operand.
        what: &'static str,
        /// The element reached (negative where a stride leads below the slice's start).
        needed: i128,
        /// The number of elements in the slice.
        len: usize,
    },
    /// Two sizes that must agree do not.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// What was measured.
        what: &'static str,
        /// The size that the other operands ask for.
        expected: usize,
        /// The size found.
        found: usize,
    },
    /// The layout of an output gives two of its elements one place, so that the result would depend
    /// on the order of writing.
    #[error("{what} writes an element more than once")]
    Overlap {
        /// The operand.
        what: &'static str,
    },
    /// A size does not fit its integer type.
    #[error("{what} is too large")]
    TooLarge {
        /// What was measured.
        what: &'static str,
    },
    /// A size came out below zero.
    #[error("the size `{dim}` is negative: {size}")]
    Negative {
        /// The expression.
        dim: Dim,
        /// What it comes to.
        size: i64,
    },
    /// More memory is needed than was allowed for.
    #[error("{needed} bytes of memory are needed, and there are {limit}")]
    Exceeds {
        /// Bytes needed for the arena, the inputs, the outputs and the weights.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A program without its weights: another module took them when it was compiled.
    #[error(
        "the weight {weight:?} is gone: a module that was compiled from this program before took it"
    )]
    Released {
        /// The weight's name.
        weight: String,
    },
    /// A dim is larger than an operation takes it, as a sequence longer than a model's table of positions.
    #[error("{symbol}={size} is too large, {symbol}={largest} is the largest possible: {source}")]
    Largest {
        /// The dim.
        symbol: Symbol,
        /// The size that it was given.
        size: i64,
        /// The largest one with which the operation takes its inputs, all other sizes being what they are.
        largest: i64,
        /// What the operation says.
        source: Box<InferError>,
    },
    /// An index is outside `-size..size`.
    #[error("index {index} is outside an axis of size {size}")]
    Index {
        /// The index as given.
        index: i64,
        /// The size of the axis.
        size: usize,
    },
    /// An axis is outside the shape or is named twice.
    #[error("axis {axis} of a shape of rank {rank} is out of range or named twice")]
    Axis {
        /// The axis as given.
        axis: usize,
        /// The rank of the shape.
        rank: usize,
    },
    /// A kernel was asked for what it does not do.
    #[error("{what} cannot be run")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// Two buffers of one step share memory: a defect of the plan.
    #[error("buffer {buffer} shares memory with another of its step")]
    Shared {
        /// One of the two.
        buffer: BufferId,
    },
    /// The system gave no memory.
    #[error("{bytes} bytes of memory cannot be allocated")]
    Memory {
        /// The bytes asked for.
        bytes: usize,
    },
    /// A GPU gave no memory.
    #[error(
        "the GPU has no {} for {what}, and {} of its {} are free: smaller sizes, fp16, or fewer processes leave more",
        sized(*bytes), sized(*free), sized(*total)
    )]
    DeviceMemory {
        /// What it was for.
        what: String,
        /// The bytes asked for.
        bytes: usize,
        /// Bytes that nobody has.
        free: usize,
        /// Bytes of the GPU.
        total: usize,
    },
    /// Another number of inputs than the program has.
    #[error("the program takes {expected} inputs, but {found} were given")]
    InputCount {
        /// The program's inputs.
        expected: usize,
        /// The inputs given.
        found: usize,
    },
    /// An input of another type or shape than bound.
    #[error("input {name:?} must be {expected}, but is {found}")]
    Input {
        /// Its name.
        name: String,
        /// Type and shape under the bound sizes.
        expected: String,
        /// Type and shape given.
        found: String,
    },
    /// A dimension without a size.
    #[error(transparent)]
    Dim(#[from] DimError),
    /// An operation does not take its inputs at the bound sizes.
    #[error(transparent)]
    Infer(#[from] Box<InferError>),
    /// Bytes and a shape that make no tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The reference evaluator refused.
    #[error(transparent)]
    Eval(#[from] Box<EvalError>),
    /// A library of CUDA's is not installed, or not where it is looked for.
    #[cfg(feature = "cuda")]
    #[error("not found: {0}")]
    MissingLibrary(Library),
    /// A library of CUDA's has not all that is needed.
    #[cfg(feature = "cuda")]
    #[error("too old: {0}")]
    OldLibrary(Library),
    /// A number of no GPU.
    #[error("there is no GPU {index}; the driver knows of {count}")]
    NoDevice {
        /// The number asked for, from 0.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// CUDA refused a call, or says at it what went wrong before.
    #[error("{call}: {status}")]
    Device {
        /// The function of CUDA's.
        call: &'static str,
        /// What it returned.
        status: String,
    },
    /// A source that NVRTC does not compile.
    #[error("{name} does not compile for {arch}:\n{log}")]
    Compile {
        /// The source's name.
        name: String,
        /// The architecture.
        arch: Arch,
        /// What NVRTC said.
        log: String,
    },
    /// A graph that cannot be planned.
    #[error(transparent)]
    Plan(#[from] Box<FusionError>),
    /// No template makes a kernel of a step.
    #[error("no kernel: {0}")]
    Refused(#[from] Refusal),
    /// A template's kernel that cannot be emitted: a defect of the template.
    #[error(transparent)]
    Kernel(#[from] graphene_ir::Error),
    /// A kernel has other parameters than its description says.
    #[error("the kernel takes parameters of {found:?} bytes, not {expected:?}")]
    Parameters {
        /// The sizes by the description.
        expected: Vec<usize>,
        /// The sizes found.
        found: Vec<usize>,
    },
    /// A kernel was not given one of its tensors or symbols.
    #[error("{name} has no value")]
    Unbound {
        /// The tensor, the symbol, or an expression of symbols.
        name: String,
    },
    /// A symbol's value is outside what the kernel was made for.
    #[error("{name} is {value}, but must be in 0..={max}")]
    Symbol {
        /// The symbol.
        name: String,
        /// The value given.
        value: i64,
        /// The largest allowed.
        max: i64,
    },
    /// A condition of a kernel does not hold.
    #[error("{what} is {value}, which is no multiple of {divisor}")]
    Condition {
        /// What must be a multiple.
        what: String,
        /// Its value.
        value: i64,
        /// Of what.
        divisor: i64,
    },
    /// A buffer ends before its tensor.
    #[error("{tensor} needs {needed} bytes, but its buffer has {bytes}")]
    Short {
        /// The tensor.
        tensor: String,
        /// The bytes that it spans.
        needed: i128,
        /// The bytes of the buffer.
        bytes: usize,
    },
    /// A buffer of another device, or of another stream, whose work has an order of its own.
    #[error(
        "the buffer of {tensor} belongs to another stream or device: Stream::adopt makes it this stream's, where \
         the device is the same"
    )]
    Foreign {
        /// The tensor.
        tensor: String,
    },
    /// A grid that cannot be launched: empty, too large, or not made of whole clusters.
    #[error("a grid of {blocks} blocks in clusters of {cluster}")]
    Grid {
        /// The number of blocks.
        blocks: i64,
        /// Blocks of a cluster.
        cluster: u32,
    },
    /// An error at a step or buffer of the program.
    #[error("{place}: {error}")]
    At {
        /// The step's or buffer's name.
        place: String,
        /// What went wrong.
        error: Box<Error>,
    },
}

/// The runtime's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The error with the step or buffer at which it arose.
    pub(crate) fn at(self, place: &str) -> Self {
        Self::At { place: place.to_owned(), error: Box::new(self) }
    }

    /// Whether the GPU is lost to this process: what runs next fails as well, whoever runs it, until the process starts
    /// anew. An engine that sees one is unhealthy.
    pub fn is_sticky(&self) -> bool {
        match self {
            Self::At { error, .. } => error.is_sticky(),
            Self::Device { status, .. } => {
                let name = status.split(|c: char| !c.is_ascii_uppercase() && c != '_').next();
                name.is_some_and(|name| STICKY.contains(&name))
            }
            _ => false,
        }
    }

    /// The error with what memory of a GPU was wanted for, if that is what is missing.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn wanted_for(self, purpose: impl std::fmt::Display) -> Self {
        match self {
            Self::DeviceMemory { bytes, free, total, .. } => {
                Self::DeviceMemory { what: purpose.to_string(), bytes, free, total }
            }
            other => other,
        }
    }
}

/// How the status begins of what no later call recovers from: CUDA says it again at every call of the process, whose
/// context on that GPU is lost.
const STICKY: [&str; 19] = [
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_DEINITIALIZED",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_EXTERNAL_DEVICE",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_MPS_CLIENT_TERMINATED",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    "CUDA_ERROR_UNKNOWN",
];

/// Bytes as they are counted and, from a MiB on, as they are read.
fn sized(bytes: impl TryInto<u64>) -> String {
    let bytes = bytes.try_into().unwrap_or(u64::MAX);
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        1..1024 => format!("{bytes} bytes ({:.1} MiB)", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{bytes} bytes ({:.1} GiB)", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Names in a list, `none` where there are none.
fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Dims in a list, each between ticks.
fn ticked(symbols: &[Symbol]) -> String {
    let names: Vec<_> = symbols.iter().map(|symbol| format!("`{symbol}`")).collect();
    names.join(", ")
}

impl From<ImportError> for Error {
    fn from(error: ImportError) -> Self {
        Self::Import(Box::new(error))
    }
}

impl From<FusionError> for Error {
    fn from(error: FusionError) -> Self {
        Self::Plan(Box::new(error))
    }
}

impl From<EvalError> for Error {
    fn from(error: EvalError) -> Self {
        Self::Eval(Box::new(error))
    }
}

impl From<InferError> for Error {
    fn from(error: InferError) -> Self {
        match error {
            InferError::Dim(error) => Self::Dim(error),
            error => Self::Infer(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn what_a_kernel_broke_is_told_from_what_was_refused() {
        let of =
            |status: &str| Error::Device { call: "cuStreamSynchronize", status: status.to_owned() };
        assert!(of("CUDA_ERROR_ILLEGAL_ADDRESS").at("layer").is_sticky());
        assert!(of("CUDA_ERROR_ECC_UNCORRECTABLE: at a step").is_sticky());
        assert!(!of("CUDA_ERROR_OUT_OF_MEMORY: the GPU has none").is_sticky());
        assert!(!of("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES").is_sticky());
        assert!(!of("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED").is_sticky());
        assert!(!Error::TooLarge { what: "a buffer" }.is_sticky());
    }

    #[test]
    fn missing_memory_says_for_what_and_how_much() {
        let error = |bytes| Error::DeviceMemory {
            what: "a buffer".to_owned(),
            bytes,
            free: 3 << 30,
            total: 80 << 30,
        };
        let arena = error(5 << 30).wanted_for("the arena of intermediates").at("layer");
        assert_eq!(
            arena.to_string(),
            "layer: the GPU has no 5368709120 bytes (5.0 GiB) for the arena of intermediates, and 3221225472 bytes \
             (3.0 GiB) of its 85899345920 bytes (80.0 GiB) are free: smaller sizes, fp16, or fewer processes \
             leave more"
        );
        let text = error(3 << 19).to_string();
        assert!(text.starts_with("the GPU has no 1572864 bytes (1.5 MiB) for a buffer"), "{text}");
        let text = error(12).to_string();
        assert!(text.starts_with("the GPU has no 12 bytes for a buffer"), "{text}");
        let other = Error::Unsupported { what: "it" };
        assert_eq!(other.clone().wanted_for("the arena"), other);
    }
}
