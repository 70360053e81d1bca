//! How far attention may be from what it should be, and how far it is.

use graphene_ir::template::fmha::Mask;
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;

use super::{Case, SAMPLES};
use crate::data::{Random, decode};

impl Case {
    /// What the mask adds to a score; nothing, where it makes it another.
    fn bias(&self, [b, row, key]: [usize; 3]) -> Option<f64> {
        let rows = self.shape[2];
        let (scalar, element) = match self.fmha.mask {
            Mask::None => return Some(0.0),
            Mask::PerKey(scalar) => (scalar, self.host[3][b * rows + key]),
            Mask::Dense(scalar) => (scalar, self.host[3][(b * rows + row) * rows + key]),
        };
        match scalar {
            Scalar::U8 if element == 0.0 => None,
            Scalar::U8 => Some(0.0),
            _ => Some(element),
        }
    }

    /// Of the row's keys the score, what is added to it, and by how much its dot product errs at most.
    fn scores(&self, [b, row, h]: [usize; 3]) -> Vec<(f64, f64, f64)> {
        let [q, k, _, _] = &self.host;
        let [_, _, rows, dim] = self.shape;
        let from = &q[self.at(b, row, h)..][..dim];
        let of_key = |key: usize| {
            let terms = from.iter().zip(&k[self.at(b, key, h)..][..dim]).map(|(a, b)| a * b);
            let (sum, size) = terms.fold((0.0, 0.0), |(s, a), x: f64| (s + x, a + x.abs()));
            match self.bias([b, row, key]) {
                None => (self.fmha.fill.0, 0.0, 0.0),
                Some(bias) => {
                    let error = self.fmha.scale.0 * 4.0 * dim as f64 * 2f64.powi(-24) * size;
                    (sum * self.fmha.scale.0 + bias, bias, error)
                }
            }
        };
        (0..if self.fmha.causal { row + 1 } else { rows }).map(of_key).collect()
    }

    /// Where a row of a head begins.
    fn at(&self, b: usize, row: usize, h: usize) -> usize {
        let [_, heads, rows, dim] = self.shape;
        ((b * rows + row) * heads + h) * dim
    }

    /// The largest error as a fraction of its bound, over samples of rows. The bound is that of the
    /// template's test, which says how it follows.
    pub(super) fn error(&self, random: &mut Random) -> Result<f64, Error> {
        let [batch, heads, rows, dim] = self.shape;
        let bytes = self.buffers[4].download()?;
        let size = self.fmha.scalar.bytes() as usize;
        let u = 2f64.powi(-24);
        let stored = self.fmha.scalar.unit();
        let round = if self.fmha.tf32 { 2f64.powi(-11) } else { stored };
        let least = if self.fmha.scalar == Scalar::F16 { 2f64.powi(-25) } else { 0.0 };
        let tiles = rows.div_ceil(self.fmha.keys as usize) as f64;
        let mut worst = 0f64;
        for _ in 0..SAMPLES {
            let [b, h, row] = [batch, heads, self.queries].map(|size| random.within(0, size - 1));
            let at = self.at(b, row, h);
            let found = decode(&bytes[at * size..][..dim * size], self.fmha.scalar);
            let scores = self.scores([b, row, h]);
            let largest = scores.iter().fold(f64::NEG_INFINITY, |most, row| most.max(row.0));
            let counts = |score: f64| {
                let filled = score == largest && score == self.fmha.fill.0;
                score > f64::NEG_INFINITY && score > largest - 110.0 && !filled
            };
            let near = scores.iter().filter(|row| counts(row.0));
            let reach = near.fold(0f64, |most, row| most.max(row.0.abs()).max(row.1.abs()));
            let summing = 4.0 * rows as f64 * u;
            let common =
                4.0 * u * reach + (tiles + 1.0) * (12.0 * u * reach + 2f64.powi(-22) + 2.0 * u);
            let (mut total, mut total_error) = (0.0, 0.0);
            let mut sums = vec![(0.0, 0.0); dim];
            for (key, (score, _, error)) in scores.iter().enumerate() {
                let weight = if score.is_finite() { (score - largest).exp() } else { 0.0 };
                total += weight;
                total_error += weight * (error + common + summing);
                for (sum, v) in sums.iter_mut().zip(&self.host[2][self.at(b, key, h)..][..dim]) {
                    sum.0 += weight * v;
                    let relative = error + common + round + summing;
                    sum.1 += (weight * relative + least) * v.abs();
                }
            }
            if total == 0.0 {
                // It may attend nowhere.
                worst = if found.iter().all(|y| y.is_nan()) { worst } else { f64::INFINITY };
                continue;
            }
            for (found, (sum, error)) in found.iter().zip(sums) {
                let y: f64 = sum / total;
                let bound = 1.1
                    * ((error + y.abs() * total_error) / total
                        + (3.0 * u + stored) * y.abs()
                        + least);
                let share = (found - y).abs() / bound;
                worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
            }
        }
        Ok(worst)
    }
}
