//! Kernels of steps with convolutions and poolings.

use crate::kernels::{TARGETS, check_graph, check_text};
use crate::sizes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::text::parse;
use graphene_fusion::groups::Family;
use graphene_fusion::{Granularity, plan};

/// A convolution's attributes.
fn attrs(strides: &str, dilations: &str, pads: [&str; 2], group: usize) -> String {
    let [before, after] = pads;
    format!(
        "{{strides: {strides}, dilations: {dilations}, pads_before: {before}, pads_after: {after}, group: {group}}}"
    )
}

#[test]
fn convolutions_of_any_geometry_are_one_kernel() {
    let [one, two, none] = ["[1, 1]", "[2, 2]", "[0, 0]"];
    for (x, w, y, attrs) in [
        ("16, 7, 5", "24, 16, 3, 3", "24, 7, 5", attrs(one, one, [one, one], 1)),
        ("16, 7, 8", "24, 16, 3, 3", "24, 4, 4", attrs(two, one, [one, one], 1)),
        ("3, 9, 9", "10, 3, 3, 3", "10, 5, 5", attrs(one, two, [none, none], 1)),
        ("3, 6, 5", "10, 3, 2, 4", "10, 6, 5", attrs(one, one, ["[0, 2]", "[1, 1]"], 1)),
        ("32, 4, 4", "8, 32, 1, 1", "8, 4, 4", attrs(one, one, [none, none], 1)),
        ("32, 5, 3", "40, 32, 1, 1", "40, 3, 2", attrs(two, one, [none, none], 1)),
        ("16, 5, 6", "24, 8, 3, 3", "24, 5, 6", attrs(one, one, [one, one], 2)),
        ("12, 5, 6", "12, 1, 3, 3", "12, 5, 6", attrs(one, one, [one, one], 12)),
        ("8, 5, 6", "4, 4, 3, 3", "4, 3, 3", attrs(two, one, [one, one], 2)),
    ] {
        for dtype in ["f16", "f32"] {
            check_text(&format!(
                r#"
                symbols b
                %0 = Input : {dtype}[b, {x}] "x"
                %1 = Input : {dtype}[{w}] "w"
                %2 = Conv(%0, %1) {attrs} : {dtype}[b, {y}] "conv"
                return "y" = %2
            "#
            ));
        }
    }
}

#[test]
fn convolutions_have_one_axis_or_three_and_sizes_that_are_symbols() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : f16[b, 8, s] "x"
        %1 = Input : f16[16, 8, 3] "w"
        %2 = Input : f16[16] "bias"
        %3 = Conv(%0, %1, %2) {strides: [1], dilations: [1], pads_before: [2], pads_after: [0], group: 1} : f16[b, 16, s] "conv"
        return "y" = %3
    "#,
    );
    check_text(
        r#"
        symbols b
        %0 = Input : f32[b, 4, 3, 4, 5] "x"
        %1 = Input : f32[8, 4, 2, 2, 2] "w"
        %2 = Conv(%0, %1) {strides: [1, 1, 1], dilations: [1, 1, 1], pads_before: [0, 0, 0], pads_after: [0, 0, 0], group: 1} : f32[b, 8, 2, 3, 4] "conv"
        return "y" = %2
    "#,
    );
}

#[test]
fn convolutions_take_what_follows() {
    for dtype in ["f16", "f32"] {
        for (size, group, w) in [(5, 1, "12, 12"), (4, 1, "12, 12"), (5, 12, "12, 1")] {
            let text = r#"
            symbols b
            %0 = Input : T[b, 12, S, S] "x"
            %1 = Input : T[W, 3, 3] "w"
            %2 = Input : T[12] "bias"
            %3 = Input : T[1, 12, 1, 1] "scale"
            %4 = Input : T[12, 1, 1] "shift"
            %5 = Input : T[b, 12, S, S] "residual"
            %6 = Conv(%0, %1, %2) {strides: [1, 1], dilations: [1, 1], pads_before: [1, 1], pads_after: [1, 1], group: G} : T[b, 12, S, S] "conv"
            %7 = Mul(%6, %3) : T[b, 12, S, S] "scaled"
            %8 = Add(%7, %4) : T[b, 12, S, S] "shifted"
            %9 = Add(%8, %5) : T[b, 12, S, S] "sum"
            %10 = Relu(%9) : T[b, 12, S, S] "relu"
            return "y" = %10, "sum" = %9
        "#;
            let text = text.replace('T', dtype).replace('S', &size.to_string());
            check_text(&text.replace('W', w).replace('G', &group.to_string()));
        }
    }
}

#[test]
fn transposed_convolutions_are_one_kernel() {
    for (y, strides, pads, more) in [
        ("6, 8, 6", "[2, 2]", ["[1, 1]", "[0, 0]"], "[0, 0]"),
        ("6, 8, 7", "[2, 2]", ["[1, 0]", "[1, 1]"], "[1, 1]"),
        ("6, 6, 5", "[1, 1]", ["[0, 0]", "[0, 0]"], "[0, 0]"),
    ] {
        let attrs = attrs(strides, "[1, 1]", pads, 2).replace('}', "");
        check_text(&format!(
            r#"
            symbols b
            %0 = Input : f32[b, 4, 4, 3] "x"
            %1 = Input : f32[4, 3, 3, 3] "w"
            %2 = Input : f32[6] "bias"
            %3 = ConvTranspose(%0, %1, %2) {attrs}, output_padding: {more}}} : f32[b, {y}] "conv"
            return "y" = %3
        "#
        ));
    }
}

