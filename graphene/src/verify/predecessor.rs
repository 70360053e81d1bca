//! What a kernel that starts before its predecessors are done does before it has waited for them.

use crate::{Kernel, Kind, Stmt};

/// What is wrong, with the number of the spec as in the text.
pub(super) fn check(kernel: &Kernel) -> Vec<(usize, String)> {
    let mut walk = Walk { kernel, number: 1, waits: false, early: Vec::new() };
    let waited = walk.stmts(kernel.spec.body.as_deref().unwrap_or_default(), false);
    if walk.waits && !waited {
        walk.early.push((1, "not all threads have waited for predecessors in the end".to_owned()));
    }
    if walk.waits { walk.early } else { Vec::new() }
}

struct Walk<'a> {
    kernel: &'a Kernel,
    /// That of the last spec.
    number: usize,
    /// Whether the kernel waits for its predecessors anywhere.
    waits: bool,
    /// What comes before that.
    early: Vec<(usize, String)>,
}

impl Walk<'_> {
    /// Whether all threads that execute these statements have waited after them, if they had before or not.
    fn stmts(&mut self, stmts: &[Stmt], mut waited: bool) -> bool {
        for stmt in stmts {
            let Stmt::Spec(spec) = stmt else {
                // There may be no round, and others have other roles.
                self.stmts(stmt.body(), waited);
                continue;
            };
            self.number += 1;
            if let Some(body) = &spec.body {
                waited = self.stmts(body, waited);
            } else if spec.kind == Kind::GridDependencyWait {
                (self.waits, waited) = (true, true);
            } else if !waited && self.kernel.depends(spec) {
                let what = "global memory is touched before predecessors are done";
                self.early.push((self.number, what.to_owned()));
            }
        }
        waited
    }
}
