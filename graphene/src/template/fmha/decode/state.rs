//! What a warp has found of the keys that it has been through.

use super::Parts;
use crate::schedule::{constant, moved, number, vector};
use crate::template::{fmha::Fmha, matmul::registers};
use crate::{Binary, Builder, Kind, Operand, Result, Scalar, TensorId, Unary, Var};

/// log₂ of a weight for each unit of its score.
const UNIT: f64 = std::f64::consts::LOG2_E;

/// What a warp knows of the keys that it has been through, in registers.
pub(super) struct State {
    /// `[queries]`: the largest score, and the sum of the weights in its unit.
    pub(super) largest: TensorId,
    pub(super) sums: TensorId,
    /// `[queries].[vector]`: the own lane's columns of the weighted values' sum.
    pub(super) values: TensorId,
}

impl State {
    pub(super) fn new(k: &mut Builder, fmha: &Fmha) -> Result<State> {
        let [largest, sums] =
            ["largest", "sums"].map(|name| vector(k, name, fmha.few, Scalar::F32));
        let n = fmha.lane_vector();
        let values = registers(k, "acc", &[&[(fmha.few, n)], &[(n, 1)]], Scalar::F32)?;
        Ok(State { largest: largest?, sums: sums?, values })
    }

    pub(super) fn clear(&self, k: &mut Builder, fmha: &Fmha) -> Result {
        k.unroll("query", fmha.few, |k, query| {
            // A finite number, so that a row without any weight yet has differences.
            k.init(Operand::at(self.largest, [query]), f32::MIN.into())?;
            k.init(Operand::at(self.sums, [query]), 0.0)?;
            let values = k.index(self.values, "values", [query])?;
            k.unroll("e", fmha.lane_vector(), |k, e| k.init(Operand::at(values, [e]), 0.0))
        })
    }

    /// A query's sums, of weights and then of weighted values, element by element.
    fn sums_of(&self, k: &mut Builder, fmha: &Fmha, query: &Var) -> Result<Vec<TensorId>> {
        let values = k.index(self.values, "values", [query])?;
        let mut all = vec![k.index(self.sums, "sum", [query])?];
        for e in 0..fmha.lane_vector() {
            all.push(k.index(values, "value", [e])?);
        }
        Ok(all)
    }

    /// Makes this number the largest score of a query: sums are in its unit then.
    pub(super) fn raise(&self, k: &mut Builder, fmha: &Fmha, query: &Var, to: TensorId) -> Result {
        let largest = Operand::at(self.largest, [query]);
        let factor = weight(k, largest.clone(), to.into())?;
        k.move_(largest, to)?;
        for sum in self.sums_of(k, fmha, query)? {
            k.binary(Binary::Mul, sum, [sum, factor])?;
        }
        Ok(())
    }
}

/// The weight of a score where the largest one is this.
pub(super) fn weight(k: &mut Builder, score: Operand, largest: Operand) -> Result<TensorId> {
    let weight = number(k, "weight", Scalar::F32)?;
    let unit = constant(k, "unit", Scalar::F32, UNIT)?;
    k.binary(Binary::Sub, weight, [score, largest])?;
    k.binary(Binary::Mul, weight, [weight, unit])?;
    k.unary(Unary::Exp2, weight, weight)?;
    Ok(weight)
}

impl Parts<'_> {
    /// The states of a warp's groups become one, which all of them have.
    pub(super) fn add_up(&self, k: &mut Builder) -> Result {
        let distances: Vec<i64> = [16, 8, 4, 2]
            .into_iter()
            .filter(|&distance| distance >= self.fmha.lanes_of_key())
            .collect();
        k.unroll("query", self.fmha.few, |k, query| {
            let best = moved(k, "best", Scalar::F32, Operand::at(self.state.largest, [query]))?;
            for &distance in &distances {
                let other = number(k, "other", Scalar::F32)?;
                k.spec(Kind::Shfl(distance), other, best, self.warp)?;
                k.reduce(Binary::Max, best, other)?;
            }
            self.state.raise(k, self.fmha, query, best)?;
            let sums = self.state.sums_of(k, self.fmha, query)?;
            for &distance in &distances {
                for &sum in &sums {
                    let other = number(k, "other", Scalar::F32)?;
                    k.spec(Kind::Shfl(distance), other, sum, self.warp)?;
                    k.reduce(Binary::Add, sum, other)?;
                }
            }
            Ok(())
        })
    }
}
