//! Who multiplies the tiles of a convolution, and goes through the sums.

use crate::build::Builder;
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::TensorId;
use crate::template::epilogue::{Across, Attached, Run};
use crate::template::mma::Fragments;
use crate::template::product::Place;
use crate::template::simt::Own;

/// Who multiplies, and where they stand.
pub(super) enum Units {
    Warps(Fragments),
    Threads(Own),
}

impl Units {
    /// Registers for the sums.
    pub(super) fn allocate(&self, k: &mut Builder) -> Result<TensorId> {
        match self {
            Units::Warps(fragments) => fragments.allocate(k),
            Units::Threads(own) => own.allocate(k),
        }
    }

    /// Sets the sums to 0.
    pub(super) fn reset(&self, k: &mut Builder, acc: TensorId) -> Result<()> {
        match self {
            Units::Warps(fragments) => fragments.reset(k, acc),
            Units::Threads(own) => own.reset(k, acc),
        }
    }

    /// Adds the products of a stage.
    pub(super) fn multiply(
        &self,
        k: &mut Builder,
        acc: TensorId,
        [a, b]: [TensorId; 2],
    ) -> Result<()> {
        match self {
            Units::Warps(fragments) => fragments.multiply(k, acc, a, &Expr::from(0), b),
            Units::Threads(own) => own.multiply(k, acc, a, &Expr::from(0), b),
        }
    }

    /// Goes through the own sums in runs of neighbouring columns.
    pub(super) fn each_run(
        &self,
        k: &mut Builder,
        acc: TensorId,
        epilogue: &Attached,
        tile: [i64; 2],
        place: &Place,
        body: impl Fn(&mut Builder, TensorId, &Run, &Across) -> Result<()>,
    ) -> Result<()> {
        let origin = |n: i64| [place.m.clone() * tile[0], place.n.clone() * (tile[1] / n)];
        match self {
            Units::Warps(fragments) => {
                fragments.each_pair(k, acc, epilogue, None, &origin(2), body)
            }
            Units::Threads(own) => own.each_run(k, acc, epilogue, None, &origin(own.run()), body),
        }
    }
}
