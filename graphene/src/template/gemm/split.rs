//! Blocks of a cluster that share a tile: each has its part of K, and the first one adds their sums.

use super::{Context, GROUP, Gemm};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{Binary, Fence, Kind, Number, Operand, TensorId, ThreadsId};
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};

/// The blocks that share a tile.
pub(super) struct Shares {
    pub(super) blocks: ThreadsId,
    /// Which of them the own one is.
    pub(super) rank: Expr,
    parts: i64,
    /// `[part, group, register, thread]`: the sums of all blocks but the first, in whose memory they are.
    sums: TensorId,
    /// Complete when all of them are there.
    there: TensorId,
}

impl Shares {
    /// Allocates the room for sums, and lets one thread initialise its barrier. What follows must begin with a meeting of
    /// the blocks.
    pub(super) fn new(
        k: &mut Builder,
        gemm: &Gemm,
        blocks: ThreadsId,
        rank: Expr,
        block: ThreadsId,
    ) -> Result<Shares> {
        let (others, groups) = (gemm.split - 1, gemm.consumers);
        let registers = gemm.registers();
        let room = View::buffer(&[
            leaf(others, groups * registers * GROUP),
            leaf(groups, registers * GROUP),
            leaf(registers, GROUP),
            leaf(GROUP, 1),
        ]);
        let sums = k.allocate("sums", room, Scalar::F32, Memory::Shared, None)?;
        let one = View::buffer(&[leaf(1, 1)]);
        let there = k.allocate("there", one, Scalar::Mbar, Memory::Shared, None)?;
        let first = k.scalar(block, "one")?;
        k.role(block, 0..1, |k| {
            let arrivals = Number((others * groups * GROUP) as f64);
            k.spec(Kind::Init(arrivals), Operand::at(there, [0]), (), first)?;
            k.spec(Kind::Fence(Fence::Init), (), (), first)
        })?;
        Ok(Shares { blocks, rank, parts: gemm.split, sums, there })
    }

    /// The own part of so many steps along K: where it begins, and how long it is.
    pub(super) fn steps(&self, all: &Expr) -> (Expr, Expr) {
        let part = all.ceil_div(&Expr::from(self.parts));
        let first = self.rank.clone() * &part;
        let left = (all.clone() - first.clone()).max(Expr::from(0));
        (first, left.min(part))
    }

    /// All blocks but the first write their sums into the first one's memory.
    pub(super) fn hand_over(
        &self,
        k: &mut Builder,
        context: &Context<'_>,
        acc: TensorId,
        [own, one]: [ThreadsId; 2],
        group: &Var,
    ) -> Result<()> {
        let [thread] = k.indices(own, ["thread"])?;
        k.if_(Cond::new(self.rank.clone(), Relation::AtLeast, 1), |k| {
            let to = k.peer(self.sums, "sums_there", 0)?;
            context.each_sum(k, acc, |k, sum, register| {
                let at = [self.rank.clone() - 1, group.into(), register, (&thread).into()];
                k.spec(Kind::Move, Operand::at(to, at), sum, one)
            })?;
            let there = k.peer(self.there, "all_there", 0)?;
            k.spec(Kind::Fence(Fence::Cluster), (), (), one)?;
            k.spec(Kind::Arrive(None), Operand::at(there, [0]), (), one)
        })
    }

    /// The first block adds what the others wrote.
    pub(super) fn add_up(
        &self,
        k: &mut Builder,
        context: &Context<'_>,
        acc: TensorId,
        [own, one]: [ThreadsId; 2],
        group: &Var,
    ) -> Result<()> {
        k.spec(Kind::Wait(Expr::from(0)), Operand::at(self.there, [0]), (), own)?;
        k.spec(Kind::Fence(Fence::Cluster), (), (), one)?;
        let [thread] = k.indices(own, ["thread"])?;
        for part in 0..self.parts - 1 {
            context.each_sum(k, acc, |k, sum, register| {
                let at = [part.into(), group.into(), register, (&thread).into()];
                let other =
                    k.allocate("other", View::buffer(&[]), Scalar::F32, Memory::Registers, None)?;
                k.spec(Kind::Move, other, Operand::at(self.sums, at), one)?;
                k.spec(Kind::Binary(Binary::Add), sum.clone(), [sum, other.into()], one)
            })?;
        }
        Ok(())
    }
}
