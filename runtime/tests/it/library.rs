//! Which steps of a program are calls of NVIDIA's libraries, where every operation is a launch on a GPU.

use expect_test::{Expect, expect};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, Reading, import, read_model};
use graphene_frontend::op::{ConvAttrs, Op, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::text::{content_hash, parse};
use graphene_fusion::groups::Family;
use graphene_fusion::kernels::launches;
use graphene_fusion::program::Step;
use graphene_fusion::{Granularity, plan_in};
use graphene_runtime::gpu::routine;
use std::path::Path;

fn fixture(name: &str) -> Graph {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../frontend/tests/data/fixtures");
    let (model, weights) =
        read_model(folder.join(name).join("model.onnx"), Reading::Mapped).unwrap();
    import(model, &weights, &ImportOptions::default()).unwrap().graph
}

/// A line for each call, and how many steps are kernels.
fn check_calls(graph: &Graph, elements: Option<DType>, expected: &Expect) {
    let (target, none) = ("sm_90a".parse().unwrap(), Bindings::new());
    let planned = plan_in(graph, &target, Granularity::PerOp, &none, elements).unwrap();
    let program = planned.program;
    let mut text = String::new();
    let mut kernels = 0;
    for step in program.steps() {
        match routine(&program, step, &target) {
            Some(routine) => text += &format!("{routine}\n"),
            None => kernels += 1,
        }
    }
    expected.assert_eq(&format!("{text}kernels: {kernels}\n"));
    // The fused plan leaves nothing to libraries but as a variant of a step that a template takes.
    let planned = plan_in(graph, &target, Granularity::Fused, &none, elements).unwrap();
    let program = planned.program;
    let ours = |step: &Step| {
        step.variants.library().is_some() || routine(&program, step, &target).is_none()
    };
    assert!(program.steps().iter().all(ours), "{program}");
}

#[test]
fn matmuls_and_softmaxes_of_encoders_are_calls() {
    check_calls(
        &fixture("bert-tiny"),
        Some(DType::F16),
        &expect![[r#"
            cublaslt [batch*sequence, 64]·[64, 192] f16: in0[64]·in1[192] + in2 row -> out0[192]
            cudnn attention of [batch, 4, sequence, 16] by [batch, 4, sequence, 16], mask [batch, 1, 1, sequence] f16: 0.25·in0[192*sequence, 16, 192]·in1+64[192*sequence, 16, 192] + in3[sequence, sequence, sequence], in2+128[192*sequence, 16, 192] -> out0[64*sequence, 16, 64]
            cublaslt [batch*sequence, 64]·[64, 64] f16: in0[64]·in1[64] + in3[64] + in2 row -> out0[64]
            cublaslt [batch*sequence, 64]·[64, 128] f16: in0[64]·in1[128] + in2 row -> out0[128]
            cublaslt [batch*sequence, 128]·[128, 64] f16: in0[128]·in1[64] + in3[64] + in2 row -> out0[64]
            cublaslt [batch*sequence, 64]·[64, 192] f16: in0[64]·in1[192] + in2 row -> out0[192]
            cudnn attention of [batch, 4, sequence, 16] by [batch, 4, sequence, 16], mask [batch, 1, 1, sequence] f16: 0.25·in0[192*sequence, 16, 192]·in1+64[192*sequence, 16, 192] + in3[sequence, sequence, sequence], in2+128[192*sequence, 16, 192] -> out0[64*sequence, 16, 64]
            cublaslt [batch*sequence, 64]·[64, 64] f16: in0[64]·in1[64] + in3[64] + in2 row -> out0[64]
            cublaslt [batch*sequence, 64]·[64, 128] f16: in0[64]·in1[128] + in2 row -> out0[128]
            cublaslt [batch*sequence, 128]·[128, 64] f16: in0[128]·in1[64] + in3[64] + in2 row -> out0[64]
            cublaslt [batch, 64]·[64, 64] f16: in0[64*sequence]·in1[64] + in2 row -> out0[64]
            kernels: 16
        "#]],
    );
}

/// Attention of a decoder's block: three parts of one projection, scaled scores with a mask, and a residual.
const DECODER: &str = r#"
    symbols b, s
    %0 = Input : f32[b, s, 32] "x"
    %1 = Input : f32[b, 1, s, s] "mask"
    %2 = Input : f32[32, 96] "w"
    %3 = Input : f32[96] "bias"
    %4 = Input : f32[32, 32] "wo"
    %5 = MatMul(%0, %2) : f32[b, s, 96] "qkv"
    %6 = Add(%5, %3) : f32[b, s, 96] "biased"
    %7 = Slice(%6) {axes: [{axis: 2, start: 0, len: 32, step: 1}]} : f32[b, s, 32] "q"
    %8 = Slice(%6) {axes: [{axis: 2, start: 32, len: 32, step: 1}]} : f32[b, s, 32] "k"
    %9 = Slice(%6) {axes: [{axis: 2, start: 64, len: 32, step: 1}]} : f32[b, s, 32] "v"
    %10 = Transpose(%8) {perm: [0, 2, 1]} : f32[b, 32, s] "k turned"
    %11 = MatMul(%7, %10) : f32[b, s, s] "scores"
    %12 = Softmax(%11) {axis: 2} : f32[b, s, s] "weights"
    %13 = MatMul(%12, %9) : f32[b, s, 32] "mixed"
    %14 = MatMul(%13, %4) : f32[b, s, 32] "projected"
    %15 = Add(%0, %14) : f32[b, s, 32] "residual"
    %16 = GeluTanh(%15) : f32[b, s, 32] "y"
    return "y" = %16
"#;

#[test]
fn parts_of_one_projection_are_read_in_place() {
    let graph = parse(DECODER, &[]).unwrap();
    check_calls(
        &graph,
        Some(DType::BF16),
        &expect![[r#"
            cublaslt [b*s, 32]·[32, 96] bf16: in0[32]·in1[96] + in2 row -> out0[96]
            cudnn attention of [b, 1, s, 32] by [b, 1, s, 32] bf16: 1·in0[96*s, 96*s, 96]·in1+32[96*s, 96*s, 96], in2+64[96*s, 96*s, 96] -> out0[32*s, 32*s, 32]
            cublaslt [b*s, 32]·[32, 32] bf16: in0[32]·in1[32] + in2[32], GeluTanh -> out0[32]
            kernels: 5
        "#]],
    );
}

/// A block of a residual network.
const BLOCK: &str = r#"
    symbols b
    %0 = Input : f32[b, 8, 9, 8] "x"
    %1 = Input : f32[16, 8, 3, 3] "w"
    %2 = Input : f32[16] "bias"
    %3 = Input : f32[16, 8, 1, 1] "shortcut's w"
    %4 = Conv(%0, %1, %2) {strides: [2, 1], dilations: [1, 1], pads_before: [1, 1], pads_after: [1, 1], group: 1} : f32[b, 16, 5, 8] "conv"
    %5 = Conv(%0, %3) {strides: [2, 1], dilations: [1, 1], pads_before: [0, 0], pads_after: [0, 0], group: 1} : f32[b, 16, 5, 8] "shortcut"
    %6 = Add(%4, %5) : f32[b, 16, 5, 8] "sum"
    %7 = Relu(%6) : f32[b, 16, 5, 8] "y"
    return "y" = %7
"#;

#[test]
fn convolutions_take_a_residual_and_relu_along() {
    check_calls(
        &parse(BLOCK, &[]).unwrap(),
        None,
        &expect![[r#"
            cudnn convolution of [b, 8, 9, 8] by [16, 8, 1, 1], strides [2, 1] f32: in0·in1 -> out0
            cudnn convolution of [b, 8, 9, 8] by [16, 8, 3, 3], strides [2, 1], pads [1, 1] f32: in0·in1 + in2 channels + in3, Relu -> out0
            kernels: 0
        "#]],
    );
}

/// A convolution along one axis of a length that is a symbol: its pad before and after, and what reads it.
fn along_one_axis(pads: [i64; 2], after: &str) -> Graph {
    let [before, behind] = pads;
    let text = format!(
        r#"
        symbols b, s
        %0 = Input : f32[b, 8, s] "x"
        %1 = Input : f32[16, 4, 3] "w"
        %2 = Input : f32[16] "bias"
        %3 = Conv(%0, %1, %2) {{strides: [1], dilations: [2], pads_before: [{before}], pads_after: [{behind}], group: 2}} : f32[b, 16, s] "conv"
        %4 = {after}(%3) : f32[b, 16, s] "y"
        return "y" = %4
    "#
    );
    parse(&text, &[]).unwrap()
}

#[test]
fn convolutions_have_sizes_that_are_symbols() {
    check_calls(
        &along_one_axis([4, 0], "Relu"),
        Some(DType::BF16),
        &expect![[r#"
            cudnn convolution of [b, 8, s] by [16, 4, 3], dilations [2], pads [4]..[0], 2 groups bf16: in0·in1 + in2 channels, Relu -> out0
            kernels: 4
        "#]],
    );
    check_calls(
        &along_one_axis([2, 2], "Tanh"),
        None,
        &expect![[r#"
            cudnn convolution of [b, 8, s] by [16, 4, 3], dilations [2], pads [2], 2 groups f32: in0·in1 + in2 channels -> out0
            kernels: 1
        "#]],
    );
}

/// Images of 8 channels through so many convolutions with ReLU.
fn network(convolutions: usize) -> Graph {
    let mut graph = Graph::new();
    let mut value = graph.add_input("x", "f32[b, 8, 6, 6]".parse().unwrap()).unwrap();
    for _ in 0..convolutions {
        let w = Tensor::from_vec(vec![8, 8, 3, 3], vec![0.1_f32; 576]).unwrap();
        let bias = Tensor::from_vec(vec![8], vec![0.5_f32; 8]).unwrap();
        let [w, bias] = [("w", w), ("bias", bias)].map(|(name, of)| graph.add_constant(name, of));
        let attrs = ConvAttrs {
            strides: vec![1; 2],
            dilations: vec![1; 2],
            pads_before: vec![1; 2],
            pads_after: vec![1; 2],
            group: 1,
        };
        let inputs = [value, w, bias].map(Some);
        value = graph.add("conv", Op::Conv(attrs), &inputs).unwrap().value();
        value = graph.add("relu", Op::Unary(Unary::Relu), &[Some(value)]).unwrap().value();
    }
    graph.add_output("y", value);
    graph
}

/// Where few copies from order to order are needed.
#[test]
fn networks_of_half_precision_have_their_channels_innermost() {
    let lines = |elements: Option<DType>, count: usize| {
        let (target, none) = ("sm_90a".parse().unwrap(), Bindings::new());
        let program = plan_in(&network(count), &target, Granularity::PerOp, &none, elements);
        let program = program.unwrap().program;
        let calls = program.steps().iter().filter_map(|step| routine(&program, step, &target));
        calls.map(|call| call.to_string()).collect::<Vec<_>>()
    };
    let call = |order: &str, dtype: &str| {
        format!(
            "cudnn convolution of [b, 8, 6, 6] by [8, 8, 3, 3], pads [1, 1]{order} {dtype}: in0·in1 + in2 channels, Relu -> out0"
        )
    };
    assert_eq!(lines(Some(DType::F16), 6), vec![call(", channels last", "f16"); 6]);
    assert_eq!(lines(Some(DType::F16), 2), vec![call("", "f16"); 2]);
    assert_eq!(lines(None, 6), vec![call("", "f32"); 6]);
}

#[test]
fn convolutions_that_cut_images_are_kernels() {
    check_calls(
        &along_one_axis([5, -1], "Relu"),
        None,
        &expect![[r#"
            kernels: 1
        "#]],
    );
}

#[test]
fn a_layer_of_an_export_is_a_call() {
    check_calls(
        &fixture("lstm"),
        None,
        &expect![[r#"
            cudnn Lstm of [time, batch, 32] F32: 48 units, directions 1, biases, all h, last h, last c
            cublaslt [batch*time, 48]·[48, 8] f32: in0[48]·in1[8] + in2 row -> out0[8]
            kernels: 0
        "#]],
    );
}

/// A layer of 8 inputs and 4 units: its operation with attributes, in so many directions and gates.
fn layer(op: &str, operands: &str, attributes: &str, directions: usize, gates: usize) -> Graph {
    let rows = gates * 4;
    let shapes = [vec![directions, rows, 8], vec![directions, rows, 4], vec![directions, 2 * rows]];
    let mut text = String::from(
        "symbols b, s\n%0 = Input : f32[s, b, 8] \"x\"\n%1 = Input : i32[b] \"lengths\"\n%2 = Input : f32[1, b, 4] \"h\"\n",
    );
    let mut weights = Vec::new();
    for (place, shape) in shapes.into_iter().enumerate() {
        let weight = vec![place as f32; shape.iter().product()];
        let weight = Tensor::from_vec(shape.clone(), weight).unwrap();
        let (hash, number) = (content_hash(&weight), place + 3);
        text +=
            &format!("%{number} = Constant(@{place} {hash:016x}) : f32{shape:?} \"w{place}\"\n");
        weights.push(weight);
    }
    let (all, last) = (format!("f32[s, {directions}, b, 4]"), format!("f32[{directions}, b, 4]"));
    let cell = if op == "Lstm" { format!(", {last}") } else { String::new() };
    text += &format!("%6 = {op}({operands}) {{{attributes}}} : {all}, {last}{cell} \"y\"\n");
    text += "return \"y\" = %6, \"h\" = %6.1\n";
    parse(&text, &weights).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// What computes the layer: a call, or `kernel`.
fn computed_by(graph: &Graph, elements: Option<DType>) -> String {
    let (target, none) = ("sm_90a".parse().unwrap(), Bindings::new());
    let program = plan_in(graph, &target, Granularity::PerOp, &none, elements).unwrap().program;
    let calls: Vec<_> =
        program.steps().iter().filter_map(|step| routine(&program, step, &target)).collect();
    assert!(calls.len() < 2);
    calls.first().map_or("kernel".to_owned(), ToString::to_string)
}

#[test]
fn layers_that_cudnn_has_are_calls() {
    let lstm = "input_forget: false, direction: forward, hidden: 4, activations: [Sigmoid, Tanh, Tanh], clip: none";
    let gru = "linear_before_reset: true, direction: bidirectional, hidden: 4, activations: [Sigmoid, Tanh, Sigmoid, Tanh], clip: none";
    let of = |attributes: &str| layer("Lstm", "%0, %3, %4", attributes, 1, 4);
    let single = |graph: &Graph| computed_by(graph, None);
    let plain = "cudnn Lstm of [s, b, 8] F32: 4 units, directions 1, all h, last h";
    assert_eq!(single(&of(lstm)), plain);
    assert_eq!(computed_by(&of(lstm), Some(DType::F16)), plain.replace("F32", "F16"));
    assert_eq!(computed_by(&of(lstm), Some(DType::BF16)), "kernel");
    for (from, to) in [
        ("input_forget: false", "input_forget: true"),
        ("forward", "reverse"),
        ("[Sigmoid, Tanh, Tanh]", "[Sigmoid, Tanh, Relu]"),
        ("clip: none", "clip: 2"),
    ] {
        assert_eq!(single(&of(&lstm.replace(from, to))), "kernel", "{to}");
    }
    let lengths = layer("Lstm", "%0, %3, %4, %5, %1", lstm, 1, 4);
    assert_eq!(single(&lengths), "kernel");
    let initial = layer("Lstm", "%0, %3, %4, _, _, %2", lstm, 1, 4);
    assert_eq!(single(&initial), plain);
    let both = |attributes: &str| layer("Gru", "%0, %3, %4, %5", attributes, 2, 3);
    let biased = "cudnn Gru of [s, b, 8] F32: 4 units, directions 2, biases, all h, last h";
    assert_eq!(single(&both(gru)), biased);
    let reset_first = gru.replace("linear_before_reset: true", "linear_before_reset: false");
    assert_eq!(single(&both(&reset_first)), "kernel");
    let relu = "direction: forward, hidden: 4, activations: [Relu], clip: none";
    assert_eq!(single(&layer("Rnn", "%0, %3, %4", relu, 1, 1)), plain.replace("Lstm", "Relu"));
}

#[test]
fn what_is_no_call_has_a_kernel() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../frontend/tests/data/fixtures");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let graph = fixture(&name);
        for elements in [None, Some(DType::F16), Some(DType::BF16)] {
            for target in ["sm_80", "sm_90a"] {
                let (target, none) = (target.parse().unwrap(), Bindings::new());
                let planned = plan_in(&graph, &target, Granularity::PerOp, &none, elements);
                let program = planned.unwrap().program;
                // Attention and convolutions have a kernel beside their call.
                let beside = [Family::Fmha, Family::Convolution];
                let has = |step: &&Step| {
                    beside.contains(&step.family) || routine(&program, step, &target).is_none()
                };
                for step in program.steps().iter().filter(has) {
                    let made = launches(&program, step, &target);
                    let step = &step.name;
                    made.unwrap_or_else(|refusal| panic!("{name} {target}: {step}: {refusal}"));
                    count += 1;
                }
            }
        }
    }
    assert!(count > 600, "{count}");
}
