//! What blocks of a cluster do to each other's shared memory, in the order of the text.

use crate::kernel::{Fence, Kernel, Kind, Operand, Spec, Stmt};
use crate::tensor::Scalar;

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
pub(super) fn check(kernel: &Kernel) -> Vec<(usize, &'static str)> {
    let mut events = Events { kernel, specs: 1, all: Vec::new() };
    events.block(kernel.spec.body.as_deref().unwrap_or_default(), true);
    let all = events.all;
    let touch = |row: &&(usize, Event)| row.1 == Event::Touch;
    let (Some(first), Some(last)) = (all.iter().find(touch), all.iter().rev().find(touch)) else {
        return Vec::new();
    };
    let mut wrong = Vec::new();
    let met = |row: &(usize, Event)| row.1 == Event::Meeting;
    let before = all.iter().take_while(|row| row.0 < first.0);
    let started: Vec<(usize, Event)> = before.copied().collect();
    match started.iter().rposition(met) {
        None => {
            wrong.push((first.0, "another block may not have started: the cluster has not met"))
        }
        Some(meeting) => {
            let prepared = &started[..meeting];
            let init = prepared.iter().rposition(|row| row.1 == Event::Init);
            let fence = prepared.iter().rposition(|row| row.1 == Event::Fence);
            if let Some(init) = init
                && fence.is_none_or(|fence| fence < init)
            {
                let what = "barriers are not fenced between their initialisation and the meeting";
                wrong.push((prepared[init].0, what));
            }
        }
    }
    if !all.iter().any(|row| row.0 > last.0 && met(row)) {
        wrong.push((last.0, "the other block may have left: the cluster does not meet afterwards"));
    }
    wrong
}

struct Events<'a> {
    kernel: &'a Kernel,
    specs: usize,
    all: Vec<(usize, Event)>,
}

impl Events<'_> {
    /// `always`: nothing around these statements lets threads leave them out.
    fn block(&mut self, stmts: &[Stmt], always: bool) {
        for stmt in stmts {
            match stmt {
                Stmt::Spec(spec) => {
                    self.specs += 1;
                    match &spec.body {
                        Some(body) => self.block(body, always),
                        None => self.atom(spec, always),
                    }
                }
                other => self.block(other.body(), false),
            }
        }
    }

    fn atom(&mut self, spec: &Spec, always: bool) {
        let kernel = self.kernel;
        let blocks = kernel.threads(spec.blocks);
        let several = spec.blocks != kernel.grid && !blocks.view.size().is(1);
        let tensor = |operand: &Operand| kernel.tensor(operand.tensor);
        let peers = spec.outs.iter().chain(&spec.ins).any(|operand| tensor(operand).peer.is_some());
        let barrier = spec.outs.first().is_some_and(|out| tensor(out).scalar == Scalar::Mbar);
        let event = match spec.kind {
            _ if peers => Event::Touch,
            Kind::Move if several => Event::Touch,
            Kind::Init(_) if barrier => Event::Init,
            Kind::Fence(Fence::Init) => Event::Fence,
            Kind::Sync if several && always => Event::Meeting,
            _ => return,
        };
        self.all.push((self.specs, event));
    }
}
