//! The same attention before Hopper: each warp has 16 queries, all warps of a block share its tiles
//! of keys and values, which asynchronous copies bring into two stages each.
//!
//! - this file: the outline;
//! - `copies`: tiles on their way to shared memory;
//! - `tensor_cores`: products of halves;
//! - `rounded`: products of single precision rounded to TF32;
//! - `threads`: products of single precision, by fused multiply-adds.

mod copies;
mod rounded;
mod tensor_cores;
mod threads;

use super::fragments::{clear, fragment};
use super::operands::Sizes;
use super::scores::{Scorer, Spot};
use super::tiles::Place;
use super::{Fmha, ROWS};
use crate::arch::{Arch, Feature};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Group, Kernel, Kind, TensorId, ThreadsId};
use crate::layout::Tiler;
use crate::schedule::Softmax;
use crate::template::product::{leaf, line};
use crate::template::sums::features;
use crate::tensor::{Memory, Scalar, View};
use rounded::Rounded;
use tensor_cores::TensorCores;
use threads::Threads;

/// Stages of keys, and of values.
const STAGES: i64 = 2;

/// How products are made. Whoever makes them, a lane has of two rows, eight apart, pairs of columns
/// `[2,n].[2]`: of scores each eight's own one.
trait Products {
    /// A tile's queries are there.
    fn begin(&self, k: &mut Builder, block: &Block<'_>) -> Result<()>;

    /// Adds the products of queries and a stage's keys to the scores.
    fn keys(&self, k: &mut Builder, block: &Block<'_>, keys: TensorId) -> Result<()>;

    /// Scores have become weights.
    fn weights(&self, k: &mut Builder, block: &Block<'_>) -> Result<()>;

    /// Where the queries are, unless that is shared memory; and the weights.
    fn left(&self) -> [Option<TensorId>; 2];

    /// Adds the products of weights and a stage's values to the sums.
    fn values(&self, k: &mut Builder, block: &Block<'_>, values: TensorId) -> Result<()>;

    /// Which pair of the values' columns the own lane's `pair`-th is.
    fn column(&self, block: &Block<'_>, pair: &Var) -> Expr;
}

/// What the parts of the kernel share.
struct Block<'a> {
    fmha: &'a Fmha,
    sizes: &'a Sizes,
    one: ThreadsId,
    block: ThreadsId,
    /// The own thread's number.
    thread: Expr,
    warp: ThreadsId,
    /// The own warp's number, the own lane's row and pair of columns in fragments of 8×8.
    warp_at: Expr,
    row: Expr,
    column: Expr,
    /// Queries, keys and values in global and in shared memory: `[rows, dim]`, of the latter two
    /// in stages.
    operands: [TensorId; 4],
    shared: [TensorId; 3],
    mask: Option<TensorId>,
    /// Fragments of scores and sums.
    scores: TensorId,
    sums: TensorId,
    softmax: Softmax,
}

impl Fmha {
    /// The kernel for `sm_80` and later, with the symbols of [`kernel`](Fmha::kernel): each of
    /// `consumers` four warps. It always has two stages, and needs no tensor map.
    ///
    /// # Errors
    /// [`Error::Kernel`](crate::Error::Kernel) for parameters that no kernel has.
    pub fn ampere(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("fmha", Arch::Sm80);
        let (sizes, operands, mask) = self.declare(&mut k)?;
        let grid = k.grid("grid", line(&sizes.blocks))?;
        let block = k.block("block", line(self.ampere_threads()))?;
        let [first] = k.indices(grid, ["first"])?;
        let cta = k.index(grid, "cta", [&first])?;
        k.by(cta);
        let parts = Block::new(&mut k, self, &sizes, operands, mask, block)?;
        let products: Box<dyn Products> = match self.scalar {
            Scalar::F32 if self.tf32 => Box::new(Rounded::new(&mut k, &parts)?),
            Scalar::F32 => Box::new(Threads::new(&mut k, &parts)?),
            _ => Box::new(TensorCores::new(&mut k, &parts)?),
        };
        self.each_tile(&mut k, &sizes, &first.into(), |k, place| {
            let given = (&operands, mask);
            let tile = self.tile(k, given, self.rows(), (place, &place.m), block)?;
            k.decompose(tile, |k| parts.tile(k, &*products, place))
        })?;
        let [q, key, value, o] = operands;
        let ins: Vec<TensorId> = [q, key, value].into_iter().chain(mask).collect();
        k.finish_as(Header::new(self.kind(&sizes), o, ins, block))
    }

    /// What that kernel needs of an architecture.
    pub fn ampere_features(&self) -> &'static [Feature] {
        features(self.scalar, self.tf32)
    }

    /// Bytes of shared memory that a block of that kernel uses.
    pub fn ampere_bytes(&self) -> u64 {
        let (keys, head, value) = (self.keys, self.head_width(), self.value_width());
        let threads = self.scalar == Scalar::F32 && !self.tf32;
        let weights = if threads { self.rows() * keys } else { 0 };
        let staged = STAGES * keys * (head + value);
        let elements = self.rows() * head + staged + weights;
        (elements * self.scalar.bytes()).unsigned_abs()
    }

    fn ampere_threads(&self) -> i64 {
        128 * self.consumers
    }
}

impl<'a> Block<'a> {
    fn new(
        k: &mut Builder,
        fmha: &'a Fmha,
        sizes: &'a Sizes,
        operands: [TensorId; 4],
        mask: Option<TensorId>,
        block: ThreadsId,
    ) -> Result<Block<'a>> {
        let one = k.scalar(block, "one")?;
        let [thread] = k.indices(block, ["mover"])?;
        let warps = k.tile(block, "warps", &[Tiler::Size(32)])?;
        let quads = k.reshape(warps, "quads", 1, &[&[(4, 1)], &[(8, 4)]])?;
        let [warp_at, column, row] = k.indices(quads, ["warp", "quad", "fragment"])?;
        let warp = k.index(warps, "warp", [&warp_at])?;
        let mut allocate = |name: &str, stages: i64, rows: i64, dim: i64| {
            let tile = [leaf(rows, fmha.panel(dim)), fmha.panels(rows, dim)];
            let view = View::levels_of(&[vec![leaf(stages, rows * dim)], tile.to_vec()]);
            let swizzle = Some(fmha.swizzle(dim)?);
            k.allocate(name, view, fmha.scalar, Memory::Shared, swizzle)
        };
        let shared = [
            allocate("sQ", 1, fmha.rows(), fmha.head_width())?,
            allocate("sK", STAGES, fmha.keys, fmha.head_width())?,
            allocate("sV", STAGES, fmha.keys, fmha.value_width())?,
        ];
        Ok(Block {
            fmha,
            sizes,
            one,
            block,
            thread: thread.into(),
            warp,
            warp_at: warp_at.into(),
            row: row.into(),
            column: column.into(),
            operands,
            shared,
            mask,
            scores: fragment(k, "scores", fmha.keys, Scalar::F32)?,
            sums: fragment(k, "acc", fmha.value_width(), Scalar::F32)?,
            softmax: Softmax::new(k, fmha.units(), warp, one)?,
        })
    }

    /// A tile of queries. Groups of copies are those of a tile of keys and of a tile of values in
    /// turn, so that at each wait one younger group is in flight, or an empty one.
    fn tile(&self, k: &mut Builder, products: &dyn Products, place: &Place) -> Result<()> {
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
        clear(k, self.sums, fmha.value_width(), self.one)?;
        self.meet(k)?;
        products.begin(k, self)?;
        k.for_("step", Expr::from(0)..place.steps.clone(), 1, false, |k, step| {
            self.meet(k)?;
            self.next(k, 1, place, step, &ring)?;
            clear(k, self.scores, fmha.keys, self.one)?;
            let [queries, keys, values] = self.shared;
            let [near, weights] = products.left();
            let queries = k.index(queries, "all_q", [0])?;
            let [keys, values] =
                [k.index(keys, "keys", [&stage])?, k.index(values, "values", [&stage])?];
            let ins = [near.unwrap_or(queries), keys];
            let scores = Header::new(Kind::MATMUL_ADD, self.scores, ins, self.block);
            k.decompose(scores, |k| products.keys(k, self, keys))?;
            self.weigh(k, place, step)?;
            products.weights(k, self)?;
            self.meet(k)?;
            self.next(k, 2, place, step, &ring)?;
            self.softmax.rescale(k, self.sums, fmha.value_width() / 8)?;
            let ins = [weights.unwrap_or(self.scores), values];
            let sums = Header::new(Kind::MATMUL_ADD, self.sums, ins, self.block);
            k.decompose(sums, |k| products.values(k, self, values))?;
            k.advance(&ring)
        })?;
        self.softmax.finish(k, self.sums, fmha.value_width() / 8, fmha.guarded)?;
        self.store(k, products, place)
    }

    /// Scores become weights. The last tile of keys is the first.
    fn weigh(&self, k: &mut Builder, place: &Place, step: &Var) -> Result<()> {
        let tile = k.let_("tile", place.tile(step))?.into();
        let block = place.m.clone() * self.fmha.consumers * ROWS;
        let first = block + self.warp_at.clone() * 16;
        let row = first.clone() + &self.row;
        let spot = Spot { place, first, row, column: self.column.clone(), tile };
        let Block { fmha, one, mask, .. } = *self;
        let scorer = Scorer { fmha, one, mask, keys: &self.sizes.keys };
        let terms = scorer.fetch(k, &spot)?;
        scorer.adjust(k, self.scores, &spot, terms.as_ref())?;
        scorer.leave_out(k, self.scores, &spot, true)?;
        self.softmax.tile(k, self.scores, fmha.keys / 8)
    }
}
