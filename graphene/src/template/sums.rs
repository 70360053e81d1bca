//! The sums of a tile in registers, however they are added up: by warps, or by single threads.

use super::epilogue::{Across, Attached, Run};
use super::mma::Fragments;
use super::simt::{self, Own};
use super::stage::Side;
use crate::arch::Feature;
use crate::build::Builder;
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{TensorId, ThreadsId};
use crate::tensor::Scalar;

/// Who adds up the products of a block's tile.
pub(super) enum Sums {
    /// Warps, by the instructions of tensor cores.
    Warps(Fragments),
    /// Threads, by IEEE fused multiply-adds.
    Threads(Own),
}

/// What the products of such elements need of an architecture, from stages that copies fill.
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

impl Sums {
    /// Of tiles of `sides`, by so many warps; single precision by threads unless it is rounded to TF32.
    pub(super) fn new(
        k: &mut Builder,
        block: ThreadsId,
        sides: [Side; 2],
        warps: i64,
        tf32: bool,
    ) -> Result<Sums> {
        if Sums::of_threads(sides[0].scalar, tf32) {
            let part = simt::part(sides.map(|side| side.size), warps);
            return Ok(Sums::Threads(Own::new(k, block, sides, part, warps)?));
        }
        Ok(Sums::Warps(Fragments::new(k, block, sides, warps)?))
    }

    /// Whether threads add up the products of such elements.
    pub(super) fn of_threads(scalar: Scalar, tf32: bool) -> bool {
        scalar == Scalar::F32 && !tf32
    }

    /// Bytes of an operand that are read together along the contiguous axis.
    pub(super) fn chunk(scalar: Scalar, tf32: bool, transposed: bool) -> i64 {
        if Sums::of_threads(scalar, tf32) { 16 } else { Fragments::chunk(scalar, transposed) }
    }

    /// Each thread on its own.
    pub(super) fn one(&self) -> ThreadsId {
        match self {
            Sums::Warps(fragments) => fragments.one,
            Sums::Threads(own) => own.one,
        }
    }

    /// Registers for the sums.
    pub(super) fn allocate(&self, k: &mut Builder) -> Result<TensorId> {
        match self {
            Sums::Warps(fragments) => fragments.allocate(k),
            Sums::Threads(own) => own.allocate(k),
        }
    }

    /// Sets the sums to 0.
    pub(super) fn reset(&self, k: &mut Builder, acc: TensorId) -> Result<()> {
        match self {
            Sums::Warps(fragments) => fragments.reset(k, acc),
            Sums::Threads(own) => own.reset(k, acc),
        }
    }

    /// Adds the products of a stage; of A, from the step `skipped` of 16 along K on.
    pub(super) fn multiply(
        &self,
        k: &mut Builder,
        acc: TensorId,
        a: TensorId,
        skipped: &Expr,
        b: TensorId,
    ) -> Result<()> {
        match self {
            Sums::Warps(fragments) => fragments.multiply(k, acc, a, skipped, b),
            Sums::Threads(own) => own.multiply(k, acc, a, &(skipped.clone() * 4), b),
        }
    }

    /// Goes through the own runs of sums, of a tile whose rows and columns begin at these.
    pub(super) fn each_run(
        &self,
        k: &mut Builder,
        acc: TensorId,
        epilogue: &Attached,
        [row, column]: [Expr; 2],
        body: impl Fn(&mut Builder, TensorId, &Run, &Across) -> Result<()>,
    ) -> Result<()> {
        let origin = |n: i64| [row.clone(), column.div(&Expr::from(n))];
        match self {
            Sums::Warps(fragments) => fragments.each_pair(k, acc, epilogue, None, &origin(2), body),
            Sums::Threads(own) => own.each_run(k, acc, epilogue, None, &origin(own.run()), body),
        }
    }
}
