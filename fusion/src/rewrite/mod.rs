//! Rewriting: a graph in, an equal and simpler graph out.
//!
//! Rules are rows in tables ([`rules`]); egg holds all that they say equal at once, and the cheapest graph is
//! read back. A graph is saturated block by block ([`block`]), and blocks that are alike once.

mod block;
mod cost;
mod extract;
mod language;
mod rule;
mod rules;
mod saturate;
mod tidy;

#[cfg(test)]
mod tests;

pub use tidy::tidy;

use crate::FusionError;
use block::{Block, blocks};
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::Op;
use graphene_ir::target::Target;
use rule::Compiled;
use saturate::saturate;
use std::collections::BTreeMap;
use std::collections::HashMap;
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

/// What rewriting did.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Report {
    /// Blocks that the graph was cut into, all passes together.
    pub blocks: usize,
    /// Blocks that were saturated; the others were equal to one of these.
    pub saturated: usize,
    /// Blocks whose saturation ended at a limit, before all was said.
    pub limited: usize,
    /// How often each rule said something new.
    pub rules: BTreeMap<&'static str, usize>,
}

/// The graph normalised and recognised: every spelling of a LayerNorm, a GELU, an attention becomes that operation,
/// projections of one value become one product, changes of view move where they vanish.
///
/// The target decides one thing: on a CPU, operations in 16-bit types round one by one, as ONNX defines them, so that
/// only rules whose two sides round alike apply to them.
///
/// # Errors
/// [`FusionError::Rebuild`] if an operation refuses the inputs that it had: a defect of inference.
pub fn rewrite(graph: &Graph, target: &Target) -> Result<Rewritten, FusionError> {
    let rules = rules::compiled();
    let mut report = Report::default();
    let mut graph = tidy(graph)?;
    for _ in 0..PASSES {
        let next = tidy(&pass(&graph, &rules, target, &mut report)?)?;
        let settled = next.len() == graph.len() && same_operations(&next, &graph);
        graph = next;
        if settled {
            break;
        }
    }
    Ok(Rewritten { graph, report })
}

/// The e-graphs of the blocks that the graph is cut into first, alike blocks once, each as a graph for Graphviz: a
/// frame is a class of equal terms.
///
/// # Errors
/// As for [`rewrite`].
pub fn egraphs(graph: &Graph, target: &Target) -> Result<Vec<String>, FusionError> {
    let rules = rules::compiled();
    let mut known: Vec<Block> = Vec::new();
    let mut pictures = Vec::new();
    for block in blocks(&tidy(graph)?)? {
        let alike =
            |other: &Block| other.constants == block.constants && other.graph == block.graph;
        if !known.iter().any(alike) {
            pictures.push(saturate(&block, &rules, target).terms.dot().to_string());
            known.push(block);
        }
    }
    Ok(pictures)
}

fn same_operations(a: &Graph, b: &Graph) -> bool {
    a.nodes().zip(b.nodes()).all(|((_, a), (_, b))| a.op() == b.op() && a.inputs() == b.inputs())
}

/// One cut of the graph, each block replaced by its cheapest equal.
fn pass(
    graph: &Graph,
    rules: &[Compiled],
    target: &Target,
    report: &mut Report,
) -> Result<Graph, FusionError> {
    let mut result = Graph::new();
    let mut renamed: HashMap<ValueId, ValueId> = HashMap::new();
    for (id, node) in graph.nodes() {
        let value = match node.op() {
            Op::Input => result
                .add_input(node.name(), node.outputs()[0].clone())
                .map_err(|error| FusionError::rebuild(node, error))?,
            Op::Constant(tensor) => result.add_constant(node.name(), tensor.clone()),
            _ => continue,
        };
        renamed.insert(id.value(), value);
    }
    let mut known: Vec<(Block, Graph)> = Vec::new();
    for block in blocks(graph)? {
        report.blocks += 1;
        let alike = |(other, _): &&(Block, Graph)| {
            other.constants == block.constants && other.graph == block.graph
        };
        if let Some((_, equal)) = known.iter().find(alike) {
            splice(&mut result, &mut renamed, &block, equal)?;
            continue;
        }
        let saturated = saturate(&block, rules, target);
        report.saturated += 1;
        report.limited += usize::from(saturated.limited);
        for (rule, count) in &saturated.fired {
            *report.rules.entry(rule).or_default() += count;
        }
        let equal = saturated.cheapest(&block).map_err(|reason| FusionError::Rebuild {
            name: block.names.first().cloned().unwrap_or_default(),
            op: "a rewritten block",
            reason,
        })?;
        splice(&mut result, &mut renamed, &block, &equal)?;
        known.push((block, equal));
    }
    for (name, value) in graph.outputs() {
        result.add_output(name, renamed[value]);
    }
    Ok(result)
}

/// Adds a block's equal to the result, between the values that the block stands between.
fn splice(
    result: &mut Graph,
    renamed: &mut HashMap<ValueId, ValueId>,
    block: &Block,
    equal: &Graph,
) -> Result<(), FusionError> {
    let mut own: HashMap<ValueId, ValueId> = HashMap::new();
    for (id, outer) in equal.inputs().iter().zip(&block.inputs) {
        own.insert(id.value(), renamed[outer]);
    }
    for (id, node) in equal.nodes() {
        let name = node.name().parse().ok().and_then(|place: usize| block.names.get(place));
        let name = name.map_or("", String::as_str);
        match node.op() {
            Op::Input => {}
            Op::Constant(tensor) => {
                own.insert(id.value(), result.add_constant(name, tensor.clone()));
            }
            op => {
                let inputs: Vec<_> = node.inputs().iter().map(|v| v.map(|v| own[&v])).collect();
                let new = result
                    .add(name, op.clone(), &inputs)
                    .map_err(|error| FusionError::rebuild(node, error))?;
                for output in 0..node.outputs().len() as u32 {
                    own.insert(ValueId { node: id, output }, ValueId { node: new, output });
                }
            }
        }
    }
    for ((_, value), outer) in equal.outputs().iter().zip(&block.outputs) {
        renamed.insert(*outer, own[value]);
    }
    Ok(())
}

impl Report {
    /// Says so if saturation ended before all was said.
    pub fn limit(&self) -> Option<String> {
        let Self { blocks, limited, .. } = self;
        (*limited > 0).then(|| format!("{limited} of {blocks} blocks were rewritten up to a limit"))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} blocks, {} unlike the others", self.blocks, self.saturated)?;
        for (rule, count) in &self.rules {
            writeln!(f, "{rule} ×{count}")?;
        }
        Ok(())
    }
}
