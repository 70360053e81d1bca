//! Nodes of `ai.onnx.ml` that are malformed, or hold what tensors cannot; what is right is compared with onnxruntime by
//! the runtime's suites.

use crate::model::{
    graph, imported, int, int_list, ints, model, node, number_list, tensor, text, text_list, value,
};
use expect_test::{Expect, expect};
use graphene_frontend::eval::evaluate;
use graphene_frontend::onnx::{
    AttributeProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
};
use graphene_frontend::tensor::Tensor;

fn ml(op: &str, outputs: &str, attributes: Vec<AttributeProto>) -> NodeProto {
    NodeProto { domain: "ai.onnx.ml".into(), attribute: attributes, ..node(op, "x", outputs) }
}

fn of_nodes(nodes: Vec<NodeProto>, outputs: &[&str]) -> ModelProto {
    let mut model = model(graph(vec![value("x", 1, "n 2")], nodes, outputs));
    let domain = "ai.onnx.ml".to_owned();
    model.opset_import.push(OperatorSetIdProto { domain, version: 5 });
    model
}

/// A stump, and a tree of one leaf, of which attributes can be changed.
fn stump(changes: Vec<AttributeProto>) -> Vec<AttributeProto> {
    let mut attributes = vec![
        int_list("nodes_treeids", &[0, 0, 0, 1]),
        int_list("nodes_nodeids", &[0, 1, 2, 0]),
        int_list("nodes_featureids", &[1, 0, 0, 0]),
        text_list("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF", "LEAF"]),
        number_list("nodes_values", &[0.5, 0.0, 0.0, 0.0]),
        int_list("nodes_truenodeids", &[1, 0, 0, 0]),
        int_list("nodes_falsenodeids", &[2, 0, 0, 0]),
        int_list("target_treeids", &[0, 0, 1]),
        int_list("target_nodeids", &[1, 2, 0]),
        int_list("target_ids", &[0, 0, 0]),
        number_list("target_weights", &[1.0, 2.0, 4.0]),
    ];
    for change in changes {
        attributes.retain(|attribute| attribute.name != change.name);
        attributes.push(change);
    }
    attributes
}

fn check_tree(changes: Vec<AttributeProto>, expected: &Expect) {
    let model = of_nodes(vec![ml("TreeEnsembleRegressor", "y", stump(changes))], &["y"]);
    expected.assert_eq(&imported(&model).expect_err("it is refused").to_string());
}

#[test]
fn a_tree_is_walked() {
    let model = of_nodes(vec![ml("TreeEnsembleRegressor", "y", stump(vec![]))], &["y"]);
    let x = Tensor::from_vec(vec![2, 2], vec![0.0_f32, 0.5, 0.0, 0.6]).unwrap();
    let y = evaluate(&imported(&model).unwrap().graph, &[x]).unwrap();
    assert_eq!(y, [Tensor::from_vec(vec![2, 1], vec![5.0_f32, 6.0]).unwrap()]);
}

