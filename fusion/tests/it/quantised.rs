//! Quantised models on a GPU: what is between two operators is real numbers, and what is multiplied as integers has kernels.

use crate::kernels::{TARGETS, check_graph, check_text, numbers, tensor};
use crate::sizes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::text::parse;
use graphene_frontend::{DType, Graph, NodeId, Op, Tensor};
use graphene_fusion::groups::Family;
use graphene_fusion::kernels::launches;
use graphene_fusion::program::{Buffer, BufferKind};
use graphene_fusion::{Granularity, Planned, plan, plan_in};

/// Lines that quantise value number `x` and dequantise it, numbered from `at` on; the last line's number.
fn quantised(
    x: usize,
    at: usize,
    shape: &str,
    [byte, zero, low, high]: [&str; 4],
) -> (String, usize) {
    let mut text = format!(
        r#"
        %+0 = Constant(0.046875) : f32[] "scale"
        %+1 = Constant({zero}.0) : f32[] "zero"
        %+2 = Constant({low}.0) : f32[] "low"
        %+3 = Constant({high}.0) : f32[] "high"
        %+4 = Constant({zero}) : i32[] "whole zero"
        %+5 = Div(%{x}, %+0) : f32[{shape}] "quotient"
        %+6 = Round(%+5) : f32[{shape}] "rounded"
        %+7 = Add(%+6, %+1) : f32[{shape}] "moved"
        %+8 = Max(%+7, %+2) : f32[{shape}] "not low"
        %+9 = Min(%+8, %+3) : f32[{shape}] "not high"
        %+10 = Cast(%+9) {{to: {byte}, saturate: true}} : {byte}[{shape}] "bytes"
        %+11 = Cast(%+10) {{to: i32, saturate: true}} : i32[{shape}] "wide"
        %+12 = Sub(%+11, %+4) : i32[{shape}] "centered"
        %+13 = Cast(%+12) {{to: f32, saturate: true}} : f32[{shape}] "real"
        %+14 = Mul(%+13, %+0) : f32[{shape}] "dequantised""#
    );
    for line in (0..=14).rev() {
        text = text.replace(&format!("%+{line}"), &format!("%{}", at + line));
    }
    (text, at + 14)
}

const U8: [&str; 4] = ["u8", "117", "0", "255"];
const I8: [&str; 4] = ["i8", "0", "-128", "127"];

/// A graph, and its plan for a GPU.
fn planned(text: &str) -> (Graph, Planned) {
    let (graph, target) = (parse(text, &[]).unwrap(), "sm_90a".parse().unwrap());
    let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
    (graph, planned)
}

/// Inputs of a graph, made of an element's number and the place of its input.
fn filled(graph: &Graph, bindings: &Bindings, value: impl Fn(usize, usize) -> f64) -> Vec<Tensor> {
    let input = |(place, &id): (usize, &NodeId)| {
        let ty = graph.ty(id.value());
        let shape = ty.shape.iter().map(|dim| dim.eval(bindings).unwrap() as usize);
        let shape: Vec<usize> = shape.collect();
        let len = shape.iter().product();
        let data: Vec<f64> = (0..len).map(|i| value(place, i)).collect();
        tensor(ty.dtype, shape, &data)
    };
    graph.inputs().iter().enumerate().map(input).collect()
}

