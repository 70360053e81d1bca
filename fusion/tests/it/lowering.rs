//! Programs: views, orders and variants.

use crate::launched::emitted;
use crate::{graph, plan, sizes};
use expect_test::expect;
use graphene_fusion::groups::Family;
use graphene_fusion::kernels::launches;
use graphene_fusion::program::Program;
use graphene_fusion::{Granularity, lower, verify};
use graphene_ir::target::Target;

/// Heads of a packed projection of queries, keys and values, attention, and the projection of its heads.
const PACKED: &str = r#"
    symbols b, s
    %0 = Input : f32[b, s, 32] "x"
    %1 = Input : f32[b, 1, 1, s] "mask"
    %2 = Constant(@0 _) : f32[32, 96] "w"
    %3 = Constant(@1 _) : f32[96] "bias"
    %4 = Constant(@2 _) : f32[32, 32] "wo"
    %5 = MatMul(%0, %2) : f32[b, s, 96] "qkv"
    %6 = Add(%5, %3) : f32[b, s, 96] "biased"
    %7 = Slice(%6) {axes: [{axis: 2, start: 0, len: 32, step: 1}]} : f32[b, s, 32] "q"
    %8 = Slice(%6) {axes: [{axis: 2, start: 32, len: 32, step: 1}]} : f32[b, s, 32] "k"
    %9 = Slice(%6) {axes: [{axis: 2, start: 64, len: 32, step: 1}]} : f32[b, s, 32] "v"
    %10 = Reshape(%7) {shape: [b, s, 4, 8]} : f32[b, s, 4, 8] "q heads"
    %11 = Reshape(%8) {shape: [b, s, 4, 8]} : f32[b, s, 4, 8] "k heads"
    %12 = Reshape(%9) {shape: [b, s, 4, 8]} : f32[b, s, 4, 8] "v heads"
    %13 = Transpose(%10) {perm: [0, 2, 1, 3]} : f32[b, 4, s, 8] "q turned"
    %14 = Transpose(%11) {perm: [0, 2, 1, 3]} : f32[b, 4, s, 8] "k turned"
    %15 = Transpose(%12) {perm: [0, 2, 1, 3]} : f32[b, 4, s, 8] "v turned"
    %16 = Attention(%13, %14, %15, %1) {scale: 0.5, causal: false, softcap: 0, guarded: false} : f32[b, 4, s, 8] "attention"
    %17 = Transpose(%16) {perm: [0, 2, 1, 3]} : f32[b, s, 4, 8] "turned back"
    %18 = Reshape(%17) {shape: [b, s, 32]} : f32[b, s, 32] "merged"
    %19 = MatMul(%18, %4) : f32[b, s, 32] "projected"
    return "y" = %19
"#;

fn program(text: &str, weights: &[&[usize]], target: &str) -> Program {
    let graph = graph(text, weights);
    let groups = plan(&graph, target, &sizes(&[]));
    verify::groups(&graph, &groups).unwrap();
    let program = lower(&graph, &groups, &target.parse().unwrap(), Granularity::Fused).unwrap();
    verify::program(&program).unwrap();
    program
}

