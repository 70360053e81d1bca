//! Matrix products `C[m,n] = f(A[m,k]·B[k,n])` by the tensor cores' instructions of single warps, for
//! Ampere and newer.
//!
//! Each block computes one tile of C. Its threads copy tiles of A and B into stages of shared memory
//! while its warps multiply those that are there, each its own part of the tile.
//!
//! Levels, each one in the one above:
//!
//! - kernel: C, of A, B and what the epilogue meets;
//! - tile: C's, of A's rows, B's columns and the epilogue's;
//! - tile: its sums, of A's rows and B's columns; and C's, of the sums and the epilogue's;
//! - stage: adds a product of A's and B's in shared memory to the sums, or moves A's or B's there.
//!
//! - this file: the parameters and the kernel's outline;
//! - `fragments`: a warp's products, from shared memory to sums;
//! - `near`: what they are made of.

mod fragments;
mod near;

pub(super) use self::fragments::Fragments;
use super::epilogue::Attached;
use super::product::{Edges, Place, Product, Walk, line};
use super::stage::{Movers, Side, Stages};
use super::sums::features;
use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::choose::in_registers;
use crate::error::{Result, needs};
use crate::index::Expr;
use crate::kernel::{Kernel, Kind, TensorId};
use crate::schedule::multistage;

/// The parameters of a product.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mma {
    /// What is computed: of halves, or of single precision rounded to TF32, to nearest with ties away
    /// from 0.
    pub product: Product,
    /// What the kernel is written for; it runs on newer ones, too.
    pub arch: Arch,
    /// How operands and results move.
    pub edges: Edges,
    /// Rows and columns of a block's tile: each a multiple of 16 for each warp along it.
    pub tile: [i64; 2],
    /// The depth of a stage: a multiple of 16.
    pub depth: i64,
    /// Warps of a block.
    pub warps: i64,
    /// Stages in shared memory.
    pub stages: i64,
    /// Rows of tiles that are walked together, so that operands stay in the L2 cache.
    pub raster: i64,
}

impl Default for Mma {
    fn default() -> Mma {
        Mma {
            product: Product::default(),
            arch: Arch::Sm80,
            edges: Edges::Bulk,
            tile: [128, 128],
            depth: 32,
            warps: 4,
            stages: 4,
            raster: 8,
        }
    }
}

impl Mma {
    /// The kernel, with symbols M, N, a K for each term (K, K_2, …), and the number of products if
    /// batched.
    ///
    /// # Errors
    /// [`Error::Kernel`](crate::Error::Kernel) for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let threads = 32 * self.warps;
        let mut sides = Side::both(&self.product, self.tile, self.depth, 16);
        for side in &mut sides {
            side.chunk = Fragments::chunk(side.scalar, side.transposed);
            side.check(self.edges)?;
        }
        let mut k = Builder::new("mma", self.arch);
        let declared = self.product.declare(&mut k, self.edges, false)?;
        let walk = Walk::new(&declared, self.tile, self.raster);
        let grid = k.grid("grid", line(walk.count()))?;
        let block = k.block("block", line(threads))?;
        let one = k.scalar(block, "one")?;
        let [t] = k.indices(grid, ["t"])?;
        let cta = k.index(grid, "cta", [&t])?;
        k.by(cta);
        let [thread] = k.indices(block, ["thread"])?;
        let place = walk.place(&mut k, &t)?;
        let fragments = Fragments::new(&mut k, block, sides, self.warps)?;
        let stages = Stages::new(&mut k, &declared, sides, self.stages)?;
        let acc = fragments.allocate(&mut k)?;
        let steps = declared.steps(self.depth);
        let all = steps.iter().fold(Expr::from(0), |all, steps| all + steps);
        let movers = Movers { threads, block, thread: &thread, one, edges: self.edges };
        let tile = declared.tile(&mut k, self.tile, &place)?;
        k.decompose(tile.header(declared.kind(), block), |k| {
            k.decompose(tile.sums(declared.sums(), acc, block), |k| {
                fragments.reset(k, acc)?;
                multistage(
                    k,
                    self.stages,
                    &all,
                    block,
                    |k, step, stage| stages.fill(k, &steps, &place, step, stage, movers),
                    |k, _, stage| {
                        let near = stages.of(k, stage)?;
                        k.decompose(Header::new(Kind::MATMUL_ADD, acc, near, block), |k| {
                            fragments.multiply(k, acc, near[0], &Expr::from(0), near[1])
                        })
                    },
                )
            })?;
            let epilogue = &declared.epilogue;
            k.decompose(tile.epilogue(epilogue.kind(), acc, block), |k| {
                self.store(k, &fragments, epilogue, acc, &place)
            })
        })?;
        k.finish_as(declared.header(block))
    }

    fn check(&self) -> Result<()> {
        needs(self.stages >= 2, "2 or more stages", self.stages)?;
        let deep = self.depth >= 16 && self.depth % 16 == 0;
        needs(deep, "a stage depth that is a multiple of 16", self.depth)?;
        self.arch.needs(features(self.product.scalar, true))?;
        needs(self.raster >= 1, "1 or more rows of tiles to walk together", self.raster)?;
        needs((1..=32).contains(&self.warps), "1 to 32 warps", self.warps)?;
        needs(self.tile.iter().all(|size| *size >= 16), "a tile of 16x16 or more", self.tile)?;
        let sums = self.tile[0] * self.tile[1];
        needs(in_registers(sums, 32 * self.warps), "accumulators that fit registers", self.tile)
    }

    /// The sums' functions, straight from registers.
    fn store(
        &self,
        k: &mut Builder,
        fragments: &Fragments,
        epilogue: &Attached,
        acc: TensorId,
        place: &Place,
    ) -> Result<()> {
        let all = epilogue.all();
        let origin = [place.m.clone() * self.tile[0], place.n.clone() * (self.tile[1] / 2)];
        fragments.each_pair(
            k,
            acc,
            epilogue,
            place.batch.as_ref(),
            &origin,
            |k, sums, run, across| epilogue.leave(k, sums, run, across, &all, fragments.one),
        )
    }
}
