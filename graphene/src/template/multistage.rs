//! Matmuls in which each block computes one tile of C: its threads copy tiles of A and B into stages of shared memory
//! while its warps, or its threads, multiply those that are there, each its own part of the tile.
//!
//! Levels, each one in the one above:
//!
//! - kernel: C, of A, B and what the epilogue meets;
//! - tile: C's, of A's rows, B's columns and the epilogue's; of split-K by those of a cluster;
//! - tile: its sums, of A's rows and B's columns; and C's, of the sums and the epilogue's. Of split-K only what becomes of
//!   each warp's sums;
//! - stage: adds a matmul of A's and B's in shared memory to the sums, or moves A's or B's there.

use super::conv::By;
use super::matmul::{Edges, MatMul, Place, Walk, leaf, line};
use super::split_k::{Held, Holders, PAIR, Shares, Visit};
use super::stage::{Movers, Side, Stages};
use super::tiled_mma::TiledMma;
use crate::arch::{Arch, Feature};
use crate::build::{Builder, Header};
use crate::choose::in_registers;
use crate::error::{AtLeast, MultipleOf, Result, Within, needs};
use crate::index::{Expr, Var};
use crate::kernel::{Kernel, Kind, ThreadsId};
use crate::layout::{Layout, Tiler};
use crate::schedule::matmul::{epilog, load};
use crate::schedule::multistage;
use crate::tensor::{Scalar, View};

/// How a block's tile is multiplied: the parameters of all such kernels.
pub(super) struct Multistage<'a> {
    pub(super) arch: Arch,
    pub(super) scalar: Scalar,
    pub(super) by: By,
    pub(super) tile: [i64; 2],
    pub(super) depth: i64,
    pub(super) warps: i64,
    pub(super) stages: i64,
    pub(super) raster: i64,
    /// Blocks of a cluster that share a tile: parts of K.
    pub(super) split: i64,
    pub(super) matmul: &'a MatMul,
}

