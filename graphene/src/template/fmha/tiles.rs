//! A block's tiles of queries, one after the other.

use super::Fmha;
use super::operands::Sizes;
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::TensorId;
use crate::layout::Tiler;
use crate::template::product::tile_of;

/// A tile of queries.
pub(super) struct Place {
    pub(super) batch: Expr,
    pub(super) head: Expr,
    /// The head of its keys and values.
    pub(super) kv_head: Expr,
    /// Its number among those of its head.
    pub(super) m: Expr,
    /// How many tiles of keys it attends.
    pub(super) steps: Expr,
}

impl Place {
    /// The `tile`-th so many rows of an operand: of queries (0), keys (1), values (2) or the result (3) of the own head.
    pub(super) fn rows(
        &self,
        k: &mut Builder,
        operands: &[TensorId; 4],
        which: usize,
        rows: i64,
        tile: &Expr,
    ) -> Result<TensorId> {
        let head = if which == 1 || which == 2 { &self.kv_head } else { &self.head };
        let (one, zero) = (Tiler::Size(1), Expr::from(0));
        let mut tiles = [one.clone(), one, Tiler::Size(rows), Tiler::Whole];
        let mut at = [&self.batch, head, tile, &zero];
        if which == 1 {
            // Keys are declared with their elements first.
            tiles.swap(2, 3);
            at.swap(2, 3);
        }
        tile_of(k, operands[which], ["q_tile", "k_tile", "v_tile", "o_tile"][which], &tiles, at)
    }

    /// The number of the tile of keys that is `step`-th from the last.
    pub(super) fn tile(&self, step: impl Into<Expr>) -> Expr {
        (self.steps.clone() - 1 - step.into()).max(Expr::from(0))
    }
}

/// Bytes of keys and values that heads which are gone through together may have: half of an H100's L2 cache, where they stay.
const NEAR: i64 = 24 << 20;

impl Fmha {
    /// Goes through a block's tiles: batch by batch, head by head, unless they are uneven.
    pub(super) fn each_tile(
        &self,
        k: &mut Builder,
        sizes: &Sizes,
        first: &Expr,
        body: impl FnOnce(&mut Builder, &Place) -> Result<()>,
    ) -> Result<()> {
        if self.causal {
            return self.each_uneven_tile(k, sizes, first, body);
        }
        let tiles_m = tiles(&sizes.queries, self.rows());
        let all = tiles_m.clone() * &sizes.heads * &sizes.batch;
        k.for_("t", first.clone()..all, &sizes.blocks, false, |k, t| {
            let t = Expr::from(t);
            let place = self.place(k, sizes, t.div(&tiles_m), t.rem(&tiles_m))?;
            body(k, &place)
        })
    }

    /// Likewise of tiles that differ in how many keys they attend. As many heads are gone through together as have keys and
    /// values that stay near: their longest tiles, the next longest and so on, of every other such group the shortest first.
    /// So lengths rise and fall slowly, and blocks take tiles in rounds, every other one from the last block to the first:
    /// who had the longer one has the shorter one next.
    fn each_uneven_tile(
        &self,
        k: &mut Builder,
        sizes: &Sizes,
        first: &Expr,
        body: impl FnOnce(&mut Builder, &Place) -> Result<()>,
    ) -> Result<()> {
        let Sizes { batch, heads, kv_heads, queries, keys, blocks } = sizes;
        let blocks = Expr::from(blocks);
        let tiles_m = value(k, "tiles_m", tiles(queries, self.rows()))?;
        let all_heads = value(k, "all_heads", Expr::from(heads) * batch)?;
        let all = value(k, "tiles", tiles_m.clone() * all_heads.clone())?;
        let rows = Expr::from(NEAR / (self.scalar.bytes() * (self.head_dim + self.value_dim)));
        let near = rows.div(&Expr::from(keys).max(1.into())) * heads;
        let near = near.div(&Expr::from(kv_heads).max(1.into())).max(1.into());
        let near = value(k, "near", near)?;
        // Groups of as many heads, but for the last.
        let least = value(k, "least", all_heads.ceil_div(&near).max(1.into()))?;
        let together = value(k, "together", all_heads.ceil_div(&least).max(1.into()))?;
        let groups = value(k, "groups", all_heads.ceil_div(&together))?;
        // The own place in a round; in the one after, as many come before as after it in this one.
        let turned = value(k, "turned", blocks.clone() - 1 - first.clone())?;
        let own = |round: &Expr| either(&round.rem(&2.into()), turned.clone(), first.clone());
        let after = own(&(all.div(&blocks) + 1));
        let rounds = value(k, "rounds", (all + after).div(&blocks))?;
        k.for_("round", Expr::from(0)..rounds, 1, false, |k, round| {
            let round = Expr::from(round);
            let t = value(k, "t", blocks * round.clone() + own(&round))?;
            let of_group = together.clone() * tiles_m.clone();
            let group = value(k, "group", t.div(&of_group))?;
            let in_group = value(k, "in_group", t.rem(&of_group))?;
            let before = group.clone() * together.clone();
            let size = (all_heads - before.clone()).min(together).max(1.into());
            let size = value(k, "size", size)?;
            // The last group's longest tiles come first: what all ends with is short.
            let rising = value(k, "rising", (groups + 1 + group).rem(&2.into()))?;
            let level = value(k, "level", in_group.div(&size))?;
            let m = either(&rising, level.clone(), tiles_m - 1 - level);
            let place = self.place(k, sizes, before + in_group.rem(&size), m)?;
            body(k, &place)
        })
    }

    /// The `m`-th tile of queries of a head, of all batches' heads.
    fn place(&self, k: &mut Builder, sizes: &Sizes, of_head: Expr, m: Expr) -> Result<Place> {
        let heads = Expr::from(&sizes.heads);
        let of_head = Expr::from(k.let_("of_head", of_head)?);
        let m = Expr::from(k.let_("m", m)?);
        let batch = Expr::from(k.let_("b", of_head.div(&heads))?);
        let head = Expr::from(k.let_("h", of_head.rem(&heads))?);
        let kv_head = k.let_("kv", (head.clone() * &sizes.kv_heads).div(&heads))?.into();
        let mut steps = tiles(&sizes.keys, self.keys).max(Expr::from(1));
        if self.causal {
            let rows = (m.clone() + 1) * self.rows();
            steps = steps.min(rows.ceil_div(&Expr::from(self.keys)));
        }
        let steps = k.let_("steps", steps)?.into();
        Ok(Place { batch, head, kv_head, m, steps })
    }
}

/// How many tiles of a size there are.
fn tiles(extent: &Var, size: i64) -> Expr {
    Expr::from(extent).ceil_div(&Expr::from(size))
}

/// A number of a name, which is not negative.
fn value(k: &mut Builder, name: &str, value: Expr) -> Result<Expr> {
    k.let_(name, value.max(0.into())).map(Expr::from)
}

/// The first of two numbers if `which` is 1, the second if it is 0.
fn either(which: &Expr, one: Expr, zero: Expr) -> Expr {
    (which.clone() * one + (Expr::from(1) - which.clone()) * zero).max(0.into())
}
