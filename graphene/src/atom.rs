//! Atoms: specs that are one machine instruction (Graphene, section 5.2 and Table 2).
//!
//! An [`Atom`] is a row of a table, and all that is known of its instruction stands in that row: the pattern of the specs that it
//! carries out, what it needs of an architecture, what it does to memory, and the text that it becomes. Emission, verifier and
//! simulator read that row and nothing else. Kernels that try it are in `tests/atoms/`.
//!
//! To add an instruction, add a row to the file of its kind:
//!
//! | file | atoms |
//! |---|---|
//! | `atom/moves.rs` | loads, stores, register moves, conversions |
//! | `atom/matrix.rs` | `ldmatrix`, `stmatrix`, `mma` by a warp |
//! | `atom/quad.rs` | `mma` by Volta's quad pairs |
//! | `atom/math.rs` | arithmetic on registers, shuffles, constants; functions' text in `function.rs` |
//! | `atom/barrier.rs` | barriers, fences, groups, cluster and grid synchronisation |
//! | `atom/cluster.rs` | another block's shared memory |
//! | `atom/bulk.rs` | tensor copies (TMA) |
//! | `atom/wgmma.rs` | asynchronous matmuls |
//!
//! In a row, operands are numbered as the pattern writes them: outputs first, then inputs. An element of an operand is named by a
//! coordinate for each dimension of the pattern that is not 1, outermost level first.

mod asm;
mod barrier;
mod bulk;
mod cluster;
mod function;
mod math;
mod matrix;
mod moves;
mod pattern;
mod quad;
mod wgmma;

pub use self::matrix::cut_to_tf32;

use std::collections::BTreeSet;

pub use crate::emit::Code;
use crate::{
    Completion, Error, Expr, Feature, Fence, Group, Kernel, Kind, Layout, Result, Scope, Spec,
    Tensor, index::Factor, launch::Condition,
};
use pattern::{Pattern, Sizes};

/// The operands of most: the destination, and the sources.
const D: usize = 0;
const A: usize = 1;
const B: usize = 2;
const C: usize = 3;

/// One instruction.
#[derive(Debug)]
pub struct Atom {
    /// Its name, as the architecture's manual has it where it has one.
    pub name: &'static str,
    /// The specs that it carries out, in the notation of the head of `atom/pattern.rs`.
    pub pattern: &'static str,
    /// What it needs of an architecture.
    pub needs: &'static [Feature],
    /// What the address of each operand must be a multiple of, in bytes; missing ones: its scalar.
    pub align: &'static [i64],
    /// What else must hold of the operands, or why the atom is not the one.
    pub when: When,
    /// Which unit accesses shared memory.
    pub proxy: Proxy,
    /// What it does, for the lanes of one warp.
    pub meaning: Meaning,
    /// Its statement in CUDA C++.
    pub cuda: Text,
}

/// Whether a site is one for an atom.
pub type When = fn(&Site<'_>) -> Fits;

/// Nothing, or why an atom is not the one.
pub type Fits = std::result::Result<(), &'static str>;

/// What an atom does, for the lanes of one warp.
pub type Meaning = fn(&Site<'_>, &mut dyn Warp) -> Step;

/// An atom's statement in CUDA C++.
pub type Text = fn(&Site<'_>, &Code<'_>) -> String;

/// The units between whose accesses to shared memory a proxy fence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxy {
    /// Loads and stores of threads.
    Generic,
    /// Tensor copies and asynchronous matmuls.
    Async,
}

/// What was asked for, or what is wrong with it.
pub type Tried<T = ()> = std::result::Result<T, Fault>;

/// What became of a step.
pub type Step = Tried<Progress>;

/// Whether a warp may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is done.
    Done,
    /// It waits, and tries again once something has changed.
    Blocked,
}

/// What is wrong with a kernel; the simulator says where.
#[allow(missing_docs)] // Of variants: the messages say what they are, where no comment does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("{0} is read or written out of bounds")]
    OutOfBounds(String),
    /// An address that is not a multiple of what the instruction asks for.
    #[error("{0} is misaligned")]
    Misaligned(String),
    #[error("{0} is read before it is written")]
    Uninitialised(String),
    /// Two accesses, one of them a write, with nothing between that orders them.
    #[error("race: {0}")]
    Race(String),
    #[error("{0} is still in flight")]
    InFlight(String),
    /// Own writes read by an asynchronous unit without a fence between.
    #[error("a fence is missing: {0}")]
    MissingFence(String),
    #[error("deadlock: {0}")]
    Deadlock(String),
    #[error("{0} is written twice")]
    WrittenTwice(String),
    #[error("barrier: {0}")]
    Barrier(String),
    /// A collective instruction misses some of its threads, or a loop's bounds differ among them.
    #[error("divergence: {0}")]
    Divergence(String),
    /// An instance of a spec with a body does not do what its kind says.
    #[error("{0}")]
    Differs(String),
    /// An input of such an instance is changed by others, in no order with its end.
    #[error("{0}")]
    Unstable(String),
    /// Anything else that hardware would not do.
    #[error("{0}")]
    Invalid(String),
}

