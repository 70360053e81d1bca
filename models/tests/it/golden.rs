//! The zoo's graphs against what torch 2.15's legacy exporter printed for the same models.
//!
//! The files have one line per node, constants aside: its operator, and for each operand the operator
//! that made it.

use std::collections::{BTreeMap, HashMap};

use graphene_frontend::onnx::{GraphProto, ModelProto};
use graphene_models::{Options, Source};

use crate::zoo;

/// One line per node as the golden files have them.
fn lines(model: &ModelProto) -> Vec<String> {
    let graph = model.graph.as_ref().unwrap();
    let made: HashMap<&str, &str> = graph
        .node
        .iter()
        .flat_map(|node| node.output.iter().map(|output| (output.as_str(), node.op_type.as_str())))
        .collect();
    let maker = |operand: &str| match operand {
        "" => "-",
        _ if graph.input.iter().any(|input| input.name == operand) => "input",
        _ => made.get(operand).copied().unwrap_or("weight"),
    };
    let computed = graph.node.iter().filter(|node| node.op_type != "Constant");
    computed
        .map(|node| {
            let operands = node.input.iter().map(|operand| maker(operand));
            std::iter::once(node.op_type.as_str()).chain(operands).collect::<Vec<_>>().join(" ")
        })
        .collect()
}

fn check_same(golden: &str, name: &str, options: &Options) {
    let built = lines(zoo(name, options).model());
    let expected: Vec<&str> = golden.lines().collect();
    let differ = built.iter().zip(&expected).position(|(built, expected)| built != expected);
    assert_eq!(differ, None, "{name}: line {differ:?} differs");
    assert_eq!(built.len(), expected.len(), "{name}");
}

#[test]
fn newer_encoders_are_node_by_node_what_the_exporter_prints() {
    let newer = Options { source: Source::Transformers5, ..Options::default() };
    check_same(include_str!("golden/bert-tiny.txt"), "bert-base-tiny", &newer);
    check_same(include_str!("golden/distilroberta-tiny.txt"), "distilroberta-tiny", &newer);
    let older_opset = Options { opset: 13, ..newer };
    check_same(include_str!("golden/bert-tiny-opset13.txt"), "bert-base-tiny", &older_opset);
}

#[test]
fn small_models_are_node_by_node_what_the_exporter_prints() {
    let options = Options::default();
    check_same(include_str!("golden/mlp-gelu-4x128.txt"), "mlp-gelu-4x128", &options);
    check_same(include_str!("golden/lstm.txt"), "lstm-tiny", &options);
    check_same(include_str!("golden/lstm-cell-relu.txt"), "lstm-cell-64", &options);
    check_same(include_str!("golden/fmha.txt"), "fmha-4x64", &options);
    check_same(include_str!("golden/layernorm-17.txt"), "layernorm-96", &options);
}

/// Operators that compute on activations, whichever source was traced.
const COMPUTING: &[&str] =
    &["MatMul", "Gemm", "Softmax", "Erf", "Tanh", "LayerNormalization", "Transpose"];

fn computing(lines: &[String]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in lines {
        let op = line.split(' ').next().unwrap();
        // Additions of a bias, a residual or a mask end in one of these.
        let add = line.starts_with("Add ") && (line.contains("MatMul") || line.ends_with("Norm"));
        if COMPUTING.contains(&op) || add {
            *counts.entry(op.to_owned()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn older_encoders_compute_with_the_same_operators() {
    let golden: Vec<String> =
        include_str!("golden/bert-tiny.txt").lines().map(str::to_owned).collect();
    let built = lines(zoo("bert-base-tiny", &Options::default()).model());
    let expected = computing(&golden);
    assert_eq!(expected["MatMul"], 16);
    assert_eq!(computing(&built), expected);
}

fn graph(name: &str, options: &Options) -> GraphProto {
    zoo(name, options).model().graph.clone().unwrap()
}

fn count(graph: &GraphProto, op: &str) -> usize {
    graph.node.iter().filter(|node| node.op_type == op).count()
}

#[test]
fn albert_uses_one_set_of_weights_in_every_layer() {
    let two = graph("albert-base-tiny", &Options::default());
    let five = graph("albert-base-tiny", &Options { layers: Some(5), ..Options::default() });
    assert_eq!(two.initializer.len(), five.initializer.len());
    assert_eq!((count(&two, "Softmax"), count(&five, "Softmax")), (2, 5));
    assert_eq!((count(&two, "Erf"), count(&two, "Tanh")), (0, 3));
}

#[test]
fn opsets_decide_which_operators_are_whole() {
    let at = |opset, decomposed_layer_norm| {
        let options = Options { opset, decomposed_layer_norm, ..Options::default() };
        let graph = graph("bert-base-tiny", &options);
        ["LayerNormalization", "ReduceMean", "Gelu", "Erf"].map(|op| count(&graph, op))
    };
    assert_eq!(at(11, false), [0, 10, 0, 2]);
    assert_eq!(at(16, false), [0, 10, 0, 2]);
    assert_eq!(at(17, false), [5, 0, 0, 2]);
    assert_eq!(at(17, true), [0, 10, 0, 2]);
    assert_eq!(at(20, false), [5, 0, 2, 0]);
}
