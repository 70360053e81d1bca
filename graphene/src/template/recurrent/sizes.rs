//! How large a layer's kernel is, the one that fits a device, and which ones there are.

use super::sums::Sums;
use super::{Direction, Own, Recurrent};
use crate::error::{Result, needs};
use crate::index::Expr;
use crate::template::product::Edges;
use crate::template::stage::Side;
use crate::template::sums::features;
use crate::tensor::Scalar;

impl Recurrent {
    /// The layer with as few units a block as so many cores allow, each of which has one block; with
    /// the warps that share its rows and units, and with the weights in shared memory that so many
    /// bytes have room for: R before W, whose products need not wait. `None` if there are more units
    /// than that.
    #[must_use]
    pub fn fitting(self, cores: i64, shared: i64) -> Option<Recurrent> {
        const WARPS: i64 = 8;
        let single = self.scalar == Scalar::F32;
        // Sixteen columns share an instruction's operands.
        let group = if !single && self.sums() % 2 == 1 { 16 } else { 8 };
        let along = self.rows / if single { 8 } else { 16 };
        let mut units = group;
        while (Recurrent { units, ..self.clone() }).blocks() > cores {
            units += group;
        }
        let mut least = Vec::new();
        for resident in [[true, true], [false, true], [false, false]] {
            // Fewer warps along the units than there could be, where there are many.
            let groups = units / group;
            let columns = (1..=groups).rev().find(|n| groups % n == 0 && along * n <= WARPS);
            let warps = [along, columns.unwrap_or(1)];
            let deep = self.depth / if single { 4 } else { 16 };
            let times = |n: &i64| deep % n == 0 && n * warps[0] * warps[1] <= WARPS;
            let slices = (1..=WARPS).rev().find(times).unwrap_or(1);
            least.push(Recurrent { units, warps, slices, resident, ..self.clone() });
        }
        least.into_iter().find(|layer| layer.shared_bytes() <= shared && layer.kernel().is_ok())
    }

    /// Blocks for each part of the batch.
    pub fn blocks(&self) -> i64 {
        self.directions() * ((self.hidden + self.units - 1) / self.units)
    }

    /// Threads of a block.
    pub fn threads(&self) -> i64 {
        32 * self.warps[0] * self.warps[1] * self.slices
    }

    /// Directions.
    pub fn directions(&self) -> i64 {
        match self.direction {
            Direction::Forward | Direction::Reverse => 1,
            Direction::Both => 2,
        }
    }

    /// Shared memory of a block, in bytes.
    pub fn shared_bytes(&self) -> i64 {
        let (columns, bytes) = (self.columns(), self.scalar.bytes());
        let stages = if self.resident == [true; 2] { 0 } else { self.stages };
        let resident: i64 = (0..2).filter(|&i| self.resident[i]).map(|i| self.chunks(i)).sum();
        let tiles = self.stages * self.rows + (stages + resident) * columns;
        // A row may be longer by a chunk, and every tensor begins at a multiple.
        let operands = tiles * (self.depth * bytes + Sums::CHUNK) + 4 * 1024;
        operands + (self.slices - 1) * self.rows * columns * 4
    }

    pub(super) fn members(&self) -> Expr {
        Expr::from((self.hidden + self.units - 1) / self.units)
    }

    pub(super) fn sums(&self) -> i64 {
        self.cell.sums.len() as i64
    }

    pub(super) fn columns(&self) -> i64 {
        self.units * self.sums()
    }

    /// Tiles of W, or of R, along the depth.
    pub(super) fn chunks(&self, i: usize) -> i64 {
        let depth = [self.inputs, self.hidden][i];
        (depth + self.depth - 1) / self.depth
    }

    pub(super) fn sides(&self) -> [Side; 2] {
        [(false, self.rows), (true, self.columns())].map(|(right, size)| Side {
            right,
            size,
            depth: self.depth,
            transposed: false,
            scalar: self.scalar,
            chunk: Sums::CHUNK,
        })
    }

    /// Whether there is such a kernel.
    pub(super) fn check(&self) -> Result<()> {
        self.cell.check()?;
        let float = matches!(self.scalar, Scalar::F16 | Scalar::Bf16 | Scalar::F32);
        needs(float, "fp16, bf16 or fp32 operands", self.scalar)?;
        let sizes = [self.inputs, self.hidden];
        needs(sizes.iter().all(|size| *size >= 1), "1 or more inputs and units", sizes)?;
        let eights = self.units >= 8 && self.units % 8 == 0;
        needs(eights, "a multiple of 8 units a block", self.units)?;
        needs(self.rows >= 8, "8 or more rows a block", self.rows)?;
        let deep = self.depth >= 16 && self.depth % 16 == 0;
        needs(deep, "a stage depth that is a multiple of 16", self.depth)?;
        needs(self.stages >= 2, "2 or more stages", self.stages)?;
        let aligned = sizes.iter().all(|size| size * self.scalar.bytes() % 16 == 0);
        let wide = self.edges == Edges::Moves || aligned;
        needs(wide, "rows of a multiple of 16 bytes for wide copies", sizes)?;
        self.arch.needs(features(self.scalar, false))?;
        needs((1..=1024).contains(&self.threads()), "1 to 32 warps", self.threads() / 32)?;
        needs(self.results != [false; 3], "1 or more results", self.results)?;
        let state = self.cell.own == Own::Cell || !(self.results[2] || self.initial[1]);
        needs(state, "an LSTM for a cell state", &self.cell)
    }
}
