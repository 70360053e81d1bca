//! What can go wrong in the runtime.

use graphene_frontend::dim::{Dim, DimError, Symbol};
use graphene_frontend::eval::EvalError;
use graphene_frontend::infer::InferError;
use graphene_frontend::tensor::TensorError;
use graphene_fusion::FusionError;
use graphene_fusion::kernels::Refusal;
use graphene_fusion::program::BufferId;
use graphene_ir::arch::Arch;

use crate::device::Library;
use std::fmt;

/// An error of the runtime.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
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
        /// Bytes needed for the arena, the inputs, the outputs and the weights that are made.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
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
    #[error("{bytes} bytes of memory are not to be had")]
    Memory {
        /// The bytes asked for.
        bytes: usize,
    },
    /// A GPU gave no memory.
    #[error(
        "the GPU has no {} for {what}, and {} of its {} are free: smaller sizes, halves, or fewer processes leave more",
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
    #[error("not found: {0}")]
    MissingLibrary(Library),
    /// A library of CUDA's has not all that is needed.
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
    /// A buffer of another device than the kernel's, or of the same one opened another time, which has an order of events
    /// of its own.
    #[error("the buffer of {tensor} belongs to another device, or to this one opened another time")]
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

    /// The error with what memory of a GPU was wanted for, if that is what is missing.
    pub(crate) fn wanted_for(self, purpose: impl fmt::Display) -> Self {
        match self {
            Self::DeviceMemory { bytes, free, total, .. } => {
                Self::DeviceMemory { what: purpose.to_string(), bytes, free, total }
            }
            other => other,
        }
    }
}

/// Bytes as they are counted and, from a MiB on, as they are read.
fn sized(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        1..1024 => format!("{bytes} bytes ({:.1} MiB)", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{bytes} bytes ({:.1} GiB)", bytes as f64 / f64::from(1 << 30)),
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
             (3.0 GiB) of its 85899345920 bytes (80.0 GiB) are free: smaller sizes, halves, or fewer processes \
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
