//! The same attention by warps, before Hopper and after it, and for single precision: each warp has 16 queries, all warps of a
//! block share its tiles of keys and values, which come into two stages each.
mod matmuls;

use self::matmuls::{By, Left};
use super::context::{Place, order};
use super::{Fmha, GROUP, Given, STAGES, scores::Spot};
use crate::choose::{swizzle, swizzle_of_pairs};
use crate::schedule::{
    Softmax, Spread, WIDTH, begin_copy, commit_copies, copying, round, vector, wait_for_copies,
};
use crate::template::fragments::{Lane, Panels, spread_fragment};
use crate::{
    Builder, Cond, Expr, Fused, Header, Kernel, Kind, Result, Scalar, TensorId, Test, ThreadsId,
    Tiler, Unary, Var, choose::ceil,
};

/// What the parts of the kernel share.
struct Block<'a> {
    fmha: &'a Fmha,
    block: ThreadsId,
    thread: Expr,
    lane: Lane,
    /// Queries, keys and values in shared memory: `[rows, dim]`, of the latter two in stages.
    shared: [TensorId; 3],
    /// Fragments of scores and sums: a lane has of its rows, as they are [spread](Spread), pairs of columns `[rows,n].[2]`.
    scores: TensorId,
    sums: TensorId,
    softmax: Softmax,
    left: Left,
}

pub(super) fn kernel(fmha: &Fmha) -> Result<Kernel> {
    let mut k = Builder::new("fmha", fmha.arch);
    let given = Given::new(&mut k, fmha, GROUP * fmha.consumers)?;
    let parts = Block::new(&mut k, &given)?;
    given.each_tile(&mut k, |k, place| {
        let (tile, ins) = place.computed(k, fmha.rows(), &place.m, given.block)?;
        k.decompose(tile, |k| parts.tile(k, place, &ins))
    })?;
    k.finish_as(given.header())
}

