//! Kernels to text: as it reads back, and as their levels.

use std::fmt::{Display, Error, Formatter, Result, Write};

use crate::kernel::Carry;
use crate::{
    Completion, For, Kernel, Layout, Operand, Spec, Stmt, TensorId, Test, ThreadsId, View,
};

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "kernel {} {} ({})", self.name, self.arch, list(&self.symbols))?;
        for &param in &self.params {
            writeln!(f, "{}:{}", self.percent(param), self.tensor(param))?;
        }
        // In the order of their making, which is that of their numbers.
        let mut launched = [self.grid, self.block];
        launched.sort();
        for id in launched {
            writeln!(f, "{}:{}", self.hash(id), self.threads(id))?;
        }
        self.write_spec(f, &self.spec, 0)
    }
}

/// Takes a text up to its first line's end, and no more.
struct FirstLine(String);

impl Write for FirstLine {
    fn write_str(&mut self, text: &str) -> Result {
        self.0 += text.split('\n').next().unwrap_or_default();
        if text.contains('\n') { Err(Error) } else { Ok(()) }
    }
}

impl Kernel {
    /// A statement's first line.
    pub(crate) fn line(&self, stmt: &Stmt) -> String {
        let mut first = FirstLine(String::new());
        // An error is the end of the line.
        let _ = self.write_stmt(&mut first, stmt, 0);
        first.0
    }

    fn percent(&self, id: TensorId) -> String {
        format!("%{}", self.tensor_name(id))
    }

    fn hash(&self, id: ThreadsId) -> String {
        format!("#{}", self.threads_name(id))
    }

    fn operand_text(&self, operand: &Operand) -> String {
        let name = self.percent(operand.tensor);
        if operand.index.is_empty() { name } else { format!("{name}[{}]", list(&operand.index)) }
    }

    fn operands_text(&self, operands: &[Operand]) -> String {
        list(operands.iter().map(|operand| self.operand_text(operand)))
    }

    fn write_body(&self, f: &mut dyn Write, body: &[Stmt], depth: usize) -> Result {
        writeln!(f, " {{")?;
        for stmt in body {
            self.write_stmt(f, stmt, depth + 1)?;
        }
        indent(f, depth)?;
        writeln!(f, "}}")
    }

    fn write_stmt(&self, f: &mut dyn Write, stmt: &Stmt, depth: usize) -> Result {
        indent(f, depth)?;
        match stmt {
            Stmt::Allocate(id) => writeln!(f, "{}:{}", self.percent(*id), self.tensor(*id)),
            Stmt::View(id, of, op) => {
                let (id, tensor, of) = (self.percent(*id), self.tensor(*id), self.percent(*of));
                writeln!(f, "{id}:{tensor} = {of}{op}")
            }
            Stmt::Threads(id, of, op) => {
                let (id, threads, of) = (self.hash(*id), self.threads(*id), self.hash(*of));
                writeln!(f, "{id}:{threads} = {of}{op}")
            }
            Stmt::Indices(vars, of) => {
                let (mut vars, groups) = (vars.iter(), index_groups(&self.threads(*of).view));
                let names = list(groups.iter().map(|&size| {
                    let names = list(vars.by_ref().take(size));
                    if size > 1 && groups.len() > 1 { format!("({names})") } else { names }
                }));
                writeln!(f, "{names} = {}.indices()", self.hash(*of))
            }
            Stmt::Let(var, value) => writeln!(f, "{var} = {value}"),
            Stmt::Value(var, of) => writeln!(f, "{var} = {}", self.percent(*of)),
            Stmt::Ring(ring) => writeln!(f, "ring @{}[{}]", ring.name, ring.stages),
            Stmt::Advance(ring) => writeln!(f, "advance @{}", ring.name),
            Stmt::Spec(spec) => self.write_spec(f, spec, depth),
            Stmt::For(looped) => self.write_for(f, looped, depth),
            Stmt::If(test, body) => {
                let test = match test {
                    Test::All(conds) if conds.is_empty() => "true".to_owned(),
                    Test::All(conds) => joined(conds, " && "),
                    Test::Inside(operand) => format!("inside({})", self.operand_text(operand)),
                };
                write!(f, "if({test})")?;
                self.write_body(f, body, depth)
            }
            Stmt::Role(of, first, end, body) => {
                let end = if first + 1 == *end { String::new() } else { format!("..{end}") };
                write!(f, "role {}[{first}{end}]", self.hash(*of))?;
                self.write_body(f, body, depth)
            }
        }
    }

    fn write_for(&self, f: &mut dyn Write, looped: &For, depth: usize) -> Result {
        let For { var, first, end, step, unroll, carry, body } = looped;
        write!(f, "for({var} = {first}; {var} < {end}; {var} += {step})")?;
        if *unroll {
            write!(f, " unroll")?;
        }
        for carry in carry {
            writeln!(f)?;
            indent(f, depth + 1)?;
            let states = |all: &[Operand]| self.operands_text(all);
            write!(f, "{}", self.carry_text(carry, states, |spec| self.spec_text(spec)))?;
        }
        self.write_body(f, body, depth)
    }

    fn write_spec(&self, f: &mut dyn Write, spec: &Spec, depth: usize) -> Result {
        write!(f, "{}", self.spec_text(spec))?;
        match &spec.body {
            Some(body) => self.write_body(f, body, depth),
            None => writeln!(f),
        }
    }

