//! Rewriting: a graph in, an equal and simpler graph out.
//!
//! Rules are rows in tables ([`rules`]); egg holds all that they say equal at once, and the cheapest graph is
//! read back. A graph is saturated block by block ([`block`]), and blocks that are alike once.

mod block;
pub(crate) mod channels;
mod cost;
mod extract;
pub(crate) mod gates;
pub(crate) mod integers;
mod language;
pub(crate) mod lookups;
pub(crate) mod precision;
pub(crate) mod ranges;
pub(crate) mod reals;
pub(crate) mod resize;
pub(crate) mod rotary;
mod rule;
mod rules;
mod saturate;
pub(crate) mod split;
mod tidy;

#[cfg(test)]
mod tests;

pub use tidy::tidy;

use crate::base::error::FusionError;
use crate::base::rebuild::{Rebuilt, Regrown};
use block::{Block, blocks};
use extract::{Choice, Programme, extract};
use graphene_frontend::{Bindings, Graph};
use graphene_ir::target::Target;
use rule::Compiled;
use saturate::{LIMITS, Saturated, saturate};
use std::collections::BTreeMap;
use std::fmt;

/// Times that a graph is cut and saturated; what a cut parted, the next one may join.
const PASSES: usize = 3;

/// A rewritten graph, and what was done.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The graph. Inputs and outputs are as they were.
    pub graph: Graph,
    /// What was done.
    pub report: Report,
}

/// What rewriting did. Blocks that are equal are rewritten once, and counted each.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Report {
    /// Blocks that the graph was cut into, all passes together.
    pub blocks: usize,
    /// Blocks that were saturated; the others were equal to one of these.
    pub saturated: usize,
    /// Blocks whose saturation ended at a limit, before all was said.
    pub limited: usize,
    /// Blocks where a rule gave up a search at a limit.
    pub searches_cut: usize,
    /// Blocks whose graph was the best of two: that of the greedy choice, and that of an integer programme.
    pub programmes: usize,
    /// Blocks whose integer programme was too large, or gave cycles only: they have the greedy choice.
    pub programmes_given_up: usize,
    /// Whether the last pass still changed something, so that another one might have.
    pub unsettled: bool,
    /// How often each rule said something new.
    pub rules: BTreeMap<&'static str, usize>,
}

/// The graph normalised and recognised: every spelling of a LayerNorm, a GELU, an attention becomes that operation,
/// projections of one value become one matmul, changes of view move where they vanish.
///
/// The target decides one thing: on a CPU, operations in 16-bit types round one by one, as ONNX defines them, so that
/// only rules whose two sides round alike apply to them.
///
/// `hints` give symbols the sizes at which alternatives are compared; a symbol without one has a typical size. Any
/// choice is right at all sizes.
///
/// # Errors
/// [`FusionError::Rebuild`] if an operation refuses the inputs that it had: a defect of inference.
pub fn rewrite(graph: &Graph, target: &Target, hints: &Bindings) -> Result<Rewritten, FusionError> {
    let (rules, report) = (rules::compiled(), Report::default());
    let mut rewriter = Rewriter { rules, target, hints, report };
    let mut graph = tidy(graph)?;
    for _ in 0..PASSES {
        let next = tidy(&rewriter.pass(&graph)?)?;
        rewriter.report.unsettled = next.len() != graph.len() || !same_operations(&next, &graph);
        graph = next;
        if !rewriter.report.unsettled {
            break;
        }
    }
    Ok(Rewritten { graph, report: rewriter.report })
}

/// The e-graphs of the blocks that the graph is cut into first, alike blocks once, each as a graph for Graphviz under a
/// line that says which block it is: a frame is a class of equal terms.
///
/// # Errors
/// As for [`rewrite`].
pub fn egraphs(graph: &Graph, target: &Target) -> Result<Vec<String>, FusionError> {
    let (rules, all) = (rules::compiled(), blocks(&tidy(graph)?)?);
    let mut known: Vec<(&Block, usize)> = Vec::new();
    for block in &all {
        match known.iter_mut().find(|(other, _)| other.is_alike(block)) {
            Some((_, alike)) => *alike += 1,
            None => known.push((block, 1)),
        }
    }
    let unlike = known.len();
    let picture = |(number, (block, alike)): (usize, (&Block, usize))| {
        let picture = saturate(block, &rules, target, LIMITS).terms.dot().to_string();
        let ends = [block.names.first(), block.names.last()];
        let [first, last] = ends.map(|name| name.map_or("", String::as_str));
        format!(
            "// e-graph {} of {unlike}: {alike} of {} blocks, the first from {first:?} to {last:?}\n{}\n",
            number + 1,
            all.len(),
            picture.trim_end(),
        )
    };
    Ok(known.into_iter().enumerate().map(picture).collect())
}

