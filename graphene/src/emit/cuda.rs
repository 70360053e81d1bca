//! Statements in CUDA C++.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use super::code::{AtomCode, Uses, declare_registers, render};
use super::lines::broken;
use super::names::Names;
use super::prelude::has_word;
use super::refuse;
use crate::atom;
use crate::error::{Error, Result};
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{For, Kernel, Kind, Ring, Spec, Stmt, Test, ThreadsId, block_var, thread_var};
use crate::launch::Condition;
use crate::tensor::{Agent, Memory, Threads};

/// The statements of a kernel's body, and what they use.
pub(super) fn body(kernel: &Kernel, names: &Names) -> Result<(String, Uses)> {
    let Some(stmts) = &kernel.spec.body else {
        return refuse(format!("the kernel {} has no body", kernel.name));
    };
    let mut printer = Printer {
        kernel,
        names,
        known: BTreeSet::new(),
        uses: RefCell::new(Uses::default()),
        numbers: Vec::new(),
        twice: repeated(stmts),
        text: String::new(),
        depth: 1,
    };
    printer.stmts(stmts)?;
    let mut uses = printer.uses.into_inner();
    let place = |name: &str| kernel.params.iter().position(|&id| kernel.tensor_name(id) == name);
    uses.maps.sort_by_key(|(_, map)| place(&map.tensor));
    Ok((printer.text, uses))
}

struct Printer<'k> {
    kernel: &'k Kernel,
    names: &'k Names,
    /// Variables whose values the compiler knows once loops are written out.
    known: BTreeSet<Var>,
    uses: RefCell<Uses>,
    /// The numbers that open scopes have declared, and where in the text.
    numbers: Vec<(String, Range<usize>)>,
    /// The variables that the innermost block declares more than once, in specs that it decomposes.
    twice: BTreeSet<String>,
    text: String,
    depth: usize,
}

