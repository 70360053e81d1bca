//! What the parts of a kernel for Hopper share: stages of tiles in shared memory, and their barriers; and all kernels' walk over
//! tiles of queries.

use super::{Fmha, GROUP, Given, Mask, WARP};
use crate::schedule::{OrderedBarrier, Pipeline};
use crate::template::matmul::{leaf, tile_of};
use crate::{Builder, Expr, Kind, Memory, Result, Scalar, TensorId, ThreadsId, Tiler, View};

pub(super) struct Context<'a> {
    pub(super) given: &'a Given<'a>,
    pub(super) groups: ThreadsId,
    /// Queries, keys and values: their barriers, and where they lie in shared memory:
    /// `[rows, dim]`, `[stages].[dim, keys]`, `[stages].[keys, dim]`.
    pub(super) pipelines: [Pipeline; 3],
    pub(super) order: OrderedBarrier,
    pub(super) shared: [TensorId; 3],
    /// Of a mask of one element a key: `[stages].[keys]`, its [terms](super::scores::term), in the stages of the keys.
    pub(super) terms: Option<TensorId>,
}

impl<'a> Context<'a> {
    pub(super) fn new(k: &mut Builder, given: &'a Given<'_>) -> Result<Context<'a>> {
        let (fmha, block) = (given.fmha, given.block);
        let Fmha { consumers, stages, keys, .. } = *fmha;
        let groups = k.tile(block, "warpgroups", &[Tiler::Size(GROUP)])?;
        let shared = [
            fmha.panels(0).allocate(k, "sQ", &[], false)?,
            fmha.panels(1).allocate(k, "sK", &[stages], true)?,
            fmha.panels(2).allocate(k, "sV", &[stages], false)?,
        ];
        let mut terms = None;
        if let Mask::PerKey(_) = fmha.mask {
            let view = View::levels_of(&[vec![leaf(stages, keys)], vec![leaf(keys, 1)]]);
            terms = Some(k.allocate("sM", view, Scalar::F32, Memory::Shared, None)?);
        }
        // One thread fills a stage, and one lane of each consumer's warp says that it has left it.
        // The lanes of a warp bring the mask.
        let of_keys = if terms.is_some() { 1 + WARP } else { 1 };
        let mut pipeline = |stages, by| Pipeline::new(k, stages, [by, 4 * consumers], block);
        let pipelines = [pipeline(1, 1)?, pipeline(stages, of_keys)?, pipeline(stages, 1)?];
        let order = OrderedBarrier::new(k, consumers, block)?;
        k.spec(Kind::Sync, (), (), block)?;
        Ok(Context { given, groups, pipelines, order, shared, terms })
    }
}

/// A tile of queries.
pub(super) struct Place<'a> {
    pub(super) given: &'a Given<'a>,
    pub(super) batch: Expr,
    pub(super) head: Expr,
    /// The head of its keys and values.
    pub(super) kv_head: Expr,
    /// Its number among those of its head.
    pub(super) m: Expr,
    /// How many tiles of keys it attends.
    pub(super) steps: Expr,
}

/// Rows and columns in the order in which queries (0), keys (1), values (2) and the result (3) are declared: keys with their
/// elements first.
pub(super) fn order<T>(which: usize, rows: T, columns: T) -> [T; 2] {
    if which == 1 { [columns, rows] } else { [rows, columns] }
}

impl Place<'_> {
    /// The coordinates of a row and a column of the own head of an operand.
    pub(super) fn at(&self, which: usize, row: Expr, column: Expr) -> [Expr; 4] {
        let head = if which == 1 || which == 2 { &self.kv_head } else { &self.head };
        let [first, second] = order(which, row, column);
        [self.batch.clone(), head.clone(), first, second]
    }

    /// The `m`-th `n` rows of an operand of the own head.
    pub(super) fn rows(&self, k: &mut Builder, which: usize, n: i64, m: &Expr) -> Result<TensorId> {
        let [first, second] = order(which, Tiler::Size(n), Tiler::Whole);
        let tiles = [Tiler::Size(1), Tiler::Size(1), first, second];
        let name = ["q_tile", "k_tile", "v_tile", "o_tile"][which];
        let (of, at) = (self.given.params[which], self.at(which, m.clone(), 0.into()));
        tile_of(k, of, name, &tiles, &at)
    }

    /// The number of the tile of keys that is `step`-th from the last.
    pub(super) fn tile(&self, step: impl Into<Expr>) -> Expr {
        (self.steps.clone() - 1 - step.into()).max(0)
    }
}

/// Bytes of keys and values that heads which are gone through together may have: half of an H100's L2 cache, where they stay.
const NEAR: i64 = 24 << 20;