fn same_operations(a: &Graph, b: &Graph) -> bool {
    a.nodes().zip(b.nodes()).all(|((_, a), (_, b))| a.op() == b.op() && a.inputs() == b.inputs())
}

/// Numbers that blocks have in common with those that are alike.
fn kinds(blocks: &[Block]) -> Vec<usize> {
    let mut unlike: Vec<&Block> = Vec::new();
    let kind = |block| {
        unlike.iter().position(|other| other.is_alike(block)).unwrap_or_else(|| {
            unlike.push(block);
            unlike.len() - 1
        })
    };
    blocks.iter().map(kind).collect()
}

struct Rewriter<'a> {
    rules: Vec<Compiled>,
    target: &'a Target,
    hints: &'a Bindings,
    report: Report,
}

/// What equals a block, and the cheapest of it.
struct Equal {
    saturated: Saturated,
    choice: Choice,
    programme: Programme,
}

impl Rewriter<'_> {
    /// One cut of the graph, each block replaced by its cheapest equal.
    fn pass(&mut self, graph: &Graph) -> Rebuilt<Graph> {
        let mut result = Regrown::default();
        for (id, node) in graph.nodes().filter(|(_, node)| !node.is_operation()) {
            result.copy(id, node)?;
        }
        let all = blocks(graph)?;
        let kinds = kinds(&all);
        let mut equals = BTreeMap::new();
        for (number, (block, kind)) in all.iter().zip(&kinds).enumerate() {
            let equal = equals.entry(kind).or_insert_with(|| self.equal(block));
            let (report, Equal { saturated, choice, programme }) = (&mut self.report, equal);
            report.blocks += 1;
            report.limited += usize::from(saturated.limited);
            report.searches_cut += usize::from(saturated.terms.analysis.searches_cut > 0);
            report.programmes += usize::from(*programme == Programme::Solved);
            report.programmes_given_up += usize::from(*programme == Programme::GivenUp);
            saturated.splice(choice, block, &mut result)?;
            // E-graphs are large: each goes with the last block that it is of.
            if !kinds[number + 1..].contains(kind) {
                equals.remove(kind);
            }
        }
        Ok(result.finish(graph))
    }

    /// The cheapest equal of a block; the report counts it and what its rules said.
    fn equal(&mut self, block: &Block) -> Equal {
        let saturated = saturate(block, &self.rules, self.target, LIMITS);
        self.report.saturated += 1;
        for (rule, count) in &saturated.fired {
            *self.report.rules.entry(rule).or_default() += count;
        }
        let (choice, programme) = extract(&saturated.terms, &saturated.roots, self.hints);
        Equal { saturated, choice, programme }
    }
}

impl Report {
    /// Says where a limit ended the work before all was said.
    pub fn limits(&self) -> Vec<String> {
        let Self { blocks, limited, searches_cut, .. } = self;
        let mut said = Vec::new();
        let mut count = |number: usize, what: &str| {
            if number > 0 {
                said.push(format!("{number} of {blocks} blocks {what}"));
            }
        };
        count(*limited, "were rewritten up to a limit");
        count(*searches_cut, "were searched up to a limit");
        if self.unsettled {
            said.push(format!(
                "rewriting ended after {PASSES} passes, the last of which still changed something"
            ));
        }
        said
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} blocks, {} unlike the others", self.blocks, self.saturated)?;
        let Self { programmes, programmes_given_up: given_up, .. } = self;
        writeln!(f, "{programmes} chosen by integer programming, {given_up} by greedy search")?;
        for (rule, count) in &self.rules {
            writeln!(f, "{rule} ×{count}")?;
        }
        Ok(())
    }
}
