//! Split-K: blocks of a cluster that share a tile. Each multiplies its part of K. Then each finishes what some of a block's
//! warps have of the tile: the others hand it those warps' sums. So each receives a part, rather than one of them all of it.

use super::fragments::packed;
use super::matmul::{leaf, line};
use crate::schedule::vector;
use crate::{
    Binary, Builder, Cond, Expr, Fence, Header, Kind, Memory, Operand, Relation, Result, Scalar,
    Scope, TensorId, ThreadsId, WARP,
};

/// Neighbouring sums that move at once.
pub(super) const PAIR: i64 = 2;

/// The blocks that share a tile.
pub(super) struct Shares {
    pub(super) blocks: ThreadsId,
    /// Which of them the own one is.
    pub(super) rank: Expr,
    parts: i64,
    /// How many warps' part of the tile each finishes; some have none.
    own: i64,
    /// `[part, warp, pair, lane].[PAIR]`: the sums that other blocks have for these warps.
    sums: TensorId,
    /// `[warp]`: complete when all of them have come.
    there: TensorId,
}

/// Who has sums: a block's warps, and how many pairs of them each thread has.
#[derive(Clone, Copy)]
pub(super) struct Holders {
    pub(super) warps: i64,
    pub(super) pairs: i64,
}

/// What is done with the pair of sums of this number.
pub(super) type Visit<'a> = &'a dyn Fn(&mut Builder, TensorId, Expr) -> Result;

impl Holders {
    /// How many warps' sums each of so many blocks finishes.
    fn of_block(self, parts: i64) -> i64 {
        (self.warps + parts - 1) / parts
    }

    /// How many sums a warp has.
    fn of_warp(self) -> i64 {
        self.pairs * PAIR * WARP
    }

    /// Bytes of shared memory for what so many blocks hand over.
    pub(super) fn bytes(self, parts: i64) -> i64 {
        (parts - 1) * self.of_block(parts) * self.of_warp() * Scalar::F32.bytes()
    }
}

impl Shares {
    /// Allocates shared memory for sums, and lets one thread initialise its barriers. What follows must begin with a meeting of
    /// the blocks.
    pub(super) fn new(
        k: &mut Builder,
        parts: i64,
        holders: Holders,
        (blocks, rank): (ThreadsId, Expr),
        block: ThreadsId,
    ) -> Result<Shares> {
        let (own, of_warp) = (holders.of_block(parts), holders.of_warp());
        let outer = packed(&[parts - 1, own, holders.pairs, WARP], PAIR);
        let levels = [outer, vec![leaf(PAIR, 1)]];
        let sums = k.allocate("sums", levels, Scalar::F32, Memory::Shared, None)?;
        let there = k.allocate("there", line(own), Scalar::Mbar, Memory::Shared, None)?;
        k.role(block, 0..1, |k| {
            k.unroll("s", own, |k, s| {
                k.init(Operand::at(there, [s]), 1.0)?;
                let bytes = Expr::from((parts - 1) * of_warp * Scalar::F32.bytes());
                k.alone(Kind::Arrive(Some(bytes)), Operand::at(there, [s]), ())
            })?;
            k.alone(Kind::Fence(Fence::Init), (), ())
        })?;
        Ok(Shares { blocks, rank, parts, own, sums, there })
    }

    /// The own part of so many steps along K: where it begins, and how long it is.
    pub(super) fn steps(&self, all: &Expr) -> (Expr, Expr) {
        let part = all.ceil_div(self.parts);
        let first = self.rank.clone() * &part;
        let left = (all.clone() - first.clone()).max(0);
        (first, left.min(part))
    }

    /// Each warp hands its sums over to the block that finishes them; the same warp there adds them to its own, and goes on
    /// alone. The own one has this number among those that have sums; `each` goes through the pairs of a thread's sums and
    /// their numbers.
    pub(super) fn add_up(
        &self,
        k: &mut Builder,
        (own, number): (ThreadsId, &Expr),
        each: impl Fn(&mut Builder, Visit<'_>) -> Result,
        go_on: impl FnOnce(&mut Builder) -> Result,
    ) -> Result {
        // The block that finishes them, and which of its warps; how many blocks behind that one the own is, in a circle.
        let (block, warp) = (number.div(self.own), number.rem(self.own));
        let behind = (self.rank.clone() + self.parts - block.clone()).rem(self.parts);
        let [lane] = k.indices(own, ["lane"])?;
        let at = |part: Expr, pair: Expr| [part, warp.clone(), pair, Expr::from(&lane)];
        k.if_(Cond::new(behind.clone(), Relation::AtLeast, 1), |k| {
            // Sends the sums to the memory of another block, whose barrier learns of them.
            let sums = k.peer(self.sums, "sums_there", block.clone())?;
            let there = k.peer(self.there, "all_there", block.clone())?;
            let there = Operand::at(there, [warp.clone()]);
            each(k, &|k, pair, number| {
                let to = Operand::at(sums, at(behind.clone() - 1, number));
                k.add(Header::alone(Kind::Move, to, pair).signals(there.clone()))
            })
        })?;
        k.if_(Cond::equal(behind.clone(), 0), |k| {
            let there = Operand::at(self.there, [warp.clone()]);
            k.spec(Kind::Wait(Expr::from(0), Scope::Cluster), there, (), own)?;
            for part in 0..self.parts - 1 {
                each(k, &|k, pair, number| {
                    let come = vector(k, "come", PAIR, Scalar::F32)?;
                    k.move_(come, Operand::at(self.sums, at(part.into(), number)))?;
                    k.unroll("p", PAIR, |k, p| {
                        let [sum, other] = [pair, come].map(|tensor| Operand::at(tensor, [p]));
                        k.binary(Binary::Add, sum.clone(), [sum, other])
                    })
                })?;
            }
            go_on(k)
        })
    }
}