/// An element as a lane sees it: the lane, the operand, and the element of that.
pub type At<'a> = (usize, usize, &'a [i64]);

/// What an atom's meaning can do: read and write elements of its operands, for the lanes of one
/// warp. How the spec completes (now, by a barrier, by a group) is the simulator's concern.
pub trait Warp {
    /// The lanes that take part, in `0..32`.
    fn lanes(&self) -> Vec<usize>;
    /// The number of a lane among the spec's threads, in `0..128` for a warpgroup.
    fn rank(&self, lane: usize) -> i64;
    /// An element. Integers are exact.
    fn read(&mut self, at: At<'_>) -> Tried<f64>;
    /// Likewise; 0 where it lies outside of its buffer.
    fn read_or_zero(&mut self, at: At<'_>) -> Tried<f64>;
    /// All elements of an operand, as a lane sees it, the first dimension fastest.
    fn read_all(&mut self, lane: usize, operand: usize, values: &mut Vec<f64>) -> Tried;
    /// Writes an element, rounded to its type (to nearest, ties to even).
    fn write(&mut self, at: At<'_>, value: f64) -> Tried;
    /// Writes all elements of an operand, in the order of [`read_all`](Warp::read_all).
    fn write_all(&mut self, lane: usize, operand: usize, values: &[f64]) -> Tried;
    /// Writes an element; nothing where it lies outside of its buffer.
    fn write_if_inside(&mut self, at: At<'_>, value: f64) -> Tried;
    /// Initialises the barrier that an operand is, for so many arrivals a phase.
    fn init_barrier(&mut self, operand: usize, arrivals: i64) -> Step;
    /// `lane` arrives at a barrier; so many bytes are expected as well.
    fn arrive(&mut self, lane: usize, operand: usize, bytes: i64) -> Step;
    /// Waits for a phase of a barrier.
    fn wait(&mut self, operand: usize, parity: i64, scope: Scope) -> Step;
    /// Adds 1 to a counter in global memory, 0 where it would reach `below`; publishes what the lane has done and knows.
    fn count(&mut self, lane: usize, operand: usize, below: i64) -> Tried;
    /// Waits until a counter in global memory is at least `count`; the lane learns what those published who counted.
    fn await_count(&mut self, lane: usize, operand: usize, count: i64) -> Step;
    /// Waits for all of the spec's threads, of all of its blocks.
    fn rendezvous(&mut self) -> Step;
    /// Orders accesses.
    fn fence(&mut self, fence: Fence) -> Step;
    /// Closes the open group.
    fn commit(&mut self, group: Group) -> Step;
    /// Waits for groups, or for their reads only.
    fn wait_group(&mut self, group: Group, pending: i64, reads: bool) -> Step;
    /// Sets the number of registers.
    fn registers(&mut self, count: i64) -> Step;
    /// The value of an expression for a lane.
    fn value(&self, lane: usize, expr: &Expr) -> i64;
}

impl Atom {
    /// One that every architecture has, without alignment or further precondition.
    const fn new(name: &'static str, pattern: &'static str, meaning: Meaning, cuda: Text) -> Atom {
        let (needs, align, proxy) = (&[], &[], Proxy::Generic);
        Atom { name, pattern, needs, align, when: always, proxy, meaning, cuda }
    }

    const fn needs(self, needs: &'static [Feature]) -> Atom {
        Atom { needs, ..self }
    }

    const fn align(self, align: &'static [i64]) -> Atom {
        Atom { align, ..self }
    }

    const fn when(self, when: When) -> Atom {
        Atom { when, ..self }
    }
}

/// A spec that an atom carries out, with its operands and the sizes that the pattern leaves open.
#[allow(missing_docs)]
pub struct Site<'a> {
    pub kernel: &'a Kernel,
    pub spec: &'a Spec,
    pub atom: &'static Atom,
    /// The operands' tensors: outputs first, then inputs.
    pub operands: Vec<Tensor>,
    sizes: Sizes,
}

impl Site<'_> {
    /// An operand's tensor: outputs first, then inputs.
    pub fn operand(&self, operand: usize) -> &Tensor {
        &self.operands[operand]
    }

    /// The barrier that it signals.
    pub fn signalled(&self) -> Option<Tensor> {
        let Completion::Signals(barrier) = &self.spec.completion else { return None };
        self.kernel.operand(barrier).ok()
    }

    /// How many of them are outputs.
    pub fn outs(&self) -> usize {
        self.spec.outs.len()
    }

    /// Whether it is issued by whole warps though the spec is of a part of one: matmuls by quad pairs, exchanges.
    pub fn is_the_warps(&self) -> bool {
        let threads = self.kernel.threads(self.spec.threads).view.size().constant();
        matches!(self.spec.kind, Kind::MATMUL_ADD | Kind::Shfl(_))
            && threads.is_some_and(|threads| (2..32).contains(&threads))
    }

    /// A size that the pattern names.
    pub fn size(&self, name: &str) -> i64 {
        *self.sizes.get(name).expect("an atom asks for sizes that its pattern names")
    }

    /// The dimensions of an operand that count, outermost level first: those that are not 1.
    pub fn dims(&self, operand: usize) -> Vec<&Layout<Expr>> {
        self.operands[operand].view.dims().filter(|dim| !dim.size().is(1)).collect()
    }

    /// An element's steps along each of the buffer's axes from its operand's first one. `None` where one is not a constant.
    pub fn steps(&self, operand: usize, element: &[i64]) -> Option<Vec<i64>> {
        let view = &self.operands[operand].view;
        let mut steps = vec![0; view.axes().len()];
        for (dim, &coordinate) in self.dims(operand).into_iter().zip(element) {
            let mut rest = coordinate;
            for leaf in dim.leaves() {
                let size = leaf.size.constant()?;
                for (axis, step) in leaf.stride.steps() {
                    steps[axis] += step.constant()? * (rest % size);
                }
                rest /= size;
            }
        }
        Some(steps)
    }

    /// The element's distance from the operand's first one, in elements. `None` where a stride is not a constant.
    pub fn distance(&self, operand: usize, element: &[i64]) -> Option<i64> {
        let axes = self.operands[operand].view.axes();
        let moved = self.steps(operand, element)?.into_iter().zip(axes).filter(|step| step.0 != 0);
        moved.map(|(steps, axis)| Some(steps * axis.stride.constant()?)).sum()
    }

    /// Under which conditions on the symbols the operand's address is a multiple of what the atom
    /// asks for; `None` if it may be no multiple whatever they are.
    pub fn alignment(&self, operand: usize) -> Option<Vec<Condition>> {
        let tensor = &self.operands[operand];
        let scalar = tensor.scalar.bytes();
        let align = self.atom.align.get(operand).copied().unwrap_or(scalar);
        let mut conditions = Vec::new();
        for (product, coefficient) in tensor.view.offset().terms() {
            if coefficient * scalar % align == 0 {
                continue;
            }
            // A term that has symbols in it may be a multiple because of these.
            let is_symbol = |factor: &&Factor| match factor {
                Factor::Var(var) => self.kernel.symbols.contains(var),
                Factor::Of(..) => false,
            };
            let symbols = product.iter().filter(is_symbol);
            let unit = Expr::of_factors(symbols) * (coefficient * scalar);
            if unit.constant().is_some() {
                return None;
            }
            let condition = Condition::Multiple(unit, align);
            if !conditions.contains(&condition) {
                conditions.push(condition);
            }
        }
        Some(conditions)
    }
}

/// All atoms, in the order in which they are tried.
pub fn all() -> impl Iterator<Item = &'static Atom> {
    let first = [bulk::ATOMS, wgmma::ATOMS, matrix::ATOMS, quad::ATOMS];
    let then = [barrier::ATOMS, moves::ATOMS, cluster::ATOMS, math::ATOMS];
    first.into_iter().chain(then).flatten()
}

/// The atom that carries out a spec. Fails with [`Error::NoAtom`], saying which atoms came near and why they are not
/// the one, or as its operands do.
pub fn select<'a>(kernel: &'a Kernel, spec: &'a Spec) -> Result<Site<'a>> {
    let operands = spec.operands().map(|operand| kernel.operand(operand));
    let operands = operands.collect::<Result<Vec<Tensor>>>()?;
    let mut near = Vec::new();
    for &(atom, ref pattern) in Pattern::of_all() {
        let Some(sizes) = pattern.matches(kernel, spec, &operands) else { continue };
        let site = Site { kernel, spec, atom, operands: operands.clone(), sizes };
        let unaligned = (0..operands.len()).find(|&i| site.alignment(i).is_none());
        near.push(match (kernel.arch.needs(atom.needs), unaligned, (atom.when)(&site)) {
            (Err(lacks), _, _) => format!("{}: {lacks}", atom.name),
            (Ok(()), Some(i), _) => format!("{} needs its operand {i} aligned", atom.name),
            (Ok(()), None, Err(why)) => format!("{}: {why}", atom.name),
            (Ok(()), None, Ok(())) => return Ok(site),
        });
    }
    Err(Error::NoAtom(near.join("; ")))
}

/// What a kernel's atoms need of an architecture: it may be written for any that has these. Fails as [`select`] does.
pub fn features(kernel: &Kernel) -> Result<Vec<Feature>> {
    let mut all = BTreeSet::new();
    for leaf in kernel.leaves() {
        all.extend(select(kernel, leaf.spec)?.atom.needs);
    }
    Ok(all.into_iter().collect())
}

fn always(_: &Site<'_>) -> Fits {
    Ok(())
}

/// That something holds, or why the atom is not the one.
fn given(holds: bool, why: &'static str) -> Fits {
    if holds { Ok(()) } else { Err(why) }
}
