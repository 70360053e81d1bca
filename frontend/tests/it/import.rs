//! What import does beside translating nodes: functions, specialisation, shape arithmetic, reports.

use crate::model::{
    bytes, graph, imported, int, ints, model, node, number, number_list, subgraph, text_list,
    value, with,
};
use expect_test::{Expect, expect};
use graphene_frontend::dim::Symbol;
use graphene_frontend::eval::evaluate;
use graphene_frontend::import::{ImportError, ImportOptions, NoExternalData, import};
use graphene_frontend::onnx::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, StringStringEntryProto,
    TensorProto, TypeValue,
};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::text::print;

fn check_text(model: &ModelProto, expected: &Expect) {
    let imported = imported(model).unwrap_or_else(|error| panic!("{error}"));
    expected.assert_eq(&print(&imported.graph).text);
}

/// A graph of inputs, integer constants and nodes that gives `y`.
fn with_ints(
    inputs: &[(&str, i32, &str)],
    constants: &[(&str, &[i64])],
    nodes: Vec<NodeProto>,
) -> ModelProto {
    let inputs = inputs.iter().map(|(name, ty, dims)| value(name, *ty, dims)).collect();
    let mut graph = graph(inputs, nodes, &["y"]);
    for (name, data) in constants {
        graph.initializer.push(ints(name, &[data.len() as i64], data));
    }
    model(graph)
}

