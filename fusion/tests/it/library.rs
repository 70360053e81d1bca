//! What the library computes in one call where every operation is a launch.

use crate::fixtures::imported;
use crate::graph;
use expect_test::{Expect, expect};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_fusion::library::product;
use graphene_fusion::{Granularity, plan_in, verify};

/// A line a step: its call, or its family.
fn check_calls(graph: &Graph, elements: Option<DType>, expected: &Expect) {
    let target = "sm_90a".parse().unwrap();
    let planned = plan_in(graph, &target, Granularity::PerOp, &Bindings::new(), elements).unwrap();
    verify::groups(&planned.graph, &planned.groups).unwrap();
    verify::program(&planned.program).unwrap();
    let mut text = String::new();
    for step in planned.program.steps() {
        let ops = step.name.split(' ').next().unwrap();
        match product(&planned.program, step) {
            Some(product) => text += &format!("{ops}: {product}\n"),
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
    %6 = Constant(@4 _) : f32[] "root"
    %7 = Constant(@5 _) : f32[128, 32] "up"
    %8 = Constant(@6 _) : f32[128] "up bias"
    %9 = Constant(@7 _) : f32[32, 128] "down"
    %10 = MatMul(%0, %2) : f32[b, s, 96] "qkv"
    %11 = Add(%10, %3) : f32[b, s, 96] "biased"
    %12 = Slice(%11) {axes: [{axis: 2, start: 0, len: 32, step: 1}]} : f32[b, s, 32] "q"
    %13 = Slice(%11) {axes: [{axis: 2, start: 32, len: 32, step: 1}]} : f32[b, s, 32] "k"
    %14 = Slice(%11) {axes: [{axis: 2, start: 64, len: 32, step: 1}]} : f32[b, s, 32] "v"
    %15 = Reshape(%12) {shape: [b, s, 4, 8]} : f32[b, s, 4, 8] "q heads"
    %16 = Reshape(%13) {shape: [b, s, 4, 8]} : f32[b, s, 4, 8] "k heads"
    %17 = Reshape(%14) {shape: [b, s, 4, 8]} : f32[b, s, 4, 8] "v heads"
    %18 = Transpose(%15) {perm: [0, 2, 1, 3]} : f32[b, 4, s, 8] "q turned"
    %19 = Transpose(%16) {perm: [0, 2, 3, 1]} : f32[b, 4, 8, s] "k turned"
    %20 = Transpose(%17) {perm: [0, 2, 1, 3]} : f32[b, 4, s, 8] "v turned"
    %21 = MatMul(%18, %19) : f32[b, 4, s, s] "products"
    %22 = Mul(%21, %6) : f32[b, 4, s, s] "scores"
    %23 = Add(%22, %1) : f32[b, 4, s, s] "masked"
    %24 = Softmax(%23) {axis: 3} : f32[b, 4, s, s] "weights"
    %25 = MatMul(%24, %20) : f32[b, 4, s, 8] "mixed"
    %26 = Transpose(%25) {perm: [0, 2, 1, 3]} : f32[b, s, 4, 8] "turned back"
    %27 = Reshape(%26) {shape: [b, s, 32]} : f32[b, s, 32] "merged"
    %28 = MatMul(%27, %4) : f32[b, s, 32] "projected"
    %29 = Add(%5, %28) : f32[b, s, 32] "projected, biased"
    %30 = Add(%0, %29) : f32[b, s, 32] "residual"
    %31 = Transpose(%7) {perm: [1, 0]} : f32[32, 128] "up turned"
    %32 = MatMul(%30, %31) : f32[b, s, 128] "wide"
    %33 = Add(%32, %8) : f32[b, s, 128] "wide, biased"
    %34 = GeluTanh(%33) : f32[b, s, 128] "gelu"
    %35 = Transpose(%9) {perm: [1, 0]} : f32[128, 32] "down turned"
    %36 = MatMul(%34, %35) : f32[b, s, 32] "narrow"
    %37 = Add(%36, %30) : f32[b, s, 32] "out"
    %38 = Relu(%37) : f32[b, s, 32] "y"
    return "y" = %38
"#;

#[test]
fn calls_take_bias_residual_and_activation_along() {
    let weights: &[&[usize]] =
        &[&[32, 96], &[96], &[32, 32], &[32], &[], &[128, 32], &[128], &[32, 128]];
    check_calls(
        &graph(GPT, weights),
        Some(DType::F16),
        &expect![[r#"
        Cast
        Cast
        MatMul+Add: [b*s, 32]·[32, 96] f16: in0[32]·in1[96] + in2 row -> out0[96]
        Transpose
        Transpose
        Transpose
        MatMul+Mul: 4*b × [s, 8]·[8, s] f16: 0·in0[8, 8*s apart]·in1'[8, 8*s apart] -> out0[s, s*s apart]
        Add
        Softmax
        MatMul: 4*b × [s, s]·[s, 8] f16: in0[s, s*s apart]·in1[8, 8*s apart] -> out0[8, 8*s apart]
        Transpose
        MatMul+Add+Add: [b*s, 32]·[32, 32] f16: in0[32]·in1[32] + in3[32] + in2 row -> out0[32]
        MatMul+Add+GeluTanh: [b*s, 32]·[32, 128] f16: in0[32]·in1'[32] + in2 row, GeluTanh -> out0[128]
        MatMul+Add+Relu: [b*s, 128]·[128, 32] f16: in0[128]·in1'[128] + in2[32], Relu -> out0[32]
        Cast
    "#]],
    );
}

#[test]
fn an_encoder_is_products_and_the_rest() {
    check_calls(
        &imported("bert-tiny"),
        None,
        &expect![[r#"
        Gather
        Gather
        Add
        Slice
        Add
        LayerNorm
        Cast
        Expand
        Select
        MatMul+Add: [batch*sequence, 64]·[64, 64] f32: in0[64]·in1[64] + in2 row -> out0[64]
        Transpose
        MatMul+Add: [batch*sequence, 64]·[64, 64] f32: in0[64]·in1[64] + in2 row -> out0[64]
        MatMul+Add: [batch*sequence, 64]·[64, 64] f32: in0[64]·in1[64] + in2 row -> out0[64]
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
        Div
        Erf
        Add
        Mul
        Mul
        MatMul+Add+Add: [batch*sequence, 128]·[128, 64] f32: in0[128]·in1[64] + in3[64] + in2 row -> out0[64]
        LayerNorm
        MatMul+Add: [batch*sequence, 64]·[64, 64] f32: in0[64]·in1[64] + in2 row -> out0[64]
        Transpose
        MatMul+Add: [batch*sequence, 64]·[64, 64] f32: in0[64]·in1[64] + in2 row -> out0[64]
        MatMul+Add: [batch*sequence, 64]·[64, 64] f32: in0[64]·in1[64] + in2 row -> out0[64]
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
        Div
        Erf
        Add
        Mul
        Mul
        MatMul+Add+Add: [batch*sequence, 128]·[128, 64] f32: in0[128]·in1[64] + in3[64] + in2 row -> out0[64]
        LayerNorm
        MatMul+Add: [batch, 64]·[64, 64] f32: in0[64*sequence]·in1[64] + in2 row -> out0[64]
        Tanh
    "#]],
    );
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
            Slice
            MatMul: [b*s, 32]·[32, 32] f32: in0[32]·in1[32] -> out0[32]
            Relu
            Add
            MatMul: [b*s, 16]·[16, s] f32: in0+8[32]·in1[s] -> out0[s]
        "#]],
    );
}
