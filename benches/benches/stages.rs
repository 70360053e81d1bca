//! The stages of compilation, one after the other, each on what the one before it gave.

use crate::models::{Zeros, models};
use criterion::Criterion;
use graphene_frontend::dim::Bindings;
use graphene_frontend::import::{ImportOptions, import};
use graphene_fusion::kernels::launches;
use graphene_fusion::{Granularity, lower, partition, plan, rewrite};
use graphene_ir::emit::emit;
use graphene_ir::target::Target;
use graphene_runtime::bind;
use graphene_runtime::cpu::Module;
use std::hint::black_box;

/// Import to bind on a CPU, and the kernels of a Hopper GPU, made and printed.
pub(crate) fn stages(criterion: &mut Criterion) {
    let (cpu, none) = (Target::cpu(2), Bindings::new());
    let gpu: Target = "sm_90a".parse().expect("a target");
    for model in models() {
        let mut group = criterion.benchmark_group(format!("stages/{}", model.kind));
        group.sample_size(10);
        if let Some(file) = &model.file {
            let weights = Zeros::new();
            let read = || import(file.clone(), &weights, &ImportOptions::default());
            group.bench_function("import", |b| b.iter(read));
        }
        let graph = &model.graph;
        group.bench_function("rewrite", |b| {
            b.iter(|| rewrite(black_box(graph), &cpu, &none).expect("it is rewritten"))
        });
        let rewritten = rewrite(graph, &cpu, &none).expect("it is rewritten").graph;
        let grouped = || partition(black_box(&rewritten), &cpu, Granularity::Fused, &none);
        group.bench_function("partition", |b| b.iter(grouped));
        let groups = grouped();
        let lowered = || lower(&rewritten, black_box(&groups), &cpu, Granularity::Fused);
        group.bench_function("lower", |b| b.iter(lowered));
        let program = lowered().expect("it is lowered");
        group.bench_function("compile", |b| {
            b.iter(|| Module::compile(program.clone()).expect("it is compiled"))
        });
        group.bench_function("bind", |b| {
            b.iter(|| bind(black_box(&program), &model.sizes).expect("it is bound"))
        });
        let planned = plan(graph, &gpu, Granularity::Fused, &none).expect("it is planned").program;
        let emitted = || -> usize {
            let steps = planned.steps().iter();
            let launches =
                steps.flat_map(|step| launches(&planned, step, &gpu).unwrap_or_default());
            launches
                .map(|launch| emit(&launch.kernel).map_or(0, |emitted| emitted.source.len()))
                .sum()
        };
        group.bench_function("emit sm_90a", |b| b.iter(|| black_box(emitted())));
        group.finish();
    }
}
