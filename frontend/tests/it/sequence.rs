//! Sequences dissolve at import, or are refused with a reason.

use crate::model::{bytes, graph, imported, int, ints, model, node, subgraph, value, with};
use expect_test::{Expect, expect};
use graphene_frontend::import::{ImportError, ImportOptions, NoExternalData, import};
use graphene_frontend::onnx::{GraphProto, ModelProto, NodeProto};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::text::print;

/// A graph of `a` and `b`, two vectors, and of a number `p`; constants are scalars.
fn with_scalars(constants: &[(&str, i64)], nodes: Vec<NodeProto>) -> ModelProto {
    let inputs = vec![value("a", 1, "n 3"), value("b", 1, "n 3"), value("p", 7, "")];
    let mut graph = graph(inputs, nodes, &["y"]);
    graph.initializer.extend(constants.iter().map(|(name, value)| ints(name, &[], &[*value])));
    model(graph)
}

fn check_refused(constants: &[(&str, i64)], nodes: Vec<NodeProto>, expected: &Expect) {
    let error = imported(&with_scalars(constants, nodes)).expect_err("it is refused");
    expected.assert_eq(&error.to_string());
}

fn build() -> NodeProto {
    node("SequenceConstruct", "a b", "s")
}

/// A body of a loop that appends the square of `e` to the list that it carries.
fn grow() -> GraphProto {
    let nodes = vec![
        node("Mul", "a a", "q"),
        node("SequenceInsert", "t q", "u"),
        node("Identity", "c", "go"),
    ];
    let inputs = vec![value("i", 7, ""), value("c", 9, ""), value("t", 1, "")];
    GraphProto { input: inputs, ..graph(vec![], nodes, &["go", "u"]) }
}

fn repeat(trips: &str) -> Vec<NodeProto> {
    vec![
        node("SequenceEmpty", "", "r"),
        with(node("Loop", &format!("{trips} _ r"), "s"), subgraph("body", grow())),
        with(node("ConcatFromSequence", "s", "y"), int("axis", 0)),
    ]
}

