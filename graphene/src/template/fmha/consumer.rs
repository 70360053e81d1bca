//! What consumers do: the matmuls of queries and keys, and of weights and values, what happens between them, and how the
//! result leaves.

use super::scores::{Spot, Terms};
use super::{Context, Given, PRODUCER_REGISTERS, ROWS, context::Place};
use crate::schedule::{OrderedConsumer, PipelineState, Softmax, Spread};
use crate::template::fragments::{
    Lane, Matrices, await_tma, clear, consumer_registers, elected_warps, fragment, leave_by_tma,
    matrix_fragment, own_group,
};
use crate::template::matmul::tile_of;
use crate::{
    Builder, Cond, Expr, Fence, Group, Header, Kind, Operand, Relation, Result, Scalar, TensorId,
    ThreadsId, Tiler, Var,
};

struct Consumer<'a> {
    context: &'a Context<'a>,
    own: ThreadsId,
    /// Its number among the consumers.
    group: Var,
    lane: Lane,
    elected_warps: ThreadsId,
    /// Of queries, keys and values.
    states: [PipelineState; 3],
    order: OrderedConsumer,
    /// The scores of a tile, which become weights; these as operands; and the sums.
    scores: TensorId,
    weights: TensorId,
    sums: TensorId,
    softmax: Softmax,
    /// How its rows leave: `[group].[64, dim]` in shared memory, and O in panels of 64 rows.
    buffers: TensorId,
    leaving: TensorId,
    matrices: Matrices,
}

pub(super) fn consume(context: &Context<'_>, k: &mut Builder) -> Result {
    let consumer = Consumer::new(k, context)?;
    context.given.each_tile(k, |k, place| {
        let (tile, ins) = place.computed(k, ROWS, &consumer.m(place), consumer.own)?;
        k.decompose(tile, |k| {
            consumer.attend(k, place, &ins)?;
            consumer.leave(k, place)
        })
    })?;
    await_tma(k, consumer.own, 0)
}

