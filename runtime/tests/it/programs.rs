//! Programs of several families: views, in-place writing, outputs that are views, memory.

use crate::check::{Random, check_graph, executable, module, random_inputs};
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, Op, ReduceOp, SliceAxis, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::{Granularity, lower, partition};
use graphene_ir::target::Target;
use graphene_runtime::cpu::Module;

fn dims(text: &str) -> Vec<Dim> {
    text.split(',').filter(|dim| !dim.is_empty()).map(|dim| dim.trim().parse().unwrap()).collect()
}

fn sizes(b: i64, s: i64) -> Bindings {
    let mut bindings = Bindings::new();
    bindings.bind(Symbol::new("b"), b).unwrap();
    bindings.bind(Symbol::new("s"), s).unwrap();
    bindings
}

/// A graph under construction.
struct Build(Graph);

impl Build {
    fn input(&mut self, name: &str, shape: &str) -> ValueId {
        self.0.add_input(name, TensorType::new(DType::F32, dims(shape))).unwrap()
    }

    fn weight(&mut self, seed: u64, shape: &[usize]) -> ValueId {
        self.0.add_constant("weight", Random(seed).tensor(DType::F32, shape.to_vec()))
    }

    fn add(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        self.0.add(op.name(), op.clone(), &inputs).unwrap().value()
    }

    fn heads(&mut self, x: ValueId) -> ValueId {
        let split = self.add(Op::Reshape(dims("b,s,4,8")), &[x]);
        self.add(Op::Transpose(vec![0, 2, 1, 3]), &[split])
    }
}

/// Where squares overflow, where one of two terms is lost, and what is no number.
#[test]
fn functions_are_right_at_their_ends() {
    let functions = [
        Unary::Asinh,
        Unary::Acosh,
        Unary::Atanh,
        Unary::Celu { alpha: 0.7 },
        Unary::ThresholdedRelu { alpha: 1.5 },
    ];
    let ends = [3.4e38, -3.4e38, 1e20, -1e20, -1e5, 0.999_999, -0.999_999, -0.0, f64::NAN];
    for function in functions {
        for dtype in [DType::F32, DType::F64] {
            let mut graph = Graph::new();
            let x = graph.add_input("x", TensorType::new(dtype, dims("9"))).unwrap();
            let y = graph.add("y", Op::Unary(function), &[Some(x)]).unwrap().value();
            graph.add_output("y", y);
            let x = match dtype {
                DType::F32 => Tensor::from_vec(vec![9], ends.map(|x| x as f32).to_vec()),
                _ => Tensor::from_vec(vec![9], ends.to_vec()),
            };
            check_graph(&graph, &Bindings::new(), &[x.unwrap()], 1e-6);
        }
    }
}

fn check(graph: &Graph, tolerance: f64) {
    for (seed, (b, s)) in [(1, 1), (2, 9), (3, 33)].into_iter().enumerate() {
        let inputs = random_inputs(graph, &sizes(b, s), &mut Random(seed as u64));
        check_graph(graph, &sizes(b, s), &inputs, tolerance);
    }
}

/// An attention layer as exporters write it.
fn attention() -> Graph {
    let mut g = Build(Graph::new());
    let x = g.input("x", "b,s,32");
    let mask = g.input("mask", "b,1,1,s");
    let project = |g: &mut Build, seed| {
        let w = g.weight(seed, &[32, 32]);
        let bias = g.weight(seed + 10, &[32]);
        let matmul = g.add(Op::MatMul, &[x, w]);
        g.add(Op::Binary(Binary::Add), &[bias, matmul])
    };
    let (q, k, v) = (project(&mut g, 1), project(&mut g, 2), project(&mut g, 3));
    let (q, k, v) = (g.heads(q), g.heads(k), g.heads(v));
    let k = g.add(Op::Transpose(vec![0, 1, 3, 2]), &[k]);
    let scale = g.weight(4, &[]);
    let k = g.add(Op::Binary(Binary::Mul), &[k, scale]);
    let scores = g.add(Op::MatMul, &[q, k]);
    let scores = g.add(Op::Binary(Binary::Add), &[scores, mask]);
    let weights = g.add(Op::Softmax { axis: 3, log: false }, &[scores]);
    let heads = g.add(Op::MatMul, &[weights, v]);
    let merged = g.add(Op::Transpose(vec![0, 2, 1, 3]), &[heads]);
    let merged = g.add(Op::Reshape(dims("b,s,32")), &[merged]);
    let sum = g.add(Op::Binary(Binary::Add), &[merged, x]);
    let (scale, bias) = (g.weight(5, &[32]), g.weight(6, &[32]));
    let y = g.add(Op::LayerNorm { axis: 2, epsilon: 1e-5 }, &[sum, scale, bias]);
    g.0.add_output("y", y);
    g.0
}