impl<'a> Block<'a> {
    fn new(k: &mut Builder, given: &Given<'a>) -> Result<Block<'a>> {
        let Given { fmha, block, .. } = *given;
        let [thread] = k.indices(block, ["mover"])?;
        let lane = Lane::of(k, block, fmha.spread())?;
        // Eight lanes read every other key at once, so that pairs of keys have one swizzle; of four lanes none conflicts either way.
        let of_keys = match fmha.spread() {
            Spread::FourRows => swizzle_of_pairs,
            Spread::TwoRows => swizzle,
        };
        let shared = [
            fmha.panels(0).allocate(k, "sQ", &[1], false)?,
            fmha.panels(1).allocate_as(k, "sK", (&[STAGES], false), of_keys)?,
            fmha.panels(2).allocate(k, "sV", &[STAGES], false)?,
        ];
        let fragment = |k: &mut Builder, name: &str, columns: i64| {
            spread_fragment(k, name, (fmha.spread(), columns), Scalar::F32)
        };
        let scores = fragment(k, "scores", fmha.keys)?;
        let sums = fragment(k, "acc", fmha.value_width())?;
        let softmax = Softmax::new(k, fmha.units(), fmha.spread(), [block, lane.warp])?;
        let left = Left::new(k, fmha, &lane)?;
        let thread = thread.into();
        Ok(Block { fmha, block, thread, lane, shared, scores, sums, softmax, left })
    }

    /// The first of the own rows in a block's tile.
    fn row(&self) -> Expr {
        self.lane.number.clone() * 16 + &self.lane.row
    }

    /// A tile of queries. Groups of copies are those of a tile of keys and of a tile of values in
    /// turn, so that at each wait one younger group is in flight, or an empty one.
    fn tile(&self, k: &mut Builder, place: &Place<'_>, ins: &[TensorId]) -> Result {
        let fmha = self.fmha;
        let [pairs_of_keys, pairs_of_value] = fmha.pairs();
        let ring = k.ring("using", STAGES)?;
        let stage = ring.stage();
        // The next step's tile into the stage that the step before used, a group of their own.
        let next = |k: &mut Builder, which: usize, step: &Var| {
            let next = Expr::from(step) + 1;
            k.if_(Cond::less(next.clone(), &place.steps), |k| {
                let free = (Expr::from(&stage) + 1).rem(STAGES);
                self.copy(k, which, place, [place.tile(next), free])
            })?;
            commit_copies(k)
        };
        // The tile before is no longer in use.
        k.spec(Kind::Sync, (), (), self.block)?;
        self.copy(k, 0, place, [place.m.clone(), 0.into()])?;
        self.copy(k, 1, place, [place.tile(0), 0.into()])?;
        commit_copies(k)?;
        self.copy(k, 2, place, [place.tile(0), 0.into()])?;
        commit_copies(k)?;
        self.softmax.begin(k)?;
        self.softmax.clear(k, self.sums, pairs_of_value)?;
        self.meet(k)?;
        self.bring_queries(k)?;
        let carry = k.carry("step", (&place.steps, &1.into()), |_, step| {
            let first = place.m.clone() * fmha.rows();
            let state = (&self.softmax, self.sums, None);
            Ok(vec![place.carried(step, (ins, first), state, self.block)])
        })?;
        let steps = Expr::from(0)..place.steps.clone();
        k.for_carrying("step", steps, (1, false), carry, |k, step| {
            self.meet(k)?;
            next(k, 1, step)?;
            self.softmax.clear(k, self.scores, pairs_of_keys)?;
            let [queries, keys, values] = self.shared;
            let Left { queries: near, weights, .. } = self.left;
            let queries = k.index(queries, "all_q", [0])?;
            let keys = k.index(keys, "keys", [&stage])?;
            let values = k.index(values, "values", [&stage])?;
            let ins = [near.unwrap_or(queries), keys];
            // Keys lie by rows.
            let keyed = self.added([Fused::input(0), Fused::input(1).dims([1, 0].map(Some))]);
            let scores = Header::new(keyed, self.scores, ins, self.block);
            k.decompose(scores, |k| self.multiply(k, ins, false))?;
            self.weigh(k, place, step)?;
            let kind = if fmha.tf32 { Kind::Unary(Unary::Tf32) } else { Kind::Move };
            let converted = Header::new(kind, weights, self.scores, self.block);
            k.decompose(converted, |k| match self.left.by {
                By::TensorCores => fmha.pack(k, self.scores, weights),
                By::Rounded => self.weights_rounded(k),
                By::Threads | By::QuadPairs => self.weights_to_shared(k),
            })?;
            self.meet(k)?;
            next(k, 2, step)?;
            self.softmax.rescale(k, self.sums, pairs_of_value)?;
            let summed = self.added([0, 1].map(Fused::input));
            let ins = [weights, values];
            let sums = Header::new(summed, self.sums, ins, self.block);
            k.decompose(sums, |k| self.multiply(k, ins, true))?;
            k.advance(&ring)
        })?;
        self.softmax.finish(k, self.sums, pairs_of_value, fmha.guarded)?;
        self.store(k, place)
    }

    /// The matmul of these, rounded as operands are, added to what there is.
    fn added(&self, of: [Fused; 2]) -> Kind {
        let [a, b] = of.map(|x| self.fmha.rounded(x));
        Kind::Fused(a.matmul(b) + Fused::old(0))
    }

    /// Scores become weights. The last tile of keys is the first.
    fn weigh(&self, k: &mut Builder, place: &Place<'_>, step: &Var) -> Result {
        let tile = k.let_("tile", place.tile(step))?.into();
        let first = place.m.clone() * self.fmha.rows() + self.lane.number.clone() * 16;
        let row = first.clone() + &self.lane.row;
        let spot = Spot { place, first, row, column: self.lane.column.clone(), tile };
        let terms = spot.fetch(k)?;
        spot.adjust(k, self.scores, terms)?;
        spot.leave_out(k, self.scores, true)?;
        self.softmax.tile(k, self.scores, self.fmha.pairs()[0])
    }

    /// All but the youngest group of copies is there, for all threads.
    fn meet(&self, k: &mut Builder) -> Result {
        wait_for_copies(k, 1)?;
        k.spec(Kind::Sync, (), (), self.block)
    }

    /// A tile of queries, keys or values into a stage; zeros beyond the end.
    fn copy(&self, k: &mut Builder, which: usize, place: &Place<'_>, at: [Expr; 2]) -> Result {
        let [tile, stage] = at;
        let panels = self.fmha.panels(which);
        let Panels { rows, columns, scalar } = panels;
        let piece = WIDTH / scalar.bytes();
        let to = k.index(self.shared[which], "stage", [stage])?;
        let whole = place.rows(k, which, rows, &tile)?;
        // Keys are declared with their elements first.
        let turned = || Kind::Fused(Fused::input(0).dims([0, 1, 3, 2].map(Some)));
        let kind = if which == 1 { turned() } else { Kind::Move };
        let header = copying(k, Header::new(kind, to, whole, self.block));
        k.decompose(header, |k| {
            let to = k.tile(to, "chunks", &[Tiler::Size(1), Tiler::Size(piece)])?;
            let [first, second] = order(which, 1, piece);
            let tiles = [1, 1, first, second].map(Tiler::Size);
            let from = k.tile(place.given.params[which], "from", &tiles)?;
            let (all, threads) = (rows * columns / piece, GROUP * self.fmha.consumers);
            let width = panels.width() / piece;
            k.for_("e", 0..ceil(all, threads), 1, false, |k, e| {
                // Chunks of a panel's rows follow one another: neighbouring threads' banks differ.
                let linear = Expr::from(e) * threads + &self.thread;
                let (line, chunk) = (linear.div(width), linear.rem(width));
                let (row, chunk, inside) = if panels.count() == 1 {
                    (line.clone(), chunk, Cond::less(line, rows))
                } else {
                    let panel = line.div(rows);
                    let inside = Cond::less(panel.clone(), panels.count());
                    (line.rem(rows), panel * width + chunk, inside)
                };
                let body = |k: &mut Builder| {
                    let of_all = tile.clone() * rows + &row;
                    let from = k.index(from, "chunk", place.at(which, of_all, chunk.clone()))?;
                    let to = k.index(to, "to", [&row, &chunk])?;
                    begin_copy(k, to, from)
                };
                if all % threads == 0 { body(k) } else { k.if_(inside, body) }
            })
        })
    }

    /// Each lane writes its pairs that lie within the result.
    fn store(&self, k: &mut Builder, place: &Place<'_>) -> Result {
        let rows = place.rows(k, 3, self.fmha.rows(), &place.m)?;
        k.decompose(Header::new(Kind::Move, rows, self.sums, self.block), |k| {
            let to = k.tile(place.given.params[3], "pairs", &[1, 1, 1, 2].map(Tiler::Size))?;
            let row = place.m.clone() * self.fmha.rows() + self.row();
            let (spread, [_, pairs]) = (self.fmha.spread(), self.fmha.pairs());
            k.unroll_both([("j", pairs), ("half", spread.rows())], |k, [j, half]| {
                let mut out = k.index(self.sums, "pair", [half, j])?;
                if self.fmha.scalar != Scalar::F32 {
                    let narrow = vector(k, "out", 2, self.fmha.scalar)?;
                    round(k, narrow, out)?;
                    out = narrow;
                }
                let row = row.clone() + Expr::from(half) * spread.apart();
                let to = k.index(to, "to", place.at(3, row, self.column(j)))?;
                k.if_(Test::Inside(to.into()), |k| k.move_(to, out))
            })
        })
    }
}
