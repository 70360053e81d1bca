//! What the library computes in one call where every operation is a launch.

use crate::fixtures::imported;
use crate::{graph, sizes};
use expect_test::{Expect, expect};
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_fusion::library::{matmul, sdpa};
use graphene_fusion::program::{Program, Step};
use graphene_fusion::variants::{LIBRARY, When};
use graphene_fusion::{AttentionBy, Granularity, plan_in, plan_library, verify};
use graphene_ir::target::Target;
use std::collections::BTreeMap;

/// A line a step: its call, or its family.
fn check_calls(graph: &Graph, elements: Option<DType>, expected: &Expect) {
    let target = "sm_90a".parse().unwrap();
    let planned = plan_in(graph, &target, Granularity::PerOp, &Bindings::new(), elements).unwrap();
    verify::groups(&planned.graph, &planned.groups).unwrap();
    verify::program(&planned.program).unwrap();
    let mut text = String::new();
    for step in planned.program.steps() {
        let ops = step.name.split(' ').next().unwrap();
        let call = matmul(&planned.program, step, &target).map(|matmul| matmul.to_string());
        match call.or_else(|| sdpa(&planned.program, step).map(|sdpa| sdpa.to_string())) {
            Some(call) => text += &format!("{ops}: {call}\n"),
            None => text += &format!("{ops}\n"),
        }
    }
    expected.assert_eq(&text);
}

/// A block of a decoder, as GPT-2's exports have it.
const GPT: &str = r#"
    symbols b, s
    %0 = Input : f32[b, s, 32] "x"
    %1 = Input : f32[b, 1, s, s] "mask"
    %2 = Constant(@0 _) : f32[32, 96] "w"
    %3 = Constant(@1 _) : f32[96] "bias"
    %4 = Constant(@2 _) : f32[32, 32] "wo"
    %5 = Constant(@3 _) : f32[32] "bo"
    %6 = Constant(@4 _) : f32[128, 32] "up"
    %7 = Constant(@5 _) : f32[128] "up bias"
    %8 = Constant(@6 _) : f32[32, 128] "down"
    %9 = MatMul(%0, %2) : f32[b, s, 96] "qkv"
    %10 = Add(%9, %3) : f32[b, s, 96] "biased"
    %11 = Slice(%10) {axes: [{axis: 2, start: 0, len: 32, step: 1}]} : f32[b, s, 32] "q"
    %12 = Slice(%10) {axes: [{axis: 2, start: 32, len: 32, step: 1}]} : f32[b, s, 32] "k"
    %13 = Slice(%10) {axes: [{axis: 2, start: 64, len: 32, step: 1}]} : f32[b, s, 32] "v"
    %14 = Reshape(%11) {shape: [b, s, 4, 8]} : f32[b, s, 4, 8] "q heads"
    %15 = Reshape(%12) {shape: [b, s, 4, 8]} : f32[b, s, 4, 8] "k heads"
    %16 = Reshape(%13) {shape: [b, s, 4, 8]} : f32[b, s, 4, 8] "v heads"
    %17 = Transpose(%14) {perm: [0, 2, 1, 3]} : f32[b, 4, s, 8] "q turned"
    %18 = Transpose(%15) {perm: [0, 2, 3, 1]} : f32[b, 4, 8, s] "k turned"
    %19 = Transpose(%16) {perm: [0, 2, 1, 3]} : f32[b, 4, s, 8] "v turned"
    %20 = MatMul(%17, %18) : f32[b, 4, s, s] "matmuls"
    %21 = Add(%20, %1) : f32[b, 4, s, s] "masked"
    %22 = Softmax(%21) {axis: 3} : f32[b, 4, s, s] "weights"
    %23 = MatMul(%22, %19) : f32[b, 4, s, 8] "mixed"
    %24 = Transpose(%23) {perm: [0, 2, 1, 3]} : f32[b, s, 4, 8] "turned back"
    %25 = Reshape(%24) {shape: [b, s, 32]} : f32[b, s, 32] "merged"
    %26 = MatMul(%25, %4) : f32[b, s, 32] "projected"
    %27 = Add(%5, %26) : f32[b, s, 32] "projected, biased"
    %28 = Add(%0, %27) : f32[b, s, 32] "residual"
    %29 = Transpose(%6) {perm: [1, 0]} : f32[32, 128] "up turned"
    %30 = MatMul(%28, %29) : f32[b, s, 128] "wide"
    %31 = Add(%30, %7) : f32[b, s, 128] "wide, biased"
    %32 = GeluTanh(%31) : f32[b, s, 128] "gelu"
    %33 = Transpose(%8) {perm: [1, 0]} : f32[128, 32] "down turned"
    %34 = MatMul(%32, %33) : f32[b, s, 32] "narrow"
    %35 = Add(%34, %28) : f32[b, s, 32] "out"
    %36 = Relu(%35) : f32[b, s, 32] "y"
    return "y" = %36