/// A pooling of images of 7×6 by windows of 3×2.
fn pooling(kind: &str, y: &str, pads: [&str; 2], ceil: bool) -> String {
    let [before, after] = pads;
    format!(
        r#"
        symbols b
        %0 = Input : f16[b, 5, 7, 6] "x"
        %1 = Pool(%0) {{kind: {kind}, kernel: [3, 2], strides: [2, 3], dilations: [1, 1], pads_before: {before}, pads_after: {after}, ceil: {ceil}}} : f16[b, 5, {y}] "pool"
        return "y" = %1
    "#
    )
}

const MAX: &str = "max";
const MEAN: &str = "average";
const MEAN_OF_ALL: &str = "average_with_padding";

#[test]
fn poolings_are_one_kernel() {
    let none = ["[0, 0]", "[0, 0]"];
    for (kind, y, pads, ceil) in [
        (MAX, "3, 2", none, false),
        (MAX, "4, 3", ["[1, 1]", "[1, 1]"], true),
        (MEAN, "4, 2", ["[1, 0]", "[1, 1]"], false),
        (MEAN, "3, 3", ["[0, 1]", "[0, 0]"], true),
        (MEAN_OF_ALL, "4, 3", ["[1, 1]", "[1, 1]"], false),
    ] {
        check_text(&pooling(kind, y, pads, ceil));
    }
}

#[test]
fn what_no_template_slides_is_refused() {
    let none = ["[0, 0]", "[0, 0]"];
    let places = pooling(MAX, "3, 2", none, false)
        .replace("kind: max", "kind: max_with_indices row_major")
        .replace("f16[b, 5, 3, 2] \"pool\"", "f16[b, 5, 3, 2], i64[b, 5, 3, 2] \"pool\"");
    for text in
        [pooling(MEAN_OF_ALL, "3, 2", none, true), pooling("lp 2", "3, 2", none, false), places]
    {
        let graph = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let refused = check_graph(&text, &graph, &TARGETS, &[sizes(&[("b", 2)])]);
        assert_eq!(refused.len(), 2 * TARGETS.len(), "{text}");
    }
}

/// What cuDNN computes in less time is a variant before our kernels, at those sizes alone.
#[test]
fn convolutions_go_to_the_library_where_it_is_faster() {
    let [one, two] = ["[1, 1]", "[2, 2]"];
    let plain = |strides, group| attrs(strides, one, [one, one], group);
    for (dtype, x, w, y, attrs, expected) in [
        (
            "f32",
            "64, 28, 28",
            "64, 64, 3, 3",
            "64, 28, 28",
            plain(one, 1),
            // 64 channels are one tile of 64, and two of 32: 64 pixels each.
            "library, narrow if 12*b + floor(16*b + 63, 64) >= 132, else few",
        ),
        ("f32", "64, 28, 28", "64, 1, 3, 3", "64, 28, 28", plain(one, 64), "any"),
        (
            "f32",
            "64, 28, 28",
            "64, 64, 1, 1",
            "64, 30, 30",
            plain(one, 1),
            "library if 900*b <= 4096, narrow if ",
        ),
        (
            "f16",
            "128, 28, 28",
            "128, 128, 3, 3",
            "128, 28, 28",
            plain(one, 1),
            "library if 100352*b >= 393216, ",
        ),
        (
            "f16",
            "64, 56, 56",
            "128, 64, 3, 3",
            "128, 28, 28",
            plain(two, 1),
            "library if 784*b >= 49152, ",
        ),
        ("f16", "64, 28, 28", "64, 64, 1, 1", "64, 30, 30", plain(one, 1), ""),
    ] {
        let graph = parse(
            &format!(
                r#"
                symbols b
                %0 = Input : {dtype}[b, {x}] "x"
                %1 = Input : {dtype}[{w}] "w"
                %2 = Conv(%0, %1) {attrs} : {dtype}[b, {y}] "conv"
                return "y" = %2
            "#
            ),
            &[],
        );
        let (graph, target) = (graph.unwrap(), "sm_90a".parse().unwrap());
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let mut steps = planned.program.steps().iter();
        let step = steps.rfind(|step| step.family == Family::Convolution).unwrap();
        let variants = step.variants.to_string();
        let calls = variants.starts_with("library");
        assert!(variants.starts_with(expected), "{variants}");
        assert_eq!(calls, expected.starts_with("library"), "{variants}");
    }
}

/// cuDNN's graphs know no GELU behind a convolution: that is no call, whatever the sizes.
#[test]
fn what_follows_in_no_call_keeps_a_convolution_from_the_library() {
    for (after, calls) in [("Relu", true), ("Gelu", false)] {
        let text = format!(
            r#"
            symbols b
            %0 = Input : f32[b, 64, 28, 28] "x"
            %1 = Input : f32[64, 64, 3, 3] "w"
            %2 = Input : f32[64] "bias"
            %3 = Conv(%0, %1, %2) {{strides: [1, 1], dilations: [1, 1], pads_before: [1, 1], pads_after: [1, 1], group: 1}} : f32[b, 64, 28, 28] "conv"
            %4 = {after}(%3) : f32[b, 64, 28, 28] "y"
            return "y" = %4
        "#
        );
        let (graph, target) = (parse(&text, &[]).unwrap(), "sm_90a".parse().unwrap());
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let steps = planned.program.steps().iter();
        let variants: Vec<String> = steps.map(|step| step.variants.to_string()).collect();
        assert_eq!(variants.iter().any(|all| all.starts_with("library")), calls, "{variants:?}");
    }
}
