//! Softmax over rows that come in tiles, one after the other (online softmax: Milakov and
//! Gimelshein, 2018), in the accumulators of matmuls.
//!
//! A lane has two or four [rows](Spread), of each of them two neighbouring elements of every eighth or sixteenth: `[rows,n].[2]`. Of
//! tensor cores it has two rows, which four lanes share: a quad, or those of two quad pairs. Where threads multiply, a lane has two rows
//! or four; eight lanes share four. For each row, the largest score so far and the sum of the weights so far are kept; where a tile
//! brings a larger score, what was summed before is multiplied by the weight that the old one has now.

use super::pointwise::{constant, moved, number, vector};
use crate::{
    Binary, Builder, Expr, Fused, Header, Kind, Layout, Memory, Operand, Result, Scalar, TensorId,
    ThreadsId, Unary, Var,
};

/// What scores count in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Units {
    /// So much of log₂ of a weight, more than 0: a weight is one fused multiplication and addition
    /// and a power of two. Scores are larger than -2¹⁰⁰, or -∞.
    Binary(f64),
    /// log₂ of a weight: a weight is a difference and a power of two. Scores may be as large as numbers of single precision can.
    Powers,
    /// ln of a weight. Scores may be as large as numbers of single precision can, such as those
    /// that masks add: their difference is taken first.
    Natural,
}

/// How the 16 rows of a warp's accumulators are spread over its lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// A lane has two rows, eight apart; four lanes have eight columns of them.
    TwoRows,
    /// A lane has four rows, four apart; eight lanes have sixteen columns of them.
    FourRows,
}

impl Spread {
    /// The rows of a lane.
    pub fn rows(self) -> i64 {
        match self {
            Self::TwoRows => 2,
            Self::FourRows => 4,
        }
    }

    /// How far apart they are.
    pub fn apart(self) -> i64 {
        16 / self.rows()
    }

    /// The lanes that share a row.
    pub fn lanes(self) -> i64 {
        2 * self.rows()
    }

    /// Neighbouring columns that they cover with one pair each.
    pub fn columns(self) -> i64 {
        2 * self.lanes()
    }
}

/// The state of one warp's rows.
#[derive(Debug, Clone, Copy)]
pub struct Softmax {
    units: Units,
    spread: Spread,
    /// The threads whose accumulators it is about, a warp of them, and one.
    all: ThreadsId,
    warp: ThreadsId,
    /// `[rows]`: the largest score of each row so far, the same in all lanes that share it.
    pub(crate) largest: TensorId,
    /// `[rows,2]`: of each row, the sum of the weights so far in even and in odd columns of the own lane.
    pub(crate) sums: TensorId,
    /// `[rows]`: by what the tile before must be multiplied.
    pub(crate) factors: TensorId,
}

/// The neighbouring columns of a lane.
const PAIR: i64 = 2;

impl Softmax {
    /// Registers for the state, in each thread of the warps (`warp`) of `all` who share accumulators.
    pub fn new(
        k: &mut Builder,
        units: Units,
        spread: Spread,
        [all, warp]: [ThreadsId; 2],
    ) -> Result<Softmax> {
        let [largest, factors] =
            ["largest", "factors"].map(|name| vector(k, name, spread.rows(), Scalar::F32));
        let sums = by_parity(k, "sums", spread)?;
        Ok(Softmax { units, spread, all, warp, largest: largest?, sums, factors: factors? })
    }

    /// The unit of scores, in those of ln of a weight.
    pub(crate) fn ln(&self) -> f64 {
        match self.units {
            Units::Binary(by) => by * std::f64::consts::LN_2,
            Units::Powers => std::f64::consts::LN_2,
            Units::Natural => 1.0,
        }
    }

    /// Before the first tile.
    pub fn begin(&self, k: &mut Builder) -> Result {
        // A finite number, so that a row without any weight yet has differences.
        let least = match self.units {
            Units::Binary(_) => -(2f64.powi(100)),
            Units::Powers | Units::Natural => f64::from(f32::MIN),
        };
        k.unroll("half", self.spread.rows(), |k, half| {
            k.init(Operand::at(self.largest, [half]), least)?;
            k.unroll("p", PAIR, |k, p| k.init(Operand::at(self.sums, [half, p]), 0.0))
        })
    }

