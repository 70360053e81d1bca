//! Profiles: what every step took, beside what it had to do, and beside library execution of the same nodes.

use crate::engine::Executable;
use crate::report::Step;
use crate::work;
use graphene_frontend::dim::Bindings;
use graphene_ir::target::Target;

/// A row for every step, from its time in seconds.
pub(crate) fn steps(
    executable: &Executable,
    times: &[f64],
    bindings: &Bindings,
    target: &Target,
) -> Vec<Step> {
    let (program, plan) = (executable.program(), executable.plan());
    let total: f64 = times.iter().sum();
    let rows = program.steps().iter().zip(plan.steps()).zip(executable.kernels()).zip(times);
    let row = |(i, (((step, bound), kernel), &seconds)): (usize, (((_, _), String), &f64))| {
        let (step, bound): (&graphene_fusion::program::Step, &graphene_runtime::BoundStep) =
            (step, bound);
        let work = work::of_step(program, step, bindings);
        let per_second = |amount: u64| amount as f64 / seconds.max(1e-12);
        Step {
            step: i,
            name: step.name.clone(),
            family: step.family.name(),
            kernel,
            variant: bound.variant_name,
            time_us: seconds * 1e6,
            share: seconds / total.max(1e-12),
            bytes: work.bytes,
            flops: work.flops(),
            gbytes_per_s: per_second(work.bytes) / 1e9,
            tflops_per_s: per_second(work.flops()) / 1e12,
            roofline: work.least_seconds(target) / seconds.max(1e-12),
            library_us: None,
        }
    };
    rows.enumerate().map(row).collect()
}
