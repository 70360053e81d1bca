//! Single precision whose products are of TF32: who makes them, and how weights lie.

use graphene_frontend::dim::Bindings;
use graphene_frontend::eval::evaluate;
use graphene_frontend::graph::Graph;
use graphene_frontend::op::Op;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::kernels::launches;
use graphene_fusion::library::product;
use graphene_fusion::program::{BufferKind, Program, Step, Weight};
use graphene_fusion::{Granularity, plan};
use graphene_ir::kernel::Unary;
use graphene_ir::target::Target;

fn target(name: &str) -> Target {
    Target { tf32: true, ..name.parse().unwrap() }
}

/// `y = x·w`; `w` may be a table as well.
fn product_by(weights: Vec<f32>, is_table: bool) -> Graph {
    let mut graph = Graph::new();
    let x = graph.add_input("x", "f32[n, 64]".parse().unwrap()).unwrap();
    let w = graph.add_constant("w", Tensor::from_vec(vec![64, 96], weights).unwrap());
    let y = graph.add("y", Op::MatMul, &[Some(x), Some(w)]).unwrap().value();
    graph.add_output("y", y);
    if is_table {
        let ids = graph.add_input("ids", "i64[n]".parse().unwrap()).unwrap();
        let rows = graph.add("rows", Op::Gather { axis: 0 }, &[Some(w), Some(ids)]).unwrap();
        graph.add_output("rows", rows.value());
    }
    graph
}

fn program(graph: &Graph, target: &Target) -> Program {
    plan(graph, target, Granularity::Fused, &Bindings::new()).unwrap().program
}

fn multiplies(program: &Program) -> &Step {
    let is_product = |step: &&Step| step.body.nodes().any(|(_, node)| *node.op() == Op::MatMul);
    program.steps().iter().find(is_product).unwrap()
}

#[test]
fn warpgroups_multiply_by_weights_that_lie_in_columns_and_are_rounded() {
    let special = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MAX, -0.0, 1e-41];
    let halfway = f32::from_bits(0x3f80_1000);
    let all_ones = f32::from_bits(0x7fff_ffff);
    let others = (0..).map(|i: u16| (f32::from(i) - 3000.0) * 1.234_567e-3);
    let given = special.into_iter().chain([halfway, -halfway, all_ones]).chain(others);
    let given: Vec<f32> = given.take(64 * 96).collect();
    let graph = product_by(given.clone(), false);
    let target = target("sm_90a");
    let program = program(&graph, &target);
    let step = multiplies(&program);
    let b = &step.inputs[1];
    assert_eq!(b.view.to_string(), "[64:1, 96:64]");
    let BufferKind::Weight(Weight::Made(recipe)) = &program.buffer(b.buffer).kind else {
        panic!("{program}");
    };
    let made = evaluate(recipe, &[]).unwrap();
    let made: Vec<f32> =
        made[0].bytes().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    for (i, given) in given.iter().enumerate() {
        let (found, rounded) = (made[i % 96 * 64 + i / 96], Unary::Tf32.value(f64::from(*given)));
        let same = f64::from(found) == rounded || found.is_nan() && given.is_nan();
        assert!(same, "{given} became {found}, not {rounded}");
    }
    let made = launches(&program, step, &target).unwrap();
    assert!(made.iter().all(|launch| launch.kernel.name == "gemm"), "{program}");
}

#[test]
fn weights_that_are_tables_as_well_stay_as_they_are() {
    let graph = product_by(vec![0.5; 64 * 96], true);
    let target = target("sm_90a");
    let program = program(&graph, &target);
    let step = multiplies(&program);
    assert!(step.inputs[1].view.is_contiguous(), "{program}");
    let made = launches(&program, step, &target).unwrap();
    assert!(made.iter().all(|launch| launch.kernel.name == "mma"), "{program}");
}

#[test]
fn warps_take_weights_as_they_are() {
    let graph = product_by(vec![0.5; 64 * 96], false);
    let target = target("sm_80");
    let program = program(&graph, &target);
    let step = multiplies(&program);
    assert!(step.inputs[1].view.is_contiguous(), "{program}");
    let made = launches(&program, step, &target).unwrap();
    assert!(made.iter().all(|launch| launch.kernel.name == "mma"), "{program}");
}

#[test]
fn calls_of_the_library_say_so() {
    let graph = product_by(vec![0.5; 64 * 96], false);
    for (tf32, expected) in [(true, "f32 as tf32: "), (false, "f32: ")] {
        let target = Target { tf32, ..target("sm_90a") };
        let planned = plan(&graph, &target, Granularity::PerOp, &Bindings::new()).unwrap();
        let call = product(&planned.program, multiplies(&planned.program), &target).unwrap();
        assert!(call.tf32 == tf32 && call.to_string().contains(expected), "{call}");
    }
}
