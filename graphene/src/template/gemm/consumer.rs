//! The matmuls of consumers.

use super::{Context, DEPTH, ROWS, STEP, epilogue::Store};
use crate::schedule::matmul::{epilog, load};
use crate::schedule::{OrderedConsumer, PipelineState, each};
use crate::template::fragments::{await_tma, clear, each_pair, elected_warps, fragment, own_group};
use crate::template::{matmul::tile_of, split_k::Visit};
use crate::{
    Builder, Cond, Expr, Fence, Group, Header, Kind, Operand, Relation, Result, Scalar, TensorId,
    ThreadsId, Tiler, Var,
};

/// A consumer warpgroup.
struct Consumer<'a> {
    context: &'a Context<'a>,
    own: ThreadsId,
    group: Var,
    /// Its sums, in the order of the instruction's registers, one 64 rows after the other.
    acc: TensorId,
    /// One elected lane of every warp.
    lanes: ThreadsId,
    state: PipelineState,
    /// The barriers of stages that are left.
    empty: Vec<TensorId>,
}

/// What each consumer warpgroup does.
pub(super) fn consume(context: &Context<'_>, k: &mut Builder) -> Result {
    let gemm = context.gemm;
    let consumer = Consumer::new(k, context)?;
    let (own, acc, eights) = (consumer.own, consumer.acc, gemm.registers() / 4);
    let store = Store::new(k, context, own, &consumer.group)?;
    let (mut first, mut stride) = (context.first.clone(), context.stride.clone());
    let order = context.order.begin(k, context.groups, (own, &consumer.group), consumer.lanes)?;
    if gemm.ping_pong {
        consumer.skip(k, Expr::from(&consumer.group))?;
        first = first + stride.clone() * &consumer.group;
        stride = stride * gemm.consumers;
    }
    context.each_tile(k, first, stride, |k, _, place| {
        let mut own_rows = place.clone();
        if !gemm.ping_pong {
            own_rows.m = own_rows.m * gemm.consumers + &consumer.group;
        }
        let tile = context.declared.tile(k, [ROWS * gemm.strips, gemm.width()], &own_rows)?;
        let multiply = |k: &mut Builder| consumer.multiply(k, &order);
        let shares = context.shares.as_ref();
        k.decompose(tile.header(own).on(shares.map(|shares| shares.blocks)), |k| {
            let ahead = store.ask(k, place)?;
            let Some(shares) = shares else {
                let sums = gemm.matmul.sums(k, acc, gemm.strips)?;
                return epilog(k, tile.sums(&sums, own), multiply, |k| {
                    if gemm.ping_pong {
                        consumer.skip(k, Expr::from(gemm.consumers - 1))?;
                    }
                    store.await_rows(k)?;
                    store.tile(k, acc, &ahead)
                });
            };
            multiply(k)?;
            store.await_rows(k)?;
            let number = Expr::from(&consumer.group) * 4 + &store.lane.number;
            let each = |k: &mut Builder, visit: Visit<'_>| each_pair(k, acc, eights, visit);
            let warp = (store.lane.warp, &number);
            shares.add_up(k, warp, each, |k| store.tile(k, acc, &ahead))
        })
    })?;
    // What is still being read out of shared memory must not outlive the block.
    if store.by_panels.is_empty() { Ok(()) } else { await_tma(k, own, 0) }
}

