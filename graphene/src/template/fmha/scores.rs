//! Scale, cap and masks: what becomes of scores before they are weights. A mask's elements become terms of single precision,
//! each of which is added to a score, or says whether the score stays.
//!
//! Of a mask of one element a key, all queries of a block have the same terms. On Hopper a warp beside
//! the one that brings keys makes them, once for all, and leaves them in the keys' stage; before, each
//! thread does for its own columns, whose elements it asks for before the matmuls.

use super::{Fmha, Given, Mask, context::Place};
use crate::schedule::{Units, moved, neighbours, number, pointwise, vector};
use crate::template::matmul::registers;
use crate::{
    Binary, Builder, Cond, Expr, Kind, Operand, Relation, Result, Scalar, TensorId, Test, Unary,
    Var,
};

/// The mask of a tile of keys that has one element a key.
pub(super) enum Terms {
    /// `[pairs, 2]`: the own lane's columns, as they are in memory.
    Words(Scalar, TensorId),
    /// `[keys]`: terms in shared memory.
    Made(TensorId),
}

/// Of an element that is added, this is added to log₂ of a weight as well: nothing, but for infinity.
const LEAST: f64 = f32::MIN_POSITIVE as f64;

/// Where the own lane's scores of a tile are.
pub(super) struct Spot<'a> {
    pub(super) place: &'a Place<'a>,
    /// The first query of the threads that go through the same tiles.
    pub(super) first: Expr,
    /// The query of the first of the own lane's rows.
    pub(super) row: Expr,
    /// The number of the own lane's pair among the pairs of the lanes that share a row.
    pub(super) column: Expr,
    /// The number of the tile of keys.
    pub(super) tile: Expr,
}

impl Spot<'_> {
    /// Scores become what the operator's definition calls scores, in the units of the softmax, unless
    /// that is left to it; `terms` are those of a mask of one element a key.
    pub(super) fn adjust(&self, k: &mut Builder, scores: TensorId, terms: Option<Terms>) -> Result {
        let Place { given, batch, head, .. } = self.place;
        let fmha = given.fmha;
        if let Units::Binary(_) = fmha.units() {
            return Ok(());
        }
        // By what scores are multiplied, before their cap and after it, and what fills them.
        let unit = if fmha.units() == Units::Natural { 1.0 } else { std::f64::consts::LOG2_E };
        let cap = fmha.softcap.map(|cap| cap.0);
        let outer = constant(k, cap.unwrap_or(fmha.scale.0) * unit)?;
        let inner = cap.map(|cap| constant(k, fmha.scale.0 / cap)).transpose()?;
        let fills = fmha.fills() && !fmha.sinks();
        let fill = fills.then(|| constant(k, fmha.filling())).transpose()?;
        let adjust = |k: &mut Builder, score: Operand, term: Option<Operand>| {
            let multiply = |k: &mut Builder, by: TensorId| {
                k.binary(Binary::Mul, score.clone(), [score.clone(), by.into()])
            };
            if let Some(inner) = inner {
                multiply(k, inner)?;
                k.unary(Unary::Tanh, score.clone(), score.clone())?;
            }
            let Some(term) = term else { return multiply(k, outer) };
            if let Some(fill) = fill {
                multiply(k, outer)?;
                return k.alone(Kind::Select, score.clone(), [term, score, fill.into()]);
            }
            let sum = moved(k, "sum", Scalar::F32, term)?;
            k.fma(sum, [score.clone(), outer.into()])?;
            k.move_(score, sum)
        };
        let rows = fmha.spread().rows();
        k.unroll("j", fmha.pairs()[0], |k, j| {
            let terms = terms.map(|terms| self.pair(k, terms, j)).transpose()?;
            k.unroll_both([("p", 2), ("half", rows)], |k, [p, half]| {
                let pair = k.index(scores, "pair", [half, j])?;
                let mut term = terms.map(|terms| Operand::at(terms, [p]));
                if let Mask::Dense(scalar) = fmha.mask {
                    let word = number(k, "word", scalar)?;
                    let at = [batch, head, &self.query(half), &self.key(j, p)];
                    load(k, given, &at, word.into())?;
                    term = Some(self::term(k, fmha, scalar, word.into())?);
                }
                adjust(k, Operand::at(pair, [p]), term)
            })
        })
    }

    /// Keys beyond the end (in the last tile only, and where a mask of one element a key does not say
    /// so), and those after the query if it is causal, are not attended.
    pub(super) fn leave_out(&self, k: &mut Builder, scores: TensorId, last: bool) -> Result {
        let Given { fmha, keys, .. } = self.place.given;
        let end = (self.tile.clone() + 1) * fmha.keys;
        let columns = [("j", fmha.pairs()[0]), ("p", 2)];
        let rows = fmha.spread().rows();
        let remove = |k: &mut Builder, [half, j, p]: [&Var; 3]| {
            let pair = k.index(scores, "pair", [half, j])?;
            k.init(Operand::at(pair, [p]), f64::NEG_INFINITY)
        };
        let masked = matches!(fmha.mask, Mask::PerKey(_)) && !fmha.fills();
        if last && !masked {
            k.if_(Cond::less(keys, end.clone()), |k| {
                k.unroll_both(columns, |k, [j, p]| {
                    k.if_(Cond::new(self.key(j, p), Relation::AtLeast, keys), |k| {
                        k.unroll("half", rows, |k, half| remove(k, [half, j, p]))
                    })
                })
            })?;
        }
        if !fmha.causal {
            return Ok(());
        }
        k.if_(Cond::less(self.first.clone() + 1, end), |k| {
            k.unroll_both(columns, |k, [j, p]| {
                k.unroll("half", rows, |k, half| {
                    let later = Cond::less(self.query(half), self.key(j, p));
                    k.if_(later, |k| remove(k, [half, j, p]))
                })
            })
        })
    }

    /// The number of the query in one of the own lane's rows.
    fn query(&self, half: &Var) -> Expr {
        self.row.clone() + Expr::from(half) * self.place.given.fmha.spread().apart()
    }

    /// The number of the key in the own lane's column of a tile.
    fn key(&self, j: &Var, p: &Var) -> Expr {
        let Fmha { keys, .. } = *self.place.given.fmha;
        let columns = self.place.given.fmha.spread().columns();
        self.tile.clone() * keys + Expr::from(j) * columns + self.column.clone() * 2 + p
    }

    /// The elements of the own lane's columns, of a mask that has one a key: they can be had before the scores are there.
    pub(super) fn fetch(&self, k: &mut Builder) -> Result<Option<Terms>> {
        let Place { given, batch, .. } = self.place;
        let Mask::PerKey(scalar) = given.fmha.mask else { return Ok(None) };
        let [pairs, _] = given.fmha.pairs();
        let words = registers(k, "words", &[&[(pairs, 2), (2, 1)]], scalar)?;
        k.unroll_both([("j", pairs), ("p", 2)], |k, [j, p]| {
            load(k, given, &[batch, &self.key(j, p)], Operand::at(words, [j, p]))
        })?;
        Ok(Some(Terms::Words(scalar, words)))
    }

    /// The terms of a pair of columns of the own lane.
    fn pair(&self, k: &mut Builder, terms: Terms, j: &Var) -> Result<TensorId> {
        let (pair, fmha) = (vector(k, "terms", 2, Scalar::F32)?, self.place.given.fmha);
        match terms {
            Terms::Words(scalar, words) => k.unroll("p", 2, |k, p| {
                let term = self::term(k, fmha, scalar, Operand::at(words, [j, p]))?;
                k.move_(Operand::at(pair, [p]), term)
            })?,
            Terms::Made(all) => {
                let from = neighbours(k, all, [Expr::from(j) * 4 + &self.column], 2, "from")?;
                k.move_(pair, from)?;
            }
        }
        Ok(pair)
    }
}

