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
    let touch = |row: &&(usize, Event)| row.1 == Event::Touch;
    let (Some(first), Some(last)) = (all.iter().find(touch), all.iter().rev().find(touch)) else {
        return Vec::new();
    };
    let mut wrong: Vec<(usize, String)> = Vec::new();
    let mut note = |spec: usize, what: &str| wrong.push((spec, what.to_owned()));
    let met = |row: &(usize, Event)| row.1 == Event::Meeting;
    let before = all.iter().take_while(|row| row.0 < first.0);
    let started: Vec<(usize, Event)> = before.copied().collect();
    match started.iter().rposition(met) {
        None => note(first.0, "another block may not have started: the cluster has not met"),
        Some(meeting) => {
            let prepared = &started[..meeting];
            let init = prepared.iter().rposition(|row| row.1 == Event::Init);
            let fence = prepared.iter().rposition(|row| row.1 == Event::Fence);
            if let Some(init) = init
                && fence.is_none_or(|fence| fence < init)
            {
                let what = "barriers are not fenced between their initialisation and the meeting";
                note(prepared[init].0, what);
            }
        }
    }
    if !all.iter().any(|row| row.0 > last.0 && met(row)) {
        note(last.0, "the other block may have left: the cluster does not meet afterwards");
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
