//! Models in half precision: inputs and outputs keep their types, all between is half precision, and constants stay
//! finite.

use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::graph::Graph;
use graphene_frontend::op::{Binary, Op};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::text::parse;
use graphene_fusion::convert;

/// A mask that adds the least number, and a normalisation.
const MODEL: &str = r#"
    %0 = Input : f32[2, 4] "x"
    %1 = Input : i64[4] "mask"
    %2 = Constant(-3.4028235e38) : f32[1] "least"
    %3 = Cast(%1) {to: f32, saturate: true} : f32[4] "weights"
    %4 = Mul(%3, %2) : f32[4] "bias"
    %5 = Add(%0, %4) : f32[2, 4] "scores"
    %6 = Softmax(%5) {axis: 1} : f32[2, 4] "y"
    return "y" = %6
"#;

#[test]
fn what_is_between_inputs_and_outputs_becomes_half_precision() {
    let graph = parse(MODEL, &[]).unwrap();
    let x = Tensor::from_vec(vec![2, 4], (0..8).map(|i| i as f32 / 4.0).collect()).unwrap();
    let inputs = [x, Tensor::from_vec(vec![4], vec![0_i64, 0, 1, 0]).unwrap()];
    let none = Bindings::new();
    let expected = evaluate_with(&graph, &inputs, &none).unwrap();
    for (to, unit) in [(DType::F16, 2f32.powi(-11)), (DType::BF16, 2f32.powi(-8))] {
        let converted = convert(&graph, to).unwrap();
        let dtype = |value| converted.ty(value).dtype;
        let given: Vec<DType> = converted.inputs().iter().map(|id| dtype(id.value())).collect();
        assert_eq!(given, [DType::F32, DType::I64]);
        assert!(converted.outputs().iter().all(|(_, value)| dtype(*value) == DType::F32));
        for (id, node) in converted.nodes() {
            let single = dtype(id.value()) == DType::F32;
            let ends = matches!(node.op(), Op::Input | Op::Cast { to: DType::F32, .. });
            assert!(!single || ends, "{to}: {}", node.name());
        }
        let found = evaluate_with(&converted, &inputs, &none).unwrap();
        let elements = |tensors: &[Tensor]| tensors[0].as_slice::<f32>().unwrap().to_vec();
        // Scores are exact; each of the softmax's three steps rounds once.
        for (found, expected) in elements(&found).iter().zip(elements(&expected)) {
            assert!((found - expected).abs() <= 4.0 * unit, "{to}: {found} for {expected}");
        }
    }
}

/// Buckets of positions by a logarithm, as T5 has them: half precision would put some into another one.
#[test]
fn positions_are_counted_in_single_precision() {
    let text = r#"
        %0 = Input : i64[300] "positions"
        %1 = Cast(%0) {to: f32, saturate: true} : f32[300] "distance"
        %2 = Constant(7.6943736) : f32[1] "scale"
        %3 = Log(%1) : f32[300] "logarithm"
        %4 = Mul(%3, %2) : f32[300] "scaled"
        %5 = Cast(%4) {to: i64, saturate: true} : i64[300] "bucket"
        %6 = Cast(%5) {to: f32, saturate: true} : f32[300] "bias"
        %7 = Mul(%6, %2) : f32[300] "by the same constant"
        %8 = Add(%7, %3) : f32[300] "and the same logarithm"
        return "bucket" = %5, "bias" = %8
    "#;
    let graph = parse(text, &[]).unwrap();
    let positions = [Tensor::from_vec(vec![300], (1..=300_i64).collect()).unwrap()];
    let none = Bindings::new();
    let expected = evaluate_with(&graph, &positions, &none).unwrap();
    for to in [DType::F16, DType::BF16] {
        let converted = convert(&graph, to).unwrap();
        let found = evaluate_with(&converted, &positions, &none).unwrap();
        assert_eq!(found[0].as_slice::<i64>().unwrap(), expected[0].as_slice::<i64>().unwrap());
        // What else they become is in half precision.
        let half_values = converted.nodes().filter(|(id, _)| converted.ty(id.value()).dtype == to);
        let half_values: Vec<&str> = half_values.map(|(_, node)| node.name()).collect();
        for name in ["scale", "logarithm", "by the same constant", "and the same logarithm"] {
            assert!(half_values.contains(&name), "{to}: {name}, {half_values:?}");
        }
    }
}