fn constant(k: &mut Builder, value: f64) -> Result<TensorId> {
    pointwise::constant(k, "constant", Scalar::F32, value)
}

/// An element of the mask; beyond its edge one that forbids the key, or, where there is an element for each score, adds nothing.
pub(super) fn load(k: &mut Builder, given: &Given<'_>, at: &[&Expr], to: Operand) -> Result {
    let mask = given.mask.expect("a kernel whose scores are masked has a mask");
    let from = k.index(mask, "element", at.iter().copied())?;
    let beyond = match given.fmha.mask {
        Mask::PerKey(scalar) if scalar != Scalar::U8 => f64::NEG_INFINITY,
        Mask::None | Mask::PerKey(_) | Mask::Dense(_) => 0.0,
    };
    k.init(to.clone(), beyond)?;
    k.if_(Test::Inside(from.into()), |k| k.move_(to, from))
}

/// What an element of the mask adds to a score; or, where scores are filled and that is not the same, whether it is not 0.
pub(super) fn term(k: &mut Builder, fmha: &Fmha, scalar: Scalar, word: Operand) -> Result<Operand> {
    let term = moved(k, "term", Scalar::F32, word)?;
    if scalar == Scalar::U8 {
        if !fmha.fills() || fmha.sinks() {
            let never = if fmha.fills() { fmha.filling() } else { f64::NEG_INFINITY };
            let [nothing, never] = [constant(k, 0.0)?, constant(k, never)?];
            k.alone(Kind::Select, term, [term, nothing, never])?;
        }
    } else if fmha.units() == Units::Powers {
        // What is added to log₂ of a weight. A finite number stays finite: it becomes the largest that there is, or the least,
        // if its multiple is none.
        let unit = constant(k, std::f64::consts::LOG2_E)?;
        let power = number(k, "power", Scalar::F32)?;
        k.binary(Binary::Mul, power, [term, unit])?;
        if scalar != Scalar::F16 {
            for (op, bound) in [(Binary::Max, f32::MIN), (Binary::Min, f32::MAX)] {
                let bound = constant(k, bound.into())?;
                k.binary(op, power, [power, bound])?;
            }
            let least = constant(k, LEAST)?;
            k.fma(power, [term, least])?;
        }
        return Ok(power.into());
    }
    Ok(term.into())
}
