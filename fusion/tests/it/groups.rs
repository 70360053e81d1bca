//! What is grouped, and why not more: rows of small graphs.

use crate::{explained, graph, plan, planned, sizes};
use expect_test::{Expect, expect};
use graphene_frontend::dim::Bindings;
use graphene_frontend::graph::Graph;
use graphene_fusion::groups::{Family, Groups};
use graphene_ir::target::Target;

/// Launches as `Family Op+Op`, then the reasons for what is stored between them.
fn outline(graph: &Graph, target: &str) -> String {
    let groups = plan(graph, target, &sizes(&[("b", 8), ("s", 128)]));
    let mut text = String::new();
    for group in groups.groups().iter().filter(|group| group.family != Family::View) {
        let ops: Vec<_> = group.nodes.iter().map(|&id| graph.node(id).op().name()).collect();
        text += &format!("{} {}", group.family, ops.join("+"));
        text += "\n";
    }
    for boundary in groups.boundaries() {
        text += &format!("{} {}\n", boundary.value, boundary.reason);
    }
    text
}

/// The groups as text.
fn printed(graph: &Graph, target: &str, hints: &Bindings) -> String {
    let planned = planned(graph, target, hints);
    planned.groups.print(graph, &planned.program, &target.parse().unwrap(), hints)
}

#[track_caller]
fn check(text: &str, weights: &[&[usize]], target: &str, expected: Expect) {
    expected.assert_eq(&outline(&graph(text, weights), target));
}

#[track_caller]
fn check_both(text: &str, weights: &[&[usize]], expected: Expect) {
    let graph = graph(text, weights);
    let (cpu, gpu) = (outline(&graph, "cpu:2"), outline(&graph, "sm_90a"));
    assert_eq!(cpu, gpu);
    expected.assert_eq(&cpu);
}

