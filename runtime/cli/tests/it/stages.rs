//! Stages that are printed.

use crate::fixtures::fixture;
use crate::{Folder, json, quick, read, run};
use expect_test::{Expect, expect};

#[track_caller]
fn check_stage(stage: &str, expected: Expect) {
    let given = run(&["zoo:mlp-1x8", "--batch", "3", "--emit", stage]);
    assert_eq!((given.code, given.stderr.as_str()), (0, ""));
    expected.assert_eq(&given.stdout);
}

#[test]
fn groups_print() {
    check_stage(
        "groups",
        expect![[r#"
            #0 MatMul MatMul+Add+Relu (/net/net.1/Relu)
                estimate: memory reads 384 B, writes 96 B, 5.0 us by launch
        "#]],
    );
}

#[test]
fn programs_print() {
    check_stage(
        "program",
        expect![[r#"
            program {
              @0 = input 0 f32[8*batch] "x"
              @1 = weight f32[64] "/net/net.0/Gemm"
              @2 = weight f32[8] "/net/net.0/Gemm"
              @3 = output 0 f32[8*batch] "/net/net.1/Relu"
              #0 MatMul "MatMul+Add+Relu (/net/net.1/Relu)"
                reads  @0 [batch:8, 8:1]
                reads  @1 [8:8, 8:1]
                reads  @2 [8:1]
                writes @3 [batch:8, 8:1]
            }
        "#]],
    );
}

#[test]
fn bound_programs_print() {
    check_stage(
        "bound",
        expect![[r#"
            plan batch=3 {
              arena 0 bytes, lower bound 0, by Sweep
              @0 f32[24] input 0
              @1 f32[64] weight
              @2 f32[8] weight
              @3 f32[24] output 0
              #0: @0[3:8,8:1], @1[8:8,8:1], @2[8:1] -> @3[3:8,8:1]
            }
        "#]],
    );
}

#[test]
fn graphs_print() {
    check_stage(
        "import",
        expect![[r#"
        symbols batch
        %0 = Input : f32[batch, 8] "x"
        %1 = Constant(0.0026820148, -0.011763547, -0.0030509636, -0.009842687, -0.04584374, 0.00022358932, 0.004844964, 0.023009086) : f32[8] "net.0.bias"
        %2 = Constant(@0 336684129f329076) : f32[8, 8] "/net/net.0/Gemm"
        %3 = MatMul(%0, %2) : f32[batch, 8] "/net/net.0/Gemm"
        %4 = Add(%3, %1) : f32[batch, 8] "/net/net.0/Gemm"
        %5 = Relu(%4) : f32[batch, 8] "/net/net.1/Relu"
        return "y" = %5
    "#]],
    );
    let dot = run(&["zoo:mlp-1x8", "--emit", "dot"]);
    assert!(dot.stdout.starts_with("digraph"), "{}", dot.stdout);
    let rewritten = run(&["zoo:mlp-1x8", "--emit", "rewritten"]);
    assert!(rewritten.stdout.starts_with("symbols batch\n"), "{}", rewritten.stdout);
}

#[test]
fn help_lists_every_stage() {
    let help = run(&["--help"]).stdout;
    let known = run(&["zoo:mlp-1x8", "--emit", "nothing"]).stderr;
    let (_, known) = known.split_once("expected one of ").unwrap();
    let (_, emit) = help.split_once("--emit").unwrap();
    let (emit, _) = emit.split_once("--explain").unwrap();
    let listed: Vec<&str> = emit.split(|c: char| !c.is_alphanumeric()).collect();
    for stage in known.lines().next().unwrap().split(", ") {
        assert!(listed.contains(&stage.trim()), "{stage}: {emit}");
    }
}

#[test]
fn e_graphs_say_which_blocks_they_are() {
    let given = run(&["zoo:mlp-1x8", "--emit", "egraph"]);
    let first = given.stdout.lines().next().unwrap();
    assert_eq!(
        first,
        "// e-graph 1 of 1: 1 of 1 blocks, the first from \"/net/net.0/Gemm\" to \"/net/net.1/Relu\""
    );
    let many = run(&[&fixture("bert-tiny-opset13").0, "--emit", "egraph"]).stdout;
    let heads: Vec<&str> = many.lines().filter(|line| line.starts_with("// e-graph ")).collect();
    let all = format!(" of {}: ", heads.len());
    assert!(heads.len() > 1 && heads.iter().all(|head| head.contains(&all)), "{heads:#?}");
}

#[test]
fn stages_go_to_files_beside_a_run() {
    let folder = Folder::new();
    let path = folder.path("groups.txt");
    let given = quick(&["zoo:mlp-1x8", "--emit", &format!("groups={path}")]);
    assert!(given.stdout.contains("fused agrees with library"), "{}", given.stdout);
    assert_eq!(read(&path), run(&["zoo:mlp-1x8", "--emit", "groups"]).stdout);
    assert_eq!(folder.files(), ["groups.txt"]);
}

#[test]
fn other_targets_are_planned_only() {
    let report = json(&["zoo:mlp-1x8", "--target", "sm_90a"]);
    assert_eq!(report["target"], "sm_90a");
    assert_eq!(report["executors"][0]["launches"], 1);
    assert!(report["executors"][0]["time"].is_null());
    assert_eq!(report["notes"][0], "planned for sm_90a, not run");
}
