//! What is said about models and tensors that are not as they should be: never a panic, always the place.

use bytes::Bytes;
use expect_test::{Expect, expect};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate;
use graphene_frontend::import::{
    ExternalData, ImportOptions, ModelFolder, NoExternalData, Reading, import, read_model,
};
use graphene_frontend::onnx::{
    AttributeProto, AttributeType, DataLocation, Dimension, DimensionValue, FunctionProto,
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};
use graphene_frontend::tensor::Tensor;
use prost::Message;

const F32: i32 = 1;
const I64: i32 = 7;
const BOOL: i32 = 9;

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: op.into(),
        input: inputs.iter().map(|&name| name.into()).collect(),
        output: outputs.iter().map(|&name| name.into()).collect(),
        ..Default::default()
    }
}

fn input(name: &str, elem_type: i32, dims: &[i64]) -> ValueInfoProto {
    let dim = |&size: &i64| Dimension { value: Some(DimensionValue::DimValue(size)) };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let ty = TensorTypeProto { elem_type, shape };
    let r#type = Some(TypeProto { value: Some(TypeValue::TensorType(ty)) });
    ValueInfoProto { name: name.into(), r#type }
}

fn output(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), r#type: None }
}

fn weight(name: &str, data_type: i32, dims: &[i64], bytes: &[u8]) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type,
        dims: dims.to_vec(),
        raw_data: Some(Bytes::copy_from_slice(bytes)),
        ..Default::default()
    }
}

/// A graph with the input `x: f32[2, 3]`, the output `y` and these nodes.
fn graph(nodes: Vec<NodeProto>) -> GraphProto {
    GraphProto {
        node: nodes,
        input: vec![input("x", F32, &[2, 3])],
        output: vec![output("y")],
        ..Default::default()
    }
}

fn model(graph: GraphProto) -> ModelProto {
    let opset = OperatorSetIdProto { domain: String::new(), version: 18 };
    ModelProto {
        ir_version: 8,
        opset_import: vec![opset],
        graph: Some(graph),
        ..Default::default()
    }
}

fn message(bytes: &[u8], weights: &dyn ExternalData) -> String {
    match import(Bytes::copy_from_slice(bytes), weights, &ImportOptions::default()) {
        Ok(imported) => format!("imported: {} nodes", imported.graph.len()),
        Err(error) => error.to_string(),
    }
}

fn check_model(model: &ModelProto, expected: Expect) {
    expected.assert_eq(&message(&model.encode_to_vec(), &NoExternalData));
}

fn check(graph: GraphProto, expected: Expect) {
    check_model(&model(graph), expected);
}

#[test]
fn bytes_that_are_no_model() {
    let check =
        |bytes: &[u8], expected: Expect| expected.assert_eq(&message(bytes, &NoExternalData));
    check(b"", expect!["the model: holds no graph"]);
    check(
        b"hello, world",
        expect!["not an ONNX model: failed to decode Protobuf message: unexpected end group tag"],
    );
    check(
        &[0xff; 64],
        expect!["not an ONNX model: failed to decode Protobuf message: invalid varint"],
    );
    let whole = model(graph(vec![node("Relu", &["x"], &["y"])])).encode_to_vec();
    check(&whole, expect!["imported: 2 nodes"]);
    check(
        &whole[..whole.len() - 1],
        expect![
            "not an ONNX model: failed to decode Protobuf message: ModelProto.opset_import: buffer underflow"
        ],
    );
    check(
        &whole[..whole.len() / 2],
        expect![
            "not an ONNX model: failed to decode Protobuf message: ModelProto.graph: buffer underflow"
        ],
    );
    // The operator sets come last, in four bytes; cut before them, the rest is a model still.
    for end in (0..whole.len()).filter(|&end| end + 4 != whole.len()) {
        let said = message(&whole[..end], &NoExternalData);
        assert!(!said.starts_with("imported"), "{end} bytes of {} import", whole.len());
    }
}

