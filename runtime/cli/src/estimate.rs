//! What steps take at least on a target that no device here is: estimates, where nothing could be timed.

use crate::args::Exec;
use crate::on_host;
use crate::profile::beside;
use crate::report::{Executor, Rates, Report, StepEstimate};
use crate::roof::Roof;
use crate::session::Plans;
use crate::work;
use graphene_frontend::dim::Bindings;
use graphene_fusion::program::{Program, Step};
use graphene_ir::target::Target;

/// Adds estimates to each executor that has a plan and no times, and the rates that they follow from.
pub(crate) fn add(report: &mut Report, plans: &Plans, sizes: &Bindings, target: &Target) {
    let executors = &mut report.executors;
    let mut all = [Exec::Fused, Exec::Library].map(|exec| {
        let untimed = |entry: &&Executor| entry.name == exec.name() && entry.time.is_none();
        executors.iter().find(untimed)?;
        Some(steps(plans.program(exec)?, sizes, target))
    });
    let programs = plans.program(Exec::Fused).zip(plans.program(Exec::Library));
    if let ([Some(fused), Some(library)], Some(programs)) = (&mut all, programs) {
        let times: Vec<_> = library.iter().map(|step| step.time_us).collect();
        for (step, library) in fused.iter_mut().zip(beside(programs, &times)) {
            step.library_us = library;
        }
    }
    for (exec, estimate) in [Exec::Fused, Exec::Library].into_iter().zip(all) {
        let entry = executors.iter_mut().find(|entry| entry.name == exec.name());
        if let (Some(entry), Some(estimate)) = (entry, estimate) {
            entry.estimate = Some(estimate);
            let launch_us = target.launch_cost * 1e6;
            report.rates = Some(Rates { roof: Roof::planned(target), launch_us });
        }
    }
}

fn steps(program: &Program, sizes: &Bindings, target: &Target) -> Vec<StepEstimate> {
    let roof = Roof::planned(target);
    let steps = program.steps().iter().zip(on_host::refusals(program, target));
    let estimate = |(number, (step, refusal)): (usize, (&Step, Option<String>))| {
        let work = work::of_step(program, step, sizes);
        let least = roof.least_seconds(work);
        StepEstimate {
            step: number,
            name: step.name.clone(),
            family: step.family.name(),
            time_us: refusal.is_none().then_some((least + target.launch_cost) * 1e6),
            bytes: work.bytes,
            flops: work.flops(),
            bound: if least < target.launch_cost { "launch" } else { roof.bound(work) },
            library_us: None,
        }
    };
    steps.enumerate().map(estimate).collect()
}
