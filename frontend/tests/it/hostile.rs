//! Models that ask for too much work, nest too deeply, or are damaged at random: refused, and soon.

use crate::fixtures::folder;
use crate::model::{graph, imported, int, ints, model, node, subgraph, value, with};
use expect_test::{Expect, expect};
use graphene_frontend::import::{ImportOptions, NoExternalData, import};
use graphene_frontend::onnx::{FunctionProto, GraphProto, ModelProto, TensorProto};

fn check(model: &ModelProto, expected: &Expect) {
    let error = imported(model).expect_err("the model is bad");
    expected.assert_eq(&error.to_string());
}

#[test]
fn names() {
    let x = || value("x", 1, "2");
    let row = |nodes, outputs: &[&str]| model(graph(vec![x()], nodes, outputs));
    check(
        &row(vec![node("Relu", "x", "y"), node("Abs", "x", "y")], &["y"]),
        &expect!["`y` (Abs): the name `y` is given twice"],
    );
    check(
        &row(vec![node("Relu", "x", "x")], &["x"]),
        &expect!["`x` (Relu): nodes depend on each other: x"],
    );
    check(
        &model(graph(vec![x(), x()], vec![], &["x"])),
        &expect!["`x`: the name `x` is given twice"],
    );
    check(
        &row(vec![node("Relu", "z", "y")], &["y"]),
        &expect!["`y` (Relu): uses `z`, which nothing gives"],
    );
    check(&row(vec![], &["y"]), &expect!["`y`: nothing gives this output"]);
    check(&row(vec![], &["x", "x"]), &expect!["`x`: the name `x` is given twice"]);
    check(
        &row(vec![node("Add", "x b", "a"), node("Add", "x a", "b")], &["b"]),
        &expect!["`a` (Add): nodes depend on each other: a, b"],
    );
    let mut mixed = row(vec![node("Abs", "a", "y"), node("Relu", "x", "a")], &["y"]);
    assert!(imported(&mixed).is_ok(), "nodes are sorted");
    mixed.opset_import[0].version = 99;
    check(
        &mixed,
        &expect![
            "the model: asks for version 99 of the operator set `ai.onnx`, which is not known"
        ],
    );
}

#[test]
fn operands() {
    let x = || value("x", 1, "2 3");
    let row = |nodes, tensor: TensorProto| {
        let mut graph = graph(vec![x()], nodes, &["y"]);
        graph.initializer.push(tensor);
        model(graph)
    };
    let axes = |data: &[i64]| ints("c", &[data.len() as i64], data);
    check(
        &row(vec![node("Reshape", "x", "y")], axes(&[6])),
        &expect!["`y` (Reshape): input 1 is required"],
    );
    check(
        &row(vec![node("Reshape", "x c", "y")], axes(&[-1, -1])),
        &expect!["`y` (Reshape): more than one size is -1"],
    );
    check(
        &row(vec![node("Reshape", "x c", "y")], axes(&[5])),
        &expect!["`y` (Reshape): f32[2, 3] has not as many elements as [5]"],
    );
    check(
        &row(vec![node("Expand", "x c", "y")], axes(&[1 << 40, 1, 3])),
        &expect![
            "`y` (Expand): a tensor of type f32[1099511627776, 2, 3] has too many dims or elements"
        ],
    );
    check(
        &row(vec![node("Squeeze", "x c", "y")], axes(&[7])),
        &expect!["`y` (Squeeze): axis 7 does not fit 2 dims"],
    );
    check(
        &row(vec![with(node("Concat", "x x", "y"), int("axis", i64::MIN))], axes(&[])),
        &expect!["`y` (Concat): axis -9223372036854775808 does not fit 2 dims"],
    );
    check(
        &row(vec![node("Relu", "x", "y z")], axes(&[])),
        &expect!["`y` (Relu): names output 2, but its operator has 1 output"],
    );
    check(
        &row(vec![node("Tile", "x c", "y")], axes(&[i64::MAX, i64::MAX])),
        &expect![
            "`y` (Tile): a tensor of type f32[9223372036854775807, 2, 9223372036854775807, 3] has too many dims or elements"
        ],
    );
}

/// `If` within `If`, this deep.
fn nested(depth: usize) -> GraphProto {
    let mut inner = graph(vec![], vec![node("Relu", "x", "r")], &["r"]);
    for i in 0..depth {
        let name = format!("i{i}");
        let branches = node("If", "c", &name);
        let branches = with(branches, subgraph("then_branch", inner.clone()));
        let other = graph(vec![], vec![node("Abs", "x", "a")], &["a"]);
        inner = graph(vec![], vec![with(branches, subgraph("else_branch", other))], &[&name]);
    }
    inner.input = vec![value("x", 1, "2"), value("c", 9, "")];
    inner
}

#[test]
fn nesting() {
    assert!(imported(&model(nested(8))).is_ok());
    check(&model(nested(20)), &expect!["`i4` (If): functions or bodies nest too deeply"]);
    let error = imported(&model(nested(60))).unwrap_err().to_string();
    assert!(error.ends_with("recursion limit reached"), "{error}");
}

fn function(name: &str, nodes: Vec<graphene_frontend::onnx::NodeProto>) -> FunctionProto {
    FunctionProto {
        name: name.into(),
        domain: "f".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: nodes,
        ..Default::default()
    }
}

#[test]
fn functions() {
    let call = |name: &str, input: &str, output: &str| {
        let mut call = node(name, input, output);
        call.domain = "f".into();
        call
    };
    let main = |name| graph(vec![value("x", 1, "2")], vec![call(name, "x", "y")], &["y"]);
    let mut recursive = model(main("F"));
    recursive.functions.push(function("F", vec![call("F", "a", "b")]));
    check(&recursive, &expect!["`b` (F): functions or bodies nest too deeply"]);

    // Each function calls the next one twice, and the last does nothing.
    let mut wide = model(main("F0"));
    for i in 0..24 {
        let next = format!("F{}", i + 1);
        let nodes = vec![call(&next, "a", "t"), call(&next, "t", "b")];
        wide.functions.push(function(&format!("F{i}"), nodes));
    }
    wide.functions.push(function("F24", vec![node("Identity", "a", "b")]));
    let error = imported(&wide).unwrap_err().to_string();
    assert!(error.ends_with("the graph grows beyond 262144 nodes"), "{error}");
}

/// What breaks a file at random breaks no more than the import.
#[test]
fn damaged_files() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for name in ["fmha", "layernorm-17", "layernorm-decomposed", "lstm-cell-relu", "bert-tiny"] {
        let whole = std::fs::read(folder(name).join("model.onnx")).unwrap();
        let rounds = if name == "bert-tiny" { 300 } else { 1000 };
        for round in 0..rounds {
            let mut data = whole.clone();
            if round % 4 == 0 {
                data.truncate(random(whole.len()));
            }
            for _ in 0..=random(4) {
                // Headers and nodes are at both ends; most of the rest is weights.
                let ends = data.len().min(4096);
                let from_end = random(2) * data.len().saturating_sub(ends);
                if let Some(byte) = data.get_mut(from_end + random(ends.max(1))) {
                    *byte = random(256) as u8;
                }
            }
            let _ = import(data.into(), &NoExternalData, &ImportOptions::default());
        }
    }
}
