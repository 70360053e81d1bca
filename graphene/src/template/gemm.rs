//! Matrix products `C[m,n] = f(A[m,k]·B[k,n])` for Hopper.
//!
//! Blocks are persistent: each takes one tile of C after the other. One warpgroup produces: it
//! copies tiles of A and B into pipeline stages. The others consume: each multiplies its rows of
//! the tile, and writes them while the producer already fills stages for the next; or each has
//! tiles of its own (ping-pong), so that one multiplies while another writes.
//!
//! Levels, each one in the one above:
//!
//! - kernel: C, of A, B and what the epilogue meets;
//! - tile: C's, of A's rows, B's columns and the epilogue's, by a consumer; of split-K by those of a cluster;
//! - tile: its sums, of A's rows and B's columns, but of split-K;
//! - stage: adds a product of A's and B's in shared memory to the sums; directly under the kernel, the producer moves
//!   A's and B's there;
//! - strip: 64 rows of C, of their sums and what the epilogue meets.
//!
//! - this file: the parameters, and the kernel's outline;
//! - `context`: what its parts share, and the walk over tiles;
//! - `producer`: how stages are filled; `moves`: by single elements;
//! - `pdl_prologue`: what is copied before predecessors are done;
//! - `consumer`: the products;
//! - `epilogue`: what becomes of the sums, and how they leave;
//! - `ahead`: columns and matrices that the epilogue meets, asked for before;
//! - `rows`: rows that it meets, such as a bias;
//! - `residual_tma`: an addend that comes by tensor copies;
//! - `smem_budget`: what fits into shared memory;
//! - `registers`: who has how many.

mod ahead;
mod consumer;
mod context;
mod epilogue;
mod moves;
mod pdl_prologue;
mod producer;
mod registers;
mod residual_tma;
mod rows;
mod smem_budget;

use self::context::Context;
use super::product::{Edges, Place, Product, leaf, line};
use super::split_k::{Holders, PAIR};
use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::error::{Result, needs};
use crate::index::Var;
use crate::kernel::{Kernel, Kind};
use crate::layout::Layout;
use crate::tensor::{Scalar, View};

/// The parameters of a product.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// What is computed, of fp16 or bf16; or of single precision cut to TF32, whose operands both have a contiguous K.
    pub product: Product,
    /// How operands and results move.
    pub edges: Edges,
    /// Columns of a tile: a multiple of 64, at most 256.
    pub columns: i64,
    /// Pipeline stages.
    pub stages: i64,
    /// Consumer warpgroups.
    pub consumers: i64,
    /// How many times 64 rows of a tile each consumer has.
    pub strips: i64,
    /// Whether consumers have tiles of their own, in an order, rather than each its rows of all tiles: while one
    /// computes what becomes of its sums, another multiplies. It pays where that takes long, and blocks have several tiles.
    pub ping_pong: bool,
    /// Rows of tiles that are walked together, so that operands stay in the L2 cache.
    pub raster: i64,
    /// Whether B is a layer's weights, which no kernel before makes: blocks that fit beside a predecessor's copy the
    /// first of them before it is done.
    pub weights: bool,
    /// Whether what no stage holds of a block's first tile of such weights is prefetched into the L2 cache as well: few
    /// blocks read each of them.
    pub prefetch: bool,
    /// Into how many parts K is split, each a block of a cluster, which adds them up: where few tiles leave most of the
    /// GPU idle. There is one cluster for each tile then.
    pub split: i64,
    /// Blocks of a cluster, 1 or 2: two take neighbouring rows of tiles, and each brings half of
    /// their common tile of B to both.
    pub cluster: i64,
}

/// Bytes of a stage's depth: the width of the swizzle.
const DEPTH: i64 = 128;

/// Bytes of an instruction's depth.
const STEP: i64 = 32;

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
            weights: false,
            prefetch: false,
            split: 1,
            cluster: 1,
        }
    }
}

impl Gemm {
    /// Rows of a tile.
    pub fn rows(&self) -> i64 {
        ROWS * self.strips * if self.ping_pong { 1 } else { self.consumers }
    }

    /// The depth of a stage.
    fn depth(&self) -> i64 {
        DEPTH / self.product.scalar.bytes()
    }

    /// The kernel, with symbols M, N, a K for each term (K, K_2, …), the number of blocks or clusters,
    /// and that of products if batched.
    ///
    /// # Errors
    /// [`Error::Kernel`](crate::Error::Kernel) for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("gemm", Arch::Sm90a);
        let count = k.symbol(if self.together() == 1 { "blocks" } else { "clusters" })?;
        let declared = self.product.declare(&mut k, self.edges, self.weights)?;
        let grid = k.grid("grid", self.grid(&count))?;
        let block = k.block("block", line(GROUP * (self.consumers + 1)))?;
        let context = self.context(&mut k, &declared, &count, [grid, block])?;
        context.pdl_prologue(&mut k)?;
        k.role(context.groups, 0..self.consumers, |k| context.consume(k))?;
        k.role(context.groups, self.consumers..self.consumers + 1, |k| context.produce(k))?;
        if let Some(cluster) = context.cluster() {
            // A block's shared memory stays while others may still arrive or copy there.
            k.add(Header::new(Kind::Sync, (), (), block).on(cluster))?;
        }
        k.finish_as(declared.header(block))
    }

    /// Who has a tile's sums.
    fn holders(&self) -> Holders {
        Holders { warps: 4 * self.consumers, pairs: self.registers() / PAIR }
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
        let clusters = Layout::of(count, together);
        View::levels_of(&[vec![clusters], vec![leaf(together, 1)]])
    }

    fn check(&self) -> Result<()> {
        let Product { scalar, a_transposed, b_transposed, terms, .. } = self.product;
        let tf32 = scalar == Scalar::F32 && !a_transposed && !b_transposed;
        let fits = tf32 || matches!(scalar, Scalar::F16 | Scalar::Bf16);
        needs(fits, "fp16 or bf16 operands, or fp32 ones with a contiguous K", &self.product)?;
        let columns = self.columns % PANEL == 0 && (PANEL..=256).contains(&self.columns);
        needs(columns, "a tile of 64, 128, 192 or 256 columns", self.columns)?;
        needs(self.stages >= 2, "2 or more stages", self.stages)?;
        needs(self.consumers >= 1, "1 or more consumers", self.consumers)?;
        needs(self.raster >= 1, "1 or more rows of tiles to walk together", self.raster)?;
        needs(self.strips >= 1, "1 or more strips of 64 rows", self.strips)?;
        needs(self.registers() <= 192, "192 accumulator registers at most", self.registers())?;
        let own = !self.ping_pong || (self.consumers >= 2 && self.split == 1);
        needs(own, "2 or more consumers and no split-K for ping-pong", self)?;
        needs((1..=2).contains(&self.cluster), "1 or 2 blocks a cluster", self.cluster)?;
        needs((1..=8).contains(&self.split), "a split-K of 1 to 8 parts", self.split)?;
        needs(!self.prefetch || self.weights, "constant weights to prefetch", self)?;
        let alone = self.split == 1 || (self.cluster == 1 && terms == 1);
        needs(alone, "one term and no other cluster for split-K", self)?;
        let multicast = self.cluster == 1 || self.edges == Edges::Bulk;
        needs(multicast, "tensor copies for a cluster of two", self)
    }
}
