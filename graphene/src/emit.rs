//! Emission: kernels as CUDA C++, and what they need of their host (Graphene, section 5.5).
//!
//! Nothing is decided here. Every statement is printed where it stands, with its names; views become index expressions; every
//! spec without a body becomes the text of its [atom](crate::atom). What emission leaves out, adds or moves is a pass of
//! [`PASSES`], each of which can be printed. The source includes nothing, so that NVRTC needs no toolkit: what CUDA's headers
//! would bring is in `emit/prelude.rs`, of which a source has the parts that it uses.
//! Read `lower` first, then `passes`, and `code`, which has operands as atoms ask for them.

mod code;
mod launch;
mod lines;
mod lower;
mod names;
mod passes;
mod prelude;
mod storage;
mod swizzle;
mod warps;

use crate::{Error, Expr, Kernel, Kind, Result, launch::Launch};
pub use code::Code;
use code::{Map, Uses};
use names::Names;
use passes::Source;
pub use passes::{PASSES, Pass};
pub use prelude::Prelude;
pub(crate) use storage::Storage;

/// A kernel as text, and how to launch it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// CUDA C++ that includes nothing.
    pub source: String,
    /// Parameters, sizes and conditions.
    pub launch: Launch,
}

/// Prints a kernel as CUDA C++ for its architecture. Fails with [`Error::Emission`], naming the spec, for what is
/// neither decomposed nor an atom, and for what C cannot say: registers whose number is not known, sizes that are no
/// constants, more shared memory than a block may have; with [`Error::Shape`] for blocks and clusters of unknown sizes.
pub fn emit(kernel: &Kernel) -> Result<Emitted> {
    let (source, launch) = source(kernel, None)?;
    Ok(Emitted { source, launch })
}

/// A kernel's text after a pass of [`PASSES`]. Fails as [`emit`] does.
pub fn after(kernel: &Kernel, pass: &Pass) -> Result<String> {
    Ok(source(kernel, Some(pass.name))?.0)
}

fn source(kernel: &Kernel, last: Option<&str>) -> Result<(String, Launch)> {
    let (names, storage) = (&Names::of(kernel), &Storage::of(kernel)?);
    let (body, mut uses) = lower::body(kernel, names)?;
    let launch = launch::describe(kernel, &names.entry, storage.bytes, &uses)?;
    let signature = signature(kernel, names, &mut uses)?;
    let prelude = String::new();
    let mut source = Source { kernel, names, storage, uses, prelude, signature, body };
    source.run(last);
    Ok((source.to_string(), launch))
}

/// `extern "C" __global__ void … {`: pointers, tensor maps, symbols, as [`Launch::params`] has them.
fn signature(kernel: &Kernel, names: &Names, uses: &mut Uses) -> Result<String> {
    let mut params = Vec::new();
    // What waits for other kernels' or other blocks' writes must not read through the cache for constants.
    let waits = |kind: &Kind| matches!(kind, Kind::GridDependencyWait | Kind::GridWait(_));
    let waits = kernel.leaves().iter().any(|leaf| waits(&leaf.spec.kind));
    let restrict = if waits { "" } else { "__restrict__ " };
    for &param in kernel.params.iter().filter(|param| uses.elements.contains(param)) {
        let constant = if uses.written.contains(&param) { "" } else { "const " };
        let (scalar, name) = (kernel.tensor(param).scalar, names.tensor(param)?);
        uses.prelude.extend(Prelude::of(scalar));
        params.push(format!("{constant}{} *{restrict}{name}", scalar.c_name()));
    }
    for Map { name, .. } in &uses.maps {
        uses.prelude.insert(Prelude::TensorMap);
        params.push(format!("const __grid_constant__ {} {name}", Prelude::TensorMap.name()));
    }
    for symbol in &kernel.symbols {
        params.push(format!("int {}", names.var(symbol)?));
    }
    let (threads, name) = (kernel.block_size()?, &names.entry);
    let head = format!("extern \"C\" __global__ void __launch_bounds__({threads}, 1)\n{name}(");
    let indent = format!(",\n{}", " ".repeat(name.len() + 1));
    Ok(format!("{head}{}) {{\n", params.join(&indent)))
}

/// An error of emission.
fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::Emission(why.into()))
}

/// Whether an expression is known to stay below 2³⁰ in every use of it, so that sums of two of them are 32-bit integers.
fn small(expr: &Expr) -> bool {
    expr.range().1.is_some_and(|high| high < 1 << 30)
}
