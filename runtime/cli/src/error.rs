//! What can go wrong, and the exit code that it has.

use crate::exit::Exit;
use crate::interrupt::Signal;
use crate::npy::NpyError;
use graphene_frontend::dim::{DimError, Symbol};
use graphene_frontend::eval::EvalError;
use graphene_frontend::testdata::DataError;
use graphene_fusion::FusionError;
use graphene_models::ZooError;
use graphene_runtime::device::Library;
use std::path::PathBuf;
use std::time::Duration;

/// The command's error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Flags do not go together, or a flag has no meaning for this model.
    #[error("{flag}: {reason}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// Why it is refused.
        reason: String,
    },
    /// A flag names a symbol that the model does not have.
    #[error("{flag} {name}: the model has no such dim{}", known_dims(.known))]
    UnknownDim {
        /// The flag.
        flag: &'static str,
        /// The name as given.
        name: String,
        /// The model's symbols, each with the flag that gives it a size by its meaning.
        known: Vec<String>,
    },
    /// A size conflicts with another or with the model.
    #[error("{what}: {source}")]
    Dim {
        /// Where the size came from.
        what: String,
        /// The conflict.
        source: DimError,
    },
    /// An input is given that the model does not have.
    #[error("the model has no input `{name}`{}", known_names(.known))]
    UnknownInput {
        /// The name as given.
        name: String,
        /// The model's inputs.
        known: Vec<String>,
    },
    /// A file of what tuning found cannot be read.
    #[error("{}: {reason}; remove it to tune again", path.display())]
    Tuning {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file is no result that can be compared.
    #[error("{}: {reason}; `graphene-run MODEL --json > FILE.json` makes a result", path.display())]
    Results {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// An input is given twice.
    #[error("input `{0}` is given twice")]
    RepeatedInput(String),
    /// An input has another type or shape than the model asks for.
    #[error("input `{name}` should be {expected}, but {origin} has {found}")]
    Input {
        /// The input.
        name: String,
        /// What the model asks for.
        expected: String,
        /// What was given.
        found: String,
        /// Where it was read.
        origin: Origin,
    },
    /// Some inputs were given, and this one was not.
    #[error("no data for input `{name}` ({expected}) in {folder}")]
    MissingInput {
        /// The input.
        name: String,
        /// What the model asks for.
        expected: String,
        /// The folder that should have it.
        folder: PathBuf,
    },
    /// No random values can be made for an input.
    #[error(
        "input `{name}` ({ty}): {reason}; pass it with --input {}",
        quoted(&format!("{name}=@FILE"))
    )]
    NoRandom {
        /// The input.
        name: String,
        /// Its type.
        ty: String,
        /// Why not.
        reason: String,
    },
    /// A NumPy file cannot be read.
    #[error("{}: {source}", path.display())]
    Npy {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: NpyError,
    },
    /// A data folder cannot be read.
    #[error(transparent)]
    DataSet(#[from] DataError),
    /// A data folder does not fit the model.
    #[error("{}: {reason}", path.display())]
    Data {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What is named as a model cannot be read as one.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What it is instead, or lacks, and what to do.
        reason: String,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Stdout takes no more.
    #[error("cannot write to stdout: {0}")]
    Output(std::io::Error),
    /// The model cannot be lowered or printed: a defect of the compiler.
    #[error(transparent)]
    Fusion(#[from] FusionError),
    /// A kernel cannot be printed: a defect of the compiler.
    #[error(transparent)]
    Kernel(#[from] graphene_ir::Error),
    /// The model cannot be read, imported, sized or planned.
    #[error("{}", with_flags(.0))]
    Model(#[from] graphene_runtime::Error),
    /// The zoo has no such model.
    #[error(transparent)]
    Zoo(#[from] ZooError),
    /// The model's weights cannot be prepared.
    #[error("preparing the weights: {0}")]
    Compile(#[source] graphene_runtime::Error),
    /// An executor cannot be compiled for a GPU.
    #[error("{executor} execution on the GPU: {source}{}", without(.source))]
    Kernels {
        /// The executor.
        executor: &'static str,
        /// What it says.
        source: graphene_runtime::Error,
    },
    /// An executor refuses the model at these sizes or with these inputs.
    #[error("{executor} execution{}: {source}{}", at_sizes(.sizes), where_it_went_wrong(.source))]
    Run {
        /// The executor.
        executor: &'static str,
        /// The sizes.
        sizes: String,
        /// What it says.
        source: Box<graphene_runtime::Error>,
    },
    /// The reference evaluator refuses the model at these sizes or with these inputs.
    #[error("reference execution{}: {source}", at_sizes(.sizes))]
    Evaluate {
        /// The sizes.
        sizes: String,
        /// What it says.
        source: EvalError,
    },
    /// The device, be it the host, does not have the memory that these sizes need.
    #[error(
        "{}{} of memory are needed for inputs, outputs and intermediates, but the device has {}",
        if .sizes.is_empty() { String::new() } else { format!("{sizes}: ") },
        crate::human::bytes(*.needed),
        crate::human::bytes(*.memory)
    )]
    Memory {
        /// The sizes.
        sizes: String,
        /// Bytes needed, at least.
        needed: u64,
        /// Bytes of physical memory.
        memory: u64,
    },
    /// What random inputs lead to at these sizes lies beyond a table.
    #[error(
        "{sizes}: {symbol}={size} is too large, {symbol}={largest} is the largest possible: `{node}` ({op}) would pick row \
         {highest} of {rows}"
    )]
    Limit {
        /// The sizes.
        sizes: String,
        /// The node that picks.
        node: String,
        /// Its operator.
        op: &'static str,
        /// The highest row that it may pick, the first being 0.
        highest: i128,
        /// Rows of the table.
        rows: i64,
        /// The dim that is at fault.
        symbol: Symbol,
        /// Its size.
        size: i64,
        /// The largest size that leaves no row out.
        largest: i64,
    },
    /// An index that follows from given inputs is out of range.
    #[error("{source}; the index follows from {inputs}")]
    Index {
        /// The inputs and where they were read.
        inputs: String,
        /// What the executor says.
        source: Box<Error>,
    },
    /// A device or a library is missing.
    #[error("{0}")]
    Device(String),
    /// A signal came, and nothing was measured yet, or it was the second.
    #[error("{} while {stage}", if *.signal == Signal::Interrupt { "interrupted" } else { "terminated" })]
    Signal {
        /// Which.
        signal: Signal,
        /// What was being done.
        stage: &'static str,
    },
    /// Not everything was done in time.
    #[error("timed out after {} while {stage}", crate::human::time(*.limit))]
    Timeout {
        /// The time given.
        limit: Duration,
        /// What was being done.
        stage: &'static str,
    },
}

/// Where an input's data came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A file.
    File(PathBuf),
    /// Texts of the command line.
    Text,
    /// Drawn at random.
    Random,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Text => f.write_str("--text"),
            Self::Random => f.write_str("random"),
        }
    }
}

