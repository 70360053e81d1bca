//! The memory planner on the lifetimes of models, fused and one operation a launch.

use crate::models::models;
use criterion::Criterion;
use graphene_frontend::dim::Bindings;
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use graphene_runtime::planner::{self, Interval};
use graphene_runtime::{Place, Plan, bind};
use std::collections::BTreeMap;
use std::hint::black_box;

/// Offsets for the intermediates of each model.
pub(crate) fn planner(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("planner");
    for model in models() {
        for (name, granularity) in [("fused", Granularity::Fused), ("library", Granularity::PerOp)]
        {
            let planned = plan(&model.graph, &Target::cpu(2), granularity, &Bindings::new());
            let program = planned.expect("it is planned").program;
            let bound = bind(&program, &model.sizes).expect("its sizes are bound");
            let intervals = lifetimes(&bound);
            let bench = format!("{} {name}, {} intervals", model.kind, intervals.len());
            group.bench_function(bench, |b| b.iter(|| planner::plan(black_box(&intervals))));
        }
    }
    group.finish();
}

/// From the first to the last step that has it, for every buffer in the arena.
fn lifetimes(plan: &Plan) -> Vec<Interval> {
    let mut intervals: BTreeMap<usize, Interval> = BTreeMap::new();
    for (at, step) in plan.steps().iter().enumerate() {
        for operand in step.inputs.iter().chain(&step.outputs) {
            let buffer = &plan.buffers()[operand.buffer.index()];
            if let Place::Arena(_) = buffer.place {
                let size = (buffer.elements * buffer.dtype.size()) as u64;
                let new = Interval { size, first: at, last: at };
                intervals.entry(operand.buffer.index()).or_insert(new).last = at;
            }
        }
    }
    intervals.into_values().collect()
}
