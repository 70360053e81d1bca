//! Matrix products `C[m,n] = f(A[m,k]·B[k,n])` in single precision, by IEEE fused multiply-adds of
//! single threads, for Ampere and newer.
//!
//! As [`mma`](super::mma), but that a thread adds products of its own rows and columns. It reads four
//! neighbours at once, whatever is contiguous: four steps along K, or four rows or columns.
//!
//! - this file: the parameters and the kernel's outline;
//! - `own`: a thread's part of a tile;
//! - `products`: what it multiplies, in which order.

mod own;
mod products;

use self::own::WIDE;
pub(super) use self::own::{Own, part};
use super::product::{Edges, Product, Walk, leaf, line};
use super::shares::{Held, Holders, Shares, Visit};
use super::stage::{Movers, Side, Stages};
use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::choose::in_registers;
use crate::error::{Error, Result};
use crate::index::{Expr, Var};
use crate::kernel::{Kernel, Kind, ThreadsId};
use crate::schedule::multistage;
use crate::tensor::{Scalar, Shape, View};

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
    /// Split-K: into how many parts K is split, each a block's of a cluster, whose first block adds them up, where few
    /// tiles leave most of the GPU idle. On Hopper, of one term.
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
    /// With stages half as deep where two blocks' stages have no room in so many bytes each.
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
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let threads = 32 * self.warps;
        let sides = Side::both(&self.product, self.tile, self.depth, 16);
        sides.iter().try_for_each(|side| side.check(self.edges))?;
        let mut k = Builder::new("simt", self.arch);
        let declared = self.product.declare(&mut k, self.edges)?;
        let walk = Walk::new(&declared, self.tile, self.raster);
        let grid = k.grid("grid", self.grid(walk.count()))?;
        let block = k.block("block", line(threads))?;
        let one = k.scalar(block, "one")?;
        let (t, shares) = self.shares(&mut k, grid, block)?;
        let [thread] = k.indices(block, ["thread"])?;
        let place = walk.place(&mut k, &t)?;
        let own = Own::new(&mut k, block, sides, self.thread, self.warps)?;
        let stages = Stages::new(&mut k, &declared, sides, self.stages)?;
        let acc = own.clear(&mut k)?;
        let movers = Movers { threads, thread: &thread, one, edges: self.edges };
        let mut steps = declared.steps(self.depth);
        let all = steps.iter().fold(Expr::from(0), |all, steps| all + steps);
        let (first, count) = match &shares {
            Some(shares) => shares.steps(&all),
            None => (Expr::from(0), all),
        };
        if shares.is_some() {
            steps = vec![first.clone() + &count];
        }
        multistage(
            &mut k,
            self.stages,
            &count,
            block,
            |k, step, stage| {
                let step = first.clone() + step;
                stages.fill(k, &steps, &place, &step, stage, movers)
            },
            |k, _, stage| {
                let [a, b] = stages.of(k, stage)?;
                own.multiply(k, acc, a, &Expr::from(0), b)
            },
        )?;
        let epilogue = &declared.epilogue;
        let results = epilogue.all();
        let across = place.n.clone() * (self.tile[1] / own.run());
        let origin = [place.m.clone() * self.tile[0], across];
        let batch = place.batch.as_ref();
        let leave = |k: &mut Builder| {
            own.each_run(k, acc, epilogue, batch, &origin, |k, sums, run, across| {
                epilogue.leave(k, sums, run, across, &results, own.one)
            })
        };
        match &shares {
            Some(shares) => {
                let each = |k: &mut Builder, visit: Visit<'_>| own.each_sum(k, acc, visit);
                let held = Held { thread: [Expr::from(0), thread.into()], one, each: &each };
                shares.add_up(&mut k, &held, block, leave)?;
                // A block stays while others may still write or arrive there: a rule of all clusters.
                k.add(Header::new(Kind::Sync, (), (), block).on(shares.blocks))?;
            }
            None => leave(&mut k)?,
        }
        k.finish(epilogue.results.clone(), declared.ins())
    }

    /// One dimension of blocks, or clusters of some.
    fn grid(&self, tiles: Expr) -> View {
        if self.split == 1 {
            return line(tiles);
        }
        let clusters = Shape::Leaf(tiles, Expr::from(self.split));
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
            return Ok((t, None));
        }
        let [t, rank] = k.indices(grid, ["t", "rank"])?;
        let blocks = k.index(grid, "together", [&t])?;
        let holders = Holders {
            groups: 1,
            threads: 32 * self.warps,
            registers: self.thread.iter().product(),
        };
        let shares = Shares::new(k, self.split, holders, blocks, rank.into(), block)?;
        k.add(Header::new(Kind::Sync, (), (), block).on(blocks))?;
        Ok((t, Some(shares)))
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        if self.product.scalar != Scalar::F32 {
            return refuse("operands are in single precision");
        }
        if self.depth < WIDE || self.depth % WIDE != 0 || self.stages < 2 {
            return refuse("two stages at least, of a depth of 4, 8, …");
        }
        if self.arch < Arch::Sm80 || self.raster < 1 || !(1..=32).contains(&self.warps) {
            return refuse("a band has a row, a block 1 to 32 warps, of sm_80 or newer");
        }
        if !(1..=8).contains(&self.split) {
            return refuse("K is split into at most 8 parts");
        }
        if self.split > 1 && (self.arch < Arch::Sm90a || self.product.terms > 1) {
            return refuse("the K that is split is of one term, on Hopper");
        }
        let [rows, columns] = self.thread;
        if self.thread.iter().chain(&self.tile).any(|size| *size < WIDE)
            || rows % WIDE != 0
            || columns % WIDE != 0
        {
            return refuse("a thread has fours of rows and columns");
        }
        if !in_registers(self.tile[0] * self.tile[1], 32 * self.warps) {
            return refuse("a thread has too many sums");
        }
        Ok(())
    }
}
