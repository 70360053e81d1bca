//! Patterns of atoms, in the notation of specs.
//!
//! ```text
//! [2,2].[2:1].fp16.RF <- Move<<<[32]>>>([8].fp16.SH)
//! [64,n/…].fp32.RF <- MatMul+=<<<[128]>>>(…) async
//! ```
//!
//! A size is a number, or a name for one that is left open; a name that occurs twice is one size. After a colon follow strides,
//! `_` where any will do; without a colon any will do. Dimensions of 1 do not count, nor do levels that have no others. Scalars
//! may be alternatives: `fp16|bf16`, `*` for any. `SH@` is the shared memory of another block. The threads are a shape of
//! numbers, with strides where they are not contiguous: `[]` is each thread on its own. The kind may have its first parameter,
//! `Fence<proxy>`; without, `UnaryPointwise` is any of them.

use std::{collections::BTreeMap, sync::LazyLock};

use super::{Atom, all};
use crate::text::cursor::Parser;
use crate::{Completion, Expr, Kernel, Layout, Memory, Result, Scalar, Spec, Tensor, View};

pub(super) struct Pattern {
    kind: &'static str,
    parameter: Option<&'static str>,
    outs: Vec<Operand>,
    ins: Vec<Operand>,
    threads: Vec<Vec<Extent>>,
    completion: &'static str,
}

struct Operand {
    levels: Vec<Vec<Extent>>,
    scalars: Vec<Scalar>,
    memory: Memory,
    peer: bool,
}

/// A dimension: its size, and its stride if it is given.
struct Extent {
    size: Size,
    stride: Option<i64>,
}

#[derive(Clone, Copy)]
enum Size {
    Is(i64),
    Named(&'static str),
}

/// What sizes are that a pattern leaves open.
pub(super) type Sizes = BTreeMap<&'static str, i64>;

impl Pattern {
    /// All atoms with their patterns, in the order of the tables.
    pub(super) fn of_all() -> &'static [(&'static Atom, Pattern)] {
        static PARSED: LazyLock<Vec<(&'static Atom, Pattern)>> = LazyLock::new(|| {
            let parsed = |atom: &'static Atom| match parse(atom.pattern) {
                Ok(pattern) => (atom, pattern),
                Err(error) => {
                    unreachable!("the pattern of {}, {}: {error}", atom.name, atom.pattern)
                }
            };
            all().map(parsed).collect()
        });
        &PARSED
    }

    /// The sizes left open, if the spec has this pattern.
    pub(super) fn matches(&self, kernel: &Kernel, spec: &Spec, of: &[Tensor]) -> Option<Sizes> {
        let parameter = |wanted: &str| {
            let text = spec.kind.to_string();
            text[self.kind.len()..].split(['<', ',', '>']).nth(1) == Some(wanted)
        };
        let completion = match spec.completion {
            Completion::Now => "",
            Completion::Signals(_) => "signals",
            Completion::Group => "async",
        };
        let fits = self.kind == spec.kind.name()
            && self.parameter.is_none_or(parameter)
            && self.outs.len() == spec.outs.len()
            && self.ins.len() == spec.ins.len()
            && self.completion == completion;
        if !fits {
            return None;
        }
        let mut sizes = Sizes::new();
        let threads = &kernel.threads(spec.threads).view;
        let all = self.outs.iter().chain(&self.ins).zip(of).all(|(pattern, tensor)| {
            pattern.scalars.contains(&tensor.scalar)
                && pattern.memory == tensor.memory
                && pattern.peer == tensor.peer.is_some()
                && levels_match(&pattern.levels, &tensor.view, &mut sizes)
        });
        (all && threads_match(&self.threads, threads)).then_some(sizes)
    }
}

fn levels_match(pattern: &[Vec<Extent>], view: &View, sizes: &mut Sizes) -> bool {
    let counting = |level: &Layout<Expr>| {
        level.modes().iter().filter(|dim| !dim.size().is(1)).cloned().collect::<Vec<_>>()
    };
    let mut levels: Vec<_> = view.levels().iter().map(counting).collect();
    levels.retain(|level| !level.is_empty());
    pattern.len() == levels.len()
        && pattern.iter().zip(&levels).all(|(pattern, level)| {
            pattern.len() == level.len()
                && pattern.iter().zip(level).all(|(extent, dim)| extent.matches(dim, view, sizes))
        })
}

