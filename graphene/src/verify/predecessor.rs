//! What a kernel that starts before its predecessors are done does before it has waited for them.

use crate::kernel::{Kernel, Kind};

/// What is wrong, with the number of the spec as in the text.
pub(super) fn check(kernel: &Kernel) -> Vec<(usize, String)> {
    // Whether it waits for its predecessors anywhere, and whether all its threads have by now.
    let (mut waits, mut waited) = (false, false);
    let mut early = Vec::new();
    for leaf in kernel.leaves() {
        if leaf.spec.kind == Kind::GridDependencyWait {
            waits = true;
            waited |= leaf.always && leaf.spec.threads == kernel.block;
        } else if !waited && kernel.depends(leaf.spec) {
            let what = "global memory is touched before predecessors are done";
            early.push((leaf.number, what.to_owned()));
        }
    }
    if waits { early } else { Vec::new() }
}
