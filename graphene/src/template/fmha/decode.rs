//! Attention of few queries of each head, as when tokens are generated. Reading keys and values once takes most of the time:
//! so the warps of a cluster's blocks each have a run of the tiles of a head's keys, and threads multiply. Neighbouring runs
//! belong to different blocks, and the last warps of each have none where tiles are few. A lane loads 16 bytes of a key, a few
//! neighbouring lanes have all of it, and each such group of a warp has keys of its own, for which it keeps the largest score
//! so far, the sum of weights, and the weighted sum of values. At the end groups are added up by shuffles, and warps in the
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

mod handed;
mod keys;
mod state;

use self::handed::Handed;
use self::state::State;
use super::context::{Place, order};
use super::{Fmha, Given};
use crate::schedule::WIDTH;
use crate::schedule::together::ThreadGroups;
use crate::template::access::Cluster;
use crate::{
    Binary, Builder, Cond, Expr, Fused, Header, Kernel, Kind, Operand, Result, Scope, TensorId,
    ThreadsId, Tiler, Unary, Var, WARP,
};

/// What the parts of the kernel share.
struct Parts<'a> {
    fmha: &'a Fmha,
    place: &'a Place<'a>,
    block: ThreadsId,
    warp: ThreadsId,
    teams: ThreadGroups,
    /// The own warp's number among those of all blocks, whose neighbours are in other blocks, and the own group's in it.
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

    /// Columns of the values' sums in shared memory.
    fn columns(&self) -> i64 {
        self.lanes_of_key() * self.lane_vector()
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
        let (number, group) = (of_block * fmha.parts + rank, teams.at[0].rem(groups));
        let state = State::new(k, fmha)?;
        let handed = Handed::new(k, fmha, block, cluster)?;
        Ok(Parts { fmha, place, block, warp, teams, number, group, state, handed })
    }

    fn tile(&self, k: &mut Builder, ins: &[TensorId]) -> Result {
        self.own_part(k, ins)?;
        if let Some((blocks, ..)) = &self.handed.cluster {
            // Every block's barrier is initialised before another block signals it.
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
}
