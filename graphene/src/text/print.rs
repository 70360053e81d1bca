//! Kernels to text.

use std::fmt::{Display, Formatter, Result};

use crate::kernel::Carry;
use crate::{Completion, For, Kernel, Operand, Spec, Stmt, TensorId, Test, ThreadsId, View};

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

/// A statement of a kernel.
struct Printed<'a>(&'a Kernel, &'a Stmt);

impl Display for Printed<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.write_stmt(f, self.1, 0)
    }
}

impl Kernel {
    /// A statement's first line.
    pub(crate) fn line(&self, stmt: &Stmt) -> String {
        Printed(self, stmt).to_string().lines().next().unwrap_or_default().to_owned()
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

    fn write_body(&self, f: &mut Formatter<'_>, body: &[Stmt], depth: usize) -> Result {
        writeln!(f, " {{")?;
        for stmt in body {
            self.write_stmt(f, stmt, depth + 1)?;
        }
        indent(f, depth)?;
        writeln!(f, "}}")
    }

    fn write_stmt(&self, f: &mut Formatter<'_>, stmt: &Stmt, depth: usize) -> Result {
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
                let mut vars = vars.iter();
                let groups: Vec<String> = index_groups(&self.threads(*of).view)
                    .into_iter()
                    .map(|size| list(vars.by_ref().take(size)))
                    .collect();
                let group = |names: &String| match names.contains(',') && groups.len() > 1 {
                    true => format!("({names})"),
                    false => names.clone(),
                };
                let names = list(groups.iter().map(group));
                writeln!(f, "{names} = {}.indices()", self.hash(*of))
            }
            Stmt::Let(var, value) => writeln!(f, "{var} = {value}"),
            Stmt::Value(var, of) => writeln!(f, "{var} = %{}", self.tensor_name(*of)),
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

    fn write_for(&self, f: &mut Formatter<'_>, looped: &For, depth: usize) -> Result {
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

    fn write_spec(&self, f: &mut Formatter<'_>, spec: &Spec, depth: usize) -> Result {
        write!(f, "{}", self.spec_text(spec))?;
        match &spec.body {
            Some(body) => self.write_body(f, body, depth),
            None => writeln!(f),
        }
    }

    /// What a loop carries, given how its states and the rest of its spec are written.
    pub(super) fn carry_text(
        &self,
        Carry { form, spec }: &Carry,
        states: impl Fn(&[Operand]) -> String,
        rest: impl Fn(&Spec) -> String,
    ) -> String {
        let form = form.as_ref().map_or(String::new(), |form| format!(" as Fused{{{form}}}"));
        let stated = Spec { outs: Vec::new(), ..spec.clone() };
        format!("carry {}{form} = {}", states(&spec.outs), rest(&stated))
    }

    /// A spec without its body.
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

fn indent(f: &mut Formatter<'_>, depth: usize) -> Result {
    write!(f, "{:width$}", "", width = 2 * depth)
}