#[test]
fn nothing_of_a_sequence_is_left() {
    let nodes = vec![
        build(),
        node("SequenceInsert", "s a zero", "t"),
        node("SequenceErase", "t", "u"),
        with(node("ConcatFromSequence", "u", "y"), int("axis", 1)),
    ];
    let imported = imported(&with_scalars(&[("zero", 0)], nodes)).unwrap();
    expect![[r#"
        symbols n
        %0 = Input : f32[n, 3] "a"
        %1 = Input : f32[n, 3] "b"
        %2 = Input : i64[] "p"
        %3 = Concat(%0, %0) {axis: 1} : f32[n, 6] "y"
        return "y" = %3
    "#]]
    .assert_eq(&print(&imported.graph).text);
}

#[test]
fn a_list_that_a_loop_makes_is_written_out() {
    let imported = imported(&with_scalars(&[("two", 2)], repeat("two"))).unwrap();
    expect![[r#"
        symbols n
        %0 = Input : f32[n, 3] "a"
        %1 = Input : f32[n, 3] "b"
        %2 = Input : i64[] "p"
        %3 = Mul(%0, %0) : f32[n, 3] "q"
        %4 = Mul(%0, %0) : f32[n, 3] "q"
        %5 = Concat(%3, %4) {axis: 0} : f32[2*n, 3] "y"
        return "y" = %5
    "#]]
    .assert_eq(&print(&imported.graph).text);
}

/// A loop that runs as often as an input says needs its value, and is written out for it.
#[test]
fn how_often_a_loop_runs_is_asked_for() {
    let model = with_scalars(&[], repeat("p"));
    let Err(ImportError::Resists { inputs, op, .. }) = imported(&model) else {
        panic!("how long the list is depends on p")
    };
    assert_eq!((inputs, op), (vec!["p".to_owned()], "Loop".to_owned()));
    let mut options = ImportOptions::default();
    options.values.insert("p".to_owned(), Tensor::scalar(3_i64));
    let imported = import(bytes(&model), &NoExternalData, &options).unwrap();
    let (_, y) = imported.graph.outputs()[0];
    assert_eq!(imported.graph.ty(y).to_string(), "f32[3*n, 3]");
}

#[test]
fn sequences_that_stay_are_refused() {
    let rows: Vec<(Vec<NodeProto>, Expect)> = vec![
        (
            vec![node("SequenceConstruct", "a b", "y")],
            expect![[r#"
            1 part of the model is not supported:
              `y`: is a sequence: outputs are tensors here, so join its tensors (ConcatFromSequence) or make each an output (SequenceAt)"#]],
        ),
        (
            vec![build(), node("Relu", "s", "y")],
            expect![[r#"
            1 part of the model is not supported:
              `y` (Relu): its input `s` is a sequence"#]],
        ),
        (
            vec![node("SequenceLength", "a", "y")],
            expect!["`y` (SequenceLength): input 0 must be a sequence"],
        ),
        (
            vec![build(), node("SequenceAt", "s p", "y")],
            expect![
                "`y` (SequenceAt): a shape or a sequence depends on what is not known; the values of inputs p"
            ],
        ),
        (
            vec![build(), node("SequenceAt", "s nine", "y")],
            expect!["`y` (SequenceAt): position 9 is outside of a sequence of 2 elements"],
        ),
        (
            vec![build(), node("SequenceInsert", "s a nine", "y")],
            expect!["`y` (SequenceInsert): position 9 is outside of a sequence of 2 elements"],
        ),
        (
            vec![node("SequenceEmpty", "", "s"), node("SequenceErase", "s", "y")],
            expect!["`y` (SequenceErase): position -1 is outside of a sequence of 0 elements"],
        ),
        (
            vec![
                node("SequenceEmpty", "", "s"),
                with(node("ConcatFromSequence", "s", "y"), int("axis", 0)),
            ],
            expect!["`y` (ConcatFromSequence): the sequence is empty: there is nothing to join"],
        ),
        (
            vec![build(), node("ConcatFromSequence", "s", "y")],
            expect!["`y` (ConcatFromSequence): attribute `axis` is required"],
        ),
        (
            vec![node("SplitToSequence", "a p", "y")],
            expect![
                "`y` (SplitToSequence): a shape or a sequence depends on what is not known; the values of inputs p"
            ],
        ),
        (
            vec![node("SplitToSequence", "a zero", "y")],
            expect![
                "`y` (SplitToSequence): a shape or a sequence depends on what is not known; the sizes n"
            ],
        ),
        (
            vec![
                with(node("Cast", "p", "c"), int("to", 9)),
                with(
                    with(node("If", "c", "s"), subgraph("then_branch", listed())),
                    subgraph("else_branch", listed()),
                ),
                node("SequenceLength", "s", "y"),
            ],
            expect![[r#"
                1 part of the model is not supported:
                  `s` (If): an output of its body is a sequence: lists exist only where the model is written out at import"#]],
        ),
    ];
    for (nodes, expected) in rows {
        check_refused(&[("nine", 9), ("zero", 0)], nodes, &expected);
    }
}

/// A branch that gives a list.
fn listed() -> GraphProto {
    graph(vec![], vec![node("SequenceConstruct", "a b", "r")], &["r"])
}

/// Copies of a long list take memory that a small file may not ask for.
#[test]
fn long_lists_are_not_copied_without_end() {
    let mut nodes = vec![with(node("SplitToSequence", "x", "s0"), int("axis", 0))];
    for i in 0..4000 {
        nodes.push(node("SequenceInsert", &format!("s{i} x"), &format!("s{}", i + 1)));
    }
    nodes.push(node("SequenceLength", "s4000", "y"));
    let model = model(graph(vec![value("x", 1, "16000 1")], nodes, &["y"]));
    let error = imported(&model).expect_err("64 million elements");
    expect!["`s1975` (SequenceInsert): takes more memory to import than a model of its size may"]
        .assert_eq(&error.to_string());
}