/// The families of what is planned for a GPU, which gives what the model gives, bit for bit, and whose steps have kernels.
#[track_caller]
fn check(text: &str, expected: &[Family]) {
    let graph = parse(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let bindings = sizes(&[("b", 2)]);
    // Many are clamped; some are halfway between two steps.
    let inputs =
        filled(&graph, &bindings, |place, i| ((i * 37 + place) % 769) as f64 * 0.0234375 - 9.0);
    for target in TARGETS {
        let target = target.parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let families: Vec<Family> = planned.program.steps().iter().map(|s| s.family).collect();
        assert_eq!(families, expected, "{target}\n{}", planned.program);
        let of = |graph| evaluate_with(graph, &inputs, &bindings).unwrap();
        let (found, wanted) = (of(&planned.graph), of(&graph));
        assert_eq!(found[0].bytes(), wanted[0].bytes(), "{target}\n{}", planned.program);
    }
    let refused = check_graph(text, &graph, &TARGETS, &[bindings]);
    assert!(refused.is_empty(), "{refused:?}");
}

/// Quantised twice, once as the convolution's result and once as what follows it: one launch.
#[test]
fn what_is_quantised_after_a_convolution_is_part_of_it() {
    for bytes in [U8, I8] {
        let shape = "b, 12, 4, 4";
        let (once, at) = quantised(2, 3, shape, bytes);
        let (twice, last) = quantised(at + 1, at + 2, shape, bytes);
        check(
            &format!(
                r#"
        symbols b
        %0 = Input : f32[{shape}] "x"
        %1 = Input : f32[12, 12, 1, 1] "w"
        %2 = Conv(%0, %1) {{strides: [1, 1], dilations: [1, 1], pads_before: [0, 0], pads_after: [0, 0], group: 1}} : f32[{shape}] "conv"{once}
        %{} = Relu(%{at}) : f32[{shape}] "relu"{twice}
        return "y" = %{last}
    "#,
                at + 1
            ),
            &[Family::Convolution],
        );
    }
}

/// What is quantised once more by the same scale, after a change of view, is what it was: what follows that is a multiplication.
#[test]
fn what_is_quantised_already_stays() {
    let (once, at) = quantised(1, 2, "b, 64", U8);
    let (twice, last) = quantised(at + 1, at + 2, "64, b", U8);
    check(
        &format!(
            r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Tanh(%0) : f32[b, 64] "tanh"{once}
        %{} = Transpose(%{at}) {{perm: [1, 0]}} : f32[64, b] "turned"{twice}
        return "y" = %{last}
    "#,
            at + 1
        ),
        &[Family::Pointwise, Family::Pointwise],
    );
}

#[test]
fn matmuls_of_integers_take_what_follows() {
    for (symbols, b, w) in [("s", "", "32, 48"), ("b, s", "b, ", "b, 32, 48")] {
        check_text(&format!(
            r#"
            symbols {symbols}
            %0 = Input : i32[{b}s, 32] "x"
            %1 = Input : i32[{w}] "w"
            %2 = Input : f32[] "scale"
            %3 = Input : f32[48] "bias"
            %4 = MatMul(%0, %1) : i32[{b}s, 48] "product"
            %5 = Cast(%4) {{to: f32, saturate: true}} : f32[{b}s, 48] "real"
            %6 = Mul(%5, %2) : f32[{b}s, 48] "scaled"
            %7 = Add(%6, %3) : f32[{b}s, 48] "biased"
            %8 = Gelu(%7) : f32[{b}s, 48] "activated"
            return "y" = %8
        "#
        ));
    }
}

/// As `DynamicQuantizeLinear` and `MatMulInteger`. Where all of x is 0, the scale is, and quotients are NaN, which becomes 0 as an integer.
#[test]
fn bytes_are_multiplied_in_fp16() {
    use Family::{MatMul, Pointwise};
    let text = r#"
        symbols b
        %0 = Input : f32[b, 3, 40] "x"
        %1 = Input : f32[] "scale"
        %2 = Input : i8[40, 24] "weights"
        %3 = Input : f32[] "least"
        %4 = Constant(0.0) : f32[] "low"
        %5 = Constant(255.0) : f32[] "high"
        %6 = Div(%3, %1) : f32[] "below"
        %7 = Sub(%4, %6) : f32[] "offset"
        %8 = Max(%7, %4) : f32[] "offset not low"
        %9 = Min(%8, %5) : f32[] "offset not high"
        %10 = Round(%9) : f32[] "rounded offset"
        %11 = Cast(%10) {to: u8, saturate: true} : u8[] "zero"
        %12 = Cast(%11) {to: i32, saturate: true} : i32[] "wide zero"
        %13 = Div(%0, %1) : f32[b, 3, 40] "quotient"
        %14 = Round(%13) : f32[b, 3, 40] "rounded"
        %15 = Cast(%11) {to: f32, saturate: true} : f32[] "real zero"
        %16 = Add(%14, %15) : f32[b, 3, 40] "moved"
        %17 = Max(%16, %4) : f32[b, 3, 40] "not low"
        %18 = Min(%17, %5) : f32[b, 3, 40] "not high"
        %19 = Cast(%18) {to: u8, saturate: true} : u8[b, 3, 40] "bytes"
        %20 = Cast(%19) {to: i32, saturate: true} : i32[b, 3, 40] "wide"
        %21 = Sub(%20, %12) : i32[b, 3, 40] "centered"
        %22 = Cast(%2) {to: i32, saturate: true} : i32[40, 24] "wide weights"
        %23 = MatMul(%21, %22) : i32[b, 3, 24] "sums"
        %24 = Cast(%23) {to: f32, saturate: true} : f32[b, 3, 24] "real"
        %25 = Mul(%24, %1) : f32[b, 3, 24] "scaled"
        return "y" = %25
    "#;
    check(text, &[Pointwise, Pointwise, Pointwise, MatMul]);
    assert_eq!(operand_types(text), [DType::F16; 2]);
    check_values(text, |i| if i == 2 { 1.0 } else { 0.0 });
}

/// Kernels add no matmuls of different types: these are two launches, of which the second adds the first one's result.
#[test]
fn matmuls_of_different_types_do_not_share_a_launch() {
    use Family::{MatMul, Pointwise};
    let text = r#"
        symbols b
        %0 = Input : u8[b, 16] "x"
        %1 = Input : i8[16, 24] "w"
        %2 = Input : f32[b, 8] "z"
        %3 = Input : f32[8, 24] "v"
        %4 = Cast(%0) {to: i32, saturate: true} : i32[b, 16] "wide x"
        %5 = Cast(%1) {to: i32, saturate: true} : i32[16, 24] "wide w"
        %6 = MatMul(%4, %5) : i32[b, 24] "sums"
        %7 = Cast(%6) {to: f32, saturate: true} : f32[b, 24] "real"
        %8 = MatMul(%2, %3) : f32[b, 24] "other"
        %9 = Add(%7, %8) : f32[b, 24] "y"
        return "y" = %9
    "#;
    check(text, &[Pointwise, Pointwise, MatMul, MatMul]);
}

/// The types of the operands of a plan's matmuls.
fn operand_types(text: &str) -> Vec<DType> {
    let (_, planned) = planned(text);
    let matmuls = planned.graph.matmuls().into_iter().map(|id| planned.graph.node(id));
    let inputs = matmuls.flat_map(|node| node.inputs().iter().flatten().copied());
    inputs.map(|value| planned.graph.ty(value).dtype).collect()
}

/// Activations and weights between `QuantizeLinear` and `DequantizeLinear`. Where the weights have a scale for each row, which varies
/// along K and is no factor of the sum, the matmul stays in fp32. The scales are such that nothing is rounded.
#[test]
fn scales_of_columns_are_factors_of_matmuls() {
    use Family::{MatMul, Pointwise};
    let (x, at) = quantised(0, 3, "b, 3, 4", U8);
    let rows = [
        ("1, 2", "0.5, 0.25", DType::F16),
        ("4, 1", "0.5, 0.25, 0.125, 2.0", DType::F32),
        ("", "0.5", DType::F16),
    ];
    for (scale, values, dtype) in rows {
        let [wide, real, scales, scaled, sums, y] = [1, 2, 3, 4, 5, 6].map(|i| at + i);
        let text = format!(
            r#"
        symbols b
        %0 = Input : f32[b, 3, 4] "x"
        %1 = Input : i8[4, 2] "w"
        %2 = Input : f32[2] "bias"{x}
        %{wide} = Cast(%1) {{to: i32, saturate: true}} : i32[4, 2] "wide weights"
        %{real} = Cast(%{wide}) {{to: f32, saturate: true}} : f32[4, 2] "real weights"
        %{scales} = Constant({values}) : f32[{scale}] "scales"
        %{scaled} = Mul(%{real}, %{scales}) : f32[4, 2] "weights"
        %{sums} = MatMul(%{at}, %{scaled}) : f32[b, 3, 2] "sums"
        %{y} = Add(%{sums}, %2) : f32[b, 3, 2] "y"
        return "y" = %{y}
    "#
        );
        assert_eq!(operand_types(&text), [dtype; 2], "{text}");
        check(&text, &[Pointwise, Pointwise, MatMul]);
    }
}

/// The types of what a plan's steps leave to each other.
fn types_between(text: &str) -> Vec<DType> {
    let program = planned(text).1.program;
    let is_between = |buffer: &&Buffer| matches!(buffer.kind, BufferKind::Intermediate);
    let between = program.buffers().iter().filter(is_between);
    between.map(|buffer| buffer.dtype).collect()
}

/// Numbers that a matmul multiplies and a sum dequantises are stored once, in fp16.
#[test]
fn what_is_added_again_is_read_in_fp16() {
    use Family::{MatMul, Pointwise};
    let (x, at) = quantised(0, 2, "b, 3, 4", U8);
    let [wide, real, scales, scaled, sums] = [1, 2, 3, 4, 5].map(|i| at + i);
    let (once, term) = quantised(sums, sums + 1, "b, 3, 4", I8);
    let (twice, last) = quantised(term + 1, term + 2, "b, 3, 4", U8);
    let text = format!(
        r#"
        symbols b
        %0 = Input : f32[b, 3, 4] "x"
        %1 = Input : i8[4, 4] "w"{x}
        %{wide} = Cast(%1) {{to: i32, saturate: true}} : i32[4, 4] "wide weights"
        %{real} = Cast(%{wide}) {{to: f32, saturate: true}} : f32[4, 4] "real weights"
        %{scales} = Constant(0.03125) : f32[] "scales"
        %{scaled} = Mul(%{real}, %{scales}) : f32[4, 4] "weights"
        %{sums} = MatMul(%{at}, %{scaled}) : f32[b, 3, 4] "sums"{once}
        %{} = Add(%{term}, %{at}) : f32[b, 3, 4] "both"{twice}
        return "y" = %{last}
    "#,
        term + 1
    );
    assert_eq!(types_between(&text), [DType::F16; 2], "{text}");
    check(&text, &[Pointwise, Pointwise, MatMul]);
}

/// Where a max pooling is quantised next, it is of whole numbers in fp16, before Relu and positive scales; not before a negative scale,
/// which turns the order around, nor where a window may hold no element, whose largest is minus infinity.
#[test]
fn max_pooling_comes_before_positive_scales() {
    use Family::{Convolution, Pointwise};
    let rows = [
        ("0.25", "[3, 3]", "[1, 1]", DType::F16),
        ("-0.25", "[3, 3]", "[1, 1]", DType::F32),
        ("0.25", "[1, 1]", "[0, 0]", DType::F16),
        ("0.25", "[1, 1]", "[1, 1]", DType::F32),
    ];
    for (scale, kernel, pads, dtype) in rows {
        let (x, at) = quantised(0, 1, "b, 8, 5, 5", U8);
        let [another, scaled, relu, pool, negative] = [1, 2, 3, 4, 5].map(|i| at + i);
        let size = if kernel == "[1, 1]" && pads == "[1, 1]" { 4 } else { 3 };
        let text = format!(
            r#"
        symbols b
        %0 = Input : f32[b, 8, 5, 5] "x"{x}
        %{another} = Constant({scale}) : f32[] "another scale"
        %{scaled} = Mul(%{at}, %{another}) : f32[b, 8, 5, 5] "scaled"
        %{relu} = Relu(%{scaled}) : f32[b, 8, 5, 5] "relu"
        %{pool} = Pool(%{relu}) {{kind: max, kernel: {kernel}, strides: [2, 2], dilations: [1, 1], pads_before: {pads}, pads_after: {pads}, ceil: false}} : f32[b, 8, {size}, {size}] "pool"
        %{negative} = Neg(%{pool}) : f32[b, 8, {size}, {size}] "negative"
        return "y" = %{negative}
    "#
        );
        assert_eq!(types_between(&text), [dtype; 2], "{text}");
        check(&text, &[Pointwise, Convolution, Pointwise]);
    }
}

/// The graph with constants for all inputs but the first.
fn with_constants(graph: &Graph, all: &[Tensor]) -> Graph {
    let (mut result, mut left) = (Graph::new(), all.iter());
    for (id, node) in graph.nodes() {
        match (node.op(), result.inputs().len()) {
            (Op::Input, 0) => result.add_input(node.name(), graph.ty(id.value()).clone()).unwrap(),
            (Op::Input, _) => result.add_constant(node.name(), left.next().unwrap().clone()),
            (Op::Constant(tensor), _) => result.add_constant(node.name(), tensor.clone()),
            (op, _) => result.add(node.name(), op.clone(), node.inputs()).unwrap().value(),
        };
    }
    graph.outputs().iter().for_each(|(name, value)| result.add_output(name, *value));
    result
}

/// Images and filters between `QuantizeLinear` and `DequantizeLinear`, with a scale for each filter: all is one launch behind the one
/// that quantises the image, of convolutions whose channels are innermost, of others, and of one for each channel.
#[test]
fn bytes_are_convolved_in_fp16() {
    let rows =
        [("16", "8", "8", 1), ("12", "12", "12", 1), ("4", "6", "6", 1), ("16", "16", "1", 16)];
    for (filters, channels, of_group, group) in rows {
        let (images, made) = (format!("b, {channels}, 5, 5"), format!("b, {filters}, 3, 3"));
        let weights = format!("{filters}, {of_group}, 3, 3");
        let count: usize = filters.parse().unwrap();
        let size = count * of_group.parse::<usize>().unwrap() * 9;
        let numbers: Vec<f64> = (0..size).map(|i| (i * 7 % 9) as f64 - 4.0).collect();
        let shape = weights.split(", ").map(|size| size.parse().unwrap()).collect();
        let scales: Vec<f64> = (0..count).map(|i| 0.0078125 * (1 + i % 4) as f64).collect();
        let all = [
            tensor(DType::I8, shape, &numbers),
            tensor(DType::F32, vec![count, 1, 1, 1], &scales),
            tensor(
                DType::F32,
                vec![count],
                &scales.iter().map(|scale| 40.0 * scale).collect::<Vec<_>>(),
            ),
        ];
        let (x, at) = quantised(0, 4, &images, U8);
        let [wide, real, scaled, conv] = [1, 2, 3, 4].map(|i| at + i);
        let (y, last) = quantised(conv, conv + 1, &made, I8);
        let text = format!(
            r#"
        symbols b
        %0 = Input : f32[{images}] "x"
        %1 = Input : i8[{weights}] "w"
        %2 = Input : f32[{filters}, 1, 1, 1] "scales"
        %3 = Input : f32[{filters}] "bias"{x}
        %{wide} = Cast(%1) {{to: i32, saturate: true}} : i32[{weights}] "wide weights"
        %{real} = Cast(%{wide}) {{to: f32, saturate: true}} : f32[{weights}] "real weights"
        %{scaled} = Mul(%{real}, %2) : f32[{weights}] "weights"
        %{conv} = Conv(%{at}, %{scaled}, %3) {{strides: [1, 1], dilations: [1, 1], pads_before: [0, 0], pads_after: [0, 0], group: {group}}} : f32[{made}] "conv"{y}
        return "y" = %{last}
    "#
        );
        let graph = with_constants(&parse(&text, &[]).unwrap(), &all);
        let bindings = sizes(&[("b", 2)]);
        let inputs = filled(&graph, &bindings, |_, i| (i * 37 % 769) as f64 * 0.0234375 - 9.0);
        for (target, elements) in [("sm_80", None), ("sm_90a", None), ("sm_90a", Some(DType::F16))]
        {
            let target = target.parse().unwrap();
            let planned =
                plan_in(&graph, &target, Granularity::Fused, &bindings, elements).unwrap();
            let wide =
                planned.graph.nodes().filter(|(_, node)| matches!(node.op(), Op::WideConv(_)));
            assert_eq!(wide.count(), 1, "{text}");
            let families = planned.program.steps().iter().map(|step| step.family);
            let families: Vec<Family> = families.filter(|family| *family != Family::Copy).collect();
            assert_eq!(families, [Family::Pointwise, Family::Convolution], "{}", planned.program);
            let of = |graph| {
                crate::kernels::numbers(&evaluate_with(graph, &inputs, &bindings).unwrap()[0])
            };
            // One step of the last quantisation where it is nearly halfway, in single precision.
            let most = if elements.is_none() { 0.046875 } else { 0.1 };
            let wanted = of(&graph);
            let inside = wanted.iter().filter(|y| y.abs() < 120.0 * 0.046875).count();
            assert!(2 * inside > wanted.len(), "{inside} of {}", wanted.len());
            let off = of(&planned.graph).into_iter().zip(wanted).map(|(x, y)| (x - y).abs());
            assert!(off.clone().all(|off| off <= most), "{:?}", off.fold(0.0, f64::max));
        }
        let refused = check_graph(&text, &graph, &TARGETS, &[bindings]);
        assert!(refused.is_empty(), "{refused:?}");
    }
}

/// In fp16, which holds no such sums: they are scaled before they are rounded to it.
#[test]
fn sums_of_bytes_are_scaled_in_single_precision() {
    let (x, at) = quantised(0, 2, "b, 64", U8);
    for (shape, values) in [("1, 2", "0.03125, 0.0625"), ("", "0.03125")] {
        let [wide, real, scales, scaled, sums] = [1, 2, 3, 4, 5].map(|i| at + i);
        let text = format!(
            r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Input : i8[64, 2] "w"{x}
        %{wide} = Cast(%1) {{to: i32, saturate: true}} : i32[64, 2] "wide weights"
        %{real} = Cast(%{wide}) {{to: f32, saturate: true}} : f32[64, 2] "real weights"
        %{scales} = Constant({values}) : f32[{shape}] "scales"
        %{scaled} = Mul(%{real}, %{scales}) : f32[64, 2] "weights"
        %{sums} = MatMul(%{at}, %{scaled}) : f32[b, 2] "sums"
        return "y" = %{sums}
    "#
        );
        let (graph, bindings) = (parse(&text, &[]).unwrap(), sizes(&[("b", 2)]));
        let inputs = filled(&graph, &bindings, |place, _| [100.0, 127.0][place]);
        let (target, half) = ("sm_90a".parse().unwrap(), Some(DType::F16));
        let planned = plan_in(&graph, &target, Granularity::Fused, &bindings, half).unwrap();
        assert_eq!(planned.graph.matmuls().len(), 1);
        assert!(planned.graph.nodes().any(|(_, node)| *node.op() == Op::WideMatMul), "{text}");
        let of = |graph| evaluate_with(graph, &inputs, &bindings).unwrap();
        let (found, wanted) = (numbers(&of(&planned.graph)[0]), numbers(&of(&graph)[0]));
        for (found, wanted) in found.into_iter().zip(wanted) {
            assert!((found / wanted - 1.0).abs() < 2f64.powi(-10), "{found} for {wanted}\n{text}");
        }
    }
}

/// A depth that is a symbol may be no multiple of 8, as the other operand says: then there is one kernel.
#[test]
fn symbols_that_are_no_multiples_have_kernels() {
    let text = r#"
        symbols b, s
        %0 = Input : f32[b, s] "x"
        %1 = Input : f32[4, 16] "w"
        %2 = MatMul(%0, %1) : f32[b, 16] "y"
        return "y" = %2
    "#;
    let graph = parse(text, &[]).unwrap();
    let sized = [sizes(&[("b", 3), ("s", 4)])];
    assert!(check_graph(text, &graph, &TARGETS, &sized).is_empty());
}

#[test]
fn integers_are_multiplied_on_the_device() {
    let attrs =
        "{strides: [1, 1], dilations: [1, 1], pads_before: [1, 1], pads_after: [1, 1], group: 1}";
    for (text, expected) in [
        (
            r#"
            %0 = Input : i32[b, 40] "x"
            %1 = Input : i32[40, 20] "w"
            %2 = MatMul(%0, %1) : i32[b, 20] "y""#,
            &[Family::MatMul][..],
        ),
        (
            r#"
            %0 = Input : i32[b, 6, 5, 5] "x"
            %1 = Input : i32[16, 6, 3, 3] "w"
            %2 = Conv(%0, %1) ATTRS : i32[b, 16, 5, 5] "y""#,
            &[Family::Convolution],
        ),
        (
            r#"
            %0 = Input : i32[b, 6, 5, 5] "x"
            %1 = Input : i32[16, 6, 3, 3] "w"
            %2 = Input : i32[16] "bias"
            %3 = Conv(%0, %1, %2) ATTRS : i32[b, 16, 5, 5] "y""#,
            &[Family::Convolution, Family::Pointwise],
        ),
    ] {
        let last = text.trim().lines().count() - 1;
        let text = format!("symbols b\n{text}\nreturn \"y\" = %{last}");
        let text = text.replace("ATTRS", attrs);
        check(&text, expected);
    }
}

/// Convolutions of integers of fewer than eight output channels a group have no kernel, and share no launch.
#[test]
fn convolutions_without_a_kernel_are_alone() {
    let text = r#"
        symbols b
        %0 = Input : i32[b, 6, 5, 5] "x"
        %1 = Input : i32[4, 6, 3, 3] "w"
        %2 = Conv(%0, %1) {strides: [1, 1], dilations: [1, 1], pads_before: [1, 1], pads_after: [1, 1], group: 1} : i32[b, 4, 5, 5] "conv"
        %3 = Cast(%2) {to: f32, saturate: true} : f32[b, 4, 5, 5] "y"
        return "y" = %3
    "#;
    let (_, planned) = planned(text);
    let families: Vec<Family> = planned.program.steps().iter().map(|s| s.family).collect();
    assert_eq!(families, [Family::Convolution, Family::Pointwise], "{}", planned.program);
}

/// What finds the range of rows shares a launch with a normalisation, but with no table's rows.
#[test]
fn ranges_of_rows_of_tables_have_kernels() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : f32[2, 24] "table"
        %1 = Input : i64[b, s] "ids"
        %2 = Input : f32[24] "scale"
        %3 = Input : f32[24] "shift"
        %4 = Gather(%0, %1) {axis: 0} : f32[b, s, 24] "rows"
        %5 = LayerNorm(%4, %2, %3) {axis: 2, epsilon: 0.00001} : f32[b, s, 24], f32[b, s, 1], f32[b, s, 1] "normal"
        %6 = ReduceMax(%5) {axes: [2], keep: true} : f32[b, s, 1] "most"
        return "y" = %5, "most" = %6
    "#,
    );
}

