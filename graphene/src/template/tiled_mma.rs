//! How the agents of a block share the matmul of a tile: its sums are in registers, whoever adds them up.

mod threads;
mod warpgroups;
mod warps;

use self::threads::Threads;
use self::warpgroups::Warpgroups;
pub(super) use self::warps::Warps;
use super::epilogue::{Attached, Run};
use super::matmul::Place;
use super::split_k::{Held, Shares, Visit};
use super::stage::Side;
use crate::arch::{Feature, WARP};
use crate::build::Builder;
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{TensorId, ThreadsId};
use crate::layout::Tiler;
use crate::schedule::Ahead;
use crate::tensor::Scalar;

/// Who multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// Warps, by tensor cores: fp16 or bf16, or single precision rounded to TF32.
    Warps,
    /// Warpgroups, by tensor cores that read both operands in shared memory: fp16 or bf16, of rows of 32 bytes or more.
    Warpgroups,
    /// Threads, by fused multiply-adds in single precision: so many rows and columns each.
    Threads([i64; 2]),
}

/// Who has which sums of a block's tile.
pub(super) enum TiledMma {
    Warps(Warps),
    Warpgroups(Warpgroups),
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
            By::Warpgroups => TiledMma::Warpgroups(Warpgroups::new(k, block, sides, warps)?),
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
            TiledMma::Warpgroups(groups) => groups.allocate(k),
            TiledMma::Threads(threads) => threads.allocate(k),
        }
    }

    /// Sets the sums to 0.
    pub(super) fn reset(&self, k: &mut Builder, acc: TensorId) -> Result<()> {
        match self {
            TiledMma::Warps(warps) => warps.reset(k, acc),
            TiledMma::Warpgroups(groups) => groups.reset(k, acc),
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
            TiledMma::Warpgroups(groups) => groups.multiply(k, acc, a, b),
            TiledMma::Threads(threads) => threads.multiply(k, acc, a, &(skipped.clone() * 4), b),
        }
    }

    /// Waits until the matmuls of so many stages at most are on their way, where they are asynchronous.
    pub(super) fn wait(&self, k: &mut Builder, acc: TensorId, stages: i64) -> Result<()> {
        match self {
            TiledMma::Warpgroups(groups) => groups.wait(k, acc, stages),
            TiledMma::Warps(_) | TiledMma::Threads(_) => Ok(()),
        }
    }

    /// The stages of so many, as their readers need them.
    pub(super) fn ahead(&self, k: &mut Builder, stages: i64, block: ThreadsId) -> Result<Ahead> {
        let ahead = Ahead::new(k, stages, block)?;
        Ok(match self {
            TiledMma::Warpgroups(_) => ahead.for_asynchronous_readers(),
            TiledMma::Warps(_) | TiledMma::Threads(_) => ahead,
        })
    }

    /// Rows and columns of a part of a tile, a warp's or a warpgroup's, and which of these parts of the result the own one is, of the tile at a
    /// place.
    pub(super) fn part(&self, tile: &Place, sides: [Side; 2]) -> ([i64; 2], Place) {
        let (size, own) = match self {
            TiledMma::Warps(warps) => (warps.of_warp(), warps.part()),
            TiledMma::Warpgroups(groups) => (groups.of_group(), groups.part()),
            TiledMma::Threads(threads) => (threads.of_warp(), threads.part()),
        };
        let of_tile = [0, 1].map(|i| sides[i].size / size[i]);
        let [m, n] = own;
        let (m, n) = (tile.m.clone() * of_tile[0] + m, tile.n.clone() * of_tile[1] + n);
        (size, Place { batch: tile.batch.clone(), m, n })
    }

    /// Adds up the sums of blocks that share a tile; the warp that has all of a part's goes on.
    pub(super) fn add_up(
        &self,
        k: &mut Builder,
        shares: &Shares,
        block: ThreadsId,
        acc: TensorId,
        go_on: impl FnOnce(&mut Builder, ThreadsId) -> Result<()>,
    ) -> Result<()> {
        let warps = k.tile(block, "warps", &[Tiler::Size(WARP)])?;
        let [number, _] = k.indices(warps, ["sharing", "lane"])?;
        let warp = k.index(warps, "warp", [&number])?;
        let each = |k: &mut Builder, visit: Visit<'_>| match self {
            TiledMma::Warps(warps) => warps.each_pair(k, acc, visit),
            TiledMma::Warpgroups(groups) => groups.each_pair(k, acc, visit),
            TiledMma::Threads(threads) => threads.each_pair(k, acc, visit),
        };
        let held = Held { warp, number: number.into(), each: &each };
        shares.add_up(k, &held, |k| go_on(k, warp))
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
            TiledMma::Warpgroups(groups) => groups.each_run(k, acc, epilogue, origin, finish),
            TiledMma::Threads(threads) => threads.each_run(k, acc, epilogue, origin, finish),
        }
    }
}
