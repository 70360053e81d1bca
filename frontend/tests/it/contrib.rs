//! onnxruntime's operators of quantised models and decoders: options that are refused, by name and with what to do, and
//! what onnxruntime's CPU cannot record; all else is compared with it by the runtime's suites.

use crate::model::{graph, imported, int, ints, model, node, text, value, with};
use expect_test::{Expect, expect};
use graphene_frontend::eval::evaluate;
use graphene_frontend::onnx::{
    AttributeProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto,
};
use graphene_frontend::tensor::Tensor;

const F32: i32 = 1;
const U8: i32 = 2;
const I8: i32 = 3;
const I32: i32 = 6;
const I64: i32 = 7;

/// A model of one operator of `com.microsoft`; what `node` names between spaces are the inputs.
fn contrib(
    op: &str,
    names: &str,
    outputs: &str,
    attributes: Vec<AttributeProto>,
    inputs: Vec<ValueInfoProto>,
) -> ModelProto {
    let node = NodeProto {
        domain: "com.microsoft".into(),
        attribute: attributes,
        ..node(op, names, outputs)
    };
    let outputs: Vec<&str> = outputs.split_whitespace().filter(|&name| name != "_").collect();
    let mut model = model(graph(inputs, vec![node], &outputs));
    let domain = "com.microsoft".to_owned();
    model.opset_import.push(OperatorSetIdProto { domain, version: 1 });
    model
}

fn check(model: &ModelProto, expected: &Expect) {
    expected.assert_eq(&imported(model).expect_err("it is refused").to_string());
}

/// Attention of 4 heads of 8 over 2, three tokens behind a cache of six.
fn check_attention(
    more_inputs: &str,
    outputs: &str,
    attributes: Vec<AttributeProto>,
    expected: &Expect,
) {
    let inputs = vec![
        value("q", F32, "2 3 32"),
        value("k", F32, "2 3 16"),
        value("v", F32, "2 3 16"),
        value("n", I32, "2"),
        value("t", I32, ""),
        value("w", F32, "8"),
    ];
    let mut all = vec![int("num_heads", 4), int("kv_num_heads", 2)];
    for attribute in attributes {
        all.retain(|other| other.name != attribute.name);
        all.push(attribute);
    }
    let names = format!("q k v _ _ n t {more_inputs}");
    check(&contrib("GroupQueryAttention", &names, outputs, all, inputs), expected);
}

#[test]
fn attention_with_a_cache_refuses_by_name() {
    check_attention(
        "_ _ _ _ _ w w",
        "y",
        vec![],
        &expect![[r#"
            1 part of the model is not supported:
              `y` (com.microsoft.GroupQueryAttention): a quantised cache (`k_scale`, `k_quant_type`): export one of floats"#]],
    );
    check_attention(
        "",
        "y",
        vec![text("v_quant_type", "PER_CHANNEL")],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.GroupQueryAttention): a quantised cache (`k_scale`, `k_quant_type`): export one of floats"#]],
    );
    check_attention(
        "_ _ _ _ _ _ _ w w",
        "y",
        vec![],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.GroupQueryAttention): norms within attention (`q_norm_weight`): export SimplifiedLayerNormalization before it"#]],
    );
    check_attention(
        "_ _ _ _ _ _ _ _ _ n",
        "y",
        vec![],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.GroupQueryAttention): `query_seqlens`: give prompts without padding, one by one"#]],
    );
    check_attention(
        "",
        "y",
        vec![int("sliding_window_cache", 1)],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.GroupQueryAttention): `sliding_window_cache`: export a cache of the whole sequence"#]],
    );
    check_attention(
        "",
        "y keys values scores",
        vec![int("qk_output", 1)],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.GroupQueryAttention): scores as an output (`qk_output`): leave `output_qk` out"#]],
    );
}

