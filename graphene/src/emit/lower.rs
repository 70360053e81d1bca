//! From the statements of a kernel to those of C.

use std::{cell::RefCell, collections::BTreeSet};

use super::code::{Code, declare_registers, render};
use super::passes::{Form, Statement};
use super::{Names, Prelude, Uses, refuse};
use crate::{
    Agent, Cond, Error, Expr, For, Kernel, Kind, Memory, Relation, Result, Scalar, Spec, Stmt,
    ThreadsId, Var, atom,
};

/// The statements of a kernel's body, and what they use.
pub(super) fn body(kernel: &Kernel, names: &Names) -> Result<(Vec<Statement>, Uses)> {
    let Some(stmts) = &kernel.spec.body else {
        return refuse(format!("the kernel {} has no body", kernel.name));
    };
    let uses = RefCell::new(Uses::default());
    let mut lowering = Lowering { kernel, names, known: BTreeSet::new(), uses };
    let body = lowering.stmts(stmts)?;
    let mut uses = lowering.uses.into_inner();
    uses.maps.sort_by_key(|map| kernel.params.iter().position(|&id| id == map.tensor));
    Ok((body, uses))
}

struct Lowering<'k> {
    kernel: &'k Kernel,
    names: &'k Names,
    /// Variables whose values the compiler knows once loops are written out.
    known: BTreeSet<Var>,
    uses: RefCell<Uses>,
}