#[test]
fn models_without_a_graph_or_a_known_opset() {
    check_model(
        &ModelProto { ir_version: 8, ..Default::default() },
        expect!["the model: holds no graph"],
    );
    for (version, expected) in [
        (
            0,
            expect![
                "the model: asks for version 0 of the operator set `ai.onnx`, which is not known"
            ],
        ),
        (
            -5,
            expect![
                "the model: asks for version -5 of the operator set `ai.onnx`, which is not known"
            ],
        ),
        (
            999,
            expect![
                "the model: asks for version 999 of the operator set `ai.onnx`, which is not known"
            ],
        ),
    ] {
        let mut model = model(graph(vec![node("Relu", &["x"], &["y"])]));
        model.opset_import[0].version = version;
        check_model(&model, expected);
    }
}

#[test]
fn cycles() {
    check(
        graph(vec![node("Add", &["x", "y"], &["y"])]),
        expect!["`y` (Add): nodes depend on each other: y"],
    );
    let mut first = node("Add", &["x", "b"], &["a"]);
    first.name = "layer.0/add".into();
    let nodes = vec![first, node("Relu", &["a"], &["b"]), node("Relu", &["b"], &["y"])];
    check(
        graph(nodes),
        expect!["`layer.0/add` (Add): nodes depend on each other: layer.0/add, b, y"],
    );
}

#[test]
fn names_that_nothing_gives() {
    check(
        graph(vec![node("Add", &["x", "bias"], &["y"])]),
        expect!["`y` (Add): uses `bias`, which nothing gives"],
    );
    let mut named = node("Add", &["x", "bias"], &["y"]);
    named.name = "layer.0/add".into();
    check(graph(vec![named]), expect!["`layer.0/add` (Add): uses `bias`, which nothing gives"]);
    check(graph(vec![node("Relu", &["x"], &["z"])]), expect!["`y`: nothing gives this output"]);
}

#[test]
fn names_given_twice() {
    check(
        graph(vec![node("Relu", &["x"], &["y"]), node("Abs", &["x"], &["y"])]),
        expect!["`y` (Abs): the name `y` is given twice"],
    );
    check(
        graph(vec![node("Relu", &["x"], &["x"])]),
        expect!["`x` (Relu): nodes depend on each other: x"],
    );
    let relu = || graph(vec![node("Relu", &["x"], &["y"])]);
    let mut inputs = relu();
    inputs.input.push(input("x", F32, &[1]));
    check(inputs, expect!["`x`: the name `x` is given twice"]);
    let mut outputs = relu();
    outputs.output.push(output("y"));
    check(outputs, expect!["`y`: the name `y` is given twice"]);
    let mut weights = relu();
    weights.initializer = vec![weight("w", F32, &[1], &[0; 4]), weight("w", F32, &[1], &[0; 4])];
    check(weights, expect!["`w`: the name `w` is given twice"]);
}

