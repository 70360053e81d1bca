//! Kernels as linear programs: statements with jumps, expressions compiled.

use std::collections::{HashMap, HashSet};

use super::formula::{Check, Formula, Scope, Slot};
use super::level::{Level, of_block};
use super::place::{Place, Root, Team, axes_of, span};
use super::report::Statement;
use crate::atom::Site;
use crate::kernel::{block_var, thread_var};
use crate::{
    Completion, Cond, Error, Expr, For, Group, Kernel, Kind, Memory, Relation, Result, Scalar,
    Spec, Stmt, Tensor, TensorId, ThreadsId, Var, atom,
};

/// A step of a program.
#[derive(Debug)]
pub(super) enum Op {
    /// Sets a variable.
    Set(Slot, Formula),
    /// Sets a variable to what a register holds.
    Look(Slot, usize),
    /// Advances a ring.
    Advance { stage: Slot, parity: Slot, stages: i64 },
    /// Forgets what so many registers from one on hold.
    Forget(usize, usize),
    /// Goes on with the lanes for which all checks hold; without any, past the matching `Unmask`.
    Mask { checks: Vec<Check>, end: usize },
    /// Goes on with the lanes from before the mask.
    Unmask,
    /// Leaves a loop unless the counter is below the end.
    Loop { counter: Slot, end: Formula, exit: usize },
    /// Counts, and goes back to the loop's head.
    Repeat { counter: Slot, step: Formula, head: usize },
    /// Carries out a task.
    Atom(usize),
    /// Comes to a level.
    Enter(usize),
    /// Leaves it.
    Leave,
    /// The end.
    Exit,
}

/// A spec that is an atom.
pub(super) struct Task<'k> {
    pub(super) site: Site<'k>,
    /// The statement's number.
    pub(super) number: u32,
    /// Its operands; the barrier that it signals comes last.
    pub(super) places: Vec<Place>,
    pub(super) threads: Team,
    pub(super) blocks: Team,
    pub(super) mode: Mode,
    /// The expression that its kind has.
    pub(super) value: Option<(&'k Expr, Formula)>,
}

/// How a task's effects come about: at once, as a transfer that signals a barrier, or as part of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Now,
    Signals,
    Group(Group),
}

/// A kernel, ready to run.
pub(super) struct Program<'k> {
    pub(super) kernel: &'k Kernel,
    pub(super) ops: Vec<Op>,
    /// For each step, the number of its statement.
    pub(super) numbers: Vec<u32>,
    pub(super) stmts: Vec<&'k Stmt>,
    pub(super) tasks: Vec<Task<'k>>,
    /// The specs with bodies whose instances are checked, the kernel's own first; none where nothing is.
    pub(super) levels: Vec<Level<'k>>,
    /// The variables whose values depend on the own block.
    pub(super) of_block: HashSet<Var>,
    pub(super) roots: Vec<Root>,
    pub(super) scope: Scope,
    pub(super) thread: Slot,
    pub(super) block: Slot,
    /// Threads of a block, and blocks of the grid and of a cluster.
    pub(super) threads: i64,
    pub(super) blocks: i64,
    pub(super) cluster: i64,
    /// Elements in registers of one thread, in shared memory, behind pointers, and barriers.
    pub(super) registers: usize,
    pub(super) shared: usize,
    pub(super) global: usize,
    pub(super) barriers: usize,
    /// For each tensor, what it is a view of.
    bases: Vec<TensorId>,
    root_of: HashMap<TensorId, usize>,
    shared_bytes: i64,
}

/// The elements that a simulated machine may hold.
const MAX_ELEMENTS: usize = 1 << 28;

/// The blocks that a simulated grid may have.
const MAX_BLOCKS: i64 = 1 << 20;