/// The bits of a number, and a loop whose body says what it takes, between values that become half precision.
#[test]
fn what_takes_single_precision_alone_keeps_it() {
    let text = r#"
        %0 = Input : f32[4] "x"
        %1 = Add(%0, %0) : f32[4] "twice"
        %2 = BitCast(%1) {to: i32} : i32[4] "bits"
        %3 = BitCast(%2) {to: f32} : f32[4] "same"
        %4 = Mul(%3, %1) : f32[4] "square"
        return "square" = %4, "bits" = %2
    "#;
    let mut graph = parse(text, &[]).unwrap();
    let mut body = Graph::new();
    body.add_input("iteration", "i64[]".parse().unwrap()).unwrap();
    let again = body.add_input("again", "bool[]".parse().unwrap()).unwrap();
    let carried = body.add_input("carried", "f32[4]".parse().unwrap()).unwrap();
    let sum = body.add("sum", Op::Binary(Binary::Add), &[Some(carried), Some(carried)]).unwrap();
    body.add_output("again", again);
    body.add_output("carried", sum.value());
    let times = graph.add_constant("times", Tensor::scalar(3_i64));
    let square = graph.outputs()[0].1;
    let op = Op::Loop { body: Box::new(body), carried: 1 };
    let eightfold = graph.add("loop", op, &[Some(times), None, Some(square)]).unwrap();
    graph.add_output("eightfold", eightfold.value());
    // Small integers: half precision holds all that follows from them.
    let x = [Tensor::from_vec(vec![4], vec![0.5_f32, 1.0, -2.0, 3.0]).unwrap()];
    let none = Bindings::new();
    let expected = evaluate_with(&graph, &x, &none).unwrap();
    for to in [DType::F16, DType::BF16] {
        let converted = convert(&graph, to).unwrap();
        assert_eq!(evaluate_with(&converted, &x, &none).unwrap(), expected, "{to}");
        let mut half = converted.nodes().filter(|(_, node)| node.op().name() == "Mul");
        assert!(half.all(|(id, _)| converted.ty(id.value()).dtype == to));
    }
}

/// A sum beyond what fp16 holds, scaled by two scales that are too small for it together, or by one after the other.
#[test]
fn sums_of_integers_are_scaled_before_they_are_rounded() {
    let text = r#"
        %0 = Input : f32[] "scale"
        %1 = Input : i32[1, 64] "x"
        %2 = Input : i32[64, 1] "w"
        %3 = Constant(0.000001) : f32[] "scale of weights"
        %4 = Constant(64) : i32[] "bias"
        %5 = MatMul(%1, %2) : i32[1, 1] "matmul"
        %6 = Add(%5, %4) : i32[1, 1] "sum"
        %7 = Cast(%6) {to: f32, saturate: true} : f32[1, 1] "real"
        %8 = Mul(%A, %B) : f32 "first"
        %9 = Mul(%C, %8) : f32[1, 1] "y"
        return "y" = %9
    "#;
    for (a, b, c, first, scale) in
        [("0", "3", "7", "f32[]", 2f32.powi(-12)), ("7", "0", "3", "f32[1, 1]", 0.5)]
    {
        let text = text.replace("%A", &format!("%{a}")).replace("%B", &format!("%{b}"));
        let text = text
            .replace("%C", &format!("%{c}"))
            .replace("f32 \"first", &format!("{first} \"first"));
        check_scaled_sums(&text, scale, &[(2f64.powi(20) + 64.0) * 1e-6 * f64::from(scale)]);
    }
}

/// What a text converted to fp16 makes of a scale and of sums of 2²⁰, one for each column.
fn check_scaled_sums(text: &str, scale: f32, expected: &[f64]) {
    let (graph, none) = (parse(text, &[]).unwrap(), Bindings::new());
    let columns = expected.len();
    let inputs = [
        Tensor::scalar(scale),
        Tensor::from_vec(vec![1, 64], vec![128_i32; 64]).unwrap(),
        Tensor::from_vec(vec![64, columns], vec![128_i32; 64 * columns]).unwrap(),
    ];
    let found = evaluate_with(&convert(&graph, DType::F16).unwrap(), &inputs, &none).unwrap();
    let found = found[0].as_slice::<f32>().unwrap();
    assert_eq!(found.len(), columns);
    for (&found, expected) in found.iter().zip(expected) {
        let off = (f64::from(found) / expected - 1.0).abs();
        assert!(off < 2f64.powi(-10), "{found} for {expected}");
    }
}

/// The same with a scale for each column, times one that is computed.
#[test]
fn sums_are_scaled_by_columns_before_they_are_rounded() {
    let text = r#"
        %0 = Input : f32[] "scale"
        %1 = Input : i32[1, 64] "x"
        %2 = Input : i32[64, 2] "w"
        %3 = Constant(0.001, 0.002) : f32[2] "scales of columns"
        %4 = MatMul(%1, %2) : i32[1, 2] "matmul"
        %5 = Cast(%4) {to: f32, saturate: true} : f32[1, 2] "real"
        %6 = Mul(%0, %3) : f32[2] "scales"
        %7 = Mul(%5, %6) : f32[1, 2] "y"
        return "y" = %7
    "#;
    check_scaled_sums(text, 0.01, &[1e-5, 2e-5].map(|scale| 2f64.powi(20) * scale));
}
