//! Kernels that start before their predecessors are done (programmatic dependent launch).

use crate::{Completion, Feature, For, Kernel, Kind, Spec, Stmt, ThreadsId};

/// The kernel, such that the next of its stream may start while it runs, and that it waits for those before it where it first
/// needs their results: what comes before that, such as its barriers, is done while they finish (PTX `griddepcontrol`).
///
/// Threads that have different roles wait on their own, once they know their tile: those that only meet at barriers with
/// threads that wait need not. All wait at the end, whichever way they came there, so that who waits for this kernel waits for
/// its predecessors too.
///
/// A kernel stays as it is if its architecture has no such launches, if it waits for its predecessors already, or if its
/// blocks wait for each other: those are launched only when all of them can be resident.
pub fn dependent(mut kernel: Kernel) -> Kernel {
    let mut alone = !kernel.arch.has(Feature::GridDependency);
    kernel.each_stmt(&mut |stmt| {
        let Stmt::Spec(Spec { kind, .. }) = stmt else { return };
        alone |= matches!(kind, Kind::GridDependencyWait | Kind::GridWait(_));
    });
    let mut body = kernel.spec.body.take().unwrap_or_default();
    if !alone && body.iter().any(|stmt| depends(&kernel, stmt)) {
        let whole = Executors { blocks: kernel.grid, threads: kernel.block, each: None };
        if !whole.await_predecessors(&kernel, &mut body) {
            body.push(whole.spec(Kind::GridDependencyWait));
        }
        body.insert(0, whole.spec(Kind::LaunchDependents));
    }
    kernel.spec.body = Some(body);
    kernel
}

/// Who executes some statements.
#[derive(Clone, Copy)]
struct Executors {
    blocks: ThreadsId,
    threads: ThreadsId,
    /// Each thread on its own, where the kernel has a name for that.
    each: Option<ThreadsId>,
}

impl Executors {
    fn spec(self, kind: Kind) -> Stmt {
        let (outs, ins, body) = (Vec::new(), Vec::new(), None);
        let Self { blocks, threads, .. } = self;
        Stmt::Spec(Spec { kind, outs, ins, blocks, threads, completion: Completion::Now, body })
    }

    /// Waits where statements first need what predecessors make, level by level; whether all who execute them have waited.
    fn await_predecessors(mut self, kernel: &Kernel, stmts: &mut Vec<Stmt>) -> bool {
        let mut at = 0;
        while at < stmts.len() {
            let needs = depends(kernel, &stmts[at]);
            match &mut stmts[at] {
                Stmt::Threads(id, ..) if kernel.threads(*id).view.levels().is_empty() => {
                    self.each = Some(*id);
                }
                Stmt::Spec(Spec { body: Some(body), blocks, .. }) if needs => {
                    let inner = Self { blocks: *blocks, ..self };
                    if inner.await_predecessors(kernel, body) {
                        return true;
                    }
                }
                Stmt::Role(_, _, _, body) if needs && self.each.is_some() => {
                    self.await_in_role(kernel, body);
                }
                _ if needs => {
                    stmts.insert(at, self.spec(Kind::GridDependencyWait));
                    return true;
                }
                _ => {}
            }
            at += 1;
        }
        false
    }

    /// Waits in a role, or in the loop over its tiles once it knows the first.
    fn await_in_role(mut self, kernel: &Kernel, role: &mut Vec<Stmt>) {
        if let Some(each) = self.each {
            self.threads = each;
        }
        let needed: Vec<usize> = (0..role.len()).filter(|&at| depends(kernel, &role[at])).collect();
        let stmts = match &mut role[needed[0]] {
            Stmt::For(For { body, unroll: false, .. }) if needed.len() == 1 => body,
            _ => role,
        };
        self.await_predecessors(kernel, stmts);
    }
}

/// Whether a statement, or one within it, reads or writes global memory that is not constant.
fn depends(kernel: &Kernel, stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => kernel.depends(spec),
        outer => outer.body().iter().any(|stmt| depends(kernel, stmt)),
    }
}