impl<'k> Program<'k> {
    /// Compiles a kernel, given the values of its symbols. Fails with [`Error::NoAtom`] for specs that are neither decomposed
    /// nor atoms, [`Error::Shape`] for what is not fixed at launch but must be, [`Error::Overlap`] for tensors that overlap.
    pub(super) fn of(kernel: &'k Kernel, symbols: HashMap<Var, i64>, levels: bool) -> Result<Self> {
        let threads = kernel.block_size()?;
        let thread = thread_var(threads);
        let mut scope = Scope::new(symbols, thread.clone(), threads);
        scope.assign(&thread, true);
        scope.assign(&block_var(), false);
        let body = kernel.spec.body.as_deref().unwrap_or_default();
        while assign(kernel, body, false, &mut scope) {}
        scope.place();
        let place = |var: &Var| scope.slot(var).expect("it was assigned above");
        let (thread, block) = (place(&thread), place(&block_var()));
        let blocks = scope.fixed(&kernel.threads(kernel.grid).view.size())?;
        let mut program = Program {
            kernel,
            ops: Vec::new(),
            numbers: Vec::new(),
            stmts: Vec::new(),
            tasks: Vec::new(),
            levels: Vec::new(),
            of_block: HashSet::new(),
            roots: Vec::new(),
            scope,
            thread,
            block,
            threads,
            blocks,
            cluster: kernel.cluster_size()?,
            registers: 0,
            shared: 0,
            global: 0,
            barriers: 0,
            bases: kernel.roots(),
            root_of: HashMap::new(),
            shared_bytes: 0,
        };
        for id in kernel.params.iter().copied().chain(kernel.allocations()) {
            program.root(id)?;
        }
        for out in kernel.leaves().iter().flat_map(|leaf| &leaf.spec.outs) {
            if let Ok(root) = program.root_of(out.tensor) {
                program.roots[root].written = true;
            }
        }
        if levels {
            program.of_block = of_block(kernel);
            program.levels.push(Level::of(&program, &kernel.spec, None)?);
        }
        program.statements(body)?;
        program.push(Op::Exit, 0);
        Ok(program)
    }

    /// A machine that would not fit is refused before it is made.
    pub(super) fn check_size(&self) -> Result {
        let together = if self.kernel.cooperative() { self.blocks } else { self.cluster };
        let threads = self.threads.saturating_mul(together) as usize;
        let shared = self.shared.saturating_mul(together.max(1) as usize);
        let each = [self.registers.saturating_mul(threads), shared, self.global];
        let all = each.into_iter().fold(0, usize::saturating_add);
        if all > MAX_ELEMENTS {
            return Err(Error::Kernel(format!("{all} elements, {MAX_ELEMENTS} can be simulated")));
        }
        if self.blocks > MAX_BLOCKS {
            let blocks = self.blocks;
            return Err(Error::Kernel(format!("{blocks} blocks, {MAX_BLOCKS} can be simulated")));
        }
        Ok(())
    }

    /// The lanes of a block's warp that have threads, and the values of its variables at the beginning.
    pub(super) fn start(&self, block: i64, warp: usize) -> (u32, Vec<i64>) {
        let mut slots = vec![0; self.scope.size];
        (0..32).for_each(|lane| slots[self.thread.of(lane)] = (32 * warp + lane) as i64);
        slots[self.block.of(0)] = block;
        (u32::MAX >> (32 - (self.threads - 32 * warp as i64).min(32)), slots)
    }

    /// Reserves memory for a tensor.
    fn root(&mut self, id: TensorId) -> Result {
        let (tensor, name) = (self.kernel.tensor(id), self.kernel.tensor_name(id).to_owned());
        let mut axes = axes_of(&tensor.view, &self.scope)?;
        let len = usize::try_from(span(&axes)).unwrap_or(0);
        // What stands at 0 is repeated.
        axes.retain(|axis| axis.0 > 1 && axis.1 != 0);
        axes.sort_unstable_by_key(|axis| axis.1);
        if (1..axes.len()).any(|axis| axes[axis].1 < span(&axes[..axis])) {
            let declared = tensor.to_string();
            return Err(Error::Overlap { tensor: name, declared, axes });
        }
        let (count, address) = match (tensor.memory, tensor.scalar) {
            (Memory::Global, _) => (&mut self.global, 0),
            (Memory::Registers, _) => (&mut self.registers, 0),
            (Memory::Shared, scalar) => {
                // Tiles with a swizzle start at a multiple of its period.
                let address = (self.shared_bytes + 1023) / 1024 * 1024;
                self.shared_bytes = address + len as i64 * scalar.bytes();
                let barrier = scalar == Scalar::Mbar;
                (if barrier { &mut self.barriers } else { &mut self.shared }, address)
            }
        };
        self.root_of.insert(id, self.roots.len());
        self.roots.push(Root {
            number: self.roots.len(),
            name,
            memory: tensor.memory,
            scalar: tensor.scalar,
            first: *count,
            len,
            address,
            written: false,
        });
        *count += len;
        Ok(())
    }

    pub(super) fn root_of(&self, id: TensorId) -> Result<usize> {
        let root = self.root_of.get(&self.bases[id.0 as usize]).copied();
        let name = self.kernel.tensor_name(id);
        root.ok_or_else(|| Error::Shape(format!("%{name} is used before it exists")))
    }

    pub(super) fn line(&self, number: u32) -> String {
        self.kernel.line(self.stmts[number as usize])
    }

