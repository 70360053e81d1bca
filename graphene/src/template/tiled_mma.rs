//! How the agents of a block share the matmul of a tile: its sums are in registers, whoever adds them up.

mod threads;
mod warps;

use self::threads::Threads;
pub(super) use self::warps::Warps;
use super::epilogue::{Attached, Run};
use super::matmul::Place;
use super::stage::Side;
use crate::arch::Feature;
use crate::build::Builder;
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{TensorId, ThreadsId};
use crate::tensor::Scalar;

/// Who multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// Warps, by tensor cores: fp16 or bf16, or single precision rounded to TF32.
    Warps,
    /// Threads, by fused multiply-adds in single precision: so many rows and columns each.
    Threads([i64; 2]),
}

/// Who has which sums of a block's tile.
pub(super) enum TiledMma {
    Warps(Warps),
    Threads(Threads),
}

/// What becomes of a run of sums.
pub(super) type Finish<'a> = &'a dyn Fn(&mut Builder, TensorId, &Run) -> Result<()>;

impl By {
    /// Those who multiply single precision as IEEE has it, or rounded to TF32, or other elements; by threads, those parts of
    /// a tile whose operands are the fewest.
    pub(super) fn of(sides: [Side; 2], warps: i64, tf32: bool) -> By {
        match By::is_threads(sides[0].scalar, tf32) {
            true => By::Threads(threads::part(sides.map(|side| side.size), warps)),
            false => By::Warps,
        }
    }

    /// Whether threads multiply and add such elements.
    pub(super) fn is_threads(scalar: Scalar, tf32: bool) -> bool {
        scalar == Scalar::F32 && !tf32
    }

    /// Bytes of an operand that are read together along the contiguous axis. Of single precision across K, a warp reads eight
    /// neighbours of each of four rows.
    pub(super) fn chunk(self, scalar: Scalar, transposed: bool) -> i64 {
        if self == By::Warps && transposed && scalar == Scalar::F32 { 32 } else { 16 }
    }
}

impl TiledMma {
    /// Of tiles of `sides`, by so many warps.
    pub(super) fn new(
        k: &mut Builder,
        block: ThreadsId,
        sides: [Side; 2],
        warps: i64,
        by: By,
    ) -> Result<TiledMma> {
        Ok(match by {
            By::Warps => TiledMma::Warps(Warps::new(k, block, sides, warps)?),
            By::Threads(part) => TiledMma::Threads(Threads::new(k, block, sides, part, warps)?),
        })
    }

    /// What such matmuls need of an architecture, from stages that copies fill.
    pub(super) fn features(scalar: Scalar, tf32: bool) -> &'static [Feature] {
        match scalar {
            Scalar::Bf16 => &[Feature::CpAsync, Feature::Ldmatrix, Feature::MmaBf16],
            Scalar::F16 => &[Feature::CpAsync, Feature::Ldmatrix, Feature::MmaK16],
            Scalar::F32 if tf32 => &[Feature::CpAsync, Feature::MmaTf32],
            Scalar::F32 | Scalar::I32 | Scalar::I64 | Scalar::U32 | Scalar::U8 | Scalar::Mbar => {
                &[Feature::CpAsync]
            }
        }
    }

    /// Registers for the sums.
    pub(super) fn allocate(&self, k: &mut Builder) -> Result<TensorId> {
        match self {
            TiledMma::Warps(warps) => warps.allocate(k),
            TiledMma::Threads(threads) => threads.allocate(k),
        }
    }

    /// Sets the sums to 0.
    pub(super) fn reset(&self, k: &mut Builder, acc: TensorId) -> Result<()> {
        match self {
            TiledMma::Warps(warps) => warps.reset(k, acc),
            TiledMma::Threads(threads) => threads.reset(k, acc),
        }
    }

    /// Adds the matmul of a stage; of A, from the step `skipped` of 16 along K on.
    pub(super) fn multiply(
        &self,
        k: &mut Builder,
        acc: TensorId,
        a: TensorId,
        skipped: &Expr,
        b: TensorId,
    ) -> Result<()> {
        match self {
            TiledMma::Warps(warps) => warps.multiply(k, acc, a, skipped, b),
            TiledMma::Threads(threads) => threads.multiply(k, acc, a, &(skipped.clone() * 4), b),
        }
    }

    /// Goes through the own runs of sums, of a tile whose first element has this place.
    pub(super) fn each_run(
        &self,
        k: &mut Builder,
        acc: TensorId,
        epilogue: &Attached,
        origin: &Place,
        finish: Finish<'_>,
    ) -> Result<()> {
        match self {
            TiledMma::Warps(warps) => warps.each_run(k, acc, epilogue, origin, finish),
            TiledMma::Threads(threads) => threads.each_run(k, acc, epilogue, origin, finish),
        }
    }
}