#[test]
fn malformed_attention_with_a_cache() {
    check_attention(
        "",
        "y",
        vec![int("kv_num_heads", 3)],
        &expect!["`y` (GroupQueryAttention): `kv_num_heads` must divide `num_heads`"],
    );
    check_attention(
        "",
        "y",
        vec![int("num_heads", 0)],
        &expect!["`y` (GroupQueryAttention): `num_heads` must be positive"],
    );
    check_attention(
        "",
        "y",
        vec![int("num_heads", i64::MAX)],
        &expect!["`y` (GroupQueryAttention): `num_heads` must be positive"],
    );
    check_attention(
        "",
        "y",
        vec![int("do_rotary", 1)],
        &expect!["`y` (GroupQueryAttention): input 7 is required"],
    );
    check_attention(
        "",
        "y",
        vec![int("causal", 0), int("local_window_size", 2)],
        &expect!["`y` (GroupQueryAttention): `local_window_size` must be -1 where `causal` is 0"],
    );
    let inputs = || {
        vec![
            value("q", F32, "2 3 32"),
            value("k", F32, "2 5 16"),
            value("n", I32, "2"),
            value("t", I32, ""),
        ]
    };
    let heads = || vec![int("num_heads", 4), int("kv_num_heads", 2)];
    let op = "GroupQueryAttention";
    check(
        &contrib(op, "q k k _ _ n t", "y", heads(), inputs()),
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.GroupQueryAttention): keys of another length than the queries: give them as the cache"#]],
    );
    check(
        &contrib(op, "q k _ _ _ n t", "y", heads(), inputs()),
        &expect![
            "`y` (GroupQueryAttention): keys and values must both be given, or packed with queries"
        ],
    );
    check(
        &contrib(op, "q _ _ k _ n t", "y", heads(), inputs()),
        &expect![
            "`y` (GroupQueryAttention): `past_key` and `past_value` must both be given, or neither"
        ],
    );
}

/// A step of a decoder as exporters write it, whose lengths come from a mask; the types of its cache afterwards.
fn decoder_step(past: &str, mask: &str) -> Vec<String> {
    let inputs = vec![
        value("q", F32, "batch sequence 32"),
        value("k", F32, "batch sequence 16"),
        value("v", F32, "batch sequence 16"),
        value("pk", F32, &format!("batch 2 {past} 8")),
        value("pv", F32, &format!("batch 2 {past} 8")),
        value("mask", I64, &format!("batch {mask}")),
    ];
    let attention = NodeProto {
        domain: "com.microsoft".into(),
        attribute: vec![int("num_heads", 4), int("kv_num_heads", 2)],
        ..node("GroupQueryAttention", "q k v pk pv n t", "y keys values")
    };
    let nodes = vec![
        with(node("ReduceSum", "mask one", "sums"), int("keepdims", 0)),
        node("Sub", "sums one", "last"),
        with(node("Cast", "last", "n"), int("to", I32.into())),
        node("Shape", "mask", "shape"),
        with(node("Gather", "shape one", "total"), int("axis", 0)),
        with(node("Cast", "total", "t"), int("to", I32.into())),
        attention,
    ];
    let mut graph = graph(inputs, nodes, &["y", "keys", "values"]);
    graph.initializer = vec![ints("one", &[1], &[1])];
    let mut model = model(graph);
    let domain = "com.microsoft".to_owned();
    model.opset_import.push(OperatorSetIdProto { domain, version: 1 });
    let imported = imported(&model).unwrap();
    let outputs = imported.graph.outputs();
    outputs.iter().map(|(_, value)| imported.graph.ty(*value).to_string()).collect()
}

#[test]
fn the_lengths_of_a_decoder_stay_symbols() {
    let keys = "f32[batch, 2, past + sequence, 8]";
    assert_eq!(decoder_step("past", "past+sequence")[1..], [keys, keys]);
    let capacity = "f32[batch, 2, max(past, total), 8]";
    assert_eq!(decoder_step("past", "total")[1..], [capacity, capacity]);
    let fixed = "f32[batch, 2, 64, 8]";
    assert_eq!(decoder_step("64", "24")[1..], [fixed, fixed]);
    assert_eq!(decoder_step("64", "24")[0], "f32[batch, sequence, 32]");
}

/// `[3, 40]` times the transpose of `[2, 40]` in blocks of 16.
fn check_n_bits(b: &str, dtype: i32, changes: Vec<AttributeProto>, expected: &Expect) {
    let inputs = vec![value("a", F32, "3 40"), value("b", dtype, b), value("s", F32, "2 3")];
    let mut all = vec![int("K", 40), int("N", 2), int("block_size", 16)];
    for attribute in changes {
        all.retain(|other| other.name != attribute.name);
        all.push(attribute);
    }
    check(&contrib("MatMulNBits", "a b s", "y", all, inputs), expected);
}

