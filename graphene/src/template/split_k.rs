//! Split-K: blocks of a cluster that share a tile. Each has its part of K, and the first one adds their sums.

use super::product::leaf;
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr, Relation};
use crate::kernel::{Binary, Fence, Kind, Number, Operand, TensorId, ThreadsId};
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

/// Who has sums: groups of a block's threads, and how many of them each thread has.
#[derive(Clone, Copy)]
pub(super) struct Holders {
    pub(super) groups: i64,
    pub(super) threads: i64,
    pub(super) registers: i64,
}

/// A thread's sums.
pub(super) struct Held<'a> {
    /// The number of the thread's group, and its own in the group.
    pub(super) thread: [Expr; 2],
    pub(super) one: ThreadsId,
    /// Goes through the sums and their numbers.
    pub(super) each: &'a dyn Fn(&mut Builder, Visit<'_>) -> Result<()>,
}

/// What is done with a sum of this number.
pub(super) type Visit<'a> = &'a dyn Fn(&mut Builder, Operand, Expr) -> Result<()>;

impl Shares {
    /// Allocates the room for sums, and lets one thread initialise its barrier. What follows must begin with a meeting of
    /// the blocks.
    pub(super) fn new(
        k: &mut Builder,
        parts: i64,
        Holders { groups, threads, registers }: Holders,
        blocks: ThreadsId,
        rank: Expr,
        block: ThreadsId,
    ) -> Result<Shares> {
        let others = parts - 1;
        let room = View::buffer(&[
            leaf(others, groups * registers * threads),
            leaf(groups, registers * threads),
            leaf(registers, threads),
            leaf(threads, 1),
        ]);
        let sums = k.allocate("sums", room, Scalar::F32, Memory::Shared, None)?;
        let one = View::buffer(&[leaf(1, 1)]);
        let there = k.allocate("there", one, Scalar::Mbar, Memory::Shared, None)?;
        let first = k.scalar(block, "one")?;
        k.role(block, 0..1, |k| {
            let arrivals = Number((others * groups * threads) as f64);
            k.spec(Kind::Init(arrivals), Operand::at(there, [0]), (), first)?;
            k.spec(Kind::Fence(Fence::Init), (), (), first)
        })?;
        Ok(Shares { blocks, rank, parts, sums, there })
    }

    /// The own part of so many steps along K: where it begins, and how long it is.
    pub(super) fn steps(&self, all: &Expr) -> (Expr, Expr) {
        let part = all.ceil_div(&Expr::from(self.parts));
        let first = self.rank.clone() * &part;
        let left = (all.clone() - first.clone()).max(Expr::from(0));
        (first, left.min(part))
    }

    /// All blocks but the first hand their sums over; the first adds them to its own, those of the threads of `group`, and
    /// goes on.
    pub(super) fn add_up(
        &self,
        k: &mut Builder,
        held: &Held<'_>,
        group: ThreadsId,
        go_on: impl FnOnce(&mut Builder) -> Result<()>,
    ) -> Result<()> {
        k.if_(Cond::new(self.rank.clone(), Relation::AtLeast, 1), |k| self.hand_over(k, held))?;
        k.if_(Cond::equal(self.rank.clone(), 0), |k| {
            self.add(k, held, group)?;
            go_on(k)
        })
    }

    /// Writes the sums into the first block's memory.
    fn hand_over(&self, k: &mut Builder, held: &Held<'_>) -> Result<()> {
        let to = k.peer(self.sums, "sums_there", 0)?;
        let part = self.rank.clone() - 1;
        (held.each)(k, &|k, sum, register| {
            let at = held.at(part.clone(), register);
            k.spec(Kind::Move, Operand::at(to, at), sum, held.one)
        })?;
        let there = k.peer(self.there, "all_there", 0)?;
        k.spec(Kind::Fence(Fence::Cluster), (), (), held.one)?;
        k.spec(Kind::Arrive(None), Operand::at(there, [0]), (), held.one)
    }

    /// Adds what the others wrote.
    fn add(&self, k: &mut Builder, held: &Held<'_>, group: ThreadsId) -> Result<()> {
        k.spec(Kind::Wait(Expr::from(0)), Operand::at(self.there, [0]), (), group)?;
        k.spec(Kind::Fence(Fence::Cluster), (), (), held.one)?;
        for part in 0..self.parts - 1 {
            (held.each)(k, &|k, sum, register| {
                let at = held.at(part.into(), register);
                let other =
                    k.allocate("other", View::buffer(&[]), Scalar::F32, Memory::Registers, None)?;
                k.spec(Kind::Move, other, Operand::at(self.sums, at), held.one)?;
                k.spec(Kind::Binary(Binary::Add), sum.clone(), [sum, other.into()], held.one)
            })?;
        }
        Ok(())
    }
}

impl Held<'_> {
    fn at(&self, part: Expr, register: Expr) -> [Expr; 4] {
        let [group, thread] = self.thread.clone();
        [part, group, register, thread]
    }
}
