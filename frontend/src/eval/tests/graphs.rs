//! Whole graphs: inputs, symbols, errors and control flow.

use super::{bools, pattern, tensor};
use crate::dim::{Bindings, Dim, Symbol};
use crate::dtype::DType;
use crate::eval::{EvalError, evaluate, evaluate_with};
use crate::graph::Graph;
use crate::op::{Binary, Op, ReduceOp, ScanAttrs, Unary};
use crate::types::TensorType;

fn f32_type(dims: &[&str]) -> TensorType {
    TensorType::new(DType::F32, dims.iter().map(|dim| dim.parse().unwrap()).collect())
}

/// `y = relu(x · w) + x · w` with a symbolic number of rows.
fn small_graph() -> Graph {
    let mut graph = Graph::new();
    let x = graph.add_input("x", f32_type(&["n", "2"])).unwrap();
    let w = graph.add_constant("w", tensor(&[2, 2], &[1.0_f32, -1.0, 0.0, 2.0]));
    let matmul = graph.add("product", Op::MatMul, &[Some(x), Some(w)]).unwrap().value();
    let relu = graph.add("relu", Op::Unary(Unary::Relu), &[Some(matmul)]).unwrap().value();
    let sum = graph.add("sum", Op::Binary(Binary::Add), &[Some(relu), Some(matmul)]).unwrap();
    graph.add_output("y", sum.value());
    graph.add_output("again", matmul);
    graph
}

#[test]
fn a_graph_has_its_outputs() {
    let x = tensor(&[1, 2], &[1.0_f32, 0.25]);
    let outputs = evaluate(&small_graph(), &[x]).unwrap();
    assert_eq!(outputs[0], tensor(&[1, 2], &[2.0_f32, -0.5]));
    assert_eq!(outputs[1], tensor(&[1, 2], &[1.0_f32, -0.5]));
}

#[test]
fn inputs_are_checked() {
    let graph = small_graph();
    let count = evaluate(&graph, &[]);
    assert_eq!(count, Err(EvalError::InputCount { expected: 1, actual: 0 }));
    for wrong in [tensor(&[1, 2], &[1_i32, 2]), pattern(&[2], 0), pattern(&[2, 3], 0)] {
        let error = evaluate(&graph, &[wrong]).unwrap_err();
        assert!(matches!(&error, EvalError::Input { name, .. } if name == "x"), "{error}");
    }
    let mut bindings = Bindings::new();
    bindings.bind(Symbol::new("n"), 3).unwrap();
    assert!(evaluate_with(&graph, &[pattern(&[3, 2], 0)], &bindings).is_ok());
    assert!(evaluate_with(&graph, &[pattern(&[2, 2], 0)], &bindings).is_err());
    let error = evaluate(&graph, &[pattern(&[0, 2], 0)]).unwrap_err();
    assert!(matches!(&error, EvalError::InputSize { name, .. } if name == "x"), "{error}");
}

#[test]
fn errors_name_the_node() {
    let mut graph = Graph::new();
    let table = graph.add_input("table", f32_type(&["4", "2"])).unwrap();
    let ids = graph.add_input("ids", TensorType::new(DType::I64, vec![Dim::from(2)])).unwrap();
    let rows = graph.add("lookup", Op::Gather { axis: 0 }, &[Some(table), Some(ids)]).unwrap();
    graph.add_output("y", rows.value());
    let error = evaluate(&graph, &[pattern(&[4, 2], 0), tensor(&[2], &[1_i64, 7])]).unwrap_err();
    let text = "Gather `lookup`: index 7 is out of range for axis 0 of size 4";
    assert_eq!(error.to_string(), text);
}

#[test]
fn sizes_are_values() {
    let mut graph = Graph::new();
    let x = graph.add_input("x", f32_type(&["n"])).unwrap();
    let size = graph.add("size", Op::Size("2*n".parse().unwrap()), &[]).unwrap();
    let iota = graph.add("iota", Op::Iota("n".parse().unwrap()), &[]).unwrap();
    graph.add_output("x", x);
    graph.add_output("size", size.value());
    graph.add_output("iota", iota.value());
    let outputs = evaluate(&graph, &[pattern(&[3], 0)]).unwrap();
    assert_eq!(outputs[1], tensor(&[], &[6_i64]));
    assert_eq!(outputs[2], tensor(&[3], &[0_i64, 1, 2]));
}

