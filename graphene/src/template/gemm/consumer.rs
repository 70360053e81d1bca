//! The products.

use super::epilogue::Store;
use super::{Context, DEPTH, GROUP, ROWS};
use crate::arch::registers_at_launch;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{Fence, Group, Kind, Number, Operand, TensorId, ThreadsId};
use crate::schedule::consume;
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, Tile, View};

impl Context<'_> {
    /// What each consumer warpgroup does.
    pub(super) fn consume(&self, k: &mut Builder) -> Result<()> {
        let gemm = self.gemm;
        let (own, group) = self.own(k)?;
        // What the block has at launch, but for what the producer keeps.
        let groups = gemm.consumers + 1;
        let all = groups * registers_at_launch(GROUP * groups);
        let budget = ((all - self.producer_registers()) / gemm.consumers / 8 * 8).min(232);
        k.spec(Kind::Registers(budget), (), (), own)?;
        let n = gemm.columns / 8;
        let fragment = View::levels_of(&[vec![leaf(2, 2), leaf(n, 4)], vec![leaf(2, 1)]]);
        let acc = k.allocate("acc", fragment, Scalar::F32, Memory::Registers, None)?;
        // One lane of every warp speaks for it.
        let warps = 4 * (gemm.consumers + 1);
        let lanes = k.tile(self.block, "lanes", &[Tile::Modes(vec![(warps, 32)])])?;
        let ring = k.ring("using", gemm.stages)?;
        let stages = Expr::from(gemm.stages);
        // Both blocks of a cluster fill a stage, and wait until both have left it.
        let mut empty = vec![self.pipeline.empty];
        if let Some((_, rank)) = &self.pair {
            empty.push(k.peer(empty[0], "empty_there", Expr::from(1) - rank)?);
        }
        let release = |k: &mut Builder, stage: Expr| {
            k.role(lanes, 0..1, |k| {
                empty.iter().try_for_each(|&empty| {
                    let empty = Operand::at(empty, [stage.clone()]);
                    k.spec(Kind::Arrive(None), empty, (), self.one)
                })
            })
        };
        let store = Store::new(k, self, own, &group)?;
        self.each_tile(k, |k, place| {
            self.clear(k, acc)?;
            let steps = match &self.shares {
                Some(shares) => shares.steps(&self.steps[0]).1,
                None => self.steps.iter().fold(Expr::from(0), |all, steps| all + steps),
            };
            k.for_("k", Expr::from(0)..steps.clone(), 1, false, |k, step| {
                let work = |k: &mut Builder, stage: &Var| {
                    self.multiply(k, acc, own, &group, stage)?;
                    k.spec(Kind::WaitGroup(Group::MatMul, 1, false), acc, (), own)
                };
                consume(k, &self.pipeline, &ring, own, step, work, release)
            })?;
            k.spec(Kind::WaitGroup(Group::MatMul, 0, false), acc, (), own)?;
            k.if_(vec![Cond::new(steps, Relation::AtLeast, 1)], |k| {
                let last = Expr::from(ring.stage()) + (gemm.stages - 1);
                release(k, last.rem(&stages))
            })?;
            let Some(shares) = &self.shares else { return store.tile(k, acc, place) };
            shares.hand_over(k, self, acc, [own, self.one], &group)?;
            k.if_(Cond::equal(shares.rank.clone(), 0), |k| {
                shares.add_up(k, self, acc, [own, self.one], &group)?;
                store.tile(k, acc, place)
            })
        })?;
        store.finish(k)
    }

    fn clear(&self, k: &mut Builder, acc: TensorId) -> Result<()> {
        k.for_("j", 0..self.gemm.columns / 8, 1, true, |k, j| {
            k.for_("half", 0..2, 1, true, |k, half| {
                let pair = k.index(acc, "pair", [half, j])?;
                k.for_("p", 0..2, 1, true, |k, p| {
                    k.spec(Kind::Init(Number(0.0)), Operand::at(pair, [p]), (), self.one)
                })
            })
        })
    }

    /// The products of one stage, a group of their own.
    fn multiply(
        &self,
        k: &mut Builder,
        acc: TensorId,
        own: ThreadsId,
        group: &Var,
        stage: &Var,
    ) -> Result<()> {
        let [a, b] = self.shared;
        let a = k.index(a, "a", [stage])?;
        let a = k.tile(a, "a", &[Tile::of(ROWS), Tile::of(16)])?;
        let b = k.index(b, "b", [stage])?;
        let b = k.tile(b, "b", &[Tile::of(16), Tile::Whole])?;
        k.spec(Kind::Fence(Fence::MatMul), acc, (), own)?;
        k.for_("kk", 0..DEPTH / 16, 1, true, |k, kk| {
            let a = Operand::at(a, [group, kk]);
            let b = Operand::at(b, [Expr::from(kk), Expr::from(0)]);
            k.add(Header::new(Kind::MatMul, acc, [a, b], own).async_())
        })?;
        k.spec(Kind::Commit(Group::MatMul), (), (), own)
    }
}
