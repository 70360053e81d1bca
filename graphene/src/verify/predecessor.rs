//! What a kernel that starts before its predecessors are done does before it has waited for them.

use crate::kernel::{Kernel, Kind};

/// The specs, by their numbers as in the text, that touch global memory too early.
pub(super) fn check(kernel: &Kernel) -> Vec<usize> {
    // Whether it waits for its predecessors anywhere, and whether all its threads have by now.
    let (mut waits, mut waited) = (false, false);
    let mut early = Vec::new();
    for leaf in kernel.leaves() {
        if leaf.spec.kind == Kind::GridDependencyWait {
            waits = true;
            waited |= leaf.always && leaf.spec.threads == kernel.block;
        } else if !waited && kernel.depends(leaf.spec) {
            early.push(leaf.number);
        }
    }
    if waits { early } else { Vec::new() }
}
