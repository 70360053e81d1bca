//! The simulator on all kernels of small models, for an Ampere and a Hopper GPU.

use crate::models::{Model, small_models};
use criterion::Criterion;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_fusion::kernels::{Launch, StepOperand, launches};
use graphene_fusion::program::{Operand, Program, Step};
use graphene_fusion::{Granularity, plan};
use graphene_ir::kernel::Kernel;
use graphene_ir::simulate::{Buffer, Inputs, Options, simulate};
use graphene_ir::target::Target;

/// A model's kernels, one after the other.
pub(crate) fn simulator(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("simulate");
    group.sample_size(10);
    for name in ["sm_80", "sm_90a"] {
        let target: Target = name.parse().expect("a target");
        for model in small_models() {
            let kernels = kernels(&model, &target);
            let all = || {
                for (kernel, inputs) in &kernels {
                    let outcome = simulate(kernel, inputs, &Options::default()).expect("it runs");
                    assert!(outcome.findings.is_empty(), "{:?}", outcome.findings);
                }
            };
            let bench = format!("{} {name}, {} kernels", model.kind, kernels.len());
            group.bench_function(bench, |b| b.iter(all));
        }
    }
    group.finish();
}

fn kernels(model: &Model, target: &Target) -> Vec<(Kernel, Inputs)> {
    let planned = plan(&model.graph, target, Granularity::Fused, &model.sizes);
    let program = planned.expect("it is planned").program;
    let steps = program.steps().iter().filter_map(|step| {
        // What has no kernel falls back to the CPU. One variant of the others.
        let launch = launches(&program, step, target).ok()?.into_iter().next()?;
        let inputs = inputs(&program, step, &launch, &model.sizes);
        Some((launch.kernel, inputs))
    });
    steps.collect()
}

/// Small numbers in what the launch reads, and nothing in what it writes.
fn inputs(program: &Program, step: &Step, launch: &Launch, sizes: &Bindings) -> Inputs {
    let size = |dim: &Dim| dim.eval(sizes).expect("its sizes are bound");
    let elements = |of: &Operand| size(&program.buffers()[of.buffer.index()].elements) as usize;
    let mut inputs = Inputs::default();
    for (symbol, dim) in launch.kernel.symbols.iter().zip(&launch.symbols) {
        inputs.symbols.insert(symbol.name().to_owned(), size(dim));
    }
    for (&param, pointer) in launch.kernel.params.iter().zip(&launch.pointers) {
        let offset = size(&pointer.offset) as usize;
        let numbers = |len: usize| Buffer::Data((0..len).map(|i| (i % 2) as f64).collect());
        let buffer = match pointer.operand {
            StepOperand::Input(number) => numbers(elements(&step.inputs[number]) - offset),
            StepOperand::Stack(number) => {
                let parts = launch.stacks[number].iter().map(|operand| match operand {
                    StepOperand::Input(number) => elements(&step.inputs[*number]),
                    StepOperand::Stack(_) | StepOperand::Output(_) | StepOperand::Scratch(_) => 0,
                });
                numbers(parts.sum())
            }
            StepOperand::Output(number) => {
                Buffer::Undefined(elements(&step.outputs[number]) - offset)
            }
            StepOperand::Scratch(number) => {
                Buffer::Data(vec![0.0; size(&launch.scratch[number].elements) as usize])
            }
        };
        inputs.buffers.insert(launch.kernel.tensor_name(param).to_owned(), buffer);
    }
    inputs
}