impl Printer<'_> {
    /// Statements, without the numbers that no later one uses: some serve only views that are not
    /// used either.
    fn stmts(&mut self, stmts: &[Stmt]) -> Result<()> {
        let first = self.numbers.len();
        stmts.iter().try_for_each(|stmt| self.stmt(stmt))?;
        for (name, line) in self.numbers.split_off(first).into_iter().rev() {
            if !self.text[line.end..].lines().any(|line| has_word(&code_of(line), &name)) {
                self.text.replace_range(line, "");
            }
        }
        Ok(())
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(&broken(text, 2 * self.depth));
    }

    /// `head {`, the statements, `}`; without a head, braces only where something is declared.
    fn block(&mut self, head: &str, stmts: &[Stmt]) -> Result<()> {
        if head.is_empty() && !stmts.iter().any(declares) {
            return self.stmts(stmts);
        }
        self.line(format!("{head} {{").trim_start());
        self.depth += 1;
        let outer = std::mem::replace(&mut self.twice, repeated(stmts));
        self.stmts(stmts)?;
        self.twice = outer;
        self.depth -= 1;
        self.line("}");
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<()> {
        match stmt {
            Stmt::Allocate(id) => {
                let tensor = self.kernel.tensor(*id);
                if tensor.memory == Memory::Registers {
                    let declaration = declare_registers(tensor, self.names.tensor(*id)?)?;
                    self.line(&declaration);
                }
                Ok(())
            }
            // Views are in the index expressions of what uses them.
            Stmt::View(..) | Stmt::Threads(..) => Ok(()),
            Stmt::Indices(vars, threads) => {
                let coordinates = self.coordinates(*threads)?;
                vars.iter().zip(coordinates).try_for_each(|(var, at)| self.declare(var, &at))
            }
            Stmt::Let(var, value) => {
                let mut known = true;
                value.each_var(&mut |var| known &= self.known.contains(var));
                if known {
                    self.known.insert(var.clone());
                }
                self.declare(var, value)
            }
            Stmt::Value(var, of) => {
                let name = self.names.var(var)?.to_owned();
                let line = format!("int {name} = (int){};", self.names.tensor(*of)?);
                let start = self.text.len();
                self.line(&line);
                self.numbers.push((name, start..self.text.len()));
                Ok(())
            }
            Stmt::Ring(ring) => {
                let (stage, parity) = self.ring(ring)?;
                // The stage of a ring of one is a constant, which nothing names.
                let stage = if ring.stages == 1 { String::new() } else { format!("{stage} = 0, ") };
                self.line(&format!("int {stage}{parity} = 0;"));
                Ok(())
            }
            Stmt::Advance(ring) => {
                let (stage, parity) = self.ring(ring)?;
                let stages = ring.stages;
                self.line(&if stages == 1 {
                    format!("{parity} ^= 1;")
                } else {
                    format!("if (++{stage} == {stages}) {{ {stage} = 0; {parity} ^= 1; }}")
                });
                Ok(())
            }
            Stmt::Spec(spec) => self.spec(spec),
            Stmt::For(of) => self.repeat(of),
            Stmt::If(test, stmts) => {
                let conds = match test {
                    Test::All(conds) => conds.clone(),
                    Test::Inside(operand) => self.kernel.operand(operand)?.view.inside(),
                };
                self.conditional(&conds, stmts)
            }
            Stmt::Role(threads, from, end, stmts) => {
                let conds = self.role(*threads, *from, *end)?;
                self.conditional(&conds, stmts)
            }
        }
    }

    fn declare(&mut self, var: &Var, value: &Expr) -> Result<()> {
        let (name, value) = (self.names.var(var)?, render(value, self.names)?);
        let (line, start) = (format!("int {name} = {value};"), self.text.len());
        self.line(&line);
        self.numbers.push((name.to_owned(), start..self.text.len()));
        Ok(())
    }

    fn ring(&self, ring: &Ring) -> Result<(String, String)> {
        let (stage, parity) = (ring.stage(), ring.parity());
        Ok((self.names.var(&stage)?.to_owned(), self.names.var(&parity)?.to_owned()))
    }

    fn repeat(&mut self, of: &For) -> Result<()> {
        let For { var, first, end, step, unroll, body } = of;
        let name = self.names.var(var)?;
        let text = |expr: &Expr| render(expr, self.names);
        let head = format!(
            "for (int {name} = {}; {name} < {}; {name} += {})",
            text(first)?,
            text(end)?,
            text(step)?
        );
        self.line(if *unroll { "#pragma unroll" } else { "#pragma unroll 1" });
        if *unroll {
            self.known.insert(var.clone());
        }
        self.block(&head, body)?;
        self.known.remove(var);
        Ok(())
    }

    fn conditional(&mut self, conds: &[Cond], stmts: &[Stmt]) -> Result<()> {
        let conds: Vec<String> = conds
            .iter()
            .map(|cond| {
                let (left, right) =
                    (render(&cond.left, self.names), render(&cond.right, self.names));
                Ok(format!("{} {} {}", left?, cond.relation, right?))
            })
            .collect::<Result<_>>()?;
        let head =
            if conds.is_empty() { String::new() } else { format!("if ({})", conds.join(" && ")) };
        self.block(&head, stmts)
    }

    fn linear(&self, threads: &Threads) -> Result<Var> {
        match threads.agent {
            Agent::Thread => Ok(thread_var(self.kernel.block_size()?)),
            Agent::Block => Ok(block_var()),
        }
    }

    fn coordinates(&self, id: ThreadsId) -> Result<Vec<Expr>> {
        let threads = self.kernel.threads(id);
        Ok(threads.coordinates(&self.linear(threads)?))
    }

    /// When the own thread is one of those with these coordinates in the outermost level. Of
    /// threads that follow one another their numbers say so.
    fn role(&self, id: ThreadsId, from: i64, end: i64) -> Result<Vec<Cond>> {
        let threads = self.kernel.threads(id);
        let view = &threads.view;
        let outermost = view.levels().first().filter(|level| level.rank() == 1);
        let size = outermost.and_then(|level| level.size().constant());
        let (Some(size), [leaf, ..]) = (size, &view.leaves()[..]) else {
            return refuse("a role is of threads whose outermost level has one dimension");
        };
        let linear = Expr::from(self.linear(threads)?);
        let all = self.kernel.block_size()?;
        let start = view.offset().constant();
        let compact = view.extent();
        let stride = view.stride(leaf).constant();
        if let (Some(start), Some(stride), Some(extent)) = (start, stride, compact)
            && stride * size == extent
        {
            let (first, last) = (start + from * stride, start + end * stride);
            if let Some(warps) = self.names.warps()
                && let [Some(first), Some(last), Some(all)] =
                    [first, last, all].map(|thread| warps.begins(thread))
                && threads.agent == Agent::Thread
            {
                return Ok(between(Expr::from(warps.index()), first, last, all));
            }
            return Ok(between(linear, first, last, all));
        }
        let coordinate = self.coordinates(id)?.swap_remove(0);
        let mut conds = between(coordinate, from, end, size);
        match (start, compact) {
            // Their place depends on the own thread: it is one of them.
            (None, _) => {}
            (Some(start), Some(extent)) => {
                conds.extend(between(linear, start, start + extent, all));
            }
            (Some(_), None) => return refuse(format!("a role of scattered threads: {view}")),
        }
        Ok(conds)
    }

    fn spec(&mut self, spec: &Spec) -> Result<()> {
        if let Some(body) = &spec.body {
            self.line(&format!("// {}", self.kernel.spec_text(spec)));
            // A level is structure, not a scope of C's, unless it is a thread's own, or others declare the same.
            let own = self.kernel.threads(spec.threads).view.size().is(1);
            let again = variables(body).iter().any(|name| self.twice.contains(name));
            return if own || again { self.block("", body) } else { self.stmts(body) };
        }
        let text = self
            .atom(spec)
            .map_err(|why| Error::Emission(format!("{}: {why}", self.kernel.spec_text(spec))))?;
        self.line(&text);
        Ok(())
    }

    fn atom(&self, spec: &Spec) -> Result<String> {
        let site = atom::select(self.kernel, spec)?;
        let (names, known, uses) = (self.names, &self.known, &self.uses);
        let text = (site.atom.cuda)(&site, &AtomCode { names, site: &site, known, uses });
        if let Some(error) = self.uses.borrow_mut().error.take() {
            return Err(error);
        }
        self.note_globals(&site);
        Ok(text)
    }

    /// What an atom asks of the global tensors that it accesses.
    fn note_globals(&self, site: &atom::Site<'_>) {
        let mut uses = self.uses.borrow_mut();
        let all = site.spec.outs.iter().chain(&site.spec.ins);
        for (i, operand) in all.enumerate() {
            let tensor = site.operand(i);
            if tensor.memory != Memory::Global {
                continue;
            }
            let root = self.names.root(operand.tensor);
            if i < site.outs() {
                uses.written.insert(root);
            }
            let scalar = tensor.scalar.bytes();
            let align = site.atom.align.get(i).copied().unwrap_or(scalar).max(scalar);
            let known = uses.aligned.entry(root).or_insert(scalar);
            *known = align.max(*known);
            for condition in site.alignment(i).unwrap_or_default() {
                uses.require(condition);
            }
        }
        uses.dependent |= matches!(site.spec.kind, Kind::GridDependencyWait);
    }
}

