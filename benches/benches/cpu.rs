//! Runs on the CPU: whole models, fused and one operation a launch, and kernels by themselves.

use crate::models::models;
use criterion::Criterion;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::op::{AttentionAttrs, ConvAttrs, Op, ReduceOp, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use graphene_runtime::cpu::{Executable, Module};

/// Inputs of zeros, in range as tokens too, and what runs on them.
fn prepared(
    graph: &Graph,
    granularity: Granularity,
    sizes: &Bindings,
) -> (Executable, Vec<Tensor>) {
    let planned = plan(graph, &Target::cpu(2), granularity, sizes).expect("it is planned");
    let module = Module::compile(planned.program).expect("it is compiled");
    let inputs = graph.inputs().iter().map(|id| {
        let ty = graph.ty(id.value());
        let shape = ty.bound_shape(sizes).expect("its sizes are bound");
        Tensor::zeros(ty.dtype, shape).expect("it fits in memory")
    });
    (module.executable(sizes).expect("it is bound"), inputs.collect())
}

/// A model's run.
pub(crate) fn runs(criterion: &mut Criterion) {
    for model in models() {
        let mut group = criterion.benchmark_group(format!("run/{}", model.kind));
        group.sample_size(10);
        for (name, granularity) in [("fused", Granularity::Fused), ("library", Granularity::PerOp)]
        {
            let (mut executable, inputs) = prepared(&model.graph, granularity, &model.sizes);
            group.bench_function(name, |b| b.iter(|| executable.run(&inputs).expect("it runs")));
        }
        group.finish();
    }
}

/// An operation, and the shapes of what it reads, all fp32.
fn operations() -> Vec<(&'static str, Op, Vec<Vec<usize>>)> {
    let conv = ConvAttrs {
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads_before: vec![1, 1],
        pads_after: vec![1, 1],
        group: 1,
    };
    let attention = AttentionAttrs {
        scale: 0.125,
        causal: false,
        softcap: 0.0,
        guarded: false,
        fill: f32::NEG_INFINITY,
    };
    let heads = vec![1, 12, 128, 64];
    let sum = Op::Reduce { op: ReduceOp::Sum, axes: vec![1], keep: false };
    let turn = Op::Transpose(vec![1, 0]);
    vec![
        ("matmul", Op::MatMul, vec![vec![128, 768], vec![768, 768]]),
        ("conv 3x3", Op::Conv(conv), vec![vec![1, 64, 56, 56], vec![64, 64, 3, 3]]),
        ("attention", Op::Attention(attention), vec![heads; 3]),
        ("softmax", Op::Softmax { axis: 1, log: false }, vec![vec![1536, 128]]),
        (
            "layer norm",
            Op::LayerNorm { axis: 1, epsilon: 1e-5 },
            vec![vec![128, 768], vec![768], vec![768]],
        ),
        ("gelu", Op::Unary(Unary::Gelu), vec![vec![128, 3072]]),
        ("sum of rows", sum, vec![vec![128, 3072]]),
        ("transpose", turn, vec![vec![768, 768]]),
    ]
}

/// Kernels by themselves, each behind a graph of its one operation.
pub(crate) fn kernels(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("kernel");
    for (name, op, shapes) in operations() {
        let mut graph = Graph::new();
        let inputs: Vec<_> = shapes
            .iter()
            .enumerate()
            .map(|(number, shape)| {
                let dims = shape.iter().map(|&size| Dim::from(size)).collect();
                let input =
                    graph.add_input(&format!("x{number}"), TensorType::new(DType::F32, dims));
                Some(input.expect("a type"))
            })
            .collect();
        let node = graph.add(name, op, &inputs).expect("operands fit");
        graph.add_output("y", node.value());
        let (mut executable, inputs) = prepared(&graph, Granularity::Fused, &Bindings::new());
        group.bench_function(name, |b| b.iter(|| executable.run(&inputs).expect("it runs")));
    }
    group.finish();
}
