//! Matrix products `C[m,n] = f(A[m,k]·B[k,n])` for Hopper.
//!
//! Blocks are persistent: each takes one tile of C after the other. One warpgroup produces: it
//! brings tiles of A and B into a ring of stages. The others consume: each multiplies its rows of
//! the tile, and writes them while the producer already fills the ring for the next; or they take
//! turns, so that one multiplies while another writes.
//!
//! - this file: the parameters, the kernel's outline, and the walk over tiles;
//! - `producer`: how the ring is filled;
//! - `consumer`: the products;
//! - `turns`: how consumers take turns;
//! - `split`: how blocks that share a tile add their sums;
//! - `epilogue`: what becomes of the sums, and how they leave.

mod consumer;
mod epilogue;
mod producer;
mod split;
mod turns;

use self::split::Shares;
use self::turns::Turns;
use super::product::{Declared, Edges, Place, Product, Walk, leaf, line};
use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::error::{Error, Result};
use crate::index::{Expr, Var};
use crate::kernel::{Kernel, Kind, TensorId, ThreadsId};
use crate::layout::Swizzle;
use crate::schedule::Pipeline;
use crate::tensor::{Memory, Shape, Tile, View};

/// The parameters of a product.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// What is computed, of halves.
    pub product: Product,
    /// How operands and results move.
    pub edges: Edges,
    /// Columns of a tile: a multiple of 64, at most 256.
    pub columns: i64,
    /// Stages of the ring.
    pub stages: i64,
    /// Consumer warpgroups.
    pub consumers: i64,
    /// How many times 64 rows of a tile each consumer has.
    pub strips: i64,
    /// Whether consumers have tiles of their own and take turns, rather than each its rows of all tiles: while one
    /// computes what becomes of its sums, another multiplies. It pays where that takes long, and blocks have several tiles.
    pub ping_pong: bool,
    /// Rows of tiles that are walked together, so that operands stay in the L2 cache.
    pub raster: i64,
    /// Whether each block asks for its first tile of B before it waits for its predecessors, which have not made it: B is
    /// a layer's weights, and few blocks read each of them.
    pub prefetch: bool,
    /// Into how many parts K is split, each a block of a cluster, which adds them up: where few tiles leave most of the
    /// GPU idle. There is one cluster for each tile then.
    pub split: i64,
    /// Blocks of a cluster, 1 or 2: two take neighbouring rows of tiles, and each brings half of
    /// their common tile of B to both.
    pub cluster: i64,
}

/// The depth of a stage: 128 bytes of halves, the width of the swizzle.
const DEPTH: i64 = 64;

/// Rows of a warpgroup's product.
pub const ROWS: i64 = 64;

/// Columns of the tile through which C leaves: 128 bytes.
const PANEL: i64 = 64;

/// The threads of a warpgroup.
const GROUP: i64 = 128;

impl Default for Gemm {
    fn default() -> Gemm {
        Gemm {
            product: Product::default(),
            edges: Edges::Bulk,
            columns: 256,
            stages: 4,
            consumers: 2,
            strips: 1,
            ping_pong: false,
            raster: 8,
            prefetch: false,
            split: 1,
            cluster: 1,
        }
    }
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
    /// The blocks that share a tile, and what they hand over; none if each has its own.
    shares: Option<Shares>,
    /// How consumers take turns; none if they share each tile.
    turns: Option<Turns>,
    /// The block's or cluster's first tile, and the distance to its next.
    first: Expr,
    stride: Expr,
    /// A cluster's two tiles count as one.
    walk: Walk,
    /// Steps along the K of each term.
    steps: Vec<Expr>,
    pipeline: Pipeline,
    shared: [TensorId; 2],
    declared: &'a Declared,
}

impl Gemm {
    /// Rows of a tile.
    pub fn rows(&self) -> i64 {
        ROWS * self.strips * if self.ping_pong { 1 } else { self.consumers }
    }

    /// Registers of each thread of a consumer that hold its sums.
    fn registers(&self) -> i64 {
        self.strips * self.columns / 2
    }