/// Threads as one list of modes: contiguous ones count as one, in any grouping.
fn threads_match(pattern: &[Vec<Extent>], view: &View) -> bool {
    let leaves = view.leaves().into_iter();
    let leaves = leaves.map(|leaf| leaf.size.constant().zip(view.stride(leaf).constant()));
    let Some(mut leaves) = leaves.collect::<Option<Vec<_>>>() else { return false };
    leaves.retain(|leaf| leaf.0 > 1);
    leaves.sort_by_key(|leaf| leaf.1);
    let mut joined: Vec<(i64, i64)> = Vec::new();
    for (size, stride) in leaves {
        match joined.last_mut() {
            Some(last) if last.0 * last.1 == stride => last.0 *= size,
            _ => joined.push((size, stride)),
        }
    }
    let wanted = pattern.iter().flatten().map(|extent| match extent.size {
        Size::Is(size) => Some((size, extent.stride.unwrap_or(1))),
        // A name in the place of the threads takes any number of them.
        Size::Named(_) => None,
    });
    wanted.collect::<Option<Vec<_>>>().is_none_or(|wanted| wanted == joined)
}

impl Extent {
    fn matches(&self, dim: &Layout<Expr>, view: &View, sizes: &mut Sizes) -> bool {
        let Some(size) = dim.size().constant() else { return false };
        let fits = match self.size {
            Size::Is(wanted) => wanted == size,
            Size::Named(name) => *sizes.entry(name).or_insert(size) == size,
        };
        let lies = |stride| dim.as_leaf().is_some_and(|leaf| view.stride(leaf).is(stride));
        fits && self.stride.is_none_or(lies)
    }
}

fn parse(text: &'static str) -> Result<Pattern> {
    let p = &mut Parser::new(text);
    let outs = if p.sees("[") { p.list(operand)? } else { Vec::new() };
    if !outs.is_empty() {
        p.expect("<-")?;
    }
    let kind = p.until('<');
    let parameter = if p.sees("<<<") { None } else { p.within(["<", ">"], |p| Ok(p.word()))? };
    let threads = p.within(["<<<", ">>>"], levels)?;
    let ins = p.parenthesized(operand)?;
    Ok(Pattern { kind, parameter, outs, ins, threads, completion: p.word().unwrap_or_default() })
}

fn operand(p: &mut Parser<'static>) -> Result<Operand> {
    let levels = levels(p)?;
    p.expect(".")?;
    let mut scalars: Vec<Scalar> = Scalar::ALL.iter().map(|row| row.0).collect();
    scalars.retain(|&scalar| scalar != Scalar::Mbar);
    if !p.eat("*") {
        scalars.clear();
        while scalars.is_empty() || p.eat("|") {
            scalars.push(p.row("a scalar type", &Scalar::ALL)?);
        }
    }
    let memory = p.after(".", |p| p.row("a memory", &Memory::ALL))?;
    Ok(Operand { levels, scalars, memory, peer: p.eat("@") })
}

/// The leading `[...]` levels, without those that do not count.
fn levels(p: &mut Parser<'static>) -> Result<Vec<Vec<Extent>>> {
    let mut levels = Vec::new();
    while p.eat("[") || p.eat(".[") {
        let sizes = if p.sees("]") { Vec::new() } else { flat(p)? };
        let strides = if p.eat(":") { flat(p)? } else { Vec::new() };
        p.expect("]")?;
        let stride = |i| if let Some(&Size::Is(of)) = strides.get(i) { Some(of) } else { None };
        let dims = sizes.into_iter().enumerate();
        let mut dims: Vec<_> = dims.map(|(i, size)| Extent { size, stride: stride(i) }).collect();
        dims.retain(|dim| !matches!(dim.size, Size::Is(1)));
        if !dims.is_empty() {
            levels.push(dims);
        }
    }
    Ok(levels)
}

/// Sizes or strides, of a hierarchical dimension too.
fn flat(p: &mut Parser<'static>) -> Result<Vec<Size>> {
    let parts = p.list(|p| match p.sees("(") {
        true => p.within(["(", ")"], flat),
        false if p.sees_digit() => Ok(vec![Size::Is(p.natural()?)]),
        false => Ok(vec![Size::Named(p.word().unwrap_or_default())]),
    })?;
    Ok(parts.concat())
}
