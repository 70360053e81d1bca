//! Kernels that start before their predecessors are done (programmatic dependent launch).

use crate::arch::Feature;
use crate::kernel::{Completion, Kernel, Kind, Spec, Stmt};

/// The kernel, such that the next of its stream may start while it runs, and that it waits for those before it where it
/// first needs their results: what comes before that, such as its barriers, is done while they finish (PTX
/// `griddepcontrol`).
///
/// A kernel stays as it is if its architecture has no such launches, if it waits for its predecessors already, or if its
/// blocks wait for each other: those are launched only when all of them can be resident.
pub fn dependent(mut kernel: Kernel) -> Kernel {
    let mut alone = !kernel.arch.has(Feature::GridDependency);
    kernel.each_stmt(&mut |stmt| {
        alone |= matches!(
            stmt,
            Stmt::Spec(Spec { kind: Kind::GridDependencyWait | Kind::GridWait(_), .. })
        );
    });
    let mut body = kernel.spec.body.take().unwrap_or_default();
    if !alone && body.iter().any(|stmt| depends(&kernel, stmt)) {
        let (grid, threads) = (kernel.grid, kernel.block);
        let spec = |kind, blocks| {
            let (outs, ins, body) = (Vec::new(), Vec::new(), None);
            Stmt::Spec(Spec { kind, outs, ins, blocks, threads, completion: Completion::Now, body })
        };
        // Where it first needs them, level by level.
        let (mut stmts, mut blocks) = (&mut body, grid);
        while let Some(at) = stmts.iter().position(|stmt| depends(&kernel, stmt)) {
            if !matches!(&stmts[at], Stmt::Spec(Spec { body: Some(_), .. })) {
                stmts.insert(at, spec(Kind::GridDependencyWait, blocks));
                break;
            }
            let Stmt::Spec(Spec { body: Some(inner), blocks: own, .. }) = &mut stmts[at] else {
                break;
            };
            (stmts, blocks) = (inner, *own);
        }
        body.insert(0, spec(Kind::LaunchDependents, grid));
    }
    kernel.spec.body = Some(body);
    kernel
}

/// Whether a statement, or one within it, reads or writes global memory that is not constant.
fn depends(kernel: &Kernel, stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => kernel.depends(spec),
        outer => outer.body().iter().any(|stmt| depends(kernel, stmt)),
    }
}
