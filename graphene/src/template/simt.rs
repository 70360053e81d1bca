//! Matmuls `C[m,n] = f(A[m,k]·B[k,n])` in single precision, by IEEE fused multiply-adds of single threads, for Ampere and
//! newer: `multistage` says how. A thread has rows and columns of its own, and reads four neighbours
//! at once, whatever is contiguous: four steps along K, or four rows or columns.

use super::conv::By;
use super::matmul::{Edges, MatMul};
use super::multistage::Multistage;
use crate::arch::Arch;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::tensor::Scalar;

/// The parameters of a matmul.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Simt {
    /// What is computed, of single precision.
    pub matmul: MatMul,
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
            matmul: MatMul { scalar: Scalar::F32, ..MatMul::default() },
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
        let depth = if stages > bytes { (self.depth / 2).max(4) } else { self.depth };
        Simt { depth, ..self }
    }

    /// The kernel, with symbols M, N, a K for each term (K, K_2, …), and the batch's size if batched.
    ///
    /// # Errors
    /// [`Error::Constraint`](crate::Error::Constraint) for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        let Simt { ref matmul, arch, tile, depth, warps, stages, raster, split, .. } = *self;
        let (scalar, by) = (matmul.scalar, By::Threads(self.thread));
        Multistage { arch, scalar, by, tile, depth, warps, stages, raster, split, matmul }
            .kernel("simt", self.edges)
    }
}
