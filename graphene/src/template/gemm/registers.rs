//! Who has how many registers.

use super::{Edges, GROUP, Gemm};
use crate::arch::registers_at_launch;

impl Gemm {
    /// Whether the block takes no more registers than its few sums need. To move some from the producer to consumers, it
    /// would have to have nearly all of a multiprocessor's; so blocks of the next kernel can begin beside it, if there is
    /// shared memory for them.
    pub(super) fn is_light(&self) -> bool {
        self.edges == Edges::Bulk && self.consumers == 1 && self.registers() <= 64
    }

    /// Registers of each thread of a consumer: what the block has at launch, but for what the producer keeps.
    pub(super) fn budget(&self) -> i64 {
        let groups = self.consumers + 1;
        let all = groups * registers_at_launch(GROUP * groups);
        ((all - self.producer_registers()) / self.consumers / 8 * 8).min(240)
    }

    /// Registers of the producer's threads: those that only issue copies need few, addresses and
    /// predicates of single elements take more.
    pub(super) fn producer_registers(&self) -> i64 {
        match self.edges {
            Edges::Bulk if self.product.terms == 1 => 24,
            Edges::Bulk => 40,
            Edges::Moves => 80,
        }
    }

    /// Registers of each thread of a consumer that hold its sums.
    pub(super) fn registers(&self) -> i64 {
        self.strips * self.columns / 2
    }
}
