//! Random pointwise graphs: merged into loops, with broadcasts, transposes and several outputs.

use crate::check::{Random, check_graph, random_inputs};
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, Op, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;

const UNARY: &[Unary] = &[
    Unary::Abs,
    Unary::Neg,
    Unary::Exp,
    Unary::Floor,
    Unary::Tanh,
    Unary::Erf,
    Unary::Sigmoid,
    Unary::Relu,
    Unary::Gelu,
    Unary::Sign,
    Unary::LeakyRelu { alpha: 0.1 },
    Unary::HardSwish,
    Unary::Softplus,
    Unary::Round,
];
const INTEGER_UNARY: &[Unary] = &[Unary::Abs, Unary::Neg, Unary::Sign];
/// The last one jumps, so that f32, whose functions differ from the reference by some ulp, goes without it.
const BINARY: &[Binary] =
    &[Binary::Add, Binary::Sub, Binary::Mul, Binary::Min, Binary::Max, Binary::Div, Binary::Mod];
const COMPARE: &[Binary] =
    &[Binary::Less, Binary::Equal, Binary::GreaterOrEqual, Binary::Greater, Binary::LessOrEqual];

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len())]
}

/// The values of a type made so far.
fn of_type(graph: &Graph, values: &[ValueId], dtype: DType) -> Vec<ValueId> {
    values.iter().copied().filter(|&v| graph.ty(v).dtype == dtype).collect()
}

fn random_graph(random: &mut Random, dtype: DType) -> Graph {
    let mut graph = Graph::new();
    let (b, s) = (Dim::symbol("batch"), Dim::symbol("sequence"));
    let whole = vec![b.clone(), Dim::from(5), s.clone()];
    let shapes = [
        whole.clone(),
        vec![Dim::from(5), s.clone()],
        vec![s.clone()],
        vec![b, Dim::from(1), s.clone()],
        vec![Dim::from(1)],
        vec![s, Dim::from(5), Dim::symbol("batch")],
    ];
    let mut values = Vec::new();
    for (i, shape) in shapes.into_iter().enumerate() {
        let ty = TensorType::new(dtype, shape);
        let mut value = graph.add_input(&format!("x{i}"), ty).unwrap();
        if i == 5 {
            let node = graph.add("transposed", Op::Transpose(vec![2, 1, 0]), &[Some(value)]);
            value = node.unwrap().value();
        }
        values.push(value);
    }
    values.push(graph.add_constant("two", Random(random.next()).tensor(dtype, vec![])));
    for i in 0..12 {
        let same = of_type(&graph, &values, dtype);
        let truth = of_type(&graph, &values, DType::Bool);
        let (a, b) = (pick(random, &same), pick(random, &same));
        let unary = if dtype.is_float() { UNARY } else { INTEGER_UNARY };
        let binary = if dtype == DType::F32 { &BINARY[..6] } else { BINARY };
        let (op, inputs) = match random.below(8) {
            0 | 1 => (Op::Unary(pick(random, unary)), vec![a]),
            2..=4 => (Op::Binary(pick(random, binary)), vec![a, b]),
            5 => (Op::Binary(pick(random, COMPARE)), vec![a, b]),
            6 if !truth.is_empty() => (Op::Select, vec![pick(random, &truth), a, b]),
            _ => (Op::Cast { to: dtype, saturate: true }, vec![pick(random, &values)]),
        };
        let inputs: Vec<_> = inputs.into_iter().map(Some).collect();
        values.push(graph.add(&format!("n{i}"), op, &inputs).unwrap().value());
    }
    for (i, &value) in values.iter().rev().take(3).enumerate() {
        graph.add_output(&format!("y{i}"), value);
    }
    graph
}

fn check_random(dtype: DType, tolerance: f64) {
    for seed in 0..60 {
        let mut random = Random(seed * 7919 + 1);
        let graph = random_graph(&mut random, dtype);
        for (b, s) in [(1, 1), (3, 7), (2, 700)] {
            let mut bindings = Bindings::new();
            bindings.bind(Symbol::new("batch"), b).unwrap();
            bindings.bind(Symbol::new("sequence"), s).unwrap();
            let inputs: Vec<Tensor> = random_inputs(&graph, &bindings, &mut random);
            check_graph(&graph, &bindings, &inputs, tolerance);
        }
    }
}

#[test]
fn f32_loops_agree_with_the_reference() {
    check_random(DType::F32, 1e-4);
}

#[test]
fn f64_loops_agree_with_the_reference() {
    check_random(DType::F64, 1e-12);
}

#[test]
fn f16_loops_agree_with_the_reference() {
    check_random(DType::F16, 4e-3);
}

#[test]
fn integer_loops_agree_with_the_reference() {
    check_random(DType::I64, 0.0);
    check_random(DType::I32, 0.0);
    check_random(DType::U8, 0.0);
}