impl<'a> Consumer<'a> {
    fn new(k: &mut Builder, context: &'a Context<'a>) -> Result<Consumer<'a>> {
        let gemm = context.gemm;
        let (own, group) = own_group(k, context.groups)?;
        if !gemm.is_light() {
            k.spec(Kind::Registers(gemm.budget()), (), (), own)?;
        }
        let acc = fragment(k, "acc", gemm.registers() / 4, Scalar::F32)?;
        let lanes = elected_warps(k, context.block, gemm.consumers)?;
        let state = context.pipeline.begin(k, "using")?;
        // Both blocks of a cluster fill a stage, and wait until both have left it.
        let mut empty = vec![context.pipeline.empty];
        if let Some((_, rank)) = &context.pair {
            empty.push(k.peer(empty[0], "empty_there", Expr::from(1) - rank)?);
        }
        Ok(Consumer { context, own, group, acc, lanes, state, empty })
    }

    /// Passes the stages of so many tiles by, which are others'.
    fn skip(&self, k: &mut Builder, tiles: Expr) -> Result {
        let steps = self.context.all_steps() * tiles;
        k.for_("skipped", Expr::from(0)..steps, 1, false, |k, _| k.advance(&self.state.ring))
    }

    /// The sums of a tile's matmuls; the next consumer may multiply when all of them have been issued.
    fn multiply(&self, k: &mut Builder, order: &OrderedConsumer) -> Result {
        let Consumer { context, own, acc, state, .. } = self;
        let steps = context.all_steps();
        clear(k, *acc, context.gemm.registers() / 4)?;
        order.wait(k)?;
        k.for_("k", Expr::from(0)..steps.clone(), 1, false, |k, step| {
            let stage = state.consumer_wait(k, *own)?;
            self.stage(k, &stage)?;
            k.spec(Kind::WaitGroup(Group::MatMul, 1, false), *acc, (), *own)?;
            k.if_(Cond::new(step, Relation::AtLeast, 1), |k| self.release_previous(k))?;
            k.advance(&state.ring)
        })?;
        order.arrive(k)?;
        k.spec(Kind::WaitGroup(Group::MatMul, 0, false), *acc, (), *own)?;
        k.if_(Cond::new(steps, Relation::AtLeast, 1), |k| self.release_previous(k))
    }

    /// Releases the stage before the one that is next.
    fn release_previous(&self, k: &mut Builder) -> Result {
        k.role(self.lanes, 0..1, |k| {
            self.empty.iter().try_for_each(|&empty| {
                k.alone(Kind::Arrive(None), Operand::at(empty, [self.state.previous()]), ())
            })
        })
    }

    /// The matmuls of one stage, a group of their own.
    fn stage(&self, k: &mut Builder, stage: &Var) -> Result {
        let Consumer { context, own: threads, acc, .. } = self;
        let (gemm, [a, b]) = (context.gemm, context.shared);
        let along = STEP / gemm.matmul.scalar.bytes();
        let a = k.index(a, "a", [stage])?;
        let near = |k: &mut Builder| {
            let rows = [Tiler::Size(ROWS * gemm.strips), Tiler::Whole];
            let own = context.first_strip(&self.group).div(gemm.strips);
            let own_a = tile_of(k, a, "own_a", &rows, [&own, &Expr::from(0)])?;
            Ok([own_a, k.index(b, "b", [stage])?])
        };
        load(k, *acc, *threads, near, |k, near| {
            let a = k.tile(a, "a", &[Tiler::Size(ROWS), Tiler::Size(along)])?;
            let b = k.tile(near.b, "b", &[Tiler::Size(along), Tiler::Whole])?;
            let sums = k.tile(*acc, "strips", &[Tiler::Whole, Tiler::Size(gemm.columns / 8)])?;
            k.spec(Kind::Fence(Fence::MatMul), *acc, (), *threads)?;
            k.unroll("kk", DEPTH / STEP, |k, kk| {
                each(k, gemm.strips, |k, strip| {
                    let row = context.first_strip(&self.group) + &strip;
                    let a = Operand::at(a, [row, kk.into()]);
                    let b = Operand::at(b, [Expr::from(kk), Expr::from(0)]);
                    let sums = Operand::at(sums, [Expr::from(0), strip]);
                    k.add(Header::new(Kind::MATMUL_ADD, sums, [a, b], *threads).async_())
                })
            })?;
            k.spec(Kind::Commit(Group::MatMul), (), (), *threads)
        })
    }
}
