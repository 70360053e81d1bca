//! Matrix products `C[m,n] = f(A[m,k]·B[k,n])` for Hopper.
//!
//! Blocks are persistent: each takes one tile of C after the other. One warpgroup produces: it
//! brings tiles of A and B into a ring of stages. The others consume: each multiplies 64 rows of
//! the tile, and writes them while the producer already fills the ring for the next.
//!
//! - this file: the parameters, the kernel's outline, and the walk over tiles;
//! - `producer`: how the ring is filled;
//! - `consumer`: the products;
//! - `epilogue`: what becomes of the sums, and how they leave.

mod consumer;
mod epilogue;
mod producer;

use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::error::{Error, Result};
use crate::index::{Expr, Var};
use crate::kernel::{Kernel, Kind, TensorId, ThreadsId, Unary};
use crate::layout::Swizzle;
use crate::schedule::Pipeline;
use crate::tensor::{Memory, Scalar, Shape, Tile, View};

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
    /// Whether there is a batch of products: A, B and C have one more, outermost dimension.
    pub batched: bool,
    /// How operands and results move.
    pub edges: Edges,
    /// What becomes of the sums, in this order: a bias `[n]` is added, the activation applied, a
    /// residual `[m,n]` added.
    pub epilogue: Epilogue,
    /// Columns of a tile: a multiple of 64, at most 256.
    pub columns: i64,
    /// Stages of the ring.
    pub stages: i64,
    /// Consumer warpgroups, with 64 rows each.
    pub consumers: i64,
    /// Rows of tiles that are walked together, so that operands stay in the L2 cache.
    pub raster: i64,
    /// Blocks of a cluster, 1 or 2: two take neighbouring rows of tiles, and each brings half of
    /// their common tile of B to both.
    pub cluster: i64,
}

/// What becomes of the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Epilogue {
    /// Whether a bias is added.
    pub bias: bool,
    /// The activation.
    pub activation: Option<Unary>,
    /// Whether a residual is added, after the activation.
    pub residual: bool,
}

/// How operands and results move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Edges {
    /// By tensor copies: every row starts at a multiple of 16 bytes.
    Bulk,
    /// By predicated moves of single elements, into the same tiles: any sizes.
    Moves,
}

/// The depth of a stage: 128 bytes of halves, the width of the swizzle.
const DEPTH: i64 = 64;

/// Rows of a warpgroup's product.
const ROWS: i64 = 64;

/// Columns of the tile through which C leaves: 128 bytes.
const PANEL: i64 = 64;

/// The threads of a warpgroup.
const GROUP: i64 = 128;

impl Default for Gemm {
    fn default() -> Gemm {
        Gemm {
            scalar: Scalar::F16,
            a_transposed: false,
            b_transposed: false,
            batched: false,
            edges: Edges::Bulk,
            epilogue: Epilogue::default(),
            columns: 256,
            stages: 4,
            consumers: 2,
            raster: 8,
            cluster: 1,
        }
    }
}

/// The symbols of a kernel.
struct Sizes {
    m: Var,
    n: Var,
    depth: Var,
    batch: Option<Var>,
    /// The number of clusters, or of blocks that are alone.
    count: Var,
}

/// What the parts of the kernel share.
struct Context<'a> {
    gemm: &'a Gemm,
    /// The block's threads, each on its own.
    one: ThreadsId,
    block: ThreadsId,
    /// The block's threads as warpgroups.
    groups: ThreadsId,
    /// The two blocks of the own cluster, and which of them the own one is; none where blocks are
    /// alone.
    pair: Option<(ThreadsId, Expr)>,
    /// The block's or cluster's first tile, and the distance to its next.
    first: Expr,
    stride: Expr,
    /// Tiles in all, and along each side; a cluster's two count as one.
    tiles: Expr,
    tiles_m: Expr,
    tiles_n: Expr,
    /// Steps along K.
    steps: Expr,
    pipeline: Pipeline,
    shared: [TensorId; 2],
    /// A, B and C, and the epilogue's operands.
    operands: [TensorId; 3],
    bias: Option<TensorId>,
    residual: Option<TensorId>,
}

/// A tile of C: its place in the batch, and its row and column in tiles.
struct Place {
    batch: Option<Expr>,
    m: Expr,
    n: Expr,
}

impl Place {
    /// Coordinates of a tile within a tensor that may be batched.
    fn at(&self, row: Expr, column: Expr) -> Vec<Expr> {
        self.batch.iter().cloned().chain([row, column]).collect()
    }
}

impl Gemm {
    /// Rows of a tile.
    pub fn rows(&self) -> i64 {
        ROWS * self.consumers
    }

