//! How a convolution's product is cut into tiles, and which ways there are.

use super::operands::Sizes;
use super::{Axis, By, Conv, Convolution};
use crate::choose::in_registers;
use crate::error::{Result, needs};
use crate::index::Expr;
use crate::kernel::Fused;
use crate::template::mma::Fragments;
use crate::template::product::{Edges, Walk};
use crate::template::stage::Side;
use crate::template::sums::features;
use crate::tensor::Scalar;

impl Conv {
    /// Whether all pixels of an image are one axis: windows are single elements.
    pub fn is_flat(&self) -> bool {
        self.pixels == Edges::Bulk && self.convolution.is_pointwise()
    }

    /// The matrix whose columns are what pixels see.
    pub(super) fn columns(&self, sizes: &Sizes) -> Fused {
        if self.is_flat() {
            return Convolution::flat_columns();
        }
        let windows = self.convolution.windows(Fused::input(0), sizes, Axis::windows);
        self.convolution.columns(windows)
    }

    /// The weights' tiles, and those of pixels.
    pub(super) fn sides(&self) -> [Side; 2] {
        [0, 1].map(|i| {
            let (right, scalar) = (i == 1, self.convolution.scalar);
            let chunk = match self.by {
                By::Warps => Fragments::chunk(scalar, right),
                By::Threads(_) => 16,
            };
            let (size, depth) = (self.tile[i], self.depth);
            Side { right, size, depth, transposed: right, scalar, chunk }
        })
    }

    /// Tiles of each group, group by group.
    pub(super) fn walk(&self, sizes: &Sizes) -> Walk {
        let Convolution { channels, group, .. } = self.convolution;
        let columns = sizes.pixels.clone() * &sizes.images;
        let tiles = |extent: Expr, size: i64| extent.ceil_div(&Expr::from(size));
        Walk {
            tiles_m: tiles(Expr::from(channels[1] / group), self.tile[0]),
            tiles_n: tiles(columns, self.tile[1]),
            batch: (group > 1).then(|| Expr::from(group)),
            raster: self.raster,
        }
    }

    /// Whether there is such a kernel.
    pub(super) fn check(&self) -> Result<()> {
        self.convolution.check()?;
        let scalar = self.convolution.scalar;
        self.arch.needs(features(scalar, self.by == By::Warps))?;
        needs(self.raster >= 1, "1 or more rows of tiles to walk together", self.raster)?;
        needs((1..=32).contains(&self.warps), "1 to 32 warps", self.warps)?;
        let unit = match self.by {
            By::Warps => 16,
            By::Threads(_) => 4,
        };
        needs(self.stages >= 2, "2 or more stages", self.stages)?;
        let deep = self.depth >= unit && self.depth % unit == 0;
        needs(deep, "a stage depth that is a multiple of 16, by threads of 4", self.depth)?;
        let large = self.tile.iter().all(|size| *size >= unit);
        needs(large, "a tile of 16x16 or more, by threads of 4x4", self.tile)?;
        if let By::Threads(thread) = self.by {
            let fours = thread.iter().all(|size| *size >= 4 && size % 4 == 0);
            needs(fours, "multiples of 4 rows and columns a thread", thread)?;
            needs(scalar == Scalar::F32, "fp32 operands by threads", scalar)?;
        }
        let row = self.convolution.depth() * scalar.bytes();
        let aligned = self.weights == Edges::Moves || row % 16 == 0;
        needs(aligned, "weights of a channel in a multiple of 16 bytes for wide copies", row)?;
        let sums = self.tile[0] * self.tile[1];
        needs(in_registers(sums, 32 * self.warps), "accumulators that fit registers", self.tile)
    }
}
