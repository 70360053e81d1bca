//! What a kernel that starts before its predecessors are done does before it has waited for them.

use crate::kernel::{Kernel, Kind, Spec, Stmt};

/// The specs, by their numbers as in the text, that touch global memory too early.
pub(super) fn check(kernel: &Kernel) -> Vec<usize> {
    let mut walk = Walk { kernel, specs: 1, waits: false, waited: false, early: Vec::new() };
    walk.block(kernel.spec.body.as_deref().unwrap_or_default(), true);
    if walk.waits { walk.early } else { Vec::new() }
}

struct Walk<'a> {
    kernel: &'a Kernel,
    specs: usize,
    /// Whether it waits for its predecessors anywhere, and whether all its threads have by now.
    waits: bool,
    waited: bool,
    early: Vec<usize>,
}

impl Walk<'_> {
    /// `always`: nothing around these statements lets threads leave them out.
    fn block(&mut self, stmts: &[Stmt], always: bool) {
        for stmt in stmts {
            match stmt {
                Stmt::Spec(spec) => self.spec(spec, always),
                other => self.block(other.body(), false),
            }
        }
    }

    fn spec(&mut self, spec: &Spec, always: bool) {
        self.specs += 1;
        if let Some(body) = &spec.body {
            return self.block(body, always);
        }
        let all = spec.threads == self.kernel.block;
        if spec.kind == Kind::GridDependencyWait {
            self.waits = true;
            self.waited |= always && all;
        } else if !self.waited && self.kernel.depends(spec) {
            self.early.push(self.specs);
        }
    }
}