#[test]
fn operators_that_lack_something() {
    check(graph(vec![node("Add", &["x"], &["y"])]), expect!["`y` (Add): input 1 is required"]);
    check(
        graph(vec![node("Relu", &["x"], &["y", "z"])]),
        expect!["`y` (Relu): names output 2, but its operator has 1 output"],
    );
    check(
        graph(vec![node("Einsum", &["x"], &["y"])]),
        expect!["`y` (Einsum): `equation` is missing"],
    );
    let mut softmax = node("Softmax", &["x"], &["y"]);
    let axis = AttributeProto { name: "axis".into(), i: 5, ..Default::default() };
    softmax.attribute.push(AttributeProto { r#type: AttributeType::Int as i32, ..axis });
    check(graph(vec![softmax]), expect!["`y` (Softmax): axis 5 does not fit 2 dims"]);
}

#[test]
fn element_types_that_do_not_fit() {
    let with = |op: &str, ty: i32| {
        let mut graph = graph(vec![node(op, &["x", "k"], &["y"])]);
        graph.input.push(input("k", ty, &[3]));
        graph
    };
    check(with("Add", I64), expect!["`y` (Add): input 1 must have elements of f32, found i64"]);
    check(with("And", BOOL), expect!["`y` (And): input 0 must have elements of bool, found f32"]);
    check(
        with("Add", 8),
        expect![[r#"
            1 part of the model is not supported:
              `y` (Add): its input `k` has elements of type string"#]],
    );
    check(
        with("Add", 99),
        expect![[r#"
            1 part of the model is not supported:
              `y` (Add): its input `k` has elements of the unknown type 99"#]],
    );
    let mut sine = graph(vec![node("Sin", &["x"], &["y"])]);
    sine.input[0] = input("x", I64, &[3]);
    check(sine, expect!["`y` (Sin): input 0 must have elements of a float type, found i64"]);
    let mut untyped = graph(vec![node("Sin", &["x"], &["y"])]);
    untyped.input[0].r#type = None;
    check(untyped, expect!["`x`: has no tensor type that is supported (none is given)"]);
}

#[test]
fn shapes_that_disagree() {
    let with = |op: &str, dims: &[i64]| {
        let mut graph = graph(vec![node(op, &["x", "k"], &["y"])]);
        graph.node[0].name = format!("layer.0/{op}");
        graph.input.push(input("k", F32, dims));
        graph
    };
    check(
        with("Add", &[2]),
        expect!["`layer.0/Add` (Add): shapes [2, 3] and [2] do not broadcast"],
    );
    check(
        with("MatMul", &[4, 5]),
        expect!["`layer.0/MatMul` (MatMul): dims 3 and 4 must be equal"],
    );
    let mut joined = with("Concat", &[4, 5]);
    let axis = AttributeProto { name: "axis".into(), i: 0, ..Default::default() };
    joined.node[0].attribute = vec![AttributeProto { r#type: AttributeType::Int as i32, ..axis }];
    check(joined, expect!["`layer.0/Concat` (Concat): dims 3 and 5 must be equal"]);
    let mut shaped = graph(vec![node("Reshape", &["x", "shape"], &["y"])]);
    let sizes: Vec<u8> = [4_i64, 2].iter().flat_map(|size| size.to_le_bytes()).collect();
    shaped.initializer = vec![weight("shape", I64, &[2], &sizes)];
    check(shaped, expect!["`y` (Reshape): f32[2, 3] has not as many elements as [4, 2]"]);
}

#[test]
fn sizes_out_of_reason() {
    let sized = |dims: &[i64]| {
        let mut graph = graph(vec![node("Relu", &["x"], &["y"])]);
        graph.input[0] = input("x", F32, dims);
        graph
    };
    check(
        sized(&[i64::MAX]),
        expect!["`x`: a tensor of type f32[9223372036854775807] has too many dims or elements"],
    );
    check(sized(&[i64::MIN]), expect!["`x`: has the size -9223372036854775808"]);
    check(sized(&[-1, 4]), expect!["`x`: has the size -1"]);
    check(
        sized(&[1 << 32, 1 << 32]),
        expect!["`x`: a tensor of type f32[4294967296, 4294967296] has too many dims or elements"],
    );
    check(
        sized(&[1; 17]),
        expect![
            "`x`: a tensor of type f32[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1] has too many dims or elements"
        ],
    );
    let weights = |dims: &[i64], bytes: &[u8]| {
        let mut graph = graph(vec![node("Add", &["x", "w"], &["y"])]);
        graph.initializer = vec![weight("w", F32, dims, bytes)];
        graph
    };
    check(
        weights(&[i64::MAX], &[0; 4]),
        expect!["`w`: a tensor of shape [9223372036854775807] is too large"],
    );
    check(weights(&[i64::MIN], &[0; 4]), expect!["`w`: has the size -9223372036854775808"]);
    check(
        weights(&[1 << 32, 1 << 32, 1 << 32], &[]),
        expect!["`w`: a tensor of shape [4294967296, 4294967296, 4294967296] is too large"],
    );
    check(
        weights(&[3], &[0; 8]),
        expect!["`w`: shape [3] of f32 takes 12 bytes, but 8 were given"],
    );
    let mut filled = graph(vec![node("ConstantOfShape", &["shape"], &["y"])]);
    filled.initializer = vec![weight("shape", I64, &[1], &i64::MAX.to_le_bytes())];
    check(
        filled,
        expect![
            "`y` (ConstantOfShape): a tensor of type f32[9223372036854775807] has too many dims or elements"
        ],
    );
}

fn body(name: &str, graph: GraphProto) -> AttributeProto {
    let r#type = AttributeType::Graph as i32;
    AttributeProto { name: name.into(), g: Some(graph), r#type, ..Default::default() }
}

/// `If` within `If`, to this depth.
fn nested(depth: usize) -> GraphProto {
    let mut inner = vec![node("Relu", &["x"], &["y0"])];
    for level in 0..depth {
        let made = format!("y{level}");
        let graph = GraphProto { node: inner, output: vec![output(&made)], ..Default::default() };
        let mut outer = node("If", &["c"], &[&format!("y{}", level + 1)]);
        outer.attribute = vec![body("then_branch", graph.clone()), body("else_branch", graph)];
        inner = vec![outer];
    }
    let mut whole = graph(inner);
    whole.input.push(input("c", BOOL, &[]));
    whole.output = vec![output(&format!("y{depth}"))];
    whole
}

#[test]
fn nesting_without_end() {
    check(nested(3), expect!["imported: 3 nodes"]);
    // Only one branch nests, lest the model has a node for each of 2²⁰ paths.
    let mut chain = vec![node("Relu", &["x"], &["y0"])];
    for level in 0..20 {
        let made = format!("y{level}");
        let deep = GraphProto { node: chain, output: vec![output(&made)], ..Default::default() };
        let relu = vec![node("Relu", &["x"], &[&made])];
        let flat = GraphProto { node: relu, output: vec![output(&made)], ..Default::default() };
        let mut outer = node("If", &["c"], &[&format!("y{}", level + 1)]);
        outer.attribute = vec![body("then_branch", deep), body("else_branch", flat)];
        chain = vec![outer];
    }
    let mut whole = graph(chain);
    whole.input.push(input("c", BOOL, &[]));
    whole.output = vec![output("y20")];
    check(whole, expect!["`y5` (If): functions or bodies nest too deeply"]);
    let mut bytes = Vec::new();
    for _ in 0..200 {
        // A graph in an attribute of a node of a graph.
        for tag in [0x32, 0x2a, 0x0a] {
            let mut wrapped = vec![tag];
            prost::encoding::encode_varint(bytes.len() as u64, &mut wrapped);
            wrapped.append(&mut bytes);
            bytes = wrapped;
        }
    }
    let mut wrapped = vec![0x3a];
    prost::encoding::encode_varint(bytes.len() as u64, &mut wrapped);
    wrapped.append(&mut bytes);
    expect!["not an ONNX model: failed to decode Protobuf message: GraphProto.node: …: ModelProto.graph: recursion limit reached"].assert_eq(&message(&wrapped, &NoExternalData));
}

#[test]
fn functions_that_call_themselves() {
    let mut call = node("Again", &["x"], &["y"]);
    call.domain = "local".into();
    let mut inner = node("Again", &["a"], &["b"]);
    inner.domain = "local".into();
    let again = FunctionProto {
        name: "Again".into(),
        domain: "local".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: vec![inner],
        ..Default::default()
    };
    let mut model = model(graph(vec![call]));
    model.functions.push(again.clone());
    check_model(&model, expect!["`b` (Again): functions or bodies nest too deeply"]);
    // Each calls the next twice: 2⁴⁰ nodes in all.
    model.functions.clear();
    for level in 0..40 {
        let mut twice = again.clone();
        twice.name = if level == 0 { "Again".into() } else { format!("F{level}") };
        let next = format!("F{}", level + 1);
        let (mut first, mut second) = (node(&next, &["a"], &["m"]), node(&next, &["m"], &["b"]));
        (first.domain, second.domain) = ("local".into(), "local".into());
        twice.node = vec![first, second];
        model.functions.push(twice);
    }
    check_model(&model, expect!["`m` (F32): functions or bodies nest too deeply"]);
}

#[test]
fn operators_that_are_not_supported_are_named_all_at_once() {
    let mut own = node("MyOp", &["x"], &["a"]);
    (own.domain, own.name) = ("com.example".into(), "layer.0/mine".into());
    let nodes = vec![
        own,
        node("Relu", &["a"], &["b"]),
        node("StringSplit", &["b"], &["c"]),
        node("NoSuchOp", &["x"], &["d"]),
        node("Add", &["c", "d"], &["y"]),
    ];
    check(
        graph(nodes),
        expect![[r#"
        3 parts of the model are not supported:
          `layer.0/mine` (com.example.MyOp): there is no such operator here
          `d` (NoSuchOp): there is no such operator here
          `c` (StringSplit): there is no such operator here"#]],
    );
}

fn external(entries: &[(&str, &str)]) -> GraphProto {
    let entry = |&(key, value): &(&str, &str)| StringStringEntryProto {
        key: key.into(),
        value: value.into(),
    };
    let mut graph = graph(vec![node("Add", &["x", "w"], &["y"])]);
    let tensor = TensorProto {
        name: "w".into(),
        data_type: F32,
        dims: vec![3],
        data_location: DataLocation::External as i32,
        external_data: entries.iter().map(entry).collect(),
        ..Default::default()
    };
    graph.initializer.push(tensor);
    graph
}

/// As in Hugging Face's cache: the model and its weights are links to files that lie side by side elsewhere.
#[cfg(unix)]
#[test]
fn weights_are_read_where_the_link_to_the_model_leads() {
    use std::os::unix::fs::symlink;
    let base = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("linked_model");
    let _ = std::fs::remove_dir_all(&base);
    let [blobs, snapshot] = ["blobs", "snapshots/main"].map(|name| base.join(name));
    std::fs::create_dir_all(blobs.join("more")).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    for (file, link) in [("weights", "w"), ("more/deep", "deep"), ("../secret", "secret")] {
        std::fs::write(blobs.join(file), [0; 16]).unwrap();
        symlink(blobs.join(file), snapshot.join(link)).unwrap();
    }
    let bytes = |location: &str| {
        let entries = [("location", location), ("length", "12")];
        model(external(&entries)).encode_to_vec()
    };
    std::fs::write(blobs.join("model"), bytes("w")).unwrap();
    symlink("../../blobs/model", snapshot.join("model.onnx")).unwrap();
    std::fs::write(snapshot.join("plain.onnx"), bytes("w")).unwrap();
    for reading in [Reading::Owned, Reading::Mapped] {
        let (read, weights) = read_model(snapshot.join("model.onnx"), reading).unwrap();
        assert_eq!(message(&read, &weights), "imported: 3 nodes");
        for location in ["deep", "secret"] {
            let refused = message(&bytes(location), &weights);
            assert!(refused.ends_with("outside of the model's folder"), "{refused}");
        }
        // A model that lies there itself knows no other folder.
        let (read, weights) = read_model(snapshot.join("plain.onnx"), reading).unwrap();
        assert!(message(&read, &weights).ends_with("outside of the model's folder"));
    }
}

#[test]
fn external_data_where_it_should_not_be() {
    let base = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad_input");
    let folder = base.join("model");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(base.join("secret"), [0; 64]).unwrap();
    std::fs::write(folder.join("weights"), [0; 16]).unwrap();
    #[cfg(unix)]
    {
        let _ = std::fs::remove_file(folder.join("link"));
        std::os::unix::fs::symlink("../secret", folder.join("link")).unwrap();
    }
    let readings = [Reading::Owned, Reading::Mapped].map(|r| ModelFolder::new(&folder, r));
    let check = |entries: &[(&str, &str)], expected: Expect| {
        let bytes = model(external(entries)).encode_to_vec();
        let [owned, mapped] = readings.each_ref().map(|weights| message(&bytes, weights));
        expected.assert_eq(&owned);
        assert_eq!(owned, mapped);
    };
    check(
        &[("location", "weights"), ("offset", "4"), ("length", "12")],
        expect!["imported: 3 nodes"],
    );
    check(
        &[("location", "../secret")],
        expect!["initializer `w`: its data is in `../secret`, outside of the model's folder"],
    );
    check(
        &[("location", "a/../../secret")],
        expect!["initializer `w`: its data is in `a/../../secret`, outside of the model's folder"],
    );
    check(
        &[("location", "/etc/passwd")],
        expect!["initializer `w`: its data is in `/etc/passwd`, outside of the model's folder"],
    );
    check(
        &[("location", "")],
        expect!["initializer `w`: its data is in ``, outside of the model's folder"],
    );
    check(
        &[("location", "missing")],
        expect!["initializer `w`: cannot read `missing`: entity not found"],
    );
    check(&[], expect!["initializer `w`: malformed entry `location` of external data"]);
    check(
        &[("location", "weights"), ("offset", "many")],
        expect!["initializer `w`: malformed entry `offset` of external data"],
    );
    check(
        &[("location", "weights"), ("offset", "-1")],
        expect!["initializer `w`: malformed entry `offset` of external data"],
    );
    check(
        &[("location", "weights"), ("offset", "8"), ("length", "12")],
        expect!["initializer `w`: `weights` has 16 bytes, but bytes 8 to 20 are asked for"],
    );
    let far = u64::MAX.to_string();
    check(
        &[("location", "weights"), ("offset", &far), ("length", &far)],
        expect![
            "initializer `w`: `weights` has 16 bytes, but bytes 18446744073709551615 to 18446744073709551615 are asked for"
        ],
    );
    check(
        &[("location", "weights")],
        expect!["`w`: shape [3] of f32 takes 12 bytes, but 16 were given"],
    );
    #[cfg(unix)]
    check(
        &[("location", "link"), ("length", "12")],
        expect!["initializer `w`: its data is in `link`, outside of the model's folder"],
    );
    let bytes = model(external(&[("location", "weights")])).encode_to_vec();
    expect!["initializer `w`: its data is in `weights`, and no folder to read it from was given"]
        .assert_eq(&message(&bytes, &NoExternalData));
}

#[test]
fn tensors_that_do_not_fit_the_inputs() {
    let mut sum = graph(vec![node("Add", &["x", "k"], &["y"])]);
    let symbol = |name: &str| Dimension { value: Some(DimensionValue::DimParam(name.into())) };
    let shape = TensorShapeProto { dim: vec![symbol("batch"), symbol("batch")] };
    let ty = TensorTypeProto { elem_type: F32, shape: Some(shape) };
    let r#type = Some(TypeProto { value: Some(TypeValue::TensorType(ty)) });
    sum.input = vec![ValueInfoProto { name: "x".into(), r#type }, input("k", F32, &[3])];
    let bytes = Bytes::from(model(sum).encode_to_vec());
    let graph = import(bytes, &NoExternalData, &ImportOptions::default()).unwrap().graph;
    let check = |inputs: &[(DType, &[usize])], expected: Expect| {
        let tensor =
            |&(dtype, shape): &(DType, &[usize])| Tensor::zeros(dtype, shape.to_vec()).unwrap();
        let inputs: Vec<_> = inputs.iter().map(tensor).collect();
        match evaluate(&graph, &inputs) {
            Ok(outputs) => expected.assert_eq(&format!("{:?}", outputs[0].shape())),
            Err(error) => expected.assert_eq(&error.to_string()),
        }
    };
    let k: (DType, &[usize]) = (DType::F32, &[3]);
    check(&[(DType::F32, &[3, 3]), k], expect!["[3, 3]"]);
    check(&[], expect!["2 inputs expected, 0 given"]);
    check(&[k], expect!["2 inputs expected, 1 given"]);
    check(
        &[(DType::F32, &[3]), k],
        expect!["input `x` takes f32[batch, batch], but f32[3] was given"],
    );
    check(
        &[(DType::I64, &[3, 3]), k],
        expect!["input `x` takes f32[batch, batch], but i64[3, 3] was given"],
    );
    check(
        &[(DType::F32, &[3, 2]), k],
        expect!["input `x` takes f32[batch, batch], but f32[3, 2] was given"],
    );
    check(&[(DType::F32, &[0, 0]), k], expect!["input `x`: dimension `batch` cannot be 0"]);
    check(
        &[(DType::F32, &[2, 2]), k],
        expect!["Add `y`: operands do not broadcast (shapes [[2, 2], [3]])"],
    );
    check(
        &[(DType::F32, &[3, 3]), (DType::F32, &[4])],
        expect!["input `k` takes f32[3], but f32[4] was given"],
    );
}
