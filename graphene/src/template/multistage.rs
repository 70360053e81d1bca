//! Matmuls `C[m,n] = f(A[m,k]·B[k,n])` in which each block computes one tile of C, for Ampere and newer: its threads copy
//! tiles of A and B into stages of shared memory while its warps, by their tensor cores, or its threads, by IEEE fused
//! multiply-adds or those of integers, multiply those that are there, each its own part of the tile.
//!
//! Levels:
//!
//! - kernel: C, of A, B and what the epilogue meets
//!   - tile by a block: C's, of A's rows, B's columns and the epilogue's
//!     - reduction by a block: the tile's sums, of A's rows and B's columns
//!       - load by a block: a stage of A or B
//!       - stage by a block: adds a matmul of both to the sums
//!     - epilogue by a block: the tile of C, of its sums and what the epilogue meets
//!       - registers by a thread: the epilogue's function of a run of sums
//!   - cluster: of split-K, a tile of C, by blocks that each multiply a part of K
//!     - load by a block: a stage of A or B
//!     - stage by a block: adds a matmul of both to the block's sums
//!     - epilogue by a warp: what the warp finishes of C, of all blocks' sums
//!       - registers by a thread: the epilogue's function of a run of sums

use super::access::launch_clusters;
use super::matmul::{Edges, MatMul, Place, Walk};
use super::split_k::{Holders, PAIR, Shares};
use super::stage::{Movers, Side, Stages};
use super::tiled_mma;
pub use super::tiled_mma::By;
use crate::choose::in_registers;
use crate::{
    Arch, AtLeast, Builder, Expr, Feature, Header, Kernel, Kind, MultipleOf, Result, Scalar,
    ThreadsId, Var, Within, needs,
};

parameters! {
    /// The parameters of a matmul. By warps by default.
    pub struct Multistage {
        /// What is computed: of fp16 or bf16; of single precision, which warps round to TF32 (to nearest, ties away from 0); by
        /// threads also of integers of 32 bits.
        pub matmul: MatMul = MatMul::default(),
        /// What the kernel is written for; it runs on newer ones, too.
        pub arch: Arch = Arch::Sm80,
        /// How A and B move; if by elements, results move so, too.
        pub edges: Edges = Edges::Bulk,
        /// Who multiplies: threads, single precision or integers of 32 bits, of which a warp has 8 by 4, with multiples of 4 rows and
        /// columns each.
        pub by: By = By::Warps,
        /// Rows and columns of a block's tile: each a multiple of 16, or of a warp's threads' rows or columns, for each warp
        /// along it.
        pub tile: [i64; 2] = [128, 128],
        /// The depth of a stage: a multiple of 16, or by threads of 4.
        pub depth: i64 = 32,
        /// Warps of a block.
        pub warps: i64 = 4,
        /// Stages in shared memory.
        pub stages: i64 = 4,
        /// Rows of tiles that are walked together, so that operands stay in the L2 cache.
        pub raster: i64 = 8,
        /// Split-K: into how many parts K is split, each a block's of a cluster, which add them up, where few tiles leave most of
        /// the GPU idle. By threads, on Hopper, of one term.
        pub split: i64 = 1,
    }
}

impl Multistage {
    /// By warps.
    pub fn mma() -> Multistage {
        Multistage::default()
    }

    /// In single precision, by threads.
    pub fn simt() -> Multistage {
        let matmul = MatMul { scalar: Scalar::F32, ..MatMul::default() };
        let by = By::Threads([8, 8]);
        Multistage { matmul, by, tile: [128, 64], stages: 3, ..Multistage::mma() }
    }

    /// With stages half as deep where all of them take more than so many bytes.
    #[must_use]
    pub fn within(self, bytes: i64) -> Multistage {
        let elements = self.stages * (self.tile[0] + self.tile[1]) * self.depth;
        let deep = elements * self.matmul.scalar.bytes() > bytes;
        let depth = if deep { (self.depth / 2).max(4) } else { self.depth };
        Multistage { depth, ..self }
    }

    pub(super) fn check(&self) -> Result {
        let Multistage { arch, tile, depth, .. } = *self;
        let scalar = self.matmul.scalar;
        let threads = matches!(self.by, By::Threads(_));
        arch.needs(tiled_mma::features(arch, scalar, !threads))?;
        if self.by == By::Warpgroups {
            arch.needs(&[Feature::Wgmma])?;
        }
        let gated = self.by != By::Warpgroups || !self.matmul.gated;
        needs(gated, "warps or threads for a gated matmul", self)?;
        AtLeast(if self.by == By::Warpgroups { 3 } else { 2 }).check("stages", self.stages)?;
        AtLeast(1).check("rows of tiles to walk together", self.raster)?;
        Within(1, 32).check("warps", self.warps)?;
        let unit = if threads { 4 } else { 16 };
        MultipleOf(unit).check("as the depth of a stage", depth)?;
        tile.iter().try_for_each(|&size| AtLeast(unit).check("rows and columns a tile", size))?;
        if let By::Threads(thread) = self.by {
            let fours = |&n| MultipleOf(4).check("rows and columns a thread", n);
            thread.iter().try_for_each(fours)?;
            let taken = matches!(scalar, Scalar::F32 | Scalar::I32);
            needs(taken, "operands of fp32 or i32 by threads", scalar)?;
        }
        let sums = in_registers(tile[0] * tile[1], 32 * self.warps);
        needs(sums, "accumulators that fit registers", tile)?;
        Within(1, 8).check("parts of a split-K", self.split)?;
        if self.split > 1 {
            arch.needs(&[Feature::Cluster])?;
        }
        let parts = self.split == 1 || self.matmul.terms == 1 && scalar != Scalar::I32;
        needs(parts, "one term of reals for split-K", self)
    }

