//! Consumers that take turns (ping-pong): each has tiles of its own, so that while one writes its results, the others
//! multiply.
//!
//! The ring alone would order them, since it is filled tile after tile: but the next tile's products would begin while the
//! ring still holds steps of this one's, and take the tensor cores' time from the one who is to write next. So a consumer
//! waits until the one before has issued its last product.

use super::Context;
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Kind, Number, Operand, Ring, Scope, TensorId, ThreadsId};
use crate::template::product::line;
use crate::tensor::{Memory, Scalar};

/// One barrier for each consumer, complete when it is its turn.
pub(super) struct Turns {
    barriers: TensorId,
    consumers: i64,
}

impl Turns {
    /// Allocates the barriers, and lets one thread initialise them. What follows must begin with a meeting of the block.
    pub(super) fn new(k: &mut Builder, consumers: i64, block: ThreadsId) -> Result<Turns> {
        let barriers = k.allocate("turns", line(consumers), Scalar::Mbar, Memory::Shared, None)?;
        let one = k.scalar(block, "one")?;
        k.role(block, 0..1, |k| {
            k.for_("s", 0..consumers, 1, true, |k, s| {
                // Each warp of a consumer arrives.
                k.spec(Kind::Init(Number(4.0)), Operand::at(barriers, [s]), (), one)
            })
        })?;
        Ok(Turns { barriers, consumers })
    }

    /// The first turn is the first consumer's, as if the last one had multiplied before.
    pub(super) fn begin(
        &self,
        k: &mut Builder,
        context: &Context<'_>,
        lanes: ThreadsId,
    ) -> Result<Ring> {
        let last = self.consumers - 1;
        k.role(context.groups, last..last + 1, |k| self.arrive(k, context, lanes, Expr::from(0)))?;
        k.ring("turn", 1)
    }

    /// Waits for the own turn.
    pub(super) fn wait(
        &self,
        k: &mut Builder,
        turn: &Ring,
        own: ThreadsId,
        group: &Var,
    ) -> Result<()> {
        let parity = Kind::Wait(Expr::from(turn.parity()), Scope::Block);
        k.spec(parity, Operand::at(self.barriers, [group]), (), own)
    }

    /// Lets the next consumer multiply.
    pub(super) fn pass_on(
        &self,
        k: &mut Builder,
        turn: &Ring,
        context: &Context<'_>,
        lanes: ThreadsId,
        group: &Var,
    ) -> Result<()> {
        let next = (Expr::from(group) + 1).rem(&Expr::from(self.consumers));
        self.arrive(k, context, lanes, next)?;
        k.advance(turn)
    }

    fn arrive(
        &self,
        k: &mut Builder,
        context: &Context<'_>,
        lanes: ThreadsId,
        whose: Expr,
    ) -> Result<()> {
        k.role(lanes, 0..1, |k| {
            k.spec(Kind::Arrive(None), Operand::at(self.barriers, [whose]), (), context.one)
        })
    }
}

/// Passes stages by that are others'.
pub(super) fn skip(k: &mut Builder, ring: &Ring, steps: Expr) -> Result<()> {
    k.for_("skipped", Expr::from(0)..steps, 1, false, |k, _| k.advance(ring))
}