    /// The kernel, with symbols M, N, K, the number of blocks or clusters, and that of products if
    /// batched.
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("gemm", Arch::Sm90a);
        let count = if self.cluster == 1 { "blocks" } else { "clusters" };
        let [m, n, depth, count] = ["M", "N", "K", count].map(|name| k.symbol(name));
        let [m, n, depth, count] = [m?, n?, depth?, count?];
        let batch = if self.batched { Some(k.symbol("batch")?) } else { None };
        let mut matrix = |name: &str, rows: &Var, columns: &Var, transposed: bool| {
            k.param(name, matrix(batch.as_ref(), rows, columns, transposed), self.scalar)
        };
        let a = matrix("A", &m, &depth, self.a_transposed)?;
        let b = matrix("B", &depth, &n, !self.b_transposed)?;
        let residual =
            if self.epilogue.residual { Some(matrix("R", &m, &n, false)?) } else { None };
        let c = matrix("C", &m, &n, false)?;
        let bias =
            if self.epilogue.bias { Some(k.param("bias", line(&n), self.scalar)?) } else { None };
        let grid = k.grid("grid", self.grid(&count))?;
        let block = k.block("block", line(GROUP * (self.consumers + 1)))?;
        let sizes = Sizes { m, n, depth, batch, count };
        let context = self.context(&mut k, &sizes, [a, b, c], bias, residual, [grid, block])?;
        k.role(context.groups, 0..self.consumers, |k| context.consume(k))?;
        k.role(context.groups, self.consumers..self.consumers + 1, |k| context.produce(k))?;
        if let Some((pair, _)) = context.pair {
            // A block's shared memory stays while the other may still arrive or copy there.
            k.add(Header::new(Kind::Sync, (), (), block).on(pair))?;
        }
        let ins: Vec<TensorId> = [a, b].into_iter().chain(bias).chain(residual).collect();
        k.finish(c, ins)
    }

    /// One dimension of blocks, or clusters of two.
    fn grid(&self, count: &Var) -> View {
        if self.cluster == 1 {
            return line(count);
        }
        let clusters = Shape::Leaf(count.into(), Expr::from(self.cluster));
        View::levels_of(&[vec![clusters], vec![leaf(self.cluster, 1)]])
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        if self.scalar.bytes() != 2 {
            return refuse("operands are halves");
        }
        if self.columns % PANEL != 0 || !(PANEL..=256).contains(&self.columns) {
            return refuse("a tile has 64, 128, 192 or 256 columns");
        }
        if self.stages < 2 || self.consumers < 1 || self.raster < 1 {
            return refuse("a ring has two stages or more, a block a consumer, a band a row");
        }
        if !(1..=2).contains(&self.cluster) {
            return refuse("a cluster has one block or two");
        }
        if self.cluster == 2 && (self.edges == Edges::Moves || self.columns % (2 * PANEL) != 0) {
            return refuse("a cluster's blocks copy halves of 64 or 128 columns");
        }
        Ok(())
    }

    /// Allocates the ring and its barriers.
    fn context(
        &self,
        k: &mut Builder,
        sizes: &Sizes,
        operands: [TensorId; 3],
        bias: Option<TensorId>,
        residual: Option<TensorId>,
        [grid, block]: [ThreadsId; 2],
    ) -> Result<Context<'_>> {
        let Sizes { m, n, depth, batch, count } = sizes;
        let one = k.scalar(block, "one")?;
        let (first, pair) = if self.cluster == 1 {
            let [first] = k.indices(grid, ["first"])?;
            (first, None)
        } else {
            let [cluster, rank] = k.indices(grid, ["cluster", "rank"])?;
            let pair = k.index(grid, "pair", [&cluster])?;
            (cluster, Some((pair, Expr::from(rank))))
        };
        let groups = k.tile(block, "warpgroups", &[Tile::of(GROUP)])?;
        let shared = [
            self.ring_of(k, "sA", self.rows(), self.a_transposed)?,
            self.ring_of(k, "sB", self.columns, self.b_transposed)?,
        ];
        let filled_by = match self.edges {
            Edges::Bulk => 1,
            Edges::Moves => GROUP,
        };
        let emptied_by = 4 * self.consumers * self.cluster;
        let pipeline = Pipeline::new(k, self.stages, filled_by, emptied_by, block)?;
        let meet = Header::new(Kind::Sync, (), (), block);
        k.add(match pair {
            Some((pair, _)) => meet.on(pair),
            None => meet,
        })?;
        let tiles = |extent: &Var, size: i64| Expr::from(extent).ceil_div(&Expr::from(size));
        let (tiles_m, tiles_n) = (tiles(m, self.rows() * self.cluster), tiles(n, self.columns));
        let products = batch.as_ref().map_or(Expr::from(1), Expr::from);
        Ok(Context {
            gemm: self,
            one,
            block,
            groups,
            pair,
            first: first.into(),
            stride: count.into(),
            tiles: tiles_m.clone() * &tiles_n * products,
            tiles_m,
            tiles_n,
            steps: tiles(depth, DEPTH),
            pipeline,
            shared,
            operands,
            bias,
            residual,
        })
    }

    /// The ring of an operand: `[stages].[m,64]` of A, `[stages].[64,n]` of B; the contiguous side
    /// in panels of 128 bytes.
    fn ring_of(
        &self,
        k: &mut Builder,
        name: &str,
        size: i64,
        transposed: bool,
    ) -> Result<TensorId> {
        let side = match (transposed, size == PANEL) {
            (false, _) => leaf(size, DEPTH),
            (true, true) => leaf(PANEL, 1),
            (true, false) => Shape::Tuple(vec![leaf(PANEL, 1), leaf(size / PANEL, PANEL * DEPTH)]),
        };
        let along = leaf(DEPTH, if transposed { PANEL } else { 1 });
        let dims = if name == "sA" { [side, along] } else { [along, side] };
        let stage = leaf(self.stages, size * DEPTH);
        let view = View::levels_of(&[vec![stage], dims.to_vec()]);
        k.allocate(name, view, self.scalar, Memory::Shared, Some(Swizzle::new(3, 4, 3)?))
    }
}

