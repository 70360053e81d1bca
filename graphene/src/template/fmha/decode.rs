//! Attention of few queries of each head, as when tokens are generated. What takes time is that keys and values come, once: so
//! all warps of all blocks of a cluster share those of a head, and threads multiply. A vector of 16 bytes of a key is one lane's,
//! a few neighbours have all of it, and the groups of a warp take keys in turns. Each goes through its own keys by itself: the
//! largest score so far, and the weights' sums in its unit. At the end groups add these up in registers, and warps in the
//! shared memory of the cluster's first block.
//!
//! Levels:
//!
//! - kernel: O, of Q, K, V and the mask
//!   - cluster: few rows of O, of as many queries and of all keys and values of their head
//!     - reduction by a warp: of its part of the keys the largest scores, the weights' sums, and the weighted values'
//!       - registers by a team: scores, of what each lane has of them
//!     - epilogue by a block: what all warps have leaves as rows of O
//!   - tile by a block: the same by one alone
//!     - reduction by a warp: of its part of the keys the largest scores, the weights' sums, and the weighted values'
//!       - registers by a team: scores, of what each lane has of them
//!     - epilogue by a block: what all warps have leaves as rows of O

use super::context::{Place, order};
use super::{Fmha, Given, Mask, scores};
use crate::schedule::together::ThreadGroups;
use crate::schedule::{
    WIDTH, constant, fetch_inside, moved, number, round, vector, widen, zero_for_nan,
};
use crate::template::access::Cluster;
use crate::template::fragments::packed;
use crate::template::matmul::{leaf, line, registers};
use crate::{
    Binary, Builder, Cond, Expr, Fence, Fused, Header, Kernel, Kind, Layout, Memory, Operand,
    Relation, Result, Scalar, Scope, TensorId, Test, ThreadsId, Tiler, Unary, Var, View, WARP,
};

/// Neighbouring sums that move at once.
const PIECE: i64 = 4;

/// log₂ of a weight for each unit of its score.
const UNIT: f64 = std::f64::consts::LOG2_E;

/// What a warp knows of the keys that it has been through, in registers.
struct State {
    /// `[queries]`: the largest score, and the sum of the weights in its unit.
    largest: TensorId,
    sums: TensorId,
    /// `[queries].[vector]`: the own lane's columns of the weighted values' sum.
    values: TensorId,
}

/// What all warps know at the end, in the shared memory of the cluster's first block.
struct Handed {
    /// `[warp, query]`
    largest: TensorId,
    sums: TensorId,
    /// `[warp, query, piece].[PIECE]`
    values: TensorId,
    /// Of several blocks: they, which of them the own one is, and the barrier that is complete when all warps' states are there.
    cluster: Option<(ThreadsId, Expr, TensorId)>,
}

struct Parts<'a> {
    fmha: &'a Fmha,
    place: &'a Place<'a>,
    block: ThreadsId,
    warp: ThreadsId,
    teams: ThreadGroups,
    /// The own warp's number among those of all blocks, and the own group's in it.
    number: Expr,
    group: Expr,
    state: State,
    handed: Handed,
}

pub(super) fn kernel(fmha: &Fmha) -> Result<Kernel> {
    let mut k = Builder::new("fmha_decode", fmha.arch);
    let (given, cluster) = Given::of_clusters(&mut k, fmha)?;
    let tiles = given.queries.ceil_div(fmha.few).max(1);
    let place = given.place(&mut k, given.first.div(&tiles), given.first.rem(&tiles))?;
    let blocks = cluster.as_ref().map(|(blocks, _)| *blocks);
    let parts = Parts::new(&mut k, &place, cluster)?;
    let (tile, ins) = place.computed(&mut k, fmha.few, &place.m, given.block)?;
    k.decompose(tile.on(blocks), |k| parts.tile(k, &ins))?;
    if let Some(blocks) = blocks {
        // A block stays while others may still write there: a rule of all clusters.
        k.add(Header::new(Kind::Sync, (), (), given.block).on(blocks))?;
    }
    k.finish_as(given.header())
}

impl Fmha {
    /// Elements of a lane's vector.
    fn lane_vector(&self) -> i64 {
        WIDTH / self.scalar.bytes()
    }

    /// Lanes that share a key, a power of two.
    pub(super) fn lanes_of_key(&self) -> i64 {
        let vectors = self.head_dim.max(self.value_dim) / self.lane_vector();
        vectors.unsigned_abs().next_power_of_two() as i64
    }

    /// Keys of a tile that a lane has its vectors of.
    pub(super) fn keys_of_lane(&self) -> i64 {
        self.keys * self.lanes_of_key() / WARP
    }

    pub(super) fn warps(&self) -> i64 {
        4 * self.consumers
    }

    /// Pieces of a lane's sums.
    fn pieces(&self) -> i64 {
        self.lane_vector() / PIECE
    }

