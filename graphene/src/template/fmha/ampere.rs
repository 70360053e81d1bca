//! The same attention before Hopper: each warp has 16 queries, all warps of a block share its tiles
//! of keys and values, which asynchronous copies bring into two stages each.
mod matmuls;

use self::matmuls::{Rounded, TensorCores, Threads};
use super::context::{Place, Tiles, order};
use super::operands::Given;
use super::scores::{Scorer, Spot};
use super::{Fmha, GROUP, ROWS, STAGES};
use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::choose::ceil;
use crate::error::Result;
use crate::index::{Cond, Expr, Var};
use crate::kernel::{
    Binary, Fused, Group, Kernel, Kind, Operand, Ring, TensorId, Test, ThreadsId, Unary,
};
use crate::layout::Tiler;
use crate::schedule::Softmax;
use crate::schedule::pointwise::{WIDTH, vector};
use crate::template::access::launch;
use crate::template::fragments::{Lane, Panels, clear, fragment};
use crate::tensor::Scalar;

/// How matmuls are made. Whoever makes them, a lane has of two rows, eight apart, pairs of columns
/// `[2,n].[2]`: of scores each eight's own one.
trait Matmuls {
    /// A tile's queries are there.
    fn begin(&self, _: &mut Builder, _: &Block<'_>) -> Result<()> {
        Ok(())
    }