    /// The kernel, with symbols M, N, a K for each term (K, K_2, …), the number of blocks or clusters,
    /// and that of products if batched.
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("gemm", Arch::Sm90a);
        let count = k.symbol(if self.together() == 1 { "blocks" } else { "clusters" })?;
        let declared = self.product.declare(&mut k, self.edges)?;
        let grid = k.grid("grid", self.grid(&count))?;
        let block = k.block("block", line(GROUP * (self.consumers + 1)))?;
        let context = self.context(&mut k, &declared, &count, [grid, block])?;
        if self.prefetch {
            context.prefetch(&mut k)?;
        }
        k.role(context.groups, 0..self.consumers, |k| context.consume(k))?;
        k.role(context.groups, self.consumers..self.consumers + 1, |k| context.produce(k))?;
        if let Some(cluster) = context.cluster() {
            // A block's shared memory stays while others may still arrive or copy there.
            k.add(Header::new(Kind::Sync, (), (), block).on(cluster))?;
        }
        k.finish(declared.epilogue.results.clone(), declared.ins())
    }

    /// Blocks of a cluster.
    fn together(&self) -> i64 {
        self.cluster.max(self.split)
    }

    /// One dimension of blocks, or clusters of some.
    fn grid(&self, count: &Var) -> View {
        let together = self.together();
        if together == 1 {
            return line(count);
        }
        let clusters = Shape::Leaf(count.into(), Expr::from(together));
        View::levels_of(&[vec![clusters], vec![leaf(together, 1)]])
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        if self.product.scalar.bytes() != 2 {
            return refuse("operands are halves");
        }
        if self.columns % PANEL != 0 || !(PANEL..=256).contains(&self.columns) {
            return refuse("a tile has 64, 128, 192 or 256 columns");
        }
        if self.stages < 2 || self.consumers < 1 || self.raster < 1 {
            return refuse("a ring has two stages or more, a block a consumer, a band a row");
        }
        if self.strips < 1 || self.registers() > 192 {
            return refuse(
                "a consumer has 64 rows or more, and 192 registers for its sums at most",
            );
        }
        if self.ping_pong && (self.consumers < 2 || self.split > 1) {
            return refuse("consumers that take turns are two or more, with tiles of their own");
        }
        if !(1..=2).contains(&self.cluster) {
            return refuse("a cluster has one block or two");
        }
        if !(1..=8).contains(&self.split) {
            return refuse("K is split into at most 8 parts");
        }
        if self.split > 1 && (self.cluster > 1 || self.product.terms > 1) {
            return refuse(
                "the K that is split is of one product, of blocks that share nothing else",
            );
        }
        if self.cluster == 2 && (self.edges == Edges::Moves || self.columns % (2 * PANEL) != 0) {
            return refuse("a cluster's blocks copy halves of 64 or 128 columns");
        }
        Ok(())
    }

    /// Allocates the ring and its barriers.
    fn context<'a>(
        &'a self,
        k: &mut Builder,
        declared: &'a Declared,
        count: &Var,
        [grid, block]: [ThreadsId; 2],
    ) -> Result<Context<'a>> {
        let one = k.scalar(block, "one")?;
        let (first, cluster) = if self.together() == 1 {
            let [first] = k.indices(grid, ["first"])?;
            (first, None)
        } else {
            let [cluster, rank] = k.indices(grid, ["cluster", "rank"])?;
            let blocks = k.index(grid, "together", [&cluster])?;
            (cluster, Some((blocks, Expr::from(rank))))
        };
        let groups = k.tile(block, "warpgroups", &[Tile::of(GROUP)])?;
        let shared = [
            self.ring_of(k, "sA", self.rows(), self.product.a_transposed)?,
            self.ring_of(k, "sB", self.columns, self.product.b_transposed)?,
        ];
        let filled_by = match self.edges {
            Edges::Bulk => 1,
            Edges::Moves => GROUP,
        };
        // Each warp that multiplies a stage says when it has.
        let emptied_by = self.rows() / (ROWS * self.strips) * 4 * self.cluster;
        let together = cluster.clone();
        let (pair, sharing) = if self.split == 1 { (cluster, None) } else { (None, cluster) };
        let shares = match sharing {
            Some((blocks, rank)) => Some(Shares::new(k, self, blocks, rank, block)?),
            None => None,
        };
        let turns = match self.ping_pong {
            true => Some(Turns::new(k, self.consumers, block)?),
            false => None,
        };
        let pipeline = Pipeline::new(k, self.stages, filled_by, emptied_by, block)?;
        let meet = Header::new(Kind::Sync, (), (), block);
        k.add(match together {
            Some((blocks, _)) => meet.on(blocks),
            None => meet,
        })?;
        let tile = [self.rows() * self.cluster, self.columns];
        Ok(Context {
            gemm: self,
            one,
            block,
            groups,
            pair,
            shares,
            turns,
            first: first.into(),
            stride: count.into(),
            walk: Walk::new(declared, tile, self.raster),
            steps: declared.steps(DEPTH),
            pipeline,
            shared,
            declared,
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
        k.allocate(name, view, self.product.scalar, Memory::Shared, Some(Swizzle::new(3, 4, 3)?))
    }
}

impl Context<'_> {
    /// The blocks that meet at the beginning and at the end.
    fn cluster(&self) -> Option<ThreadsId> {
        let shares = self.shares.as_ref().map(|shares| shares.blocks);
        shares.or(self.pair.as_ref().map(|(pair, _)| *pair))
    }

    /// Goes through tiles.
    fn each_tile(
        &self,
        k: &mut Builder,
        first: Expr,
        stride: Expr,
        body: impl FnOnce(&mut Builder, &Place) -> Result<()>,
    ) -> Result<()> {
        let all = self.walk.count();
        // Blocks that share a tile have no other.
        let end = match self.shares {
            Some(_) => all.min(self.first.clone() + 1),
            None => all,
        };
        k.for_("t", first..end, stride, false, |k, t| {
            let mut place = self.walk.place(k, t)?;
            if let Some((_, rank)) = &self.pair {
                place.m = place.m * self.gemm.cluster + rank;
            }
            body(k, &place)
        })
    }

    /// Which 64 rows of a tile are a consumer's first.
    fn first_strip(&self, group: &Var) -> Expr {
        match self.turns {
            Some(_) => Expr::from(0),
            None => Expr::from(group) * self.gemm.strips,
        }
    }

    /// The own warpgroup and its number.
    fn own(&self, k: &mut Builder) -> Result<(ThreadsId, Var)> {
        let [group, _] = k.indices(self.groups, ["group", "in_group"])?;
        Ok((k.index(self.groups, "own", [&group])?, group))
    }

    /// A matrix of global memory in tiles.
    fn tiled(&self, k: &mut Builder, of: TensorId, name: &str, tile: [i64; 2]) -> Result<TensorId> {
        let batch = self.gemm.product.batched.then_some(Tile::of(1));
        let tiles: Vec<Tile> = batch.into_iter().chain(tile.map(Tile::of)).collect();
        k.tile(of, name, &tiles)
    }
}