fn body_of(op: Op) -> Graph {
    let mut body = Graph::new();
    let x = body.add_input("x", f32_type(&["2"])).unwrap();
    let y = body.add("y", op, &[Some(x)]).unwrap();
    body.add_output("y", y.value());
    body
}

#[test]
fn a_condition_chooses_its_branch() {
    let op = Op::If {
        then_branch: Box::new(body_of(Op::Unary(Unary::Neg))),
        else_branch: Box::new(body_of(Op::Unary(Unary::Relu))),
    };
    let x = tensor(&[2], &[1.0_f32, -2.0]);
    let taken = super::run(&op, &[&bools(&[], &[1]), &x]).unwrap();
    assert_eq!(taken, [tensor(&[2], &[-1.0_f32, 2.0])]);
    let left = super::run(&op, &[&bools(&[], &[0]), &x]).unwrap();
    assert_eq!(left, [tensor(&[2], &[1.0_f32, 0.0])]);
}

/// Adds the captured value to the carried one while their sum is below ten, and scans the sums.
fn loop_body() -> Graph {
    let mut body = Graph::new();
    body.add_input("iteration", TensorType::new(DType::I64, Vec::new())).unwrap();
    body.add_input("condition", TensorType::new(DType::Bool, Vec::new())).unwrap();
    let carried = body.add_input("carried", f32_type(&[])).unwrap();
    let step = body.add_input("step", f32_type(&[])).unwrap();
    let sum = body.add("sum", Op::Binary(Binary::Add), &[Some(carried), Some(step)]).unwrap();
    let limit = body.add_constant("limit", tensor(&[], &[10.0_f32]));
    let less = Op::Binary(Binary::Less);
    let below = body.add("below", less, &[Some(sum.value()), Some(limit)]).unwrap();
    body.add_output("condition", below.value());
    body.add_output("carried", sum.value());
    body.add_output("sums", sum.value());
    body
}

/// Rows: trip count, start, step, expected end and sums.
#[test]
fn loops_run_to_their_end() {
    let op = Op::Loop { body: Box::new(loop_body()), carried: 1 };
    let rows: [(i64, f32, f32, f32, &[f32]); 3] = [
        (100, 0.0, 4.0, 12.0, &[4.0, 8.0, 12.0]),
        (2, 0.0, 4.0, 8.0, &[4.0, 8.0]),
        (0, 5.0, 4.0, 5.0, &[]),
    ];
    for (trips, start, step, end, sums) in rows {
        let (trips, condition) = (tensor(&[], &[trips]), bools(&[], &[1]));
        let (start, step) = (tensor(&[], &[start]), tensor(&[], &[step]));
        let outputs = super::run(&op, &[&trips, &condition, &start, &step]).unwrap();
        assert_eq!(outputs[0], tensor(&[], &[end]));
        assert_eq!(outputs[1], tensor(&[sums.len()], sums));
    }
}

#[test]
fn scans_walk_both_ways() {
    let mut body = Graph::new();
    let sum = body.add_input("sum", f32_type(&["2"])).unwrap();
    let row = body.add_input("row", f32_type(&["2"])).unwrap();
    let next = body.add("next", Op::Binary(Binary::Add), &[Some(sum), Some(row)]).unwrap();
    let all = Op::Reduce { op: ReduceOp::Sum, axes: vec![0], keep: false };
    let total = body.add("total", all, &[Some(next.value())]).unwrap();
    body.add_output("sum", next.value());
    body.add_output("total", total.value());
    let start = tensor(&[2], &[0.0_f32, 0.0]);
    let x = tensor(&[2, 3], &[1.0_f32, 2.0, 3.0, 10.0, 20.0, 30.0]);
    let rows: [(bool, bool, [f32; 3]); 3] = [
        (false, false, [11.0, 33.0, 66.0]),
        (true, false, [33.0, 55.0, 66.0]),
        (true, true, [66.0, 55.0, 33.0]),
    ];
    for (walk_back, fill_back, totals) in rows {
        let op = Op::Scan(Box::new(ScanAttrs {
            body: body.clone(),
            carried: 1,
            inputs: vec![(1, walk_back)],
            outputs: vec![(0, fill_back)],
        }));
        let outputs = super::run(&op, &[&start, &x]).unwrap();
        assert_eq!(outputs[0], tensor(&[2], &[6.0_f32, 60.0]));
        assert_eq!(outputs[1], tensor(&[3], &totals));
    }
}
