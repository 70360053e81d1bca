//! Printing stages.

use crate::args::{Emit, Stage};
use crate::error::Error;
use crate::files;
use crate::session::{self, Plans};
use crate::sizes::Sizing;
use graphene_frontend::graph::Graph;
use graphene_frontend::text;
use graphene_fusion::{Planned, egraphs};
use graphene_ir::target::Target;

/// Prints each stage asked for where it was asked for.
///
/// # Errors
/// [`Error::Write`]; [`Error::Run`] if the program cannot be bound.
pub(crate) fn emit(
    emits: &[Emit],
    imported: &Graph,
    plans: &Plans,
    target: &Target,
    sizing: &Sizing,
) -> Result<(), Error> {
    for Emit { stage, path } in emits {
        let Planned { groups, program, .. } = &plans.fused;
        let text = match stage {
            Stage::Import => text::print(imported).text,
            Stage::Rewritten => text::print(&plans.fused.graph).text,
            Stage::Groups => groups.print(&plans.fused.graph),
            Stage::Program => program.to_string(),
            Stage::Bound => session::bind(program, &sizing.bindings)?.to_string(),
            Stage::Egraph => egraphs(imported, target)?.concat(),
            Stage::Dot => groups.dot(&plans.fused.graph),
        };
        match path {
            Some(path) => files::write(path, text.as_bytes())?,
            None => files::print(&text)?,
        }
    }
    Ok(())
}
