//! Single precision whose matmuls are of TF32: who makes them, and how weights lie.

use graphene_frontend::dim::Bindings;
use graphene_frontend::eval::evaluate;
use graphene_frontend::graph::Graph;
use graphene_frontend::op::Op;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::kernels::launches;
use graphene_fusion::library::matmul;
use graphene_fusion::program::{Buffer, BufferKind, Program, Step, Weight};
use graphene_fusion::{Granularity, lower, partition, plan};
use graphene_ir::kernel::Unary;
use graphene_ir::target::Target;
use std::collections::BTreeSet;

fn target(name: &str) -> Target {
    Target { tf32: true, ..name.parse().unwrap() }
}

/// `y = x·w`; `w` may be a table as well.
fn matmul_by(weights: Vec<f32>, is_table: bool) -> Graph {
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
    let is_matmul = |step: &&Step| step.body.nodes().any(|(_, node)| *node.op() == Op::MatMul);
    program.steps().iter().find(is_matmul).unwrap()
}

#[test]
fn warpgroups_multiply_by_weights_that_lie_in_columns_and_are_rounded() {
    let special = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MAX, -0.0, 1e-41];
    let halfway = f32::from_bits(0x3f80_1000);
    let all_ones = f32::from_bits(0x7fff_ffff);
    let others = (0..).map(|i: u16| (f32::from(i) - 3000.0) * 1.234_567e-3);
    let given = special.into_iter().chain([halfway, -halfway, all_ones]).chain(others);
    let given: Vec<f32> = given.take(64 * 96).collect();
    let graph = matmul_by(given.clone(), false);
    let target = target("sm_90a");
    let program = program(&graph, &target);
    let step = multiplies(&program);
    let b = &step.inputs[1];
    assert_eq!(b.view.to_string(), "[64:1, 96:64]");
    let BufferKind::Weight(Weight::Derived(recipe)) = &program.buffer(b.buffer).kind else {
        panic!("{program}");
    };
    let made = evaluate(recipe, &[]).unwrap();
    let made: Vec<f32> =
        made[0].bytes().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    for (i, given) in given.iter().enumerate() {
        let found = made[i % 96 * 64 + i / 96];
        let rounded = Unary::Tf32.value(f64::from(*given)) as f32;
        let same = found.to_bits() == rounded.to_bits() || found.is_nan() && given.is_nan();
        assert!(same, "{given} became {found}, not {rounded}");
    }
    let made = launches(&program, step, &target).unwrap();
    assert!(made.iter().all(|launch| launch.kernel.name == "gemm"), "{program}");
}

/// Of a table as well nothing else is made; before Hopper, warps take weights as they are.
#[test]
fn tables_and_older_gpus_have_weights_as_they_are() {
    for (is_table, name) in [(true, "sm_90a"), (false, "sm_80")] {
        let (graph, target) = (matmul_by(vec![0.5; 64 * 96], is_table), target(name));
        let program = program(&graph, &target);
        let step = multiplies(&program);
        assert!(step.inputs[1].view.is_contiguous(), "{program}");
        let made = launches(&program, step, &target).unwrap();
        assert!(made.iter().all(|launch| launch.kernel.name == "mma"), "{program}");
    }
}

#[test]
fn calls_of_the_library_say_so() {
    let graph = matmul_by(vec![0.5; 64 * 96], false);
    for (tf32, expected) in [(true, "f32 as tf32: "), (false, "f32: ")] {
        let target = Target { tf32, ..target("sm_90a") };
        let planned = plan(&graph, &target, Granularity::PerOp, &Bindings::new()).unwrap();
        let call = matmul(&planned.program, multiplies(&planned.program), &target).unwrap();
        assert!(call.tf32 == tf32 && call.to_string().contains(expected), "{call}");
    }
}

/// The kernels of all steps that multiply, by name, and how many weights are made.
fn made_by(text: &str, target: &Target) -> (BTreeSet<String>, usize) {
    // As it is written: rewriting adds what one weight multiplies.
    let graph = crate::graph(text, &[&[64, 96], &[96, 64]]);
    let groups = partition(&graph, target, Granularity::Fused, &Bindings::new());
    let program = lower(&graph, &groups, target, Granularity::Fused).unwrap();
    let is_derived =
        |buffer: &&Buffer| matches!(&buffer.kind, BufferKind::Weight(Weight::Derived(_)));
    let names = |step: &Step| {
        let made = launches(&program, step, target);
        let made = made.unwrap_or_else(|refusal| panic!("{}: {refusal}\n{program}", step.name));
        made.into_iter().map(|launch| launch.kernel.name).collect::<BTreeSet<_>>()
    };
    let names = program.steps().iter().flat_map(names).collect();
    (names, program.buffers().iter().filter(is_derived).count())
}

const INPUTS: &str = "symbols n\n%0 = Input : f32[n, 64] \"x\"\n%1 = Input : f32[n, 64] \"z\"\n\
    %2 = Input : f32[64, 96] \"v\"\n%3 = Constant(@0 _) : f32[64, 96] \"w\"\n\
    %4 = Constant(@1 _) : f32[96, 64] \"u\"\n";

#[test]
fn sums_of_matmuls_by_weights_and_others_have_kernels() {
    for (rest, kernels, made) in [
        // What is no weight lies in rows, and so does the weight that stands beside it.
        (
            "%5 = MatMul(%0, %3) : f32[n, 96] \"a\"\n%6 = MatMul(%1, %2) : f32[n, 96] \"b\"\n\
             %7 = Add(%5, %6) : f32[n, 96] \"y\"\nreturn \"y\" = %7\n",
            &["mma"][..],
            0,
        ),
        // One weight for both is made once.
        (
            "%5 = MatMul(%0, %3) : f32[n, 96] \"a\"\n%6 = MatMul(%1, %3) : f32[n, 96] \"b\"\n\
             %7 = Add(%5, %6) : f32[n, 96] \"y\"\nreturn \"y\" = %7\n",
            &["gemm"],
            1,
        ),
        // Weights that lie in columns already are rounded as well.
        (
            "%5 = Transpose(%4) {perm: [1, 0]} : f32[64, 96] \"t\"\n%6 = MatMul(%0, %5) : f32[n, 96] \"y\"\n\
             return \"y\" = %6\n",
            &["gemm"],
            1,
        ),
        // In columns for one step, in rows for another.
        (
            "%5 = MatMul(%0, %3) : f32[n, 96] \"a\"\n%6 = Tanh(%5) : f32[n, 96] \"t\"\n\
             %7 = MatMul(%1, %3) : f32[n, 96] \"b\"\n%8 = MatMul(%0, %2) : f32[n, 96] \"c\"\n\
             %9 = Add(%7, %8) : f32[n, 96] \"d\"\nreturn \"t\" = %6, \"d\" = %9\n",
            &["gemm", "mma"],
            1,
        ),
    ] {
        let text = format!("{INPUTS}{rest}");
        let found = made_by(&text, &target("sm_90a"));
        assert_eq!(found, (kernels.iter().map(ToString::to_string).collect(), made), "{text}");
    }
}
