//! A warp's tiles of keys and their values, which lanes load and multiply.

use super::{Parts, state::weight};
use crate::schedule::{constant, fetch_inside, moved, vector, widen};
use crate::template::fmha::{Fmha, Mask, context::Place, scores};
use crate::template::matmul::registers;
use crate::{
    Binary, Builder, Cond, Expr, Kind, Operand, Relation, Result, Scalar, TensorId, Unary, Var,
    WARP,
};

/// The queries of a tile that have elements of the mask of their own.
fn words_of_queries(fmha: &Fmha) -> i64 {
    if let Mask::Dense(_) = fmha.mask { fmha.few } else { 1 }
}

impl Parts<'_> {
    /// The own lane's vectors of the queries, in single precision: `[queries].[vector]`.
    pub(super) fn queries(&self, k: &mut Builder) -> Result<TensorId> {
        let (few, n) = (self.fmha.few, self.fmha.lane_vector());
        let queries = registers(k, "queries", &[&[(few, n)], &[(n, 1)]], Scalar::F32)?;
        k.unroll("query", few, |k, query| {
            let near = vector(k, "near", n, self.fmha.scalar)?;
            let at = [self.query(query), self.teams.at[1].clone()];
            let from = self.vector_of(k, 0, n, at)?;
            fetch_inside(k, near, from, true)?;
            let to = k.index(queries, "to", [query])?;
            k.unroll("e", n, |k, e| k.move_(Operand::at(to, [e]), Operand::at(near, [e])))
        })?;
        Ok(queries)
    }

    /// A tile of keys and their values, all of whose vectors are asked for before the first is used.
    pub(super) fn keys(&self, k: &mut Builder, queries: TensorId, tile: &Var) -> Result {
        let (fmha, n) = (self.fmha, self.fmha.lane_vector());
        let (few, each) = (fmha.few, fmha.keys_of_lane());
        let groups = WARP / fmha.lanes_of_key();
        let key = |i: &Var| Expr::from(tile) * fmha.keys + Expr::from(i) * groups + &self.group;
        let mut near = |which: usize, name: &str| {
            let all = registers(k, name, &[&[(each, n)], &[(n, 1)]], fmha.scalar)?;
            k.unroll("i", each, |k, i| {
                let to = k.index(all, "to", [i])?;
                let from = self.vector_of(k, which, n, [key(i), self.teams.at[1].clone()])?;
                fetch_inside(k, to, from, true)
            })?;
            Ok::<_, crate::Error>(all)
        };
        let (keys, values) = (near(1, "keys")?, near(2, "values")?);
        let mask = self.mask(k, key)?;
        let scores = registers(k, "scores", &[&[(few, each)], &[(each, 1)]], Scalar::F32)?;
        k.unroll("i", each, |k, i| {
            let near = k.index(keys, "near", [i])?;
            let near = widen(k, near)?;
            k.unroll("query", few, |k, query| {
                let score = k.index(scores, "of_query", [query])?;
                let score = k.index(score, "score", [i])?;
                k.init(score, 0.0)?;
                let query = k.index(queries, "query", [query])?;
                k.unroll("e", n, |k, e| {
                    k.fma(score, [Operand::at(query, [e]), Operand::at(near, [e])])
                })
            })
        })?;
        k.unroll("query", few, |k, query| {
            let scores = k.index(scores, "of_query", [query])?;
            self.teams.fold(k, Binary::Add, scores)?;
            k.unroll("i", each, |k, i| {
                let score = k.index(scores, "score", [i])?;
                let word = mask.map(|(scalar, words)| {
                    let of_all = words_of_queries(self.fmha) == 1;
                    let query = if of_all { 0.into() } else { Expr::from(query) };
                    (scalar, Operand::at(words, [query, i.into()]))
                });
                self.adjust(k, score, word, &key(i))
            })?;
            let best = moved(k, "best", Scalar::F32, Operand::at(self.state.largest, [query]))?;
            k.unroll("i", each, |k, i| k.reduce(Binary::Max, best, Operand::at(scores, [i])))?;
            self.state.raise(k, fmha, query, best)?;
            k.unroll("i", each, |k, i| {
                let score = Operand::at(scores, [i]);
                let weight = weight(k, score.clone(), best.into())?;
                k.move_(score, weight)?;
                k.reduce(Binary::Add, Operand::at(self.state.sums, [query]), weight)
            })
        })?;
        k.unroll("i", each, |k, i| {
            let near = k.index(values, "near", [i])?;
            let near = widen(k, near)?;
            k.unroll("query", few, |k, query| {
                let weight = k.index(scores, "of_query", [query])?;
                let sums = k.index(self.state.values, "values", [query])?;
                k.unroll("e", n, |k, e| {
                    let ins = [Operand::at(weight, [i]), Operand::at(near, [e])];
                    k.fma(Operand::at(sums, [e]), ins)
                })
            })
        })
    }

    /// The elements of the mask for the own group's keys of a tile, asked for with these: `[queries, keys]`, or of all queries.
    fn mask(
        &self,
        k: &mut Builder,
        key: impl Fn(&Var) -> Expr,
    ) -> Result<Option<(Scalar, TensorId)>> {
        let Place { given, batch, head, .. } = self.place;
        let (Mask::PerKey(scalar) | Mask::Dense(scalar)) = self.fmha.mask else { return Ok(None) };
        let (queries, each) = (words_of_queries(self.fmha), self.fmha.keys_of_lane());
        let words = registers(k, "words", &[&[(queries, each), (each, 1)]], scalar)?;
        k.unroll_both([("query", queries), ("i", each)], |k, [query, i]| {
            let (of, key) = (self.query(query), key(i));
            let at: &[&Expr] = match self.fmha.mask {
                Mask::Dense(_) => &[batch, head, &of, &key],
                Mask::PerKey(_) | Mask::None => &[batch, &key],
            };
            scores::load(k, given, at, Operand::at(words, [query, i]))
        })?;
        Ok(Some((scalar, words)))
    }

    /// A dot product becomes what the operator's definition calls a score, with this element of the mask; -∞ for what is no key.
    fn adjust(
        &self,
        k: &mut Builder,
        score: TensorId,
        word: Option<(Scalar, Operand)>,
        key: &Expr,
    ) -> Result {
        let (fmha, given) = (self.fmha, self.place.given);
        let multiply = |k: &mut Builder, by: f64| {
            let by = constant(k, "by", Scalar::F32, by)?;
            k.binary(Binary::Mul, score, [score, by])
        };
        match fmha.softcap {
            None => multiply(k, fmha.scale.0)?,
            Some(cap) => {
                multiply(k, fmha.scale.0 / cap.0)?;
                k.unary(Unary::Tanh, score, score)?;
                multiply(k, cap.0)?;
            }
        }
        if let Some((scalar, word)) = word {
            let term = moved(k, "term", Scalar::F32, word)?;
            if scalar == Scalar::U8 {
                let fill = constant(k, "fill", Scalar::F32, fmha.fill.0)?;
                k.alone(Kind::Select, score, [term, score, fill])?;
            } else {
                k.reduce(Binary::Add, score, term)?;
            }
        }
        let beyond = Cond::new(key.clone(), Relation::AtLeast, &given.keys);
        k.if_(beyond, |k| k.init(score, f64::NEG_INFINITY))
    }
}
