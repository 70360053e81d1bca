//! Matmuls `C[m,n] = f(A[m,k]·B[k,n])` by the tensor cores' instructions of single warps, for Ampere and newer:
//! `multistage` says how.

use super::conv::By;
use super::matmul::{Edges, MatMul};
use super::multistage::Multistage;
use crate::arch::Arch;
use crate::error::Result;
use crate::kernel::Kernel;

/// The parameters of a matmul.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mma {
    /// What is computed: of fp16 or bf16, or of single precision rounded to TF32, to nearest with ties away from 0.
    pub matmul: MatMul,
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
            matmul: MatMul::default(),
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
    /// The kernel, with symbols M, N, a K for each term (K, K_2, …), and the batch's size if batched.
    ///
    /// # Errors
    /// [`Error::Constraint`](crate::Error::Constraint) for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        let Mma { ref matmul, arch, edges, tile, depth, warps, stages, raster } = *self;
        let (scalar, by, split) = (matmul.scalar, By::Warps, 1);
        Multistage { arch, scalar, by, tile, depth, warps, stages, raster, split, matmul }
            .kernel("mma", edges)
    }
}
