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

impl Fmha {
    /// Goes through a block's tiles from its first one: batch by batch, head by head.
    pub(super) fn each_tile(
        &self,
        k: &mut Builder,
        sizes: &Sizes,
        first: &Expr,
        body: impl FnOnce(&mut Builder, &Place) -> Result<()>,
    ) -> Result<()> {
        let Sizes { batch, heads, kv_heads, queries, keys, blocks } = sizes;
        let tiles = |extent: &Var, size: i64| Expr::from(extent).ceil_div(&Expr::from(size));
        let tiles_m = tiles(queries, self.rows());
        let all = tiles_m.clone() * heads * batch;
        k.for_("t", first.clone()..all, blocks, false, |k, t| {
            let (t, heads) = (Expr::from(t), Expr::from(heads));
            let of_head = Expr::from(k.let_("of_head", t.div(&tiles_m))?);
            let mut m = t.rem(&tiles_m);
            if self.causal {
                // Those that attend most come first.
                m = (tiles_m.clone() - 1 - m).max(Expr::from(0));
            }
            let m = Expr::from(k.let_("m", m)?);
            let batch = Expr::from(k.let_("b", of_head.div(&heads))?);
            let head = Expr::from(k.let_("h", of_head.rem(&heads))?);
            let kv_head = k.let_("kv", (head.clone() * kv_heads).div(&heads))?.into();
            let mut steps = tiles(keys, self.keys).max(Expr::from(1));
            if self.causal {
                let rows = (m.clone() + 1) * self.rows();
                steps = steps.min(rows.ceil_div(&Expr::from(self.keys)));
            }
            let steps = k.let_("steps", steps)?.into();
            body(k, &Place { batch, head, kv_head, m, steps })
        })
    }
}