impl Multistage<'_> {
    /// Whether there is such a kernel.
    pub(super) fn check(&self) -> Result<()> {
        let Multistage { arch, scalar, tile, depth, .. } = *self;
        arch.needs(TiledMma::features(scalar, self.by == By::Warps))?;
        AtLeast(2).check("stages", self.stages)?;
        AtLeast(1).check("rows of tiles to walk together", self.raster)?;
        Within(1, 32).check("warps", self.warps)?;
        let unit = if self.by == By::Warps { 16 } else { 4 };
        MultipleOf(unit).check("as the depth of a stage", depth)?;
        tile.iter().try_for_each(|&size| AtLeast(unit).check("rows and columns a tile", size))?;
        if let By::Threads(thread) = self.by {
            thread
                .iter()
                .try_for_each(|&size| MultipleOf(4).check("rows and columns a thread", size))?;
            needs(scalar == Scalar::F32, "fp32 operands by threads", scalar)?;
        }
        let sums = in_registers(tile[0] * tile[1], 32 * self.warps);
        needs(sums, "accumulators that fit registers", tile)?;
        Within(1, 8).check("parts of a split-K", self.split)?;
        if self.split == 1 {
            return Ok(());
        }
        arch.needs(&[Feature::Cluster])?;
        needs(self.matmul.terms == 1, "one term for split-K", self.matmul.terms)
    }

    /// The kernel of this name.
    pub(super) fn kernel(&self, name: &str, edges: Edges) -> Result<Kernel> {
        self.check()?;
        let threads = 32 * self.warps;
        let mut sides = Side::both(self.matmul, self.tile, self.depth, 16);
        for side in &mut sides {
            side.chunk = self.by.chunk(side.scalar, side.transposed);
            side.check(edges)?;
        }
        let mut k = Builder::new(name, self.arch);
        let declared = self.matmul.declare(&mut k, edges, false)?;
        let walk = Walk::new(&declared, self.tile, self.raster);
        let grid = k.grid("grid", self.grid(walk.count()))?;
        let block = k.block("block", line(threads))?;
        let one = k.scalar(block, "one")?;
        let (t, shares) = self.shares(&mut k, grid, block)?;
        let [thread] = k.indices(block, ["thread"])?;
        let place = walk.place(&mut k, &t)?;
        let mma = TiledMma::new(&mut k, block, sides, self.warps, self.by)?;
        let stages = Stages::new(&mut k, &declared, sides, self.stages)?;
        let acc = mma.allocate(&mut k)?;
        let movers = Movers { threads, block, thread: &thread, one, edges };
        let (first, steps) = own_steps(shares.as_ref(), declared.steps(self.depth));
        let end = steps.iter().fold(Expr::from(0), |all, steps| all + steps);
        let count = end - first.clone();
        let multiply = |k: &mut Builder| {
            mma.reset(k, acc)?;
            multistage(
                k,
                self.stages,
                &count,
                block,
                |k, step, stage| {
                    stages.fill(k, &steps, &place, &(first.clone() + step), stage, movers)
                },
                |k, _, stage| {
                    let near = |k: &mut Builder| stages.of(k, stage);
                    load(k, acc, block, near, |k, near| {
                        mma.multiply(k, acc, near.a, &Expr::from(0), near.b)
                    })
                },
            )
        };
        let epilogue = &declared.epilogue;
        let origin = Place {
            batch: place.batch.clone(),
            m: place.m.clone() * self.tile[0],
            n: place.n.clone() * self.tile[1],
        };
        let store = |k: &mut Builder| {
            mma.each_run(k, acc, epilogue, &origin, &|k, sums, run| {
                epilogue.leave(k, sums, run, &epilogue.all())
            })
        };
        let tile = declared.tile(&mut k, self.tile, &place)?;
        let header = tile.header(declared.kind(), block);
        match (&shares, &mma) {
            (Some(shares), TiledMma::Threads(own)) => {
                k.decompose(header.on(shares.blocks), |k| {
                    multiply(k)?;
                    let warps = k.tile(block, "warps", &[Tiler::Size(32)])?;
                    let [number, _] = k.indices(warps, ["sharing", "lane"])?;
                    let warp = k.index(warps, "warp", [&number])?;
                    let each = |k: &mut Builder, visit: Visit<'_>| own.each_pair(k, acc, visit);
                    let held = Held { warp, number: number.into(), one: mma.one(), each: &each };
                    shares.add_up(k, &held, |k| {
                        let part = declared.part(k, own.of_warp(), &own.place(&place))?;
                        k.decompose(part.epilogue(epilogue.kind(), acc, warp), store)
                    })
                })?;
                // A block stays while others may still write there: a rule of all clusters.
                k.add(Header::new(Kind::Sync, (), (), block).on(shares.blocks))?;
            }
            (_, TiledMma::Warps(_)) | (None, _) => k.decompose(header, |k| {
                epilog(k, tile.sums(declared.sums(), acc, block), multiply, |k| {
                    k.decompose(tile.epilogue(epilogue.kind(), acc, block), store)
                })
            })?,
        }
        k.finish_as(declared.header(block))
    }

    /// One dimension of blocks, or clusters of some.
    fn grid(&self, tiles: Expr) -> View {
        if self.split == 1 {
            return line(tiles);
        }
        let clusters = Layout::of(tiles, Expr::from(self.split));
        View::levels_of(&[vec![clusters], vec![leaf(self.split, 1)]])
    }

    /// Which tile the own block has, and who shares it.
    fn shares(
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
        let pairs = self.tile[0] * self.tile[1] / (32 * self.warps * PAIR);
        let holders = Holders { warps: self.warps, pairs };
        let shares = Shares::new(k, self.split, holders, blocks, rank.into(), block)?;
        k.add(Header::new(Kind::Sync, (), (), block).on(blocks))?;
        Ok((t, Some(shares)))
    }
}

/// The own steps along the K of all terms: the first, and where those of each term end.
fn own_steps(shares: Option<&Shares>, all: Vec<Expr>) -> (Expr, Vec<Expr>) {
    let (Some(shares), [all]) = (shares, &all[..]) else { return (Expr::from(0), all) };
    let (first, count) = shares.steps(all);
    (first.clone(), vec![first + count])
}