impl Error {
    /// An error about a flag.
    pub(crate) fn flag(flag: &'static str, reason: impl Into<String>) -> Self {
        Self::Flag { flag, reason: reason.into() }
    }

    /// What planning says, with the flag for what it may be about.
    pub(crate) fn of_elements(error: graphene_runtime::Error) -> Self {
        use graphene_runtime::Error as E;
        match error {
            E::Target { wanted, .. } if wanted != "tf32" => {
                let reason =
                    format!("{wanted} is for GPUs; give `--target`, or use `bf16` or `model`");
                Self::flag("--dtype", reason)
            }
            E::Elements { .. } | E::Target { .. } => Self::flag("--dtype", error.to_string()),
            error => error.into(),
        }
    }

    /// How the command ends by it.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Fusion(_) | Self::Kernel(_) => Exit::Internal,
            Self::Output(_) | Self::Read { .. } | Self::Write { .. } => Exit::Io,
            Self::Zoo(ZooError::Write { .. }) => Exit::Io,
            Self::Npy { source, .. } if source.is_io() => Exit::Io,
            Self::DataSet(DataError::Read { .. }) => Exit::Io,
            Self::Flag { .. }
            | Self::UnknownDim { .. }
            | Self::Dim { .. }
            | Self::UnknownInput { .. }
            | Self::RepeatedInput(_)
            | Self::Tuning { .. }
            | Self::Results { .. }
            | Self::Input { .. }
            | Self::MissingInput { .. }
            | Self::NoRandom { .. }
            | Self::Zoo(_)
            | Self::Npy { .. }
            | Self::Data { .. }
            | Self::DataSet(_)
            | Self::Memory { .. }
            | Self::Index { .. }
            | Self::Limit { .. } => Exit::Usage,
            Self::Run { source, .. } => run_exit(source),
            Self::Kernels { source, .. } => run_exit(source),
            Self::Model(error) => model_exit(error),
            Self::Unreadable { .. } | Self::Evaluate { .. } | Self::Compile(_) => Exit::Model,
            Self::Device(_) => Exit::Device,
            Self::Signal { signal, .. } => signal.exit(),
            Self::Timeout { .. } => Exit::Timeout,
        }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.exit().code()
    }

    /// The runtime's number for it, if it is the runtime's.
    pub(crate) fn runtime_code(&self) -> Option<u16> {
        match self {
            Self::Run { source, .. } => Some(source.code()),
            Self::Model(source) | Self::Compile(source) | Self::Kernels { source, .. } => {
                Some(source.code())
            }
            Self::Index { source, .. } => source.runtime_code(),
            _ => None,
        }
    }
}