/// A CPU reduces pixels with nothing before: what precedes the mean belongs to the convolution.
#[test]
fn pixels_are_reduced_alone_on_a_cpu() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 16, 8, 8] "x"
        %1 = Constant(@0 _) : f32[32, 16, 1, 1] "w"
        %2 = Conv(%0, %1) {strides: [1, 1], dilations: [1, 1], pads_before: [0, 0], pads_after: [0, 0], group: 1} : f32[b, 32, 8, 8] "conv"
        %3 = HardSwish(%2) : f32[b, 32, 8, 8] "activated"
        %4 = ReduceMean(%3) {axes: [2, 3], keep: true} : f32[b, 32, 1, 1] "mean"
        return "y" = %4
    "#;
    check(
        text,
        &[&[32, 16, 1, 1]],
        "cpu:2",
        expect![[r#"
        Convolution Conv+HardSwish
        Reduction ReduceMean
        %3 no template computes both Convolution and Reduction
    "#]],
    );
}

#[test]
fn matmuls_take_what_follows() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Input : f32[b, 64] "residual"
        %2 = Constant(@0 _) : f32[64, 64] "w"
        %3 = Constant(@1 _) : f32[64] "bias"
        %4 = MatMul(%0, %2) : f32[b, 64] "product"
        %5 = Add(%4, %3) : f32[b, 64] "biased"
        %6 = Gelu(%5) : f32[b, 64] "activated"
        %7 = Add(%6, %1) : f32[b, 64] "sum"
        return "y" = %7, "z" = %5
    "#;
    check_both(
        text,
        &[&[64, 64], &[64]],
        expect![[r#"
        MatMul MatMul+Add+Gelu+Add
    "#]],
    );
}

#[test]
fn matmuls_take_nothing_before() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Constant(@0 _) : f32[64, 64] "w"
        %2 = Relu(%0) : f32[b, 64] "before"
        %3 = MatMul(%2, %1) : f32[b, 64] "product"
        return "y" = %3
    "#;
    check_both(
        text,
        &[&[64, 64]],
        expect![[r#"
        Pointwise Relu
        MatMul MatMul
        %2 a MatMul launch takes nothing before it
    "#]],
    );
}

#[test]
fn matmuls_of_one_shape_share_a_launch() {
    // A recurrent cell; and two projections of one input, which is no sum.
    let text = r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Input : f32[b, 64] "h"
        %2 = Constant(@0 _) : f32[64, 64] "w"
        %3 = Constant(@1 _) : f32[64, 64] "u"
        %4 = MatMul(%0, %2) : f32[b, 64] "xw"
        %5 = MatMul(%1, %3) : f32[b, 64] "hu"
        %6 = Add(%4, %5) : f32[b, 64] "sum"
        %7 = Relu(%6) : f32[b, 64] "new"
        %8 = MatMul(%0, %3) : f32[b, 64] "xu"
        return "y" = %7, "z" = %8
    "#;
    let weights: &[&[usize]] = &[&[64, 64], &[64, 64]];
    let together = expect![[r#"
        MatMul MatMul+MatMul+Add+Relu+MatMul
    "#]];
    check(text, weights, "cpu:2", together);
    let apart = expect![[r#"
        MatMul MatMul+MatMul+Add+Relu
        MatMul MatMul
    "#]];
    check(text, weights, "sm_90a", apart);
}

const LAYERS: &str = r#"
    symbols b
    %0 = Input : f32[b, N] "x"
    %1 = Constant(@0 _) : f32[N, N] "w"
    %2 = Constant(@1 _) : f32[N, N] "v"
    %3 = MatMul(%0, %1) : f32[b, N] "first"
    %4 = Relu(%3) : f32[b, N] "hidden"
    %5 = MatMul(%4, %2) : f32[b, N] "second"
    %6 = Add(%5, %4) : f32[b, N] "sum"
    return "y" = %6
"#;

#[test]
fn layers_share_a_launch_while_they_fit() {
    let rows: [(usize, Expect); 3] = [
        (
            128,
            expect![[r#"
        MLP MatMul+Relu+MatMul+Add
    "#]],
        ),
        (
            512,
            expect![[r#"
        MatMul MatMul+Relu
        MatMul MatMul+Add
        %4 one launch would take longer
    "#]],
        ),
        (
            1024,
            expect![[r#"
        MatMul MatMul+Relu
        MatMul MatMul+Add
        %4 intermediates of 131072 bytes exceed the 65536 of a block
    "#]],
        ),
    ];
    for (width, expected) in rows {
        let text = LAYERS.replace('N', &width.to_string());
        check(&text, &[&[width, width], &[width, width]], "sm_90a", expected);
    }
}

#[test]
fn rows_take_expressions_before_and_after() {
    let text = r#"
        symbols b, s
        %0 = Input : f32[b, s, 64] "x"
        %1 = Input : f32[b, s, 64] "residual"
        %2 = Constant(@0 _) : f32[64] "scale"
        %3 = Add(%0, %1) : f32[b, s, 64] "sum"
        %4 = LayerNorm(%3, %2, %2) {axis: 2, epsilon: 0.00001} : f32[b, s, 64], f32[b, s, 1], f32[b, s, 1] "norm"
        return "y" = %4, "z" = %3
    "#;
    check_both(
        text,
        &[&[64]],
        expect![[r#"
        Normalization Add+LayerNorm
    "#]],
    );
}

#[test]
fn masked_softmax_is_one_launch() {
    let text = r#"
        symbols b, s
        %0 = Input : f32[b, 4, s, s] "scores"
        %1 = Input : f32[b, 1, 1, s] "mask"
        %2 = Constant(8) : f32[] "scale"
        %3 = Div(%0, %2) : f32[b, 4, s, s] "scaled"
        %4 = Add(%3, %1) : f32[b, 4, s, s] "masked"
        %5 = Softmax(%4) {axis: 3} : f32[b, 4, s, s] "weights"
        return "y" = %5
    "#;
    check_both(
        text,
        &[],
        expect![[r#"
        Normalization Div+Add+Softmax
    "#]],
    );
}

#[test]
fn norms_that_nobody_recognised_are_one_launch() {
    let text = r#"
        symbols b, s
        %0 = Input : f32[b, s, 64] "x"
        %1 = Constant(@0 _) : f32[64] "scale"
        %2 = Constant(0.00001) : f32[] "epsilon"
        %3 = Mul(%0, %0) : f32[b, s, 64] "squares"
        %4 = ReduceMean(%3) {axes: [2], keep: true} : f32[b, s, 1] "mean"
        %5 = Add(%4, %2) : f32[b, s, 1] "shifted"
        %6 = Sqrt(%5) : f32[b, s, 1] "root"
        %7 = Div(%0, %6) : f32[b, s, 64] "normed"
        %8 = Mul(%7, %1) : f32[b, s, 64] "y"
        return "y" = %8
    "#;
    check_both(
        text,
        &[&[64]],
        expect![[r#"
        Reduction Mul+ReduceMean+Add+Sqrt+Div+Mul
    "#]],
    );
}

#[test]
fn rows_of_several_shapes_stay_apart() {
    let text = r#"
        symbols b, s
        %0 = Input : f32[b, s, 64] "x"
        %1 = ReduceSum(%0) {axes: [2], keep: false} : f32[b, s] "inner"
        %2 = Exp(%1) : f32[b, s] "after"
        %3 = ReduceMax(%2) {axes: [1], keep: true} : f32[b, 1] "outer"
        %4 = Softmax(%0) {axis: 1} : f32[b, s, 64] "columns"
        return "y" = %3, "z" = %4
    "#;
    check_both(
        text,
        &[],
        expect![[r#"
        Reduction ReduceSum
        Reduction Exp+ReduceMax
        Normalization Softmax
        %1 the two have different shapes
    "#]],
    );
}

#[test]
fn embeddings_are_one_launch() {
    let text = r#"
        symbols b, s
        %0 = Input : i64[b, s] "ids"
        %1 = Input : i64[b, s] "types"
        %2 = Constant(@0 _) : f32[100, 64] "words"
        %3 = Constant(@1 _) : f32[2, 64] "kinds"
        %4 = Constant(@2 _) : f32[512, 64] "places"
        %5 = Constant(@3 _) : f32[64] "scale"
        %6 = Gather(%2, %0) {axis: 0} : f32[b, s, 64] "word"
        %7 = Gather(%3, %1) {axis: 0} : f32[b, s, 64] "kind"
        %8 = Add(%6, %7) : f32[b, s, 64] "sum"
        %9 = Slice(%4) {axes: [{axis: 0, start: 0, len: s, step: 1}]} : f32[s, 64] "place"
        %10 = Add(%8, %9) : f32[b, s, 64] "all"
        %11 = LayerNorm(%10, %5, %5) {axis: 2, epsilon: 0.00001} : f32[b, s, 64], f32[b, s, 1], f32[b, s, 1] "norm"
        return "y" = %11
    "#;
    check_both(
        text,
        &[&[100, 64], &[2, 64], &[512, 64], &[64]],
        expect![[r#"
        Gather Gather+Gather+Add+Add+LayerNorm
    "#]],
    );
}

#[test]
fn convolutions_take_what_follows() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 8, 32, 32] "x"
        %1 = Constant(@0 _) : f32[8, 8, 3, 3] "w"
        %2 = Conv(%0, %1) {strides: [1, 1], dilations: [1, 1], pads_before: [1, 1], pads_after: [1, 1], group: 1} : f32[b, 8, 32, 32] "conv"
        %3 = Relu(%2) : f32[b, 8, 32, 32] "activated"
        %4 = Add(%3, %0) : f32[b, 8, 32, 32] "sum"
        return "y" = %4
    "#;
    check_both(
        text,
        &[&[8, 8, 3, 3]],
        expect![[r#"
        Convolution Conv+Relu+Add
    "#]],
    );
}

#[test]
fn siblings_share_a_loop_and_views_part_loops() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Exp(%0) : f32[b, 64] "exp"
        %2 = Tanh(%0) : f32[b, 64] "tanh"
        %3 = Reshape(%2) {shape: [8*b, 8]} : f32[8*b, 8] "parts"
        %4 = Sqrt(%3) : f32[8*b, 8] "root"
        return "y" = %1, "z" = %4
    "#;
    check_both(
        text,
        &[],
        expect![[r#"
        Pointwise Exp+Tanh
        Pointwise Sqrt
        %2 a change of view stands between the two
    "#]],
    );
}

#[test]
fn waiting_for_each_other_is_refused() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Exp(%0) : f32[b, 64] "first"
        %2 = Softmax(%1) {axis: 0} : f32[b, 64] "between"
        %3 = Add(%1, %2) : f32[b, 64] "last"
        return "y" = %3
    "#;
    check_both(
        text,
        &[],
        expect![[r#"
            Pointwise Exp
            Normalization Softmax
            Pointwise Add
            %1 this Softmax is a launch of its own
            %1 fusing would make two groups wait for each other
            %2 this Softmax is a launch of its own
        "#]],
    );
}

#[test]
fn what_no_template_takes_is_by_the_reference() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Exp(%0) : f32[b, 64] "exp"
        %2 = TopK(%1) {k: 4, axis: 1, largest: true} : f32[b, 4], i64[b, 4] "top"
        return "y" = %2, "z" = %2.1
    "#;
    let graph = graph(text, &[]);
    let text = |target| printed(&graph, target, &sizes(&[("b", 8)]));
    expect![[r#"
        #0 Pointwise Exp (exp)
            launch: pointwise, 1 block of 256 threads; they request 2.0 kB and write 2.0 kB
            parameters: vector=4 threads=256
            estimate: memory reads 2.0 kB, writes 2.0 kB, 2.0 us by launch
            not fused with #1 (reads it): this TopK is a launch of its own
        #1 Reduction TopK (top) by the reference
            launch: no kernel: no template for TopK
            estimate: memory reads 2.0 kB, writes 384 B, 2.0 us by launch
            not fused with #0 (it reads): this TopK is a launch of its own
    "#]]
    .assert_eq(&text("sm_90a"));
    expect![[r#"
        #0 Pointwise Exp (exp)
            estimate: memory reads 2.0 kB, writes 2.0 kB, 5.2 us by launch
            not fused with #1 (reads it): this TopK is a launch of its own
        #1 Reduction TopK (top)
            estimate: memory reads 2.0 kB, writes 384 B, 5.1 us by launch
            not fused with #0 (it reads): this TopK is a launch of its own
    "#]]
    .assert_eq(&text("cpu:2"));
}

#[test]
fn explanations_weigh_what_could_be_fused() {
    // Layers that fit in a core's cache, with weights that do not.
    let width = 1024;
    let graph = graph(&LAYERS.replace('N', "1024"), &[&[width, width], &[width, width]]);
    for (rows, expected) in [
        (
            4096,
            expect![[r##"
                #0 MatMul MatMul+Relu (hidden)
                    estimate: memory reads 20.97 MB, again 12.58 MB, writes 16.78 MB, 45395.2 us by arithmetic
                    not fused with #1 (reads it): one launch would take longer
                #1 MatMul MatMul+Add (sum)
                    estimate: memory reads 20.97 MB, again 12.58 MB, writes 16.78 MB, 45395.2 us by arithmetic
                    not fused with #0 (it reads): one launch would take longer
                #0 -> #1  f32[b, 1024] "hidden" is stored: one launch would take longer; an estimate: one launch would lose 3665.0 us
            "##]],
        ),
        (
            64,
            expect![[r##"
                #0 MatMul MatMul+Relu (hidden)
                    estimate: memory reads 4.46 MB, writes 262.1 kB, 763.4 us by arithmetic
                    not fused with #1 (reads it): one launch would take longer
                #1 MatMul MatMul+Add (sum)
                    estimate: memory reads 4.46 MB, writes 262.1 kB, 763.4 us by arithmetic
                    not fused with #0 (it reads): one launch would take longer
                #0 -> #1  f32[b, 1024] "hidden" is stored: one launch would take longer; an estimate: one launch would lose 93.3 us
            "##]],
        ),
    ] {
        let hints = sizes(&[("b", rows)]);
        let groups = printed(&graph, "cpu:2", &hints);
        expected.assert_eq(&(groups + &explained(&graph, "cpu:2", &hints)));
    }
    // The sum could be computed with either matmul, but both with it have no launch.
    let text = r#"
        symbols b
        %0 = Input : f32[b, 512] "x"
        %1 = Input : f32[512, b] "z"
        %2 = Constant(@0 _) : f32[512, 512] "w"
        %3 = MatMul(%0, %2) : f32[b, 512] "product"
        %4 = Transpose(%3) {perm: [1, 0]} : f32[512, b] "turned"
        %5 = Add(%4, %1) : f32[512, b] "sum"
        %6 = MatMul(%2, %5) : f32[512, b] "again"
        %7 = Relu(%6) : f32[512, b] "activated"
        %8 = Softmax(%7) {axis: 0} : f32[512, b] "softmax"
        return "y" = %8
    "#;
    let graph = crate::graph(text, &[&[512, 512]]);
    expect![[r##"
        #0 -> #1  f32[b, 512] "product" is stored: a change of view stands between the two; an estimate: one launch would gain 2.2 us
        #1 -> #2  f32[512, b] "sum" is stored: a MatMul launch takes nothing before it; an estimate: one launch would gain 2.2 us
        #2 -> #3  f32[512, b] "activated" is stored: this Softmax is a launch of its own; an estimate: one launch would gain 2.1 us
    "##]]
    .assert_eq(&explained(&graph, "sm_90a", &sizes(&[])));
}

#[test]
fn tangles_are_planned_in_bounded_work() {
    // Sums of sums, that could be cut in any number of ways beside a matmul each.
    let mut text = "%0 = Input : f32[64, 64] \"x\"\n%1 = Exp(%0) : f32[64, 64] \"e\"\n".to_owned();
    for i in 2..600_usize {
        let (a, b) = (i - 1 - (i * 7 % 13).min(i - 1), i - 1 - (i * 5 % 11).min(i - 1));
        let op = if i % 9 == 0 { "MatMul" } else { "Add" };
        text += &format!("%{i} = {op}(%{a}, %{b}) : f32[64, 64] \"sum\"\n");
    }
    let graph = graph(&(text + "return \"y\" = %599\n"), &[]);
    let groups = plan(&graph, "sm_90a", &sizes(&[]));
    graphene_fusion::verify::groups(&graph, &groups).unwrap();
    assert!(!groups.notes().is_empty());
}

#[test]
fn copies_are_stated_and_weighed() {
    // Rows are read row-major, and a convolution's channels are not its innermost dim.
    let text = r#"
        symbols b
        %0 = Input : f32[b, 64, 16, 16] "x"
        %1 = Constant(@0 _) : f32[64] "scale"
        %2 = Transpose(%0) {perm: [0, 2, 3, 1]} : f32[b, 16, 16, 64] "turned"
        %3 = LayerNorm(%2, %1, %1) {axis: 3, epsilon: 0.00001} : f32[b, 16, 16, 64], f32[b, 16, 16, 1], f32[b, 16, 16, 1] "norm"
        return "y" = %3
    "#;
    let graph = graph(text, &[&[64]]);
    for (target, expected) in [
        (
            "cpu:2",
            expect![[r#"
                - View Transpose (turned)
                #0 Copy Transpose (turned) for #1
                #1 Normalization LayerNorm (norm): 2 launches from #0 on
                    estimate: memory reads 524.5 kB, copies 524.3 kB before, writes 524.3 kB, 116.2 us by memory
            "#]],
        ),
        (
            "sm_90a",
            expect![[r#"
                - View Transpose (turned)
                #0 Copy Transpose (turned) for #1
                    launch: transpose, 128 blocks of 128 threads; they request 524.3 kB and write 524.3 kB
                    parameters: load=4 store=4
                #1 Normalization LayerNorm (norm): 2 launches from #0 on
                    launch: rows, 256 blocks of 128 threads; they request 1.57 MB and write 524.3 kB
                    parameters: columns=64 vector=4 threads=16 teams=8 held=1 ahead=8 parts=1
                    estimate: memory reads 524.5 kB, copies 524.3 kB before, writes 524.3 kB, 4.5 us by launch
            "#]],
        ),
    ] {
        expected.assert_eq(&printed(&graph, target, &sizes(&[("b", 8)])));
    }
    // A merge of dims that do not lie side by side is a launch, not a view.
    let text = r#"
        symbols b
        %0 = Input : f32[b, 8, 16] "x"
        %1 = Transpose(%0) {perm: [0, 2, 1]} : f32[b, 16, 8] "turned"
        %2 = Reshape(%1) {shape: [b, 128]} : f32[b, 128] "merged"
        %3 = Exp(%2) : f32[b, 128] "exp"
        return "y" = %3
    "#;
    check_both(
        text,
        &[],
        expect![[r#"
            Copy Reshape
            Pointwise Exp
            %2 this Reshape moves elements, so it is no view
        "#]],
    );
}

#[test]
fn partitions_that_cannot_run_are_refused() {
    let text = r#"
        %0 = Input : f32[8] "x"
        %1 = Exp(%0) : f32[8] "first"
        %2 = Tanh(%1) : f32[8] "second"
        return "y" = %2
    "#;
    let graph = graph(text, &[]);
    let ids: Vec<_> = graph.nodes().map(|(id, _)| id).collect();
    let refused = |parts: &[&[usize]]| {
        let parts = parts.iter().map(|part| part.iter().map(|&i| ids[i]).collect());
        let parts = parts.map(|nodes| (Family::Pointwise, nodes)).collect();
        Groups::new(&graph, &Target::cpu(2), parts).err().map(|error| error.to_string())
    };
    let said = |text: &str| Some(text.to_owned());
    assert_eq!(refused(&[&[1, 2]]), None);
    assert_eq!(refused(&[&[1], &[2]]), None);
    assert_eq!(refused(&[&[2], &[1]]), said("node \"second\" reads \"first\" before it is made"));
    assert_eq!(refused(&[&[1, 2], &[1]]), said("node \"first\" is computed twice"));
    assert_eq!(refused(&[&[1]]), said("node \"second\" is in no group"));
}