#[test]
fn malformed_trees_are_refused() {
    check_tree(
        vec![int_list("nodes_truenodeids", &[9, 0, 0, 0])],
        &expect!["`y` (TreeEnsembleRegressor): there is no node 9 in tree 0"],
    );
    check_tree(
        vec![int_list("nodes_truenodeids", &[0, 0, 0, 0])],
        &expect!["`y` (TreeEnsembleRegressor): a branch of a tree leads back to itself"],
    );
    check_tree(
        vec![int_list("nodes_featureids", &[2, 0, 0, 0])],
        &expect!["`y` (TreeEnsembleRegressor): a tree tests feature 2, of 2 features"],
    );
    check_tree(
        vec![int_list("nodes_featureids", &[-1, 0, 0, 0])],
        &expect!["`y` (TreeEnsembleRegressor): nodes_featureids must not be negative; got -1"],
    );
    check_tree(
        vec![int_list("nodes_featureids", &[1])],
        &expect![
            "`y` (TreeEnsembleRegressor): needs as many `nodes_featureids` as other attributes have: 4; got 1"
        ],
    );
    check_tree(
        vec![int_list("nodes_nodeids", &[0, 1, 1, 0])],
        &expect!["`y` (TreeEnsembleRegressor): node 1 of tree 0 is given twice"],
    );
    check_tree(
        vec![text_list("nodes_modes", &["BRANCH_MEMBER", "LEAF", "LEAF", "LEAF"])],
        &expect![
            "`y` (TreeEnsembleRegressor): nodes_modes must be BRANCH_LEQ, BRANCH_LT, BRANCH_GTE, BRANCH_GT, BRANCH_EQ, BRANCH_NEQ or LEAF; got BRANCH_MEMBER"
        ],
    );
    check_tree(
        vec![int_list("target_ids", &[0, 1, 0])],
        &expect!["`y` (TreeEnsembleRegressor): target_ids must be 0 to 0; got 1"],
    );
    check_tree(
        vec![int_list("target_nodeids", &[1, 7, 0])],
        &expect!["`y` (TreeEnsembleRegressor): there is no node 7 in tree 0"],
    );
    check_tree(
        vec![number_list("target_weights", &[1.0])],
        &expect![
            "`y` (TreeEnsembleRegressor): needs as many `target_weights` as other attributes have: 3; got 1"
        ],
    );
    check_tree(
        vec![number_list("base_values", &[1.0, 2.0])],
        &expect!["`y` (TreeEnsembleRegressor): needs 1 base_values or none; got 2"],
    );
    check_tree(
        vec![int("n_targets", i64::MAX)],
        &expect![
            "`y` (TreeEnsembleRegressor): n_targets must be 1 to 65536; got 9223372036854775807"
        ],
    );
    check_tree(
        vec![int("n_targets", 0)],
        &expect!["`y` (TreeEnsembleRegressor): n_targets must be 1 to 65536; got 0"],
    );
    check_tree(
        vec![text("aggregate_function", "MEDIAN")],
        &expect![
            "`y` (TreeEnsembleRegressor): aggregate_function must be one of AVERAGE, SUM, MIN, MAX; got MEDIAN"
        ],
    );
    check_tree(
        vec![text("post_transform", "EXP")],
        &expect![
            "`y` (TreeEnsembleRegressor): post_transform must be one of NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO, PROBIT; got EXP"
        ],
    );
    let none: [&[i64]; 1] = [&[]];
    let lists = ["treeids", "nodeids", "featureids", "truenodeids", "falsenodeids"];
    let mut empty: Vec<_> =
        lists.iter().map(|name| int_list(&format!("nodes_{name}"), none[0])).collect();
    empty.push(text_list("nodes_modes", &[]));
    empty.push(number_list("nodes_values", &[]));
    empty
        .extend(["treeids", "nodeids", "ids"].map(|name| int_list(&format!("target_{name}"), &[])));
    empty.push(number_list("target_weights", &[]));
    check_tree(empty, &expect!["`y` (TreeEnsembleRegressor): there are no trees"]);
}

/// A chain of branches, each of whose false sides is the next.
fn chain(depth: usize) -> Vec<AttributeProto> {
    let count = depth + 2;
    let ids: Vec<i64> = (0..count as i64).collect();
    let leaf = depth as i64 + 1;
    let next = |i: i64| if i < depth as i64 { i + 1 } else { 0 };
    let mode = |i: &i64| if *i < depth as i64 { "BRANCH_LEQ" } else { "LEAF" };
    let modes: Vec<_> = ids.iter().map(mode).collect();
    stump(vec![
        int_list("nodes_treeids", &vec![0; count]),
        int_list("nodes_nodeids", &ids),
        int_list("nodes_featureids", &vec![0; count]),
        text_list("nodes_modes", &modes),
        number_list("nodes_values", &vec![0.0; count]),
        int_list("nodes_truenodeids", &vec![leaf; count]),
        int_list("nodes_falsenodeids", &ids.iter().map(|&i| next(i)).collect::<Vec<_>>()),
        int_list("target_treeids", &[0, 0]),
        int_list("target_nodeids", &[depth as i64, leaf]),
        int_list("target_ids", &[0, 0]),
        number_list("target_weights", &[1.0, 2.0]),
    ])
}