/// As `DynamicQuantizeLinear` before `MatMulInteger`: the range is found row by row, then of all rows, with the scale and the zero
/// point in the same launch; what is quantised becomes integers without bytes between.
#[test]
fn ranges_are_found_by_rows_and_bytes_become_integers() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 128, 256] "x"
        %1 = Constant(0.0) : f32[] "zero"
        %2 = Constant(255.0) : f32[] "top"
        %3 = Input : i32[256, 64] "w"
        %4 = ReduceMin(%0) {axes: [0, 1, 2], keep: false} : f32[] "least"
        %5 = Min(%4, %1) : f32[] "low"
        %6 = ReduceMax(%0) {axes: [0, 1, 2], keep: false} : f32[] "most"
        %7 = Max(%6, %1) : f32[] "high"
        %8 = Sub(%7, %5) : f32[] "extent"
        %9 = Div(%8, %2) : f32[] "scale"
        %10 = Div(%5, %9) : f32[] "below"
        %11 = Sub(%1, %10) : f32[] "offset"
        %12 = Max(%11, %1) : f32[] "not low"
        %13 = Min(%12, %2) : f32[] "not high"
        %14 = Round(%13) : f32[] "rounded"
        %15 = Cast(%14) {to: u8, saturate: true} : u8[] "zero point"
        %16 = Div(%0, %9) : f32[b, 128, 256] "quotient"
        %17 = Round(%16) : f32[b, 128, 256] "whole"
        %18 = Cast(%15) {to: f32, saturate: true} : f32[] "real zero point"
        %19 = Add(%17, %18) : f32[b, 128, 256] "moved"
        %20 = Max(%19, %1) : f32[b, 128, 256] "at least"
        %21 = Min(%20, %2) : f32[b, 128, 256] "at most"
        %22 = Cast(%21) {to: u8, saturate: true} : u8[b, 128, 256] "bytes"
        %23 = Cast(%22) {to: i32, saturate: true} : i32[b, 128, 256] "wide"
        %24 = Cast(%15) {to: i32, saturate: true} : i32[] "whole zero point"
        %25 = Sub(%23, %24) : i32[b, 128, 256] "centered"
        %26 = MatMul(%25, %3) : i32[b, 128, 64] "product"
        %27 = Cast(%26) {to: f32, saturate: true} : f32[b, 128, 64] "real"
        %28 = Mul(%27, %9) : f32[b, 128, 64] "y"
        return "y" = %28
    "#;
    use Family::{MatMul, Pointwise, Reduction};
    check(text, &[Reduction, Reduction, Pointwise, MatMul]);
}