    /// Scores of a tile become weights, `pairs` of each lane's row; the factor by which what was
    /// summed before must be multiplied is kept for [`rescale`](Softmax::rescale).
    pub fn tile(&self, k: &mut Builder, scores: TensorId, pairs: i64) -> Result {
        let outs = [scores, self.largest, self.factors, self.sums];
        let ins = [scores, self.largest, self.sums];
        let header = Header::new(self.kind(), outs, ins, self.all);
        k.decompose(header, |k| self.steps(k, scores, pairs))
    }

    /// Of scores `[rows, keys]`, each row's largest one before, and the sums of its weights before, of every eighth or sixteenth
    /// key, the weights, the largest score, the factor of what was summed before, and the sums.
    fn kind(&self) -> Kind {
        let [scores, before, sums] = [0, 1, 2].map(Fused::input);
        let largest = before.clone().binary(Binary::Max, scores.clone().folded(Binary::Max, [1]));
        let weight = |score: Fused| {
            let power = match self.units {
                Units::Binary(by) => score * by - largest.clone() * by,
                Units::Powers => score - largest.clone(),
                Units::Natural => (score - largest.clone()) * std::f64::consts::LOG2_E,
            };
            power.unary(Unary::Exp2)
        };
        let (weights, factor) = (weight(scores), weight(before));
        let own = weights
            .clone()
            .split(1, self.spread.columns())
            .folded(Binary::Add, [1])
            .dims([Some(0), Some(2)]);
        let sums = sums * factor.clone() + own;
        Kind::Fused(Fused::all([weights, largest, factor, sums]))
    }

    fn steps(&self, k: &mut Builder, scores: TensorId, pairs: i64) -> Result {
        let best = by_parity(k, "best", self.spread)?;
        k.unroll_both([("half", self.spread.rows()), ("p", PAIR)], |k, [half, p]| {
            k.move_(Operand::at(best, [half, p]), Operand::at(self.largest, [half]))
        })?;
        self.elements(k, scores, pairs, |k, half, p, score| {
            k.reduce(Binary::Max, Operand::at(best, [half, p]), score)
        })?;
        let shift = vector(k, "shift", self.spread.rows(), Scalar::F32)?;
        // By what scores are multiplied on the way to log₂ of their weights.
        let unit = match self.units {
            Units::Binary(by) => Some(by),
            Units::Powers => None,
            Units::Natural => Some(std::f64::consts::LOG2_E),
        };
        let unit = unit.map(|by| constant(k, "unit", Scalar::F32, by)).transpose()?;
        let fused = unit.filter(|_| matches!(self.units, Units::Binary(_)));
        k.unroll("half", self.spread.rows(), |k, half| {
            let at = |tensor: TensorId| Operand::at(tensor, [half]);
            let own = self.over_lanes(k, best, half, Binary::Max)?;
            k.binary(Binary::Sub, at(self.factors), [at(self.largest), own.clone()])?;
            if let Some(unit) = unit {
                k.binary(Binary::Mul, at(self.factors), [at(self.factors), unit.into()])?;
            }
            k.unary(Unary::Exp2, at(self.factors), at(self.factors))?;
            k.move_(at(self.largest), own.clone())?;
            if let Some(unit) = fused {
                k.binary(Binary::Mul, at(shift), [own, unit.into()])?;
                k.unary(Unary::Neg, at(shift), at(shift))?;
            } else {
                k.move_(at(shift), own)?;
            }
            k.unroll("p", PAIR, |k, p| {
                let sum = Operand::at(self.sums, [half, p]);
                k.binary(Binary::Mul, sum.clone(), [sum, at(self.factors)])
            })
        })?;
        self.elements(k, scores, pairs, |k, half, p, score| {
            let shift = Operand::at(shift, [half]);
            // The score becomes its weight.
            let of = if let Some(unit) = fused {
                let weight = moved(k, "weight", Scalar::F32, shift)?;
                k.fma(weight, [score.clone(), unit.into()])?;
                weight.into()
            } else {
                k.binary(Binary::Sub, score.clone(), [score.clone(), shift])?;
                if let Some(unit) = unit {
                    k.binary(Binary::Mul, score.clone(), [score.clone(), unit.into()])?;
                }
                score.clone()
            };
            k.unary(Unary::Exp2, score.clone(), of)?;
            let sum = Operand::at(self.sums, [half, p]);
            k.reduce(Binary::Add, sum, score)
        })
    }

