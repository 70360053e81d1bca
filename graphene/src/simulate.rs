//! The simulator: runs a kernel on the CPU by the meanings of its atoms, and finds what no compiler would.
//!
//! **Agents are warps.** The kernel's body is flattened to a linear program, and every warp has its own counter in it. The blocks
//! of a cluster run together, clusters one after the other; where blocks wait for others of the grid, all of them run together.
//! The scheduler steps warps round robin, or in an order that a seed chooses, and lands asynchronous copies in between. Where
//! nobody can go on while someone waits, that is a deadlock.
//!
//! **Order is happens-before.** Each warp has a vector clock, joined where warps wait for each other: rendezvous, phases of
//! barriers, groups of asynchronous specs. The lanes of a warp are told apart until they meet. Asynchronous units have components
//! of their own in these clocks, so that what has not been waited for is what is not ordered before. All of this is independent
//! of the order in which warps happen to run, but for what a kernel decides by it.
//!
//! **What is checked of an access**: bounds along each axis, alignment, that what is read was written, that no unordered access
//! conflicts (races, and copies in flight), that what threads wrote is fenced before asynchronous units access it. What a matmul
//! writes to registers is in flight until a wait that names it has waited for its group: of two accumulators, a wait for one
//! leaves the other in flight, even if its group is done. An element of global memory that is written a second time must have
//! been read in between, by anybody, or both must be updates in one step.
//!
//! **Levels.** With [`Options::levels`], each instance of a spec with a body is compared with what its kind says: one execution by
//! its agents, which closes when the last of them leaves. What it has done is the log of its atoms' writes, never what memory
//! holds later; what it has read is read when it closes, with what it overwrote itself restored from the log. An input that
//! others change in between, in no order with its end, is a fault as well. Instances within others close first, so that the
//! first finding names the innermost that differs. Which elements registers of several threads hold is a layout that is the same
//! in all instances, and that values tell: there must be one, and who reads these registers reads the elements that it says. What
//! cannot be compared is counted with why ([`Unchecked`]).
//!
//! **At a block's end**, no copy or matmul may be left that nobody has waited for (the writes of bulk copies to global memory
//! excepted: they are done when the kernel is), and no other block may be about to access its shared memory.
//!
//! Two things are not modelled. Fences of global memory order nothing: blocks of different clusters wait for each other by
//! counters alone, and an element that one writes and another reads without one between is a race. And matmuls compute with the
//! precision of their atom's meaning, which is that of `f64` sums rounded once.

mod access;
mod barrier;
mod clock;
mod control;
mod element;
mod formula;
mod fragment;
mod gather;
mod held;
mod instance;
mod issue;
mod level;
mod log;
mod machine;
mod meaning;
mod memory;
mod place;
mod program;
mod report;
mod requests;
mod runner;
mod tally;
mod visit;
mod warp;

use std::collections::{BTreeMap, HashMap};

pub use instance::Checked;
pub use level::Unchecked;
pub use report::{Cost, Costs, Finding, Statement, Traffic};
pub use requests::requested;

use crate::{Error, Kernel, Memory, Result, Var};
use machine::Machine;
use memory::Space;
use place::Root;
use program::Program;

/// What a kernel is run on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inputs {
    /// Values of the symbols, by name.
    pub symbols: BTreeMap<String, i64>,
    /// What the pointers point to, by the tensors' names.
    pub buffers: BTreeMap<String, Buffer>,
}

/// What a pointer points to.
#[derive(Debug, Clone, PartialEq)]
pub enum Buffer {
    /// Elements, in the order of their addresses; they are rounded to the tensor's type.
    Data(Vec<f64>),
    /// So many elements that hold nothing yet.
    Undefined(usize),
}

/// How to run it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Chooses an order in which warps go on; without one, round robin.
    pub seed: Option<u64>,
    /// After how many findings to stop; at least one. Later ones may follow from earlier ones.
    pub findings: usize,
    /// Whether all blocks run together, rather than those of one cluster.
    pub whole_grid: bool,
    /// One of so many instances of each spec with a body is checked; none if it is 0.
    pub levels: u64,
    /// After how many rounds of loops a warp is taken to go on for ever, a fault of the loop that it is in; 2²⁴ if it is 0.
    pub rounds: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What the pointers' elements are at the end, by the tensors' names; `None` for those that nothing has ever written.
    pub buffers: BTreeMap<String, Vec<Option<f64>>>,
    /// What is wrong with the kernel.
    pub findings: Vec<Finding>,
    /// What it cost.
    pub costs: Costs,
    /// How many instances of each spec with a body were checked, the kernel's own first; nothing if none were to be.
    pub levels: Vec<(Statement, Checked)>,
}

/// Runs a kernel. Fails with [`Error::Kernel`] if an input is missing or too short, [`Error::NoAtom`] if a spec is
/// neither decomposed nor an atom, [`Error::Shape`] if a size is not fixed at launch, [`Error::Overlap`] if elements
/// of a tensor lie in one place.
pub fn simulate(kernel: &Kernel, inputs: &Inputs, options: &Options) -> Result<Outcome> {
    let program = Program::of(kernel, valued(kernel, &inputs.symbols)?, options.levels > 0)?;
    program.check_size()?;
    let mut global = Space::new(program.global, true, options.levels > 0);
    for root in program.roots.iter().filter(|root| root.memory == Memory::Global) {
        fill(&mut global, root, inputs)?;
    }
    let mut machine = Machine::new(&program, options, global);
    machine.run();
    Ok(machine.outcome())
}

/// The kernel's symbols with their values.
fn valued(kernel: &Kernel, values: &BTreeMap<String, i64>) -> Result<HashMap<Var, i64>> {
    let valued = |symbol: &Var| match values.get(symbol.name()) {
        Some(value) => Ok((symbol.clone(), *value)),
        None => Err(Error::Kernel(format!("{symbol} has no value"))),
    };
    kernel.symbols.iter().map(valued).collect()
}

fn fill(global: &mut Space, root: &Root, inputs: &Inputs) -> Result {
    let name = &root.name;
    let (data, len) = match inputs.buffers.get(name) {
        None => return Err(Error::Kernel(format!("%{name} is not given"))),
        Some(Buffer::Data(data)) => (&data[..], data.len()),
        Some(Buffer::Undefined(len)) => (&[][..], *len),
    };
    if len < root.len {
        let wanted = root.len;
        return Err(Error::Kernel(format!("%{name} has {wanted} elements, but {len} are given")));
    }
    let own = (root.first..).zip(data).take(root.len);
    own.for_each(|(at, &value)| global.fill(at, root.scalar.round(value)));
    Ok(())
}