"#;

#[test]
fn calls_take_bias_residual_and_activation_along() {
    let weights: &[&[usize]] =
        &[&[32, 96], &[96], &[32, 32], &[32], &[128, 32], &[128], &[32, 128]];
    check_calls(
        &graph(GPT, weights),
        Some(DType::F16),
        &expect![[r#"
            Cast
            Cast
            MatMul+Add: [b*s, 32]·[32, 96] f16: in0[32]·in1[96] + in2 row -> out0[96]
            Attention: attention of [b, 4, s, 8] by [b, 4, s, 8], mask [b, 1, s, s] f16: 1·in0[96*s, 8, 96]·in1+32[96*s, 8, 96] + in3[s*s, s*s, s], in2+64[96*s, 8, 96] -> out0[32*s, 8, 32]
            MatMul+Add+Add: [b*s, 32]·[32, 32] f16: in0[32]·in1[32] + in3[32] + in2 row -> out0[32]
            MatMul+Add+GeluTanh: [b*s, 32]·[32, 128] f16: in0[32]·in1'[32] + in2 row, GeluTanh -> out0[128]
            MatMul+Add+Relu: [b*s, 128]·[128, 32] f16: in0[128]·in1'[128] + in2[32], Relu -> out0[32]
            Cast
        "#]],
    );
}

#[test]
fn an_encoder_is_matmuls_and_the_rest() {
    check_calls(
        &imported("bert-tiny"),
        Some(DType::F16),
        &expect![[r#"
            Gather
            Gather
            Add
            Add
            LayerNorm
            MatMul+Add: [batch*sequence, 64]·[64, 192] f16: in0[64]·in1[192] + in2 row -> out0[192]
            Cast
            Select
            Attention: attention of [batch, 4, sequence, 16] by [batch, 4, sequence, 16], mask [batch, 1, 1, sequence] f16: 0.25·in0[192*sequence, 16, 192]·in1+64[192*sequence, 16, 192] + in3[sequence, sequence, sequence], in2+128[192*sequence, 16, 192] -> out0[64*sequence, 16, 64]
            MatMul+Add+Add: [batch*sequence, 64]·[64, 64] f16: in0[64]·in1[64] + in3[64] + in2 row -> out0[64]
            LayerNorm
            MatMul+Add: [batch*sequence, 64]·[64, 128] f16: in0[64]·in1[128] + in2 row -> out0[128]
            Gelu
            MatMul+Add+Add: [batch*sequence, 128]·[128, 64] f16: in0[128]·in1[64] + in3[64] + in2 row -> out0[64]
            LayerNorm
            MatMul+Add: [batch*sequence, 64]·[64, 192] f16: in0[64]·in1[192] + in2 row -> out0[192]
            Attention: attention of [batch, 4, sequence, 16] by [batch, 4, sequence, 16], mask [batch, 1, 1, sequence] f16: 0.25·in0[192*sequence, 16, 192]·in1+64[192*sequence, 16, 192] + in3[sequence, sequence, sequence], in2+128[192*sequence, 16, 192] -> out0[64*sequence, 16, 64]
            MatMul+Add+Add: [batch*sequence, 64]·[64, 64] f16: in0[64]·in1[64] + in3[64] + in2 row -> out0[64]
            LayerNorm
            MatMul+Add: [batch*sequence, 64]·[64, 128] f16: in0[64]·in1[128] + in2 row -> out0[128]
            Gelu
            MatMul+Add+Add: [batch*sequence, 128]·[128, 64] f16: in0[128]·in1[64] + in3[64] + in2 row -> out0[64]
            LayerNorm
            MatMul+Add: [batch, 64]·[64, 64] f16: in0[64*sequence]·in1[64] + in2 row -> out0[64]
            Tanh
            Cast
            Cast
        "#]],
    );
}

#[test]
fn attention_of_single_precision_is_matmuls_and_a_softmax() {
    check_calls(
        &imported("bert-tiny"),
        None,
        &expect![[r#"
            Gather
            Gather
            Add
            Add
            LayerNorm
            MatMul+Add: [batch*sequence, 64]·[64, 192] f32: in0[64]·in1[192] + in2 row -> out0[192]
            Transpose
            Transpose
            Cast
            Select
            Transpose
            MatMul+Mul: 4*batch × [sequence, 16]·[16, sequence] f32: 0.25·in0[16, 16*sequence apart]·in1'[16, 16*sequence apart] -> out0[sequence, sequence*sequence apart]
            Add
            Softmax
            MatMul: 4*batch × [sequence, sequence]·[sequence, 16] f32: in0[sequence, sequence*sequence apart]·in1[16, 16*sequence apart] -> out0[16, 16*sequence apart]
            Transpose
            MatMul+Add+Add: [batch*sequence, 64]·[64, 64] f32: in0[64]·in1[64] + in3[64] + in2 row -> out0[64]
            LayerNorm
            MatMul+Add: [batch*sequence, 64]·[64, 128] f32: in0[64]·in1[128] + in2 row -> out0[128]
            Gelu
            MatMul+Add+Add: [batch*sequence, 128]·[128, 64] f32: in0[128]·in1[64] + in3[64] + in2 row -> out0[64]
            LayerNorm
            MatMul+Add: [batch*sequence, 64]·[64, 192] f32: in0[64]·in1[192] + in2 row -> out0[192]
            Transpose
            Transpose
            Transpose
            MatMul+Mul: 4*batch × [sequence, 16]·[16, sequence] f32: 0.25·in0[16, 16*sequence apart]·in1'[16, 16*sequence apart] -> out0[sequence, sequence*sequence apart]
            Add
            Softmax
            MatMul: 4*batch × [sequence, sequence]·[sequence, 16] f32: in0[sequence, sequence*sequence apart]·in1[16, 16*sequence apart] -> out0[16, 16*sequence apart]
            Transpose
            MatMul+Add+Add: [batch*sequence, 64]·[64, 64] f32: in0[64]·in1[64] + in3[64] + in2 row -> out0[64]
            LayerNorm
            MatMul+Add: [batch*sequence, 64]·[64, 128] f32: in0[64]·in1[128] + in2 row -> out0[128]
            Gelu
            MatMul+Add+Add: [batch*sequence, 128]·[128, 64] f32: in0[128]·in1[64] + in3[64] + in2 row -> out0[64]
            LayerNorm
            MatMul+Add: [batch, 64]·[64, 64] f32: in0[64*sequence]·in1[64] + in2 row -> out0[64]
            Tanh
        "#]],
    );
}

/// How many steps there are of each kind: calls of each library, and kernels by their operations.
#[test]
fn launches_of_encoders_are_few() {
    let rows: [(&str, Option<DType>, Expect); 7] = [
        (
            "bert-tiny",
            Some(DType::F16),
            expect![
                "27: 2 Add, 3 Cast, 2 Gather, 2 Gelu, 5 LayerNorm, 1 Select, 1 Tanh, 9 a matmul, 2 attention"
            ],
        ),
        (
            "bert-tiny",
            None,
            expect![
                "39: 4 Add, 1 Cast, 2 Gather, 2 Gelu, 5 LayerNorm, 1 Select, 2 Softmax, 1 Tanh, 8 Transpose, 13 a matmul"
            ],
        ),
        (
            "bert-tiny-dynamo",
            Some(DType::BF16),
            expect![
                "27: 2 Add, 3 Cast, 2 Gather, 2 Gelu, 5 LayerNorm, 1 Select, 1 Tanh, 9 a matmul, 2 attention"
            ],
        ),
        (
            "bert-tiny-opset13",
            Some(DType::F16),
            expect![
                "27: 2 Add, 3 Cast, 2 Gather, 2 Gelu, 5 LayerNorm, 1 Select, 1 Tanh, 9 a matmul, 2 attention"
            ],
        ),
        (
            "bert-tiny-sdpa",
            Some(DType::F16),
            expect![
                "27: 2 Add, 3 Cast, 2 Gather, 2 Gelu, 5 LayerNorm, 1 Select, 1 Tanh, 9 a matmul, 2 attention"
            ],
        ),
        (
            "distilroberta-tiny",
            Some(DType::F16),
            expect![
                "34: 3 Add, 5 Cast, 1 CumSum, 1 Equal, 2 Gather, 2 Gelu, 5 LayerNorm, 1 Mul, 1 Not, 1 Select, 1 Tanh, 9 a matmul, 2 attention"
            ],
        ),
        ("mlp-gelu-4x128", Some(DType::F16), expect!["10: 2 Cast, 4 Gelu, 4 a matmul"]),
    ];
    for (name, elements, expected) in rows {
        let target = "sm_90a".parse().unwrap();
        let graph = imported(name);
        let planned = plan_in(&graph, &target, Granularity::PerOp, &Bindings::new(), elements);
        let program = planned.unwrap().program;
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for step in program.steps() {
            *kinds.entry(kind(&program, step, &target)).or_default() += 1;
        }
        let kinds: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        expected.assert_eq(&format!("{}: {}", program.steps().len(), kinds.join(", ")));
    }
}

/// Without calls for attention, launches are those of single precision.
#[test]
fn attention_is_matmuls_where_that_is_asked_for() {
    let kinds = |elements, by| {
        let (graph, target) = (imported("bert-tiny"), "sm_90a".parse().unwrap());
        let planned = plan_library(&graph, &target, &Bindings::new(), elements, by).unwrap();
        let program = planned.program;
        let kinds = program.steps().iter().map(|step| kind(&program, step, &target));
        kinds.filter(|kind| kind != "Cast").collect::<Vec<_>>()
    };
    let half = kinds(Some(DType::F16), AttentionBy::MatMuls);
    assert_eq!(half, kinds(None, AttentionBy::Calls));
    assert!(half.iter().any(|kind| kind == "Softmax"), "{half:?}");
    assert!(half.iter().all(|kind| kind != "attention"), "{half:?}");
}

/// What computes attention of these elements, with these attributes, under a mask of such elements.
#[test]
fn attention_is_a_call_a_kernel_or_matmuls() {
    const MATMULS: &str = "a matmul, Softmax, a matmul";
    const MASKED: &str = "a matmul, Select, Softmax, a matmul";
    let rows = [
        ("f16", "", "", "attention", MATMULS),
        ("bf16", "causal: true", "", "attention", "attention"),
        ("bf16", "causal: true", "bool", "Select, attention", "Select, attention"),
        ("f16", "", "f16", "attention", "a matmul, Add, Softmax, a matmul"),
        // Truth values become numbers.
        ("f16", "", "bool", "Select, attention", "a matmul, Select, Softmax, a matmul"),
        // Without a mask a guard guards nothing; of a mask that comes from outside, nobody knows.
        ("f16", "guarded: true", "", "attention", MATMULS),
        ("f16", "guarded: true", "f16", "Attention", "Attention"),
        ("f16", "softcap: 30", "", "Attention", "Attention"),
        // Scores that become a number.
        ("f16", "fill: -10000", "bool", MASKED, MASKED),
        ("f32", "", "", MATMULS, MATMULS),
        ("f32", "", "f32", "a matmul, Add, Softmax, a matmul", "a matmul, Add, Softmax, a matmul"),
        ("f32", "causal: true", "", "Attention", "Attention"),
    ];
    for (elements, attribute, mask, by_calls, by_matmuls) in rows {
        let of = |name: &str, default: &str| match attribute.split_once(": ") {
            Some((own, value)) if own == name => format!("{name}: {value}"),
            _ => format!("{name}: {default}"),
        };
        let fill =
            if attribute.starts_with("fill") { format!(", {attribute}") } else { String::new() };
        let (causal, softcap, guarded) =
            (of("causal", "false"), of("softcap", "0"), of("guarded", "false"));
        let (input, operand, y) = match mask {
            "" => (String::new(), "", 3),
            mask => (format!("%3 = Input : {mask}[b, 1, 1, s] \"mask\"\n"), ", %3", 4),
        };
        let heads = format!("{elements}[b, 2, s, 16]");
        let text = format!(
            "symbols b, s\n%0 = Input : {heads} \"q\"\n%1 = Input : {heads} \"k\"\n\
             %2 = Input : {heads} \"v\"\n{input}\
             %{y} = Attention(%0, %1, %2{operand}) {{scale: 0.25, {causal}, {softcap}, {guarded}{fill}}} : {heads} \"y\"\n\
             return \"y\" = %{y}\n"
        );
        for (by, expected) in [(AttentionBy::Calls, by_calls), (AttentionBy::MatMuls, by_matmuls)] {
            let (graph, target) = (graph(&text, &[]), "sm_90a".parse().unwrap());
            let planned = plan_library(&graph, &target, &Bindings::new(), None, by).unwrap();
            let program = planned.program;
            let found: Vec<String> =
                program.steps().iter().map(|step| kind(&program, step, &target)).collect();
            assert_eq!(found.join(", "), expected, "{by:?}: {text}");
        }
    }
}

/// A call by its library's word, or else the operations of a step.
fn kind(program: &Program, step: &Step, target: &Target) -> String {
    match (matmul(program, step, target), sdpa(program, step)) {
        (Some(_), _) => "a matmul".to_owned(),
        (_, Some(_)) => "attention".to_owned(),
        (None, None) => step.name.split(' ').next().unwrap().to_owned(),
    }
}

/// Operands that lie otherwise: one matrix for all, transposed, rows with gaps, and what no even distance says.
const LAYOUTS: &str = r#"
    symbols b, s
    %0 = Input : f32[b, s, 32] "x"
    %1 = Input : f32[32, b] "y"
    %2 = Input : f32[16, s] "left"
    %3 = Input : f32[b, 2, s, 8] "z"
    %4 = Input : f32[b, 1, 8, 16] "shared by heads"
    %5 = MatMul(%2, %0) : f32[b, 16, 32] "one A for all"
    %6 = Transpose(%1) {perm: [1, 0]} : f32[b, 32] "y turned"
    %7 = MatMul(%1, %6) : f32[32, 32] "B transposed"
    %8 = MatMul(%6, %7) : f32[b, 32] "A transposed"
    %9 = Slice(%0) {axes: [{axis: 2, start: 8, len: 16, step: 1}]} : f32[b, s, 16] "columns"
    %10 = MatMul(%9, %2) : f32[b, s, s] "rows with gaps"
    %11 = MatMul(%3, %4) : f32[b, 2, s, 16] "shared by some"
    %12 = Slice(%2) {axes: [{axis: 1, start: 0, len: s, step: 1}, {axis: 0, start: 15, len: 16, step: -1}]} : f32[16, s] "backwards"
    %13 = MatMul(%0, %7) : f32[b, s, 32] "read twice"
    %14 = Relu(%13) : f32[b, s, 32] "relu"
    %15 = Add(%13, %14) : f32[b, s, 32] "both"
    %16 = MatMul(%9, %12) : f32[b, s, s] "of what is backwards"
    return "a" = %5, "b" = %8, "c" = %10, "d" = %11, "e" = %15, "f" = %16
"#;

#[test]
fn operands_are_read_as_they_lie() {
    check_calls(
        &graph(LAYOUTS, &[]),
        None,
        &expect![[r#"
            MatMul: b × [16, s]·[s, 32] f32: in0[s]·in1[32, 32*s apart] -> out0[32, 512 apart]
            MatMul: [32, b]·[b, 32] f32: in0[b]·in1'[b] -> out0[32]
            MatMul: [b, 32]·[32, 32] f32: in0'[b]·in1[32] -> out0[32]
            MatMul: [b*s, 16]·[16, s] f32: in0+8[32]·in1[s] -> out0[s]
            MatMul
            MatMul: [b*s, 32]·[32, 32] f32: in0[32]·in1[32] -> out0[32]
            Relu
            Add
            Slice
            MatMul: [b*s, 16]·[16, s] f32: in0+8[32]·in1[s] -> out0[s]
        "#]],
    );
}

/// When a fused plan calls cuDNN for an LSTM of so many units, steps and sequences, of the type.
fn lstm_calls(units: i64, steps: &str, sequences: &str, dtype: &str) -> Option<When> {
    let text = r#"
        %0 = Input : T[steps, sequences, 24] "x"
        %1 = Input : T[1, gates, 24] "w"
        %2 = Input : T[1, gates, units] "r"
        %3 = Lstm(%0, %1, %2, _, _, _, _, _) {input_forget: false, direction: forward, hidden: units, activations: [Sigmoid, Tanh, Tanh], clip: none} : T[steps, 1, sequences, units], T[1, sequences, units], T[1, sequences, units] "layer"
        return "y" = %3
    "#;
    let sizes = [
        ("T[", format!("{dtype}[")),
        ("steps", steps.to_owned()),
        ("sequences", sequences.to_owned()),
        ("gates", (4 * units).to_string()),
        ("units", units.to_string()),
    ];
    let text = sizes.iter().fold(text.to_owned(), |text, (name, size)| text.replace(name, size));
    let symbols: Vec<&str> =
        [sequences, steps].into_iter().filter(|size| size.parse::<i64>().is_err()).collect();
    let text = match &symbols[..] {
        [] => text,
        symbols => format!("symbols {}\n{text}", symbols.join(", ")),
    };
    let target = "sm_90a".parse().unwrap();
    let bindings = Bindings::new();
    let planned =
        plan_in(&graph(&text, &[]), &target, Granularity::Fused, &bindings, None).unwrap();
    let mut variants = planned.program.steps().iter().flat_map(|step| step.variants.all());
    variants.find(|one| one.name == LIBRARY).map(|one| one.when.clone())
}

/// When a fused plan calls cuDNN for the logarithm of softmax in single precision of rows of so many columns.
fn softmax_calls(columns: &str, target: &str) -> Option<When> {
    let symbols = if columns == "V" { "V, b" } else { "b" };
    let text = format!(
        r#"
        symbols {symbols}
        %0 = Input : f32[b, {columns}] "x"
        %1 = LogSoftmax(%0) {{axis: 1}} : f32[b, {columns}] "y"
        return "y" = %1
    "#
    );
    let (target, bindings) = (target.parse().unwrap(), Bindings::new());
    let planned =
        plan_in(&graph(&text, &[]), &target, Granularity::Fused, &bindings, None).unwrap();
    let mut variants = planned.program.steps().iter().flat_map(|step| step.variants.all());
    variants.find(|one| one.name == LIBRARY).map(|one| one.when.clone())
}

#[test]
fn long_softmaxes_go_to_cudnn_unless_blocks_share_rows() {
    for (columns, target, expected) in [
        ("50257", "sm_90a", None),
        ("16385", "sm_120", None),
        ("50257", "sm_80", Some(When::Always)),
        // So much does not fit the shared memory of a cluster's blocks.
        ("1000003", "sm_90a", Some(When::Always)),
        ("V", "sm_90a", Some(When::AtLeast(Dim::symbol("V"), 1 << 14))),
        ("8192", "sm_80", None),
    ] {
        assert_eq!(softmax_calls(columns, target), expected, "{columns} {target}");
    }
}

/// When a fused plan calls cuBLASLt for `rows` rows by a matrix, and what follows it, in single precision on this target.
fn matmul_calls(
    rows: &str,
    [depth, columns]: [i64; 2],
    tail: &str,
    target: &Target,
) -> Option<When> {
    let symbols = if rows == "b" { "symbols b" } else { "" };
    let text = format!(
        r#"
        {symbols}
        %0 = Input : f32[{rows}, {depth}] "x"
        %1 = Input : f32[{depth}, {columns}] "w"
        %2 = MatMul(%0, %1) : f32[{rows}, {columns}] "product"
        %3 = {tail}(%2) : f32[{rows}, {columns}] "y"
        return "y" = %3
    "#
    );
    let bindings = Bindings::new();
    let planned = plan_in(&graph(&text, &[]), target, Granularity::Fused, &bindings, None).unwrap();
    let [step] = planned.program.steps() else { panic!("{}", planned.program) };
    let call = step.variants.library()?;
    Some(step.variants.all()[call].when.clone())
}

#[test]
fn few_rows_and_many_multiply_adds_of_single_precision_go_to_cublaslt() {
    let target: Target = "sm_90a".parse().unwrap();
    let rows = Dim::symbol("b");
    let calls = |rows: &str, sizes| matmul_calls(rows, sizes, "Relu", &target);
    assert_eq!(calls("1", [128, 128]), Some(When::Always));
    assert_eq!(calls("2", [128, 128]), None);
    assert_eq!(calls("16", [1536, 768]), None);
    assert_eq!(calls("16", [2048, 768]), Some(When::Always));
    assert_eq!(calls("1024", [768, 768]), Some(When::Always));
    assert_eq!(calls("512", [768, 768]), None);
    // However many columns: the depth is small.
    assert_eq!(calls("b", [128, 4096]), Some(When::AtMost(rows.clone(), 1)));
    let many = When::AtLeast(&rows * &Dim::from(4096), 1 << 19);
    assert_eq!(calls("b", [1024, 4096]), Some(When::Any(vec![When::AtMost(rows, 1), many])));
    // No epilogue of cuBLASLt's; and what matrix units multiply.
    assert_eq!(matmul_calls("2048", [768, 768], "Gelu", &target), None);
    assert_eq!(matmul_calls("2048", [768, 768], "Relu", &Target { tf32: true, ..target }), None);
}

/// Layers of one row are calls, each of them; of several rows, one launch.
#[test]
fn chains_of_one_row_are_planned_as_calls() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 128] "x"
        %1 = Input : f32[128, 128] "w"
        %2 = MatMul(%0, %1) : f32[b, 128] "first"
        %3 = Relu(%2) : f32[b, 128] "hidden"
        %4 = MatMul(%3, %1) : f32[b, 128] "second"
        return "y" = %4
    "#;
    let target = "sm_90a".parse().unwrap();
    for (rows, steps) in [(1, 2), (64, 1)] {
        let sizes = sizes(&[("b", rows)]);
        let planned =
            plan_in(&graph(text, &[]), &target, Granularity::Fused, &sizes, None).unwrap();
        assert_eq!(planned.program.steps().len(), steps, "{rows}: {}", planned.program);
    }
}

#[test]
fn few_sequences_of_several_steps_go_to_cudnn() {
    let [steps, sequences] = ["S", "B"].map(Dim::symbol);
    assert_eq!(lstm_calls(24, "7", "5", "f32"), None);
    assert_eq!(lstm_calls(24, "32", "5", "f32"), Some(When::Always));
    assert_eq!(lstm_calls(24, "32", "17", "f32"), None);
    assert_eq!(lstm_calls(24, "32", "17", "f16"), Some(When::Always));
    assert_eq!(lstm_calls(256, "16", "16", "f32"), Some(When::Always));
    assert_eq!(lstm_calls(256, "16", "16", "f16"), None);
    assert_eq!(lstm_calls(1024, "8", "B", "f32"), Some(When::AtMost(sequences.clone(), 64)));
    assert_eq!(lstm_calls(1024, "S", "1", "f16"), Some(When::AtLeast(steps.clone(), 16)));
    let both = [When::AtMost(sequences, 32), When::AtLeast(steps, 32)];
    assert_eq!(lstm_calls(256, "S", "B", "f16"), Some(When::All(both.to_vec())));
}