/// Integers of eight bits wrap, and a quotient by 0 that becomes a byte is 0: neither stays a real number.
#[test]
fn what_bytes_change_is_left_to_them() {
    use Family::Pointwise;
    check(
        r#"
        symbols b
        %0 = Input : u8[b, 64] "x"
        %1 = Input : u8[b, 64] "y"
        %2 = Sub(%0, %1) : u8[b, 64] "wrapped"
        %3 = Cast(%2) {to: f32, saturate: true} : f32[b, 64] "z"
        return "z" = %3
    "#,
        &[Pointwise, Pointwise],
    );
    // As `DynamicQuantizeLinear` and `DequantizeLinear` of zeros, whose scale is 0: of bytes, of bytes less others, and less a constant.
    for of_bytes in ["8", "10", "12"] {
        let text = r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Input : f32[b, 64] "scale"
        %2 = Constant(0.0) : f32[] "low"
        %3 = Constant(255.0) : f32[] "high"
        %4 = Div(%0, %1) : f32[b, 64] "quotient"
        %5 = Round(%4) : f32[b, 64] "rounded"
        %6 = Max(%5, %2) : f32[b, 64] "not low"
        %7 = Min(%6, %3) : f32[b, 64] "not high"
        %8 = Cast(%7) {to: u8, saturate: true} : u8[b, 64] "bytes"
        %9 = Cast(%8) {to: i32, saturate: true} : i32[b, 64] "wide"
        %10 = Sub(%9, %9) : i32[b, 64] "centered"
        %11 = Constant(117) : i32[] "zero point"
        %12 = Sub(%9, %11) : i32[b, 64] "moved"
        %13 = Cast(%VALUE) {to: f32, saturate: true} : f32[b, 64] "y"
        return "y" = %13
    "#;
        check_values(&text.replace("VALUE", of_bytes), |_| 0.0);
    }
    // Bytes by one scale, which is 0, less bytes by another.
    let text = r#"
        symbols b
        %0 = Input : f32[b, 64] "x"
        %1 = Input : f32[] "scale"
        %2 = Input : f32[b, 64] "y"
        %3 = Input : f32[] "other scale"
        %4 = Constant(0.0) : f32[] "low"
        %5 = Constant(255.0) : f32[] "high"
        %6 = Div(%0, %1) : f32[b, 64] "quotient"
        %7 = Round(%6) : f32[b, 64] "rounded"
        %8 = Max(%7, %4) : f32[b, 64] "not low"
        %9 = Min(%8, %5) : f32[b, 64] "not high"
        %10 = Cast(%9) {to: u8, saturate: true} : u8[b, 64] "bytes"
        %11 = Cast(%10) {to: i32, saturate: true} : i32[b, 64] "wide"
        %12 = Div(%2, %3) : f32[b, 64] "other quotient"
        %13 = Round(%12) : f32[b, 64] "other rounded"
        %14 = Max(%13, %4) : f32[b, 64] "other not low"
        %15 = Min(%14, %5) : f32[b, 64] "other not high"
        %16 = Cast(%15) {to: u8, saturate: true} : u8[b, 64] "other bytes"
        %17 = Cast(%16) {to: i32, saturate: true} : i32[b, 64] "other wide"
        %18 = Sub(%11, %17) : i32[b, 64] "less"
        %19 = Cast(%18) {to: f32, saturate: true} : f32[b, 64] "z"
        return "z" = %19
    "#;
    check_values(text, |place| [0.0, 0.0, 5.0, 1.0][place]);
}

