//! Bisecting, with the CPU's run of a plan for a GPU, in half precision, for the GPU's, and its run of its own plan.

use super::{Inspected, Oracle, Ran, Sides, single_graph};
use crate::report::Bisection;
use crate::tolerance::{Rounded, Tolerance};
use clap::Parser;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, import};
use graphene_frontend::op::{Binary, Op};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::BufferId;
use graphene_fusion::{Granularity, plan_in};
use graphene_ir::target::Target;
use graphene_runtime::{Plan, cpu};
use half::f16;

#[test]
fn half_precision_becomes_single_precision_node_for_node() {
    let mut graph = Graph::new();
    let x = graph.add_input("x", "f32[n, 2]".parse().unwrap()).unwrap();
    let cast = Op::Cast { to: DType::F16, saturate: true };
    let half = graph.add("half", cast, &[Some(x)]).unwrap().value();
    let ones = Tensor::from_vec(vec![2], vec![f16::ONE; 2]).unwrap();
    let ones = graph.add_constant("ones", ones);
    let sum = graph.add("sum", Op::Binary(Binary::Add), &[Some(half), Some(ones)]);
    graph.add_output("y", sum.unwrap().value());
    let made = single_graph(&graph).unwrap();
    assert_eq!(made.len(), graph.len());
    for (id, node) in made.nodes() {
        assert_eq!(node.name(), graph.node(id).name());
        assert_eq!(node.outputs()[0].dtype, DType::F32);
    }
}

/// The CPU, which spoils what one step writes, or fails at it.
struct Spoilt {
    executable: cpu::Executable,
    spoil: Option<usize>,
    fail: Option<usize>,
}

impl Inspected for Spoilt {
    fn plan(&self) -> &Plan {
        self.executable.plan()
    }

    fn kernels(&self) -> Vec<String> {
        self.executable.program().steps().iter().map(|step| step.name.clone()).collect()
    }

    fn run(&mut self, inputs: &[Tensor], mut inspect: impl FnMut(usize, BufferId, Vec<u8>)) -> Ran {
        let (spoil, fail) = (self.spoil, self.fail);
        self.executable.run_inspected(inputs, |step, buffer, mut bytes| {
            if fail.is_some_and(|fail| step >= fail) {
                return;
            }
            if spoil == Some(step) {
                // A sign, and an exponent that is another.
                bytes.iter_mut().skip(1).step_by(2).take(50).for_each(|byte| *byte ^= 0x84);
            }
            inspect(step, buffer, bytes);
        })?;
        match fail {
            Some(_) => Err(graphene_runtime::Error::Unsupported { what: "a step" }),
            None => Ok(()),
        }
    }
}

/// Bisects a small encoder in these elements, of which a step is spoilt or fails, planned for a GPU.
fn bisect(
    elements: Option<DType>,
    granularity: Granularity,
    spoil: Option<usize>,
    fail: Option<usize>,
) -> Result<Bisection, crate::error::Error> {
    bisect_for("sm_90a", Oracle::Single, elements, granularity, [spoil, fail])
}

/// The same for any target, beside any oracle.
fn bisect_for(
    target: &str,
    oracle: Oracle,
    elements: Option<DType>,
    granularity: Granularity,
    [spoil, fail]: [Option<usize>; 2],
) -> Result<Bisection, crate::error::Error> {
    let options = graphene_models::Options::default();
    let built = graphene_models::build("bert-base-tiny", &options).unwrap();
    let (bytes, (_, weights)) = (built.encode(), built.into_parts());
    let graph = import(bytes, &weights, &ImportOptions::default()).unwrap().graph;
    let target: Target = target.parse().unwrap();
    let planned = plan_in(&graph, &target, granularity, &Bindings::new(), elements).unwrap();
    let mut sizes = Bindings::new();
    for (symbol, size) in graph.symbols().into_iter().zip([2, 9]) {
        sizes.bind(symbol, size).unwrap();
    }
    let inputs = graph.inputs().iter();
    let inputs: Vec<Tensor> =
        inputs.map(|&id| crate::random::tensor(&graph, id, &sizes, 3).unwrap()).collect();
    let module = cpu::Module::compile(planned.program.clone()).unwrap();
    let executable = module.executable(&sizes).unwrap();
    let arguments = crate::args::Arguments::try_parse_from(["graphene-run", "model"]).unwrap();
    let sides = Sides {
        executor: "fused",
        planned: &planned,
        granularity,
        target: &target,
        bindings: &sizes,
        tolerance: Tolerance::new(&arguments.data, &graph, elements.and_then(Rounded::half)),
        oracle,
    };
    sides.run(&mut Spoilt { executable, spoil, fail }, &inputs)
}

#[test]
fn right_steps_agree() {
    for granularity in [Granularity::Fused, Granularity::PerOp] {
        for elements in [None, Some(DType::F16), Some(DType::BF16)] {
            let found = bisect(elements, granularity, None, None).unwrap();
            assert!(found.first.is_none(), "{elements:?} {found:?}");
            assert_eq!(found.compared, found.steps);
        }
    }
}

#[test]
fn the_step_that_goes_wrong_is_named() {
    for elements in [None, Some(DType::F16)] {
        for step in [0, 3, 8] {
            let found = bisect(elements, Granularity::Fused, Some(step), None).unwrap();
            let first = found.first.unwrap();
            assert_eq!(first.step, step, "{first:?}");
            assert!(first.mismatches > 0 && !first.nodes.is_empty(), "{first:?}");
            assert_eq!(first.kernel, first.name);
        }
    }
}

/// The CPU's side ends where the GPU's did.
#[test]
fn a_step_that_fails_ends_both_sides() {
    for step in [0, 5] {
        let error = bisect(None, Granularity::Fused, None, Some(step)).unwrap_err();
        assert!(error.to_string().starts_with("fused execution at batch"), "{error}");
    }
}

#[test]
fn the_cpus_steps_are_held_against_the_reference() {
    for granularity in [Granularity::Fused, Granularity::PerOp] {
        let bisect = |spoil| {
            let found = bisect_for("cpu:2", Oracle::Reference, None, granularity, [spoil, None]);
            found.unwrap()
        };
        let found = bisect(None);
        assert!(found.first.is_none() && found.compared == found.steps, "{found:?}");
        assert_eq!(found.against, "the reference evaluator");
        for step in [0, 4, found.steps - 1] {
            let first = bisect(Some(step)).first.unwrap();
            assert_eq!(first.step, step, "{first:?}");
        }
    }
}
