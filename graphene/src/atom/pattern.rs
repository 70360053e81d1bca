//! Patterns of atoms, in the notation of specs.
//!
//! ```text
//! [2,2].[2:1].fp16.RF <- Move<<<[32]>>>([8].fp16.SH)
//! [64,n/…].fp32.RF <- MatMul+=<<<[128]>>>(…) async
//! ```
//!
//! A size is a number, or a name for one that is left open; a name that occurs twice is one size.
//! After a colon follow strides, `_` where any will do; without a colon any will do. Dimensions of
//! 1 do not count, nor do levels that have no others. Scalars and memories may be alternatives:
//! `fp16|bf16`, `*` for any scalar. `SH@` is the shared memory of another block. The threads are a
//! shape of numbers, with strides where they are not contiguous: `[]` is each thread on its own.
//! The kind may have its first parameter, `Fence<proxy>`; without, `UnaryPointwise` is any of them.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use super::Atom;
use crate::index::Expr;
use crate::kernel::{Completion, Kernel, Spec};
use crate::layout::Layout;
use crate::tensor::{Memory, Scalar, Tensor, View};

/// A parsed pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    kind: &'static str,
    parameter: Option<&'static str>,
    outs: Vec<Operand>,
    ins: Vec<Operand>,
    threads: Vec<Vec<Extent>>,
    completion: &'static str,
}

#[derive(Debug)]
struct Operand {
    levels: Vec<Vec<Extent>>,
    scalars: Vec<Scalar>,
    memories: Vec<Memory>,
    peer: bool,
}

