//! What the page draws of a plan: its steps as a graph with places, why values are stored between them, and its buffers in
//! the arena.
//!
//! In reading order: [`fold`] finds the blocks that a model repeats, [`graph`] makes boxes and arrows of steps,
//! [`layered`] gives them places, [`stored`] says why values are not kept inside one step, [`memory`] which bytes of the
//! arena each buffer has, and when. All are pure.

mod fold;
mod graph;
mod layered;
mod memory;
mod stored;

use crate::modules::module;
use fold::Block;
use graph::Drawing;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::op::Op;
use graphene_fusion::Line;
use graphene_fusion::program::Step as Launch;
use graphene_fusion::program::{BufferKind, Operand, Program};
use graphene_runtime::Plan;
use memory::Map;
use serde::Serialize;
use stored::Stored;

/// A plan as the page draws it.
#[derive(Serialize, Debug)]
pub(crate) struct Picture {
    /// The steps, as in the program.
    pub(crate) steps: Vec<Step>,
    /// Runs of steps that repeat, by their places in the order in which they are drawn.
    blocks: Vec<Block>,
    /// The graph with each repeated block drawn once.
    folded: Drawing,
    /// The graph with a box a step.
    full: Drawing,
    /// The values that steps store for others.
    stored: Vec<Stored>,
    /// The arena, at the run's sizes.
    memory: Option<Map>,
}

/// A step, without its times.
#[derive(Serialize, Debug)]
pub(crate) struct Step {
    /// Its family.
    pub(crate) family: &'static str,
    /// Its operations and where they are in the model.
    pub(crate) name: String,
    /// The module that computes it, as PyTorch names modules.
    pub(crate) module: Option<String>,
    /// Its operations, with how often each follows itself: `Add ×2`.
    pub(crate) operations: Vec<String>,
    /// The elements that it reads, weights too, and those that it writes where they are others: `i8, f32 → f32`.
    pub(crate) types: String,
    /// The model's nodes that it computes.
    nodes: Vec<String>,
    /// What it reads, but for weights.
    pub(crate) reads: Vec<Value>,
    /// How many weights it reads.
    weights: usize,
    /// What it writes.
    pub(crate) writes: Vec<Value>,
}

/// A value that a step reads or writes.
#[derive(Serialize, Debug)]
pub(crate) struct Value {
    /// Its name.
    name: String,
    /// Its elements and sizes: `f32[8, 128]`.
    pub(crate) shape: String,
    /// The steps that wrote it before.
    from: Vec<usize>,
    /// The input of the model that it is.
    input: Option<usize>,
    /// The output of the model that it is.
    output: Option<usize>,
    /// How it lies in its buffer, unless row by row from the beginning.
    view: Option<String>,
}

