//! Scale, cap and masks.

use super::{Fmha, Mask, Place};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{Binary, Kind, Number, Operand, TensorId, Test, ThreadsId, Unary};
use crate::schedule::Units;
use crate::tensor::{Memory, Scalar, Shape, View};

/// What becomes of scores before they are weights, by each thread (`one`).
pub(super) struct Scorer<'a> {
    pub(super) fmha: &'a Fmha,
    pub(super) one: ThreadsId,
    pub(super) mask: Option<TensorId>,
    /// How many keys there are.
    pub(super) keys: &'a Var,
}

/// Where the own lane's scores of a tile are.
pub(super) struct Spot<'a> {
    pub(super) place: &'a Place,
    /// The first query of the threads that go through the same tiles.
    pub(super) first: Expr,
    /// The query of the first of the two rows; the other is eight further on.
    pub(super) row: Expr,
    /// The pair of columns of each eight.
    pub(super) column: Expr,
    /// The number of the tile of keys.
    pub(super) tile: Expr,
}

impl Scorer<'_> {
    /// What a mask adds to the own lane's columns, `[eights, 2]` as it is in memory; of a mask that
    /// has one element a key, which can be had before the scores are there.
    pub(super) fn fetch(&self, k: &mut Builder, spot: &Spot<'_>) -> Result<Option<TensorId>> {
        let Mask::PerKey(scalar) = self.fmha.mask else { return Ok(None) };
        let view = View::buffer(&[Shape::of(self.fmha.keys / 8, 2), Shape::of(2, 1)]);
        let words = k.allocate("words", view, scalar, Memory::Registers, None)?;
        self.each_column(k, |k, j, p| {
            let key = self.key(spot, j, p);
            self.load(k, [&spot.place.batch, &key], Operand::at(words, [j, p]))
        })?;
        Ok(Some(words))
    }

    /// Scores become what the operator's definition calls scores, unless that is left to the
    /// softmax.
    pub(super) fn adjust(
        &self,
        k: &mut Builder,
        scores: TensorId,
        spot: &Spot<'_>,
        biases: Option<TensorId>,
    ) -> Result<()> {
        let fmha = self.fmha;
        if fmha.units() != Units::Natural {
            return Ok(());
        }
        let scale = self.register(k, "scale", Scalar::F32)?;
        let inner = fmha.softcap.map_or(fmha.scale.0, |cap| fmha.scale.0 / cap.0);
        k.spec(Kind::Init(Number(inner)), scale, (), self.one)?;
        let fill = self.register(k, "fill", Scalar::F32)?;
        if fmha.fills() {
            k.spec(Kind::Init(fmha.fill), fill, (), self.one)?;
        }
        let mut outer = scale;
        if let Some(cap) = fmha.softcap {
            outer = self.register(k, "cap", Scalar::F32)?;
            k.spec(Kind::Init(cap), outer, (), self.one)?;
        }
        self.each_column(k, |k, j, p| {
            let key = self.key(spot, j, p);
            let shared = match (fmha.mask, biases) {
                (Mask::PerKey(scalar), Some(biases)) => {
                    Some(self.bias(k, scalar, Operand::at(biases, [j, p]))?)
                }
                (Mask::None | Mask::PerKey(_) | Mask::Dense(_), _) => None,
            };
            k.for_("half", 0..2, 1, true, |k, half| {
                let pair = k.index(scores, "pair", [half, j])?;
                let score = Operand::at(pair, [p]);
                if fmha.softcap.is_some() {
                    let product = [score.clone(), scale.into()];
                    k.spec(Kind::Binary(Binary::Mul), score.clone(), product, self.one)?;
                    k.spec(Kind::Unary(Unary::Tanh), score.clone(), score.clone(), self.one)?;
                }
                let mut bias = shared.clone();
                if let Mask::Dense(scalar) = fmha.mask {
                    let row = query(spot, half);
                    let word = self.register(k, "word", scalar)?;
                    let at = [&spot.place.batch, &spot.place.head, &row, &key];
                    self.load(k, at, word.into())?;
                    bias = Some(self.bias(k, scalar, word.into())?);
                }
                let Some(bias) = bias else {
                    let product = [score.clone(), outer.into()];
                    return k.spec(Kind::Binary(Binary::Mul), score, product, self.one);
                };
                if fmha.fills() {
                    let product = [score.clone(), outer.into()];
                    k.spec(Kind::Binary(Binary::Mul), score.clone(), product, self.one)?;
                    let either = [bias, score.clone(), fill.into()];
                    return k.spec(Kind::Select, score, either, self.one);
                }
                let sum = self.register(k, "sum", Scalar::F32)?;
                k.spec(Kind::Move, sum, bias, self.one)?;
                k.spec(Kind::MatMul, sum, [score.clone(), outer.into()], self.one)?;
                k.spec(Kind::Move, score, sum, self.one)
            })
        })
    }

    /// Keys beyond the end (in the last tile only), and those after the query if it is causal, are
    /// not attended.
    pub(super) fn leave_out(
        &self,
        k: &mut Builder,
        scores: TensorId,
        spot: &Spot<'_>,
        last: bool,
    ) -> Result<()> {
        let end = (spot.tile.clone() + 1) * self.fmha.keys;
        let remove = |k: &mut Builder, score: Operand| {
            k.spec(Kind::Init(Number(f64::NEG_INFINITY)), score, (), self.one)
        };
        if last {
            k.if_(Cond::less(self.keys, end.clone()), |k| {
                self.each_column(k, |k, j, p| {
                    let key = self.key(spot, j, p);
                    k.if_(Cond::new(key, Relation::AtLeast, self.keys), |k| {
                        k.for_("half", 0..2, 1, true, |k, half| {
                            let pair = k.index(scores, "pair", [half, j])?;
                            remove(k, Operand::at(pair, [p]))
                        })
                    })
                })
            })?;
        }
        if !self.fmha.causal {
            return Ok(());
        }
        k.if_(Cond::less(spot.first.clone() + 1, end), |k| {
            self.each_column(k, |k, j, p| {
                let key = self.key(spot, j, p);
                k.for_("half", 0..2, 1, true, |k, half| {
                    let row = query(spot, half);
                    k.if_(Cond::less(row, key), |k| {
                        let pair = k.index(scores, "pair", [half, j])?;
                        remove(k, Operand::at(pair, [p]))
                    })
                })
            })
        })
    }

    /// An element of the mask, 0 beyond its edge.
    fn load<const N: usize>(&self, k: &mut Builder, at: [&Expr; N], to: Operand) -> Result<()> {
        let mask = self.mask.expect("a kernel whose scores are masked has a mask");
        let from = k.index(mask, "bias_at", at)?;
        k.spec(Kind::Init(Number(0.0)), to.clone(), (), self.one)?;
        k.if_(Test::Inside(from.into()), |k| k.spec(Kind::Move, to, from, self.one))
    }

    /// What an element of the mask adds to a score; or, where scores are filled, whether it is not 0.
    fn bias(&self, k: &mut Builder, scalar: Scalar, word: Operand) -> Result<Operand> {
        if scalar == Scalar::F32 {
            return Ok(word);
        }
        let bias = self.register(k, "bias", Scalar::F32)?;
        k.spec(Kind::Move, bias, word, self.one)?;
        if scalar == Scalar::U8 && !self.fmha.fills() {
            // Twice (1 or 0, less 1) times the largest number is 0 or -∞.
            for (op, by) in [(Binary::Sub, 1.0), (Binary::Mul, f64::from(f32::MAX))] {
                let number = self.register(k, "number", Scalar::F32)?;
                k.spec(Kind::Init(Number(by)), number, (), self.one)?;
                k.spec(Kind::Binary(op), bias, [bias, number], self.one)?;
            }
            k.spec(Kind::Binary(Binary::Add), bias, [bias, bias], self.one)?;
        }
        Ok(bias.into())
    }

    fn register(&self, k: &mut Builder, name: &str, scalar: Scalar) -> Result<TensorId> {
        k.allocate(name, View::buffer(&[]), scalar, Memory::Registers, None)
    }

    /// The number of the key in the own lane's column of a tile.
    fn key(&self, spot: &Spot<'_>, j: &Var, p: &Var) -> Expr {
        spot.tile.clone() * self.fmha.keys + Expr::from(j) * 8 + spot.column.clone() * 2 + p
    }

    /// The own lane's columns of a tile of scores: which eight, and which of the two there.
    fn each_column(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder, &Var, &Var) -> Result<()>,
    ) -> Result<()> {
        k.for_("j", 0..self.fmha.keys / 8, 1, true, |k, j| {
            k.for_("p", 0..2, 1, true, |k, p| body(k, j, p))
        })
    }
}

/// The number of the query in one of the own lane's two rows.
fn query(spot: &Spot<'_>, half: &Var) -> Expr {
    spot.row.clone() + Expr::from(half) * 8
}