#[test]
fn attention_agrees_and_moves_nothing_when_fused() {
    let graph = attention();
    check(&graph, 1e-4);
    let fused = executable(&graph, &sizes(2, 9), Granularity::Fused);
    let copies = fused.program().steps().iter().filter(|step| step.family.name() == "Copy").count();
    assert_eq!(copies, 0, "{}", fused.program());
}

#[test]
fn movement_agrees() {
    let mut g = Build(Graph::new());
    let x = g.input("x", "b,6,s");
    let t = g.add(Op::Transpose(vec![2, 0, 1]), &[x]);
    let flat = g.add(Op::Reshape(dims("s*b,6")), &[t]);
    let part = g.add(
        Op::Slice(vec![SliceAxis { axis: 1, start: Dim::from(4), len: Dim::from(2), step: -3 }]),
        &[flat],
    );
    let wide = g.add(Op::Expand(dims("3,s*b,2")), &[part]);
    let joined = g.add(Op::Concat { axis: 0 }, &[wide, wide]);
    let reduced = g.add(Op::Reduce { op: ReduceOp::Mean, axes: vec![0, 2], keep: true }, &[joined]);
    let norm = g.add(Op::Softmax { axis: 1, log: true }, &[wide]);
    for (name, value) in
        [("t", t), ("part", part), ("wide", wide), ("reduced", reduced), ("norm", norm)]
    {
        g.0.add_output(name, value);
    }
    check(&g.0, 1e-4);
}

#[test]
fn outputs_may_be_inputs_weights_and_given_twice() {
    let mut g = Build(Graph::new());
    let x = g.input("x", "b,s");
    let w = g.weight(1, &[3]);
    let y = g.add(Op::Unary(Unary::Tanh), &[x]);
    let z = g.add(Op::Unary(Unary::Exp), &[y]);
    for (name, value) in [("x", x), ("w", w), ("y", y), ("again", y), ("z", z)] {
        g.0.add_output(name, value);
    }
    check(&g.0, 1e-5);
}

#[test]
fn chains_reuse_memory_in_place() {
    let mut g = Build(Graph::new());
    // Along the first axis a softmax is a launch of its own.
    let mut x = g.input("x", "b,s");
    for i in 0..8 {
        x = g.add(Op::Softmax { axis: 0, log: false }, &[x]);
        x = g.add(if i % 2 == 0 { Op::Unary(Unary::Exp) } else { Op::Unary(Unary::Sqrt) }, &[x]);
    }
    let y = g.add(Op::Softmax { axis: 0, log: false }, &[x]);
    g.0.add_output("y", y);
    check(&g.0, 1e-5);
    let plan = executable(&g.0, &sizes(8, 128), Granularity::Fused);
    assert_eq!(plan.plan().arena_bytes(), 2 * 8 * 128 * 4, "{}", plan.plan());
}

/// Whether an output of the fused plan overwrites an input.
fn overwrites(graph: &Graph) -> bool {
    let executable = executable(graph, &sizes(8, 128), Granularity::Fused);
    executable.plan().steps().iter().any(|step| step.overwritten_by.iter().any(Option::is_some))
}

#[test]
fn a_norm_overwrites_what_nothing_else_reads() {
    // Along the first axis a softmax is a launch of its own, so that the norm between two is one, too.
    let softmax = Op::Softmax { axis: 0, log: false };
    let norms = [Op::LayerNorm { axis: 1, epsilon: 1e-5 }, Op::RmsNorm { axis: 1, epsilon: 1e-5 }];
    for norm in norms {
        let mut g = Build(Graph::new());
        let (x, scale) = (g.input("x", "b,s"), g.input("scale", "s"));
        let x = g.add(softmax.clone(), &[x]);
        let y = g.add(norm, &[x, scale]);
        let z = g.add(softmax.clone(), &[y]);
        g.0.add_output("z", z);
        check(&g.0, 1e-5);
        assert!(overwrites(&g.0));

        g.0.add_output("x", x);
        check(&g.0, 1e-5);
        assert!(!overwrites(&g.0));
    }
    // The input is the scale as well, or another view of its memory is.
    for viewed in [false, true] {
        let mut g = Build(Graph::new());
        let x = g.input("x", "1,s");
        let x = g.add(softmax.clone(), &[x]);
        let scale = if viewed { g.add(Op::Reshape(dims("s")), &[x]) } else { x };
        let y = g.add(Op::LayerNorm { axis: usize::from(viewed), epsilon: 1e-5 }, &[x, scale]);
        let z = g.add(softmax.clone(), &[y]);
        g.0.add_output("z", z);
        check(&g.0, 1e-5);
        assert!(!overwrites(&g.0));
    }
    // Numbers of 16 bits are normalised in single precision, beside.
    let mut graph = Graph::new();
    let x = graph.add_input("x", TensorType::new(DType::BF16, dims("b,s"))).unwrap();
    let mut g = Build(graph);
    let x = g.add(softmax.clone(), &[x]);
    let y = g.add(Op::LayerNorm { axis: 1, epsilon: 1e-5 }, &[x]);
    let z = g.add(softmax, &[y]);
    g.0.add_output("z", z);
    check(&g.0, 2e-2);
    assert!(!overwrites(&g.0));
}