#[test]
fn packed_projections_are_read_in_place() {
    let weights: &[&[usize]] = &[&[32, 96], &[96], &[32, 32]];
    let cpu = program(PACKED, weights, "cpu:2");
    assert!(cpu.steps().iter().all(|step| step.family != Family::Copy), "{cpu}");
    expect![[r#"
        program {
          @0 = input 0 f32[32*b*s] "x"
          @1 = input 1 f32[b*s] "mask"
          @2 = weight f32[3072] "w"
          @3 = weight f32[96] "bias"
          @4 = intermediate f32[96*b*s] "biased"
          @5 = intermediate f32[32*b*s] "attention"
          @6 = weight f32[1024] "wo"
          @7 = output 0 f32[32*b*s] "projected"
          #0 MatMul "MatMul+Add (biased)"
            variants library if b*s <= 1, wide if b*s >= 84353, narrow if b*s >= 8385, else few
            reads  @0 [b:32*s, s:32, 32:1]
            reads  @2 [32:96, 96:1]
            reads  @3 [96:1]
            writes @4 [b:96*s, s:96, 96:1]
          #1 FMHA "Attention (attention)"
            reads  @4 [b:96*s, 4:8, s:96, 8:1]
            reads  @4 +32 [b:96*s, 4:8, s:96, 8:1]
            reads  @4 +64 [b:96*s, 4:8, s:96, 8:1]
            reads  @1 [b:s, 1:s, 1:s, s:1]
            writes @5 [b:32*s, 4:8, s:32, 8:1]
          #2 MatMul "MatMul (projected)"
            variants library if b*s <= 1, wide if b*s >= 168833, narrow if b*s >= 16833, else few
            reads  @5 [b:32*s, s:32, 32:1]
            reads  @6 [32:32, 32:1]
            writes @7 [b:32*s, s:32, 32:1]
        }
    "#]]
    .assert_eq(&program(PACKED, weights, "sm_90a").to_string());
}

#[test]
fn producers_write_in_the_order_of_a_merge() {
    // A reshape that could not be written as a view of row-major memory.
    let text = r#"
        symbols b, s
        %0 = Input : f32[b, 4, s, 8] "x"
        %1 = Constant(@0 _) : f32[8, 8] "w"
        %2 = MatMul(%0, %1) : f32[b, 4, s, 8] "product"
        %3 = Relu(%2) : f32[b, 4, s, 8] "activated"
        %4 = Transpose(%3) {perm: [0, 2, 1, 3]} : f32[b, s, 4, 8] "turned"
        %5 = Reshape(%4) {shape: [b, s, 32]} : f32[b, s, 32] "merged"
        %6 = Softmax(%5) {axis: 2} : f32[b, s, 32] "softmax"
        return "y" = %6
    "#;
    let program = program(text, &[&[8, 8]], "cpu:2");
    let families: Vec<_> = program.steps().iter().map(|step| step.family).collect();
    assert_eq!(families, [Family::MatMul, Family::Normalization], "{program}");
}

#[test]
fn literals_stand_in_bodies() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Constant(@0 _) : f32[64, 64] "w"
        %2 = Constant(2) : f32[] "two"
        %3 = MatMul(%0, %1) : f32[b, 64] "product"
        %4 = Mul(%3, %2) : f32[b, 64] "doubled"
        return "y" = %4
    "#;
    let program = program(text, &[&[64, 64]], "cpu:2");
    let [step] = program.steps() else { panic!("{program}") };
    assert_eq!((step.inputs.len(), step.body.len()), (2, 5), "{program}");
}

#[test]
fn variants_are_chosen_by_sizes() {
    let program = program(PACKED, &[&[32, 96], &[96], &[32, 32]], "sm_90a");
    let names = |b: i64, s: i64| -> Vec<&str> {
        let sizes = sizes(&[("b", b), ("s", s)]);
        let steps = program.steps().iter();
        let chosen = steps.map(|step| &step.variants.all()[step.variants.choose(&sizes).unwrap()]);
        chosen.map(|variant| variant.name).collect()
    };
    assert_eq!(names(1, 1), ["library", "any", "library"]);
    assert_eq!(names(2, 128), ["few", "any", "few"]);
    assert_eq!(names(160, 128), ["narrow", "any", "narrow"]);
    assert_eq!(names(1400, 129), ["wide", "any", "wide"]);
    for step in program.steps() {
        let variants = step.variants.all();
        assert!((1..=5).contains(&variants.len()));
    }
}

/// Of the kernels that were timed for each (H200, fp16), those that are chosen for the sizes of the plan take at most 1.05 times
/// the fastest's time.
#[test]
fn matmuls_by_warpgroups_have_the_shapes_that_were_timed_fast() {
    for (sequence, depth, columns, batch, expected) in [
        ("128", 768, 768, 1, "64x64"),
        ("128", 768, 2304, 1, "64x64"),
        ("128", 768, 2304, 8, "128x192"),
        ("128", 3072, 768, 1, "split4"),
        ("197", 768, 768, 4, "64x128"),
        ("128", 2048, 768, 1, "split2"),
        ("197", 3072, 768, 1, "split2"),
        ("197", 768, 2304, 1, "64x128"),
        ("197", 768, 2304, 4, "64x256"),
        ("197", 3072, 768, 4, "64x128"),
        ("1500", 384, 1152, 1, "128x128"),
        ("1500", 384, 1152, 2, "ping-pong 128x128"),
        ("1500", 1536, 384, 1, "64x128"),
        ("1500", 1536, 384, 2, "64x192"),
    ] {
        let text = format!(
            r#"
            symbols batch
            %0 = Input : f16[batch, {sequence}, {depth}] "x"
            %1 = Input : f16[{depth}, {columns}] "w"
            %2 = MatMul(%0, %1) : f16[batch, {sequence}, {columns}] "y"
            return "y" = %2
        "#
        );
        let (sizes, target) = (sizes(&[("batch", batch)]), "sm_90a".parse().unwrap());
        let planned =
            graphene_fusion::plan(&graph(&text, &[]), &target, Granularity::Fused, &sizes);
        let program = planned.unwrap().program;
        let [step] = program.steps() else { panic!("{program}") };
        let variants = step.variants.all();
        assert!(variants.len() <= 6, "{}", step.variants);
        let chosen = step.variants.choose(&sizes).unwrap();
        let name = variants[chosen].name;
        assert_eq!(name, expected, "{batch}x{sequence}x{depth}x{columns}: {}", step.variants);
    }
}

#[test]
fn variants_of_attention_go_by_its_tiles() {
    let text = r#"
        symbols b, q, t
        %0 = Input : f16[b, 12, q, 64] "queries"
        %1 = Input : f16[b, 12, t, 64] "keys"
        %2 = Attention(%0, %1, %1) {scale: 0.125, causal: false, softcap: 0, guarded: false} : f16[b, 12, q, 64] "attention"
        return "y" = %2
    "#;
    let planned = program(text, &[], "sm_90a");
    let [step] = planned.steps() else { panic!("{planned}") };
    let target: Target = "sm_90a".parse().unwrap();
    let threads: Vec<i64> = launches(&planned, step, &target)
        .unwrap()
        .iter()
        .map(|launch| launch.kernel.block_size().unwrap())
        .collect();
    let tiles = i64::from(target.cores) / 12;
    for (b, q, expected, with) in [
        (1, 128, "narrow", 256),
        (2, 1, "decode8", 128),
        (3, 1, "decode2", 256),
        (tiles, 1, "decode2", 256),
        (tiles + 1, 1, "narrow", 256),
        (1, 2, "narrow", 256),
        (tiles, 64, "narrow", 256),
        (tiles, 65, "wide", 384),
        (tiles / 2, 128, "narrow", 256),
        (tiles / 2 + 1, 128, "wide", 384),
        (32, 1, "narrow", 256),
        (tiles / 2, 384, "tall", 512),
        (32, 384, "tall", 512),
        (32, 320, "tall", 512),
        (32, 1535, "tall", 512),
        (32, 1537, "wide", 384),
    ] {
        let chosen = step.variants.choose(&sizes(&[("b", b), ("q", q), ("t", 512)])).unwrap();
        let name = step.variants.all()[chosen].name;
        assert_eq!((name, threads[chosen]), (expected, with), "{b}, {q}: {}", step.variants);
    }
    // Two tiles of keys overlap, one does not.
    let chosen = step.variants.choose(&sizes(&[("b", 8), ("q", 128), ("t", 128)])).unwrap();
    assert_eq!(step.variants.all()[chosen].name, "wide of few keys", "{}", step.variants);
    // Larger heads have no room for three warpgroups; causal ones leave out more keys with smaller tiles.
    for text in [text.replace("64]", "128]"), text.replace("causal: false", "causal: true")] {
        let other = program(&text, &[], "sm_90a");
        assert!(other.steps()[0].variants.all().iter().all(|variant| variant.name != "tall"));
    }
    // What no warpgroups make has one kernel for several queries, and where there are no clusters one for one.
    let names = |text: &str, target: &str| -> Vec<&str> {
        let planned = program(text, &[], target);
        planned.steps()[0].variants.all().iter().map(|variant| variant.name).collect()
    };
    assert_eq!(
        names(&text.replace("f16", "f32"), "sm_90a"),
        ["decode8", "decode2", "decode1", "few keys", "any"]
    );
    assert_eq!(names(text, "sm_80"), ["decode1", "any"]);
    let of = |name: &str, size: &str| {
        text.replace("b, q, t", "b, S").replace(&format!("{name}, 64"), &format!("{size}, 64"))
    };
    let queries = |size: &str| of("q", size).replace("b, S", "b, t");
    let keys = |size: &str| of("t", size).replace("b, S", "b, q");
    assert_eq!(names(&queries("7"), "sm_80"), ["any"]);
    assert_eq!(names(&queries("1"), "sm_80"), ["decode1", "any"]);
    assert_eq!(names(&queries("t"), "sm_80"), ["any"]);
    // Where there are no clusters, few keys are a tile; wide heads have no lanes for all their vectors; not all keys are those before a query.
    let none = |text: &str| !names(text, "sm_90a").iter().any(|name| name.starts_with("decode"));
    assert_eq!(["127", "128"].map(|size| names(&keys(size), "sm_80").len()), [1, 2]);
    assert!(none(&text.replace("causal: false", "causal: true")));
    let wide = text.replace("f16", "f32").replace("64]", "132]");
    assert!(none(&wide) && !none(&wide.replace("132]", "128]")));
    let by_keys = |t: i64| step.variants.choose(&sizes(&[("b", 1), ("q", 1), ("t", t)])).unwrap();
    let name = |t: i64| step.variants.all()[by_keys(t)].name;
    assert_eq!([1, 255, 256].map(name), ["decode1", "decode1", "decode8"]);
}

#[test]
fn one_query_of_each_head_is_a_row_of_a_tile_of_heads() {
    let text = r#"
        symbols b, q, t
        %0 = Input : f16[b, 12, q, 64] "queries"
        %1 = Input : f16[b, 3, t, 64] "keys"
        %2 = Input : f16[b, 1, q, t] "mask"
        %3 = Attention(%0, %1, %1, %2) {scale: 0.125, causal: false, softcap: 0, guarded: false} : f16[b, 12, q, 64] "attention"
        return "y" = %3
    "#;
    let planned = program(text, &[], "sm_90a");
    let [step] = planned.steps() else { panic!("{planned}") };
    let target: Target = "sm_90a".parse().unwrap();
    let launches = launches(&planned, step, &target).unwrap();
    for (b, q, expected, blocks) in [
        (8, 1, "decode8", 192),
        (12, 1, "decode2", 72),
        (45, 1, "decode", 132),
        (8, 2, "narrow", 96),
        (8, 65, "wide", 96),
    ] {
        let bindings = sizes(&[("b", b), ("q", q), ("t", 512)]);
        let chosen = step.variants.choose(&bindings).unwrap();
        assert_eq!(step.variants.all()[chosen].name, expected, "{b}, {q}: {}", step.variants);
        assert_eq!(emitted(&launches[chosen], &bindings).blocks, blocks, "{b}, {q}");
    }
    // Too many queries for one thread.
    let many = program(&text.replace("b, 12", "b, 15"), &[], "sm_90a");
    let names: Vec<_> = many.steps()[0].variants.all().iter().map(|variant| variant.name).collect();
    assert_eq!(names[0], "decode");
    // Queries that attend only some keys each, and heads with keys of their own, are no such rows.
    for text in
        [text.replace("causal: false", "causal: true"), text.replace("f16[b, 3", "f16[b, 12")]
    {
        let other = program(&text, &[], "sm_90a");
        assert!(other.steps()[0].variants.all().iter().all(|variant| variant.name != "decode"));
    }
}

#[test]
fn variants_of_batched_matmuls_go_by_the_rows_of_one_matrix() {
    // A step of decoding: one query against the keys of each head.
    let text = r#"
        symbols b, q, t
        %0 = Input : f32[b, 12, q, 64] "queries"
        %1 = Input : f32[b, 12, 64, t] "keys"
        %2 = MatMul(%0, %1) : f32[b, 12, q, t] "scores"
        return "y" = %2
    "#;
    let program = program(text, &[], "sm_90a");
    let [step] = program.steps() else { panic!("{program}") };
    for (q, expected) in [(1, "few"), (512, "few"), (2000, "narrow"), (4096, "wide")] {
        let sizes = sizes(&[("b", 8), ("q", q), ("t", 512)]);
        let chosen = step.variants.choose(&sizes).unwrap();
        assert_eq!(step.variants.all()[chosen].name, expected, "{q}: {}", step.variants);
    }
}

#[test]
fn what_constants_make_beyond_bounds_runs_with_the_program() {
    let sum = |rows: usize| {
        let text = format!(
            r#"
            %0 = Constant(@0 _) : f32[1] "one"
            %1 = Constant(@1 _) : f32[{rows}, 1] "column"
            %2 = Expand(%0) {{shape: [{rows}, {rows}]}} : f32[{rows}, {rows}] "wide"
            %3 = Add(%2, %1) : f32[{rows}, {rows}] "sum"
            return "y" = %3
        "#
        );
        program(&text, &[&[1], &[rows, 1]], "cpu:2")
    };
    // The launch of the small one hands the weight out.
    for (rows, made, family) in [(100, 40_000, Family::Copy), (40_000, 0, Family::Pointwise)] {
        let program = sum(rows);
        assert_eq!(program.made_bytes(), made, "{program}");
        let families: Vec<_> = program.steps().iter().map(|step| step.family).collect();
        assert_eq!(families, [family], "{program}");
    }
}
