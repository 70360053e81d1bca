//! What blocks of a cluster do to each other's shared memory, in the order of the text.

use crate::kernel::Leaf;
use crate::{Fence, Kernel, Kind, Operand, Scalar};

/// What a spec has to do with other blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// A barrier is initialised.
    Init,
    /// That is fenced.
    Fence,
    /// All threads of the cluster meet, whatever happens.
    Meeting,
    /// Another block's shared memory is accessed.
    Touch,
}

/// What is wrong, with the number of a spec, counting the kernel's own as 1.
pub(super) fn check(kernel: &Kernel) -> Vec<(usize, String)> {
    let leaves = kernel.leaves();
    let all = leaves.iter().filter_map(|leaf| Some((leaf.number, event(kernel, leaf)?)));
    let all: Vec<(usize, Event)> = all.collect();
    let last = |rows: &[(usize, Event)], event| rows.iter().rposition(|row| row.1 == event);
    let first_touch = all.iter().position(|row| row.1 == Event::Touch);
    let (Some(first), Some(end)) = (first_touch, last(&all, Event::Touch)) else {
        return Vec::new();
    };
    let mut wrong: Vec<(usize, String)> = Vec::new();
    let mut note = |at: usize, what: &str| wrong.push((all[at].0, what.to_owned()));
    match last(&all[..first], Event::Meeting) {
        None => note(first, "another block may not have started: the cluster has not met"),
        Some(meeting) => {
            if let Some(init) = last(&all[..meeting], Event::Init)
                && last(&all[init..meeting], Event::Fence).is_none()
            {
                note(init, "barriers are not fenced between their initialisation and the meeting");
            }
        }
    }
    if last(&all[end..], Event::Meeting).is_none() {
        note(end, "the other block may have left: the cluster does not meet afterwards");
    }
    wrong
}

fn event(kernel: &Kernel, leaf: &Leaf<'_>) -> Option<Event> {
    let Leaf { spec, always, .. } = *leaf;
    let several = spec.blocks != kernel.grid && !kernel.threads(spec.blocks).view.size().is(1);
    let tensor = |operand: &Operand| kernel.tensor(operand.tensor);
    let peers = spec.outs.iter().chain(&spec.ins).any(|operand| tensor(operand).peer.is_some());
    let barrier = spec.outs.first().is_some_and(|out| tensor(out).scalar == Scalar::Mbar);
    match spec.kind {
        _ if peers => Some(Event::Touch),
        Kind::Move if several => Some(Event::Touch),
        Kind::Init(_) if barrier => Some(Event::Init),
        Kind::Fence(Fence::Init) => Some(Event::Fence),
        Kind::Sync if several && always => Some(Event::Meeting),
        _ => None,
    }
}
