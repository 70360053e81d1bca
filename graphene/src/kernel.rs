//! Kernels: specs, their decompositions, and control flow (Graphene, section 5).
//!
//! A [`Spec`] says what some threads compute together. It has a body that decomposes it into
//! smaller specs, or none: then it must be an [atom](crate::atom), one instruction.
//!
//! What the paper lacks and Hopper needs is here too: specs that complete later
//! ([`Completion`]), barriers as tensors ([`Kind::Arrive`], [`Kind::Wait`]), [roles](Stmt::Role)
//! as tiles of a block's threads, and [rings](Ring) that carry a pipeline's stage and parity.

pub use crate::kind::{
    Array, Binary, Fence, Fold, Fused, Group, Kind, Monoid, Number, Scan, Scope, Term, Unary,
    Window,
};
use crate::{
    Agent, Arch, Cond, Error, Expr, IntTuple, Memory, Result, Scalar, Tensor, Threads, Var, Within,
    tensor::ViewOp,
};

/// Names a tensor of a [`Kernel`]; prints as `%name` through [`Kernel::tensor_name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub(crate) u32);

/// Names a thread or block tensor of a [`Kernel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadsId(pub(crate) u32);

/// A kernel: one spec over a grid, decomposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The name of the function.
    pub name: String,
    /// What it is written for.
    pub arch: Arch,
    /// Integers given at launch.
    pub symbols: Vec<Var>,
    /// Every tensor, declared or derived.
    pub(crate) tensors: Vec<(String, Tensor)>,
    pub(crate) threads: Vec<(String, Threads)>,
    /// Tensors in global memory: the kernel's pointers, in order.
    pub params: Vec<TensorId>,
    /// The blocks: one level, or clusters and the blocks of one.
    pub grid: ThreadsId,
    /// The threads of a block.
    pub block: ThreadsId,
    /// What the kernel computes: a spec with a body.
    pub spec: Spec,
}

/// A statement.
#[allow(missing_docs)] // Of variants whose types say what they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stmt {
    /// `%s:[...].fp16.SH`: a new tensor in shared memory or registers (`Allocate`).
    Allocate(TensorId),
    /// `%b:[...] = %a.tile(...)`: another view of a tensor's elements.
    View(TensorId, TensorId, ViewOp),
    /// `#b:[...] = #a.tile(...)`: likewise of threads or blocks.
    Threads(ThreadsId, ThreadsId, ViewOp),
    /// `@m, @n = #b.indices()`: the own coordinate in every leaf.
    Indices(Vec<Var>, ThreadsId),
    /// `@x = 4*@m`.
    Let(Var, Expr),
    /// `@row = %id`: the integer in a register, which must not be negative.
    Value(Var, TensorId),
    /// `ring @r[4]`: a counter of a pipeline's stage and parity, at 0.
    Ring(Ring),
    /// `advance @r`: to the next stage; past the last, the parity flips.
    Advance(Ring),
    Spec(Spec),
    For(For),
    If(Test, Vec<Stmt>),
    /// `role #t[1..3] { }`: only these coordinates of the outermost level's only dimension.
    Role(ThreadsId, i64, i64, Vec<Stmt>),
}

impl Stmt {
    /// The statements within this one.
    pub fn body(&self) -> &[Stmt] {
        match self {
            Stmt::Spec(spec) => spec.body.as_deref().unwrap_or_default(),
            Stmt::For(For { body, .. }) | Stmt::If(_, body) | Stmt::Role(_, _, _, body) => body,
            _ => &[],
        }
    }
}

/// `for(@var = first; @var < end; @var += step) carry … { body }`.
#[allow(missing_docs)] // Of fields that the notation names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct For {
    pub var: Var,
    pub first: Expr,
    pub end: Expr,
    pub step: Expr,
    /// Whether the loop is written out; then its bounds are constants.
    pub unroll: bool,
    /// What holds at its head: before each round, and at its end.
    pub carry: Vec<Carry>,
    pub body: Vec<Stmt>,
}

/// What holds at a loop's head of what its rounds hand on: `%m, %l as Fused{%0 + ln(%1)} = Fused{…}<<<#cta, #own>>>(%Q, %K)`.
/// Nothing is computed for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carry {
    /// What is compared of the states, which are its inputs, whichever way they represent it: by default they themselves.
    pub form: Option<Fused>,
    /// The states as outputs, and of which inputs its kind makes what is compared, by the [counter at the head](For::head).
    pub spec: Spec,
}

/// What a conditional asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// All comparisons hold.
    All(Vec<Cond>),
    /// All that the tensor reaches lies within its buffer: the predicate of a partial tile.
    Inside(Operand),
}

