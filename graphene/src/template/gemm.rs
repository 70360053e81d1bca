//! Matrix products `C[m,n] = A[m,k]·B[k,n]` for Hopper.
//!
//! Blocks are persistent: each takes one tile of C after the other. One warpgroup produces: a
//! single thread copies tiles of A and B into a ring of stages. The others consume: each multiplies
//! 64 rows of the tile, and writes them while the producer already fills the ring for the next.

use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::error::{Error, Result};
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{Fence, Group, Kernel, Kind, Number, Operand, TensorId, ThreadsId};
use crate::layout::Swizzle;
use crate::schedule::{Pipeline, consume, produce};
use crate::tensor::{Coord, Memory, Scalar, Shape, Tile, View};

/// The parameters of a product.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// The type of A, B and C; products accumulate in single precision.
    pub scalar: Scalar,
    /// Whether A is column-major, that is, M is contiguous.
    pub a_transposed: bool,
    /// Whether B is row-major, that is, N is contiguous; otherwise K is, as in a linear layer's
    /// weights.
    pub b_transposed: bool,
    /// Columns of a tile: a multiple of 64, at most 256.
    pub columns: i64,
    /// Stages of the ring.
    pub stages: i64,
    /// Consumer warpgroups, with 64 rows each.
    pub consumers: i64,
    /// Rows of tiles that are walked together, so that operands stay in the L2 cache.
    pub raster: i64,
}

/// The depth of a stage: 128 bytes of halves, the width of the swizzle.
const DEPTH: i64 = 64;

/// Rows of a warpgroup's product.
const ROWS: i64 = 64;

/// Columns of the tile through which C leaves: 128 bytes.
const PANEL: i64 = 64;

impl Default for Gemm {
    fn default() -> Gemm {
        Gemm {
            scalar: Scalar::F16,
            a_transposed: false,
            b_transposed: false,
            columns: 256,
            stages: 4,
            consumers: 2,
            raster: 8,
        }
    }
}

/// What the parts of the kernel share.
struct Context<'a> {
    gemm: &'a Gemm,
    one: ThreadsId,
    /// The tile's row and column, in tiles.
    tiles: Expr,
    steps: Expr,
    tiles_m: Expr,
    tiles_n: Expr,
    pipeline: Pipeline,
    shared: [TensorId; 2],
}

impl Gemm {
    fn rows(&self) -> i64 {
        ROWS * self.consumers
    }

    /// The kernel, with symbols M, N, K, and the number of blocks.
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        let columns = self.columns;
        if columns % PANEL != 0 || !(PANEL..=256).contains(&columns) || self.stages < 2 {
            return Err(Error::Kernel(format!("no tile of {columns} columns: {self:?}")));
        }
        let mut k = Builder::new("gemm", Arch::Sm90a);
        let [m, n, depth, count] = ["M", "N", "K", "blocks"].map(|name| k.symbol(name));
        let [m, n, depth, count] = [m?, n?, depth?, count?];
        let a = k.param("A", matrix(&m, &depth, self.a_transposed), self.scalar)?;
        let b = k.param("B", matrix(&depth, &n, !self.b_transposed), self.scalar)?;
        let c = k.param("C", matrix(&m, &n, false), self.scalar)?;
        let grid = k.grid("grid", line(&count))?;
        let threads = 128 * (self.consumers + 1);
        let block = k.block("block", line(threads))?;

        let one = k.scalar(block, "one")?;
        let [blocks] = k.indices(grid, ["first"])?;
        let groups = k.tile(block, "warpgroups", &[Tile::of(128)])?;
        let shared = [
            self.ring_of(&mut k, "sA", self.rows(), self.a_transposed)?,
            self.ring_of(&mut k, "sB", columns, self.b_transposed)?,
        ];
        let pipeline = Pipeline::new(&mut k, self.stages, 1, 4 * self.consumers, block)?;
        k.spec(Kind::Sync, (), (), block)?;
        let tile = |extent: &Var, size: i64| Expr::from(extent).ceil_div(&Expr::from(size));
        let (tiles_m, tiles_n) = (tile(&m, self.rows()), tile(&n, columns));
        let context = Context {
            gemm: self,
            one,
            tiles: tiles_m.clone() * &tiles_n,
            steps: tile(&depth, DEPTH),
            tiles_m,
            tiles_n,
            pipeline,
            shared,
        };
        let first = Expr::from(&blocks);
        let walk = (first, Expr::from(&count));
        k.role(groups, 0..self.consumers, |k| context.consumers(k, groups, block, c, &walk))?;
        k.role(groups, self.consumers..self.consumers + 1, |k| {
            let own = context.own(k, groups)?;
            k.spec(Kind::Registers(40), (), (), own)?;
            k.role(block, threads - 128..threads - 127, |k| context.producer(k, [a, b], &walk))
        })?;
        k.finish(c, [a, b])
    }

    /// The ring of an operand: `[stages, mn, 64]` for A; the contiguous side in panels of 128 bytes.
    fn ring_of(
        &self,
        k: &mut Builder,
        name: &str,
        size: i64,
        transposed: bool,
    ) -> Result<TensorId> {
        let side = if transposed {
            let panel = [leaf(PANEL, 1), leaf(size / PANEL, PANEL * DEPTH)];
            if size == PANEL { leaf(PANEL, 1) } else { Shape::Tuple(panel.to_vec()) }
        } else {
            leaf(size, DEPTH)
        };
        let along = leaf(DEPTH, if transposed { PANEL } else { 1 });
        let dims = if name == "sA" { [side, along] } else { [along, side] };
        let stage = leaf(self.stages, size * DEPTH);
        let view = View::levels_of(&[vec![stage], dims.to_vec()]);
        k.allocate(name, view, self.scalar, Memory::Shared, Some(Swizzle::new(3, 4, 3)?))
    }
}