/// Programs of both plans for a graph under sizes that the graph does not fit.
fn check_refused(graph: &Graph, b: i64, s: i64) {
    let inputs = random_inputs(graph, &sizes(b, s), &mut Random(1));
    assert!(
        evaluate_with(graph, &inputs, &sizes(b, s)).is_err(),
        "the reference takes b={b} s={s}"
    );
    for granularity in [Granularity::PerOp, Granularity::Fused] {
        let outputs = module(graph, granularity)
            .executable(&sizes(b, s))
            .and_then(|mut executable| executable.run(&inputs));
        assert!(outputs.is_err(), "{granularity:?} takes b={b} s={s}: {outputs:?}");
    }
}

#[test]
fn groups_that_wait_for_each_other_in_a_roundabout_way_stay_apart() {
    let mut g = Build(Graph::new());
    let (x, y) = (g.input("x", "b,s"), g.input("y", "b,s"));
    let softmax = Op::Softmax { axis: 1, log: false };
    let k = g.add(Op::Unary(Unary::Tanh), &[x]);
    let h = g.add(softmax.clone(), &[k]);
    let e = g.add(Op::Unary(Unary::Exp), &[y]);
    let m = g.add(softmax, &[e]);
    let first = g.add(Op::Binary(Binary::Add), &[k, m]);
    let second = g.add(Op::Binary(Binary::Add), &[e, h]);
    g.0.add_output("first", first);
    g.0.add_output("second", second);
    check(&g.0, 1e-5);
}

#[test]
fn outputs_of_one_loop_share_an_order() {
    let mut g = Build(Graph::new());
    let x = g.input("x", "b,s,4");
    let y = g.add(Op::Unary(Unary::Tanh), &[x]);
    let z = g.add(Op::Unary(Unary::Exp), &[y]);
    let turned = g.add(Op::Transpose(vec![2, 0, 1]), &[z]);
    let summed = g.add(Op::Softmax { axis: 2, log: false }, &[turned]);
    g.0.add_output("y", y);
    g.0.add_output("summed", summed);
    check(&g.0, 1e-5);
}

#[test]
fn sizes_below_zero_are_called_so() {
    let mut g = Build(Graph::new());
    let x = g.input("x", "b - 4");
    let y = g.add(Op::Unary(Unary::Exp), &[x]);
    g.0.add_output("y", y);
    for granularity in [Granularity::PerOp, Granularity::Fused] {
        let refused = module(&g.0, granularity).bind(&sizes(1, 1)).err().map(|e| e.to_string());
        let refused = refused.unwrap_or_default();
        assert!(refused.ends_with("the size `b - 4` is negative: -3"), "{refused}");
        assert!(module(&g.0, granularity).bind(&sizes(5, 1)).is_ok());
    }
}

#[test]
fn memory_has_a_limit() {
    let mut g = Build(Graph::new());
    let x = g.input("x", "b,8");
    let y = g.add(Op::Unary(Unary::Exp), &[x]);
    g.0.add_output("y", y);
    let module = module(&g.0, Granularity::Fused);
    assert!(module.bind_within(&sizes(4, 1), 256).is_ok());
    let refused = module.bind_within(&sizes(4, 1), 255).err();
    assert_eq!(refused, Some(graphene_runtime::Error::Exceeds { needed: 256, limit: 255 }));
}