#[test]
fn deep_trees_end() {
    let model = |depth| of_nodes(vec![ml("TreeEnsembleRegressor", "y", chain(depth))], &["y"]);
    assert!(imported(&model(60)).is_ok());
    let error = imported(&model(200_000)).expect_err("it is too deep").to_string();
    expect![[r#"
        1 part of the model is not supported:
          `y` (ai.onnx.ml.TreeEnsembleRegressor): a tree 200000 branches deep; at most 1000"#]]
    .assert_eq(&error);
}

/// A tensor of numbers as an attribute.
fn numbers(name: &str, values: &[f32]) -> AttributeProto {
    let data = TensorProto {
        dims: vec![values.len() as i64],
        data_type: 1,
        float_data: values.to_vec(),
        ..Default::default()
    };
    tensor(name, data)
}

/// A stump of version 5, of which attributes can be changed.
fn ensemble(changes: Vec<AttributeProto>) -> ModelProto {
    let mut attributes = vec![
        int_list("tree_roots", &[0]),
        int_list("nodes_featureids", &[0]),
        numbers("nodes_splits", &[0.0]),
        numbers("nodes_modes", &[0.0]),
        int_list("nodes_truenodeids", &[0]),
        int_list("nodes_trueleafs", &[1]),
        int_list("nodes_falsenodeids", &[1]),
        int_list("nodes_falseleafs", &[1]),
        int_list("leaf_targetids", &[0, 1]),
        numbers("leaf_weights", &[1.0, 3.0]),
        int("n_targets", 2),
    ];
    for change in changes {
        attributes.retain(|attribute| attribute.name != change.name);
        attributes.push(change);
    }
    of_nodes(vec![ml("TreeEnsemble", "y", attributes)], &["y"])
}

#[test]
fn malformed_ensembles_are_refused() {
    let rows = [
        (
            int_list("tree_roots", &[5]),
            expect!["`y` (TreeEnsemble): a branch leads to a node that there is not"],
        ),
        (
            int_list("tree_roots", &[-1]),
            expect!["`y` (TreeEnsemble): a branch leads to a node that there is not"],
        ),
        (int_list("tree_roots", &[]), expect!["`y` (TreeEnsemble): there are no trees"]),
        (
            int_list("nodes_falseleafs", &[0]),
            expect!["`y` (TreeEnsemble): a branch leads to a node that there is not"],
        ),
        (
            int_list("nodes_truenodeids", &[-3]),
            expect!["`y` (TreeEnsemble): a branch leads to a node that there is not"],
        ),
        (
            int_list("leaf_targetids", &[0, 2]),
            expect!["`y` (TreeEnsemble): leaf_targetids must be 0 to 1; got 2"],
        ),
        (
            int_list("leaf_targetids", &[0]),
            expect![
                "`y` (TreeEnsemble): needs as many `leaf_weights` as other attributes have: 1; got 2"
            ],
        ),
        (
            numbers("nodes_modes", &[7.0]),
            expect!["`y` (TreeEnsemble): nodes_modes must be 0 to 6; got 7"],
        ),
        (
            numbers("nodes_splits", &[1.0, 2.0]),
            expect![
                "`y` (TreeEnsemble): needs as many `nodes_splits` as other attributes have: 1; got 2"
            ],
        ),
        (
            int("aggregate_function", 4),
            expect!["`y` (TreeEnsemble): aggregate_function must be 0 to 3; got 4"],
        ),
        (
            int("post_transform", -1),
            expect![
                "`y` (TreeEnsemble): post_transform must be one of NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO, PROBIT; got -1"
            ],
        ),
    ];
    for (change, expected) in rows {
        let error = imported(&ensemble(vec![change])).expect_err("it is refused");
        expected.assert_eq(&error.to_string());
    }
}

/// The numbers of transforms are ONNX's: 1 is the softmax, 2 the logistic function.
#[test]
fn transforms_have_their_numbers() {
    let x = || Tensor::from_vec(vec![1, 2], vec![-1.0_f32, 0.0]).unwrap();
    let scores = |number: i64| {
        let graph = imported(&ensemble(vec![int("post_transform", number)])).unwrap().graph;
        evaluate(&graph, &[x()]).unwrap()[0].as_slice::<f32>().unwrap().to_vec()
    };
    let (e, logistic) = (1_f32.exp(), 1.0 / (1.0 + (-1_f32).exp()));
    for (number, expected) in
        [(0, [1.0, 0.0]), (1, [e / (e + 1.0), 1.0 / (e + 1.0)]), (2, [logistic, 0.5])]
    {
        for (found, expected) in scores(number).into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{number}: {found}, not {expected}");
        }
    }
}

/// Two classes with a weight each way: the class of the larger score, where onnxruntime gives 1 or 0, labels or not.
#[test]
fn the_larger_score_of_two_classes_wins() {
    let mut attributes = stump(vec![int_list("target_ids", &[0, 1, 1])]);
    for attribute in &mut attributes {
        attribute.name = attribute.name.replace("target_", "class_");
    }
    attributes.push(int_list("classlabels_int64s", &[4, 9]));
    attributes.push(number_list("base_values", &[3.5, 0.0]));
    let nodes = vec![ml("TreeEnsembleClassifier", "label y", attributes)];
    let graph = imported(&of_nodes(nodes, &["label", "y"])).unwrap().graph;
    let x = Tensor::from_vec(vec![2, 2], vec![0.0_f32, 0.5, 0.0, 0.6]).unwrap();
    let found = evaluate(&graph, &[x]).unwrap();
    assert_eq!(found[0].as_slice::<i64>().unwrap(), [4, 9]);
    assert_eq!(found[1].as_slice::<f32>().unwrap(), [4.5, 4.0, 3.5, 6.0]);
}

fn linear(outputs: &str) -> NodeProto {
    let attributes = vec![
        number_list("coefficients", &[1.0, 0.0, 0.0, 1.0]),
        number_list("intercepts", &[0.0, 0.5]),
        text_list("classlabels_strings", &["no", "yes"]),
    ];
    ml("LinearClassifier", outputs, attributes)
}

#[test]
fn labels_of_texts_are_refused_where_they_are_read() {
    assert!(imported(&of_nodes(vec![linear("label y")], &["y"])).is_ok(), "nothing reads them");
    let as_output = imported(&of_nodes(vec![linear("label y")], &["label", "y"])).unwrap_err();
    expect![[r#"
        1 part of the model is not supported:
          `label`: holds labels that are texts (`classlabels_strings`), and tensors of texts are not supported: use the scores alone, or export the model with integer labels"#]].assert_eq(&as_output.to_string());
    let nodes = vec![linear("label y"), node("Identity", "label", "z")];
    let as_input = imported(&of_nodes(nodes, &["y", "z"])).unwrap_err();
    expect![[r#"
        1 part of the model is not supported:
          `z` (Identity): its input `label` holds labels that are texts (`classlabels_strings`), and tensors of texts are not supported: use the scores alone, or export the model with integer labels"#]].assert_eq(&as_input.to_string());
}

#[test]
fn maps_of_scores_are_told_of() {
    let zip = NodeProto {
        attribute: vec![text_list("classlabels_strings", &["no", "yes"])],
        domain: "ai.onnx.ml".into(),
        ..node("ZipMap", "y", "z")
    };
    let imported = imported(&of_nodes(vec![linear("label y"), zip], &["z"])).unwrap();
    let (_, z) = imported.graph.outputs()[0];
    assert_eq!(imported.graph.ty(z).to_string(), "f32[n, 2]");
    expect![[
        r#"the maps of ZipMap are a table: a row a sample, a column each of the labels "no", "yes""#
    ]]
    .assert_eq(&imported.notes.join("\n"));
}

#[test]
fn malformed_models_are_refused() {
    let one = |name: &str| number_list(name, &[1.0]);
    let svm = |rest: Vec<AttributeProto>| {
        let more = [one("rho"), int_list("classlabels_ints", &[0, 1])];
        ml("SVMClassifier", "l y", [more.to_vec(), rest].concat())
    };
    let rows: Vec<(NodeProto, Expect)> = vec![
        (
            ml("LinearRegressor", "y", vec![]),
            expect!["`y` (LinearRegressor): attribute `coefficients` is required"],
        ),
        (
            ml("LinearRegressor", "y", vec![one("coefficients"), int("targets", 3)]),
            expect!["`y` (LinearRegressor): needs numbers for 3 rows of equal length; got 1"],
        ),
        (
            ml("LinearRegressor", "y", vec![number_list("coefficients", &[1.0; 3])]),
            expect!["`y` (LinearRegressor): dims 2 and 3 must be equal"],
        ),
        (
            ml("LinearClassifier", "l y", vec![one("coefficients"), one("intercepts")]),
            expect!["`l` (LinearClassifier): attribute `classlabels_ints` is required"],
        ),
        (
            ml(
                "LinearClassifier",
                "l y",
                vec![
                    number_list("coefficients", &[1.0; 6]),
                    number_list("intercepts", &[1.0; 3]),
                    int_list("classlabels_ints", &[0, 1]),
                ],
            ),
            expect!["`l` (LinearClassifier): needs 2 intercepts, one a class; got 3"],
        ),
        (
            svm(vec![int_list("vectors_per_class", &[1])]),
            expect!["`l` (SVMClassifier): attribute `support_vectors` is required"],
        ),
        (
            svm(vec![
                int_list("vectors_per_class", &[1, i64::MAX]),
                one("support_vectors"),
                one("coefficients"),
            ]),
            expect![
                "`l` (SVMClassifier): needs numbers for 9223372036854775808 rows of equal length; got 1"
            ],
        ),
        (
            svm(vec![
                int_list("vectors_per_class", &[1, -1]),
                one("support_vectors"),
                one("coefficients"),
            ]),
            expect!["`l` (SVMClassifier): vectors_per_class must not be negative; got -1"],
        ),
        (
            svm(vec![
                int_list("vectors_per_class", &[1, 1]),
                number_list("support_vectors", &[1.0; 4]),
                one("coefficients"),
            ]),
            expect!["`l` (SVMClassifier): needs coefficients, 1 rows of 2 support vectors; got 1"],
        ),
        (
            svm(vec![
                int_list("vectors_per_class", &[1, 1]),
                number_list("support_vectors", &[1.0; 4]),
                number_list("coefficients", &[1.0; 2]),
                number_list("prob_a", &[1.0; 2]),
            ]),
            expect!["`l` (SVMClassifier): attribute `prob_b` is required"],
        ),
        (
            ml(
                "SVMRegressor",
                "y",
                vec![
                    int("n_supports", 1),
                    one("coefficients"),
                    one("rho"),
                    number_list("support_vectors", &[1.0; 2]),
                    text("kernel_type", "SPLINE"),
                ],
            ),
            expect![
                "`y` (SVMRegressor): kernel_type must be one of LINEAR, POLY, RBF, SIGMOID; got SPLINE"
            ],
        ),
        (
            ml("Normalizer", "y", vec![text("norm", "L3")]),
            expect!["`y` (Normalizer): norm must be one of MAX, L1, L2; got L3"],
        ),
        (
            ml("Scaler", "y", vec![number_list("scale", &[1.0; 3])]),
            expect!["`y` (Scaler): shapes [n, 2] and [3] do not broadcast"],
        ),
        (
            ml("Imputer", "y", vec![]),
            expect!["`y` (Imputer): attribute `imputed_value_floats` is required"],
        ),
        (
            ml("OneHotEncoder", "y", vec![text_list("cats_strings", &["a"])]),
            expect![[r#"
                1 part of the model is not supported:
                  `y` (ai.onnx.ml.OneHotEncoder): categories that are texts (`cats_strings`)"#]],
        ),
        (
            ml("LabelEncoder", "y", vec![text_list("keys_strings", &["a"])]),
            expect![[r#"
                1 part of the model is not supported:
                  `y` (ai.onnx.ml.LabelEncoder): keys that are texts (`keys_strings`)"#]],
        ),
        (
            ml("LabelEncoder", "y", vec![one("keys_floats"), int_list("values_int64s", &[1, 2])]),
            expect!["`y` (LabelEncoder): needs as many keys as values, at least one; got 1 and 2"],
        ),
        (
            ml("FeatureVectorizer", "y", vec![int_list("inputdimensions", &[-2])]),
            expect!["`y` (FeatureVectorizer): inputdimensions must not be negative; got -2"],
        ),
        (
            ml("DictVectorizer", "y", vec![]),
            expect![[r#"
            1 part of the model is not supported:
              `y` (ai.onnx.ml.DictVectorizer): there is no such operator here"#]],
        ),
    ];
    for (node, expected) in rows {
        let model = of_nodes(vec![node], &["y"]);
        expected.assert_eq(&imported(&model).expect_err("it is refused").to_string());
    }
}

/// Boxes and scores of detectors that do not fit, and thresholds out of range.
#[test]
fn malformed_boxes_are_refused() {
    let rows: [(&str, &str, &str, Expect); 4] = [
        (
            "2 3 4",
            "2 1 5",
            "boxes scores most",
            expect!["`y` (NonMaxSuppression): 2 batches of 3 boxes, but scores for 2 of 5"],
        ),
        (
            "2 3 5",
            "2 1 3",
            "boxes scores most",
            expect!["`y` (NonMaxSuppression): a box has four coordinates"],
        ),
        (
            "3 4",
            "2 1 3",
            "boxes scores most",
            expect![
                "`y` (NonMaxSuppression): needs boxes [batch, n, 4] and scores [batch, classes, n]"
            ],
        ),
        (
            "2 3 4",
            "2 1 3",
            "boxes scores most two",
            expect!["`y` (NonMaxSuppression): iou_threshold must be within 0 and 1; got 2"],
        ),
    ];
    let zeros = |name: &str, dims: &str| {
        let dims: Vec<i64> = dims.split(' ').map(|dim| dim.parse().unwrap()).collect();
        let count = dims.iter().product::<i64>() as usize;
        TensorProto {
            name: name.into(),
            dims,
            data_type: 1,
            float_data: vec![0.0; count],
            ..Default::default()
        }
    };
    for (boxes, scores, inputs, expected) in rows {
        let mut graph = graph(vec![], vec![node("NonMaxSuppression", inputs, "y")], &["y"]);
        graph.initializer = vec![zeros("boxes", boxes), zeros("scores", scores)];
        graph.initializer.push(ints("most", &[1], &[1]));
        graph.initializer.push(TensorProto {
            name: "two".into(),
            data_type: 1,
            float_data: vec![2.0],
            ..Default::default()
        });
        let error = imported(&model(graph)).expect_err("it is refused");
        expected.assert_eq(&error.to_string());
    }
}