impl Context<'_> {
    /// Goes through the block's tiles: `body` is given the tile's row and column.
    fn each_tile(
        &self,
        k: &mut Builder,
        walk: &(Expr, Expr),
        body: impl FnOnce(&mut Builder, &Var, &Var) -> Result<()>,
    ) -> Result<()> {
        let (first, step) = walk.clone();
        k.for_("t", first..self.tiles.clone(), step, false, |k, t| {
            // Tiles in bands of `raster` rows, down the columns of a band.
            let raster = self.gemm.raster;
            let band = self.tiles_n.clone() * raster;
            let band_of = k.let_("band", Expr::from(t).div(&band))?;
            let left = self.tiles_m.clone() - Expr::from(&band_of) * raster;
            let height = left.min(Expr::from(raster)).max(Expr::from(1));
            let height = Expr::from(k.let_("height", height)?);
            let within = Expr::from(k.let_("within", Expr::from(t).rem(&band))?);
            let m = k.let_("m", Expr::from(&band_of) * raster + within.rem(&height))?;
            let n = k.let_("n", within.div(&height))?;
            body(k, &m, &n)
        })
    }

    fn own(&self, k: &mut Builder, groups: ThreadsId) -> Result<ThreadsId> {
        let [group, _] = k.indices(groups, ["group", "in_group"])?;
        k.index(groups, "own", [&group])
    }

    fn producer(
        &self,
        k: &mut Builder,
        operands: [TensorId; 2],
        walk: &(Expr, Expr),
    ) -> Result<()> {
        let gemm = self.gemm;
        let [a, b] = operands;
        let box_a = if gemm.a_transposed { PANEL } else { gemm.rows() };
        let box_b = if gemm.b_transposed { PANEL } else { gemm.columns };
        let from_a = k.tile(a, "gA", &[Tile::of(box_a), Tile::of(DEPTH)])?;
        let from_b = k.tile(b, "gB", &[Tile::of(DEPTH), Tile::of(box_b)])?;
        let ring = k.ring("filling", gemm.stages)?;
        self.each_tile(k, walk, |k, m, n| {
            k.for_("k", Expr::from(0)..self.steps.clone(), 1, false, |k, step| {
                produce(k, &self.pipeline, &ring, self.one, |k, full, stage| {
                    let bytes = (gemm.rows() + gemm.columns) * DEPTH * gemm.scalar.bytes();
                    k.spec(Kind::Arrive(Some(bytes.into())), full.clone(), (), self.one)?;
                    let stage = Expr::from(stage);
                    self.fill(k, 0, box_a, &stage, &full, |i| {
                        let at = Expr::from(m) * (gemm.rows() / box_a) + i;
                        (from_a, [at, step.into()])
                    })?;
                    self.fill(k, 1, box_b, &stage, &full, |i| {
                        let at = Expr::from(n) * (gemm.columns / box_b) + i;
                        (from_b, [step.into(), at])
                    })
                })
            })
        })
    }

    /// Copies one operand's tile into a stage, box by box.
    fn fill(
        &self,
        k: &mut Builder,
        operand: usize,
        side: i64,
        stage: &Expr,
        full: &Operand,
        from: impl Fn(i64) -> (TensorId, [Expr; 2]),
    ) -> Result<()> {
        let size = [self.gemm.rows(), self.gemm.columns][operand];
        let to = k.index(self.shared[operand], "stage", [stage])?;
        let tile = match operand {
            0 => [Tile::of(side), Tile::Whole],
            _ => [Tile::Whole, Tile::of(side)],
        };
        let boxes = k.tile(to, "boxes", &tile)?;
        for i in 0..size / side {
            let (source, at) = from(i);
            let source = Operand { tensor: source, index: Coord::list(at) };
            let at = if operand == 0 { [i, 0] } else { [0, i] };
            let copy = Header::new(Kind::Move, Operand::at(boxes, at), source, self.one);
            k.add(copy.signals(full.clone()))?;
        }
        Ok(())
    }

    fn consumers(
        &self,
        k: &mut Builder,
        groups: ThreadsId,
        block: ThreadsId,
        c: TensorId,
        walk: &(Expr, Expr),
    ) -> Result<()> {
        let gemm = self.gemm;
        let [group, _] = k.indices(groups, ["group", "in_group"])?;
        let own = k.index(groups, "own", [&group])?;
        k.spec(Kind::Registers(232), (), (), own)?;
        let n = gemm.columns / 8;
        let fragment = View::levels_of(&[vec![leaf(2, 2), leaf(n, 4)], vec![leaf(2, 1)]]);
        let acc = k.allocate("acc", fragment, Scalar::F32, Memory::Registers, None)?;
        // One lane of every warp speaks for it.
        let lanes = k.tile(block, "lanes", &[Tile::Modes(vec![(4 * (gemm.consumers + 1), 32)])])?;
        let ring = k.ring("using", gemm.stages)?;
        let release = |k: &mut Builder, stage: Expr| {
            k.role(lanes, 0..1, |k| {
                k.spec(Kind::Arrive(None), Operand::at(self.pipeline.empty, [stage]), (), self.one)
            })
        };
        let out = Epilogue::new(k, self, c, own, &group)?;
        self.each_tile(k, walk, |k, m, n_tile| {
            k.for_("j", 0..n, 1, true, |k, j| {
                for (half, pair) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let at = [Expr::from(half), Expr::from(j)];
                    let at = k.index(acc, "zero", at)?;
                    k.spec(Kind::Init(Number(0.0)), Operand::at(at, [pair]), (), self.one)?;
                }
                Ok(())
            })?;
            k.for_("k", Expr::from(0)..self.steps.clone(), 1, false, |k, step| {
                consume(
                    k,
                    &self.pipeline,
                    &ring,
                    own,
                    step,
                    |k, stage| self.multiply(k, acc, own, &group, stage),
                    |k| k.spec(Kind::WaitGroup(Group::MatMul, 1, false), acc, (), own),
                    release,
                )
            })?;
            k.spec(Kind::WaitGroup(Group::MatMul, 0, false), acc, (), own)?;
            k.if_(vec![Cond::new(self.steps.clone(), Relation::AtLeast, 1)], |k| {
                let last = Expr::from(ring.stage()) + (gemm.stages - 1);
                release(k, last.rem(&Expr::from(gemm.stages)))
            })?;
            out.store(k, acc, m, n_tile)
        })?;
        // What is still being read out of shared memory must not outlive the block.
        k.role(own, 0..1, |k| k.spec(Kind::WaitGroup(Group::Bulk, 0, true), (), (), self.one))
    }

    /// The products of one stage, a group of their own.
    fn multiply(
        &self,
        k: &mut Builder,
        acc: TensorId,
        own: ThreadsId,
        group: &Var,
        stage: &Var,
    ) -> Result<()> {
        let [a, b] = self.shared;
        let a = k.index(a, "a", [stage])?;
        let a = k.tile(a, "a", &[Tile::of(ROWS), Tile::of(16)])?;
        let b = k.index(b, "b", [stage])?;
        let b = k.tile(b, "b", &[Tile::of(16), Tile::Whole])?;
        k.spec(Kind::Fence(Fence::MatMul), acc, (), own)?;
        k.for_("kk", 0..DEPTH / 16, 1, true, |k, kk| {
            let a = Operand::at(a, [Expr::from(group), Expr::from(kk)]);
            let b = Operand::at(b, [Expr::from(kk), Expr::from(0)]);
            k.add(Header::new(Kind::MatMul, acc, [a, b], own).async_())
        })?;
        k.spec(Kind::Commit(Group::MatMul), (), (), own)
    }
}

