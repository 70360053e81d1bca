//! Small graphs as exporters spell them, rewritten and planned: how many launches of which families they take.

use crate::{graph, sizes};
use graphene_fusion::groups::Family::{self, Copy, Fmha, MatMul, Mlp, Pointwise};
use graphene_fusion::{Granularity, plan};

const TARGETS: [&str; 3] = ["cpu:2", "sm_80", "sm_90a"];

#[track_caller]
fn check(text: &str, weights: &[&[usize]], hints: &[(&str, i64)], expected: &[Family]) {
    check_each(text, weights, hints, [expected; 2]);
}

/// The families of a plan for a CPU, and of those for GPUs.
fn check_each(text: &str, weights: &[&[usize]], hints: &[(&str, i64)], [cpu, gpu]: [&[Family]; 2]) {
    let graph = graph(text, weights);
    for name in TARGETS {
        let target = name.parse().unwrap();
        let expected = if name.starts_with("cpu") { cpu } else { gpu };
        let planned = plan(&graph, &target, Granularity::Fused, &sizes(hints)).unwrap();
        let families: Vec<Family> = planned.program.steps().iter().map(|s| s.family).collect();
        assert_eq!(families, expected, "{target}\n{}", planned.program);
    }
}

#[test]
fn heads_merged_with_the_batch_are_read_in_place() {
    // As `nn.MultiheadAttention` has them, the sequence first.
    let text = r#"
        symbols b, s
        %0 = Input : f32[b, s, 64] "x"
        %1 = Constant(@0 _) : f32[64, 192] "w"
        %2 = Constant(@1 _) : f32[192] "bias"
        %3 = Constant(@2 _) : f32[64, 64] "wo"
        %4 = Constant(0.25) : f32[] "scale"
        %5 = Transpose(%0) {perm: [1, 0, 2]} : f32[s, b, 64] "sequence first"
        %6 = MatMul(%5, %1) : f32[s, b, 192] "qkv"
        %7 = Add(%6, %2) : f32[s, b, 192] "biased"
        %8 = Reshape(%7) {shape: [s, b, 3, 64]} : f32[s, b, 3, 64] "parts"
        %9 = Transpose(%8) {perm: [2, 0, 1, 3]} : f32[3, s, b, 64] "parts first"
        %10 = Slice(%9) {axes: [{axis: 0, start: 0, len: 1, step: 1}]} : f32[1, s, b, 64] "q"
        %11 = Slice(%9) {axes: [{axis: 0, start: 1, len: 1, step: 1}]} : f32[1, s, b, 64] "k"
        %12 = Slice(%9) {axes: [{axis: 0, start: 2, len: 1, step: 1}]} : f32[1, s, b, 64] "v"
        %13 = Reshape(%10) {shape: [s, 4*b, 16]} : f32[s, 4*b, 16] "q heads"
        %14 = Reshape(%11) {shape: [s, 4*b, 16]} : f32[s, 4*b, 16] "k heads"
        %15 = Reshape(%12) {shape: [s, 4*b, 16]} : f32[s, 4*b, 16] "v heads"
        %16 = Transpose(%13) {perm: [1, 0, 2]} : f32[4*b, s, 16] "q turned"
        %17 = Transpose(%14) {perm: [1, 2, 0]} : f32[4*b, 16, s] "k turned"
        %18 = Transpose(%15) {perm: [1, 0, 2]} : f32[4*b, s, 16] "v turned"
        %19 = MatMul(%16, %17) : f32[4*b, s, s] "scores"
        %20 = Mul(%19, %4) : f32[4*b, s, s] "scaled"
        %21 = Softmax(%20) {axis: 2} : f32[4*b, s, s] "weights"
        %22 = MatMul(%21, %18) : f32[4*b, s, 16] "attention"
        %23 = Transpose(%22) {perm: [1, 0, 2]} : f32[s, 4*b, 16] "turned back"
        %24 = Reshape(%23) {shape: [b*s, 64]} : f32[b*s, 64] "merged"
        %25 = MatMul(%24, %3) : f32[b*s, 64] "product"
        %26 = Constant(@3 _) : f32[64] "output bias"
        %27 = Add(%25, %26) : f32[b*s, 64] "projected"
        %28 = Reshape(%27) {shape: [s, b, 64]} : f32[s, b, 64] "rows"
        %29 = Transpose(%28) {perm: [1, 0, 2]} : f32[b, s, 64] "batch first"
        return "y" = %29
    "#;
    let weights: &[&[usize]] = &[&[64, 192], &[192], &[64, 64], &[64]];
    for hints in [&[("b", 2), ("s", 7)], &[("b", 32), ("s", 128)]] {
        // Of a GPU's matmuls rows go on evenly.
        let gpu = [Copy, MatMul, Fmha, MatMul, Copy];
        check_each(text, weights, hints, [&[MatMul, Fmha, MatMul], &gpu]);
    }
}

