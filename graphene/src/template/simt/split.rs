//! Blocks of a cluster that share a tile, each with its part of K.

use super::{Own, Simt};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Kind, TensorId, ThreadsId};
use crate::layout::{Layout, Tiler};
use crate::template::product::{leaf, line};
use crate::template::split_k::{Held, Holders, PAIR, Shares, Visit};
use crate::tensor::View;

/// The own steps along the K of all terms: the first, and where those of each term end.
pub(super) fn own_steps(shares: Option<&Shares>, all: Vec<Expr>) -> (Expr, Vec<Expr>) {
    let (Some(shares), [all]) = (shares, &all[..]) else { return (Expr::from(0), all) };
    let (first, count) = shares.steps(all);
    (first.clone(), vec![first + count])
}

impl Simt {
    /// One dimension of blocks, or clusters of some.
    pub(super) fn grid(&self, tiles: Expr) -> View {
        if self.split == 1 {
            return line(tiles);
        }
        let clusters = Layout::of(tiles, Expr::from(self.split));
        View::levels_of(&[vec![clusters], vec![leaf(self.split, 1)]])
    }

    /// Which tile the own block has, and who shares it.
    pub(super) fn shares(
        &self,
        k: &mut Builder,
        grid: ThreadsId,
        block: ThreadsId,
    ) -> Result<(Var, Option<Shares>)> {
        if self.split == 1 {
            let [t] = k.indices(grid, ["t"])?;
            let cta = k.index(grid, "cta", [&t])?;
            k.by(cta);
            return Ok((t, None));
        }
        let [t, rank] = k.indices(grid, ["t", "rank"])?;
        let blocks = k.index(grid, "together", [&t])?;
        let cta = k.index(blocks, "cta", [&rank])?;
        k.by(cta);
        let sums: i64 = self.thread.iter().product();
        let holders = Holders { warps: self.warps, pairs: sums / PAIR };
        let shares = Shares::new(k, self.split, holders, blocks, rank.into(), block)?;
        k.add(Header::new(Kind::Sync, (), (), block).on(blocks))?;
        Ok((t, Some(shares)))
    }

    /// Adds up a tile's sums, which blocks share; `leave` is for the warps of each that have complete ones.
    pub(super) fn add_up(
        &self,
        k: &mut Builder,
        shares: &Shares,
        (own, acc): (&Own, TensorId),
        block: ThreadsId,
        leave: impl FnOnce(&mut Builder, ThreadsId) -> Result<()>,
    ) -> Result<()> {
        let warps = k.tile(block, "warps", &[Tiler::Size(32)])?;
        let [number, _] = k.indices(warps, ["sharing", "lane"])?;
        let warp = k.index(warps, "warp", [&number])?;
        let each = |k: &mut Builder, visit: Visit<'_>| own.each_pair(k, acc, visit);
        let held = Held { warp, number: number.into(), one: own.one, each: &each };
        shares.add_up(k, &held, |k| leave(k, warp))
    }
}
