//! Kernels that start before their predecessors are done (programmatic dependent launch).

use crate::arch::Feature;
use crate::kernel::{Completion, Kernel, Kind, Spec, Stmt};

/// The kernel, such that the next of its stream may start while it runs, and that it waits for those before it where it
/// first needs their results: what comes before that, such as its barriers, is done while they finish (PTX
/// `griddepcontrol`).
///
/// A kernel stays as it is if its architecture has no such launches, if it waits for its predecessors already, or if its
/// blocks wait for each other: those are launched only when all of them have room.
pub fn dependent(mut kernel: Kernel) -> Kernel {
    let mut alone = !kernel.arch.has(Feature::GridDependency);
    kernel.each_stmt(&mut |stmt| {
        alone |= matches!(
            stmt,
            Stmt::Spec(Spec { kind: Kind::GridDependencyWait | Kind::GridWait(_), .. })
        );
    });
    let stmts = kernel.spec.body.as_deref().unwrap_or_default();
    let first = stmts.iter().position(|stmt| depends(&kernel, stmt));
    let (blocks, threads) = (kernel.grid, kernel.block);
    let (false, Some(first), Some(body)) = (alone, first, &mut kernel.spec.body) else {
        return kernel;
    };
    let spec = |kind| {
        let (outs, ins, body) = (Vec::new(), Vec::new(), None);
        Stmt::Spec(Spec { kind, outs, ins, blocks, threads, completion: Completion::Now, body })
    };
    body.insert(first, spec(Kind::GridDependencyWait));
    body.insert(0, spec(Kind::LaunchDependents));
    kernel
}

/// Whether a statement, or one within it, reads or writes global memory that is not constant.
fn depends(kernel: &Kernel, stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => kernel.depends(spec),
        outer => outer.body().iter().any(|stmt| depends(kernel, stmt)),
    }
}
