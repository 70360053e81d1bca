//! An order in which consumers multiply (ping-pong).
//!
//! Where each has tiles of its own, the others multiply while one writes its results. The pipeline alone would order
//! them, since it is filled tile after tile: but the next tile's matmuls would begin while stages still hold steps of
//! this one's, and take the tensor cores' time from the one who is to write next. Where each makes weights of what it has
//! multiplied, as attention does, one's exponentials have the other's matmuls beside them (FlashAttention-3: Shah et al.,
//! 2024). So a consumer waits until the one before has issued its matmuls.

use crate::{
    Builder, Expr, Kind, Layout, Memory, Operand, Result, Ring, Scalar, Scope, TensorId, ThreadsId,
    Var,
};

/// One barrier for each consumer, complete when it may multiply; none where there is one consumer, who always may.
#[derive(Debug, Clone, Copy)]
pub struct OrderedBarrier {
    barriers: Option<TensorId>,
    consumers: i64,
}

/// A consumer warpgroup that multiplies in order.
#[derive(Debug, Clone)]
pub struct OrderedConsumer {
    /// The barriers, and how often it has multiplied.
    order: Option<(TensorId, Ring)>,
    consumers: i64,
    own: ThreadsId,
    /// Its number among the consumers.
    group: Var,
    elected_warps: ThreadsId,
}

impl OrderedBarrier {
    /// Allocates the barriers, and lets one thread initialise them. What follows must begin with a meeting of the block.
    pub fn new(k: &mut Builder, consumers: i64, block: ThreadsId) -> Result<OrderedBarrier> {
        if consumers == 1 {
            return Ok(OrderedBarrier { barriers: None, consumers });
        }
        let line = [Layout::of(consumers, 1)];
        let barriers = k.allocate("turns", line, Scalar::Mbar, Memory::Shared, None)?;
        // Each warp of a consumer arrives.
        k.role(block, 0..1, |k| {
            k.unroll("s", consumers, |k, s| k.init(Operand::at(barriers, [s]), 4.0))
        })?;
        Ok(OrderedBarrier { barriers: Some(barriers), consumers })
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
        let consumers = self.consumers;
        let order = self.barriers.map(|barriers| Ok((barriers, k.ring("turn", 1)?))).transpose()?;
        let group = group.clone();
        let first = OrderedConsumer { order, consumers, own, group, elected_warps };
        if let Some((barriers, _)) = first.order {
            k.role(groups, consumers - 1..consumers, |k| first.pass(k, barriers, Expr::from(0)))?;
        }
        Ok(first)
    }
}

impl OrderedConsumer {
    /// Waits until the consumer before has issued its matmuls.
    pub fn wait(&self, k: &mut Builder) -> Result {
        let Some((barriers, ring)) = &self.order else { return Ok(()) };
        let parity = Kind::Wait(Expr::from(ring.parity()), Scope::Block);
        k.spec(parity, Operand::at(*barriers, [&self.group]), (), self.own)
    }

    /// Lets the next consumer multiply.
    pub fn arrive(&self, k: &mut Builder) -> Result {
        let Some((barriers, ring)) = &self.order else { return Ok(()) };
        let next = (Expr::from(&self.group) + 1).rem(self.consumers);
        self.pass(k, *barriers, next)?;
        k.advance(ring)
    }

    fn pass(&self, k: &mut Builder, barriers: TensorId, whose: Expr) -> Result {
        let barrier = Operand::at(barriers, [whose]);
        k.role(self.elected_warps, 0..1, |k| k.alone(Kind::Arrive(None), barrier, ()))
    }
}