/// A pipeline's counter: `stages` stages, and a parity that flips each time round.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ring {
    /// The name, without its sigil.
    pub name: String,
    /// How many stages.
    pub stages: i64,
}

/// A computation by some threads of some blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// What is computed.
    pub kind: Kind,
    /// What is written.
    pub outs: Vec<Operand>,
    /// What is read.
    pub ins: Vec<Operand>,
    /// The blocks that take part; for a copy into shared memory, those that receive it.
    pub blocks: ThreadsId,
    /// The threads that take part together.
    pub threads: ThreadsId,
    /// When its effects are there.
    pub completion: Completion,
    /// The decomposition; without one the spec is an atom.
    pub body: Option<Vec<Stmt>>,
}

/// A tensor, or one element of its outermost level: `%full[@s]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    /// The tensor.
    pub tensor: TensorId,
    /// Empty for the whole.
    pub index: Vec<IntTuple<Expr>>,
}

/// When a spec's effects are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// Before the next statement.
    Now,
    /// `signals %full[@s]`: when the barrier's phase completes.
    Signals(Operand),
    /// `async`: when the group that the next [`Kind::Commit`] closes has been waited for.
    Group,
}

impl Ring {
    /// The variable that holds the stage, `0..stages`.
    pub fn stage(&self) -> Var {
        Var::new(&format!("{}.stage", self.name), Some(self.stages - 1))
    }

    /// The variable that holds the parity: 0 the first time round.
    pub fn parity(&self) -> Var {
        Var::new(&format!("{}.parity", self.name), Some(1))
    }
}

impl For {
    /// The counter with its range, from constant bounds where they are.
    pub fn counter(name: &str, end: &Expr) -> Var {
        Var::new(name, end.range().1.map(|end| end.saturating_sub(1).max(0)))
    }

    /// The counter as it is at the head, where it may have come to the end or gone past it.
    pub fn head(name: &str, end: &Expr, step: &Expr) -> Var {
        let last = end.range().1.zip(step.range().1);
        Var::new(name, last.map(|(end, step)| end.saturating_add(step - 1)))
    }
}

impl Operand {
    /// One element of its outermost level.
    pub fn at(tensor: TensorId, index: impl IntoIterator<Item = impl Into<Expr>>) -> Operand {
        Operand { tensor, index: IntTuple::list(index) }
    }
}

impl Spec {
    /// What is written, then what is read.
    pub(crate) fn operands(&self) -> impl Iterator<Item = &Operand> {
        self.outs.iter().chain(&self.ins)
    }
}

impl Kernel {
    /// The own thread's or block's number.
    pub(crate) fn number(&self, agent: Agent) -> Result<Var> {
        Ok(match agent {
            Agent::Thread => thread_var(self.block_size()?),
            Agent::Block => block_var(),
        })
    }

    /// The own coordinate in each leaf of a tensor of threads or blocks.
    pub(crate) fn coordinates(&self, id: ThreadsId) -> Result<Vec<Expr>> {
        let threads = self.threads(id);
        Ok(threads.coordinates(&self.number(threads.agent)?))
    }

