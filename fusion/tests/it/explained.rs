//! Explanations: a line for every value that one step stores for another, with an estimate that can be.

use crate::{fixtures, graph, planned, sizes};
use graphene_frontend::dim::Bindings;
use graphene_fusion::groups::GroupId;
use graphene_fusion::program::{BufferId, Origin, StepId};
use graphene_fusion::{Planned, explain};
use std::collections::{BTreeMap, BTreeSet};

const TARGETS: [&str; 3] = ["cpu:2", "sm_80", "sm_90a"];

/// The buffers that one step writes and another one reads.
fn stored(planned: &Planned) -> BTreeSet<(StepId, StepId, String)> {
    let mut written: BTreeMap<BufferId, StepId> = BTreeMap::new();
    let mut pairs = BTreeSet::new();
    for (id, step) in planned.program.step_ids().zip(planned.program.steps()) {
        for buffer in step.inputs.iter().map(|operand| operand.buffer) {
            let name = planned.program.buffer(buffer).name.clone();
            pairs.extend(written.get(&buffer).map(|&from| (from, id, name)));
        }
        written.extend(step.outputs.iter().map(|operand| (operand.buffer, id)));
    }
    pairs
}

/// What is stored is explained and nothing else, and no estimate gains more than the cheaper of the two launches and
/// the traffic between them.
fn check(what: &str, planned: &Planned, target: &str, hints: &Bindings) -> usize {
    let lines = explain(planned, &target.parse().unwrap(), hints);
    let explained: BTreeSet<_> =
        lines.iter().map(|line| (line.from, line.to, line.name.clone())).collect();
    assert_eq!(explained, stored(planned), "{what} on {target}\n{}", planned.program);
    let cost = |group: GroupId| planned.groups.groups()[group.index()].cost;
    for line in &lines {
        let gain = line.gain.unwrap_or_else(|| panic!("{what} on {target}: {line}"));
        let origin = |step: StepId| planned.program.step(step).origin;
        let (Origin::Group(from), Origin::Group(to)) = (origin(line.from), origin(line.to)) else {
            continue;
        };
        let (a, b) = (cost(from).unwrap(), cost(to).unwrap());
        let part = |memory: f64, bytes: f64, other: f64| {
            if bytes > 0.0 { memory * bytes / (bytes + other) } else { 0.0 }
        };
        let kept = part(a.memory, a.written, a.read + a.reread)
            + part(b.memory, b.read, b.written + b.reread);
        let most = a.seconds().min(b.seconds()) + kept;
        assert!(gain <= most * 1.0001, "{what} on {target}: {line}\n{a}\n{b}");
    }
    lines.len()
}

#[test]
fn what_fixtures_store_is_explained() {
    let mut lines = 0;
    for fixture in fixtures::ALL {
        for target in TARGETS {
            let planned = fixtures::planned(fixture, target);
            lines += check(fixture, &planned, target, &Bindings::new());
        }
    }
    assert!(lines > 100, "{lines}");
}

#[test]
fn copies_are_explained() {
    // A merge that strides cannot say, a row that is read row-major only, and an output that is a view.
    let text = r#"
        symbols b
        %0 = Input : f32[b, 8, 16] "x"
        %1 = Exp(%0) : f32[b, 8, 16] "exp"
        %2 = Transpose(%1) {perm: [0, 2, 1]} : f32[b, 16, 8] "turned"
        %3 = Softmax(%2) {axis: 2} : f32[b, 16, 8] "softmax"
        %4 = Transpose(%3) {perm: [0, 2, 1]} : f32[b, 8, 16] "back"
        %5 = Reshape(%4) {shape: [b, 128]} : f32[b, 128] "merged"
        %6 = Tanh(%5) : f32[b, 128] "tanh"
        %7 = Transpose(%6) {perm: [1, 0]} : f32[128, b] "given"
        return "y" = %7, "z" = %1
    "#;
    let hints = sizes(&[("b", 8)]);
    let planned = planned(&graph(text, &[]), "sm_90a", &hints);
    check("copies", &planned, "sm_90a", &hints);
    let lines = explain(&planned, &"sm_90a".parse().unwrap(), &hints);
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    expect_test::expect![[r##"
        #0 -> #1  f32[b, 8, 16] "exp" is stored: a Normalization launch reads row-major values only; an estimate: one launch would gain 2.0 us
        #1 -> #2  f32[b, 16, 8] "turned" is stored: a change of view stands between the two; an estimate: one launch would gain 2.0 us
        #2 -> #3  f32[b, 16, 8] "softmax" is stored: this Reshape moves elements, so it is no view; an estimate: one launch would gain 2.0 us
        #3 -> #4  f32[b, 8, 16] "merged" is stored: this Reshape moves elements, so it is no view; an estimate: one launch would gain 2.0 us
    "##]].assert_eq(&text);
}

#[test]
fn what_random_graphs_store_is_explained() {
    let mut seed = 7_u64;
    let mut next = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut lines = 0;
    for _ in 0..60 {
        let mut text = "%0 = Input : f32[64, 64] \"v0\"\n".to_owned();
        let len = 2 + next(24);
        for i in 1..len {
            // Square values, so that every operation takes every value.
            let (a, b) = (next(i), i - 1 - next(i.min(4)));
            let row = |op: &str| format!("{op} : f32[64, 64]");
            let op = match next(10) {
                0 => row(&format!("MatMul(%{a}, %{b})")),
                1 => row(&format!("Add(%{a}, %{b})")),
                2 => row(&format!("Tanh(%{b})")),
                3 => row(&format!("Softmax(%{b}) {{axis: 1}}")),
                4 => row(&format!("Softmax(%{b}) {{axis: 0}}")),
                5 | 6 => row(&format!("Transpose(%{b}) {{perm: [1, 0]}}")),
                7 => row(&format!("Reshape(%{b}) {{shape: [64, 64]}}")),
                8 => row(&format!("CumSum(%{b}) {{axis: 0, exclusive: false, reverse: false}}")),
                _ => row(&format!("Mul(%{a}, %{b})")),
            };
            text += &format!("%{i} = {op} \"v{i}\"\n");
        }
        text += &format!("return \"y\" = %{}, \"z\" = %{}\n", len - 1, next(len));
        let graph = graph(&text, &[]);
        for target in TARGETS {
            let planned = planned(&graph, target, &sizes(&[]));
            lines += check(&text, &planned, target, &sizes(&[]));
        }
    }
    assert!(lines > 500, "{lines}");
}
