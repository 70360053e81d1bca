//! What each stage costs, on encoders of the zoo.
//!
//! `cargo bench -p graphene-benches` runs all. Weights are zeros that are never made: reading them is a matter of
//! the disk, and only compiling looks at them, which lays them out.

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ExternalData, ExternalDataError, ImportOptions, import};
use graphene_fusion::program::Program;
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use graphene_models::{Options, build};
use graphene_runtime::bind;
use graphene_runtime::cpu::Module;
use std::hint::black_box;

/// The encoders whose stages are timed.
const MODELS: [&str; 2] = ["bert-base", "bert-large"];

/// Weights of any length, all zero.
struct Zeros(Bytes);

impl ExternalData for Zeros {
    fn read(&self, _: &str, _: u64, length: Option<u64>) -> Result<Bytes, ExternalDataError> {
        Ok(self.0.slice(..length.unwrap_or(0) as usize))
    }
}

fn program(graph: &Graph) -> Program {
    let planned = plan(graph, &Target::cpu(2), Granularity::Fused, &Bindings::new());
    planned.expect("it can be planned").program
}

fn sizes(batch: i64, sequence: i64) -> Bindings {
    let mut sizes = Bindings::new();
    for (name, size) in [("batch", batch), ("sequence", sequence)] {
        sizes.bind(Symbol::new(name), size).expect("a positive size");
    }
    sizes
}

fn stages(criterion: &mut Criterion) {
    for name in MODELS {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(20);
        let bytes = build(name, &Options::default()).expect("the zoo has it").encode();
        let weights = Zeros(vec![0; 1 << 28].into());
        let imported = || import(bytes.clone(), &weights, &ImportOptions::default());
        group.bench_function("import", |b| b.iter(imported));
        let graph = imported().expect("it imports").graph;
        group.bench_function("plan", |b| b.iter(|| program(black_box(&graph))));
        let program = program(&graph);
        group.bench_function("bind 32x128", |b| b.iter(|| bind(&program, &sizes(32, 128))));
        let compile = || Module::compile(program.clone());
        group.bench_function("compile", |b| b.iter(compile));
        let module = Module::compile(program).expect("its weights can be made");
        group.bench_function("module bind 7x93", |b| b.iter(|| module.bind(&sizes(7, 93))));
        group.finish();
    }
}

criterion_group!(benches, stages);
criterion_main!(benches);