impl Picture {
    /// The picture of a program at sizes, with its plan where there is one, and why values are stored.
    pub(crate) fn new(
        program: &Program,
        plan: Option<&Plan>,
        lines: &[Line],
        bindings: &Bindings,
    ) -> Self {
        let steps = steps(program, bindings);
        let order = order(&steps);
        let alike: Vec<String> = order.iter().map(|&step| signature(&steps[step])).collect();
        let mut place = vec![0; steps.len()];
        order.iter().enumerate().for_each(|(i, &step)| place[step] = i);
        let placed =
            |&step: &usize| steps[step].sources().iter().map(|&from| place[from]).collect();
        let sources: Vec<Vec<usize>> = order.iter().map(placed).collect();
        let blocks = fold::blocks(&alike, &sources);
        let names = [program.inputs(), program.outputs()]
            .map(|values| values.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
        let [inputs, outputs] = names;
        let folded = graph::draw(&steps, &order, &blocks, &inputs, &outputs);
        let full = graph::draw(&steps, &order, &[], &inputs, &outputs);
        let memory = plan.map(|plan| memory::map(program, plan));
        let stored = stored::stored(lines, bindings);
        Self { steps, blocks, folded, full, stored, memory }
    }
}

impl Step {
    /// The steps that it reads from, each once.
    fn sources(&self) -> Vec<usize> {
        let mut sources: Vec<_> = self.reads.iter().flat_map(|read| &read.from).copied().collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }
}

/// The steps by how many others have to run before them, one after the other. In the program's order what is needed late,
/// such as a mask, may stand between the steps of the first layer alone.
fn order(steps: &[Step]) -> Vec<usize> {
    let mut depths = Vec::with_capacity(steps.len());
    for step in steps {
        let before = step.sources().into_iter().filter_map(|from| depths.get(from)).max();
        depths.push(before.map_or(0, |depth: &usize| depth + 1));
    }
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by_key(|&step| depths[step]);
    order
}

fn steps(program: &Program, bindings: &Bindings) -> Vec<Step> {
    let mut writers: Vec<Vec<usize>> = vec![Vec::new(); program.buffers().len()];
    let mut steps = Vec::new();
    for (number, step) in program.steps().iter().enumerate() {
        let value = |operand: &Operand, from: &[usize]| {
            let buffer = program.buffer(operand.buffer);
            let (input, output) = match buffer.kind {
                BufferKind::Input(number) => (Some(number), None),
                BufferKind::Output(number) => (None, Some(number)),
                BufferKind::Weight(_) | BufferKind::Intermediate => (None, None),
            };
            let sizes = operand.view.modes.iter().map(|mode| size(&mode.size, bindings));
            let view = (!operand.view.is_contiguous()).then(|| operand.view.to_string());
            Value {
                name: buffer.name.clone(),
                shape: format!("{}[{}]", buffer.dtype, sizes.collect::<Vec<_>>().join(", ")),
                from: from.to_vec(),
                input,
                output,
                view,
            }
        };
        let is_weight = |operand: &&Operand| program.buffer(operand.buffer).is_weight();
        let reads = step.inputs.iter().filter(|operand| !is_weight(operand));
        let reads = reads.map(|operand| value(operand, &writers[operand.buffer.index()])).collect();
        let writes = step.outputs.iter().map(|operand| value(operand, &[])).collect();
        let body = step.body.nodes().map(|(_, node)| node.op());
        let body = body.filter(|op| !matches!(op, Op::Input | Op::Constant(_)));
        steps.push(Step {
            family: step.family.name(),
            name: step.name.clone(),
            module: module(&step.nodes),
            types: types(program, step),
            operations: counted(body.map(Op::name)),
            nodes: step.nodes.clone(),
            reads,
            weights: step.inputs.iter().filter(is_weight).count(),
            writes,
        });
        for operand in &step.outputs {
            writers[operand.buffer.index()].push(number);
        }
    }
    steps
}

/// The elements that a step reads and writes.
fn types(program: &Program, step: &Launch) -> String {
    let of = |operands: &[Operand]| {
        let mut types: Vec<String> = Vec::new();
        for operand in operands {
            let dtype = program.buffer(operand.buffer).dtype.to_string();
            if !types.contains(&dtype) {
                types.push(dtype);
            }
        }
        types.join(", ")
    };
    match (of(&step.inputs), of(&step.outputs)) {
        (reads, writes) if reads == writes || reads.is_empty() => writes,
        (reads, writes) => format!("{reads} → {writes}"),
    }
}

/// Names, each run of equal ones once with its length.
fn counted(names: impl Iterator<Item = &'static str>) -> Vec<String> {
    let mut runs: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match runs.last_mut() {
            Some((last, count)) if *last == name => *count += 1,
            _ => runs.push((name, 1)),
        }
    }
    let text = |(name, count): (&str, usize)| match count {
        1 => name.to_owned(),
        count => format!("{name} ×{count}"),
    };
    runs.into_iter().map(text).collect()
}

fn size(dim: &Dim, bindings: &Bindings) -> String {
    dim.eval(bindings).map_or_else(|_| dim.to_string(), |size| size.to_string())
}

/// What steps have in common that are drawn as one: all but the names of nodes and values, and whether a value is given to
/// the caller, as the last layer's is.
fn signature(step: &Step) -> String {
    let Step { family, operations, weights, reads, writes, .. } = step;
    let values = reads.iter().chain(writes);
    let values: Vec<_> = values.map(|v| (&v.shape, &v.view, v.input)).collect();
    format!("{family} {operations:?} {weights} {values:?}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn runs_of_operations_are_counted() {
        let found = super::counted(["MatMul", "Add", "Add", "Tanh", "Add"].into_iter());
        assert_eq!(found, ["MatMul", "Add ×2", "Tanh", "Add"]);
    }
}
