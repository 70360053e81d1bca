//! Kernels of chains of layers.

use crate::kernels::{TARGETS, check};
use crate::{fixtures, sizes};
use graphene_frontend::dim::Bindings;
use graphene_frontend::text::parse;
use graphene_fusion::groups::Family;
use graphene_fusion::kernels::{StepOperand, launches};
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;

/// Checks the layers of a fixture at these sizes; gives how many steps there were, and whether all of
/// them have stacks.
fn check_fixture(fixture: &str, bindings: &Bindings) -> (usize, bool) {
    let (mut count, mut stacks) = (0, true);
    for name in TARGETS {
        let planned = fixtures::planned(fixture, name);
        let target: Target = name.parse().unwrap();
        for step in planned.program.steps().iter().filter(|step| step.family == Family::Mlp) {
            let launches = launches(&planned.program, step, &target);
            for launch in launches.unwrap_or_else(|refusal| panic!("{fixture}: {refusal}")) {
                let name = format!("{fixture} on {name}: {}", step.name);
                check(&name, &planned.program, step, &launch, bindings);
                stacks &= !launch.stacks.is_empty();
                let of_stack = |operand| matches!(operand, StepOperand::Stack(_));
                let used = launch.pointers.iter().filter(|pointer| of_stack(pointer.operand));
                assert_eq!(used.count(), launch.stacks.len());
            }
            count += 1;
        }
    }
    (count, stacks)
}

#[test]
fn layers_of_models_are_one_kernel() {
    let some = sizes(&[("batch", 3), ("sequence", 7)]);
    assert_eq!(check_fixture("mlp-8x64", &some), (2, true));
    assert_eq!(check_fixture("mlp-gelu-4x128", &some), (2, false));
    assert_eq!(check_fixture("bert-tiny", &some), (4, false));
}

/// Checks a graph that is one step of layers, in these types.
fn check_layers(types: &[&str], text: &str) {
    for dtype in types {
        let text = text.replace("T[", &format!("{dtype}["));
        let graph = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        for name in TARGETS {
            let target: Target = name.parse().unwrap();
            let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
            let [step] = planned.program.steps() else { panic!("{}", planned.program) };
            assert_eq!(step.family, Family::Mlp, "{}", planned.program);
            let launches = launches(&planned.program, step, &target);
            for launch in launches.unwrap_or_else(|refusal| panic!("{refusal}\n{text}")) {
                for [b, s] in [[1, 1], [2, 3], [69, 2]] {
                    let name = format!("{text} on {name}");
                    check(&name, &planned.program, step, &launch, &sizes(&[("b", b), ("s", s)]));
                }
            }
        }
    }
}

const ALL: [&str; 3] = ["f32", "f16", "bf16"];

#[test]
fn layers_have_their_own_widths_and_functions() {
    check_layers(
        &ALL,
        r#"
        symbols b, s
        %0 = Input : T[b, s, 48] "x"
        %1 = Input : T[48, 96] "w"
        %2 = Input : T[96] "bias"
        %3 = Input : T[96, 48] "v"
        %4 = Input : T[48] "shift"
        %5 = MatMul(%0, %1) : T[b, s, 96] "first"
        %6 = Add(%5, %2) : T[b, s, 96] "biased"
        %7 = Gelu(%6) : T[b, s, 96] "activated"
        %8 = MatMul(%7, %3) : T[b, s, 48] "second"
        %9 = Add(%8, %4) : T[b, s, 48] "shifted"
        %10 = Add(%9, %0) : T[b, s, 48] "sum"
        return "y" = %10
    "#,
    );
}

#[test]
fn layers_have_odd_widths() {
    check_layers(
        &ALL,
        r#"
        symbols b
        %0 = Input : T[b, 13] "x"
        %1 = Input : T[13, 35] "w"
        %2 = Input : T[35] "bias"
        %3 = Input : T[35, 10] "v"
        %4 = MatMul(%0, %1) : T[b, 35] "first"
        %5 = Add(%4, %2) : T[b, 35] "biased"
        %6 = Sigmoid(%5) : T[b, 35] "activated"
        %7 = MatMul(%6, %3) : T[b, 10] "second"
        return "y" = %7
    "#,
    );
}

#[test]
fn weights_lie_either_way_and_inputs_skip_layers() {
    check_layers(
        &ALL,
        r#"
        symbols b, s
        %0 = Input : T[b, s, 64] "packed"
        %1 = Slice(%0) {axes: [{axis: 2, start: 32, len: 32, step: 1}]} : T[b, s, 32] "x"
        %2 = Input : T[32, 32] "w"
        %3 = Transpose(%2) {perm: [1, 0]} : T[32, 32] "w turned"
        %4 = Input : T[32, 32] "v"
        %5 = MatMul(%1, %3) : T[b, s, 32] "first"
        %6 = Relu(%5) : T[b, s, 32] "hidden"
        %7 = MatMul(%6, %4) : T[b, s, 32] "second"
        %8 = Tanh(%7) : T[b, s, 32] "tanh"
        %9 = Add(%8, %6) : T[b, s, 32] "sum"
        return "y" = %9
    "#,
    );
}

