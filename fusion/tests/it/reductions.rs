//! Kernels of reductions, and of other functions of rows.

use crate::fixtures;
use crate::kernels::{TARGETS, check_text, elements, numbers, tensor};
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::text::parse;
use graphene_fusion::groups::{Executor, Family};
use graphene_fusion::kernels::launches;
use graphene_fusion::{Granularity, plan};
use graphene_ir::emit::emit;
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

/// Checks a reduction on sm_90a: the blocks that each of its launches has when it is emitted, and that what is planned
/// gives the reduction's values, to so many units of single precision.
fn check_blocks(op: &str, of: &str, axes: &str, to: &str, keep: bool, blocks: &[i64], units: f64) {
    let text = format!(
        r#"
        %0 = Input : {of} "x"
        %1 = {op}(%0) {{axes: [{axes}], keep: {keep}}} : {to} "y"
        return "y" = %1
    "#
    );
    let graph = parse(&text, &[]).unwrap();
    let target: Target = "sm_90a".parse().unwrap();
    let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
    let mut found = Vec::new();
    for step in planned.program.steps() {
        let [launch] = &launches(&planned.program, step, &target).unwrap()[..] else {
            panic!("{text}: variants of a reduction");
        };
        let symbols = &launch.kernel.symbols;
        let value = |var: &graphene_ir::index::Var| {
            let place = symbols.iter().position(|symbol| symbol == var)?;
            launch.symbols[place].known()
        };
        found.push(emit(&launch.kernel).unwrap().launch.grid.value(&value).unwrap());
    }
    assert_eq!(found, blocks, "{text}");
    let (_, ty) = (graph.inputs()[0], &graph.node(graph.inputs()[0]).outputs()[0]);
    let shape: Vec<usize> =
        ty.shape.iter().filter_map(Dim::known).map(|size| size as usize).collect();
    let x = elements(ty.dtype, shape.iter().product(), 1);
    let x = [tensor(ty.dtype, shape, &x)];
    let given = |graph| numbers(&evaluate_with(graph, &x, &Bindings::new()).unwrap()[0]);
    for (one, two) in given(&graph).into_iter().zip(given(&planned.graph)) {
        let error = (one - two).abs();
        assert!(error <= units * one.abs() * 2.0_f64.powi(-23), "{text}: {two} for {one}");
    }
}

#[test]
fn long_reductions_of_few_results_are_two_launches() {
    // Sums of multiples of 1/64 below 2 are exact, of so few; so are all but a mean's quotients and roots.
    let long = "f32[2, 262144]";
    check_blocks("ReduceSum", long, "1", "f32[2, 1]", true, &[128, 1], 0.0);
    check_blocks("ReduceMax", "f32[1, 1048576]", "1", "f32[1]", false, &[256, 1], 0.0);
    check_blocks("ReduceMin", "bf16[512, 512]", "0, 1", "bf16[]", false, &[32, 1], 0.0);
    check_blocks("ReduceSum", "f16[3, 1048576]", "1", "f16[3]", false, &[192, 1], 0.0);
    check_blocks("ReduceMean", long, "1", "f32[2]", false, &[128, 1], 4.0);
    check_blocks("ReduceL1", long, "1", "f32[2]", false, &[128, 1], 0.0);
    check_blocks("ReduceL2", long, "1", "f32[2]", false, &[128, 1], 64.0);
    check_blocks("ReduceLogSumExp", long, "1", "f32[2]", false, &[128, 1], 64.0);
    // Columns: a block has those of 32 threads.
    check_blocks("ReduceSum", "f32[16384, 128]", "0", "f32[128]", false, &[256, 4], 0.0);
    // Many results, short rows, a length without divisors.
    check_blocks("ReduceSum", "f32[512, 65536]", "1", "f32[512]", false, &[512], 0.0);
    check_blocks("ReduceSum", "f32[2, 4096]", "1", "f32[2]", false, &[2], 0.0);
    check_blocks("ReduceMax", "f32[1, 262147]", "1", "f32[1]", false, &[1], 0.0);
}

/// Of elements of eight bytes a thread has one column where blocks are few.
#[test]
fn reductions_of_wide_elements_are_planned() {
    for dtype in ["i64", "f64"] {
        let text = format!(
            r#"
            %0 = Input : {dtype}[8, 1000] "x"
            %1 = ReduceSum(%0) {{axes: [0], keep: false}} : {dtype}[1000] "y"
            return "y" = %1
        "#
        );
        let (graph, target) = (parse(&text, &[]).unwrap(), "sm_90a".parse().unwrap());
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let mut steps = planned.program.steps().iter();
        assert!(steps.any(|step| step.family == Family::Reduction), "{}", planned.program);
    }
}

/// Of symbols rows are reduced first, then their results; a sum of squares is summed, and a logarithm of a sum is not split. Strides
/// of axes of one element are no symbols, which would have to be multiples of a vector.
#[test]
fn reductions_of_symbols_are_split_by_rows() {
    for (op, expected) in [
        ("ReduceSum", 2),
        ("ReduceSumSquare", 2),
        ("ReduceMean", 2),
        ("ReduceMin", 2),
        ("ReduceL2", 2),
        ("ReduceLogSum", 1),
    ] {
        let text = format!(
            r#"
            symbols b
            %0 = Input : f32[b, 128, 256] "x"
            %1 = Abs(%0) : f32[b, 128, 256] "positive"
            %2 = {op}(%1) {{axes: [0, 1, 2], keep: false}} : f32[] "y"
            return "y" = %2
        "#
        );
        check_text(&text);
        let (graph, target) = (parse(&text, &[]).unwrap(), "sm_90a".parse().unwrap());
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let steps = planned.program.steps();
        let reductions = steps.iter().filter(|step| step.family == Family::Reduction);
        assert_eq!(reductions.count(), expected, "{}", planned.program);
        let inputs = [tensor(DType::F32, vec![2, 128, 256], &elements(DType::F32, 65536, 1))];
        let bindings = crate::sizes(&[("b", 2)]);
        let of = |graph| numbers(&evaluate_with(graph, &inputs, &bindings).unwrap()[0])[0];
        let (found, wanted) = (of(&planned.graph), of(&graph));
        assert!((found - wanted).abs() <= 1e-5 * wanted.abs(), "{op}: {found}, not {wanted}");
        for launch in
            steps.iter().flat_map(|step| launches(&planned.program, step, &target)).flatten()
        {
            let strides =
                launch.kernel.symbols.iter().filter(|symbol| symbol.name().contains("stride"));
            assert_eq!(strides.count(), 0, "{}", launch.kernel);
        }
    }
}