#[test]
fn functions_are_inlined_with_their_attributes() {
    let reference = AttributeProto {
        name: "axis".into(),
        ref_attr_name: "over".into(),
        r#type: 2,
        ..Default::default()
    };
    let body = with(node("Softmax", "a", "b"), reference);
    let function = FunctionProto {
        name: "F".into(),
        domain: "f".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        attribute_proto: vec![int("over", 1)],
        node: vec![body],
        ..Default::default()
    };
    let call = |input, output| NodeProto { domain: "f".into(), ..node("F", input, output) };
    let nodes = vec![with(call("x", "t"), int("over", 0)), call("t", "y")];
    let mut model = with_ints(&[("x", 1, "n m")], &[], nodes);
    model.functions.push(function);
    check_text(
        &model,
        &expect![[r#"
            symbols m, n
            %0 = Input : f32[n, m] "x"
            %1 = Softmax(%0) {axis: 0} : f32[n, m] "b"
            %2 = Softmax(%1) {axis: 1} : f32[n, m] "b"
            return "y" = %2
        "#]],
    );
}

#[test]
fn shapes_that_hang_on_values_name_the_inputs() {
    let nodes = vec![node("Reshape", "x s", "r"), node("Relu", "r", "y")];
    let model = with_ints(&[("x", 1, "n 4"), ("s", 7, "2")], &[], nodes);
    let ImportError::Resists { inputs, symbols, node, op, .. } = imported(&model).unwrap_err()
    else {
        panic!("the shape is an input")
    };
    assert_eq!((inputs, symbols), (vec!["s".to_owned()], vec![]));
    assert_eq!((node.as_str(), op.as_str()), ("r", "Reshape"));

    let mut options = ImportOptions::default();
    options.values.insert("s".into(), Tensor::from_vec(vec![2], vec![2_i64, -1]).unwrap());
    let imported = import(bytes(&model), &NoExternalData, &options).unwrap();
    assert_eq!(imported.notes, ["input `s` is a constant"]);
    assert_eq!(imported.graph.inputs().len(), 1);
    let (_, y) = imported.graph.outputs()[0];
    assert_eq!(imported.graph.ty(y).to_string(), "f32[2, 2*n]");
}

#[test]
fn shapes_that_hang_on_sizes_name_the_symbols() {
    let model = with_ints(&[("x", 1, "n"), ("z", 1, "m")], &[], vec![node("Add", "x z", "y")]);
    let ImportError::Resists { inputs, symbols, .. } = imported(&model).unwrap_err() else {
        panic!("n and m may differ")
    };
    assert_eq!(inputs, [""; 0]);
    assert_eq!(symbols, [Symbol::new("m"), Symbol::new("n")]);
    let mut options = ImportOptions::default();
    options.dims.insert("n".into(), 1);
    assert!(import(bytes(&model), &NoExternalData, &options).is_ok());
}

/// A size of zero is one like any other, where it is known before anything is concluded from the symbol.
#[test]
fn sizes_may_be_zero() {
    let nodes = || vec![node("Add", "x z", "y")];
    let model = with_ints(&[("x", 1, "n 4"), ("z", 1, "n 1")], &[], nodes());
    let mut options = ImportOptions::default();
    options.dims.insert("n".into(), 0);
    let imported = import(bytes(&model), &NoExternalData, &options).unwrap();
    let (_, y) = imported.graph.outputs()[0];
    assert_eq!(imported.graph.ty(y).to_string(), "f32[0, 4]");
    options.dims.insert("n".into(), -1);
    let refused = import(bytes(&model), &NoExternalData, &options).unwrap_err();
    assert_eq!(refused.to_string(), "`n`: dimension `n` cannot be -1");
}

#[test]
fn everything_unsupported_is_reported_at_once() {
    let branch = |op: &str| graph(vec![], vec![node(op, "x", "r")], &["r"]);
    let nodes = vec![
        node("NoSuch", "x", "a"),
        NodeProto { domain: "other".into(), ..node("Odd", "a", "b") },
        with(
            with(node("If", "c", "y"), subgraph("then_branch", branch("Strange"))),
            subgraph("else_branch", branch("Relu")),
        ),
    ];
    let model = with_ints(&[("x", 1, "2"), ("c", 9, "")], &[], nodes);
    expect![[r#"
        3 parts of the model are not supported:
          `a` (NoSuch): there is no such operator here
          `r` (Strange): there is no such operator here
          `b` (other.Odd): there is no such operator here"#]]
    .assert_eq(&imported(&model).unwrap_err().to_string());
}

#[test]
fn shape_arithmetic_is_done_in_symbols() {
    // Heads split as exporters write it: shape, gather, concat, reshape.
    let nodes = vec![
        node("Shape", "x", "s"),
        node("Gather", "s zero", "b"),
        node("Gather", "s one", "n"),
        with(node("Concat", "b n minus four", "t"), int("axis", 0)),
        node("Reshape", "x t", "y"),
    ];
    let constants: [(&str, &[i64]); 4] =
        [("zero", &[0]), ("one", &[1]), ("minus", &[-1]), ("four", &[4])];
    check_text(
        &with_ints(&[("x", 1, "b n 8")], &constants, nodes),
        &expect![[r#"
        symbols b, n
        %0 = Input : f32[b, n, 8] "x"
        %1 = Reshape(%0) {shape: [b, n, 2, 4]} : f32[b, n, 2, 4] "y"
        return "y" = %1
    "#]],
    );
}

#[test]
fn counted_gathers_are_slices() {
    let row = |table: &str, end: &[i64], nodes: Vec<NodeProto>| {
        with_ints(&[("x", 1, table)], &[("end", end)], nodes)
    };
    let scalar =
        |name: &str, i| AttributeProto { name: name.into(), r#type: 2, i, ..Default::default() };
    let constant = |name: &str, i| with(node("Constant", "", name), scalar("value_int", i));
    let range = vec![
        constant("a", 2),
        constant("d", 3),
        constant("e", 11),
        node("Range", "a e d", "i"),
        node("Gather", "x i", "y"),
    ];
    check_text(
        &row("n 4", &[0], range),
        &expect![[r#"
        symbols n
        %0 = Input : f32[n, 4] "x"
        %1 = Slice(%0) {axes: [{axis: 0, start: 2, len: 3, step: 3}]} : f32[3, 4] "y"
        return "y" = %1
    "#]],
    );
    // The last element of each row.
    let last = vec![constant("i", -1), with(node("Gather", "x i", "y"), int("axis", 1))];
    check_text(
        &row("n m", &[0], last),
        &expect![[r#"
        symbols m, n
        %0 = Input : f32[n, m] "x"
        %1 = Slice(%0) {axes: [{axis: 1, start: m - 1, len: 1, step: 1}]} : f32[n, 1] "y"
        %2 = Reshape(%1) {shape: [n]} : f32[n] "y"
        return "y" = %2
    "#]],
    );
}

#[test]
fn the_last_few_are_as_many_as_the_first_few() {
    let constants: [(&str, &[i64]); 4] =
        [("back", &[-2]), ("front", &[0]), ("two", &[2]), ("far", &[i64::MAX])];
    let nodes = vec![
        node("Slice", "x back far", "a"),
        node("Slice", "x front two", "b"),
        node("Sub", "a b", "y"),
    ];
    check_text(
        &with_ints(&[("x", 1, "n")], &constants, nodes),
        &expect![[r#"
            symbols n
            %0 = Input : f32[n] "x"
            %1 = Slice(%0) {axes: [{axis: 0, start: max(0, n - 2), len: min(2, n), step: 1}]} : f32[min(2, n)] "a"
            %2 = Slice(%0) {axes: [{axis: 0, start: 0, len: min(2, n), step: 1}]} : f32[min(2, n)] "b"
            %3 = Sub(%1, %2) : f32[min(2, n)] "y"
            return "y" = %3
        "#]],
    );
}

/// An even filter pads one place too many, which is cut: what is left is as long as what it is added to.
#[test]
fn cut_padding_leaves_the_length_that_was() {
    let constants: [(&str, &[i64]); 3] = [("front", &[0]), ("last", &[-1]), ("axis", &[2])];
    let pads =
        AttributeProto { name: "pads".into(), r#type: 7, ints: vec![1, 1], ..Default::default() };
    let nodes = vec![
        node("Conv", "x w", "a"),
        with(node("Conv", "a v", "b"), pads),
        node("Slice", "b front last axis", "c"),
        node("Add", "a c", "y"),
    ];
    let inputs = [("x", 1, "1 1 n"), ("w", 1, "1 1 3"), ("v", 1, "1 1 2")];
    let graph = imported(&with_ints(&inputs, &constants, nodes)).unwrap().graph;
    let (_, y) = &graph.outputs()[0];
    assert_eq!(graph.ty(*y).to_string(), "f32[1, 1, n - 2]");
}

/// A table of known size, sliced from its end by a length.
#[test]
fn a_table_gives_its_last_rows() {
    let constants: [(&str, &[i64]); 2] = [("rows", &[64]), ("far", &[i64::MAX])];
    let nodes = vec![
        node("Shape", "x", "length"),
        node("Sub", "rows length", "start"),
        node("Slice", "t start far", "last"),
        node("Mul", "x last", "y"),
    ];
    check_text(
        &with_ints(&[("x", 1, "n"), ("t", 1, "64")], &constants, nodes),
        &expect![[r#"
            symbols n
            %0 = Input : f32[n] "x"
            %1 = Input : f32[64] "t"
            %2 = Slice(%1) {axes: [{axis: 0, start: -n + 64, len: n, step: 1}]} : f32[n] "last"
            %3 = Mul(%0, %2) : f32[n] "y"
            return "y" = %3
        "#]],
    );
}

/// LeCun's 1.7159·tanh(2x/3), as an operator and as the activation of a recurrent layer.
#[test]
fn scaled_tangents() {
    let scaled = with(node("ScaledTanh", "x", "s"), number("alpha", 1.7159));
    let layer = with(node("RNN", "x w r", "t"), int("hidden_size", 1));
    let layer = with(layer, text_list("activations", &["ScaledTanh"]));
    let layer = with(layer, number_list("activation_alpha", &[1.7159]));
    let nodes = vec![
        with(scaled, number("beta", 2.0 / 3.0)),
        with(layer, number_list("activation_beta", &[2.0 / 3.0])),
    ];
    let inputs = ["x", "w", "r"].map(|name| value(name, 1, "1 1 1"));
    let graph = imported(&model(graph(inputs.into(), nodes, &["s", "t"]))).unwrap().graph;
    let [x, w, r] = [0.75_f32, 1.0, 0.0].map(|number| Tensor::from_vec(vec![1; 3], vec![number]));
    let outputs = evaluate(&graph, &[x.unwrap(), w.unwrap(), r.unwrap()]).unwrap();
    for output in outputs {
        let y = output.as_slice::<f32>().unwrap()[0];
        assert!((y - 0.792_946_8).abs() < 1e-6, "{y}");
    }
}

/// The result for inputs of one element type agrees with arithmetic done by hand.
fn check_loop(body: GraphProto, trips: i64, expected: &[f32]) {
    let mut outer = graph(
        vec![value("x", 1, "2"), value("c", 9, "")],
        vec![with(node("Loop", "m c x", "y"), subgraph("body", body))],
        &["y"],
    );
    outer.initializer.push(ints("m", &[], &[trips]));
    let imported = imported(&model(outer)).unwrap();
    let x = Tensor::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    let c = Tensor::from_bools(vec![], vec![true]).unwrap();
    let outputs = evaluate(&imported.graph, &[x, c]).unwrap();
    assert_eq!(outputs[0].as_slice::<f32>().unwrap(), expected);
}

/// A loop that never runs collects nothing, of the type that its body would give it.
#[test]
fn loops_that_never_run_collect_nothing() {
    let formal = || vec![value("i", 7, ""), value("g", 9, ""), value("v", 1, "n 2")];
    let nodes = vec![
        node("Identity", "g", "h"),
        node("Add", "v v", "w"),
        node("Add", "i i", "k"),
        node("Relu", "w", "u"),
    ];
    let body = graph(formal(), nodes, &["h", "w", "u", "k"]);
    let looped = with(node("Loop", "m c x", "y u k"), subgraph("body", body));
    let mut outer =
        graph(vec![value("x", 1, "n 2"), value("c", 9, "")], vec![looped], &["y", "u", "k"]);
    outer.initializer.push(ints("m", &[], &[0]));
    outer.initializer.push(TensorProto {
        data_type: 9,
        int32_data: vec![1],
        ..ints("c", &[], &[])
    });
    let graph = imported(&model(outer)).unwrap().graph;
    let types: Vec<_> = graph.outputs().iter().map(|(_, y)| graph.ty(*y).to_string()).collect();
    assert_eq!(types, ["f32[n, 2]", "f32[0, n, 2]", "i64[0]"]);
    let x = Tensor::from_vec(vec![1, 2], vec![1.0_f32, 2.0]).unwrap();
    let outputs = evaluate(&graph, std::slice::from_ref(&x)).unwrap();
    assert_eq!(outputs[0], x);
    assert_eq!((outputs[1].shape(), outputs[2].shape()), (&[0, 1, 2][..], &[0][..]));
}

/// The shape of data stands in for one that the model does not say.
#[test]
fn inputs_of_unknown_rank_take_a_given_shape() {
    let mut model = with_ints(&[("x", 1, "")], &[], vec![node("Relu", "x", "y")]);
    let input = &mut model.graph.as_mut().unwrap().input[0];
    let Some(TypeValue::TensorType(ty)) = input.r#type.as_mut().and_then(|ty| ty.value.as_mut())
    else {
        panic!("it is a tensor")
    };
    ty.shape = None;
    let refused = imported(&model).unwrap_err().to_string();
    assert!(refused.contains("not even its rank is known, unless data is given"), "{refused}");
    let mut options = ImportOptions::default();
    options.shapes.insert("x".into(), vec![0, 3]);
    let graph = import(bytes(&model), &NoExternalData, &options).unwrap().graph;
    assert_eq!(graph.ty(graph.outputs()[0].1).to_string(), "f32[0, 3]");
}

#[test]
fn loops_keep_what_they_capture() {
    // v ← v + x, x being captured; whether it goes on is not known before it runs.
    let formal = vec![value("i", 7, ""), value("g", 9, ""), value("v", 1, "2")];
    let nodes = vec![node("Identity", "g", "h"), node("Add", "v x", "w")];
    check_loop(graph(formal, nodes, &["h", "w"]), 3, &[4.0, 8.0]);
}

/// PyTorch's newer exporter lists modules in a node's metadata; its names become what the older one writes.
#[test]
fn nodes_are_named_by_their_modules() {
    let mut relu = node("Relu", "x", "r");
    let entry =
        |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    relu.name = "node_relu".into();
    let scopes = "['', 'net', 'net.layers.0', 'relu']";
    relu.metadata_props =
        vec![entry("namespace", "other"), entry("pkg.torch.onnx.name_scopes", scopes)];
    let model = with_ints(&[("x", 1, "n")], &[], vec![relu, node("Exp", "r", "y")]);
    check_text(
        &model,
        &expect![[r#"
            symbols n
            %0 = Input : f32[n] "x"
            %1 = Relu(%0) : f32[n] "/net/layers.0/node_relu"
            %2 = Exp(%1) : f32[n] "y"
            return "y" = %2
        "#]],
    );
}

/// Names are what may be shown, where they are given and where they are used.
#[test]
fn names_are_visible() {
    let mut model = with_ints(
        &[("x\u{1b}[2J", 1, "n\u{202e}")],
        &[],
        vec![node("Relu", "x\u{1b}[2J", "r\u{7}"), node("Exp", "r\u{7}", "y")],
    );
    model.producer_name = "by\nnobody".into();
    check_text(
        &model,
        &expect![[r#"
            symbols `n\u{202e}`
            %0 = Input : f32[`n\u{202e}`] "x\\u{1b}[2J"
            %1 = Relu(%0) : f32[`n\u{202e}`] "r\\u{7}"
            %2 = Exp(%1) : f32[`n\u{202e}`] "y"
            return "y" = %2
        "#]],
    );
    assert_eq!(imported(&model).unwrap().producer, r"by\u{a}nobody");
    let unknown = with_ints(&[("x", 1, "n")], &[], vec![node("Od\u{9b}d", "x", "y")]);
    let error = imported(&unknown).unwrap_err().to_string();
    assert!(error.contains(r"Od\u{9b}d") && !error.contains('\u{9b}'), "{error}");
}