#[test]
fn layers_give_what_lies_between() {
    check_layers(
        &ALL,
        r#"
        symbols b
        %0 = Input : T[b, 32] "x"
        %1 = Input : T[32, 64] "w"
        %2 = Input : T[64, 32] "v"
        %3 = MatMul(%0, %1) : T[b, 64] "first"
        %4 = Relu(%3) : T[b, 64] "hidden"
        %5 = MatMul(%4, %2) : T[b, 32] "second"
        %6 = Exp(%5) : T[b, 32] "exp"
        return "y" = %6, "hidden" = %4, "second" = %5
    "#,
    );
}

/// Single precision that a chain alone reads is rounded as warpgroups read it, or, where weights lie as they do not take them,
/// by warps; what has no widths for warpgroups is rounded before.
#[test]
fn layers_round_what_they_read() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Cast(%0) {to: T, saturate: true} : T[b, 64] "rounded"
        %2 = Input : T[64, WIDTH] "w"
        %3 = Input : f32[WIDTH] "bias"
        %4 = MatMul(%1, %2) : T[b, WIDTH] "first"
        %5 = Cast(%4) {to: f32, saturate: true} : f32[b, WIDTH] "single"
        %6 = Add(%5, %3) : f32[b, WIDTH] "biased"
        %7 = Relu(%6) : f32[b, WIDTH] "activated"
        %8 = Cast(%7) {to: T, saturate: true} : T[b, WIDTH] "hidden"
        %9 = Input : T[STORED] "stored"
        %10 = Transpose(%9) {perm: [PERM]} : T[WIDTH, 64] "v"
        %11 = MatMul(%8, %10) : T[b, 64] "second"
        %12 = Cast(%11) {to: f32, saturate: true} : f32[b, 64] "y"
        return "y" = %12
    "#;
    let [along, across] = [("WIDTH, 64", "0, 1"), ("64, WIDTH", "1, 0")];
    for (target, dtype, width, (stored, perm), steps) in [
        ("sm_90a", "f16", "128", along, 1),
        ("sm_90a", "bf16", "192", along, 1),
        ("sm_90a", "f16", "64", across, 1),
        ("sm_90a", "f16", "96", along, 2),
        ("sm_80", "f16", "128", along, 2),
    ] {
        let text = text.replace("STORED", stored).replace("PERM", perm).replace("WIDTH", width);
        let text =
            text.replace("T[", &format!("{dtype}[")).replace("to: T", &format!("to: {dtype}"));
        let graph = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let target: Target = target.parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let of_program = planned.program.steps();
        assert_eq!(of_program.len(), steps, "{}", planned.program);
        let step = of_program.last().unwrap();
        assert_eq!(step.family, Family::Mlp, "{}", planned.program);
        for launch in launches(&planned.program, step, &target).unwrap() {
            let name = format!("{text} on {target}");
            check(&name, &planned.program, step, &launch, &sizes(&[("b", 70)]));
        }
    }
}

/// Whatever widths the partitioner takes, the template takes, too.
#[test]
fn layers_that_share_a_launch_have_a_kernel() {
    let mut fused = 0;
    let widths = [16, 24, 64, 100, 256, 384, 512, 520, 768, 1024, 2048];
    for (target, dtype) in
        ["sm_80", "sm_86", "sm_90a"].into_iter().flat_map(|t| ALL.map(|d| (t, d)))
    {
        let target: Target = target.parse().unwrap();
        for (i, k) in widths.into_iter().enumerate() {
            let [n, o] = [3, 7].map(|step| widths[(i * step + step) % widths.len()]);
            let text = r#"
                symbols b
                %0 = Input : T[b, K] "x"
                %1 = Input : T[K, N] "w"
                %2 = Input : T[N, O] "v"
                %3 = MatMul(%0, %1) : T[b, N] "first"
                %4 = Relu(%3) : T[b, N] "hidden"
                %5 = MatMul(%4, %2) : T[b, O] "second"
                return "y" = %5
            "#;
            let sized = text.replace('K', &k.to_string()).replace('N', &n.to_string());
            let text = sized.replace('O', &o.to_string()).replace("T[", &format!("{dtype}["));
            let graph = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
            for batch in [1, 256, 65_536] {
                let hints = sizes(&[("b", batch)]);
                let planned = plan(&graph, &target, Granularity::Fused, &hints).unwrap();
                let steps = planned.program.steps().iter();
                for step in steps.filter(|step| step.family == Family::Mlp) {
                    if target.name() != "sm_86" {
                        launches(&planned.program, step, &target)
                            .unwrap_or_else(|refusal| panic!("{k} {n} {o} {target}: {refusal}"));
                    }
                    fused += 1;
                }
            }
        }
    }
    assert!(fused > 30, "{fused}");
}
