//! The verifier: what holds of every kernel before it is simulated or emitted.
//!
//! 1. *Atomic.* Every spec is decomposed by a body, or is an atom of the kernel's architecture; so
//!    its operands have the shapes, scalars, memories and alignments that the atom asks for.
//! 2. *Together.* The threads of a collective spec all reach it: no thread outside of its role, none left out by a condition, all
//!    in one group. A condition that may differ among the threads of a collective spec, and a loop whose bounds may, are refused;
//!    and in any case a loop whose bounds may differ among the threads of a warp. So does a ring that some of its threads have
//!    advanced, and others not, further up in the text. A matmul by a part of a warp is reached by the whole warp, which is who
//!    issues the instruction.
//! 3. *Inside.* Every access lies within its buffer: provably, or under a condition that says so,
//!    or because the instruction leaves out what is beyond the edge.
//! 4. *Declared.* Of global memory, a decomposition writes only outputs of its spec. Besides, it uses scratch: what it or a
//!    spec around it allocates, such as stages and barriers, and parameters that are declared so, such as counters. It
//!    writes all outputs and reads all inputs. Instead of an input in global memory it may read what others filled from
//!    it: a tile's operands lie in global memory, although its matmuls read stages that a producer fills.
//! 5. *Fits.* Shared memory fits the architecture. Register budgets are stated by whole warpgroups, once by every thread if by
//!    any, and the sum over the block is at most what it has at launch: a warpgroup that asked for more would wait for ever.
//! 6. *Rings.* A barrier's parity comes from a ring, or is a constant.
//! 7. *Clusters.* If a block accesses shared memory of another one, the cluster meets before the first such access, after
//!    barriers are initialised and that is fenced; and once more after the last, so that no block leaves too early. This is asked
//!    of the order of the text, though other means might do.
//! 8. *Grid.* Of the blocks that wait for each other by a counter, all reach it: what decides that,
//!    and the numbers that they wait for, may differ between blocks only as the counter does.
//! 9. *Predecessor.* A thread of a kernel that waits for its predecessors touches global memory only when it has, but for
//!    constant parameters; and all threads have in the end.
//! 10. *Typed.* A spec with a body says what it computes: its kind has a meaning.
//! 11. *Agents.* The agents of a spec are tiles of those of the spec around it: the threads that one of them is among
//!     are all there; the blocks are the own one, or a view of those. What the whole block does without operands may stand
//!     anywhere, such as its one barrier, at which the threads of several tiles meet.
//! 12. *Carried.* What a loop says of its head has a meaning, by agents who are there and of what is known there; and its body
//!     writes the states.
//!
//! What depends on the order of events (races, deadlocks, memory in flight, missing fences) is the simulator's to find.

mod bounds;
mod clusters;
mod grid;
mod predecessor;
mod together;

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;

use crate::arch::registers_at_launch;
use crate::atom::{Site, select};
use crate::emit::Storage;
use crate::error::AtMost;
use crate::kernel::{Leaf, each_stmt};
use crate::{Completion, Cond, Kernel, Kind, Memory, Operand, Spec, Stmt, TensorId, ThreadsId};
use together::Group;

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule:?}: spec {spec}: {message}")]
pub struct Finding {
    /// The invariant that does not hold.
    pub rule: Rule,
    /// The number of the spec, in the order of the text.
    pub spec: usize,
    /// What is wrong with it.
    pub message: String,
}

/// The verifier's invariants, which its head states in this order.
#[allow(missing_docs)] // The head says what each is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    Atomic,
    Together,
    Inside,
    Declared,
    Fits,
    Rings,
    Clusters,
    Grid,
    Predecessor,
    Typed,
    Agents,
    Carried,
}