#[test]
fn a_slice_stays_within_its_axis() {
    let mut g = Build(Graph::new());
    let x = g.input("x", "8,10");
    let slice =
        |axis, len: Dim| Op::Slice(vec![SliceAxis { axis, start: Dim::from(0), len, step: 1 }]);
    let top = g.add(slice(0, Dim::from(2)), &[x]);
    let left = g.add(slice(1, "s".parse().unwrap()), &[top]);
    let y = g.add(Op::Unary(Unary::Exp), &[left]);
    let z = g.input("z", "b,s");
    g.0.add_output("y", y);
    g.0.add_output("z", z);
    check_graph(&g.0, &sizes(1, 10), &random_inputs(&g.0, &sizes(1, 10), &mut Random(1)), 1e-5);
    check_refused(&g.0, 1, 12);
}

#[test]
fn sizes_that_must_agree_are_compared() {
    let joined = |axis, first: &str, second: &str| {
        let mut g = Build(Graph::new());
        let (x, y) = (g.input("x", first), g.input("y", second));
        let z = g.add(Op::Concat { axis }, &[x, y]);
        g.0.add_output("z", z);
        g.0
    };
    check_refused(&joined(1, "b,2", "5,s"), 3, 3);
    check_refused(&joined(1, "b,2", "5,s"), 7, 3);
    let mut g = Build(Graph::new());
    let (x, y) = (g.input("x", "b,s"), g.input("y", "5,s"));
    let z = g.add(Op::Binary(Binary::Add), &[x, y]);
    g.0.add_output("z", z);
    check_graph(&g.0, &sizes(1, 3), &random_inputs(&g.0, &sizes(1, 3), &mut Random(1)), 1e-5);
    check_refused(&g.0, 3, 3);
    let mut g = Build(Graph::new());
    let (x, w) = (g.input("x", "b,s"), g.weight(1, &[5]));
    let z = g.add(Op::LayerNorm { axis: 1, epsilon: 1e-5 }, &[x, w, w]);
    g.0.add_output("z", z);
    check_refused(&g.0, 3, 3);
    let mut g = Build(Graph::new());
    let x = g.input("x", "b,s");
    let z = g.add(Op::Expand(dims("5,s")), &[x]);
    g.0.add_output("z", z);
    check_graph(&g.0, &sizes(1, 3), &random_inputs(&g.0, &sizes(1, 3), &mut Random(1)), 1e-5);
    check_refused(&g.0, 3, 3);
}

#[test]
fn tensors_without_elements_agree() {
    let mut g = Build(Graph::new());
    let (x, none) = (g.input("x", "b,s"), g.input("none", "0,s"));
    let range = SliceAxis { axis: 1, start: Dim::from(-1), len: Dim::from(0), step: -1 };
    let empty = g.add(Op::Slice(vec![range]), &[x]);
    let turned = g.add(Op::Transpose(vec![1, 0]), &[empty]);
    let matmul = g.add(Op::MatMul, &[empty, turned]);
    let joined = g.add(Op::Concat { axis: 0 }, &[none, x, none]);
    let exp = g.add(Op::Unary(Unary::Exp), &[none]);
    let sum = g.add(Op::Reduce { op: ReduceOp::Sum, axes: vec![0], keep: false }, &[exp]);
    let soft = g.add(Op::Softmax { axis: 0, log: false }, &[exp]);
    for (name, value) in [
        ("empty", empty),
        ("turned", turned),
        ("product", matmul),
        ("joined", joined),
        ("exp", exp),
        ("sum", sum),
        ("soft", soft),
    ] {
        g.0.add_output(name, value);
    }
    check(&g.0, 1e-5);
}

#[test]
fn what_no_output_needs_may_stay_in_the_graph() {
    let mut g = Build(Graph::new());
    let x = g.input("x", "b,s");
    let y = g.add(Op::Unary(Unary::Exp), &[x]);
    g.add(Op::Unary(Unary::Tanh), &[y]);
    let turned = g.add(Op::Transpose(vec![1, 0]), &[x]);
    g.add(Op::Softmax { axis: 1, log: false }, &[turned]);
    g.0.add_output("y", y);
    for granularity in [Granularity::PerOp, Granularity::Fused] {
        let groups = partition(&g.0, &Target::cpu(2), granularity, &Bindings::new());
        let program = lower(&g.0, &groups, &Target::cpu(2), granularity).unwrap();
        let mut executable = Module::compile(program).unwrap().executable(&sizes(2, 3)).unwrap();
        let inputs = random_inputs(&g.0, &sizes(2, 3), &mut Random(1));
        assert_eq!(executable.run(&inputs).unwrap().len(), 1);
    }
}
