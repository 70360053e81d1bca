//! Decoders as exporters write them: how many launches a layer takes, and what the rewritten graph and its kernels compute.

use crate::kernels::{TARGETS, check, tensor};
use crate::{fixtures, kernels, sizes};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, Reading, import, read_model};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::testdata::compare;
use graphene_frontend::text::parse;
use graphene_fusion::groups::Family;
use graphene_fusion::kernels::launches;
use graphene_fusion::{Granularity, plan, verify};
use std::path::Path;

/// Exports by `data/decoders.py`, each with the most launches from one attention to the next, and of all.
const ALL: [(&str, usize, usize); 7] = [
    ("llama-script-f16-sdpa", 15, 41),
    ("llama-script-f16-sdpa-prefill", 15, 39),
    ("llama-dynamo-f16-eager", 14, 39),
    ("llama-dynamo-bf16-sdpa", 14, 39),
    ("mistral-script-f32-eager", 14, 42),
    ("gpt2-script-f16-sdpa", 10, 25),
    ("gpt2-dynamo-f16-eager", 8, 22),
];

fn imported(name: &str) -> Graph {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/decoders");
    let (model, weights) =
        read_model(folder.join(format!("{name}.onnx")), Reading::Mapped).unwrap();
    import(model, &weights, &ImportOptions::default()).unwrap().graph
}

/// Two sequences, so many new tokens of each, behind so many that are known.
fn sized(graph: &Graph, sequence: i64, past: i64) -> Bindings {
    let mut bindings = sizes(&[]);
    for symbol in graph.symbols() {
        let size = match symbol.name() {
            "batch" => 2,
            "sequence" => sequence,
            "past" => past,
            _ => past + sequence,
        };
        bindings.bind(symbol, size).unwrap();
    }
    bindings
}

/// Ids, positions, random caches, and a mask that leaves out a key which no query needs to have any.
fn inputs(graph: &Graph, bindings: &Bindings, past: i64) -> Vec<Tensor> {
    let input = |(seed, id): (usize, &graphene_frontend::graph::NodeId)| {
        let node = graph.node(*id);
        let ty = graph.ty(id.value());
        let shape = ty.bound_shape(bindings).unwrap();
        let (len, row) = (shape.iter().product(), shape[1]);
        let hidden = if past == 0 { row - 1 } else { 0 };
        let element = |at: usize| match node.name() {
            "input_ids" => (at * 7 % 23) as f64,
            "position_ids" => (past as usize + at % row) as f64,
            "attention_mask" => f64::from(u8::from(at != hidden)),
            _ => ((at * 7919 + seed * 104_729) % 257) as f64 / 128.0 - 1.0,
        };
        tensor(ty.dtype, shape, &(0..len).map(element).collect::<Vec<_>>())
    };
    graph.inputs().iter().enumerate().map(input).collect()
}

#[test]
fn a_layer_takes_few_launches_and_none_is_the_hosts() {
    for (name, most, in_all) in ALL {
        let graph = imported(name);
        for target in TARGETS {
            let target = target.parse().unwrap();
            let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
            verify::groups(&planned.graph, &planned.groups).unwrap();
            verify::program(&planned.program).unwrap();
            let text = &planned.program;
            let (stated, run) = fixtures::launches(&planned);
            assert_eq!(stated, run, "{name} on {target}\n{text}");
            assert_eq!(fixtures::steps(&planned, Family::Fmha), 2, "{name} on {target}\n{text}");
            let steps = planned.program.steps();
            let layer = steps.split(|step| step.family == Family::Fmha).nth(1).unwrap().len() + 1;
            assert!(
                layer <= most && steps.len() <= in_all,
                "{name} on {target}: {layer}, {}\n{text}",
                steps.len()
            );
            for step in steps {
                let made = launches(&planned.program, step, &target);
                assert!(made.is_ok(), "{name} on {target}: {}: {made:?}", step.name);
            }
        }
    }
}

#[test]
fn rewritten_decoders_compute_what_they_did() {
    for (name, ..) in ALL {
        let graph = imported(name);
        let planned =
            plan(&graph, &"sm_90a".parse().unwrap(), Granularity::Fused, &Bindings::new()).unwrap();
        let prefill = name.ends_with("prefill");
        for (sequence, past) in if prefill { [(3, 0), (6, 0)] } else { [(1, 5), (3, 4)] } {
            let bindings = sized(&graph, sequence, past);
            let inputs = inputs(&graph, &bindings, past);
            let expected = evaluate_with(&graph, &inputs, &bindings).unwrap();
            let found = evaluate_with(&planned.graph, &inputs, &bindings).unwrap();
            for (found, expected) in found.iter().zip(&expected) {
                // Some roundings of numbers of this size, of which there are ten in a row between two layers' attentions.
                let unit = match expected.dtype() {
                    DType::BF16 => 2.0_f64.powi(-8),
                    _ if name.contains("f32") => 2.0_f64.powi(-20),
                    _ => 2.0_f64.powi(-11),
                };
                let largest = kernels::numbers(expected)
                    .into_iter()
                    .fold(0.0, |most: f64, x| most.max(x.abs()));
                let result = compare(found, expected, 0.0, 10.0 * unit * largest).unwrap();
                assert!(result.agrees(), "{name}, {sequence} behind {past}: {result}");
            }
        }
    }
}

