//! What each stage costs, on encoders of the zoo.
//!
//! `cargo bench -p graphene-benches` runs all; import is timed with its weights by reference, since reading them
//! is a matter of the disk.

use criterion::{Criterion, criterion_group, criterion_main};
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, import};
use graphene_frontend::onnx::encode;
use graphene_fusion::program::Program;
use graphene_fusion::{Granularity, lower, partition, rewrite};
use graphene_ir::target::Target;
use graphene_models::{Options, build};
use graphene_runtime::bind;
use graphene_runtime::cpu::Module;
use std::hint::black_box;

/// The encoders whose stages are timed.
const MODELS: [&str; 2] = ["bert-base", "bert-large"];

fn imported(name: &str) -> Graph {
    let (model, weights) = build(name, &Options::default()).expect("the zoo has it").into_parts();
    import(encode(&model), &weights, &ImportOptions::default()).expect("it imports").graph
}

fn program(graph: &Graph) -> Program {
    let graph = rewrite(graph).expect("it rewrites");
    let groups = partition(&graph, &Target::cpu(2), Granularity::Fused);
    lower(&graph, &groups, Granularity::Fused).expect("it lowers")
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
        let (model, weights) =
            build(name, &Options::default()).expect("the zoo has it").into_parts();
        let bytes = encode(&model);
        let options = ImportOptions::default();
        group.bench_function("import", |b| b.iter(|| import(bytes.clone(), &weights, &options)));
        let graph = imported(name);
        group.bench_function("plan", |b| b.iter(|| program(black_box(&graph))));
        let program = program(&graph);
        group.bench_function("bind 32x128", |b| b.iter(|| bind(&program, &sizes(32, 128))));
        let module = Module::compile(program);
        group.bench_function("module bind 7x93", |b| b.iter(|| module.bind(&sizes(7, 93))));
        group.finish();
    }
}

criterion_group!(benches, stages);
criterion_main!(benches);