/// How the command ends by what is wrong with a model, or with what is asked of it.
fn model_exit(error: &graphene_runtime::Error) -> Exit {
    use graphene_runtime::ErrorKind as Kind;
    match (error, error.kind()) {
        (graphene_runtime::Error::Read { .. }, _) => Exit::Io,
        (_, Kind::Request | Kind::Limit) => Exit::Usage,
        (_, Kind::Model | Kind::Unsupported) => Exit::Model,
        (_, Kind::Device) => Exit::Device,
        // A defect; and what nobody asks for here.
        _ => Exit::Internal,
    }
}

/// What is wrong with a model, with the flags that help.
fn with_flags(error: &graphene_runtime::Error) -> String {
    use graphene_runtime::Error as E;
    let sizes = |symbols: &[Symbol]| {
        format!(
            "the model has dims without a size: {}; pass {}",
            names(symbols),
            dim_flags(symbols)
        )
    };
    match error {
        E::NoSize { symbols } => sizes(symbols),
        E::NeedsSize { symbols, .. } => {
            sizes(&symbols.iter().map(|name| Symbol::new(name)).collect::<Vec<_>>())
        }
        E::NeedsValue { input, node, op } => {
            let flag = quoted(&format!("{input}=@FILE"));
            format!(
                "a shape at `{node}` ({op}) depends on the values of input `{input}`; pass it with --input {flag}"
            )
        }
        E::Baked { .. } => {
            format!(
                "{error}: a model that is made for certain sizes takes them by --batch, --seq or --dim"
            )
        }
        E::Dim(DimError::Unbound(symbol)) => {
            format!("{error}; pass {}", dim_flags(std::slice::from_ref(symbol)))
        }
        error => error.to_string(),
    }
}

/// How the command ends by what a run ran into: whose fault it is.
fn run_exit(error: &graphene_runtime::Error) -> Exit {
    use graphene_runtime::{Error as E, ErrorKind as Kind};
    match (error, error.kind()) {
        (E::At { error, .. }, _) => run_exit(error),
        (E::Device { status, .. }, _) if is_fault(status) => Exit::Internal,
        (E::Device { status, .. }, _) if status.starts_with("CUDA_ERROR_OUT_OF_MEMORY") => {
            Exit::Usage
        }
        (E::Largest { .. }, _) => Exit::Usage,
        (_, Kind::Limit) => Exit::Usage,
        (_, Kind::Request | Kind::Model | Kind::Unsupported) => Exit::Model,
        (_, Kind::Device) => Exit::Device,
        // A defect; and what nobody asks for here.
        _ => Exit::Internal,
    }
}

