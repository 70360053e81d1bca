//! A block's tiles of queries, one after the other.

use super::Fmha;
use super::operands::Sizes;
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};

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
    /// The number of the tile of keys that is `step`-th from the last.
    pub(super) fn tile(&self, step: impl Into<Expr>) -> Expr {
        (self.steps.clone() - 1 - step.into()).max(Expr::from(0))
    }
}

/// Bytes of keys and values that stay in the L2 cache while all of their heads are gone through: half of what an H100 has.
const NEAR: i64 = 24 << 20;

impl Fmha {
    /// Goes through a block's tiles, from its first one: batch by batch, head by head.
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

    /// Likewise of tiles that differ in how many keys they attend. Those that attend most come first, of all heads if
    /// their keys and values stay in the cache, else of one after the other. Blocks take them in rounds, every other one
    /// from the last block to the first: who had the longest has the shortest next.
    fn each_uneven_tile(
        &self,
        k: &mut Builder,
        sizes: &Sizes,
        first: &Expr,
        body: impl FnOnce(&mut Builder, &Place) -> Result<()>,
    ) -> Result<()> {
        let Sizes { batch, heads, kv_heads, queries, keys, blocks } = sizes;
        let blocks = Expr::from(blocks);
        let mut value = |name: &str, value: Expr| k.let_(name, value).map(Expr::from);
        let tiles_m = value("tiles_m", tiles(queries, self.rows()))?;
        let heads = value("all_heads", Expr::from(heads) * batch)?;
        let all = value("tiles", tiles_m.clone() * heads.clone())?;
        let near = Expr::from(NEAR / (self.scalar.bytes() * (self.head_dim + self.value_dim)));
        let rows = Expr::from(keys) * kv_heads * batch;
        let near = value("near", near.div(&rows.max(1.into())).min(1.into()))?;
        let together = value("together", (near * (heads - 1) + 1).max(1.into()))?;
        let turned = value("turned", (blocks.clone() - 1 - first.clone()).max(0.into()))?;
        // The own place in a round; in the one after, as many come before as after it in this one.
        let own = |round: &Expr| {
            let odd = round.rem(&2.into());
            let own = turned.clone() * odd.clone() + first.clone() * (Expr::from(1) - odd);
            own.max(0.into())
        };
        let after = own(&(all.div(&blocks) + 1));
        let rounds = value("rounds", (all + after).div(&blocks))?;
        k.for_("round", Expr::from(0)..rounds, 1, false, |k, round| {
            let round = Expr::from(round);
            let t = Expr::from(k.let_("t", blocks * round.clone() + own(&round))?);
            let of_these = together.clone() * tiles_m.clone();
            let in_these = Expr::from(k.let_("in_these", t.rem(&of_these))?);
            let of_head = together.clone() * t.div(&of_these) + in_these.rem(&together);
            let m = (tiles_m - 1 - in_these.div(&together)).max(0.into());
            let place = self.place(k, sizes, of_head, m)?;
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
