//! Every model is a well-formed graph whose weights lie where it says.

use std::collections::HashSet;

use graphene_frontend::onnx::{GraphProto, TensorProto};
use graphene_models::{Activation, NEWEST_OPSET, OLDEST_OPSET, Options, Source, Weights, ZooError};
use graphene_models::{build, names};

use crate::zoo;

fn check_graph(name: &str, graph: &GraphProto) {
    let mut defined = HashSet::from([""]);
    let weights = graph.initializer.iter().map(|tensor| tensor.name.as_str());
    for name in graph.input.iter().map(|input| input.name.as_str()).chain(weights) {
        assert!(defined.insert(name), "{name} is defined twice");
    }
    let (mut used, mut labels) = (HashSet::new(), HashSet::new());
    for node in &graph.node {
        assert!(labels.insert(&node.name), "{name}: two nodes are called {}", node.name);
        for operand in &node.input {
            assert!(defined.contains(operand.as_str()), "{name}: {operand} is not defined yet");
            used.insert(operand.as_str());
        }
        for output in &node.output {
            assert!(defined.insert(output), "{name}: {output} is defined twice");
        }
    }
    for output in &graph.output {
        assert!(defined.contains(output.name.as_str()), "{name}: output {}", output.name);
        used.insert(output.name.as_str());
    }
    for node in &graph.node {
        let live = node.output.iter().any(|output| used.contains(output.as_str()));
        assert!(live, "{name}: nothing uses {}", node.name);
    }
    for name in graph.initializer.iter().map(|tensor| &tensor.name) {
        assert!(used.contains(name.as_str()), "nothing uses the weight {name}");
    }
}

fn check_weights(name: &str, initializers: &[TensorProto], weights: &Weights) {
    assert_eq!(initializers.len(), weights.iter().count(), "{name}");
    let mut end = 0;
    for (tensor, weight) in initializers.iter().zip(weights.iter()) {
        let entry = |key: &str| {
            let found = tensor.external_data.iter().find(|entry| entry.key == key);
            found.map(|entry| entry.value.as_str()).unwrap()
        };
        assert_eq!(tensor.name, weight.name());
        assert_eq!(entry("location"), weights.location());
        assert_eq!(entry("offset"), weight.offset().to_string());
        assert_eq!(entry("length"), weight.length().to_string());
        assert_eq!(tensor.dims.iter().product::<i64>() as u64 * 4, weight.length());
        assert!(weight.offset() >= end && weight.offset() % 64 == 0, "{name}: {}", tensor.name);
        end = weight.offset() + weight.length();
    }
    assert_eq!(end, weights.length(), "{name}");
}

fn check_model(name: &str, options: &Options) {
    let model = zoo(name, options);
    assert_eq!(model.model().opset_import[0].version, options.opset);
    let graph = model.model().graph.as_ref().unwrap();
    check_graph(name, graph);
    check_weights(name, &graph.initializer, model.weights());
}

#[test]
fn every_model_is_well_formed_at_every_opset_and_source() {
    for (name, _) in names() {
        for opset in OLDEST_OPSET..=NEWEST_OPSET {
            for source in Source::ALL {
                check_model(name, &Options { opset, source, ..Options::default() });
            }
        }
        check_model(name, &Options { decomposed_layer_norm: true, ..Options::default() });
    }
    for activation in Activation::ALL {
        check_model(&format!("mlp-{activation}-3x32"), &Options::default());
    }
}

#[test]
fn sizes_are_the_published_ones() {
    let parameters = |name| zoo(name, &Options::default()).weights().parameters();
    assert_eq!(parameters("bert-base"), 109_482_240);
    assert_eq!(parameters("bert-large"), 335_141_888);
    assert_eq!(parameters("albert-base"), 11_683_584);
    assert_eq!(parameters("roberta-base"), 124_645_632);
    assert_eq!(parameters("distilroberta"), 82_118_400);
    assert_eq!(parameters("xlm-roberta-base"), 278_043_648);
}

#[test]
fn options_replace_sizes() {
    let options = Options { layers: Some(3), width: Some(16), ..Options::default() };
    let by_option = zoo("mlp", &options);
    assert_eq!(
        by_option.model().graph,
        zoo("mlp-3x16", &Options::default()).model().graph.clone().map(|mut graph| {
            // Only the location, which is called after the model, differs.
            for entry in graph.initializer.iter_mut().flat_map(|tensor| &mut tensor.external_data) {
                if entry.key == "location" {
                    by_option.weights().location().clone_into(&mut entry.value);
                }
            }
            graph
        })
    );
}

#[test]
fn unknown_names_bring_near_ones() {
    let near = |name| match build(name, &Options::default()) {
        Err(ZooError::UnknownName { near, .. }) => near,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(near("bert-bse")[0], "bert-base");
    assert_eq!(near("robert-base")[0], "roberta-base");
    assert!(near("albert").contains(&"albert-base".to_owned()));
    assert_eq!(near("resnet50"), Vec::<String>::new());
    for malformed in ["mlp-0x4", "mlp-4", "mlp-8x064", "mlp-+8x4", "fmha-99999999x2", "lstm-", ""] {
        near(malformed);
    }
}

#[test]
fn options_out_of_range_or_out_of_place_are_refused() {
    let refused = |name, options| match build(name, &options) {
        Err(ZooError::Option { option, .. }) => option,
        other => panic!("{name}: {other:?}"),
    };
    let default = Options::default;
    assert_eq!(refused("bert-base-tiny", Options { opset: 10, ..default() }), "opset");
    assert_eq!(refused("bert-base-tiny", Options { opset: 21, ..default() }), "opset");
    assert_eq!(refused("bert-base-tiny", Options { layers: Some(0), ..default() }), "layers");
    assert_eq!(refused("bert-base-tiny", Options { width: Some(8), ..default() }), "width");
    assert_eq!(refused("mlp", Options { width: Some(1 << 40), ..default() }), "width");
    assert_eq!(refused("fmha", Options { layers: Some(2), ..default() }), "layers");
    let activation = Some(Activation::Relu);
    assert_eq!(refused("lstm", Options { activation, ..default() }), "activation");
    let huge = build("mlp-1024x65536", &default());
    assert!(matches!(huge, Err(ZooError::TooLarge { .. })), "{huge:?}");
}