#[test]
fn matmuls_with_weights_of_few_bits_refuse_by_name() {
    check_n_bits(
        "2 3 8",
        U8,
        vec![int("bits", 3)],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.MatMulNBits): `bits` = 3: quantise to 2, 4 or 8"#]],
    );
    check_n_bits(
        "2 3 8",
        U8,
        vec![int("weight_prepacked", 1)],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.MatMulNBits): weights packed for one GPU (`weight_prepacked`): export them as they are"#]],
    );
    check_n_bits(
        "2 3 8",
        I32,
        vec![],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.MatMulNBits): weights that are not packed into bytes: quantise them to uint8"#]],
    );
    check_n_bits(
        "0 3 8",
        U8,
        vec![],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.MatMulNBits): a projection that is left out (empty `B`): remove the node"#]],
    );
    check_n_bits(
        "2 3 8",
        U8,
        vec![int("block_size", 24)],
        &expect!["`y` (MatMulNBits): `block_size` must be a power of two from 16 on; got 24"],
    );
    check_n_bits(
        "2 3 8",
        U8,
        vec![int("block_size", 8)],
        &expect!["`y` (MatMulNBits): `block_size` must be a power of two from 16 on; got 8"],
    );
    check_n_bits(
        "2 3 8",
        U8,
        vec![int("K", i64::MAX)],
        &expect![
            "`y` (MatMulNBits): `K` must be positive and fit into 31 bits; got 9223372036854775807"
        ],
    );
    check_n_bits(
        "2 3 8",
        U8,
        vec![int("N", 0)],
        &expect!["`y` (MatMulNBits): `N` must be positive and fit into 31 bits; got 0"],
    );
    check_n_bits(
        "2 2 8",
        U8,
        vec![],
        &expect!["`y` (MatMulNBits): u8[2, 2, 8] has not as many elements as [2, 3, 8]"],
    );
}

/// A table `[7, 24]` of which rows are gathered.
fn check_gather(dtype: i32, names: &str, attributes: Vec<AttributeProto>, expected: &Expect) {
    let inputs = vec![
        value("d", dtype, "7 24"),
        value("i", I32, "2"),
        value("s", F32, "7 3"),
        value("z", dtype, "7 2"),
    ];
    check(&contrib("GatherBlockQuantized", names, "y", attributes, inputs), expected);
}

#[test]
fn quantised_tables_refuse_by_name() {
    check_gather(
        U8,
        "d i s",
        vec![int("bits", 5)],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.GatherBlockQuantized): `bits` = 5: quantise to 2, 4 or 8"#]],
    );
    check_gather(
        I8,
        "d i s",
        vec![int("block_size", 16)],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.GatherBlockQuantized): a table of i8 with `bits` = 4: 4 bits as int4 or uint4, others as uint8"#]],
    );
    check_gather(
        U8,
        "d i s",
        vec![int("gather_axis", 1)],
        &expect![
            "`y` (GatherBlockQuantized): bytes are gathered along axis 0 and quantised along the last"
        ],
    );
    check_gather(
        U8,
        "d i s",
        vec![int("quantize_axis", 0)],
        &expect![
            "`y` (GatherBlockQuantized): bytes are gathered along axis 0 and quantised along the last"
        ],
    );
    check_gather(
        U8,
        "d i s",
        vec![int("quantize_axis", 2)],
        &expect!["`y` (GatherBlockQuantized): axis 2 does not fit 2 dims"],
    );
    check_gather(
        U8,
        "d i s",
        vec![int("block_size", 0)],
        &expect![
            "`y` (GatherBlockQuantized): `block_size` must be a power of two from 16 on; got 0"
        ],
    );
    check_gather(
        17,
        "d i s z",
        vec![int("block_size", 0)],
        &expect!["`y` (GatherBlockQuantized): a table of floats has no `zero_points`"],
    );
    check_gather(
        22,
        "d i s",
        vec![int("bits", 8), int("block_size", 16)],
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.GatherBlockQuantized): a table of i4 with `bits` = 8: 4 bits as int4 or uint4, others as uint8"#]],
    );
}

