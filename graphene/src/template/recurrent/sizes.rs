//! How large a layer's kernel is, the one that fits a device, and which ones there are.

use super::sums::Sums;
use super::{Direction, Own, Recurrent};
use crate::error::{Error, Result};
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
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        self.cell.check().or_else(refuse)?;
        if !matches!(self.scalar, Scalar::F16 | Scalar::Bf16 | Scalar::F32) {
            return refuse("layers are of floating point");
        }
        if self.inputs < 1 || self.hidden < 1 || self.units < 8 || self.units % 8 != 0 {
            return refuse("a layer has inputs and units, a block eights of units");
        }
        if self.rows < 8 || self.depth < 16 || self.depth % 16 != 0 || self.stages < 2 {
            return refuse("a block has rows, and two stages at least of a depth of 16, 32, …");
        }
        if self.edges == Edges::Bulk
            && [self.inputs, self.hidden].iter().any(|size| size * self.scalar.bytes() % 16 != 0)
        {
            return refuse("rows that are no multiple of 16 bytes");
        }
        self.arch.needs(features(self.scalar, false))?;
        if !(1..=1024).contains(&self.threads()) {
            return refuse("a block has 1 to 32 warps");
        }
        if self.results[2] && self.cell.own != Own::Cell || self.results == [false; 3] {
            return refuse("a layer has a result, and an LSTM alone a cell state");
        }
        if self.initial[1] && self.cell.own != Own::Cell {
            return refuse("an LSTM alone has a cell state");
        }
        Ok(())
    }
}
