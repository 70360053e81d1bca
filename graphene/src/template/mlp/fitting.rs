//! Blocks that fit layers.

use super::{Layer, Mlp, SUMS};
use crate::error::{Error, Result};
use crate::template::sums::Sums;
use crate::tensor::Scalar;

/// Rows of the smallest block that is worth it: it reads its weights for so many.
const LEAST_ROWS: i64 = 32;

impl Mlp {
    /// So many like layers of one width: all but the last in a loop.
    pub fn alike(count: i64, layer: Layer) -> Mlp {
        let last = Layer { times: 1, ..layer.clone() };
        let first = Layer { times: count - 1, ..layer };
        let width = last.width;
        let layers = if count > 1 { vec![first, last] } else { vec![last] };
        Mlp { width, layers, ..Mlp::default() }
    }

    /// With as many warps, stages and so on as these layers want, and as many rows, from `rows` down,
    /// as registers and so much shared memory let a block have.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a block of 16 rows does not fit.
    pub fn fitting(self, rows: i64, shared: i64) -> Result<Mlp> {
        let heights = std::iter::successors(Some(rows), |rows| Some(rows / 2));
        for rows in heights.take_while(|rows| *rows >= 16) {
            // Threads that multiply would have too many operands of a deep stage at hand.
            let deepest = if Sums::of_threads(self.scalar, self.tf32) { 16 } else { 32 };
            let stages = [(32, 4), (32, 3), (16, 4), (16, 3), (16, 2)].into_iter();
            for (depth, stages) in stages.filter(|stage| stage.0 <= deepest) {
                // Few warps leave room for more blocks of a multiprocessor.
                for warps in [4, 8] {
                    let own = Mlp { rows, depth, warps, stages, ..self.clone() };
                    if own.sums() <= SUMS && own.bytes() <= shared {
                        return Ok(own);
                    }
                }
            }
        }
        Err(Error::Kernel(format!("no block has registers and memory for {self:?}")))
    }

    /// The bytes of shared memory and of sums that the smallest block takes that is worth it, and how
    /// many bytes its sums may have. `widths` are those of `X` and of all layers; `transposed` says which
    /// layouts of weights there are: `[out,in]`, and `[in,out]`.
    pub fn least(scalar: Scalar, widths: &[i64], transposed: [bool; 2]) -> [i64; 3] {
        let layer = |transposed: bool| {
            let width = widths.iter().skip(1).copied().max().unwrap_or(1);
            Layer { width, transposed, ..Layer::default() }
        };
        let of = [false, true].into_iter().filter(|&is| transposed[usize::from(is)]);
        let mlp = Mlp {
            scalar,
            width: widths.iter().copied().max().unwrap_or(1),
            layers: of.map(layer).collect(),
            rows: LEAST_ROWS,
            depth: 16,
            warps: 8,
            stages: 2,
            ..Mlp::default()
        };
        let word = 4 * 32 * mlp.warps;
        [mlp.bytes(), mlp.sums() * word, SUMS * word]
    }
}
