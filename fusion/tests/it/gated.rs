//! Gated layers: two matmuls of one value whose results are multiplied are one kernel, however models write them.

use crate::kernels::{TARGETS, check_on, elements, numbers, tensor};
use crate::sizes;
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::op::Op;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::text::{content_hash, parse};
use graphene_fusion::{Granularity, plan};

/// A graph without constants that is one step: its kernels, in each type.
fn check(text: &str) {
    for dtype in ["f16", "bf16", "f32"] {
        let text = text.replace("T[", &format!("{dtype}["));
        let graph = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        for target in TARGETS {
            let target = target.parse().unwrap();
            let planned = plan(&graph, &target, Granularity::Fused, &sizes(&[])).unwrap();
            assert_eq!(planned.program.steps().len(), 1, "{target}\n{}", planned.program);
        }
        check_on(&TARGETS, &text);
    }
}

#[test]
fn a_gate_and_what_it_multiplies_are_one_kernel() {
    check(
        r#"
        symbols b, s
        %0 = Input : T[b, s, 32] "x"
        %1 = Input : T[32, 136] "w"
        %2 = Input : T[32, 136] "v"
        %3 = MatMul(%0, %1) : T[b, s, 136] "gate"
        %4 = Swish(%3) {alpha: 1} : T[b, s, 136] "active"
        %5 = MatMul(%0, %2) : T[b, s, 136] "up"
        %6 = Mul(%4, %5) : T[b, s, 136] "gated"
        return "y" = %6
    "#,
    );
}

#[test]
fn gates_have_biases_and_odd_widths_and_lie_either_way() {
    check(
        r#"
        symbols b, s
        %0 = Input : T[b, s, 13] "x"
        %1 = Input : T[35, 13] "stored w"
        %2 = Transpose(%1) {perm: [1, 0]} : T[13, 35] "w"
        %3 = Input : T[35, 13] "stored v"
        %4 = Transpose(%3) {perm: [1, 0]} : T[13, 35] "v"
        %5 = Input : T[35] "bias"
        %6 = Input : T[b, s, 35] "residual"
        %7 = MatMul(%0, %4) : T[b, s, 35] "up"
        %8 = MatMul(%0, %2) : T[b, s, 35] "gate"
        %9 = Add(%8, %5) : T[b, s, 35] "biased"
        %10 = Gelu(%9) : T[b, s, 35] "active"
        %11 = Mul(%7, %10) : T[b, s, 35] "gated"
        %12 = Add(%11, %6) : T[b, s, 35] "sum"
        return "y" = %12
    "#,
    );
}

/// Models with constant weights of 32 rows, as they are spelled: one launch, of two matmuls; and what is computed.
fn check_spelled(text: &str, widths: &[usize]) {
    let weights = (0..).zip(widths).map(|(seed, &width)| {
        tensor(DType::F32, vec![32, width], &elements(DType::F32, 32 * width, seed))
    });
    let weights: Vec<Tensor> = weights.collect();
    let mut text = text.to_owned();
    for (i, weight) in weights.iter().enumerate() {
        text = text.replace(&format!("@{i} _"), &format!("@{i} {:016x}", content_hash(weight)));
    }
    let graph = parse(&text, &weights).unwrap_or_else(|error| panic!("{error}\n{text}"));
    for target in TARGETS {
        let target = target.parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &sizes(&[])).unwrap();
        let [step] = planned.program.steps() else { panic!("{target}\n{}", planned.program) };
        let matmuls = step.body.nodes().filter(|(_, node)| *node.op() == Op::MatMul).count();
        assert_eq!(matmuls, 2, "{target}\n{}", planned.program);
        let bindings = sizes(&[("b", 3)]);
        let x = tensor(DType::F32, vec![3, 32], &elements(DType::F32, 96, 7));
        let of = |graph| evaluate_with(graph, std::slice::from_ref(&x), &bindings).unwrap();
        let (found, expected) = (of(&planned.graph), of(&graph));
        let pairs = numbers(&found[0]).into_iter().zip(numbers(&expected[0]));
        for (found, expected) in pairs {
            assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{text}");
        }
    }
}

#[test]
fn gates_are_found_as_models_spell_them() {
    // SiLU of two projections, as decoders have it.
    check_spelled(
        r#"
        symbols b
        %0 = Input : f32[b, 32] "x"
        %1 = Constant(@0 _) : f32[32, 48] "w"
        %2 = Constant(@1 _) : f32[32, 48] "v"
        %3 = MatMul(%0, %1) : f32[b, 48] "gate"
        %4 = Sigmoid(%3) : f32[b, 48] "share"
        %5 = Mul(%3, %4) : f32[b, 48] "active"
        %6 = MatMul(%0, %2) : f32[b, 48] "up"
        %7 = Mul(%5, %6) : f32[b, 48] "gated"
        return "y" = %7
    "#,
        &[48, 48],
    );
    // GELU of the second half of one projection.
    check_spelled(
        r#"
        symbols b
        %0 = Input : f32[b, 32] "x"
        %1 = Constant(@0 _) : f32[32, 96] "w"
        %2 = Constant(1.4142135) : f32[] "root"
        %3 = Constant(1.0) : f32[] "one"
        %4 = Constant(0.5) : f32[] "half"
        %5 = MatMul(%0, %1) : f32[b, 96] "both"
        %6 = Slice(%5) {axes: [{axis: 1, start: 0, len: 48, step: 1}]} : f32[b, 48] "up"
        %7 = Slice(%5) {axes: [{axis: 1, start: 48, len: 48, step: 1}]} : f32[b, 48] "gate"
        %8 = Div(%7, %2) : f32[b, 48] "scaled"
        %9 = Erf(%8) : f32[b, 48] "erf"
        %10 = Add(%9, %3) : f32[b, 48] "above"
        %11 = Mul(%7, %10) : f32[b, 48] "twice"
        %12 = Mul(%11, %4) : f32[b, 48] "active"
        %13 = Mul(%6, %12) : f32[b, 48] "gated"
        return "y" = %13
    "#,
        &[96],
    );
}

/// What is read besides the two halves, or not all of them, stays one matmul.
#[test]
fn projections_that_gate_nothing_stay_one() {
    let text = r#"
        symbols b
        %0 = Input : f32[b, 32] "x"
        %1 = Input : f32[32, 96] "w"
        %2 = MatMul(%0, %1) : f32[b, 96] "both"
        %3 = Slice(%2) {axes: [{axis: 1, start: 0, len: 48, step: 1}]} : f32[b, 48] "up"
        %4 = Slice(%2) {axes: [{axis: 1, start: 48, len: 48, step: 1}]} : f32[b, 48] "gate"
        %5 = Swish(%4) {alpha: 1} : f32[b, 48] "active"
        %6 = Mul(%3, %5) : f32[b, 48] "gated"
        return "y" = %6
    "#;
    // Weights that are no constant would have to be cut by each run.
    let graph = parse(text, &[]).unwrap();
    for target in TARGETS {
        let target = target.parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &sizes(&[])).unwrap();
        assert_eq!(planned.program.steps().len(), 2, "{}", planned.program);
    }
}
