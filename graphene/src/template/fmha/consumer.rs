//! What consumers do; `products`: what tensor cores do for them.

mod products;

use super::context::Context;
use super::epilogue::Store;
use super::fragments::{clear, fragment, pack};
use super::scores::{Scorer, Spot};
use super::terms::Terms;
use super::tiles::Place;
use super::{GROUP, PRODUCER_REGISTERS, ROWS};
use crate::arch::registers_at_launch;
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{Group, Kind, Ring, TensorId, ThreadsId};
use crate::layout::{Layout, Tiler};
use crate::schedule::{
    OrderedBarrier, OrderedConsumer, Softmax, consumer_release, consumer_release_no_advance,
    consumer_wait, try_wait_next,
};
use crate::tensor::Scalar;

/// A consumer warpgroup.
pub(super) struct Consumer {
    pub(super) own: ThreadsId,
    /// Its number among the consumers.
    pub(super) group: Var,
    /// The own warp, and its number in the warpgroup.
    pub(super) warp: ThreadsId,
    pub(super) warp_in_group: Expr,
    /// The own lane's row and pair of columns in fragments of 8×8.
    pub(super) row: Expr,
    pub(super) column: Expr,
    /// All of the block's warps: the first lane of each arrives for it.
    elected_warps: ThreadsId,
    /// Rings of queries, keys and values.
    rings: [Ring; 3],
    /// Its place in the order of consumers, if there is one.
    order: Option<OrderedConsumer>,
    /// The scores of a tile, which become weights; these as operands; and the sums.
    scores: TensorId,
    weights: TensorId,
    sums: TensorId,
    softmax: Softmax,
}

impl Consumer {
    fn order_wait(&self, k: &mut Builder) -> Result<()> {
        self.order.as_ref().map_or(Ok(()), |order| order.wait(k))
    }

    fn order_arrive(&self, k: &mut Builder) -> Result<()> {
        self.order.as_ref().map_or(Ok(()), |order| order.arrive(k))
    }
}