/// Whether a kernel did what none may: a defect, not a device that is missing.
fn is_fault(status: &str) -> bool {
    const FAULTS: [&str; 8] = [
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_LAUNCH_FAILED",
    ];
    FAULTS.iter().any(|fault| status.starts_with(fault))
}

/// How to find the step that went wrong, where nothing names it: all of them are one launch.
fn where_it_went_wrong(error: &graphene_runtime::Error) -> &'static str {
    match error {
        graphene_runtime::Error::Device { status, .. } if is_fault(status) => {
            "; a kernel went wrong: --bisect runs step by step and names it"
        }
        _ => "",
    }
}

/// How to go on without a library that fused execution does not need.
fn without(error: &graphene_runtime::Error) -> &'static str {
    use graphene_runtime::Error as E;
    match error {
        E::MissingLibrary(Library::CublasLt | Library::Cudnn)
        | E::OldLibrary(Library::CublasLt | Library::Cudnn) => {
            "; --exec fused does without, --device cpu without any of them"
        }
        _ => "",
    }
}

fn names(symbols: &[Symbol]) -> String {
    let names: Vec<_> = symbols.iter().map(|symbol| format!("`{}`", symbol.name())).collect();
    names.join(", ")
}

fn dim_flags(symbols: &[Symbol]) -> String {
    let flags: Vec<_> = symbols
        .iter()
        .map(|symbol| format!("--dim {}", quoted(&format!("{}=N", symbol.name()))))
        .collect();
    flags.join(" ")
}

/// An argument as a shell takes it.
pub(crate) fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@,+".contains(c);
    match argument.chars().all(plain) {
        true => argument.to_owned(),
        false => format!("'{}'", argument.replace('\'', r"'\''")),
    }
}

fn known_names(known: &[String]) -> String {
    match known {
        [] => String::new(),
        known => format!("; it has {}", known.join(", ")),
    }
}

fn known_dims(known: &[String]) -> String {
    match known {
        [] => "; the sizes of its inputs are fixed".to_owned(),
        known => known_names(known),
    }
}

fn at_sizes(sizes: &str) -> String {
    if sizes.is_empty() { String::new() } else { format!(" at {sizes}") }
}

#[cfg(test)]
mod tests {
    use super::{Error, Library};
    use graphene_frontend::dim::Symbol;

    /// What is missing is told with how to get it, whatever stands around it.
    #[test]
    fn missing_libraries_end_with_a_code_of_their_own() {
        use graphene_runtime::Error as E;
        for (library, goes_on) in [(Library::CublasLt, true), (Library::Nvrtc, false)] {
            for source in [E::MissingLibrary(library), E::OldLibrary(library)] {
                let error = Error::Kernels { executor: "library", source };
                assert_eq!(error.code(), 6);
                let text = error.to_string();
                assert!(text.contains("; install ") && text.contains("nvidia-"), "{text}");
                assert_eq!(text.contains("; --exec fused does without"), goes_on, "{text}");
            }
        }
    }

    #[test]
    fn kernels_that_go_wrong_are_defects() {
        use graphene_runtime::Error as E;
        let rows = [
            ("CUDA_ERROR_ILLEGAL_ADDRESS", 1),
            ("CUDA_ERROR_OUT_OF_MEMORY: the GPU has no memory left", 2),
            ("CUDA_ERROR_SYSTEM_NOT_READY", 6),
        ];
        for (status, code) in rows {
            let source = E::Device { call: "cuGraphLaunch", status: status.to_owned() };
            let (sizes, source) = (String::new(), Box::new(source));
            let error = Error::Run { executor: "fused", sizes, source };
            assert_eq!(error.code(), code, "{status}");
            assert_eq!(error.to_string().contains("--bisect"), code == 1, "{error}");
        }
    }

    #[test]
    fn flags_are_quoted_for_a_shell() {
        let symbols = vec![Symbol::new("H"), Symbol::new("it's odd")];
        let unbound = Error::Model(graphene_runtime::Error::NoSize { symbols });
        let text = unbound.to_string();
        assert!(text.ends_with(r"; pass --dim H=N --dim 'it'\''s odd=N'"), "{text}");
    }
}
