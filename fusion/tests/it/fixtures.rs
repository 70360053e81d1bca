//! Real exports: into how many launches each of them goes.

use graphene_frontend::dim::Bindings;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, Reading, import, read_model};
use graphene_fusion::groups::Family;
use graphene_fusion::program::{BufferKind, Operand};
use graphene_fusion::{Granularity, Planned, plan, verify};
use std::path::Path;

const TARGETS: [&str; 3] = ["cpu:2", "sm_80", "sm_90a"];

/// All fixtures.
pub(crate) const ALL: [&str; 12] = [
    "bert-tiny",
    "bert-tiny-dynamo",
    "bert-tiny-opset13",
    "bert-tiny-sdpa",
    "distilroberta-tiny",
    "fmha",
    "layernorm-17",
    "layernorm-decomposed",
    "lstm",
    "lstm-cell-relu",
    "mlp-8x64",
    "mlp-gelu-4x128",
];

pub(crate) fn imported(fixture: &str) -> Graph {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../frontend/tests/data/fixtures");
    let (model, weights) =
        read_model(folder.join(fixture).join("model.onnx"), Reading::Mapped).unwrap();
    import(model, &weights, &ImportOptions::default()).unwrap().graph
}

pub(crate) fn planned(fixture: &str, target: &str) -> Planned {
    let graph = imported(fixture);
    let target = target.parse().unwrap();
    let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
    verify::groups(&planned.graph, &planned.groups).unwrap();
    verify::program(&planned.program).unwrap();
    let (stated, run) = launches(&planned);
    assert_eq!(stated, run, "{fixture} on {target}\n{}", planned.program);
    planned
}

/// The launches that the planner takes the groups for, and those of the program but for copies into outputs.
pub(crate) fn launches(planned: &Planned) -> (usize, usize) {
    let groups = planned.groups.groups().iter().filter(|group| group.family != Family::View);
    let stated = groups.map(|group| 1 + group.cost.map_or(0, |cost| cost.copies as usize));
    let is_output = |operand: &Operand| {
        matches!(planned.program.buffer(operand.buffer).kind, BufferKind::Output(_))
    };
    let run = planned.program.steps().iter().filter(|step| {
        step.body.len() > step.body.inputs().len() || !step.outputs.iter().all(is_output)
    });
    (stated.sum(), run.count())
}

/// Steps of a family in the program, which is what runs.
pub(crate) fn steps(planned: &Planned, family: Family) -> usize {
    planned.program.steps().iter().filter(|step| step.family == family).count()
}

#[test]
fn encoders_of_two_layers_take_few_launches() {
    let fixtures = [
        "bert-tiny",
        "bert-tiny-dynamo",
        "bert-tiny-opset13",
        "bert-tiny-sdpa",
        "distilroberta-tiny",
    ];
    for fixture in fixtures {
        for target in TARGETS {
            let planned = planned(fixture, target);
            let text = &planned.program;
            let steps_in_all = planned.program.steps().len();
            assert!(steps_in_all <= 20, "{fixture} on {target}: {steps_in_all}\n{text}");
            assert_eq!(steps(&planned, Family::Fmha), 2, "{fixture} on {target}\n{text}");
            // Between one attention and the next, which is a layer: no copy, no mask, no shape.
            let families: Vec<Family> =
                planned.program.steps().iter().map(|step| step.family).collect();
            let mut layers = families.split(|&family| family == Family::Fmha);
            let layer = layers.nth(1).unwrap();
            assert!(layer.len() <= 6, "{fixture} on {target}\n{text}");
            let inner = [Family::MatMul, Family::Mlp, Family::Normalization];
            let fits = layer.iter().all(|family| inner.contains(family));
            assert!(fits, "{fixture} on {target}\n{text}");
            assert_eq!(steps(&planned, Family::Copy), 0, "{fixture} on {target}\n{text}");
            // Embeddings, masks and the pooler take what two such layers leave.
            let rest = steps_in_all - 2 * (layer.len() + 1);
            assert!(rest <= 6, "{fixture} on {target}: {rest}\n{text}");
        }
    }
}

#[test]
fn small_models_take_the_launches_that_they_should() {
    for (fixture, most) in [
        ("mlp-8x64", 1),
        ("mlp-gelu-4x128", 1),
        ("lstm-cell-relu", 1),
        ("lstm", 3),
        ("layernorm-17", 1),
        ("layernorm-decomposed", 1),
        ("fmha", 1),
    ] {
        for target in TARGETS {
            let planned = planned(fixture, target);
            let text = &planned.program;
            let steps = planned.program.steps().len();
            assert!((1..=most).contains(&steps), "{fixture} on {target}: {steps}\n{text}");
        }
    }
}