    /// Adds the matmul of queries and a stage's keys to the scores.
    fn keys(&self, k: &mut Builder, block: &Block<'_>, keys: TensorId) -> Result<()>;

    /// Scores have become weights.
    fn weights(&self, k: &mut Builder, block: &Block<'_>) -> Result<()>;

    /// Where the queries are, unless that is shared memory; and the weights.
    fn left(&self) -> (Option<TensorId>, TensorId);

    /// Adds the matmul of weights and a stage's values to the sums.
    fn values(&self, k: &mut Builder, block: &Block<'_>, values: TensorId) -> Result<()>;

    /// Which pair of the values' columns the own lane's `pair`-th is.
    fn column(&self, block: &Block<'_>, pair: &Var) -> Expr {
        Expr::from(pair) * 4 + &block.lane.column
    }
}

/// What the parts of the kernel share.
struct Block<'a> {
    fmha: &'a Fmha,
    given: &'a Given,
    block: ThreadsId,
    /// The own thread's number.
    thread: Expr,
    lane: Lane,
    /// Queries, keys and values in shared memory: `[rows, dim]`, of the latter two in stages.
    shared: [TensorId; 3],
    /// Fragments of scores and sums.
    scores: TensorId,
    sums: TensorId,
    softmax: Softmax,
}

/// The kernel.
pub(super) fn kernel(fmha: &Fmha) -> Result<Kernel> {
    let mut k = Builder::new("fmha", Arch::Sm80);
    let given = fmha.declare(&mut k)?;
    let (block, first) = launch(&mut k, &given.blocks, GROUP * fmha.consumers, "first")?;
    let parts = Block::new(&mut k, fmha, &given, block)?;
    let matmuls: Box<dyn Matmuls> = match fmha.scalar {
        Scalar::F32 if fmha.tf32 => Box::new(Rounded::new(&mut k, &parts)?),
        Scalar::F32 => Box::new(Threads::new(&mut k, &parts)?),
        _ => Box::new(TensorCores::new(&mut k, &parts)?),
    };
    Tiles { fmha, given: &given }.each(&mut k, &first, |k, place| {
        let (tile, ins) = fmha.tile(k, &given, fmha.rows(), (place, &place.m), block)?;
        k.decompose(tile, |k| parts.tile(k, &*matmuls, place, &ins))
    })?;
    k.finish_as(given.header(fmha.kind(&given), block))
}

impl<'a> Block<'a> {
    fn new(
        k: &mut Builder,
        fmha: &'a Fmha,
        given: &'a Given,
        block: ThreadsId,
    ) -> Result<Block<'a>> {
        let [thread] = k.indices(block, ["mover"])?;
        let lane = Lane::new(k, block)?;
        let shared = [
            fmha.panels(0).allocate(k, "sQ", &[1], false)?,
            fmha.panels(1).allocate(k, "sK", &[STAGES], false)?,
            fmha.panels(2).allocate(k, "sV", &[STAGES], false)?,
        ];
        let scores = fragment(k, "scores", fmha.keys / 8, Scalar::F32)?;
        let sums = fragment(k, "acc", fmha.value_width() / 8, Scalar::F32)?;
        let softmax = Softmax::new(k, fmha.units(), [block, lane.warp])?;
        let thread = thread.into();
        Ok(Block { fmha, given, block, thread, lane, shared, scores, sums, softmax })
    }

    /// The first of the own two rows in a block's tile.
    fn row(&self) -> Expr {
        self.lane.number.clone() * 16 + &self.lane.row
    }

    /// A tile of queries. Groups of copies are those of a tile of keys and of a tile of values in
    /// turn, so that at each wait one younger group is in flight, or an empty one.
    fn tile(
        &self,
        k: &mut Builder,
        matmuls: &dyn Matmuls,
        place: &Place,
        ins: &[TensorId],
    ) -> Result<()> {
        let fmha = self.fmha;
        let ring = k.ring("using", STAGES)?;
        let stage = ring.stage();
        // The tile before is no longer in use.
        k.spec(Kind::Sync, (), (), self.block)?;
        self.copy(k, 0, place, place.m.clone(), Expr::from(0))?;
        self.copy(k, 1, place, place.tile(0), Expr::from(0))?;
        k.spec(Kind::Commit(Group::Copy), (), (), self.block)?;
        self.copy(k, 2, place, place.tile(0), Expr::from(0))?;
        k.spec(Kind::Commit(Group::Copy), (), (), self.block)?;
        self.softmax.begin(k)?;
        clear(k, self.sums, fmha.value_width() / 8)?;
        self.meet(k)?;
        matmuls.begin(k, self)?;
        let carry = k.carry("step", (&place.steps, &1.into()), |_, step| {
            let given = (ins, place.m.clone() * fmha.rows());
            let state = (&self.softmax, self.sums, None);
            Ok(vec![fmha.carried((place, &self.given.keys, step), given, state, self.block)])
        })?;
        k.for_carrying(
            "step",
            Expr::from(0)..place.steps.clone(),
            (1, false),
            carry,
            |k, step| {
                self.meet(k)?;
                self.next(k, 1, place, step, &ring)?;
                clear(k, self.scores, fmha.keys / 8)?;
                let [queries, keys, values] = self.shared;
                let (near, weights) = matmuls.left();
                let queries = k.index(queries, "all_q", [0])?;
                let [keys, values] =
                    [k.index(keys, "keys", [&stage])?, k.index(values, "values", [&stage])?];
                let ins = [near.unwrap_or(queries), keys];
                // Keys lie by rows.
                let keyed = self.added([Fused::input(0), Fused::input(1).dims([1, 0].map(Some))]);
                let scores = Header::new(keyed, self.scores, ins, self.block);
                k.decompose(scores, |k| matmuls.keys(k, self, keys))?;
                self.weigh(k, place, step)?;
                let kind = if fmha.tf32 { Kind::Unary(Unary::Tf32) } else { Kind::Move };
                let converted = Header::new(kind, weights, self.scores, self.block);
                k.decompose(converted, |k| matmuls.weights(k, self))?;
                self.meet(k)?;
                self.next(k, 2, place, step, &ring)?;
                self.softmax.rescale(k, self.sums, fmha.value_width() / 8)?;
                let summed = self.added([0, 1].map(Fused::input));
                let sums = Header::new(summed, self.sums, [weights, values], self.block);
                k.decompose(sums, |k| matmuls.values(k, self, values))?;
                k.advance(&ring)
            },
        )?;
        self.softmax.finish(k, self.sums, fmha.value_width() / 8, fmha.guarded)?;
        self.store(k, matmuls, place)
    }

    /// The matmul of these, rounded as operands are, added to what there is.
    fn added(&self, of: [Fused; 2]) -> Kind {
        let [a, b] = of.map(|x| self.fmha.rounded(x));
        Kind::Fused(a.matmul(b).binary(Binary::Add, Fused::old(0)))
    }

    /// Scores become weights. The last tile of keys is the first.
    fn weigh(&self, k: &mut Builder, place: &Place, step: &Var) -> Result<()> {
        let tile = k.let_("tile", place.tile(step))?.into();
        let block = place.m.clone() * self.fmha.consumers * ROWS;
        let first = block + self.lane.number.clone() * 16;
        let row = first.clone() + &self.lane.row;
        let spot = Spot { place, first, row, column: self.lane.column.clone(), tile };
        let Block { fmha, given, .. } = *self;
        let scorer = Scorer { fmha, given };
        let terms = scorer.fetch(k, &spot)?;
        scorer.adjust(k, self.scores, &spot, terms.as_ref())?;
        scorer.leave_out(k, self.scores, &spot, true)?;
        self.softmax.tile(k, self.scores, fmha.keys / 8)
    }

    /// All but the youngest group of copies is there, for all threads.
    fn meet(&self, k: &mut Builder) -> Result<()> {
        k.spec(Kind::WaitGroup(Group::Copy, 1, false), (), (), self.block)?;
        k.spec(Kind::Sync, (), (), self.block)
    }

    /// The next step's tile into the stage that the step before used, a group of their own.
    fn next(
        &self,
        k: &mut Builder,
        which: usize,
        place: &Place,
        step: &Var,
        ring: &Ring,
    ) -> Result<()> {
        let next = Expr::from(step) + 1;
        k.if_(Cond::less(next.clone(), &place.steps), |k| {
            let stage = (Expr::from(ring.stage()) + 1).rem(&Expr::from(STAGES));
            self.copy(k, which, place, place.tile(next), stage)
        })?;
        k.spec(Kind::Commit(Group::Copy), (), (), self.block)
    }

    /// A tile of queries, keys or values into a stage; zeros beyond the end.
    fn copy(
        &self,
        k: &mut Builder,
        which: usize,
        place: &Place,
        tile: Expr,
        stage: Expr,
    ) -> Result<()> {
        let panels = self.fmha.panels(which);
        let Panels { rows, columns, scalar } = panels;
        let piece = WIDTH / scalar.bytes();
        let to = k.index(self.shared[which], "stage", [stage])?;
        let whole = place.rows(k, self.given.operands, which, rows, &tile)?;
        // Keys are declared with their elements first.
        let kind = match which {
            1 => Kind::Fused(Fused::input(0).dims([0, 1, 3, 2].map(Some))),
            _ => Kind::Move,
        };
        k.decompose(Header::new(kind, to, whole, self.block).async_(), |k| {
            let to = k.tile(to, "chunks", &[Tiler::Size(1), Tiler::Size(piece)])?;
            let [first, second] = order(which, 1, piece);
            let from = k.tile(
                self.given.operands[which],
                "from",
                &[1, 1, first, second].map(Tiler::Size),
            )?;
            let (all, threads) = (rows * columns / piece, GROUP * self.fmha.consumers);
            let width = panels.width() / piece;
            k.for_("e", 0..ceil(all, threads), 1, false, |k, e| {
                // Chunks of a panel's rows follow one another: neighbouring threads' banks differ.
                let linear = Expr::from(e) * threads + &self.thread;
                let chunk = linear.rem(&Expr::from(width));
                let line = linear.div(&Expr::from(width));
                let (row, chunk, inside) = if panels.count() == 1 {
                    (line.clone(), chunk, Cond::less(line, rows))
                } else {
                    let panel = line.div(&Expr::from(rows));
                    let inside = Cond::less(panel.clone(), panels.count());
                    (line.rem(&Expr::from(rows)), panel * width + chunk, inside)
                };
                let body = |k: &mut Builder| {
                    let of_all = tile.clone() * rows + &row;
                    let from = k.index(from, "chunk", place.at(which, of_all, chunk.clone()))?;
                    let to = k.index(to, "to", [&row, &chunk])?;
                    k.add(Header::alone(Kind::Move, to, from).async_())
                };
                if all % threads == 0 { body(k) } else { k.if_(inside, body) }
            })
        })
    }

    /// Each lane writes its pairs that lie within the result.
    fn store(&self, k: &mut Builder, matmuls: &dyn Matmuls, place: &Place) -> Result<()> {
        let rows = place.rows(k, self.given.operands, 3, self.fmha.rows(), &place.m)?;
        k.decompose(Header::new(Kind::Move, rows, self.sums, self.block), |k| {
            let to = k.tile(self.given.operands[3], "pairs", &[1, 1, 1, 2].map(Tiler::Size))?;
            let row = place.m.clone() * self.fmha.rows() + self.row();
            k.unroll("j", self.fmha.value_width() / 8, |k, j| {
                k.unroll("half", 2, |k, half| {
                    let mut out = Operand::at(self.sums, [half, j]);
                    if self.fmha.scalar != Scalar::F32 {
                        let narrow = vector(k, "out", 2, self.fmha.scalar)?;
                        k.move_(narrow, out)?;
                        out = narrow.into();
                    }
                    let row = row.clone() + Expr::from(half) * 8;
                    let column = matmuls.column(self, j);
                    let to = k.index(to, "to", place.at(3, row, column))?;
                    k.if_(Test::Inside(to.into()), |k| k.move_(to, out))
                })
            })
        })
    }
}
