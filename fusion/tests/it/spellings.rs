//! Small graphs as exporters spell them, rewritten and planned: how many launches of which families they take.

use crate::{graph, sizes};
use graphene_fusion::groups::Family::{self, Mlp};
use graphene_fusion::{Granularity, plan};

const TARGETS: [&str; 3] = ["cpu:2", "sm_80", "sm_90a"];

#[track_caller]
fn check(text: &str, weights: &[&[usize]], hints: &[(&str, i64)], expected: &[Family]) {
    let graph = graph(text, weights);
    for target in TARGETS {
        let target = target.parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &sizes(hints)).unwrap();
        let families: Vec<Family> = planned.program.steps().iter().map(|s| s.family).collect();
        assert_eq!(families, expected, "{target}\n{}", planned.program);
    }
}

/// A chain of layers of 64.
fn layers(count: usize) -> String {
    let mut text = "symbols b\n%0 = Input : f32[b, 64] \"x\"\n".to_owned();
    text += "%1 = Constant(@0 _) : f32[64, 64] \"w\"\n%2 = Constant(@1 _) : f32[64] \"bias\"\n";
    for layer in 0..count {
        let (x, i) = (if layer == 0 { 0 } else { 2 + 3 * layer }, 3 + 3 * layer);
        text += &format!("%{i} = MatMul(%{x}, %1) : f32[b, 64] \"product\"\n");
        text += &format!("%{} = Add(%{i}, %2) : f32[b, 64] \"biased\"\n", i + 1);
        text += &format!("%{} = Relu(%{}) : f32[b, 64] \"layer {layer}\"\n", i + 2, i + 1);
    }
    text + &format!("return \"y\" = %{}\n", 2 + 3 * count)
}

#[test]
fn long_chains_of_layers_are_one_launch() {
    let weights: &[&[usize]] = &[&[64, 64], &[64]];
    for count in [21, 22, 30, 42] {
        check(&layers(count), weights, &[("b", 8)], &[Mlp]);
    }
    // Longer ones are not, and the plan says so.
    let graph = graph(&layers(60), weights);
    let groups = crate::plan(&graph, "sm_90a", &sizes(&[("b", 8)]));
    let notes: Vec<String> = groups.notes().iter().map(ToString::to_string).collect();
    let apart = "note: a group spans at most 128 operations: values stored for that: 1";
    assert!(notes.iter().any(|note| note == apart), "{notes:?}");
}