    /// What reports say of a statement; of the kernel itself, its name.
    pub(super) fn said(&self, number: Option<u32>) -> Statement {
        let text = number.map_or_else(|| self.kernel.name.clone(), |at| self.line(at));
        Statement { number: number.unwrap_or(0) as usize, text }
    }

    fn push(&mut self, op: Op, number: u32) -> usize {
        self.ops.push(op);
        self.numbers.push(number);
        self.ops.len() - 1
    }

    fn statements(&mut self, stmts: &'k [Stmt]) -> Result {
        stmts.iter().try_for_each(|stmt| self.statement(stmt))
    }

    fn statement(&mut self, stmt: &'k Stmt) -> Result {
        let number = self.stmts.len() as u32;
        self.stmts.push(stmt);
        match stmt {
            Stmt::Allocate(id) => {
                let root = &self.roots[self.root_of(*id)?];
                if root.memory == Memory::Registers {
                    self.push(Op::Forget(root.first, root.len), number);
                }
            }
            Stmt::View(..) | Stmt::Threads(..) => {}
            Stmt::Indices(vars, threads) => {
                for (var, value) in vars.iter().zip(self.kernel.coordinates(*threads)?) {
                    self.set(var, &value, number)?;
                }
            }
            Stmt::Let(var, value) => self.set(var, value, number)?,
            Stmt::Value(var, of) => {
                let (slot, register) = (self.slot(var)?, self.roots[self.root_of(*of)?].first);
                self.push(Op::Look(slot, register), number);
            }
            Stmt::Ring(ring) => {
                self.set(&ring.stage(), &Expr::from(0), number)?;
                self.set(&ring.parity(), &Expr::from(0), number)?;
            }
            Stmt::Advance(ring) => {
                let (stage, parity) = (self.slot(&ring.stage())?, self.slot(&ring.parity())?);
                self.push(Op::Advance { stage, parity, stages: ring.stages }, number);
            }
            Stmt::Spec(spec) => match &spec.body {
                Some(body) if !self.levels.is_empty() => {
                    let level = self.levels.len();
                    self.levels.push(Level::of(self, spec, Some(number))?);
                    self.push(Op::Enter(level), number);
                    self.statements(body)?;
                    self.push(Op::Leave, number);
                }
                Some(body) => self.statements(body)?,
                None => self.atom(spec, number)?,
            },
            Stmt::For(body) => self.repeat(body, number)?,
            Stmt::If(test, body) => self.masked(&self.kernel.conditions(test)?, body, number)?,
            Stmt::Role(threads, first, end, body) => {
                let at = role_coordinate(self.kernel, *threads);
                let conds = [Cond::new(&at, Relation::AtLeast, *first), Cond::less(&at, *end)];
                self.masked(&conds, body, number)?;
            }
        }
        Ok(())
    }

    fn slot(&self, var: &Var) -> Result<Slot> {
        self.scope.slot(var).ok_or_else(|| Error::Shape(format!("{var} has no value")))
    }

    fn set(&mut self, var: &Var, value: &Expr, number: u32) -> Result {
        let set = Op::Set(self.slot(var)?, self.scope.compile(value)?);
        self.push(set, number);
        Ok(())
    }

    fn masked(&mut self, conds: &[Cond], body: &'k [Stmt], number: u32) -> Result {
        let checks = conds.iter().map(|cond| self.scope.check(cond)).collect::<Result<_>>()?;
        // Where the mask and the loop go on is known once what is within them is there.
        let mask = self.push(Op::Exit, number);
        self.statements(body)?;
        self.push(Op::Unmask, number);
        self.ops[mask] = Op::Mask { checks, end: self.ops.len() };
        Ok(())
    }

    fn repeat(&mut self, stmt: &'k For, number: u32) -> Result {
        self.set(&stmt.var, &stmt.first, number)?;
        let (counter, end) = (self.slot(&stmt.var)?, self.scope.compile(&stmt.end)?);
        let head = self.ops.len();
        if !self.levels.is_empty() && !stmt.carry.is_empty() {
            let at = For::head(stmt.var.name(), &stmt.end, &stmt.step);
            self.set(&at, &Expr::from(&stmt.var), number)?;
            for carry in &stmt.carry {
                let level = Level::of(self, &carry.spec, Some(number))?;
                let level = level.carried(self, carry, (at.clone(), stmt))?;
                self.push(Op::Enter(self.levels.len()), number);
                self.push(Op::Leave, number);
                self.levels.push(level);
            }
        }
        let test = self.push(Op::Exit, number);
        self.statements(&stmt.body)?;
        let step = self.scope.compile(&stmt.step)?;
        self.push(Op::Repeat { counter, step, head }, number);
        self.ops[test] = Op::Loop { counter, end, exit: self.ops.len() };
        Ok(())
    }

