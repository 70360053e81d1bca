//! What specs compute (Graphene, Table 1, and what Hopper adds).
//!
//! A kind of specs is a variant of [`Kind`] and a row of the table in `text/kind.rs`, which has its
//! name, its number of operands and what stands in its brackets.
//!
//! A spec with a body says what it computes, and from what; the body says how. So a kind that computes
//! has a [meaning](Kind::meaning): an expression over its operands' logical coordinates, which
//! [evaluates](Fused::values) in double precision.
//!
//! - `function`: functions of numbers, a row each;
//! - `fused`: expressions over whole tensors;
//! - `value`: tensors of numbers, and what expressions are of them;
//! - `near`: how far from that what is computed may be.

mod function;
mod fused;
pub(crate) mod near;
mod value;

pub use self::function::{Binary, Unary};
pub use self::fused::{Fold, Fused, Monoid, Scan, Term, Window};
pub use self::value::Array;
use crate::named::named;
use crate::{Expr, Function};

/// What a spec computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Copies, converting between scalar types.
    Move,
    /// A matmul of the last two dimensions; with `accumulate` it is added to what the output holds.
    MatMul {
        /// Whether it is added.
        accumulate: bool,
    },
    /// One function of each element.
    Unary(Unary),
    /// One function of each pair of elements.
    Binary(Binary),
    /// Of each three elements the second where the first is not 0, else the third.
    Select,
    /// Folds elements into those of the output.
    Reduction(Binary),
    /// An expression for each output: only specs with a body are of this kind, and the next two.
    Fused(Fused),
    /// What a monoid makes of the elements along some dimensions: an output for each of its parts.
    Fold(Fold),
    /// What an operation makes of each element and those before it.
    Scan(Scan),
    /// Exchanges elements between lanes: the lane whose number differs in these bits.
    Shfl(i64),
    /// Sets every element; on a barrier, the number of arrivals that complete a phase.
    Init(Number),
    /// Sets every element to an integer that the kernel knows.
    Index(Expr),
    /// Arrives at a barrier; with bytes, these are expected as well, of what signals it.
    Arrive(Option<Expr>),
    /// Waits until the phase of this parity of a barrier has completed, for what threads of this scope have done.
    Wait(Expr, Scope),
    /// Closes a group of asynchronous specs.
    Commit(Group),
    /// Waits until no more than so many groups are in flight; with `true`, for their reads only.
    WaitGroup(Group, i64, bool),
    /// Orders memory accesses.
    Fence(Fence),
    /// All threads given wait for each other; over more than one block, all threads of a cluster.
    Sync,
    /// Sets the registers that each thread of a warpgroup has (PTX `setmaxnreg`).
    Registers(i64),
    /// Lets the next kernel of the stream start (PTX `griddepcontrol.launch_dependents`).
    LaunchDependents,
    /// Waits for the kernels before (PTX `griddepcontrol.wait`).
    GridDependencyWait,
    /// Brings the line of an element of global memory into the L2 cache; what is there does not matter (PTX `prefetch`).
    Prefetch,
    /// Adds 1 to a counter in global memory, which becomes 0 where it would reach this number. What
    /// the thread has done, and what it knows that others have done, is there for those who wait for it.
    GridArrive(Expr),
    /// Waits until a counter in global memory is at least this number, for what those have done who
    /// counted. Blocks that wait for each other so must all be resident: the launch is cooperative.
    GridWait(Expr),
}

impl Kind {
    /// A matmul whose result is set.
    pub const MATMUL: Kind = Kind::MatMul { accumulate: false };

    /// A matmul whose result is added.
    pub const MATMUL_ADD: Kind = Kind::MatMul { accumulate: true };

    /// A pointwise function: output `i` is the function's, operand `i` its input `i`.
    pub fn pointwise(function: &Function) -> Kind {
        Kind::Fused(Fused::of(function, &[]))
    }

    /// What the outputs are, as an expression over the inputs and over what the outputs held before;
    /// none where nothing is computed, or where that depends on more than the operands' coordinates.
    ///
    /// An operand has the dimensions of its view, outermost level first. A folded dimension is of size 1;
    /// a result fits an output that differs from it in dimensions of 1, and is broadcast to any other.
    /// `Reduction` folds the input along the dimensions in which the output has one element.
    pub fn meaning(&self, output: &[usize], input: &[usize]) -> Option<Fused> {
        let step = |function: Function| Some(Fused::of(&function, &[]));
        let [x, y, z] = [0, 1, 2].map(Function::input);
        match self {
            Kind::Move => step(x),
            Kind::MatMul { accumulate: false } => Some(Fused::input(0).matmul(Fused::input(1))),
            Kind::MatMul { accumulate: true } => {
                Some(Fused::input(0).matmul(Fused::input(1)) + Fused::old(0))
            }
            Kind::Unary(op) => step(x.unary(*op)),
            Kind::Binary(op) => step(x.binary(*op, y)),
            Kind::Select => step(x.select(y, z)),
            Kind::Reduction(op) => {
                let missing = input.len().saturating_sub(output.len());
                let kept = |dim: usize| dim >= missing && output[dim - missing] == input[dim];
                let along: Vec<usize> = (0..input.len()).filter(|&dim| !kept(dim)).collect();
                let fold = Fold { monoid: Monoid::Of(*op), along };
                Some(Fused::old(0).binary(*op, Fused::input(0).fold(&fold, 0)))
            }
            Kind::Fused(fused) => Some(fused.clone()),
            Kind::Fold(fold) => {
                let parts = 0..fold.monoid.parts().len();
                Some(Fused::all(parts.map(|part| Fused::input(0).fold(fold, part))))
            }
            Kind::Scan(scan) => Some(Fused::input(0).scan(scan)),
            Kind::Init(number) => step(Function::constant(number.0)),
            Kind::Index(value) => Some(Fused::index(value.clone())),
            _ => None,
        }
    }

    /// The numbers in it that the kernel's variables decide.
    pub(crate) fn exprs(&self) -> Vec<&Expr> {
        match self {
            Kind::Index(value)
            | Kind::Arrive(Some(value))
            | Kind::Wait(value, _)
            | Kind::GridArrive(value)
            | Kind::GridWait(value) => vec![value],
            Kind::Fused(fused) => fused.exprs(),
            _ => Vec::new(),
        }
    }
}

/// A number in the text; compares by its bits.
#[derive(Debug, Clone, Copy)]
pub struct Number(pub f64);

/// Whose stores are seen: those of the own block, and tensor copies, or those that other blocks of the cluster send as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The own block's (PTX `.cta`).
    Block,
    /// The cluster's (PTX `.cluster`).
    Cluster,
}

named! {
    /// Which asynchronous specs form groups together.
    pub enum Group {
        /// Matmuls (`wgmma`).
        MatMul = "matmul",
        /// Copies by single threads, as of Ampere (`cp.async`).
        Copy = "copy",
        /// Bulk copies out of shared memory (`cp.async.bulk`).
        Bulk = "bulk",
    }
}

named! {
    /// What a fence orders.
    pub enum Fence {
        /// Register accesses before an asynchronous matmul (`wgmma.fence`).
        MatMul = "matmul",
        /// Own writes to shared memory before reads by asynchronous units (`fence.proxy.async`).
        Proxy = "proxy",
        /// Initialised barriers before their use by the cluster (`fence.mbarrier_init`).
        Init = "init",
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Number {}

impl std::hash::Hash for Number {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}
