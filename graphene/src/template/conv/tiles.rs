//! How a convolution's product is cut into tiles, and which ways there are.

use super::operands::Sizes;
use super::{By, Conv, Convolution};
use crate::choose::in_registers;
use crate::error::{Error, Result};
use crate::index::Expr;
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
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        self.arch.needs(features(self.convolution.scalar, self.by == By::Warps))?;
        if self.raster < 1 || !(1..=32).contains(&self.warps) {
            return refuse("a band has a row, a block 1 to 32 warps");
        }
        let unit = match self.by {
            By::Warps => 16,
            By::Threads(_) => 4,
        };
        if self.stages < 2 || self.depth < unit || self.depth % unit != 0 {
            return refuse("two stages at least, of a depth of 16, 32, … or by threads 4, 8, …");
        }
        if self.tile.iter().any(|size| *size < unit) {
            return refuse("a tile has 16 rows and columns at least");
        }
        if let By::Threads(thread) = self.by
            && (thread.iter().any(|size| *size < 4 || size % 4 != 0)
                || self.convolution.scalar != Scalar::F32)
        {
            return refuse("a thread has fours of rows and columns, in single precision");
        }
        if self.weights == Edges::Bulk && self.convolution.depth() * self.scalar_bytes() % 16 != 0 {
            return refuse("weights of an output channel that do not begin at 16 bytes");
        }
        if !in_registers(self.tile[0] * self.tile[1], 32 * self.warps) {
            return refuse("a thread has too many sums");
        }
        Ok(())
    }

    fn scalar_bytes(&self) -> i64 {
        self.convolution.scalar.bytes()
    }
}
