//! Printing stages.

use crate::args::{Emit, Exec, Stage};
use crate::error::Error;
use crate::files;
use crate::session::Plans;
use graphene_frontend::graph::Graph;
use graphene_frontend::text;
use graphene_fusion::kernels::launches;
use graphene_fusion::program::Program;
use graphene_fusion::{Planned, egraphs};
use graphene_ir::emit::emit as source;
use graphene_ir::kernel::Kernel;
use graphene_ir::target::{Kind, Target};
use graphene_runtime::Sizing;
use graphene_runtime::gpu::routine;
use std::fmt::Write;

/// Prints each stage asked for where it was asked for: what is planned as it is for an executor.
///
/// # Errors
/// [`Error::Write`]; [`Error::Run`] if the program cannot be bound.
pub(crate) fn emit(
    emits: &[Emit],
    imported: &Graph,
    plans: &Plans,
    exec: Exec,
    target: &Target,
    sizing: &Sizing,
) -> Result<(), Error> {
    for Emit { stage, path } in emits {
        let Planned { graph, groups, program, .. } = plans.of(exec);
        let text = match stage {
            Stage::Import => text::print(imported).text,
            Stage::Rewritten => text::print(graph).text,
            Stage::Groups => groups.print(graph, program, target, &sizing.sizes),
            Stage::Program => program.to_string(),
            Stage::Bound => plans.bind(exec, &sizing.sizes)?.to_string(),
            Stage::Egraph => egraphs(imported, target)?.concat(),
            Stage::Dot => groups.dot(graph, program),
            Stage::Graphene => kernels(program, target, |kernel| Ok(kernel.to_string()))?,
            Stage::Cuda => kernels(program, target, |kernel| Ok(source(kernel)?.source))?,
        };
        match path {
            Some(path) => files::write(path, text.as_bytes())?,
            None => files::print(&text)?,
        }
    }
    Ok(())
}

/// The kernels of a program's steps, or why there are none.
///
/// # Errors
/// [`Error::Flag`] for a target that has no kernels, and what `text` says.
fn kernels(
    program: &Program,
    target: &Target,
    text: impl Fn(&Kernel) -> Result<String, graphene_ir::Error>,
) -> Result<String, Error> {
    if target.kind == Kind::Cpu {
        return Err(Error::flag("--emit", "kernels are generated for a GPU: add --target sm_90a"));
    }
    let mut all = String::new();
    for (id, step) in program.step_ids().zip(program.steps()) {
        let _ = write!(all, "// {id} {} {:?}", step.family, step.name);
        match launches(program, step, target) {
            Ok(launches) => {
                all.push('\n');
                for launch in launches {
                    all += &text(&launch.kernel)?;
                }
            }
            Err(refusal) => {
                let _ = match routine(program, step, target) {
                    Some(routine) => writeln!(all, " by {routine}"),
                    None => writeln!(all, " without a kernel: {}", refusal.in_short()),
                };
            }
        }
    }
    Ok(all)
}
