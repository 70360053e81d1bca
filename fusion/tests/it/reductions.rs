//! Kernels of reductions, and of other functions of rows.

use crate::fixtures;
use crate::kernels::{TARGETS, check_text};
use graphene_fusion::groups::{Executor, Family};
use graphene_fusion::kernels::launches;
use graphene_ir::target::Target;

/// Checks the reduction of an input of this shape over these axes, to a result of this shape.
fn check_reduce(op: &str, dtype: &str, shape: &str, axes: &str, keep: bool, result: &str) {
    check_text(&format!(
        r#"
        symbols b, s
        %0 = Input : {dtype}[{shape}] "x"
        %1 = {op}(%0) {{axes: [{axes}], keep: {keep}}} : {dtype}[{result}] "y"
        return "y" = %1
    "#
    ));
}

#[test]
fn reductions_are_over_any_axes() {
    let all = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"];
    for op in all {
        check_reduce(op, "f32", "b, s, 24", "2", true, "b, s, 1");
        check_reduce(op, "f16", "b, s, 20", "1", false, "b, 20");
    }
    for (axes, result) in [
        ("0", "s, 6, 7"),
        ("1", "b, 6, 7"),
        ("2", "b, s, 7"),
        ("3", "b, s, 6"),
        ("0, 1", "6, 7"),
        ("1, 2", "b, 7"),
        ("2, 3", "b, s"),
        ("0, 2", "s, 7"),
        ("1, 3", "b, 6"),
        ("0, 1, 2, 3", ""),
    ] {
        check_reduce("ReduceSum", "f32", "b, s, 6, 7", axes, false, result);
        check_reduce("ReduceMax", "bf16", "b, s, 6, 7", axes, false, result);
    }
}

#[test]
fn reductions_take_what_is_before_and_after() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : f16[b, s, 40] "x"
        %1 = Input : f16[40] "weights"
        %2 = Input : f16[b, s, 1] "of rows"
        %3 = Mul(%0, %1) : f16[b, s, 40] "weighted"
        %4 = ReduceMean(%3) {axes: [2], keep: true} : f16[b, s, 1] "mean"
        %5 = Add(%4, %2) : f16[b, s, 1] "sum"
        %6 = Tanh(%5) : f16[b, s, 1] "tanh"
        return "y" = %6
    "#,
    );
}

#[test]
fn elements_meet_totals() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : f32[b, s, 36] "x"
        %1 = ReduceL1(%0) {axes: [2], keep: true} : f32[b, s, 1] "size"
        %2 = Div(%0, %1) : f32[b, s, 36] "normal"
        return "y" = %2
    "#,
    );
    check_text(
        r#"
        symbols b, s
        %0 = Input : f32[b, s] "x"
        %1 = ReduceMax(%0) {axes: [1], keep: true} : f32[b, 1] "most"
        %2 = ReduceMin(%0) {axes: [1], keep: true} : f32[b, 1] "least"
        %3 = Sub(%1, %2) : f32[b, 1] "range"
        %4 = Sub(%0, %2) : f32[b, s] "above"
        return "range" = %3, "above" = %4
    "#,
    );
}

#[test]
fn softmax_is_along_any_axis() {
    for log in ["Softmax", "LogSoftmax"] {
        check_text(
            &r#"
            symbols b, s
            %0 = Input : f32[b, s, 12] "x"
            %1 = Softmax(%0) {axis: 1} : f32[b, s, 12] "y"
            return "y" = %1
        "#
            .replace("Softmax", log),
        );
    }
}

#[test]
fn rows_of_models_have_kernels() {
    let names = ["bert-tiny", "bert-tiny-dynamo", "bert-tiny-opset13", "bert-tiny-sdpa"];
    let others = ["distilroberta-tiny", "fmha", "layernorm-17", "layernorm-decomposed", "lstm"];
    for fixture in names.into_iter().chain(others) {
        for name in TARGETS {
            let planned = fixtures::planned(fixture, name);
            let target: Target = name.parse().unwrap();
            let of_rows = [Family::Mlp, Family::Normalization, Family::Reduction, Family::Gather];
            for step in planned.program.steps() {
                if step.executor == Executor::Template && of_rows.contains(&step.family) {
                    let refusal = launches(&planned.program, step, &target).err();
                    assert_eq!(refusal, None, "{fixture} on {name}: {}", step.name);
                }
            }
        }
    }
}