/// All that is wrong with a kernel; nothing, if it may be simulated and emitted.
pub fn verify(kernel: &Kernel) -> Vec<Finding> {
    let roots = kernel.roots();
    let mut made_of: BTreeMap<TensorId, BTreeSet<TensorId>> = BTreeMap::new();
    let root = |operand: &Operand| roots[operand.tensor.0 as usize];
    for Leaf { spec, .. } in kernel.leaves() {
        for out in spec.outs.iter().map(root) {
            made_of.entry(out).or_default().extend(spec.ins.iter().map(root));
        }
    }
    let (views, findings, budgets) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut verifier = Verifier { kernel, roots, made_of, views, findings, specs: 0, budgets };
    if let Err(error) = Storage::of(kernel) {
        verifier.report(Rule::Fits, error.to_string());
    }
    match kernel.block_size() {
        Ok(threads) => verifier.spec(&kernel.spec, &mut Group::new(threads), &mut Scope::default()),
        Err(error) => verifier.report(Rule::Together, error.to_string()),
    }
    verifier.register_file();
    let of = |rule| move |(spec, message)| Finding { rule, spec, message };
    verifier.findings.extend(clusters::check(kernel).into_iter().map(of(Rule::Clusters)));
    verifier.findings.extend(grid::check(kernel).into_iter().map(of(Rule::Grid)));
    verifier.findings.extend(predecessor::check(kernel).into_iter().map(of(Rule::Predecessor)));
    verifier.findings
}

/// Whether something holds, or what is wrong with it.
type Held = Result<(), String>;

struct Verifier<'a> {
    kernel: &'a Kernel,
    /// The buffer that each tensor is a view of.
    roots: Vec<TensorId>,
    /// Of each buffer, those that instructions which write it read.
    made_of: BTreeMap<TensorId, BTreeSet<TensorId>>,
    /// Which threads or blocks others are a view of.
    views: BTreeMap<ThreadsId, ThreadsId>,
    findings: Vec<Finding>,
    specs: usize,
    /// The threads that state a register budget, and the budget.
    budgets: Vec<(Vec<bool>, i64)>,
}

/// What surrounds a statement.
#[derive(Default, Clone)]
struct Scope {
    /// The conditions under which it is reached.
    tests: bounds::Known,
    /// Buffers that specs around it allow to be written, and to be read: one list a spec.
    allowed: Vec<[Vec<TensorId>; 2]>,
    /// The blocks and threads of the spec around it.
    agents: Option<[ThreadsId; 2]>,
}