impl Uses {
    /// Adds a condition, once.
    pub(super) fn require(&mut self, condition: Condition) {
        if !self.conditions.contains(&condition) {
            self.conditions.push(condition);
        }
    }
}

/// The variables that statements declare in one block of C.
fn variables(stmts: &[Stmt]) -> Vec<String> {
    let of = |stmt: &Stmt| match stmt {
        Stmt::Indices(vars, _) => vars.iter().map(|var| var.name().to_owned()).collect(),
        Stmt::Let(var, _) | Stmt::Value(var, _) => vec![var.name().to_owned()],
        Stmt::Ring(ring) => vec![ring.name.clone()],
        Stmt::Spec(spec) => variables(spec.body.as_deref().unwrap_or_default()),
        Stmt::Allocate(_)
        | Stmt::View(..)
        | Stmt::Threads(..)
        | Stmt::Advance(_)
        | Stmt::For(_)
        | Stmt::If(..)
        | Stmt::Role(..) => Vec::new(),
    };
    stmts.iter().flat_map(of).collect()
}

/// Those that they declare more than once.
fn repeated(stmts: &[Stmt]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    variables(stmts).into_iter().filter(|name| !seen.insert(name.clone())).collect()
}

/// Whether a statement declares something in C.
fn declares(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Allocate(_) | Stmt::Indices(..) | Stmt::Let(..) | Stmt::Value(..) | Stmt::Ring(_) => {
            true
        }
        Stmt::View(..)
        | Stmt::Threads(..)
        | Stmt::Advance(_)
        | Stmt::Spec(_)
        | Stmt::For(_)
        | Stmt::If(..)
        | Stmt::Role(..) => false,
    }
}

/// A line without its strings, and nothing of a comment.
fn code_of(line: &str) -> String {
    let code = if line.trim_start().starts_with("//") { "" } else { line };
    code.split('"').step_by(2).collect::<Vec<_>>().join(" ")
}

/// `from <= value < end`, without what holds of every value in `0..all`.
fn between(value: Expr, from: i64, end: i64, all: i64) -> Vec<Cond> {
    if from + 1 == end && all > 1 {
        return vec![Cond::equal(value, from)];
    }
    let mut conds = Vec::new();
    if from > 0 {
        conds.push(Cond::new(value.clone(), Relation::AtLeast, from));
    }
    if end < all {
        conds.push(Cond::less(value, end));
    }
    conds
}