#[test]
fn attention_without_a_batch_copies_nothing() {
    let text = r#"
        symbols s
        %0 = Input : f32[s, 64] "x"
        %1 = Constant(@0 _) : f32[64, 192] "w"
        %2 = Constant(@1 _) : f32[64, 64] "wo"
        %3 = MatMul(%0, %1) : f32[s, 192] "qkv"
        %4 = Slice(%3) {axes: [{axis: 1, start: 0, len: 64, step: 1}]} : f32[s, 64] "q"
        %5 = Slice(%3) {axes: [{axis: 1, start: 64, len: 64, step: 1}]} : f32[s, 64] "k"
        %6 = Slice(%3) {axes: [{axis: 1, start: 128, len: 64, step: 1}]} : f32[s, 64] "v"
        %7 = Reshape(%4) {shape: [s, 4, 16]} : f32[s, 4, 16] "q heads"
        %8 = Reshape(%5) {shape: [s, 4, 16]} : f32[s, 4, 16] "k heads"
        %9 = Reshape(%6) {shape: [s, 4, 16]} : f32[s, 4, 16] "v heads"
        %10 = Transpose(%7) {perm: [1, 0, 2]} : f32[4, s, 16] "q turned"
        %11 = Transpose(%8) {perm: [1, 2, 0]} : f32[4, 16, s] "k turned"
        %12 = Transpose(%9) {perm: [1, 0, 2]} : f32[4, s, 16] "v turned"
        %13 = MatMul(%10, %11) : f32[4, s, s] "scores"
        %14 = Softmax(%13) {axis: 2} : f32[4, s, s] "weights"
        %15 = MatMul(%14, %12) : f32[4, s, 16] "attention"
        %16 = Transpose(%15) {perm: [1, 0, 2]} : f32[s, 4, 16] "turned back"
        %17 = Reshape(%16) {shape: [s, 64]} : f32[s, 64] "merged"
        %18 = MatMul(%17, %2) : f32[s, 64] "projected"
        return "y" = %18
    "#;
    check(text, &[&[64, 192], &[64, 64]], &[("s", 64)], &[MatMul, Fmha, MatMul]);
}

#[test]
fn a_pooler_is_one_launch() {
    let text = r#"
        symbols b, s
        %0 = Input : f32[b, s, 64] "x"
        %1 = Constant(@0 _) : f32[64, 64] "w"
        %2 = Constant(@1 _) : f32[64] "bias"
        %3 = Slice(%0) {axes: [{axis: 1, start: 0, len: 1, step: 1}]} : f32[b, 1, 64] "first"
        %4 = Reshape(%3) {shape: [b, 64]} : f32[b, 64] "token"
        %5 = MatMul(%4, %1) : f32[b, 64] "product"
        %6 = Add(%5, %2) : f32[b, 64] "biased"
        %7 = Tanh(%6) : f32[b, 64] "pooled"
        return "y" = %7
    "#;
    for b in [1, 2, 8] {
        check(text, &[&[64, 64], &[64]], &[("b", b), ("s", 16)], &[MatMul]);
    }
}

#[test]
fn masks_are_one_launch() {
    let text = r#"
        symbols b, s
        %0 = Input : i64[b, s] "mask"
        %1 = Constant(1.0) : f32[] "one"
        %2 = Constant(-3.4028235e38) : f32[] "lowest"
        %3 = Reshape(%0) {shape: [b, 1, 1, s]} : i64[b, 1, 1, s] "wide"
        %4 = Cast(%3) {to: f32, saturate: true} : f32[b, 1, 1, s] "numbers"
        %5 = Sub(%1, %4) : f32[b, 1, 1, s] "absent"
        %6 = Mul(%5, %2) : f32[b, 1, 1, s] "bias"
        return "y" = %6
    "#;
    for hints in [&[("b", 3), ("s", 5)], &[("b", 32), ("s", 16)]] {
        check(text, &[], hints, &[Pointwise]);
    }
}

/// A chain of layers of 64.
fn layers(count: usize) -> String {
    let mut text = "symbols b\n%0 = Input : f32[b, 64] \"x\"\n".to_owned();
    text += "%1 = Constant(@0 _) : f32[64, 64] \"w\"\n%2 = Constant(@1 _) : f32[64] \"bias\"\n";
    for layer in 0..count {
        let (x, i) = (if layer == 0 { 0 } else { 2 + 3 * layer }, 3 + 3 * layer);
        text += &format!("%{i} = MatMul(%{x}, %1) : f32[b, 64] \"product\"\n");
        text += &format!("%{} = Add(%{i}, %2) : f32[b, 64] \"biased\"\n", i + 1);
        text += &format!("%{} = Relu(%{}) : f32[b, 64] \"layer {layer}\"\n", i + 2, i + 1);
    }
    text + &format!("return \"y\" = %{}\n", 2 + 3 * count)
}

#[test]
fn long_chains_of_layers_are_one_launch() {
    let weights: &[&[usize]] = &[&[64, 64], &[64]];
    for count in [21, 22, 30, 42] {
        check(&layers(count), weights, &[("b", 8)], &[Mlp]);
    }
    // Longer ones are not, and the plan says so.
    let graph = graph(&layers(60), weights);
    let groups = crate::plan(&graph, "sm_90a", &sizes(&[("b", 8)]));
    let notes: Vec<String> = groups.notes().iter().map(ToString::to_string).collect();
    let apart = "note: a group spans at most 128 operations: values stored for that: 1";
    assert!(notes.iter().any(|note| note == apart), "{notes:?}");
}