impl<'a> Consumer<'a> {
    fn new(k: &mut Builder, context: &'a Context<'a>) -> Result<Consumer<'a>> {
        let Given { fmha, params, .. } = *context.given;
        let (own, group) = own_group(k, context.groups)?;
        let registers = consumer_registers(fmha.consumers, PRODUCER_REGISTERS);
        k.spec(Kind::Registers(registers), (), (), own)?;
        let lane = Lane::new(k, own)?;
        let elected_warps = elected_warps(k, context.given.block, fmha.consumers)?;
        let [q, key, value] = context.pipelines;
        let panels = fmha.panels(3);
        let tiles = [1, 1, ROWS, panels.width()].map(Tiler::Size);
        Ok(Consumer {
            context,
            own,
            elected_warps,
            states: [q.begin(k, "using_q")?, key.begin(k, "using_k")?, value.begin(k, "using_v")?],
            order: context.order.begin(k, context.groups, (own, &group), elected_warps)?,
            group,
            scores: fragment(k, "scores", fmha.keys / 8, Scalar::F32)?,
            weights: fragment(k, "weights", fmha.keys / 8, fmha.scalar)?,
            sums: fragment(k, "acc", fmha.value_width() / 8, Scalar::F32)?,
            softmax: Softmax::new(k, fmha.units(), Spread::TwoRows, [own, lane.warp])?,
            buffers: panels.allocate(k, "sO", &[fmha.consumers], false)?,
            leaving: k.tile(params[3], "gO", &tiles)?,
            matrices: Matrices::new(k, lane.warp)?,
            lane,
        })
    }

    /// The number of the own tile of 64 queries.
    fn m(&self, place: &Place<'_>) -> Expr {
        place.m.clone() * place.given.fmha.consumers + Expr::from(&self.group)
    }

    /// Goes through the keys and values of a tile of queries.
    fn attend(&self, k: &mut Builder, place: &Place<'_>, ins: &[TensorId]) -> Result {
        let fmha = place.given.fmha;
        self.softmax.begin(k)?;
        clear(k, self.sums, fmha.value_width() / 8)?;
        self.states[0].consumer_wait(k, self.own)?;
        self.order.wait(k)?;
        self.begin_scores(k)?;
        self.order.arrive(k)?;
        self.end_scores(k, place, Expr::from(0))?;
        let packed = Header::new(Kind::Move, self.weights, self.scores, self.own);
        k.decompose(packed.clone(), |k| fmha.pack(k, self.scores, self.weights))?;
        let state = (&self.softmax, self.sums, Some(self.weights));
        let carry = k.carry("step", (&place.steps, &1.into()), |_, step| {
            Ok(vec![place.carried(step, (ins, self.m(place) * ROWS), state, self.own)])
        })?;
        let steps = Expr::from(1)..place.steps.clone();
        k.for_carrying("step", steps, (1, false), carry, |k, step| {
            self.order.wait(k)?;
            self.begin_scores(k)?;
            self.states[2].consumer_wait(k, self.own)?;
            // Behind the wait for values all matmuls of queries and keys have begun.
            self.softmax.rescale(k, self.sums, fmha.value_width() / 8)?;
            self.begin_sums(k)?;
            self.order.arrive(k)?;
            self.end_scores(k, place, step.into())?;
            // A wait for a stage is a branch, over which compilers bring no wait for sums. They do bring it over the
            // exponentials, beside which there would be no matmul then. So these values are waited for twice.
            if fmha.stages > 1 {
                self.states[2].try_wait_next(k, self.own)?;
            }
            self.end_sums(k)?;
            k.decompose(packed, |k| fmha.pack(k, self.scores, self.weights))
        })?;
        k.advance(&self.states[0].ring)?;
        self.states[2].consumer_wait(k, self.own)?;
        let several = Cond::new(place.steps.clone(), Relation::AtLeast, 2);
        k.if_(several, |k| self.softmax.rescale(k, self.sums, fmha.value_width() / 8))?;
        self.begin_sums(k)?;
        self.end_sums(k)?;
        self.softmax.finish(k, self.sums, fmha.value_width() / 8, fmha.guarded)
    }

    /// The matmul of queries and the next stage's keys, a group of its own.
    fn begin_scores(&self, k: &mut Builder) -> Result {
        let Consumer { context, own, scores, group, .. } = self;
        let stage = self.states[1].consumer_wait(k, self.own)?;
        let own_rows = [Tiler::Size(ROWS), Tiler::Whole];
        let queries = context.shared[0];
        let own_q = tile_of(k, queries, "own_q", &own_rows, [&group.into(), &0.into()])?;
        let b = k.index(context.shared[1], "b", [&stage])?;
        k.decompose(Header::new(Kind::MATMUL, *scores, [own_q, b], *own), |k| {
            let a = k.tile(queries, "a", &[Tiler::Size(ROWS), Tiler::Size(16)])?;
            let b = k.tile(b, "b", &[Tiler::Size(16), Tiler::Whole])?;
            k.spec(Kind::Fence(Fence::MatMul), *scores, (), *own)?;
            let matmul = |k: &mut Builder, kind: Kind, kk: Expr| {
                let a = Operand::at(a, [Expr::from(group), kk.clone()]);
                let b = Operand::at(b, [kk, Expr::from(0)]);
                k.add(Header::new(kind, *scores, [a, b], *own).async_())
            };
            matmul(k, Kind::MATMUL, Expr::from(0))?;
            k.for_("kk", 1..context.given.fmha.head_width() / 16, 1, true, |k, kk| {
                matmul(k, Kind::MATMUL_ADD, kk.into())
            })?;
            k.spec(Kind::Commit(Group::MatMul), (), (), *own)
        })
    }

    /// The scores of a step become weights. The last tile of keys comes first; a later one's matmul
    /// has that of weights and values behind it.
    fn end_scores(&self, k: &mut Builder, place: &Place<'_>, step: Expr) -> Result {
        let Consumer { context, scores, elected_warps, .. } = *self;
        let last = step == Expr::from(0);
        let tile = k.let_("tile", place.tile(step.clone()))?.into();
        let first = self.m(place) * ROWS;
        let row = first.clone() + self.lane.number.clone() * 16 + &self.lane.row;
        let spot = Spot { place, first, row, column: self.lane.column.clone(), tile };
        let pending = i64::from(!last);
        k.spec(Kind::WaitGroup(Group::MatMul, pending, false), scores, (), self.own)?;
        // No matmul reads the queries any more: the next tile's come while this one is finished.
        let ends = Cond::equal(step + 1, place.steps.clone());
        k.if_(ends, |k| self.states[0].consumer_release_no_advance(k, elected_warps))?;
        if let Some(terms) = context.terms {
            let stage = k.index(terms, "terms_at", [self.states[1].ring.stage()])?;
            spot.adjust(k, scores, Some(Terms::Made(stage)))?;
            // All lanes have read what the first of them gives back.
            k.spec(Kind::Sync, (), (), self.lane.warp)?;
            self.states[1].consumer_release(k, self.elected_warps)?;
        } else {
            self.states[1].consumer_release(k, self.elected_warps)?;
            spot.adjust(k, scores, None)?;
        }
        spot.leave_out(k, scores, last)?;
        self.softmax.tile(k, scores, place.given.fmha.keys / 8)
    }

    /// The matmul of weights and the values of the stage that is there, a group of its own.
    fn begin_sums(&self, k: &mut Builder) -> Result {
        let Consumer { context, own, weights, sums, states, .. } = self;
        let b = k.index(context.shared[2], "b", [&states[2].ring.stage()])?;
        k.decompose(Header::new(Kind::MATMUL_ADD, *sums, [*weights, b], *own), |k| {
            let a = k.tile(*weights, "a", &[Tiler::Whole, Tiler::Size(2)])?;
            let b = k.tile(b, "b", &[Tiler::Size(16), Tiler::Whole])?;
            k.spec(Kind::Fence(Fence::MatMul), *sums, (), *own)?;
            k.unroll("kk", context.given.fmha.keys / 16, |k, kk| {
                let a = Operand::at(a, [Expr::from(0), Expr::from(kk)]);
                let b = Operand::at(b, [Expr::from(kk), Expr::from(0)]);
                k.add(Header::new(Kind::MATMUL_ADD, *sums, [a, b], *own).async_())
            })?;
            k.spec(Kind::Commit(Group::MatMul), (), (), *own)
        })
    }

    fn end_sums(&self, k: &mut Builder) -> Result {
        k.spec(Kind::WaitGroup(Group::MatMul, 0, false), self.sums, (), self.own)?;
        self.states[2].consumer_release(k, self.elected_warps)
    }

    /// A tile's rows leave; what is still being read out of shared memory then must not outlive the block.
    fn leave(&self, k: &mut Builder, place: &Place<'_>) -> Result {
        let fmha = place.given.fmha;
        let (own, panels, m) = (self.own, fmha.panels(3), self.m(place));
        let rows = place.rows(k, 3, ROWS, &m)?;
        k.decompose(Header::new(Kind::Move, rows, self.sums, own), |k| {
            let buffer = k.index(self.buffers, "buffer", [&self.group])?;
            // The store of the tile before has been read.
            await_tma(k, own, 0)?;
            k.spec(Kind::Sync, (), (), own)?;
            self.matrices.store(k, &self.lane, buffer, panels.columns, |k, strip, _| {
                let narrow = matrix_fragment(k, "halves", fmha.scalar)?;
                for (half, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let at = [Expr::from(half), strip.clone() * 2 + j];
                    let sums = Operand::at(self.sums, at);
                    k.move_(Operand::at(narrow, [half, j]), sums)?;
                }
                Ok(narrow)
            })?;
            leave_by_tma(k, own, |k| {
                let tiles = [Tiler::Whole, Tiler::Size(panels.width())];
                let from = k.tile(buffer, "leaving", &tiles)?;
                (0..panels.count()).try_for_each(|i| {
                    let to = Operand::at(self.leaving, place.at(3, m.clone(), i.into()));
                    let from = Operand::at(from, [0, i]);
                    k.add(Header::alone(Kind::Move, to, from).async_())
                })
            })
        })
    }
}
