//! CUDA C++ to machine code.

use super::sys;
use crate::error::{Error, Result};
use graphene_ir::arch::Arch;
use std::sync::OnceLock;

/// Machine code of a kernel for one architecture, or PTX.
#[derive(Debug, Clone)]
pub struct Cubin {
    arch: Arch,
    image: Vec<u8>,
    log: CompileLog,
}

/// What ptxas said of the kernels of a source; numbers are the largest of any kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompileLog {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes that a thread stores because it has not registers enough, each store counted once.
    pub spill_stores: u32,
    /// Bytes that it loads again.
    pub spill_loads: u32,
    /// Bytes of a thread's stack.
    pub stack: u32,
    /// Whether matmuls of warpgroups wait for each other (ptxas C7510 and its neighbours, one a reason).
    pub serialized_wgmma: bool,
    /// Whether the register budgets of roles are not obeyed (ptxas C7508).
    pub setmaxnreg_ignored: bool,
    /// All that NVRTC and ptxas said.
    pub text: String,
}

/// Compiles a source without includes by NVRTC. `name` stands for its file in messages.
///
/// # Errors
///
/// [`Error::MissingLibrary`] without NVRTC; [`Error::Compile`] with its log where the source has errors or the
/// architecture is unknown to it.
pub fn compile(source: &str, arch: Arch, name: &str) -> Result<Cubin> {
    image(source, arch, name, &options(arch), sys::Form::Cubin)
}

/// Likewise to PTX, which the driver compiles for its GPU when it is loaded: one of the architecture or a later one, but
/// for those whose name ends in a letter.
///
/// # Errors
///
/// As [`compile`].
pub fn compile_ptx(source: &str, arch: Arch, name: &str) -> Result<Cubin> {
    let mut options = options(arch);
    options[0] = format!("--gpu-architecture={}", arch.to_string().replace("sm_", "compute_"));
    image(source, arch, name, &options, sys::Form::Ptx)
}

fn image(
    source: &str,
    arch: Arch,
    name: &str,
    options: &[String],
    form: sys::Form,
) -> Result<Cubin> {
    let sys::Compiled { image, log } = sys::compile(source, name, options, form)?;
    match image {
        Some(image) => Ok(Cubin::of(arch, image, &log)),
        None => Err(Error::Compile { name: name.to_owned(), arch, log }),
    }
}

/// The options that sources are compiled with.
pub(crate) fn options(arch: Arch) -> [String; 5] {
    [
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        "--device-as-default-execution-space".to_owned(),
        "--ptxas-options=-v".to_owned(),
        // What comes from NVRTC's own cache comes without a log.
        "--no-cache".to_owned(),
    ]
}

/// What tells one NVRTC from another, however alike: its version to the build, as it writes it into its PTX. Asked once,
/// for a compilation of nothing.
///
/// # Errors
///
/// [`Error::MissingLibrary`] and [`Error::OldLibrary`] without NVRTC; [`Error::Device`] if it does not answer.
pub fn compiler() -> Result<&'static str> {
    static BUILD: OnceLock<Result<String>> = OnceLock::new();
    BUILD.get_or_init(sys::build).as_deref().map_err(Clone::clone)
}

/// Whether the NVRTC found compiles for the architecture.
///
/// # Errors
///
/// [`Error::MissingLibrary`] without NVRTC.
pub fn compiles_for(arch: Arch) -> Result<bool> {
    // The 86 of `sm_86`, the 90 of `sm_90a`.
    let (major, minor) = arch.capability();
    Ok(sys::architectures()?.contains(&(10 * major + minor)))
}

impl Cubin {
    /// An image with what was said when it was compiled.
    pub(crate) fn of(arch: Arch, image: Vec<u8>, log: &str) -> Cubin {
        Cubin { arch, image, log: CompileLog::parse(log) }
    }

    /// What it runs on.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// The ELF image.
    pub fn image(&self) -> &[u8] {
        &self.image
    }

    /// What ptxas said.
    pub fn log(&self) -> &CompileLog {
        &self.log
    }
}

impl CompileLog {
    /// Reads the log of a compilation with ptxas's `-v`.
    pub fn parse(text: &str) -> CompileLog {
        let largest = |after: &str| {
            text.lines().filter_map(|line| number_before(line, after)).max().unwrap_or(0)
        };
        CompileLog {
            registers: largest(" registers"),
            spill_stores: largest(" bytes spill stores"),
            spill_loads: largest(" bytes spill loads"),
            stack: largest(" bytes stack frame"),
            serialized_wgmma: text.contains("wgmma.mma_async instructions are serialized"),
            setmaxnreg_ignored: text.contains("'setmaxnreg' ignored"),
            text: text.to_owned(),
        }
    }
}

/// The number that stands before `after`.
fn number_before(line: &str, after: &str) -> Option<u32> {
    line.split_once(after)?.0.rsplit(' ').next()?.parse().ok()
}
