//! The products of queries and keys, and of weights and values.

use super::Consumer;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{Fence, Group, Kind, Operand};
use crate::layout::Tiler;
use crate::schedule::consumer_wait;
use crate::template::fmha::ROWS;
use crate::template::fmha::context::Context;
use crate::template::product::tile_of;

impl Context<'_> {
    /// The products of queries and keys of the next stage, a group of their own.
    pub(super) fn begin_scores(&self, k: &mut Builder, consumer: &Consumer) -> Result<()> {
        let Consumer { own, group, scores, rings, .. } = consumer;
        let stage = consumer_wait(k, &self.pipelines[1], &rings[1], *own)?;
        let own_rows = [Tiler::Size(ROWS), Tiler::Whole];
        let own_q = tile_of(k, self.shared[0], "own_q", &own_rows, [&group.into(), &0.into()])?;
        let b = k.index(self.shared[1], "b", [&stage])?;
        k.decompose(Header::new(Kind::MATMUL, *scores, [own_q, b], *own), |k| {
            let a = k.tile(self.shared[0], "a", &[Tiler::Size(ROWS), Tiler::Size(16)])?;
            let b = k.tile(b, "b", &[Tiler::Size(16), Tiler::Whole])?;
            k.spec(Kind::Fence(Fence::MatMul), *scores, (), *own)?;
            let product = |k: &mut Builder, kind: Kind, kk: Expr| {
                let a = Operand::at(a, [Expr::from(group), kk.clone()]);
                let b = Operand::at(b, [kk, Expr::from(0)]);
                k.add(Header::new(kind, *scores, [a, b], *own).async_())
            };
            product(k, Kind::MATMUL, Expr::from(0))?;
            k.for_("kk", 1..self.fmha.head_width() / 16, 1, true, |k, kk| {
                product(k, Kind::MATMUL_ADD, kk.into())
            })?;
            k.spec(Kind::Commit(Group::MatMul), (), (), *own)
        })
    }

    /// What was summed before gets its factor. In the loop that stands behind the wait for values, so that all products of
    /// queries and keys have begun.
    pub(super) fn rescale(&self, k: &mut Builder, consumer: &Consumer) -> Result<()> {
        consumer.softmax.rescale(k, consumer.sums, self.fmha.value_width() / 8)
    }

    /// The products of weights and values of the stage that is there, a group of their own.
    pub(super) fn begin_sums(&self, k: &mut Builder, consumer: &Consumer) -> Result<()> {
        let Consumer { own, weights, sums, rings, .. } = consumer;
        let b = k.index(self.shared[2], "b", [&rings[2].stage()])?;
        k.decompose(Header::new(Kind::MATMUL_ADD, *sums, [*weights, b], *own), |k| {
            let a = k.tile(*weights, "a", &[Tiler::Whole, Tiler::Size(2)])?;
            let b = k.tile(b, "b", &[Tiler::Size(16), Tiler::Whole])?;
            k.spec(Kind::Fence(Fence::MatMul), *sums, (), *own)?;
            k.for_("kk", 0..self.fmha.keys / 16, 1, true, |k, kk| {
                let a = Operand::at(a, [Expr::from(0), Expr::from(kk)]);
                let b = Operand::at(b, [Expr::from(kk), Expr::from(0)]);
                k.add(Header::new(Kind::MATMUL_ADD, *sums, [a, b], *own).async_())
            })?;
            k.spec(Kind::Commit(Group::MatMul), (), (), *own)
        })
    }

    pub(super) fn end_sums(&self, k: &mut Builder, consumer: &Consumer) -> Result<()> {
        let wait = Kind::WaitGroup(Group::MatMul, 0, false);
        k.spec(wait, consumer.sums, (), consumer.own)?;
        self.consumer_release(k, consumer, 2)
    }
}
