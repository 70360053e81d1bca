//! Scale, cap and masks.

use super::consumer::Consumer;
use super::{Context, Mask, Place, ROWS};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr, Var};
use crate::kernel::{Binary, Kind, Number, Operand, TensorId, Test, Unary};
use crate::schedule::Units;
use crate::tensor::{Memory, Scalar, View};

impl Context<'_> {
    /// Scores become what the operator's definition calls scores, unless that is left to the
    /// softmax.
    pub(super) fn adjust(
        &self,
        k: &mut Builder,
        consumer: &Consumer,
        scores: TensorId,
        place: &Place,
        tile: &Expr,
    ) -> Result<()> {
        let fmha = self.fmha;
        if fmha.units() != Units::Natural {
            return Ok(());
        }
        let scale = self.register(k, "scale", Scalar::F32)?;
        let inner = fmha.softcap.map_or(fmha.scale.0, |cap| fmha.scale.0 / cap.0);
        k.spec(Kind::Init(Number(inner)), scale, (), self.one)?;
        let mut outer = scale;
        if let Some(cap) = fmha.softcap {
            outer = self.register(k, "cap", Scalar::F32)?;
            k.spec(Kind::Init(cap), outer, (), self.one)?;
        }
        self.each_column(k, |k, j, p| {
            let key = self.key(consumer, tile, j, p);
            let shared = match fmha.mask {
                Mask::PerKey(scalar) => Some(self.bias(k, scalar, [&place.batch, &key])?),
                Mask::None | Mask::Dense(_) => None,
            };
            k.for_("half", 0..2, 1, true, |k, half| {
                let pair = k.index(scores, "pair", [half, j])?;
                let score = Operand::at(pair, [p]);
                if fmha.softcap.is_some() {
                    let product = [score.clone(), scale.into()];
                    k.spec(Kind::Binary(Binary::Mul), score.clone(), product, self.one)?;
                    k.spec(Kind::Unary(Unary::Tanh), score.clone(), score.clone(), self.one)?;
                }
                let bias = match fmha.mask {
                    Mask::None => None,
                    Mask::PerKey(_) => shared,
                    Mask::Dense(scalar) => {
                        let row = self.query(consumer, place, half);
                        let at = [&place.batch, &place.head, &row, &key];
                        Some(self.bias(k, scalar, at)?)
                    }
                };
                let Some(bias) = bias else {
                    let product = [score.clone(), outer.into()];
                    return k.spec(Kind::Binary(Binary::Mul), score, product, self.one);
                };
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
        consumer: &Consumer,
        scores: TensorId,
        place: &Place,
        tile: &Expr,
        last: bool,
    ) -> Result<()> {
        let end = (tile.clone() + 1) * self.fmha.keys;
        let remove = |k: &mut Builder, score: Operand| {
            k.spec(Kind::Init(Number(f64::NEG_INFINITY)), score, (), self.one)
        };
        if last {
            k.if_(Cond::less(&self.sizes.keys, end.clone()), |k| {
                self.each_column(k, |k, j, p| {
                    let key = self.key(consumer, tile, j, p);
                    k.if_(vec![at_least(key, &self.sizes.keys)], |k| {
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
        let first = (place.m.clone() * self.fmha.consumers + Expr::from(&consumer.group)) * ROWS;
        k.if_(Cond::less(first + 1, end), |k| {
            self.each_column(k, |k, j, p| {
                let key = self.key(consumer, tile, j, p);
                k.for_("half", 0..2, 1, true, |k, half| {
                    let row = self.query(consumer, place, half);
                    k.if_(Cond::less(row, key), |k| {
                        let pair = k.index(scores, "pair", [half, j])?;
                        remove(k, Operand::at(pair, [p]))
                    })
                })
            })
        })
    }

    /// What is added to a score, 0 beyond the mask's edge.
    fn bias<const N: usize>(
        &self,
        k: &mut Builder,
        scalar: Scalar,
        at: [&Expr; N],
    ) -> Result<TensorId> {
        let mask = self.mask.expect("a kernel whose scores are masked has a mask");
        let from = k.index(mask, "bias_at", at)?;
        let word = self.register(k, "word", scalar)?;
        k.spec(Kind::Init(Number(0.0)), word, (), self.one)?;
        k.if_(Test::Inside(from.into()), |k| k.spec(Kind::Move, word, from, self.one))?;
        if scalar == Scalar::F32 {
            return Ok(word);
        }
        let bias = self.register(k, "bias", Scalar::F32)?;
        k.spec(Kind::Move, bias, word, self.one)?;
        if scalar == Scalar::U8 {
            // Twice (1 or 0, less 1) times the largest number is 0 or -∞.
            for (op, by) in [(Binary::Sub, 1.0), (Binary::Mul, f64::from(f32::MAX))] {
                let number = self.register(k, "number", Scalar::F32)?;
                k.spec(Kind::Init(Number(by)), number, (), self.one)?;
                k.spec(Kind::Binary(op), bias, [bias, number], self.one)?;
            }
            k.spec(Kind::Binary(Binary::Add), bias, [bias, bias], self.one)?;
        }
        Ok(bias)
    }

    fn register(&self, k: &mut Builder, name: &str, scalar: Scalar) -> Result<TensorId> {
        k.allocate(name, View::buffer(&[]), scalar, Memory::Registers, None)
    }

    /// The number of the query in one of the own lane's two rows.
    fn query(&self, consumer: &Consumer, place: &Place, half: &Var) -> Expr {
        (place.m.clone() * self.fmha.consumers + Expr::from(&consumer.group)) * ROWS
            + consumer.warp_in_group.clone() * 16
            + &consumer.row
            + Expr::from(half) * 8
    }

    /// The number of the key in the own lane's column of a tile.
    fn key(&self, consumer: &Consumer, tile: &Expr, j: &Var, p: &Var) -> Expr {
        tile.clone() * self.fmha.keys + Expr::from(j) * 8 + consumer.column.clone() * 2 + p
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

fn at_least(left: Expr, right: &Var) -> Cond {
    Cond::new(left, crate::index::Relation::AtLeast, right)
}
