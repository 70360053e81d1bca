//! Barriers of blocks that are resident together: each counts its arrivals in global memory.

use crate::{Builder, Cond, Expr, Kind, Operand, Result, ThreadsId, Var};

/// A barrier of some blocks, which meet there so many times in a launch.
///
/// The counter is 0 at first, and again after the last arrival of all: a launch leaves it as it found
/// it. So no block may wait for the last meeting, and each meeting of a launch is arrived at.
#[derive(Debug, Clone)]
pub struct GridBarrier<'a> {
    /// A number of 32 bits in global memory.
    pub counter: Operand,
    /// How many blocks meet.
    pub members: Expr,
    /// How often they meet.
    pub meetings: Expr,
    /// The threads of a block.
    pub block: ThreadsId,
    /// The own thread's number.
    pub thread: &'a Var,
}

impl GridBarrier<'_> {
    /// What all threads of the block have done is there for those who [`wait`](GridBarrier::wait).
    pub fn arrive(&self, k: &mut Builder) -> Result {
        k.spec(Kind::Sync, (), (), self.block)?;
        let arrive = Kind::GridArrive(self.members.clone() * &self.meetings);
        k.if_(Cond::equal(self.thread, 0), |k| k.alone(arrive, self.counter.clone(), ()))
    }

    /// Waits until all blocks have arrived so many times, fewer than they meet.
    pub fn wait(&self, k: &mut Builder, times: &Expr) -> Result {
        let wait = Kind::GridWait(self.members.clone() * times);
        k.if_(Cond::equal(self.thread, 0), |k| k.alone(wait, (), self.counter.clone()))?;
        k.spec(Kind::Sync, (), (), self.block)
    }
}