    fn atom(&mut self, spec: &'k Spec, number: u32) -> Result {
        let site = atom::select(self.kernel, spec)?;
        let operands = spec.outs.iter().chain(&spec.ins).enumerate();
        let mut places: Vec<Place> = operands
            .map(|(i, operand)| {
                let align = site.atom.align.get(i).copied();
                self.place(operand.tensor, site.operand(i), align)
            })
            .collect::<Result<_>>()?;
        if let Completion::Signals(barrier) = &spec.completion {
            let tensor = self.kernel.operand(barrier)?;
            places.push(self.place(barrier.tensor, &tensor, None)?);
        }
        let team = |id| Team::of(self.kernel.threads(id), &self.scope);
        let value = spec.kind.exprs().first().copied();
        let task = Task {
            number,
            places,
            threads: team(spec.threads)?,
            blocks: team(spec.blocks)?,
            mode: mode(spec, &site.operands),
            value: value.map(|expr| Ok((expr, self.scope.compile(expr)?))).transpose()?,
            site,
        };
        self.push(Op::Atom(self.tasks.len()), number);
        self.tasks.push(task);
        Ok(())
    }

    fn place(&self, id: TensorId, tensor: &Tensor, align: Option<i64>) -> Result<Place> {
        let root = &self.roots[self.root_of(id)?];
        Place::of(tensor, root, align.unwrap_or(tensor.scalar.bytes()), &self.scope)
    }
}

/// How a spec's effects come about: which groups it belongs to follows from what it does.
fn mode(spec: &Spec, operands: &[Tensor]) -> Mode {
    match &spec.completion {
        Completion::Now => Mode::Now,
        Completion::Signals(_) => Mode::Signals,
        Completion::Group if matches!(spec.kind, Kind::MatMul { .. }) => Mode::Group(Group::MatMul),
        Completion::Group => {
            let global = operands[..spec.outs.len()].iter().any(|t| t.memory == Memory::Global);
            Mode::Group(if global { Group::Bulk } else { Group::Copy })
        }
    }
}

/// The own coordinate in the outermost level's only dimension.
fn role_coordinate(kernel: &Kernel, id: ThreadsId) -> Expr {
    let level = kernel.threads(id).view.levels().first();
    let leaves = level.into_iter().flat_map(|level| level.leaves());
    let (mut sum, mut scale) = (Expr::from(0), Expr::from(1));
    for (leaf, digit) in leaves.zip(kernel.coordinates(id).unwrap_or_default()) {
        sum = sum + digit * &scale;
        scale = scale * &leaf.size;
    }
    sum
}

/// Notes which variables are assigned, and which of them vary among a warp's lanes. Says whether there is news.
fn assign(kernel: &Kernel, stmts: &[Stmt], divergent: bool, scope: &mut Scope) -> bool {
    let mut news = false;
    for stmt in stmts {
        let mut inner = divergent;
        match stmt {
            Stmt::Indices(vars, threads) => {
                let values = kernel.coordinates(*threads).unwrap_or_default();
                for (var, value) in vars.iter().zip(values) {
                    news |= scope.assign(var, divergent || !scope.uniform(&value));
                }
            }
            Stmt::Let(var, value) => news |= scope.assign(var, divergent || !scope.uniform(value)),
            Stmt::Value(var, _) => news |= scope.assign(var, true),
            Stmt::Ring(ring) | Stmt::Advance(ring) => {
                for var in [ring.stage(), ring.parity()] {
                    news |= scope.assign(&var, divergent);
                }
            }
            Stmt::For(stmt) => {
                let varying = !scope.uniform(&stmt.first) || !scope.uniform(&stmt.step);
                news |= scope.assign(&stmt.var, divergent || varying);
                let head = For::head(stmt.var.name(), &stmt.end, &stmt.step);
                news |= !stmt.carry.is_empty() && scope.assign(&head, divergent || varying);
            }
            Stmt::If(test, _) => {
                let conds = kernel.conditions(test).unwrap_or_default();
                inner |= !conds.iter().all(|c| scope.uniform(&c.left) && scope.uniform(&c.right));
            }
            Stmt::Role(of, ..) => inner |= !scope.uniform(&role_coordinate(kernel, *of)),
            Stmt::Allocate(_) | Stmt::View(..) | Stmt::Threads(..) | Stmt::Spec(_) => {}
        }
        news |= assign(kernel, stmt.body(), inner, scope);
    }
    news
}
