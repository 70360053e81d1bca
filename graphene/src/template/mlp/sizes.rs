//! What a block of a chain of layers has: columns, steps, stages, sums and bytes; and whether a kernel
//! has them.

use super::{Layer, Mlp, SUMS};
use crate::error::{Error, Result};
use crate::schedule::pointwise::WIDTH;
use crate::template::access::Stride;
use crate::template::epilogue::Span;
use crate::template::product::Edges;
use crate::template::stage::Side;
use crate::template::sums::{Sums, features};
use crate::tensor::Scalar;

impl Mlp {
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        if self.layers.last().is_none_or(|last| last.times != 1) {
            return refuse("there is a last layer");
        }
        if !matches!(self.scalar, Scalar::F32 | Scalar::F16 | Scalar::Bf16) {
            return refuse("rows and weights are floats");
        }
        if self.depth < 16 || self.depth % 16 != 0 {
            return refuse("a stage's depth is a multiple of 16");
        }
        self.arch.needs(features(self.scalar, self.tf32))?;
        if self.stages < 2 || !(1..=32).contains(&self.warps) {
            return refuse("two stages at least, a block of 1 to 32 warps");
        }
        if self.rows < 16 || self.rows % 16 != 0 {
            return refuse("a block has 16, 32, … rows");
        }
        if self.stride == Stride::Broadcast {
            return refuse("rows are not all the same");
        }
        let mut from = self.width;
        for (l, Layer { width, times, skip, epilogue, .. }) in self.layers.iter().enumerate() {
            if [from, *width].iter().any(|width| !(1..=4096).contains(width)) {
                return refuse("a layer has 1 to 4096 columns");
            }
            let inputs = 1 + epilogue.operands.len() + usize::from(*skip);
            let outputs = epilogue.function.outputs().len();
            if epilogue.function.inputs() > inputs || outputs != epilogue.outputs.len() {
                return refuse("a function has the sum, the operands and the input as inputs");
            }
            if outputs == 0 {
                return refuse("a layer has a result");
            }
            if *skip && from != *width {
                return refuse("an input that skips its layer is as wide as the result");
            }
            let rows = epilogue.operands.iter().all(|operand| operand.span == Span::Row);
            let alike = from == *width && rows && outputs == 1;
            if *times < 1 || (*times > 1 && !alike) {
                return refuse("layers of a loop have like inputs and results, and only rows");
            }
            if self.padded(l) < *width {
                return refuse("warps do not share a layer");
            }
            from = *width;
        }
        if self.sums() > SUMS {
            return refuse("a thread has too many sums");
        }
        Ok(())
    }

    /// Sums that a thread has.
    pub(super) fn sums(&self) -> i64 {
        let widest = (0..self.layers.len()).map(|l| self.padded(l)).max().unwrap_or(0);
        widest * self.rows / (32 * self.warps)
    }

    /// The bytes of shared memory that a block takes.
    pub(super) fn bytes(&self) -> i64 {
        let stages = [false, true].into_iter().filter_map(|transposed| self.stage(transposed));
        self.near().bytes() + stages.map(|side| self.stages * side.bytes()).sum::<i64>()
    }

    /// Columns that a layer is computed with: those that warps can share; and, of what is an input,
    /// whole stages. Beyond the layer's own, weights and inputs are 0.
    pub(super) fn padded(&self, l: usize) -> i64 {
        let along = gcd(self.rows / 16, self.warps);
        let shared = 16 * self.warps / along;
        let whole = if l + 1 < self.layers.len() { lcm(shared, self.depth) } else { shared };
        round_up(self.layers[l].width, whole)
    }

    /// The same of a layer's input.
    fn padded_input(&self, l: usize) -> i64 {
        match l.checked_sub(1) {
            Some(before) => self.padded(before),
            None => round_up(self.width, self.depth),
        }
    }

    /// Columns of a layer's input.
    pub(super) fn input(&self, l: usize) -> i64 {
        l.checked_sub(1).map_or(self.width, |before| self.layers[before].width)
    }

    /// Steps along a layer's K.
    pub(super) fn steps(&self, l: usize) -> i64 {
        (self.input(l) + self.depth - 1) / self.depth
    }

    /// The rows: as a layer's input, and a stage of its weights.
    pub(super) fn sides(&self, l: usize) -> [Side; 2] {
        let transposed = self.layers[l].transposed;
        let rows = self.side(false, self.rows, self.padded_input(l), false);
        [rows, self.side(true, self.padded(l), self.depth, transposed)]
    }

    fn side(&self, right: bool, size: i64, depth: i64, transposed: bool) -> Side {
        let chunk = Sums::chunk(self.scalar, self.tf32, transposed);
        Side { right, size, depth, transposed, scalar: self.scalar, chunk }
    }

    /// The rows where they are widest.
    pub(super) fn near(&self) -> Side {
        let widest = (0..self.layers.len()).map(|l| self.padded_input(l)).max();
        self.side(false, self.rows, widest.unwrap_or(16), false)
    }

    /// A stage of weights so laid out where they are widest, if there are any.
    pub(super) fn stage(&self, transposed: bool) -> Option<Side> {
        let like = |l: &usize| self.layers[*l].transposed == transposed;
        let widest = (0..self.layers.len()).filter(like).map(|l| self.padded(l)).max()?;
        Some(self.side(true, widest, self.depth, transposed))
    }

    /// How rows of so many elements move.
    pub(super) fn edges(&self, width: i64) -> Edges {
        if width * self.scalar.bytes() % WIDTH == 0 { self.edges } else { Edges::Moves }
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: i64, b: i64) -> i64 {
    a / gcd(a, b) * b
}

fn round_up(size: i64, to: i64) -> i64 {
    (size + to - 1) / to * to
}
