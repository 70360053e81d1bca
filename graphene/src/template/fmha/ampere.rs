//! The same attention before Hopper: each warp has 16 queries, all warps of a block share its tiles
//! of keys and values, which asynchronous copies bring into two stages each.

use super::scores::{Scorer, Spot};
use super::{Fmha, Place, ROWS, Sizes, clear, fragment, leaf, pack};
use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{Group, Kernel, Kind, Number, Operand, Ring, TensorId, Test, ThreadsId};
use crate::schedule::Softmax;
use crate::tensor::{Memory, Scalar, Shape, Tile, View};

/// Stages of keys, and of values.
const STAGES: i64 = 2;

/// Elements of a copy: 16 bytes.
const CHUNK: i64 = 8;

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
    /// Which of 2×2 matrices, and which row of it, the own lane points to.
    address: [Expr; 3],
    /// Queries, keys and values in global and in shared memory: `[rows, dim]`, of the latter two
    /// in stages.
    operands: [TensorId; 4],
    shared: [TensorId; 3],
    mask: Option<TensorId>,
    /// Fragments of queries, scores, weights, and sums.
    queries: TensorId,
    scores: TensorId,
    weights: TensorId,
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
        let grid = k.grid("grid", super::line(&sizes.blocks))?;
        let block = k.block("block", super::line(self.ampere_threads()))?;
        let [first] = k.indices(grid, ["first"])?;
        let parts = Block::new(&mut k, self, &sizes, operands, mask, block)?;
        self.each_tile(&mut k, &sizes, &first.into(), |k, place| parts.tile(k, place))?;
        let [q, key, value, o] = operands;
        let ins: Vec<TensorId> = [q, key, value].into_iter().chain(mask).collect();
        k.finish(o, ins)
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
        let warps = k.tile(block, "warps", &[Tile::of(32)])?;
        let quads = k.reshape(warps, "quads", 1, &[&[(4, 1)], &[(8, 4)]])?;
        let [warp_at, column, row] = k.indices(quads, ["warp", "quad", "fragment"])?;
        let warp = k.index(warps, "warp", [&warp_at])?;
        // Lane 8i + r holds the address of row r of the i-th of 2×2 matrices.
        let eights = k.tile(warp, "eights", &[Tile::of(8)])?;
        let grouped = k.reshape(eights, "matrices", 0, &[&[(2, 2)], &[(2, 1)]])?;
        let address = k.indices(grouped, ["matrix_m", "matrix_n", "matrix_row"])?;
        let mut allocate = |name: &str, stages: i64, rows: i64, dim: i64| {
            let tile = [leaf(rows, super::panel(dim)), super::panels(rows, dim)];
            let view = View::levels_of(&[vec![leaf(stages, rows * dim)], tile.to_vec()]);
            let swizzle = Some(super::swizzle(dim)?);
            k.allocate(name, view, fmha.scalar, Memory::Shared, swizzle)
        };
        let shared = [
            allocate("sQ", 1, fmha.rows(), fmha.head_dim)?,
            allocate("sK", STAGES, fmha.keys, fmha.head_dim)?,
            allocate("sV", STAGES, fmha.keys, fmha.value_dim)?,
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
            address: address.map(Expr::from),
            operands,
            shared,
            mask,
            queries: fragment(k, "queries", fmha.head_dim, fmha.scalar)?,
            scores: fragment(k, "scores", fmha.keys, Scalar::F32)?,
            weights: fragment(k, "weights", fmha.keys, fmha.scalar)?,
            sums: fragment(k, "acc", fmha.value_dim, Scalar::F32)?,
            softmax: Softmax::new(k, fmha.units(), warp, one)?,
        })
    }

    /// A tile of queries. Groups of copies are those of a tile of keys and of a tile of values in
    /// turn, so that at each wait one younger group is in flight, or an empty one.
    fn tile(&self, k: &mut Builder, place: &Place) -> Result<()> {
        let fmha = self.fmha;
        let ring = k.ring("using", STAGES)?;
        let stage = ring.stage();
        // The tile before is no longer in use.
        k.spec(Kind::Sync, (), (), self.block)?;
        self.copy(k, 0, place, place.m.clone(), Expr::from(0), true)?;
        self.copy(k, 1, place, place.tile(0), Expr::from(0), true)?;
        k.spec(Kind::Commit(Group::Copy), (), (), self.block)?;
        self.copy(k, 2, place, place.tile(0), Expr::from(0), true)?;
        k.spec(Kind::Commit(Group::Copy), (), (), self.block)?;
        self.softmax.begin(k)?;
        clear(k, self.sums, fmha.value_dim, self.one)?;
        self.meet(k)?;
        self.load_queries(k)?;
        k.for_("step", Expr::from(0)..place.steps.clone(), 1, false, |k, step| {
            self.meet(k)?;
            self.next(k, 1, place, step, &ring)?;
            clear(k, self.scores, fmha.keys, self.one)?;
            self.multiply_keys(k, &stage)?;
            self.weigh(k, place, step)?;
            self.meet(k)?;
            self.next(k, 2, place, step, &ring)?;
            self.softmax.rescale(k, self.sums, fmha.value_dim / 8)?;
            pack(k, self.scores, self.weights, fmha.keys, self.one)?;
            self.multiply_values(k, &stage)?;
            k.advance(&ring)
        })?;
        self.softmax.finish(k, self.sums, fmha.value_dim / 8, fmha.guarded)?;
        self.store(k, place)
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
            self.copy(k, which, place, place.tile(next), stage, false)
        })?;
        k.spec(Kind::Commit(Group::Copy), (), (), self.block)
    }

    /// A tile of queries, keys or values into a stage; if it may be partial, zeros beyond the end.
    /// Of keys and values only the last tile is, which comes first.
    fn copy(
        &self,
        k: &mut Builder,
        which: usize,
        place: &Place,
        tile: Expr,
        stage: Expr,
        partial: bool,
    ) -> Result<()> {
        let fmha = self.fmha;
        let (rows, dim, end) = match which {
            0 => (fmha.rows(), fmha.head_dim, &self.sizes.queries),
            1 => (fmha.keys, fmha.head_dim, &self.sizes.keys),
            _ => (fmha.keys, fmha.value_dim, &self.sizes.keys),
        };
        let to = k.index(self.shared[which], "stage", [stage])?;
        let to = k.tile(to, "chunks", &[Tile::of(1), Tile::of(CHUNK)])?;
        // Keys are declared with their elements first.
        let keys = which == 1;
        let mut sizes = [1, 1, 1, CHUNK].map(Tile::of);
        if keys {
            sizes.swap(2, 3);
        }
        let from = k.tile(self.operands[which], "from", &sizes)?;
        let zeros = if partial { Some(self.zeros(k)?) } else { None };
        let (all, threads) = (rows * dim / CHUNK, fmha.ampere_threads());
        k.for_("e", 0..(all + threads - 1) / threads, 1, false, |k, e| {
            // Chunks of a panel's rows follow one another: neighbouring threads' banks differ.
            let linear = Expr::from(e) * threads + &self.thread;
            let (width, panels) = (super::panel(dim) / CHUNK, dim / super::panel(dim));
            let chunk = linear.rem(&Expr::from(width));
            let line = linear.div(&Expr::from(width));
            let (row, chunk, inside) = if panels == 1 {
                (line.clone(), chunk, Cond::less(line, rows))
            } else {
                let panel = line.div(&Expr::from(rows));
                let inside = Cond::less(panel.clone(), panels);
                (line.rem(&Expr::from(rows)), panel * width + chunk, inside)
            };
            let body = |k: &mut Builder| {
                let of_all = tile.clone() * rows + &row;
                let head = if which == 0 { &place.head } else { &place.kv_head };
                let mut at = [&place.batch, head, &of_all, &chunk];
                if keys {
                    at.swap(2, 3);
                }
                let from = k.index(from, "chunk", at)?;
                let to = k.index(to, "to", [&row, &chunk])?;
                k.if_(Test::Inside(from.into()), |k| {
                    k.add(Header::new(Kind::Move, to, from, self.one).async_())
                })?;
                let Some(zeros) = zeros else { return Ok(()) };
                k.if_(Cond::new(of_all, Relation::AtLeast, end), |k| {
                    k.spec(Kind::Move, to, zeros, self.one)
                })
            };
            if all % threads == 0 { body(k) } else { k.if_(inside, body) }
        })
    }

    /// A chunk of zeros.
    fn zeros(&self, k: &mut Builder) -> Result<TensorId> {
        let view = View::buffer(&[leaf(CHUNK, 1)]);
        let zeros = k.allocate("zeros", view, self.fmha.scalar, Memory::Registers, None)?;
        k.for_("i", 0..CHUNK, 1, true, |k, i| {
            k.spec(Kind::Init(Number(0.0)), Operand::at(zeros, [i]), (), self.one)
        })?;
        Ok(zeros)
    }

    /// The own lane's row of one of the 16×16 tiles of `[rows, dim]`, eight elements of it: of the
    /// matrices `[m, n]`, or of `[n, m]`.
    fn row_of(
        &self,
        k: &mut Builder,
        tiles: TensorId,
        at: [Expr; 2],
        across: bool,
    ) -> Result<TensorId> {
        let tile = k.index(tiles, "tile", at)?;
        let matrices = k.tile(tile, "matrices", &[Tile::of(8), Tile::of(8)])?;
        let [m, n, row] = &self.address;
        let matrix = k.index(matrices, "matrix", if across { [n, m] } else { [m, n] })?;
        let rows = k.tile(matrix, "rows", &[Tile::of(1), Tile::of(8)])?;
        k.index(rows, "row", [row.clone(), Expr::from(0)])
    }

    fn load_queries(&self, k: &mut Builder) -> Result<()> {
        let of = k.index(self.shared[0], "of_block", [0])?;
        let tiles = k.tile(of, "tiles", &[Tile::of(16), Tile::of(16)])?;
        let to = k.tile(self.queries, "a", &[Tile::Whole, Tile::of(2)])?;
        k.for_("kk", 0..self.fmha.head_dim / 16, 1, true, |k, kk| {
            let row = self.row_of(k, tiles, [self.warp_at.clone(), kk.into()], false)?;
            k.spec(Kind::Move, Operand::at(to, [Expr::from(0), kk.into()]), row, self.warp)
        })
    }

    /// Scores are the products of queries and keys.
    fn multiply_keys(&self, k: &mut Builder, stage: &Var) -> Result<()> {
        let a = k.tile(self.queries, "a", &[Tile::Whole, Tile::of(2)])?;
        let of = k.index(self.shared[1], "of_stage", [stage])?;
        let tiles = k.tile(of, "tiles", &[Tile::of(16), Tile::of(16)])?;
        let (deep, wide) = (self.fmha.head_dim / 16, self.fmha.keys / 16);
        let pairs = [leaf(1, 0), leaf(2, 1)];
        self.multiply(k, self.scores, a, [deep, wide], &pairs, |k, kk, n| {
            self.row_of(k, tiles, [n.clone(), kk.clone()], false)
        })
    }

    /// The products of weights and values are added to the sums.
    fn multiply_values(&self, k: &mut Builder, stage: &Var) -> Result<()> {
        let a = k.tile(self.weights, "a", &[Tile::Whole, Tile::of(2)])?;
        let of = k.index(self.shared[2], "of_stage", [stage])?;
        let tiles = k.tile(of, "tiles", &[Tile::of(16), Tile::of(16)])?;
        let (deep, wide) = (self.fmha.keys / 16, self.fmha.value_dim / 16);
        // A lane's pairs run down the columns: the matrices are transposed on their way.
        let pairs = [leaf(2, 1), leaf(1, 0)];
        self.multiply(k, self.sums, a, [deep, wide], &pairs, |k, kk, n| {
            self.row_of(k, tiles, [kk.clone(), n.clone()], true)
        })
    }

    /// Products by sixteens along both sides of B, whose fragments are `[n, k]` of 8×8, each loaded
    /// from the rows that `row` points to.
    fn multiply(
        &self,
        k: &mut Builder,
        acc: TensorId,
        a: TensorId,
        [deep, wide]: [i64; 2],
        pairs: &[Shape; 2],
        row: impl Fn(&mut Builder, &Expr, &Expr) -> Result<TensorId>,
    ) -> Result<()> {
        let columns = k.tile(acc, "columns", &[Tile::Whole, Tile::of(1)])?;
        k.for_("kk", 0..deep, 1, true, |k, kk| {
            k.for_("n", 0..wide, 1, true, |k, n| {
                let view = View::levels_of(&[vec![leaf(2, 4), leaf(2, 2)], pairs.to_vec()]);
                let scalar = self.fmha.scalar;
                let b = k.allocate("b", view, scalar, Memory::Registers, None)?;
                let row = row(k, &kk.into(), &n.into())?;
                k.spec(Kind::Move, b, row, self.warp)?;
                let halves = k.tile(b, "halves", &[Tile::of(1), Tile::Whole])?;
                k.for_("half", 0..2, 1, true, |k, half| {
                    let zero = Expr::from(0);
                    let column = Expr::from(n) * 2 + Expr::from(half);
                    let c = Operand::at(columns, [zero.clone(), column]);
                    let a = Operand::at(a, [zero.clone(), kk.into()]);
                    let b = Operand::at(halves, [half.into(), zero]);
                    k.spec(Kind::MatMul, c, [a, b], self.warp)
                })
            })
        })
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
        let biases = scorer.fetch(k, &spot)?;
        scorer.adjust(k, self.scores, &spot, biases)?;
        scorer.leave_out(k, self.scores, &spot, true)?;
        self.softmax.tile(k, self.scores, fmha.keys / 8)
    }

    /// Each lane writes its pairs that lie within the result.
    fn store(&self, k: &mut Builder, place: &Place) -> Result<()> {
        let to = k.tile(self.operands[3], "pairs", &[1, 1, 1, 2].map(Tile::of))?;
        let row = place.m.clone() * self.fmha.rows() + self.warp_at.clone() * 16 + &self.row;
        k.for_("j", 0..self.fmha.value_dim / 8, 1, true, |k, j| {
            k.for_("half", 0..2, 1, true, |k, half| {
                let pair = View::buffer(&[leaf(2, 1)]);
                let out = k.allocate("out", pair, self.fmha.scalar, Memory::Registers, None)?;
                k.spec(Kind::Move, out, Operand::at(self.sums, [half, j]), self.one)?;
                let row = row.clone() + Expr::from(half) * 8;
                let column = Expr::from(j) * 4 + &self.column;
                let to = k.index(to, "to", [&place.batch, &place.head, &row, &column])?;
                k.if_(Test::Inside(to.into()), |k| k.spec(Kind::Move, to, out, self.one))
            })
        })
    }
}