impl Lowering<'_> {
    fn stmts(&mut self, stmts: &[Stmt]) -> Result<Vec<Statement>> {
        let mut all = Vec::new();
        stmts.iter().try_for_each(|stmt| self.stmt(stmt, &mut all))?;
        Ok(all)
    }

    fn stmt(&mut self, stmt: &Stmt, all: &mut Vec<Statement>) -> Result {
        match stmt {
            Stmt::Allocate(id) => {
                let tensor = self.kernel.tensor(*id);
                let text = match tensor.memory {
                    Memory::Registers => {
                        self.uses.borrow_mut().prelude.extend(Prelude::of(tensor.scalar));
                        declare_registers(tensor, self.names.tensor(*id)?)?
                    }
                    Memory::Global | Memory::Shared => String::new(),
                };
                all.push(Statement { form: Form::Storage, text, ..Statement::default() });
            }
            // Views are in the index expressions of what uses them.
            Stmt::View(..) | Stmt::Threads(..) => {}
            Stmt::Indices(vars, threads) => {
                for (var, at) in vars.iter().zip(self.kernel.coordinates(*threads)?) {
                    all.push(self.number(var, &at)?);
                }
            }
            Stmt::Let(var, value) => {
                if value.vars().iter().all(|var| self.known.contains(var)) {
                    self.known.insert(var.clone());
                }
                all.push(self.number(var, value)?);
            }
            Stmt::Value(var, of) => {
                let (name, of) = (self.names.var(var)?, self.names.tensor(*of)?);
                let text = format!("int {name} = (int){of};");
                all.push(self.statement(Form::Number, text, vec![var.clone()]));
            }
            Stmt::Ring(ring) => {
                // The stage of a ring of one is a constant, which nothing names.
                let vars = [ring.stage(), ring.parity()];
                let vars = &vars[usize::from(ring.stages == 1)..];
                let names = vars.iter().map(|var| self.names.var(var));
                let names = names.collect::<Result<Vec<_>>>()?.join(" = 0, ");
                let text = format!("int {names} = 0;");
                all.push(self.statement(Form::Storage, text, vars.to_vec()));
            }
            Stmt::Advance(ring) => {
                let [stage, parity] = [ring.stage(), ring.parity()];
                let (stage, parity) = (self.names.var(&stage)?, self.names.var(&parity)?);
                all.push(Statement::line(match ring.stages {
                    1 => format!("{parity} ^= 1;"),
                    of => format!("if (++{stage} == {of}) {{ {stage} = 0; {parity} ^= 1; }}"),
                }));
            }
            Stmt::Spec(spec) => all.push(self.spec(spec)?),
            Stmt::For(of) => all.push(self.repeat(of)?),
            Stmt::If(test, body) => {
                all.push(self.conditional(&self.kernel.conditions(test)?, body)?);
            }
            Stmt::Role(threads, from, end, body) => {
                all.push(self.conditional(&self.role(*threads, *from, *end)?, body)?);
            }
        }
        Ok(())
    }

    /// A statement, which reads what has been named since the one before.
    fn statement(&self, form: Form, text: String, declares: Vec<Var>) -> Statement {
        let reads = std::mem::take(&mut self.uses.borrow_mut().reads);
        Statement { form, text, reads, declares, body: Vec::new() }
    }

    fn render(&self, expr: &Expr) -> Result<String> {
        render(expr, self.names, &mut self.uses.borrow_mut().reads)
    }

    fn number(&self, var: &Var, value: &Expr) -> Result<Statement> {
        let text = format!("int {} = {};", self.names.var(var)?, self.render(value)?);
        Ok(self.statement(Form::Number, text, vec![var.clone()]))
    }

    fn repeat(&mut self, of: &For) -> Result<Statement> {
        let For { var, first, end, step, unroll, body, .. } = of;
        let name = self.names.var(var)?;
        let pragma = if *unroll { "#pragma unroll" } else { "#pragma unroll 1" };
        let (first, end, step) = (self.render(first)?, self.render(end)?, self.render(step)?);
        let head =
            format!("{pragma}\nfor (int {name} = {first}; {name} < {end}; {name} += {step})");
        let block = self.statement(Form::Block, head, Vec::new());
        if *unroll {
            self.known.insert(var.clone());
        }
        let body = self.stmts(body)?;
        self.known.remove(var);
        Ok(Statement { body, ..block })
    }

    fn conditional(&mut self, conds: &[Cond], stmts: &[Stmt]) -> Result<Statement> {
        let text = |cond: &Cond| {
            let (left, right) = (self.render(&cond.left)?, self.render(&cond.right)?);
            Ok(format!("{left} {} {right}", cond.relation))
        };
        let conds = conds.iter().map(text).collect::<Result<Vec<_>>>()?.join(" && ");
        let head = if conds.is_empty() { conds } else { format!("if ({conds})") };
        let block = self.statement(Form::Block, head, Vec::new());
        Ok(Statement { body: self.stmts(stmts)?, ..block })
    }

    /// When the own thread has one of these coordinates in the outermost level. Of neighbours their numbers say so.
    fn role(&self, id: ThreadsId, from: i64, end: i64) -> Result<Vec<Cond>> {
        let threads = self.kernel.threads(id);
        let view = &threads.view;
        let outermost = view.levels().first().filter(|level| level.rank() == 1);
        let size = outermost.and_then(|level| level.size().constant());
        let (Some(size), [leaf, ..]) = (size, &view.leaves()[..]) else {
            return refuse("a role is of threads whose outermost level has one dimension");
        };
        let linear = Expr::from(self.kernel.number(threads.agent)?);
        let all = self.kernel.block_size()?;
        let (start, stride) = (view.offset().constant(), view.stride(leaf).constant());
        let compact = view.extent();
        if let (Some(start), Some(stride), Some(extent)) = (start, stride, compact)
            && stride * size == extent
        {
            let (first, last) = (start + from * stride, start + end * stride);
            if let Some(warps) = &self.names.warps
                && let [Some(first), Some(last), Some(all)] =
                    [first, last, all].map(|thread| warps.begins(thread))
                && threads.agent == Agent::Thread
            {
                return Ok(between(Expr::from(&warps.warp), first, last, all));
            }
            return Ok(between(linear, first, last, all));
        }
        let coordinate = self.kernel.coordinates(id)?.swap_remove(0);
        let mut conds = between(coordinate, from, end, size);
        // Where their place depends on the own thread, it is one of them.
        let Some(start) = start else { return Ok(conds) };
        let Some(extent) = compact else {
            return refuse(format!("a role of scattered threads: {view}"));
        };
        conds.extend(between(linear, start, start + extent, all));
        Ok(conds)
    }

    /// A level is structure, not a scope of C's, but a thread's own one.
    fn spec(&mut self, spec: &Spec) -> Result<Statement> {
        if let Some(body) = &spec.body {
            let title = format!("// {}", self.kernel.spec_text(spec));
            let own = self.kernel.threads(spec.threads).view.size().is(1);
            let level = self.statement(Form::Level { own }, title, Vec::new());
            return Ok(Statement { body: self.stmts(body)?, ..level });
        }
        let refused = |why| Error::Emission(format!("{}: {why}", self.kernel.spec_text(spec)));
        let text = self.atom(spec).map_err(refused)?;
        Ok(self.statement(Form::Line, text, Vec::new()))
    }

    fn atom(&self, spec: &Spec) -> Result<String> {
        let site = atom::select(self.kernel, spec)?;
        let (names, known, uses) = (self.names, &self.known, &self.uses);
        let text = (site.atom.cuda)(&site, &Code { names, site: &site, known, uses });
        if let Some(error) = self.uses.borrow_mut().error.take() {
            return Err(error);
        }
        let of_integers = !spec.outs.is_empty() && site.operand(0).scalar == Scalar::I64;
        if !of_integers {
            self.uses.borrow_mut().prelude.extend(Prelude::called(&spec.kind));
        }
        self.note_globals(&site);
        Ok(text)
    }

    /// What an atom asks of the global tensors that it accesses.
    fn note_globals(&self, site: &atom::Site<'_>) {
        let mut uses = self.uses.borrow_mut();
        for (i, operand) in site.spec.operands().enumerate() {
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
            uses.conditions.extend(site.alignment(i).unwrap_or_default());
        }
        uses.dependent |= matches!(site.spec.kind, Kind::GridDependencyWait);
    }
}

/// `from <= value < end`, without what holds of every value in `0..all`.
fn between(value: Expr, from: i64, end: i64, all: i64) -> Vec<Cond> {
    if from + 1 == end && all > 1 {
        return vec![Cond::equal(value, from)];
    }
    let first = (from > 0).then(|| Cond::new(&value, Relation::AtLeast, from));
    let last = (end < all).then(|| Cond::less(&value, end));
    first.into_iter().chain(last).collect()
}
