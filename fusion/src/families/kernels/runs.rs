//! What a step runs at some sizes, read from the kernel that binding takes there.

use super::{Launch, Refusal, launches};
use crate::base::groups::Executor;
use crate::base::program::{Program, Step};
use crate::base::variants::{ANY, LIBRARY};
use crate::families::library::{conv, matmul, sdpa};
use graphene_frontend::dim::{Bindings, DimError};
use graphene_frontend::op::Op;
use graphene_ir::kernel::Kernel;
use graphene_ir::simulate::{Traffic, requested};
use graphene_ir::target::Target;
use std::collections::BTreeMap;
use std::fmt;

/// What a step runs at some sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Runs {
    /// Nothing: its results have no elements.
    Nothing,
    /// A call of a library, which launches what it likes.
    Call,
    /// One launch of a kernel.
    Kernel(Box<Launched>),
}

/// A launch of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launched {
    /// The name of the step's variant.
    pub variant: &'static str,
    /// The kernel.
    pub kernel: Kernel,
    /// Blocks of the grid.
    pub blocks: i64,
    /// Blocks of a cluster; 1 where there are none.
    pub cluster: i64,
    /// Threads of a block.
    pub threads: i64,
    /// Into how many parts the blocks of a cluster split the depth of each result, which they add up in the same launch; 1
    /// where they do not.
    pub parts: i64,
    /// The kernel's symbols with their values.
    pub symbols: BTreeMap<String, i64>,
    /// The numbers among its template's parameters.
    pub parameters: String,
}

/// What a step runs at these sizes, by the [variant](Step::variants) that applies there.
///
/// # Errors
/// [`Refusal`] if the step has no kernel, as on a CPU, or if a symbol has no size.
pub fn runs(
    program: &Program,
    step: &Step,
    target: &Target,
    sizes: &Bindings,
) -> Result<Runs, Refusal> {
    for output in &step.outputs {
        let mut empty = output.view.modes.iter().map(|mode| mode.size.eval(sizes));
        if empty.any(|size| size == Ok(0)) {
            return Ok(Runs::Nothing);
        }
    }
    let number = step.variants.choose(sizes)?;
    let variant = step.variants.all()[number].name;
    if variant == LIBRARY || step.executor == Executor::Library && has_call(program, step, target) {
        return Ok(Runs::Call);
    }
    let launches = launches(program, step, target)?;
    let none = Refusal::Operation("this step");
    let launch = launches.get(number).or(launches.last()).ok_or(none)?;
    launch.at(variant, sizes).map(|launched| Runs::Kernel(Box::new(launched)))
}

/// Whether a library can compute the step: what else softmax and recurrent layers must be, only the runtime asks.
pub(crate) fn has_call(program: &Program, step: &Step, target: &Target) -> bool {
    let called = |op: &Op| matches!(op, Op::Softmax { .. } | Op::Rnn(_));
    matmul(program, step, target).is_some()
        || conv(program, step, target).is_some()
        || sdpa(program, step).is_some()
        || step.body.nodes().any(|(_, node)| called(node.op()))
}

impl Launch {
    /// The launch at these sizes, of a variant of this name.
    ///
    /// # Errors
    /// [`Refusal`] if a symbol has no size, or the grid none.
    pub fn at(&self, variant: &'static str, sizes: &Bindings) -> Result<Launched, Refusal> {
        let names = self.kernel.symbols.iter().map(|symbol| symbol.name().to_owned());
        let values = self.symbols.iter().map(|dim| dim.eval(sizes));
        let symbols = names.zip(values).map(|(name, value)| Ok((name, value?)));
        let symbols: BTreeMap<String, i64> = symbols.collect::<Result<_, DimError>>()?;
        let grid = self.kernel.threads(self.kernel.grid).view.size();
        let blocks = grid.value(&|symbol| symbols.get(symbol.name()).copied());
        Ok(Launched {
            variant,
            kernel: self.kernel.clone(),
            blocks: blocks.ok_or(Refusal::Layout("a grid of unknown size"))?,
            cluster: self.kernel.cluster_size()?,
            threads: self.kernel.block_size()?,
            parts: self.kernel.parts()?,
            symbols,
            parameters: self.parameters.clone(),
        })
    }
}

impl Launched {
    /// The bytes that the kernel's threads read from and write to global memory, each access counted; `None` if counting them
    /// takes more than so many steps of warps.
    pub fn requested(&self, steps: u64) -> Option<Traffic> {
        requested(&self.kernel, &self.symbols, steps).ok().flatten()
    }
}

/// Prints as `gemm (split4), 96 blocks of 384 threads in clusters of 4, which add up 4 parts of each result`.
impl fmt::Display for Launched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variant, kernel, blocks, cluster, threads, parts, .. } = self;
        write!(f, "{}", kernel.name)?;
        if *variant != ANY {
            write!(f, " ({variant})")?;
        }
        let s = if *blocks == 1 { "" } else { "s" };
        write!(f, ", {blocks} block{s} of {threads} threads")?;
        if *cluster > 1 {
            write!(f, " in clusters of {cluster}")?;
        }
        if *parts > 1 {
            write!(f, ", which add up {parts} parts of each result")?;
        }
        Ok(())
    }
}
