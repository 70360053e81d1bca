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
    // Where it first needs them, level by level.
    let (mut path, mut blocks) = (Vec::new(), kernel.grid);
    let mut stmts = kernel.spec.body.as_deref().unwrap_or_default();
    while let Some(at) = stmts.iter().position(|stmt| depends(&kernel, stmt)) {
        path.push(at);
        let Stmt::Spec(Spec { body: Some(body), blocks: own, .. }) = &stmts[at] else { break };
        (stmts, blocks) = (body, *own);
    }
    if alone || path.is_empty() {
        return kernel;
    }
    let (grid, threads) = (kernel.grid, kernel.block);
    let spec = |kind, blocks| {
        let (outs, ins, body) = (Vec::new(), Vec::new(), None);
        Stmt::Spec(Spec { kind, outs, ins, blocks, threads, completion: Completion::Now, body })
    };
    let body = kernel.spec.body.get_or_insert_default();
    insert(body, &path, spec(Kind::GridDependencyWait, blocks));
    body.insert(0, spec(Kind::LaunchDependents, grid));
    kernel
}

/// Inserts a statement at a place, behind those of the specs around it.
fn insert(stmts: &mut Vec<Stmt>, path: &[usize], stmt: Stmt) {
    match path {
        [at, inner @ ..] if !inner.is_empty() => {
            if let Stmt::Spec(Spec { body: Some(body), .. }) = &mut stmts[*at] {
                insert(body, inner, stmt);
            }
        }
        [at, ..] => stmts.insert(*at, stmt),
        [] => {}
    }
}

/// Whether a statement, or one within it, reads or writes global memory that is not constant.
fn depends(kernel: &Kernel, stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => kernel.depends(spec),
        outer => outer.body().iter().any(|stmt| depends(kernel, stmt)),
    }
}
