//! Profiles: what every step took, beside what it had to do, and beside library execution of the same nodes.

use crate::args::Exec;
use crate::modules::module;
use crate::report::{Executor, Step};
use crate::roof::Roof;
use crate::session::Plans;
use crate::work;
use graphene_fusion::groups::Family;
use graphene_fusion::program::{BufferId, Program, Step as Launch};
use graphene_runtime::{BoundModel, BoundStep};
use std::collections::HashMap;

/// A step, with sizes, its kernel and how that multiplies, and its seconds.
type Row<'a> = (((&'a Launch, &'a BoundStep), (&'a str, Option<&'static str>)), &'a f64);

/// A row for every step, from its time in seconds.
pub(crate) fn steps(
    program: &Program,
    bound: &BoundModel<'_>,
    times: &[f64],
    roof: &Roof,
) -> Vec<Step> {
    let (plan, sizes) = (bound.plan(), bound.sizes());
    let total: f64 = times.iter().sum();
    let kernels = bound.kernels().into_iter().zip(bound.algorithms());
    let rows = program.steps().iter().zip(plan.steps()).zip(kernels).zip(times);
    let row = |(i, (((step, at), (kernel, algorithm)), &seconds)): (usize, Row<'_>)| {
        let work = work::of_step(program, step, sizes);
        let per_second = |amount: u64| amount as f64 / seconds.max(1e-12);
        let (roofline, beyond_roof) = roof.share(work, seconds);
        Step {
            step: i,
            name: step.name.clone(),
            module: module(&step.nodes),
            family: step.family.name(),
            kernel: kernel.to_owned(),
            algorithm,
            variant: at.variant_name,
            time_us: seconds * 1e6,
            share: seconds / total.max(1e-12),
            bytes: work.bytes,
            flops: work.flops(),
            gbytes_per_s: per_second(work.bytes) / 1e9,
            tflops_per_s: per_second(work.flops()) / 1e12,
            roofline,
            beyond_roof,
            bound: roof.bound(work),
            library_us: None,
        }
    };
    rows.enumerate().map(row).collect()
}

/// Adds to each step of a fused profile what the steps of the library's take that compute the same nodes, if both are
/// there.
pub(crate) fn beside_library(executors: &mut [Executor], plans: &Plans) {
    let profile = |exec: Exec| {
        let entry = executors.iter().find(|entry| entry.name == exec.name())?;
        entry.profile.as_ref()
    };
    let programs = plans.program(Exec::Fused).zip(plans.program(Exec::Library));
    let (Some((fused, library)), Some(times), Some(_)) =
        (programs, profile(Exec::Library), profile(Exec::Fused))
    else {
        return;
    };
    let times: Vec<_> = times.iter().map(|step| Some(step.time_us)).collect();
    let beside = beside((fused, library), &times);
    let fused = executors.iter_mut().find(|entry| entry.name == Exec::Fused.name());
    let steps = fused.into_iter().filter_map(|entry| entry.profile.as_mut()).flatten();
    for (step, library) in steps.zip(beside) {
        step.library_us = library;
    }
}

/// For each step of a fused program what the library's steps take together that compute the same nodes, if that is known
/// of all of them.
pub(crate) fn beside(
    (fused, library): (&Program, &Program),
    times: &[Option<f64>],
) -> Vec<Option<f64>> {
    let mut sums = vec![Some(0.0); fused.steps().len()];
    for (owner, time) in owners(fused, library).into_iter().zip(times) {
        if let Some(sum) = owner.and_then(|owner| sums.get_mut(owner)) {
            *sum = sum.zip(*time).map(|(sum, time)| sum + time);
        }
    }
    sums.into_iter().map(|sum| sum.filter(|&sum| sum > 0.0)).collect()
}

/// For each step of the library's program the fused step that computes its nodes. Of nodes whose names rewriting has
/// done away with, a matmul that reads what a named one reads was merged with it, as projections of one value are; all
/// others are computed where what they feed is, or else where what feeds them is.
fn owners(fused: &Program, library: &Program) -> Vec<Option<usize>> {
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (number, step) in fused.steps().iter().enumerate() {
        for node in &step.nodes {
            by_name.entry(node).or_insert(number);
        }
    }
    let named = |step: &Launch| step.nodes.iter().find_map(|node| by_name.get(node.as_str()));
    let steps = library.steps();
    let mut owners: Vec<Option<usize>> = steps.iter().map(|step| named(step).copied()).collect();
    let matmul = |step: &Launch| match (step.family, step.inputs.first()) {
        (Family::MatMul, Some(input)) => Some(input.buffer),
        _ => None,
    };
    // A merged matmul may have the name of what follows one of those that it is made of.
    let mut readers: HashMap<BufferId, usize> = HashMap::new();
    for (owner, step) in owners.iter().zip(steps) {
        for input in &step.inputs {
            owner.map(|owner| readers.entry(input.buffer).or_insert(owner));
        }
    }
    let by_reader = |step: &Launch| step.outputs.iter().find_map(|out| readers.get(&out.buffer));
    let known = owners.iter().zip(steps).filter_map(|(owner, step)| {
        Some((matmul(step)?, owner.or_else(|| by_reader(step).copied())?))
    });
    let merged: HashMap<BufferId, usize> = known.collect();
    for (owner, step) in owners.iter_mut().zip(steps) {
        *owner = owner.or_else(|| merged.get(&matmul(step)?).copied());
    }
    // Of each buffer, the owner of whoever read it first of those after, or wrote it last of those before.
    let mut near: Vec<Option<usize>> = vec![None; library.buffers().len()];
    for (owner, step) in owners.iter_mut().zip(steps).rev() {
        *owner = owner.or_else(|| step.outputs.iter().find_map(|out| near[out.buffer.index()]));
        step.inputs.iter().for_each(|input| {
            near[input.buffer.index()] = owner.or(near[input.buffer.index()]);
        });
    }
    near.fill(None);
    for (owner, step) in owners.iter_mut().zip(steps) {
        *owner = owner.or_else(|| step.inputs.iter().find_map(|input| near[input.buffer.index()]));
        step.outputs.iter().for_each(|output| near[output.buffer.index()] = *owner);
    }
    owners
}