/// The steps of one layer, at one token and at several, by the variants that are chosen for them.
#[test]
fn kernels_of_decoders_compute_their_steps() {
    for name in ["llama-script-f16-sdpa", "llama-dynamo-bf16-sdpa", "mistral-script-f32-eager"] {
        let graph = imported(name);
        for target in TARGETS {
            let target = target.parse().unwrap();
            let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
            let steps = planned.program.steps();
            let second = steps.iter().rposition(|step| step.family == Family::Fmha).unwrap();
            for (sequence, past) in [(1, 7), (3, 4)] {
                let bindings = sized(&graph, sequence, past);
                for step in &steps[..=second] {
                    let made = launches(&planned.program, step, &target).unwrap();
                    let chosen = step.variants.choose(&bindings).unwrap();
                    let launch = made.get(chosen).or(made.last()).unwrap();
                    check(
                        &format!("{name} on {target}: {}", step.name),
                        &planned.program,
                        step,
                        launch,
                        &bindings,
                    );
                }
            }
        }
    }
}

/// Checks that a lookup by indices that count stays one, or not, and what is computed.
fn check_lookup(text: &str, stays: bool) {
    let graph = parse(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let planned =
        plan(&graph, &"sm_90a".parse().unwrap(), Granularity::Fused, &Bindings::new()).unwrap();
    let is_lookup = |name: &str| ["Gather", "GatherNd"].contains(&name);
    let looks = planned.graph.nodes().any(|(_, node)| is_lookup(node.op().name()));
    assert_eq!(looks, stays, "{text}");
    let bindings = sizes(&[("b", 3), ("t", 5)]);
    let shape = graph.ty(graph.inputs()[0].value()).bound_shape(&bindings).unwrap();
    let x = tensor(
        DType::F32,
        shape.clone(),
        &(0..shape.iter().product()).map(|i| i as f64).collect::<Vec<_>>(),
    );
    let of = |graph: &Graph| evaluate_with(graph, std::slice::from_ref(&x), &bindings).unwrap();
    assert_eq!(of(&planned.graph), of(&graph), "{text}");
}

#[test]
fn lookups_of_all_there_is_vanish() {
    let flat = r#"
        symbols b, t
        %0 = Input : f32[b, t] "x"
        %1 = Reshape(%0) {shape: [b*t, 1]} : f32[b*t, 1] "flat"
        %2 = Iota {size: b} : i64[b] "rows"
        %3 = Size {size: t} : i64[] "width"
        %4 = Mul(%2, %3) : i64[b] "starts"
        %5 = Reshape(%4) {shape: [b, 1, 1]} : i64[b, 1, 1] "of rows"
        %6 = Iota {size: t} : i64[t] "columns"
        %7 = Add(%5, %6) : i64[b, 1, t] "places"
        %8 = Gather(%1, %7) {axis: 0} : f32[b, 1, t, 1] "found"
        return "y" = %8
    "#;
    check_lookup(flat, false);
    check_lookup(
        &flat
            .replace("Add(%5, %6)", "Add(%6, %5)")
            .replace("{size: t} : i64[t]", "{size: t - 2} : i64[t - 2]")
            .replace("[b, 1, t]", "[b, 1, t - 2]")
            .replace("[b, 1, t, 1]", "[b, 1, t - 2, 1]"),
        false,
    );
    // Rows that overlap, each a number behind the last one, are no rows of a matrix.
    let overlapping = flat
        .replace("Size {size: t}", "Size {size: 1}")
        .replace("{size: t} : i64[t]", "{size: 2} : i64[2]")
        .replace("[b, 1, t]", "[b, 1, 2]")
        .replace("[b, 1, t, 1]", "[b, 1, 2, 1]");
    check_lookup(&overlapping, true);
    let pairs = r#"
        symbols b, t
        %0 = Input : f32[b, t] "x"
        %1 = Iota {size: b} : i64[b] "rows"
        %2 = Reshape(%1) {shape: [b, 1, 1]} : i64[b, 1, 1] "of rows"
        %3 = Expand(%2) {shape: [b, t, 1]} : i64[b, t, 1] "all rows"
        %4 = Iota {size: t} : i64[t] "columns"
        %5 = Reshape(%4) {shape: [t, 1]} : i64[t, 1] "of columns"
        %6 = Expand(%5) {shape: [b, t, 1]} : i64[b, t, 1] "all columns"
        %7 = Concat(%3, %6) {axis: 2} : i64[b, t, 2] "pairs"
        %8 = GatherNd(%0, %7) {batch_dims: 0} : f32[b, t] "found"
        return "y" = %8
    "#;
    check_lookup(pairs, false);
}