impl Verifier<'_> {
    fn report(&mut self, rule: Rule, message: String) {
        self.findings.push(Finding { rule, spec: self.specs, message });
    }

    fn block(&mut self, stmts: &[Stmt], group: &mut Group, scope: &mut Scope) {
        stmts.iter().for_each(|stmt| self.stmt(stmt, group, scope));
    }

    fn stmt(&mut self, stmt: &Stmt, group: &mut Group, scope: &mut Scope) {
        match stmt {
            Stmt::Allocate(tensor) => {
                if let Some([written, _]) = scope.allowed.last_mut() {
                    written.push(*tensor);
                }
            }
            Stmt::View(..) => {}
            Stmt::Threads(id, of, _) => drop(self.views.insert(*id, *of)),
            Stmt::Ring(ring) => group.ring(ring),
            Stmt::Advance(ring) => group.advance(ring),
            Stmt::Indices(vars, threads) => group.indices(self.kernel.threads(*threads), vars),
            Stmt::Let(var, value) => group.define(var, value),
            Stmt::Value(var, of) => {
                self.declared_uses(&[], &[(*of).into()], scope);
                group.varying(var);
            }
            Stmt::Spec(spec) => self.spec(spec, group, scope),
            Stmt::For(looped) => {
                let (name, bounds) = (&looped.var, [&looped.first, &looped.end, &looped.step]);
                let before = group.enter(name, bounds);
                if before.is_none() {
                    self.report(Rule::Together, format!("the bounds of {name} differ by thread"));
                }
                let mut inner = scope.clone();
                for carry in &looped.carry {
                    if let Err(why) = self.carried(&carry.spec, &looped.body, group, scope) {
                        self.report(Rule::Carried, why);
                    }
                }
                inner.tests.add(&[Cond::less(name, &looped.end)]);
                self.block(&looped.body, group, &mut inner);
                if let Some(before) = before {
                    group.widen(before);
                }
            }
            Stmt::If(test, body) => {
                let conds = self.kernel.conditions(test).unwrap_or_default();
                let mut inner = scope.clone();
                inner.tests.add(&conds);
                let before = group.narrow(&conds);
                self.block(body, group, &mut inner);
                group.widen(before);
            }
            Stmt::Role(threads, first, end, body) => {
                let threads = self.kernel.threads(*threads);
                if let Err(why) = group.belong(threads) {
                    self.report(Rule::Together, why);
                }
                let before = group.role(threads, *first, *end);
                self.block(body, group, &mut scope.clone());
                group.widen(before);
            }
        }
    }

    fn spec(&mut self, spec: &Spec, group: &mut Group, scope: &mut Scope) {
        self.specs += 1;
        self.declared_uses(&spec.outs, &spec.ins, scope);
        if let Err(why) = group.reach(self.kernel.threads(spec.threads)) {
            self.report(Rule::Together, why);
        }
        if let Some(above) = scope.agents
            && !(spec.outs.is_empty() && spec.ins.is_empty() && spec.threads == self.kernel.block)
            && let Err(why) = self.agents(spec, above, group)
        {
            self.report(Rule::Agents, why);
        }
        if let Some(body) = &spec.body {
            if spec.kind.meaning(&[], &[]).is_none() {
                let kind = &spec.kind;
                self.report(Rule::Typed, format!("{kind} does not say what its body computes"));
            }
            self.complete(spec, body);
            let mut inner = scope.clone();
            inner.allowed.push([self.buffers(&spec.outs), self.buffers(&spec.ins)]);
            inner.agents = Some([spec.blocks, spec.threads]);
            return self.block(body, group, &mut inner);
        }
        match select(self.kernel, spec) {
            Ok(site) => {
                if site.is_the_warps()
                    && let Err(why) = group.whole_warps()
                {
                    self.report(Rule::Together, why);
                }
                self.inside(&site, &scope.tests, group);
                if let Kind::Registers(count) = spec.kind {
                    self.budgets.push((group.active.clone(), count));
                }
                self.parity(spec, group);
            }
            Err(error) => self.report(Rule::Atomic, error.to_string()),
        }
    }

    /// Rule 12.
    fn carried(&mut self, spec: &Spec, body: &[Stmt], group: &Group, scope: &Scope) -> Held {
        let states = &spec.outs;
        self.declared_uses(&[], &[&states[..], &spec.ins].concat(), scope);
        group.reach(self.kernel.threads(spec.threads))?;
        if let Some(above) = scope.agents {
            self.agents(spec, above, group)?;
        }
        if spec.kind.meaning(&[], &[]).is_none() {
            return Err(format!("{} does not say what is carried", spec.kind));
        }
        let [written, _] = self.used(body);
        let kept = states.iter().zip(self.buffers(states)).find(|row| !written.contains(&row.1));
        kept.map_or(Ok(()), |(state, _)| {
            let name = self.kernel.tensor_name(state.tensor);
            Err(format!("nothing in the loop writes %{name}, which it carries"))
        })
    }

    /// Rule 11.
    fn agents(&self, spec: &Spec, above: [ThreadsId; 2], group: &Group) -> Held {
        let [blocks, threads] = above.map(|id| self.kernel.threads(id));
        let [own_blocks, own] = [spec.blocks, spec.threads].map(|id| self.kernel.threads(id));
        let mut views = successors(Some(&spec.blocks), |id| self.views.get(id));
        if views.all(|id| *id != above[0]) && own_blocks != blocks && !own_blocks.view.size().is(1)
        {
            let [own, above] = [spec.blocks, above[0]].map(|id| self.kernel.threads_name(id));
            return Err(format!("its blocks #{own} are no tile of #{above} around it"));
        }
        if own.view.size().is(1) || own == threads { Ok(()) } else { group.within(own, threads) }
    }

    /// Rule 3.
    fn inside(&mut self, site: &Site<'_>, known: &bounds::Known, group: &Group) {
        // Asynchronous copies leave out what lies beyond a global tensor's edge.
        let clips = site.spec.kind == Kind::Move && site.spec.completion != Completion::Now;
        let operands = site.operands.iter().filter(|of| !(clips && of.memory == Memory::Global));
        for tensor in site.signalled().iter().chain(operands) {
            if let Some(cond) = known.unproven(&tensor.view, group) {
                self.report(Rule::Inside, format!("nothing says that {cond} for {tensor}"));
            }
        }
    }

    /// The parameters or allocations that operands are views of.
    fn buffers(&self, operands: &[Operand]) -> Vec<TensorId> {
        operands.iter().map(|operand| self.roots[operand.tensor.0 as usize]).collect()
    }

    /// Rule 4.
    fn declared_uses(&mut self, outs: &[Operand], ins: &[Operand], scope: &Scope) {
        for (operands, written) in [(outs, true), (ins, false)] {
            for id in self.buffers(operands) {
                let names = |[writes, reads]: &[Vec<TensorId>; 2]| {
                    writes.contains(&id) || !written && reads.contains(&id)
                };
                // Whoever reads a spec is told of all that it writes to global memory.
                let (tensor, mut around) = (self.kernel.tensor(id), scope.allowed.iter());
                let told = written && tensor.memory == Memory::Global;
                let known = if told { around.all(names) } else { around.any(names) };
                if !scope.allowed.is_empty() && !known && !tensor.scratch {
                    let what = if written { "writes" } else { "reads" };
                    let name = self.kernel.tensor_name(id);
                    let message = format!("{what} %{name}, which a spec around it does not name");
                    self.report(Rule::Declared, message);
                }
            }
        }
    }

    /// The buffers that statements write, and those that they read.
    fn used(&self, body: &[Stmt]) -> [BTreeSet<TensorId>; 2] {
        let (mut written, mut read) = (BTreeSet::new(), BTreeSet::new());
        each_stmt(body, &mut |stmt| {
            if let Stmt::Spec(spec @ Spec { body: None, .. }) = stmt {
                written.extend(self.buffers(&spec.outs));
                read.extend(self.buffers(&spec.ins));
            } else if let Stmt::Value(_, of) = stmt {
                read.insert(self.roots[of.0 as usize]);
            }
        });
        [written, read]
    }

    /// Rule 4: what a spec names, its decomposition uses.
    fn complete(&mut self, spec: &Spec, body: &[Stmt]) {
        let [written, mut read] = self.used(body);
        let unused = |operands: &[Operand], used: &BTreeSet<TensorId>| {
            self.buffers(operands).into_iter().find(|root| !used.contains(root))
        };
        let idle = unused(&spec.outs, &written);
        // The parameters from which others have made what is read count as well.
        let (mut traced, mut left) = (read.clone(), Vec::from_iter(read.iter().copied()));
        while let Some(root) = left.pop() {
            let more = self.made_of.get(&root).into_iter().flatten();
            left.extend(more.filter(|of| traced.insert(**of)));
        }
        let global = |root: &TensorId| self.kernel.tensor(*root).memory == Memory::Global;
        read.extend(traced.into_iter().filter(global));
        let vain = unused(&spec.ins, &read);
        for (root, what) in [(idle, "writes"), (vain, "reads")] {
            if let Some(name) = root.map(|root| self.kernel.tensor_name(root)) {
                self.report(Rule::Declared, format!("nothing in its decomposition {what} %{name}"));
            }
        }
    }

    /// Rule 5, of registers: if any thread states a budget, each states one.
    fn register_file(&mut self) {
        let Some((active, _)) = self.budgets.first() else { return };
        let threads = active.len();
        let stated = |thread: usize| {
            let mut own = self.budgets.iter().filter(|(active, _)| active[thread]);
            let first = own.next().ok_or("no register budget")?;
            if own.next().is_some() { Err("two register budgets") } else { Ok(first.1) }
        };
        let sum: Result<i64, &str> = (0..threads).map(stated).sum();
        match sum {
            Err(what) => self.report(Rule::Fits, format!("some threads state {what}")),
            Ok(sum) => {
                let there = registers_at_launch(threads as i64) * threads as i64;
                if let Err(error) = AtMost(there).check("registers a block", sum) {
                    self.report(Rule::Fits, error.to_string());
                }
            }
        }
    }

    /// Rule 6.
    fn parity(&mut self, spec: &Spec, group: &Group) {
        let Kind::Wait(parity, _) = &spec.kind else { return };
        let constant = matches!(parity.constant(), Some(0 | 1));
        if !constant && !parity.vars().iter().any(|var| group.parities.contains(var)) {
            self.report(Rule::Rings, format!("the parity {parity} is no ring's"));
        }
    }
}
