//! The parts of a report that nothing is measured for: the model, its plans, its inputs and outputs.

use crate::announce;
use crate::answers::Answers;
use crate::args::{Exec, Precision};
use crate::error::Origin;
use crate::inputs::Given;
use crate::invocation;
use crate::machine::Machine;
use crate::report::{self, Compile, Report, Value};
use crate::session::{self, Plans};
use graphene_frontend::dim::Symbol;
use graphene_frontend::graph::Graph;
use graphene_frontend::op::Op;
use graphene_frontend::visible::visible;
use graphene_fusion::program::Program;
use graphene_ir::target::Target;
use graphene_runtime::{Imported, Sizing, Specialised};
use std::collections::{BTreeMap, BTreeSet};

/// A report of a model and its plans, before anything has run.
pub(crate) fn start(
    name: &str,
    loaded: &Imported,
    plans: &Plans,
    machine: &Machine,
    target: &Target,
    precision: Precision,
) -> Report {
    let operations =
        |graph: &Graph| graph.nodes().filter(|(_, node)| !is_source(node.op())).count();
    let weights = loaded.graph.nodes().filter_map(|(_, node)| match node.op() {
        Op::Constant(tensor) if tensor.dtype().is_float() => Some(tensor.len() as u64),
        _ => None,
    });
    let mut histogram = BTreeMap::new();
    for (_, node) in plans.fused.graph.nodes().filter(|(_, node)| !is_source(node.op())) {
        *histogram.entry(node.op().name()).or_default() += 1;
    }
    let planning = &plans.fused;
    let partitioning = planning.groups.notes().iter().map(ToString::to_string);
    let partitioning =
        partitioning.map(|note| note.strip_prefix("note: ").map_or(note.clone(), str::to_owned));
    let limits = planning.report.limits().into_iter().chain(partitioning);
    let specialised = Specialised::list(&loaded.specialised);
    let note = machine.engine.device().note;
    Report {
        schema: Report::SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        revision: invocation::REVISION,
        date: invocation::date(),
        command: invocation::command(),
        model: report::Model {
            name: visible(name).into_owned(),
            opset: loaded.opset,
            producer: loaded.producer.clone(),
            ops: operations(&loaded.graph),
            rewritten_ops: operations(&plans.fused.graph),
            parameters: weights.sum(),
            weight_bytes: session::weight_bytes(&plans.fused.program),
            histogram,
            specialised: Some(specialised).filter(|text| !text.is_empty()),
        },
        device: machine.report.clone(),
        target: target.to_string(),
        rates: None,
        dtype: dtype(precision, &plans.fused.program),
        sizes: BTreeMap::new(),
        assumed: BTreeMap::new(),
        seed: None,
        inputs: Vec::new(),
        outputs: Vec::new(),
        answers: Answers::default(),
        compile_ms: Compile::default(),
        executors: Vec::new(),
        speedup: None,
        roof: None,
        load: Vec::new(),
        buckets: Vec::new(),
        agreement: Vec::new(),
        bisection: Vec::new(),
        gates: Vec::new(),
        rewriting: None,
        explain: None,
        notes: note.iter().chain(&loaded.notes).cloned().chain(limits).collect(),
        interrupted: None,
        error: None,
        exit_code: 0,
    }
}

/// The elements that floating-point values are computed in: those asked for, or those that the model's steps write.
fn dtype(precision: Precision, program: &Program) -> String {
    if precision != Precision::Model {
        return precision.name().to_owned();
    }
    let written = program.steps().iter().flat_map(|step| &step.outputs);
    let written: BTreeSet<_> = written.map(|output| program.buffer(output.buffer).dtype).collect();
    let floats: Vec<_> = written.iter().filter(|dtype| dtype.is_float()).copied().collect();
    let shown = if floats.is_empty() { written.into_iter().collect() } else { floats };
    shown.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn is_source(op: &Op) -> bool {
    matches!(op, Op::Input | Op::Constant(_))
}

/// Says of inputs and outputs what they are at these sizes, and where data came from.
pub(crate) fn describe_values(
    report: &mut Report,
    graph: &Graph,
    sizing: &Sizing,
    given: &Given,
    seed: u64,
) {
    let shape = |ty: &graphene_frontend::types::TensorType| {
        ty.bound_shape(&sizing.sizes).unwrap_or_default()
    };
    let named = |(symbol, size): (&Symbol, i64)| (symbol.name().to_owned(), size);
    report.sizes = sizing.sizes.iter().map(named).collect();
    report.assumed = announce::assumed(sizing).map(named).collect();
    report.seed = announce::random(graph, given).next().map(|_| seed);
    let inputs = graph.inputs().iter().map(|&id| {
        let (name, ty) = (graph.node(id).name(), graph.ty(id.value()));
        let origin = given.get(name).map_or(Origin::Random, |(_, origin)| origin);
        Value {
            name: name.to_owned(),
            ty: ty.to_string(),
            shape: shape(ty),
            source: Some(origin.to_string()),
        }
    });
    report.inputs = inputs.collect();
    let outputs = graph.outputs().iter().map(|(name, value)| {
        let ty = graph.ty(*value);
        Value { name: name.clone(), ty: ty.to_string(), shape: shape(ty), source: None }
    });
    report.outputs = outputs.collect();
}

/// Median time of library over median time of fused execution, where both ran.
pub(crate) fn speedup(executors: &[report::Executor]) -> Option<f64> {
    let median = |exec: Exec| {
        let entry = executors.iter().find(|entry| entry.name == exec.name())?;
        Some(entry.time.as_ref()?.median_ms)
    };
    Some(median(Exec::Library)? / median(Exec::Fused)?.max(1e-9))
}
