//! What stands before a spec's body.

use crate::{Completion, Cond, Kind, Operand, TensorId, Test, ThreadsId, convert::from};

/// A spec without its body.
#[derive(Debug, Clone)]
pub struct Header {
    pub(super) kind: Kind,
    pub(super) outs: Vec<Operand>,
    pub(super) ins: Vec<Operand>,
    pub(super) blocks: Option<ThreadsId>,
    /// None: every thread of the block on its own.
    pub(super) threads: Option<ThreadsId>,
    pub(super) completion: Completion,
}

/// A spec's outputs or inputs: a tensor, an operand, an array of either, or `()`.
#[derive(Debug, Clone)]
pub struct Operands(Vec<Operand>);

impl Header {
    /// A spec of the blocks of [`Builder::by`](super::Builder::by), which completes before the next statement.
    pub fn new(
        kind: Kind,
        outs: impl Into<Operands>,
        ins: impl Into<Operands>,
        threads: ThreadsId,
    ) -> Header {
        Header { threads: Some(threads), ..Header::alone(kind, outs, ins) }
    }

    /// Likewise by every thread of the block on its own.
    pub fn alone(kind: Kind, outs: impl Into<Operands>, ins: impl Into<Operands>) -> Header {
        let (outs, ins) = (outs.into().0, ins.into().0);
        Header { kind, outs, ins, blocks: None, threads: None, completion: Completion::Now }
    }

    /// Of these blocks.
    pub fn on(self, blocks: impl Into<Option<ThreadsId>>) -> Header {
        Header { blocks: blocks.into(), ..self }
    }

    /// Completes when the phase of this barrier does.
    pub fn signals(self, barrier: impl Into<Operand>) -> Header {
        Header { completion: Completion::Signals(barrier.into()), ..self }
    }

    /// Completes when the group that the next `Commit` closes has been waited for.
    pub fn async_(self) -> Header {
        Header { completion: Completion::Group, ..self }
    }
}

from! {
    // The whole tensor.
    TensorId => Operand: |tensor| Operand { tensor, index: Vec::new() };
    () => Operands: |()| Operands(Vec::new());
    TensorId => Operands: |tensor| Operands(vec![tensor.into()]);
    Operand => Operands: |operand| Operands(vec![operand]);
    {T: Into<Operand>} Vec<T> => Operands: |all| Operands(all.into_iter().map(T::into).collect());
    {T: Into<Operand>, const N: usize} [T; N] => Operands: |all| Vec::<T>::from(all).into();
    Cond => Test: |cond| Test::All(vec![cond]);
    Vec<Cond> => Test: |conds| Test::All(conds);
}