/// The planned graph gives what the model gives, bit for bit, with each input filled with one number, by the input's place.
fn check_values(text: &str, value: impl Fn(usize) -> f64) {
    let (graph, planned) = planned(text);
    let bindings = sizes(&[("b", 1)]);
    let inputs = filled(&graph, &bindings, |place, _| value(place));
    let of = |graph| evaluate_with(graph, &inputs, &bindings).unwrap();
    assert_eq!(of(&planned.graph)[0].bytes(), of(&graph)[0].bytes(), "{}", planned.program);
}

/// Attention of bytes over a sequence whose length is a symbol: its matmuls and its softmax have other kernels for multiples of 8 than for
/// other lengths, and each is right.
#[test]
fn attention_of_bytes_has_kernels_for_multiples() {
    let (shape, mut at) = ("b, s, 2, 16", 4);
    let mut text = format!(
        r#"
        symbols b, s
        %0 = Input : f32[{shape}] "q"
        %1 = Input : f32[{shape}] "k"
        %2 = Input : f32[{shape}] "v"
        %3 = Constant(0.25) : f32[] "factor""#
    );
    let mut turned = Vec::new();
    for input in 0..3 {
        let (lines, last) = quantised(input, at, shape, U8);
        let (perm, to) =
            if input == 1 { ("0, 2, 3, 1", "b, 2, 16, s") } else { ("0, 2, 1, 3", "b, 2, s, 16") };
        text += &format!(
            "{lines}\n%{} = Transpose(%{last}) {{perm: [{perm}]}} : f32[{to}] \"turned\"",
            last + 1
        );
        turned.push(last + 1);
        at = last + 2;
    }
    let scores = "b, 2, s, s";
    text += &format!(
        r#"
        %{at} = MatMul(%{}, %{}) : f32[{scores}] "scores"
        %{} = Mul(%{at}, %3) : f32[{scores}] "scaled"
        %{} = Softmax(%{}) {{axis: 3}} : f32[{scores}] "weights""#,
        turned[0],
        turned[1],
        at + 1,
        at + 2,
        at + 1
    );
    let (lines, last) = quantised(at + 2, at + 3, scores, ["u8", "0", "0", "255"]);
    text += &format!(
        "{lines}\n%{} = MatMul(%{last}, %{}) : f32[b, 2, s, 16] \"sums\"\nreturn \"y\" = %{}",
        last + 1,
        turned[2],
        last + 1
    );
    let graph = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let all = [13, 16, 45].map(|s| sizes(&[("b", 2), ("s", s)]));
    let (target, hints) = ("sm_90a".parse().unwrap(), Bindings::new());
    let planned = plan(&graph, &target, Granularity::Fused, &hints).unwrap();
    let steps = planned.program.steps().iter();
    let chosen = steps.filter(|step| matches!(step.family, Family::MatMul | Family::Normalization));
    let kernels = chosen.map(|step| {
        let made = launches(&planned.program, step, &target).unwrap();
        [1, 2].map(|of| made[step.variants.choose(&all[of]).unwrap()].kernel.to_string())
    });
    let kernels: Vec<[String; 2]> = kernels.collect();
    assert!(kernels.len() == 3 && kernels.iter().all(|[of_16, of_45]| of_16 != of_45));
    let refused = check_graph(&text, &graph, &["sm_80", "sm_90a"], &all);
    assert!(refused.is_empty(), "{refused:?}");
}
