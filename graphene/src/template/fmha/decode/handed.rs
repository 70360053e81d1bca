//! What all warps have found becomes the result, in the shared memory of the cluster's first block.

use super::{Parts, state::weight};
use crate::schedule::{constant, moved, number, round, vector, zero_for_nan};
use crate::template::access::Cluster;
use crate::template::fmha::Fmha;
use crate::template::fragments::packed;
use crate::template::matmul::{leaf, line};
use crate::{
    Binary, Builder, Cond, Expr, Fence, Fused, Header, Kind, Layout, Memory, Operand, Result,
    Scalar, TensorId, Test, ThreadsId, Tiler, Unary, View, WARP,
};

/// Neighbouring sums that move at once.
const PIECE: i64 = 4;

/// What all warps know at the end, in the shared memory of the cluster's first block.
pub(super) struct Handed {
    /// `[warp, query]`
    pub(super) largest: TensorId,
    pub(super) sums: TensorId,
    /// `[warp, query, piece].[PIECE]`
    pub(super) values: TensorId,
    /// Of several blocks: they, which of them the own one is, and the barrier that is complete when all warps' states are there.
    pub(super) cluster: Option<(ThreadsId, Expr, TensorId)>,
}

impl Fmha {
    /// Pieces of a lane's sums.
    fn pieces(&self) -> i64 {
        self.lane_vector() / PIECE
    }
}

impl Handed {
    /// Allocates shared memory for all warps' states, and lets one thread initialise the barrier.
    pub(super) fn new(
        k: &mut Builder,
        fmha: &Fmha,
        block: ThreadsId,
        cluster: Cluster,
    ) -> Result<Handed> {
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

impl Parts<'_> {
    /// The own warp's state goes to the cluster's first block: its columns from the lanes of the first group.
    pub(super) fn hand(&self, k: &mut Builder) -> Result {
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
    pub(super) fn finish(&self, k: &mut Builder) -> Result {
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