impl Given<'_> {
    /// Goes through a block's tiles of queries: batch by batch, head by head, unless they are uneven.
    pub(super) fn each_tile(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder, &Place<'_>) -> Result,
    ) -> Result {
        if self.fmha.causal {
            return self.each_uneven(k, body);
        }
        let tiles_m = self.queries.ceil_div(self.fmha.rows());
        let all = tiles_m.clone() * &self.heads * &self.batch;
        k.for_("t", self.first.clone()..all, &self.blocks, false, |k, t| {
            let t = Expr::from(t);
            let place = self.place(k, t.div(&tiles_m), t.rem(&tiles_m))?;
            body(k, &place)
        })
    }

    /// Likewise of tiles that differ in how many keys they attend. As many heads are gone through together as have keys and
    /// values that stay near: their longest tiles, the next longest and so on, of every other such group the shortest first.
    /// So lengths rise and fall slowly, and blocks take tiles in rounds, every other one from the last block to the first:
    /// who had the longer one has the shorter one next.
    fn each_uneven(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder, &Place<'_>) -> Result,
    ) -> Result {
        let Given { batch, heads, kv_heads, queries, keys, blocks, first, .. } = self;
        let tiles_m = value(k, "tiles_m", queries.ceil_div(self.fmha.rows()))?;
        let all_heads = value(k, "all_heads", heads.clone() * batch)?;
        let all = value(k, "tiles", tiles_m.clone() * &all_heads)?;
        let Fmha { scalar, head_dim, value_dim, .. } = *self.fmha;
        let rows = Expr::from(NEAR / (scalar.bytes() * (head_dim + value_dim)));
        let near = (rows.div(keys.clone().max(1)) * heads).div(kv_heads.clone().max(1));
        let near = value(k, "near", near.max(1))?;
        // Groups of as many heads, but for the last.
        let least = value(k, "least", all_heads.ceil_div(&near).max(1))?;
        let together = value(k, "together", all_heads.ceil_div(&least).max(1))?;
        let groups = value(k, "groups", all_heads.ceil_div(&together))?;
        // The own place in a round; in the one after, as many come before as after it in this one.
        let mirrored = value(k, "turned", blocks.clone() - 1 - first.clone())?;
        let own = |round: &Expr| either(&round.rem(2), mirrored.clone(), first.clone());
        let after = own(&(all.div(blocks) + 1));
        let rounds = value(k, "rounds", (all + after).div(blocks))?;
        k.for_("round", Expr::from(0)..rounds, 1, false, |k, round| {
            let round = Expr::from(round);
            let t = value(k, "t", blocks.clone() * &round + own(&round))?;
            let of_group = together.clone() * &tiles_m;
            let group = value(k, "group", t.div(&of_group))?;
            let in_group = value(k, "in_group", t.rem(&of_group))?;
            let before = group.clone() * &together;
            let size = value(k, "size", (all_heads - &before).min(together).max(1))?;
            // The last group's longest tiles come first: what all ends with is short.
            let rising = value(k, "rising", (groups + 1 + group).rem(2))?;
            let level = value(k, "level", in_group.div(&size))?;
            let m = either(&rising, level.clone(), tiles_m - 1 - level);
            let place = self.place(k, before + in_group.rem(&size), m)?;
            body(k, &place)
        })
    }

    /// The `m`-th tile of queries of a head, of all batches' heads.
    pub(super) fn place(&self, k: &mut Builder, of_head: Expr, m: Expr) -> Result<Place<'_>> {
        let Given { fmha, heads, .. } = self;
        let of_head = Expr::from(k.let_("of_head", of_head)?);
        let m = Expr::from(k.let_("m", m)?);
        let batch = Expr::from(k.let_("b", of_head.div(heads))?);
        let head = Expr::from(k.let_("h", of_head.rem(heads))?);
        let kv_head = k.let_("kv", (head.clone() * &self.kv_heads).div(heads))?.into();
        let mut steps = self.keys.ceil_div(fmha.keys).max(1);
        if fmha.causal {
            let rows = (m.clone() + 1) * fmha.rows();
            steps = steps.min(rows.ceil_div(fmha.keys));
        }
        let steps = k.let_("steps", steps)?.into();
        Ok(Place { given: self, batch, head, kv_head, m, steps })
    }
}

fn value(k: &mut Builder, name: &str, value: Expr) -> Result<Expr> {
    k.let_(name, value.max(0)).map(Expr::from)
}

/// The first of two numbers if `which` is 1, the second if it is 0.
fn either(which: &Expr, one: Expr, zero: Expr) -> Expr {
    (which.clone() * one + (Expr::from(1) - which.clone()) * zero).max(0)
}