    /// Zeros in an accumulator of `pairs` of each lane's row.
    pub fn clear(&self, k: &mut Builder, acc: TensorId, pairs: i64) -> Result {
        self.elements(k, acc, pairs, |k, _, _, element| k.init(element, 0.0))
    }

    /// Multiplies what was summed before the last tile, `pairs` of each lane's row, by its factor.
    pub fn rescale(&self, k: &mut Builder, acc: TensorId, pairs: i64) -> Result {
        self.elements(k, acc, pairs, |k, half, _, element| {
            k.binary(Binary::Mul, element.clone(), [element, Operand::at(self.factors, [half])])
        })
    }

    /// Divides by the sum of all weights. A row without any, or with one that is no number, becomes NaN; `guarded`: zeros.
    pub fn finish(&self, k: &mut Builder, acc: TensorId, pairs: i64, guarded: bool) -> Result {
        let inverse = vector(k, "inverse", self.spread.rows(), Scalar::F32)?;
        k.unroll("half", self.spread.rows(), |k, half| {
            let sum = self.over_lanes(k, self.sums, half, Binary::Add)?;
            k.unary(Unary::Rcp, Operand::at(inverse, [half]), sum)
        })?;
        self.elements(k, acc, pairs, |k, half, _, element| {
            let inverse = Operand::at(inverse, [half]);
            k.binary(Binary::Mul, element.clone(), [element.clone(), inverse])?;
            if guarded { zero_for_nan(k, &element) } else { Ok(()) }
        })
    }

    /// A row's two parts in each lane that shares it, folded into the first, the same in all lanes.
    fn over_lanes(&self, k: &mut Builder, of: TensorId, half: &Var, op: Binary) -> Result<Operand> {
        let part = |p: i64| Operand::at(of, [Expr::from(half), Expr::from(p)]);
        k.reduce(op, part(0), part(1))?;
        // The bits of lanes' numbers along which they have other columns.
        let bits: &[i64] = match self.spread {
            Spread::FourRows => &[1, 2, 4],
            Spread::TwoRows if k.arch().multiplies_by_quad_pairs() => &[2, 4],
            Spread::TwoRows => &[1, 2],
        };
        for &bits in bits {
            let other = number(k, "others", Scalar::F32)?;
            k.spec(Kind::Shfl(bits), other, part(0), self.warp)?;
            k.reduce(op, part(0), other)?;
        }
        Ok(part(0))
    }

    /// Every element of an accumulator: the lane's row, its place in the pair, and the element.
    fn elements(
        &self,
        k: &mut Builder,
        acc: TensorId,
        pairs: i64,
        body: impl FnOnce(&mut Builder, &Var, &Var, Operand) -> Result,
    ) -> Result {
        k.unroll_both([("j", pairs), ("half", self.spread.rows())], |k, [j, half]| {
            let pair = k.index(acc, "pair", [half, j])?;
            k.unroll("p", PAIR, |k, p| body(k, half, p, Operand::at(pair, [p])))
        })
    }
}

/// A number stays, NaN becomes 0.
pub fn zero_for_nan(k: &mut Builder, element: &Operand) -> Result {
    // The larger or smaller of NaN and 0 is 0; of a number, one of them is the number.
    let [zero, above] = ["zero", "above"].map(|name| number(k, name, Scalar::F32));
    let (zero, above) = (zero?, above?);
    k.init(zero, 0.0)?;
    k.binary(Binary::Max, above, [element.clone(), zero.into()])?;
    k.binary(Binary::Min, element.clone(), [element.clone(), zero.into()])?;
    k.reduce(Binary::Add, element.clone(), above)
}

/// Registers for both columns of each row.
fn by_parity(k: &mut Builder, name: &str, spread: Spread) -> Result<TensorId> {
    k.allocate(name, Layout::rows([spread.rows(), PAIR]), Scalar::F32, Memory::Registers, None)
}