impl Context<'_> {
    /// Goes through the block's tiles: product by product, in bands of rows, down the columns of a
    /// band.
    fn each_tile(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder, &Place) -> Result<()>,
    ) -> Result<()> {
        k.for_("t", self.first.clone()..self.tiles.clone(), self.stride.clone(), false, |k, t| {
            let mut t = Expr::from(t);
            let mut batch = None;
            if self.gemm.batched {
                let of_one = self.tiles_m.clone() * &self.tiles_n;
                batch = Some(Expr::from(k.let_("product", t.div(&of_one))?));
                t = k.let_("tile", t.rem(&of_one))?.into();
            }
            let raster = self.gemm.raster;
            let band_size = self.tiles_n.clone() * raster;
            let band = Expr::from(k.let_("band", t.div(&band_size))?);
            let left = self.tiles_m.clone() - band.clone() * raster;
            let height = left.min(Expr::from(raster)).max(Expr::from(1));
            let height = Expr::from(k.let_("height", height)?);
            let within = Expr::from(k.let_("within", t.rem(&band_size))?);
            let m = k.let_("m", band * raster + within.rem(&height))?;
            let n = k.let_("n", within.div(&height))?;
            let mut m = Expr::from(m);
            if let Some((_, rank)) = &self.pair {
                m = m * self.gemm.cluster + rank;
            }
            body(k, &Place { batch, m, n: n.into() })
        })
    }

    /// The own warpgroup and its number.
    fn own(&self, k: &mut Builder) -> Result<(ThreadsId, Var)> {
        let [group, _] = k.indices(self.groups, ["group", "in_group"])?;
        Ok((k.index(self.groups, "own", [&group])?, group))
    }

    /// A matrix of global memory in tiles.
    fn tiled(&self, k: &mut Builder, of: TensorId, name: &str, tile: [i64; 2]) -> Result<TensorId> {
        let batch = self.gemm.batched.then_some(Tile::of(1));
        let tiles: Vec<Tile> = batch.into_iter().chain(tile.map(Tile::of)).collect();
        k.tile(of, name, &tiles)
    }
}

fn leaf(size: i64, stride: i64) -> Shape {
    Shape::Leaf(Expr::from(size), Expr::from(stride))
}

/// One dimension, contiguous.
fn line(size: impl Into<Expr>) -> View {
    View::buffer(&[Shape::Leaf(size.into(), Expr::from(1))])
}

/// Rows and columns, maybe of a batch; `transposed`: rows are contiguous.
fn matrix(batch: Option<&Var>, rows: &Var, columns: &Var, transposed: bool) -> View {
    let (rows, columns) = (Expr::from(rows), Expr::from(columns));
    let one = Expr::from(1);
    let strides = if transposed { (one, rows.clone()) } else { (columns.clone(), one) };
    let size = rows.clone() * &columns;
    let batch = batch.map(|batch| Shape::Leaf(batch.into(), size));
    let dims = [Shape::Leaf(rows, strides.0), Shape::Leaf(columns, strides.1)];
    View::buffer(&batch.into_iter().chain(dims).collect::<Vec<_>>())
}