/// A dimension: its size, and its stride if it is given.
#[derive(Debug)]
struct Extent {
    size: Size,
    stride: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
enum Size {
    Is(i64),
    Named(&'static str),
}

impl Pattern {
    /// The parsed pattern of an atom. The table's patterns are all parsed by a test.
    pub(super) fn of(atom: &'static Atom) -> &'static Pattern {
        static PARSED: LazyLock<Mutex<HashMap<&'static str, &'static Pattern>>> =
            LazyLock::new(Mutex::default);
        let mut parsed = PARSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        parsed.entry(atom.pattern).or_insert_with(|| {
            let pattern = parse(atom.pattern).unwrap_or_else(|| {
                unreachable!("the pattern of {} does not parse: {}", atom.name, atom.pattern)
            });
            Box::leak(Box::new(pattern))
        })
    }

    /// The sizes left open, if the spec has this pattern.
    pub(super) fn matches(
        &self,
        kernel: &Kernel,
        spec: &Spec,
        operands: &[Tensor],
    ) -> Option<Vec<(&'static str, i64)>> {
        let parameter = |wanted: &str| {
            let text = spec.kind.to_string();
            text[self.kind.len()..].split(['<', ',', '>']).nth(1) == Some(wanted)
        };
        let fits = self.kind == spec.kind.name()
            && self.parameter.is_none_or(parameter)
            && self.outs.len() == spec.outs.len()
            && self.ins.len() == spec.ins.len()
            && self.completion == completion_name(&spec.completion);
        if !fits {
            return None;
        }
        let mut sizes = Vec::new();
        let threads = &kernel.threads(spec.threads).view;
        let all = self.outs.iter().chain(&self.ins).zip(operands).all(|(pattern, tensor)| {
            pattern.scalars.contains(&tensor.scalar)
                && pattern.memories.contains(&tensor.memory)
                && pattern.peer == tensor.peer.is_some()
                && levels_match(&pattern.levels, &tensor.view, &mut sizes)
        });
        (all && threads_match(&self.threads, threads)).then_some(sizes)
    }
}

fn levels_match(
    pattern: &[Vec<Extent>],
    view: &View,
    sizes: &mut Vec<(&'static str, i64)>,
) -> bool {
    let counting = |level: &Layout<Expr>| {
        level.modes().iter().filter(|dim| !dim.size().is(1)).cloned().collect::<Vec<_>>()
    };
    let levels: Vec<Vec<_>> =
        view.levels().iter().map(counting).filter(|level| !level.is_empty()).collect();
    pattern.len() == levels.len()
        && pattern.iter().zip(&levels).all(|(pattern, level)| {
            pattern.len() == level.len()
                && pattern.iter().zip(level).all(|(extent, dim)| extent.matches(dim, view, sizes))
        })
}

/// Threads as one list of modes: contiguous ones count as one, in any grouping.
fn threads_match(pattern: &[Vec<Extent>], view: &View) -> bool {
    let mut leaves: Vec<(i64, i64)> = Vec::new();
    for leaf in view.leaves() {
        let (Some(size), Some(stride)) = (leaf.size.constant(), view.stride(leaf).constant())
        else {
            return false;
        };
        if size > 1 {
            leaves.push((size, stride));
        }
    }
    leaves.sort_by_key(|leaf| leaf.1);
    let mut joined: Vec<(i64, i64)> = Vec::new();
    for (size, stride) in leaves {
        match joined.last_mut() {
            Some(last) if last.0 * last.1 == stride => last.0 *= size,
            Some(_) | None => joined.push((size, stride)),
        }
    }
    let wanted: Vec<(i64, i64)> = pattern
        .iter()
        .flatten()
        .filter_map(|extent| match extent.size {
            Size::Is(size) => Some((size, extent.stride.unwrap_or(1))),
            Size::Named(_) => None,
        })
        .collect();
    // A name in the place of the threads takes any number of them.
    let any = pattern.iter().flatten().any(|extent| matches!(extent.size, Size::Named(_)));
    any || wanted == joined
}

impl Extent {
    fn matches(
        &self,
        dim: &Layout<Expr>,
        view: &View,
        sizes: &mut Vec<(&'static str, i64)>,
    ) -> bool {
        let Some(size) = dim.size().constant() else { return false };
        let fits = match self.size {
            Size::Is(wanted) => wanted == size,
            Size::Named(name) => match sizes.iter().find(|known| known.0 == name) {
                Some(known) => known.1 == size,
                None => {
                    sizes.push((name, size));
                    true
                }
            },
        };
        fits && self
            .stride
            .is_none_or(|stride| dim.as_leaf().is_some_and(|leaf| view.stride(leaf).is(stride)))
    }
}

fn completion_name(completion: &Completion) -> &'static str {
    match completion {
        Completion::Now => "",
        Completion::Signals(_) => "signals",
        Completion::Group => "async",
    }
}

fn parse(text: &'static str) -> Option<Pattern> {
    let (outs, rest) = text.split_once("<-").unwrap_or(("", text));
    let (head, rest) = rest.trim().split_once("<<<")?;
    let (threads, rest) = rest.split_once(">>>(")?;
    let (ins, completion) = rest.split_once(')').map(|(ins, _)| {
        // The inputs' own brackets are square, but a hierarchical shape has round ones.
        let end = rest.rfind(')').unwrap_or(ins.len());
        (&rest[..end], rest[end + 1..].trim())
    })?;
    let list = |text: &'static str| {
        let parts = split_outside(text);
        parts.into_iter().map(|part| operand(part.trim())).collect::<Option<Vec<_>>>()
    };
    let (outs, ins) = (list(outs)?, list(ins)?);
    let (kind, parameter) = match head.trim().split_once('<') {
        Some((kind, parameter)) => (kind, Some(parameter.strip_suffix('>')?)),
        None => (head.trim(), None),
    };
    Some(Pattern { kind, parameter, outs, ins, threads: levels(threads)?.0, completion })
}

/// Splits at the commas outside of brackets.
fn split_outside(text: &'static str) -> Vec<&'static str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn operand(text: &'static str) -> Option<Operand> {
    let (levels, rest) = levels(text)?;
    let (scalars, memories) = rest.strip_prefix('.')?.split_once('.')?;
    let peer = memories.ends_with('@');
    let scalars = match scalars {
        "*" => Scalar::ALL.iter().map(|row| row.0).filter(|&s| s != Scalar::Mbar).collect(),
        _ => scalars.split('|').map(|name| find(&Scalar::ALL, name)).collect::<Option<_>>()?,
    };
    let memories = memories.trim_end_matches('@').split('|');
    let memories = memories.map(|name| find(&Memory::ALL, name)).collect::<Option<_>>()?;
    Some(Operand { levels, scalars, memories, peer })
}

fn find<T: Copy>(names: &[(T, &'static str)], name: &str) -> Option<T> {
    names.iter().find(|row| row.1 == name).map(|row| row.0)
}

/// The leading `[...]` levels, without those that do not count, and what follows them.
fn levels(text: &'static str) -> Option<(Vec<Vec<Extent>>, &'static str)> {
    let mut rest = text;
    let mut levels = Vec::new();
    while let Some(inside) = rest.strip_prefix('[').or_else(|| rest.strip_prefix(".[")) {
        let (level, after) = inside.split_once(']')?;
        let (sizes, strides) = match level.split_once(':') {
            Some((sizes, strides)) => (sizes, Some(strides)),
            None => (level, None),
        };
        let plain = |text: &'static str| text.trim_matches(['(', ')']).split(',');
        let mut strides = strides.map(plain);
        let mut dims = Vec::new();
        for size in plain(sizes).filter(|size| !size.is_empty()) {
            let size = size.trim_matches(['(', ')']);
            let stride = strides.as_mut().and_then(|strides| strides.next());
            let stride = stride.and_then(|stride| stride.trim_matches(['(', ')']).parse().ok());
            let size = size.parse().map_or(Size::Named(size), Size::Is);
            if !matches!(size, Size::Is(1)) {
                dims.push(Extent { size, stride });
            }
        }
        if !dims.is_empty() {
            levels.push(dims);
        }
        rest = after;
    }
    Some((levels, rest))
}