    /// What a loop carries, given how its states and the rest of its spec are written.
    fn carry_text(
        &self,
        Carry { form, spec }: &Carry,
        states: impl Fn(&[Operand]) -> String,
        rest: impl Fn(&Spec) -> String,
    ) -> String {
        let form = form.as_ref().map_or(String::new(), |form| format!(" as Fused{{{form}}}"));
        let stated = Spec { outs: Vec::new(), ..spec.clone() };
        format!("carry {}{form} = {}", states(&spec.outs), rest(&stated))
    }

    pub(crate) fn spec_text(&self, spec: &Spec) -> String {
        let outs = match &spec.outs[..] {
            [] => String::new(),
            outs => format!("{} <- ", self.operands_text(outs)),
        };
        let (blocks, threads) = (self.hash(spec.blocks), self.hash(spec.threads));
        let ins = self.operands_text(&spec.ins);
        let completion = match &spec.completion {
            Completion::Now => String::new(),
            Completion::Signals(barrier) => format!(" signals {}", self.operand_text(barrier)),
            Completion::Group => " async".to_owned(),
        };
        format!("{outs}{}<<<{blocks}, {threads}>>>({ins}){completion}", spec.kind)
    }

    /// The levels, a line each, with the shapes of operands and threads, and a line of each one's atoms, which are counted.
    pub fn tree(&self) -> String {
        let mut text = format!("kernel {} {}\n{}\n", self.name, self.arch, self.level(&self.spec));
        let mut atoms = Vec::new();
        self.levels(self.spec.body.as_deref().unwrap_or_default(), 1, &mut atoms, &mut text);
        flush(&mut atoms, 1, &mut text);
        text
    }

    fn levels(
        &self,
        stmts: &[Stmt],
        depth: usize,
        atoms: &mut Vec<(&'static str, usize)>,
        text: &mut String,
    ) {
        for stmt in stmts {
            let head = match stmt {
                Stmt::Spec(spec) if spec.body.is_none() => {
                    let name = spec.kind.name();
                    match atoms.iter_mut().find(|row| row.0 == name) {
                        Some(row) => row.1 += 1,
                        None => atoms.push((name, 1)),
                    }
                    continue;
                }
                Stmt::Spec(spec) => self.level(spec),
                Stmt::For(_) | Stmt::Role(..) if decomposes(stmt.body()) => {
                    self.line(stmt).trim_end_matches(" {").to_owned()
                }
                _ => {
                    self.levels(stmt.body(), depth, atoms, text);
                    continue;
                }
            };
            flush(atoms, depth, text);
            line(text, depth, &head);
            if let Stmt::For(looped) = stmt {
                for carry in &looped.carry {
                    let states = |all: &[Operand]| self.shapes(all);
                    let carry = self.carry_text(carry, states, |spec| self.level(spec));
                    line(text, depth + 1, &carry);
                }
            }
            self.levels(stmt.body(), depth + 1, atoms, text);
            flush(atoms, depth + 1, text);
        }
    }

    /// Operands with their shapes.
    fn shapes(&self, operands: &[Operand]) -> String {
        list(operands.iter().map(|operand| {
            let name = self.percent(operand.tensor);
            match self.operand(operand) {
                Ok(tensor) => format!("{name}:{}.{}", shape(&tensor.view), tensor.memory),
                Err(_) => name,
            }
        }))
    }

    /// A spec with its operands' shapes.
    fn level(&self, spec: &Spec) -> String {
        let threads = |id| format!("{}:{}", self.hash(id), shape(&self.threads(id).view));
        let (outs, ins) = (self.shapes(&spec.outs), self.shapes(&spec.ins));
        let arrow = if outs.is_empty() { "" } else { " <- " };
        let (blocks, threads) = (threads(spec.blocks), threads(spec.threads));
        format!("{outs}{arrow}{}<<<{blocks}, {threads}>>>({ins})", spec.kind)
    }
}

/// How many coordinates each level of a view has: `(@m, @n), @i` for `[2,2:16,8].[8:1]`.
pub(super) fn index_groups(view: &View) -> Vec<usize> {
    view.levels().iter().map(|level| level.leaves().len()).collect()
}

pub(crate) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    joined(items, ", ")
}

pub(crate) fn joined<T: Display>(items: impl IntoIterator<Item = T>, between: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(between)
}

fn indent(f: &mut dyn Write, depth: usize) -> Result {
    write!(f, "{:width$}", "", width = 2 * depth)
}

/// The sizes of a view's levels.
fn shape(view: &View) -> String {
    let level = |level: &Layout<_>| format!("[{}]", list(level.modes().iter().map(Layout::size)));
    let levels = joined(view.levels().iter().map(level), ".");
    if levels.is_empty() { "[]".to_owned() } else { levels }
}

/// Whether statements have a level among them.
fn decomposes(stmts: &[Stmt]) -> bool {
    stmts.iter().any(|stmt| match stmt {
        Stmt::Spec(spec) => spec.body.is_some(),
        other => decomposes(other.body()),
    })
}

fn flush(atoms: &mut Vec<(&'static str, usize)>, depth: usize, text: &mut String) {
    if atoms.is_empty() {
        return;
    }
    let all = list(atoms.drain(..).map(|(name, count)| match count {
        1 => name.to_owned(),
        _ => format!("{name} x{count}"),
    }));
    line(text, depth, &all);
}

fn line(text: &mut String, depth: usize, content: &str) {
    *text += &format!("{:width$}{content}\n", "", width = 2 * depth);
}
