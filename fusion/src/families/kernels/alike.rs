//! Steps that have the same kernels, as those of a model's layers do.

use crate::base::program::{Operand, Program, Step, StepId};
use graphene_frontend::Graph;
use std::collections::HashMap;

/// For each step of a program the first one that is alike: it computes the same, up to names, from and to operands that lie
/// the same way. [`launches`](super::launches) of the first are right for all of them, so that they need to be made once.
pub fn first_alike(program: &Program) -> Vec<StepId> {
    // Steps that no others are like, by what is compared fast.
    let mut firsts: HashMap<_, Vec<StepId>> = HashMap::new();
    let steps = program.step_ids().zip(program.steps()).map(|(id, step)| {
        let key = (step.family, step.body.len(), step.inputs.len(), step.outputs.len());
        let firsts = firsts.entry(key).or_default();
        let alike = |first: &&StepId| are_alike(program, program.step(**first), step);
        firsts.iter().find(alike).copied().unwrap_or_else(|| {
            firsts.push(id);
            id
        })
    });
    steps.collect()
}

/// All that kernels are made of is the same: whatever a [`Site`](super::Site) tells of a step.
fn are_alike(program: &Program, a: &Step, b: &Step) -> bool {
    let operands = |step: &Step| -> Vec<_> {
        let all: Vec<&Operand> = step.inputs.iter().chain(&step.outputs).collect();
        let of = |operand: &&Operand| {
            let buffer = program.buffer(operand.buffer);
            // Which operands are of one buffer, but not of which.
            let first = all.iter().position(|other| other.buffer == operand.buffer);
            (first, buffer.dtype, buffer.elements.clone(), buffer.is_weight())
        };
        all.iter().map(of).collect()
    };
    let views = |step: &Step| -> Vec<_> {
        step.inputs.iter().chain(&step.outputs).map(|operand| operand.view.clone()).collect()
    };
    (a.executor, &a.variants, &a.in_place) == (b.executor, &b.variants, &b.in_place)
        && compute_the_same(&a.body, &b.body)
        && views(a) == views(b)
        && operands(a) == operands(b)
}

/// Up to names.
fn compute_the_same(a: &Graph, b: &Graph) -> bool {
    let mut nodes = a.nodes().zip(b.nodes()).map(|((_, a), (_, b))| (a, b));
    let outputs =
        |graph: &Graph| -> Vec<_> { graph.outputs().iter().map(|&(_, value)| value).collect() };
    a.len() == b.len()
        && a.inputs() == b.inputs()
        && outputs(a) == outputs(b)
        && nodes.all(|(a, b)| {
            (a.inputs(), a.outputs()) == (b.inputs(), b.outputs()) && a.op() == b.op()
        })
}