/// How a warpgroup's rows leave: panel by panel through two shared buffers.
struct Epilogue<'a> {
    context: &'a Context<'a>,
    own: ThreadsId,
    group: Var,
    /// `[group, buffer].[64, 64]`.
    buffers: TensorId,
    panels: TensorId,
    warp: ThreadsId,
    warp_in_group: Var,
    address: [Var; 3],
    leader: ThreadsId,
}

impl<'a> Epilogue<'a> {
    fn new(
        k: &mut Builder,
        context: &'a Context<'a>,
        c: TensorId,
        own: ThreadsId,
        group: &Var,
    ) -> Result<Epilogue<'a>> {
        let gemm = context.gemm;
        let panel = ROWS * PANEL;
        let view = View::levels_of(&[
            vec![leaf(gemm.consumers, 2 * panel), leaf(2, panel)],
            vec![leaf(ROWS, PANEL), leaf(PANEL, 1)],
        ]);
        let swizzle = Some(Swizzle::new(3, 4, 3)?);
        let buffers = k.allocate("sC", view, gemm.scalar, Memory::Shared, swizzle)?;
        let panels = k.tile(c, "gC", &[Tile::of(ROWS), Tile::of(PANEL)])?;
        let warps = k.tile(own, "warps", &[Tile::of(32)])?;
        let [warp_in_group, _] = k.indices(warps, ["warp", "lane"])?;
        let warp = k.index(warps, "warp", [&warp_in_group])?;
        // Lane 8i + r holds the address of row r of the i-th of 2×2 matrices.
        let eights = k.tile(warp, "eights", &[Tile::of(8)])?;
        let grouped = k.reshape(eights, "matrices", 0, &[&[(2, 2)], &[(2, 1)]])?;
        let address = k.indices(grouped, ["matrix_m", "matrix_n", "row"])?;
        Ok(Epilogue {
            context,
            own,
            group: group.clone(),
            buffers,
            panels,
            warp,
            warp_in_group,
            address,
            leader: own,
        })
    }

    fn store(&self, k: &mut Builder, acc: TensorId, m: &Var, n: &Var) -> Result<()> {
        let gemm = self.context.gemm;
        let one = self.context.one;
        let scalar = gemm.scalar;
        let count = gemm.columns / PANEL;
        k.for_("panel", 0..count, 1, true, |k, panel| {
            let at = [Expr::from(&self.group), Expr::from(panel).rem(&Expr::from(2))];
            let buffer = k.index(self.buffers, "buffer", at)?;
            // The buffer's last store has been read: of the two, it is the older.
            k.role(self.leader, 0..1, |k| {
                k.spec(Kind::WaitGroup(Group::Bulk, 1, true), (), (), one)
            })?;
            k.spec(Kind::Sync, (), (), self.own)?;
            let strips = k.tile(buffer, "strips", &[Tile::of(16), Tile::of(16)])?;
            k.for_("strip", 0..PANEL / 16, 1, true, |k, strip| {
                let fragment =
                    View::levels_of(&[vec![leaf(2, 4), leaf(2, 2)], vec![leaf(1, 0), leaf(2, 1)]]);
                let half = k.allocate("half", fragment, scalar, Memory::Registers, None)?;
                for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let j = Expr::from(panel) * (PANEL / 8) + Expr::from(strip) * 2 + column;
                    let from = Operand::at(acc, [Expr::from(row), j]);
                    k.spec(Kind::Move, Operand::at(half, [row, column]), from, one)?;
                }
                let at = [Expr::from(&self.warp_in_group), Expr::from(strip)];
                let strip = k.index(strips, "strip", at)?;
                let matrices = k.tile(strip, "matrices", &[Tile::of(8), Tile::of(8)])?;
                let [matrix_m, matrix_n, row] = &self.address;
                let matrix = k.index(matrices, "matrix", [matrix_m, matrix_n])?;
                let rows = k.tile(matrix, "rows", &[Tile::of(1), Tile::of(8)])?;
                let row = k.index(rows, "row", [Expr::from(row), Expr::from(0)])?;
                k.spec(Kind::Move, row, half, self.warp)
            })?;
            k.spec(Kind::Fence(Fence::Proxy), (), (), self.own)?;
            k.spec(Kind::Sync, (), (), self.own)?;
            k.role(self.leader, 0..1, |k| {
                let row = Expr::from(m) * gemm.consumers + &self.group;
                let column = Expr::from(n) * count + Expr::from(panel);
                let to = Operand::at(self.panels, [row, column]);
                k.add(Header::new(Kind::Move, to, buffer, one).async_())?;
                k.spec(Kind::Commit(Group::Bulk), (), (), one)
            })
        })
    }
}

fn leaf(size: i64, stride: i64) -> Shape {
    Shape::Leaf(Expr::from(size), Expr::from(stride))
}

/// One dimension, contiguous.
fn line(size: impl Into<Expr>) -> View {
    View::buffer(&[Shape::Leaf(size.into(), Expr::from(1))])
}

/// A matrix of rows and columns; `transposed`: rows are contiguous.
fn matrix(rows: &Var, columns: &Var, transposed: bool) -> View {
    let (rows, columns) = (Expr::from(rows), Expr::from(columns));
    let one = Expr::from(1);
    let strides = if transposed { (one, rows.clone()) } else { (columns.clone(), one) };
    View::buffer(&[Shape::Leaf(rows, strides.0), Shape::Leaf(columns, strides.1)])
}