impl Context<'_> {
    /// What each consumer warpgroup does.
    pub(super) fn consume(&self, k: &mut Builder) -> Result<()> {
        let fmha = self.fmha;
        let (own, group) = self.own(k)?;
        // What the block has at launch, but for what the producer keeps.
        let groups = fmha.consumers + 1;
        let all = groups * registers_at_launch(GROUP * groups);
        let budget = ((all - PRODUCER_REGISTERS) / fmha.consumers / 8 * 8).min(240);
        k.spec(Kind::Registers(budget), (), (), own)?;
        let consumer = self.consumer(k, own, group)?;
        let store = Store::new(k, self, &consumer)?;
        self.each_tile(k, |k, place| {
            let m = place.m.clone() * fmha.consumers + Expr::from(&consumer.group);
            let given = (&self.operands, self.mask);
            let tile = fmha.tile(k, given, ROWS, (place, &m), own)?;
            k.decompose(tile, |k| {
                consumer.softmax.begin(k)?;
                clear(k, consumer.sums, fmha.value_width(), self.one)?;
                consumer_wait(k, &self.pipelines[0], &consumer.rings[0], own)?;
                consumer.order_wait(k)?;
                self.begin_scores(k, &consumer)?;
                consumer.order_arrive(k)?;
                self.end_scores(k, &consumer, place, Expr::from(0))?;
                pack(k, consumer.scores, consumer.weights, fmha.keys, self.one)?;
                k.for_("step", Expr::from(1)..place.steps.clone(), 1, false, |k, step| {
                    consumer.order_wait(k)?;
                    self.begin_scores(k, &consumer)?;
                    consumer_wait(k, &self.pipelines[2], &consumer.rings[2], own)?;
                    self.rescale(k, &consumer)?;
                    self.begin_sums(k, &consumer)?;
                    consumer.order_arrive(k)?;
                    self.end_scores(k, &consumer, place, step.into())?;
                    // A wait for a stage is a branch, over which compilers bring no wait for sums. They do bring it over the
                    // exponentials, beside which there would be no product then. So these values are waited for twice.
                    if fmha.stages > 1 {
                        try_wait_next(k, &self.pipelines[2], &consumer.rings[2], own)?;
                    }
                    self.end_sums(k, &consumer)?;
                    pack(k, consumer.scores, consumer.weights, fmha.keys, self.one)
                })?;
                k.advance(&consumer.rings[0])?;
                consumer_wait(k, &self.pipelines[2], &consumer.rings[2], own)?;
                let several = Cond::new(place.steps.clone(), Relation::AtLeast, 2);
                k.if_(several, |k| self.rescale(k, &consumer))?;
                self.begin_sums(k, &consumer)?;
                self.end_sums(k, &consumer)?;
                consumer.softmax.finish(k, consumer.sums, fmha.value_width() / 8, fmha.guarded)?;
                store.tile(k, consumer.sums, place)
            })
        })?;
        store.finish(k)
    }

    fn consumer(&self, k: &mut Builder, own: ThreadsId, group: Var) -> Result<Consumer> {
        let fmha = self.fmha;
        let warps = k.tile(own, "warps", &[Tiler::Size(32)])?;
        let quads = k.reshape(warps, "quads", 1, &[&[(4, 1)], &[(8, 4)]])?;
        let [warp_in_group, column, row] = k.indices(quads, ["warp", "quad", "fragment"])?;
        let warp = k.index(warps, "warp", [&warp_in_group])?;
        let all = 4 * (fmha.consumers + 1);
        let elected_warps =
            k.tile(self.block, "lanes", &[Tiler::Layout(Layout::mode(all, 32)?)])?;
        let rings = [
            k.ring("using_q", 1)?,
            k.ring("using_k", fmha.stages)?,
            k.ring("using_v", fmha.stages)?,
        ];
        let begin = |order: OrderedBarrier| {
            order.begin(k, self.groups, (own, &group), elected_warps, self.one)
        };
        let order = self.order.map(begin).transpose()?;
        let scores = fragment(k, "scores", fmha.keys, Scalar::F32)?;
        let weights = fragment(k, "weights", fmha.keys, fmha.scalar)?;
        let sums = fragment(k, "acc", fmha.value_width(), Scalar::F32)?;
        Ok(Consumer {
            own,
            group,
            warp,
            warp_in_group: warp_in_group.into(),
            row: row.into(),
            column: column.into(),
            elected_warps,
            rings,
            order,
            scores,
            weights,
            sums,
            softmax: Softmax::new(k, fmha.units(), warp, self.one)?,
        })
    }

    fn consumer_release(&self, k: &mut Builder, consumer: &Consumer, which: usize) -> Result<()> {
        let (pipeline, ring) = (&self.pipelines[which], &consumer.rings[which]);
        consumer_release(k, pipeline, ring, consumer.elected_warps, self.one)
    }

    /// The scores of a step become weights. The last tile of keys comes first; a later one's products
    /// have those of weights and values behind them.
    fn end_scores(
        &self,
        k: &mut Builder,
        consumer: &Consumer,
        place: &Place,
        step: Expr,
    ) -> Result<()> {
        let last = step == Expr::from(0);
        let (scores, scorer) = (consumer.scores, self.scorer());
        let spot = self.spot(k, consumer, place, place.tile(step.clone()))?;
        let pending = i64::from(!last);
        k.spec(Kind::WaitGroup(Group::MatMul, pending, false), scores, (), consumer.own)?;
        // No product reads the queries any more: the next tile's come while this one is finished.
        k.if_(Cond::equal(step + 1, place.steps.clone()), |k| {
            consumer_release_no_advance(
                k,
                &self.pipelines[0],
                &consumer.rings[0],
                consumer.elected_warps,
                self.one,
            )
        })?;
        if let Some(terms) = self.terms {
            let stage = k.index(terms, "terms_at", [consumer.rings[1].stage()])?;
            scorer.adjust(k, scores, &spot, Some(&Terms::Made(stage)))?;
            // All lanes have read what the first of them gives back.
            k.spec(Kind::Sync, (), (), consumer.warp)?;
            self.consumer_release(k, consumer, 1)?;
        } else {
            self.consumer_release(k, consumer, 1)?;
            scorer.adjust(k, scores, &spot, None)?;
        }
        scorer.leave_out(k, scores, &spot, last)?;
        consumer.softmax.tile(k, scores, self.fmha.keys / 8)
    }

    pub(super) fn scorer(&self) -> Scorer<'_> {
        let Context { fmha, one, mask, .. } = *self;
        Scorer { fmha, one, mask, keys: &self.sizes.keys }
    }

    fn spot<'p>(
        &self,
        k: &mut Builder,
        consumer: &Consumer,
        place: &'p Place,
        tile: Expr,
    ) -> Result<Spot<'p>> {
        let tile = k.let_("tile", tile)?.into();
        let group = place.m.clone() * self.fmha.consumers + Expr::from(&consumer.group);
        let first = group * ROWS;
        let row = first.clone() + consumer.warp_in_group.clone() * 16 + &consumer.row;
        Ok(Spot { place, first, row, column: consumer.column.clone(), tile })
    }
}