#[test]
fn quantised_layers_refuse_by_name() {
    let attention = |attribute| {
        let inputs = vec![
            value("x", U8, "2 3 8"),
            value("w", U8, "8 24"),
            value("b", F32, "24"),
            value("s", F32, ""),
        ];
        contrib("QAttention", "x w b s s", "y", vec![int("num_heads", 2), attribute], inputs)
    };
    check(
        &attention(int("do_rotary", 1)),
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.QAttention): `do_rotary`: export RotaryEmbedding before the attention"#]],
    );
    check(
        &attention(int("past_present_share_buffer", 1)),
        &expect![[r#"
        1 part of the model is not supported:
          `y` (com.microsoft.QAttention): `past_present_share_buffer`: export a past of its own"#]],
    );
    let gemm = |names: &str| {
        let inputs = vec![value("a", U8, "2 3"), value("b", U8, "3 4"), value("s", F32, "")];
        contrib("QGemm", names, "y", vec![], inputs)
    };
    check(
        &gemm("a s _ b s _ _ s"),
        &expect!["`y` (QGemm): `y_scale` and `y_zero_point` must both be given, or neither"],
    );
    check(&gemm("a s"), &expect!["`y` (QGemm): input 3 is required"]);
    let lstm = |names: &str, attributes| {
        let inputs = vec![
            value("x", F32, "4 2 3"),
            value("w", I8, "1 3 20"),
            value("r", I8, "1 5 20"),
            value("s", F32, "1"),
            value("z", I8, "1"),
        ];
        contrib("DynamicQuantizeLSTM", names, "y", attributes, inputs)
    };
    let all = "x w r _ _ _ _ _ s z s z";
    check(
        &lstm(all, vec![int("hidden_size", 4)]),
        &expect!["`y` (DynamicQuantizeLSTM): `hidden_size` is not that of the recurrence weights"],
    );
    check(
        &lstm(all, vec![text("direction", "sideways")]),
        &expect!["`y` (DynamicQuantizeLSTM): `direction` is none of the known ones"],
    );
    check(&lstm("x w r", vec![]), &expect!["`y` (DynamicQuantizeLSTM): input 8 is required"]);
}

/// The result of `MatMulNBits` of 8 bits with `[1, 32]` and a weight of one row in two blocks, and these inputs after the
/// scales.
fn n_bits(names: &str, zero_points: i32, more: &[(Tensor, &str)]) -> Tensor {
    let mut inputs = vec![
        value("a", F32, "1 32"),
        value("b", U8, "1 2 16"),
        value("s", F32, "1 2"),
        value("z", zero_points, "1 2"),
    ];
    let floats = |n: usize, by: f32| (0..n).map(|i| (i as f32 - 7.0) * by).collect::<Vec<f32>>();
    let bytes: Vec<u8> = (0..32_u8).map(|i| i.wrapping_mul(37)).collect();
    let mut given = vec![
        Tensor::from_vec(vec![1, 32], floats(32, 0.25)).unwrap(),
        Tensor::from_vec(vec![1, 2, 16], bytes).unwrap(),
        Tensor::from_vec(vec![1, 2], vec![0.5_f32, 0.25]).unwrap(),
    ];
    for (tensor, name) in more {
        if *name != "z" {
            inputs.push(value(name, I32, "32"));
        }
        given.push(tensor.clone());
    }
    let attributes = vec![int("K", 32), int("N", 1), int("bits", 8), int("block_size", 16)];
    let model = contrib("MatMulNBits", names, "y", attributes, inputs);
    evaluate(&imported(&model).unwrap().graph, &given).unwrap().remove(0)
}

#[test]
fn zero_points_of_bytes_may_be_floats_and_are_those_of_their_groups() {
    let bytes = Tensor::from_vec(vec![1, 2], vec![3_u8, 200]).unwrap();
    let plain = n_bits("a b s z", U8, &[(bytes.clone(), "z")]);
    let floats = Tensor::from_vec(vec![1, 2], vec![3.0_f32, 200.0]).unwrap();
    assert_eq!(n_bits("a b s z", F32, &[(floats, "z")]), plain);
    let groups = |at: usize| {
        let groups: Vec<i32> = (0..32).map(|k| i32::from((k < 16) == (at == 1))).collect();
        Tensor::from_vec(vec![32], groups).unwrap()
    };
    // In order, and with the two groups exchanged, their scales and zero points with them.
    let z = (bytes, "z");
    assert_eq!(n_bits("a b s z g", U8, &[z.clone(), (groups(0), "g")]), plain);
    let (mut first, mut second) = (0.0_f32, 0.0_f32);
    for k in 0..32_u8 {
        let (a, q) = ((f32::from(k) - 7.0) * 0.25, f32::from(k.wrapping_mul(37)));
        let (of_first, of_second) = (a * (q - 3.0) * 0.5, a * (q - 200.0) * 0.25);
        let (own, other) = if k < 16 { (of_first, of_second) } else { (of_second, of_first) };
        (first, second) = (first + own, second + other);
    }
    let one = |x: &Tensor| x.as_slice::<f32>().unwrap()[0];
    assert!((one(&plain) - first).abs() < 1e-3, "{plain:?} {first}");
    let exchanged = n_bits("a b s z g", U8, &[z, (groups(1), "g")]);
    assert!((one(&exchanged) - second).abs() < 1e-3, "{exchanged:?} {second}");
}
