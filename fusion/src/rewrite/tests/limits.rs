//! Limits of rewriting: each strikes, is counted, and leaves a graph that is right.

use crate::base::rebuild::Regrown;
use crate::rewrite::block::{Block, blocks};
use crate::rewrite::extract::extract;
use crate::rewrite::rules::compiled;
use crate::rewrite::saturate::{LIMITS, Limits, Saturated, saturate};
use crate::rewrite::{Report, rewrite};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, Op, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_ir::target::Target;

fn add(graph: &mut Graph, op: Op, inputs: &[ValueId]) -> ValueId {
    let inputs: Vec<_> = inputs.iter().map(|&value| Some(value)).collect();
    graph.add("", op, &inputs).unwrap().value()
}

/// A GELU whose factors are spelled apart.
fn gelu() -> Graph {
    let mut graph = Graph::new();
    let ty = TensorType::new(DType::F32, vec!["batch".parse().unwrap(), 8.into()]);
    let x = graph.add_input("x", ty).unwrap();
    let constant = |graph: &mut Graph, number: f32| graph.add_constant("", Tensor::scalar(number));
    let (root, one, half) = (
        constant(&mut graph, std::f32::consts::SQRT_2),
        constant(&mut graph, 1.0),
        constant(&mut graph, 0.5),
    );
    let inner = add(&mut graph, Op::Binary(Binary::Div), &[x, root]);
    let erf = add(&mut graph, Op::Unary(Unary::Erf), &[inner]);
    let sum = add(&mut graph, Op::Binary(Binary::Add), &[erf, one]);
    let scaled = add(&mut graph, Op::Binary(Binary::Mul), &[x, half]);
    let y = add(&mut graph, Op::Binary(Binary::Mul), &[scaled, sum]);
    graph.add_output("y", y);
    graph
}

fn block() -> Block {
    blocks(&gelu()).unwrap().remove(0)
}

/// The cheapest graph that gives what the block does.
fn cheapest(saturated: &Saturated) -> Graph {
    let (choice, _) = extract(&saturated.terms, &saturated.roots, &Bindings::new());
    let mut result = Regrown::default();
    for (id, node) in gelu().nodes().filter(|(_, node)| !node.is_operation()) {
        result.copy(id, node).unwrap();
    }
    saturated.splice(&choice, &block(), &mut result).unwrap();
    result.finish(&gelu())
}

fn operations(graph: &Graph) -> Vec<&'static str> {
    let nodes = graph.nodes().map(|(_, node)| node.op());
    nodes.filter(|op| !matches!(op, Op::Input | Op::Constant(_))).map(Op::name).collect()
}

#[test]
fn without_a_limit_all_is_said() {
    let saturated = saturate(&block(), &compiled(), &"sm_90a".parse().unwrap(), LIMITS);
    assert!(!saturated.limited);
    assert_eq!(operations(&cheapest(&saturated)), ["Gelu"]);
}

#[test]
fn a_limit_of_rounds_or_nodes_is_said_and_leaves_a_graph() {
    for limits in [Limits { rounds: 1, ..LIMITS }, Limits { nodes: 5, ..LIMITS }] {
        let saturated = saturate(&block(), &compiled(), &"sm_90a".parse().unwrap(), limits);
        assert!(saturated.limited, "{limits:?}");
        assert!(saturated.terms.total_size() < 40, "{limits:?}");
        assert!(operations(&cheapest(&saturated)).contains(&"Erf"), "{limits:?}");
    }
}

#[test]
fn what_a_report_counts_is_said() {
    let report =
        Report { blocks: 37, limited: 12, searches_cut: 2, unsettled: true, ..Report::default() };
    assert_eq!(
        report.limits(),
        [
            "12 of 37 blocks were rewritten up to a limit",
            "2 of 37 blocks were searched up to a limit",
            "rewriting ended after 3 passes, the last of which still changed something",
        ]
    );
    assert!(Report::default().limits().is_empty());
}

/// A loop that would run for ever is left to whoever runs the program.
#[test]
fn control_flow_is_not_folded() {
    let scalar = |dtype| TensorType::new(dtype, Vec::new());
    let mut body = Graph::new();
    body.add_input("i", scalar(DType::I64)).unwrap();
    let condition = body.add_input("condition", scalar(DType::Bool)).unwrap();
    let x = body.add_input("x", scalar(DType::I64)).unwrap();
    let one = body.add_constant("one", Tensor::scalar(1_i64));
    let next = add(&mut body, Op::Binary(Binary::Add), &[x, one]);
    body.add_output("condition", condition);
    body.add_output("next", next);
    let mut graph = Graph::new();
    let trips = graph.add_constant("trips", Tensor::scalar(1_000_000_000_000_i64));
    let condition =
        graph.add_constant("condition", Tensor::from_bools(Vec::new(), vec![true]).unwrap());
    let zero = graph.add_constant("zero", Tensor::scalar(0_i64));
    let own = Op::Loop { body: Box::new(body), carried: 1 };
    let y = add(&mut graph, own, &[trips, condition, zero]);
    graph.add_output("y", y);
    let rewritten = rewrite(&graph, &Target::cpu(2), &Bindings::new()).unwrap();
    assert_eq!(operations(&rewritten.graph), ["Loop"]);
}
