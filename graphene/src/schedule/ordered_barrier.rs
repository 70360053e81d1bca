//! An order in which consumers multiply (ping-pong).
//!
//! Where each has tiles of its own, the others multiply while one writes its results. The pipeline alone would order
//! them, since it is filled tile after tile: but the next tile's matmuls would begin while stages still hold steps of
//! this one's, and take the tensor cores' time from the one who is to write next. Where each makes weights of what it has
//! multiplied, as attention does, one's exponentials have the other's matmuls beside them (FlashAttention-3: Shah et al.,
//! 2024). So a consumer waits until the one before has issued its matmuls.

use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Kind, Operand, Ring, Scope, TensorId, ThreadsId};
use crate::layout::Layout;
use crate::tensor::{Memory, Scalar, View};

/// One barrier for each consumer, complete when it may multiply.
#[derive(Debug, Clone, Copy)]
pub struct OrderedBarrier {
    barriers: TensorId,
    consumers: i64,
}

/// A consumer warpgroup that multiplies in order.
#[derive(Debug, Clone)]
pub struct OrderedConsumer {
    order: OrderedBarrier,
    /// How often it has multiplied.
    ring: Ring,
    own: ThreadsId,
    /// Its number among the consumers.
    group: Var,
    elected_warps: ThreadsId,
}

impl OrderedBarrier {
    /// Allocates the barriers, and lets one thread initialise them. What follows must begin with a meeting of the block.
    pub fn new(k: &mut Builder, consumers: i64, block: ThreadsId) -> Result<OrderedBarrier> {
        let line = View::buffer(&[Layout::of(consumers, 1)]);
        let barriers = k.allocate("turns", line, Scalar::Mbar, Memory::Shared, None)?;
        k.role(block, 0..1, |k| {
            k.unroll("s", consumers, |k, s| {
                // Each warp of a consumer arrives.
                k.init(Operand::at(barriers, [s]), 4.0)
            })
        })?;
        Ok(OrderedBarrier { barriers, consumers })
    }

    /// The first consumer begins, as if the last one had multiplied before. `groups` are the block's
    /// warpgroups, `own` that of number `group`; of `elected_warps`, its warps, each one's first thread arrives for all of it.
    pub fn begin(
        self,
        k: &mut Builder,
        groups: ThreadsId,
        (own, group): (ThreadsId, &Var),
        elected_warps: ThreadsId,
    ) -> Result<OrderedConsumer> {
        let ring = k.ring("turn", 1)?;
        let first = OrderedConsumer { order: self, ring, own, group: group.clone(), elected_warps };
        let last = self.consumers - 1;
        k.role(groups, last..last + 1, |k| first.pass(k, Expr::from(0)))?;
        Ok(first)
    }
}

impl OrderedConsumer {
    /// Waits until the consumer before has issued its matmuls.
    pub fn wait(&self, k: &mut Builder) -> Result<()> {
        let parity = Kind::Wait(Expr::from(self.ring.parity()), Scope::Block);
        k.spec(parity, Operand::at(self.order.barriers, [&self.group]), (), self.own)
    }

    /// Lets the next consumer multiply.
    pub fn arrive(&self, k: &mut Builder) -> Result<()> {
        let next = (Expr::from(&self.group) + 1).rem(&Expr::from(self.order.consumers));
        self.pass(k, next)?;
        k.advance(&self.ring)
    }

    fn pass(&self, k: &mut Builder, whose: Expr) -> Result<()> {
        k.role(self.elected_warps, 0..1, |k| {
            k.alone(Kind::Arrive(None), Operand::at(self.order.barriers, [whose]), ())
        })
    }
}
