//! Matrix products `C[m,n] = f(A[m,k]·B[k,n])` in single precision, by IEEE fused multiply-adds of
//! single threads, for Ampere and newer.
//!
//! As [`mma`](super::mma), but that a thread adds products of its own rows and columns. It reads four
//! neighbours at once, whatever is contiguous: four steps along K, or four rows or columns.
//!
//! Its levels are those of `mma`; of split-K the tile is a cluster's, and has no level for its sums, but one for what becomes
//! of each warp's.
//!
//! - this file: the parameters and the kernel's outline;
//! - `own`: a thread's part of a tile;
//! - `products`: what it multiplies, in which order;
//! - `split`: blocks that share a tile.

mod own;
mod products;
mod split;

use self::own::WIDE;
pub(super) use self::own::{Own, part};
use self::split::own_steps;
use super::product::{Edges, Product, Walk, line};
use super::stage::{Movers, Side, Stages};
use super::sums::features;
use crate::arch::{Arch, Feature};
use crate::build::{Builder, Header};
use crate::choose::in_registers;
use crate::error::{Result, needs};
use crate::index::Expr;
use crate::kernel::{Kernel, Kind};
use crate::schedule::multistage;
use crate::tensor::Scalar;

/// The parameters of a product.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Simt {
    /// What is computed, of single precision.
    pub product: Product,
    /// What the kernel is written for; it runs on newer ones, too.
    pub arch: Arch,
    /// How operands and results move.
    pub edges: Edges,
    /// Rows and columns of a block's tile: each a multiple of those of a warp, for each warp along it.
    pub tile: [i64; 2],
    /// Rows and columns of a thread's part: each a multiple of 4. A warp has 8 by 4 threads.
    pub thread: [i64; 2],
    /// The depth of a stage: a multiple of 4.
    pub depth: i64,
    /// Warps of a block.
    pub warps: i64,
    /// Stages in shared memory.
    pub stages: i64,
    /// Rows of tiles that are walked together, so that operands stay in the L2 cache.
    pub raster: i64,
    /// Split-K: into how many parts K is split, each a block's of a cluster, which add them up, where few tiles leave most of
    /// the GPU idle. On Hopper, of one term.
    pub split: i64,
}

impl Default for Simt {
    fn default() -> Simt {
        Simt {
            product: Product { scalar: Scalar::F32, ..Product::default() },
            arch: Arch::Sm80,
            edges: Edges::Bulk,
            tile: [128, 64],
            thread: [8, 8],
            depth: 32,
            warps: 4,
            stages: 3,
            raster: 8,
            split: 1,
        }
    }
}

impl Simt {
    /// With stages half as deep where all of them take more than so many bytes.
    #[must_use]
    pub fn within(self, bytes: i64) -> Simt {
        let stages = self.stages * (self.tile[0] + self.tile[1]) * self.depth * 4;
        let depth = if stages > bytes { (self.depth / 2).max(WIDE) } else { self.depth };
        Simt { depth, ..self }
    }

    /// The kernel, with symbols M, N, a K for each term (K, K_2, …), and the number of products if
    /// batched.
    ///
    /// # Errors
    /// [`Error::Kernel`](crate::Error::Kernel) for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let threads = 32 * self.warps;
        let sides = Side::both(&self.product, self.tile, self.depth, 16);
        sides.iter().try_for_each(|side| side.check(self.edges))?;
        let mut k = Builder::new("simt", self.arch);
        let declared = self.product.declare(&mut k, self.edges, false)?;
        let walk = Walk::new(&declared, self.tile, self.raster);
        let grid = k.grid("grid", self.grid(walk.count()))?;
        let block = k.block("block", line(threads))?;
        let one = k.scalar(block, "one")?;
        let (t, shares) = self.shares(&mut k, grid, block)?;
        let [thread] = k.indices(block, ["thread"])?;
        let place = walk.place(&mut k, &t)?;
        let own = Own::new(&mut k, block, sides, self.thread, self.warps)?;
        let stages = Stages::new(&mut k, &declared, sides, self.stages)?;
        let acc = own.allocate(&mut k)?;
        let movers = Movers { threads, block, thread: &thread, one, edges: self.edges };
        let (first, steps) = own_steps(shares.as_ref(), declared.steps(self.depth));
        let end = steps.iter().fold(Expr::from(0), |all, steps| all + steps);
        let multiply = |k: &mut Builder| {
            own.reset(k, acc)?;
            multistage(
                k,
                self.stages,
                &(end.clone() - first.clone()),
                block,
                |k, step, stage| {
                    let step = first.clone() + step;
                    stages.fill(k, &steps, &place, &step, stage, movers)
                },
                |k, _, stage| {
                    let near = stages.of(k, stage)?;
                    k.decompose(Header::new(Kind::MATMUL_ADD, acc, near, block), |k| {
                        own.multiply(k, acc, near[0], &Expr::from(0), near[1])
                    })
                },
            )
        };
        let epilogue = &declared.epilogue;
        let results = epilogue.all();
        let across = place.n.clone() * (self.tile[1] / own.run());
        let origin = [place.m.clone() * self.tile[0], across];
        let batch = place.batch.as_ref();
        let store = |k: &mut Builder| {
            own.each_run(k, acc, epilogue, batch, &origin, |k, sums, run, across| {
                epilogue.leave(k, sums, run, across, &results, own.one)
            })
        };
        let tile = declared.tile(&mut k, self.tile, &place)?;
        let header = tile.header(declared.kind(), block);
        match &shares {
            None => k.decompose(header, |k| {
                k.decompose(tile.sums(declared.sums(), acc, block), multiply)?;
                k.decompose(tile.epilogue(epilogue.kind(), acc, block), store)
            })?,
            Some(shares) => {
                k.decompose(header.on(shares.blocks), |k| {
                    multiply(k)?;
                    self.add_up(k, shares, (&own, acc), block, |k, warp| {
                        let part = declared.part(k, own.of_warp(), &own.place(&place))?;
                        k.decompose(part.epilogue(epilogue.kind(), acc, warp), store)
                    })
                })?;
                // A block stays while others may still write there: a rule of all clusters.
                k.add(Header::new(Kind::Sync, (), (), block).on(shares.blocks))?;
            }
        }
        k.finish_as(declared.header(block))
    }

    fn check(&self) -> Result<()> {
        needs(self.product.scalar == Scalar::F32, "fp32 operands", self.product.scalar)?;
        needs(self.stages >= 2, "2 or more stages", self.stages)?;
        let deep = self.depth >= WIDE && self.depth % WIDE == 0;
        needs(deep, "a stage depth that is a multiple of 4", self.depth)?;
        self.arch.needs(features(self.product.scalar, false))?;
        needs(self.raster >= 1, "1 or more rows of tiles to walk together", self.raster)?;
        needs((1..=32).contains(&self.warps), "1 to 32 warps", self.warps)?;
        needs((1..=8).contains(&self.split), "a split-K of 1 to 8 parts", self.split)?;
        if self.split > 1 {
            self.arch.needs(&[Feature::Cluster])?;
            needs(self.product.terms == 1, "one term for split-K", self.product.terms)?;
        }
        let fours = self.thread.iter().all(|size| *size >= WIDE && size % WIDE == 0);
        needs(fours, "multiples of 4 rows and columns a thread", self.thread)?;
        needs(self.tile.iter().all(|size| *size >= WIDE), "a tile of 4x4 or more", self.tile)?;
        let sums = self.tile[0] * self.tile[1];
        needs(in_registers(sums, 32 * self.warps), "accumulators that fit registers", self.tile)
    }
}
