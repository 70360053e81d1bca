//! A kernel's levels: its specs, each within the one that it decomposes, as far as they have bodies.

use super::print::{joined, list};
use crate::{Kernel, Layout, Operand, Spec, Stmt, View};

impl Kernel {
    /// The levels, a line each, with the shapes of operands and of threads. The atoms of a level are a line: which, and
    /// how often the text has them.
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
        list(operands.iter().map(|operand| match self.operand(operand) {
            Ok(tensor) => {
                let shape = shape(&tensor.view);
                format!("%{}:{shape}.{}", self.tensor_name(operand.tensor), tensor.memory)
            }
            Err(_) => format!("%{}", self.tensor_name(operand.tensor)),
        }))
    }

    /// A spec with its operands' shapes.
    fn level(&self, spec: &Spec) -> String {
        let threads = |id| format!("#{}:{}", self.threads_name(id), shape(&self.threads(id).view));
        let (outs, ins) = (self.shapes(&spec.outs), self.shapes(&spec.ins));
        let arrow = if outs.is_empty() { "" } else { " <- " };
        let (blocks, threads) = (threads(spec.blocks), threads(spec.threads));
        format!("{outs}{arrow}{}<<<{blocks}, {threads}>>>({ins})", spec.kind)
    }
}

/// The sizes of a view's levels.
fn shape(view: &View) -> String {
    let level = |level: &Layout<_>| format!("[{}]", list(level.modes().iter().map(Layout::size)));
    if view.levels().is_empty() {
        "[]".to_owned()
    } else {
        joined(view.levels().iter().map(level), ".")
    }
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
    let each = atoms.drain(..).map(|(name, count)| match count {
        1 => name.to_owned(),
        _ => format!("{name} x{count}"),
    });
    let all = list(each);
    line(text, depth, &all);
}

fn line(text: &mut String, depth: usize, content: &str) {
    *text += &format!("{:width$}{content}\n", "", width = 2 * depth);
}