    /// Columns of the values' sums in shared memory.
    fn columns(&self) -> i64 {
        self.lanes_of_key() * self.lane_vector()
    }
}

impl State {
    fn new(k: &mut Builder, fmha: &Fmha) -> Result<State> {
        let [largest, sums] =
            ["largest", "sums"].map(|name| vector(k, name, fmha.few, Scalar::F32));
        let n = fmha.lane_vector();
        let values = registers(k, "acc", &[&[(fmha.few, n)], &[(n, 1)]], Scalar::F32)?;
        Ok(State { largest: largest?, sums: sums?, values })
    }

    fn clear(&self, k: &mut Builder, fmha: &Fmha) -> Result {
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
    fn raise(&self, k: &mut Builder, fmha: &Fmha, query: &Var, to: TensorId) -> Result {
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
fn weight(k: &mut Builder, score: Operand, largest: Operand) -> Result<TensorId> {
    let weight = number(k, "weight", Scalar::F32)?;
    let unit = constant(k, "unit", Scalar::F32, UNIT)?;
    k.binary(Binary::Sub, weight, [score, largest])?;
    k.binary(Binary::Mul, weight, [weight, unit])?;
    k.unary(Unary::Exp2, weight, weight)?;
    Ok(weight)
}

/// The queries of a tile that have elements of the mask of their own.
fn words_of_queries(fmha: &Fmha) -> i64 {
    if let Mask::Dense(_) = fmha.mask { fmha.few } else { 1 }
}

impl Handed {
    /// Allocates shared memory for all warps' states, and lets one thread initialise the barrier.
    fn new(k: &mut Builder, fmha: &Fmha, block: ThreadsId, cluster: Cluster) -> Result<Handed> {
        let (all, few, columns) = (fmha.parts * fmha.warps(), fmha.few, fmha.columns());
        let mut shared = |name: &str, levels: &[Vec<Layout<Expr>>]| {
            k.allocate(name, View::levels_of(levels), Scalar::F32, Memory::Shared, None)
        };
        let largest = shared("all_largest", &[packed(&[all, few], 1)])?;
        let sums = shared("all_sums", &[packed(&[all, few], 1)])?;
        // Neighbouring lanes' pieces are neighbours.
        let (lanes, of_lane) = (fmha.lanes_of_key(), fmha.pieces());
        let pieces = Layout::join(vec![leaf(of_lane, lanes * PIECE), leaf(lanes, PIECE)]);
        let outer = [packed(&[all, few], columns), vec![pieces]].concat();
        let values = shared("all_values", &[outer, vec![leaf(PIECE, 1)]])?;
        let cluster = match cluster {
            None => None,
            Some((blocks, rank)) => {
                let there = k.allocate("there", line(1), Scalar::Mbar, Memory::Shared, None)?;
                let bytes = all * few * (columns + 2) * Scalar::F32.bytes();
                k.role(block, 0..1, |k| {
                    k.init(Operand::at(there, [0]), 1.0)?;
                    k.alone(Kind::Arrive(Some(bytes.into())), Operand::at(there, [0]), ())?;
                    k.alone(Kind::Fence(Fence::Init), (), ())
                })?;
                Some((blocks, rank, there))
            }
        };
        Ok(Handed { largest, sums, values, cluster })
    }
}

impl<'a> Parts<'a> {
    fn new(k: &mut Builder, place: &'a Place<'a>, cluster: Cluster) -> Result<Parts<'a>> {
        let Given { fmha, block, .. } = *place.given;
        let lanes = fmha.lanes_of_key();
        let groups = WARP / lanes;
        let teams = ThreadGroups::new(k, block, lanes, fmha.warps() * groups)?;
        let warps = k.tile(block, "warps", &[Tiler::Size(WARP)])?;
        let of_block = Expr::from(k.let_("warp_of_block", teams.at[0].div(groups))?);
        let warp = k.index(warps, "warp", [&of_block])?;
        let rank = cluster.as_ref().map_or(Expr::from(0), |(_, rank)| rank.clone());
        let (number, group) = (rank * fmha.warps() + of_block, teams.at[0].rem(groups));
        let state = State::new(k, fmha)?;
        let handed = Handed::new(k, fmha, block, cluster)?;
        Ok(Parts { fmha, place, block, warp, teams, number, group, state, handed })
    }

    fn tile(&self, k: &mut Builder, ins: &[TensorId]) -> Result {
        self.own_part(k, ins)?;
        if let Some((blocks, ..)) = &self.handed.cluster {
            // The barrier is there.
            k.add(Header::new(Kind::Sync, (), (), self.block).on(*blocks))?;
        }
        self.hand(k)?;
        match &self.handed.cluster {
            None => {
                k.spec(Kind::Sync, (), (), self.block)?;
                self.finish(k)
            }
            Some((_, rank, there)) => k.if_(Cond::equal(rank.clone(), 0), |k| {
                let there = Operand::at(*there, [0]);
                k.spec(Kind::Wait(0.into(), Scope::Cluster), there, (), self.block)?;
                self.finish(k)
            }),
        }
    }

    /// The own warp goes through its part of the keys: as many tiles as any other, or fewer.
    fn own_part(&self, k: &mut Builder, ins: &[TensorId]) -> Result {
        let (fmha, steps) = (self.fmha, self.place.steps.clone());
        let each = steps.ceil_div(fmha.parts * fmha.warps());
        let first: Expr = k.let_("first_tile", self.number.clone() * &each)?.into();
        let count = k.let_("tiles", (steps - &first).max(0).min(each))?;
        let State { largest, sums, values } = self.state;
        let kind = self.part_kind(&first, &count.clone().into());
        let header = Header::new(kind, [largest, sums, values], ins.to_vec(), self.warp);
        k.decompose(header, |k| {
            self.state.clear(k, fmha)?;
            let queries = self.queries(k)?;
            k.for_("step", Expr::from(0)..count.into(), 1, false, |k, step| {
                let tile = k.let_("tile", first.clone() + step)?;
                self.keys(k, queries, &tile)
            })?;
            self.add_up(k)
        })
    }

    /// Of queries, and of so many tiles of keys and values, the largest scores, the sums of weights, and of weighted values.
    fn part_kind(&self, first: &Expr, count: &Expr) -> Kind {
        let (fmha, all) = (self.fmha, self.place.given.keys.clone());
        let from = (first.clone() * fmha.keys).min(all.clone());
        let count = (count.clone() * fmha.keys).min(all - &from);
        let own = |x: Fused, dim: usize| x.slice(dim, from.clone(), count.clone());
        let operands = [Fused::input(0), own(Fused::input(1), 3)];
        let mask = fmha.tile_mask().map(|mask| own(mask, 3));
        let scores = fmha.scores(operands, mask, [2, 3], 0.into());
        let least = f64::from(f32::MIN);
        let largest = scores.clone().folded(Binary::Max, [3]).binary(Binary::Max, least);
        let weights = (scores - largest.clone()).unary(Unary::Exp);
        let values = weights.clone().matmul(own(Fused::input(2), 2));
        Kind::Fused(Fused::all([largest, weights.folded(Binary::Add, [3]), values]))
    }

    /// A vector of a row of queries (0), keys (1), values (2) or the result (3), of as many elements.
    fn vector_of(
        &self,
        k: &mut Builder,
        which: usize,
        n: i64,
        [row, column]: [Expr; 2],
    ) -> Result<TensorId> {
        let [first, second] = order(which, 1, n);
        let tiles = [1, 1, first, second].map(Tiler::Size);
        let tiled = k.tile(self.place.given.params[which], "vectors", &tiles)?;
        let tile = k.index(tiled, "vector", self.place.at(which, row, column))?;
        k.reshape(tile, "elements", 0, &[&[(n, 1)]])
    }

    /// The query of this number among the tile's.
    fn query(&self, query: &Var) -> Expr {
        self.place.m.clone() * self.fmha.few + query
    }

    /// The own lane's vectors of the queries, in single precision: `[queries].[vector]`.
    fn queries(&self, k: &mut Builder) -> Result<TensorId> {
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
    fn keys(&self, k: &mut Builder, queries: TensorId, tile: &Var) -> Result {
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

    /// The states of a warp's groups become one, which all of them have.
    fn add_up(&self, k: &mut Builder) -> Result {
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

    /// The own warp's state goes to the cluster's first block: its columns from the lanes of the first group.
    fn hand(&self, k: &mut Builder) -> Result {
        let Handed { largest, sums, values, cluster } = &self.handed;
        let (mut to, mut barrier) = ([*largest, *sums, *values], None);
        if let Some((_, _, there)) = cluster {
            for (to, name) in to.iter_mut().zip(["largest_there", "sums_there", "values_there"]) {
                *to = k.peer(*to, name, 0)?;
            }
            barrier = Some(Operand::at(k.peer(*there, "all_there", 0)?, [0]));
        }
        let put = |k: &mut Builder, to: Operand, from: TensorId| {
            let header = Header::alone(Kind::Move, to, from);
            k.add(match &barrier {
                Some(barrier) => header.signals(barrier.clone()),
                None => header,
            })
        };
        let pieces = self.fmha.pieces();
        let member = &self.teams.at[1];
        k.if_(Cond::equal(self.group.clone(), 0), |k| {
            k.unroll("query", self.fmha.few, |k, query| {
                let at = [self.number.clone(), query.into()];
                let own = k.index(self.state.values, "values", [query])?;
                let own = k.tile(own, "pieces", &[Tiler::Size(PIECE)])?;
                k.unroll("piece", pieces, |k, piece| {
                    let from = k.index(own, "piece", [piece])?;
                    let [number, query] = at.clone();
                    let piece = member.clone() * pieces + piece;
                    put(k, Operand::at(to[2], [number, query, piece]), from)
                })?;
                k.if_(Cond::equal(member.clone(), 0), |k| {
                    for (to, of) in to.iter().zip([self.state.largest, self.state.sums]) {
                        let from = k.index(of, "of_query", [query])?;
                        put(k, Operand::at(*to, at.clone()), from)?;
                    }
                    Ok(())
                })
            })
        })
    }

    /// The result, of all warps' states.
    fn finish(&self, k: &mut Builder) -> Result {
        let Handed { largest, sums, values, .. } = self.handed;
        let to = self.place.rows(k, 3, self.fmha.few, &self.place.m)?;
        let header = Header::new(self.result_kind(), to, [largest, sums, values], self.block);
        k.decompose(header, |k| {
            let [thread] = k.indices(self.block, ["finisher"])?;
            let (lanes, of_lane) = (self.fmha.lanes_of_key(), self.fmha.pieces());
            let items = self.fmha.few * of_lane * lanes;
            let threads = WARP * self.fmha.warps();
            k.for_("e", 0..(items + threads - 1) / threads, 1, false, |k, e| {
                let item = Expr::from(e) * threads + &thread;
                k.if_(Cond::less(item.clone(), items), |k| {
                    let piece = item.rem(lanes) * of_lane + item.div(lanes).rem(of_lane);
                    self.finish_piece(k, &item.div(lanes * of_lane), &piece)
                })
            })
        })
    }

    /// Of all warps' largest scores, sums of weights and of weighted values, the result.
    fn result_kind(&self) -> Kind {
        let fmha = self.fmha;
        let [scores, sums, values] = [0, 1, 2].map(Fused::input);
        let largest = scores.clone().folded(Binary::Max, [0]);
        let factors = (scores - largest).unary(Unary::Exp);
        let total = (sums * factors.clone()).folded(Binary::Add, [0]).dims([None, Some(1)]);
        let wide = |x: Fused| x.dims([Some(0), Some(1), None, None]);
        let values = (values * wide(factors)).folded(Binary::Add, [0]).merge(2);
        let values = values.slice(2, 0, fmha.value_dim).dims([Some(1), Some(2)]);
        let result = values / total.dims([Some(1), None]);
        Kind::Fused(fmha.guarded_result(result))
    }

    fn finish_piece(&self, k: &mut Builder, query: &Expr, piece: &Expr) -> Result {
        let (fmha, all) = (self.fmha, self.fmha.parts * self.fmha.warps());
        let Handed { largest, sums, values, .. } = self.handed;
        let best = constant(k, "best", Scalar::F32, f32::MIN.into())?;
        k.unroll("i", all, |k, i| {
            let score = moved(k, "score", Scalar::F32, Operand::at(largest, [&i.into(), query]))?;
            k.reduce(Binary::Max, best, score)
        })?;
        let total = constant(k, "total", Scalar::F32, 0.0)?;
        let result = vector(k, "result", PIECE, Scalar::F32)?;
        k.unroll("p", PIECE, |k, p| k.init(Operand::at(result, [p]), 0.0))?;
        k.unroll("i", all, |k, i| {
            let at = [&Expr::from(i), query];
            let score = moved(k, "score", Scalar::F32, Operand::at(largest, at))?;
            let factor = weight(k, score.into(), best.into())?;
            let sum = moved(k, "sum", Scalar::F32, Operand::at(sums, at))?;
            k.fma(total, [factor, sum])?;
            let part = vector(k, "part", PIECE, Scalar::F32)?;
            k.move_(part, Operand::at(values, [at[0], at[1], piece]))?;
            k.unroll("p", PIECE, |k, p| {
                k.fma(Operand::at(result, [p]), [factor.into(), Operand::at(part, [p])])
            })
        })?;
        let inverse = number(k, "inverse", Scalar::F32)?;
        k.unary(Unary::Rcp, inverse, total)?;
        k.unroll("p", PIECE, |k, p| {
            let element = Operand::at(result, [p]);
            k.binary(Binary::Mul, element.clone(), [element.clone(), inverse.into()])?;
            if fmha.guarded { zero_for_nan(k, &element) } else { Ok(()) }
        })?;
        let to =
            self.vector_of(k, 3, PIECE, [self.place.m.clone() * fmha.few + query, piece.clone()])?;
        let mut out = result;
        if fmha.scalar != Scalar::F32 {
            out = vector(k, "out", PIECE, fmha.scalar)?;
            round(k, out, result)?;
        }
        k.if_(Test::Inside(to.into()), |k| k.move_(to, out))
    }
}