    /// The kernel, with symbols M, N, a K for each term (K, K_2, …), and the batch's size if batched.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let (threads, edges) = (32 * self.warps, self.edges);
        let name = match self.by {
            By::Warps => "mma",
            By::Warpgroups => "wgmma",
            By::Threads(_) => "simt",
        };
        let sides = self.sides();
        sides.iter().try_for_each(|side| side.check(edges))?;
        let mut k = Builder::new(name, self.arch);
        let declared = self.matmul.declare(&mut k, edges, false)?;
        let matrices = self.matmul.matrices();
        // Of the result.
        let size = [self.tile[0], self.tile[1] / matrices];
        let walk = Walk::new(&declared, size, self.raster);
        let (block, t, shares) = self.launch(&mut k, walk.count())?;
        let [thread] = k.indices(block, ["thread"])?;
        let place = walk.place(&mut k, t)?;
        let mma = self.by.share(&mut k, block, sides, self.warps)?;
        let movers = Movers { threads, block, thread: &thread, edges };
        let stages = Stages::new(&mut k, &declared, sides, (self.stages, movers))?;
        let acc = mma.allocate(&mut k)?;
        // The own steps along the K of all terms: the first, and where those of each term end.
        let (mut first, mut steps) = (Expr::from(0), declared.steps(self.depth));
        if let Some(shares) = &shares {
            let (own, count) = shares.steps(&steps[0]);
            (first, steps) = (own.clone(), vec![own + count]);
        }
        let end = steps.iter().fold(Expr::from(0), |all, steps| all + steps);
        let count = end - first.clone();
        let multiply = |k: &mut Builder| {
            let fill = |k: &mut Builder, step: &Expr, stage: &Var| {
                stages.fill(k, (&steps, &(first.clone() + step)), &place, stage)
            };
            mma.sum_up(k, acc, (self.stages, block), &count, stages.shared, (None, &fill))
        };
        let epilogue = &declared.epilogue;
        let (m, n) = (place.m.clone() * size[0], place.n.clone() * size[1]);
        let origin = Place { batch: place.batch.clone(), m, n };
        let store = |k: &mut Builder| mma.leave(k, (acc, matrices), epilogue, &origin);
        let tile = declared.tile(&mut k, size, &place)?;
        match &shares {
            Some(shares) => {
                k.decompose(tile.header(block).on(shares.blocks), |k| {
                    multiply(k)?;
                    mma.add_up(k, shares, block, acc, |k, warp| {
                        let (size, place) = mma.part(&place, sides);
                        let part = declared.part(k, size, &place)?;
                        let sums = self.matmul.sums(k, acc, 1)?;
                        k.decompose(part.epilogue(&sums, warp), store)
                    })
                })?;
                // A block stays while others may still write there: a rule of all clusters.
                k.add(Header::new(Kind::Sync, (), (), block).on(shares.blocks))?;
            }
            None => k.decompose(tile.header(block), |k| {
                let sums = self.matmul.sums(k, acc, 1)?;
                k.decompose(tile.sums(&sums, block), multiply)?;
                k.decompose(tile.epilogue(&sums, block), store)
            })?,
        }
        k.finish_as(declared.header(block))
    }

    pub(super) fn sides(&self) -> [Side; 2] {
        Side::both(&self.matmul, self.tile, self.depth, self.by)
    }

    /// Launches blocks for so many tiles: says the threads, the own tile's number, and who shares it.
    pub(super) fn launch(
        &self,
        k: &mut Builder,
        tiles: Expr,
    ) -> Result<(ThreadsId, Expr, Option<Shares>)> {
        let threads = 32 * self.warps;
        let (block, t, cluster) = launch_clusters(k, (tiles, self.split), threads, "t")?;
        let pairs = self.tile[0] * self.tile[1] / (threads * PAIR);
        let holders = Holders { warps: self.warps, pairs };
        let shares =
            cluster.map(|of| Shares::new(k, self.split, holders, of, block)).transpose()?;
        if let Some(shares) = &shares {
            k.add(Header::new(Kind::Sync, (), (), block).on(shares.blocks))?;
        }
        Ok((block, t, shares))
    }
}