    /// A tensor.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize].1
    }

    /// A tensor's name, without its sigil.
    pub fn tensor_name(&self, id: TensorId) -> &str {
        &self.tensors[id.0 as usize].0
    }

    /// A thread or block tensor.
    pub fn threads(&self, id: ThreadsId) -> &Threads {
        &self.threads[id.0 as usize].1
    }

    /// The name of a thread or block tensor, without its sigil.
    pub fn threads_name(&self, id: ThreadsId) -> &str {
        &self.threads[id.0 as usize].0
    }

    /// What an operand refers to. Fails with [`Error::Shape`] where the index does not fit.
    pub fn operand(&self, operand: &Operand) -> Result<Tensor> {
        let tensor = self.tensor(operand.tensor);
        if operand.index.is_empty() {
            return Ok(tensor.clone());
        }
        tensor.apply(&ViewOp::Index(operand.index.clone()))
    }

    /// The comparisons that a test makes. Fails as [`operand`](Kernel::operand) does.
    pub fn conditions(&self, test: &Test) -> Result<Vec<Cond>> {
        match test {
            Test::All(conds) => Ok(conds.clone()),
            Test::Inside(operand) => Ok(self.operand(operand)?.view.inside()),
        }
    }

    /// For each tensor, in the order of their identities, the parameter or allocation that it is a view of.
    pub fn roots(&self) -> Vec<TensorId> {
        let mut roots: Vec<TensorId> = (0..self.tensors.len() as u32).map(TensorId).collect();
        self.each_stmt(&mut |stmt| {
            if let Stmt::View(id, of, _) = stmt {
                roots[id.0 as usize] = roots[of.0 as usize];
            }
        });
        roots
    }

    /// What is allocated, in order.
    pub fn allocations(&self) -> Vec<TensorId> {
        let mut all = Vec::new();
        self.each_stmt(&mut |stmt| {
            if let Stmt::Allocate(id) = stmt {
                all.push(*id);
            }
        });
        all
    }

    /// Calls `visit` on every statement, those around others first.
    pub fn each_stmt<'a>(&'a self, visit: &mut dyn FnMut(&'a Stmt)) {
        each_stmt(self.spec.body.as_deref().unwrap_or_default(), visit);
    }

    /// The specs without a body, in the order of the text.
    pub fn leaves(&self) -> Vec<Leaf<'_>> {
        fn walk<'a>(stmts: &'a [Stmt], always: bool, number: &mut usize, all: &mut Vec<Leaf<'a>>) {
            for stmt in stmts {
                let spec = if let Stmt::Spec(spec) = stmt { Some(spec) } else { None };
                *number += usize::from(spec.is_some());
                match spec.filter(|spec| spec.body.is_none()) {
                    Some(spec) => all.push(Leaf { number: *number, spec, always }),
                    None => walk(stmt.body(), always && spec.is_some(), number, all),
                }
            }
        }
        let mut all = Vec::new();
        walk(self.spec.body.as_deref().unwrap_or_default(), true, &mut 1, &mut all);
        all
    }

    /// Whether a spec may have to wait for kernels before: it writes or reads global memory that is not constant.
    pub(crate) fn depends(&self, spec: &Spec) -> bool {
        let depends = |of: &Operand| {
            let tensor = self.tensor(of.tensor);
            tensor.memory == Memory::Global && !tensor.constant
        };
        spec.kind != Kind::Prefetch && spec.operands().any(depends)
    }

    /// The threads of a block. Fails with [`Error::Shape`] if they are no constant, [`Error::Constraint`] if they are too many.
    pub fn block_size(&self) -> Result<i64> {
        let size = self.threads(self.block).view.size();
        let unknown = || Error::Shape(format!("a block of {size} threads"));
        let threads = size.constant().ok_or_else(unknown)?;
        Within(1, MAX_THREADS).check("threads a block", threads)?;
        Ok(threads)
    }

    /// Whether blocks wait for others of the grid, so that all of them must be resident together.
    pub fn cooperative(&self) -> bool {
        self.leaves().iter().any(|leaf| matches!(leaf.spec.kind, Kind::GridWait(_)))
    }

    /// The blocks of a cluster: the grid's second level, or 1. Fails with [`Error::Shape`] if they are no constant.
    pub fn cluster_size(&self) -> Result<i64> {
        let size = match self.threads(self.grid).view.levels() {
            [_, cluster] => cluster.size(),
            _ => Expr::from(1),
        };
        size.constant().ok_or_else(|| Error::Shape(format!("a cluster of {size} blocks")))
    }

    /// Into how many parts blocks split the depth of a result (split-K): those of a cluster, if they hand each other sums
    /// through shared memory, else 1. Fails as [`cluster_size`](Kernel::cluster_size) does.
    pub fn parts(&self) -> Result<i64> {
        let handed = |operand: &Operand| {
            let tensor = self.tensor(operand.tensor);
            tensor.peer.is_some() && tensor.scalar != Scalar::Mbar
        };
        let hands = self.leaves().iter().any(|leaf| leaf.spec.outs.iter().any(handed));
        if hands { self.cluster_size() } else { Ok(1) }
    }
}

/// A spec without a body.
#[derive(Debug, Clone, Copy)]
pub struct Leaf<'a> {
    /// Its number among all specs in the order of the text; the kernel's own is 1.
    pub number: usize,
    /// The spec.
    pub spec: &'a Spec,
    /// Whether only specs are around it: nothing lets threads leave it out.
    pub always: bool,
}

/// Calls `visit` on every statement of these, those around others first.
pub(crate) fn each_stmt<'a>(stmts: &'a [Stmt], visit: &mut dyn FnMut(&'a Stmt)) {
    for stmt in stmts {
        visit(stmt);
        each_stmt(stmt.body(), visit);
    }
}

/// The threads that a block may have, on every architecture.
const MAX_THREADS: i64 = 1024;

/// The own thread's number within its block.
pub fn thread_var(block_size: i64) -> Var {
    Var::new("thread", Some(block_size - 1))
}

/// The own block's number within the grid.
pub fn block_var() -> Var {
    Var::new("block", None)
}
