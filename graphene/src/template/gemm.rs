//! Matmuls `C[m,n] = f(A[m,k]·B[k,n])` for Hopper.
//!
//! Blocks are persistent: each takes one tile of C after the other. One warpgroup produces: it copies tiles of A and B into
//! pipeline stages. The others consume: each multiplies its rows of the tile, and writes them while the producer already fills
//! stages for the next; or each has tiles of its own (ping-pong), so that one multiplies while another writes.
//!
//! Levels:
//!
//! - kernel: C, of A, B and what the epilogue meets
//!   - load by a thread: a stage of A or B, by the producer; two blocks of a cluster share B's
//!   - load by a warpgroup: the same by all threads of the producer, element by element
//!   - tile by a warpgroup: C's, of A's rows, B's columns and the epilogue's, by a consumer
//!     - reduction by a warpgroup: the tile's sums, of A's rows and B's columns
//!       - stage by a warpgroup: adds a matmul of A's and B's stages to the sums
//!     - epilogue by a warpgroup: 64 rows of C, of their sums and what the epilogue meets
//!       - registers by a thread: the epilogue's function of a run of sums
//!   - cluster: of split-K, a tile of C, by consumers of blocks that each multiply a part of K
//!     - stage by a warpgroup: adds a matmul of A's and B's stages to the block's sums
//!     - epilogue by a warp: what the warp finishes of C, of all blocks' sums
//!       - registers by a thread: the epilogue's function of a run of sums

mod ahead;
mod consumer;
mod context;
mod epilogue;
mod producer;
mod residual_tma;

use self::context::Context;
use self::residual_tma::RESIDUAL_PANELS;
pub use super::fragments::ROWS;
use super::fragments::{BARRIERS, GROUP, STEP, consumer_registers};
use super::matmul::{Edges, MatMul, Place};
use super::split_k::{Holders, PAIR};
use super::{access::launch_clusters, epilogue::Span};
use crate::error::{AtMost, OneOf};
use crate::{
    Arch, AtLeast, Builder, Expr, Header, Kernel, Kind, MultipleOf, Result, Scalar, Within, needs,
};
use std::collections::HashSet;

parameters! {
    /// The parameters of a matmul.
    pub struct Gemm {
        /// What is computed, of fp16 or bf16; or of single precision cut to TF32, whose operands both have a contiguous K.
        pub matmul: MatMul = MatMul::default(),
        /// How A and B move; if by elements, results move so, too.
        pub edges: Edges = Edges::Bulk,
        /// Columns of a tile: a multiple of 64, at most 256; if gated, of both matrices, each a multiple of 64.
        pub columns: i64 = 256,
        /// Pipeline stages.
        pub stages: i64 = 4,
        /// Consumer warpgroups.
        pub consumers: i64 = 2,
        /// How many times 64 rows of a tile each consumer has.
        pub strips: i64 = 1,
        /// Whether consumers have tiles of their own, in an order, rather than each its rows of all tiles: while one
        /// computes what becomes of its sums, another multiplies. It pays where that takes long, and blocks have several tiles.
        pub ping_pong: bool = false,
        /// Rows of tiles that are walked together, so that operands stay in the L2 cache.
        pub raster: i64 = 8,
        /// Whether B is a layer's weights, which no kernel before makes: blocks that fit beside a predecessor's copy the
        /// first of them before it is done.
        pub weights: bool = false,
        /// Whether what no stage holds of a block's first tile of such weights is prefetched into the L2 cache as well: few
        /// blocks read each of them.
        pub prefetch: bool = false,
        /// Into how many parts K is split, each a block of a cluster, which adds them up: where few tiles leave most of the
        /// GPU idle. There is one cluster for each tile then.
        pub split: i64 = 1,
        /// Blocks of a cluster, 1 or 2: two take neighbouring rows of tiles, and each brings half of
        /// their common tile of B to both.
        pub cluster: i64 = 1,
    }
}

/// Bytes of a stage's depth: the width of the swizzle.
const DEPTH: i64 = 128;

/// Columns of the tile through which C leaves: 128 bytes.
const PANEL: i64 = 64;

/// Panels of C that a consumer has buffers for: one is computed while one leaves.
const PANELS: i64 = 2;

impl Gemm {
    /// Rows of a tile.
    pub fn rows(&self) -> i64 {
        ROWS * self.strips * if self.ping_pong { 1 } else { self.consumers }
    }

    /// Columns of a tile of the result.
    pub fn width(&self) -> i64 {
        self.columns / self.matmul.matrices()
    }

    fn depth(&self) -> i64 {
        DEPTH / self.matmul.scalar.bytes()
    }

    /// The kernel, with symbols M, N, a K for each term (K, K_2, …), the number of blocks or clusters,
    /// and that of matmuls if batched.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("gemm", Arch::Sm90a);
        let together = self.cluster.max(self.split);
        let names = if together == 1 { ["blocks", "first"] } else { ["clusters", "cluster"] };
        let count = Expr::from(k.symbol(names[0])?);
        let declared = self.matmul.declare(&mut k, self.edges, self.weights)?;
        let (clusters, threads) = ((count.clone(), together), GROUP * (self.consumers + 1));
        let (block, first, cluster) = launch_clusters(&mut k, clusters, threads, names[1])?;
        let context = self.context(&mut k, &declared, (first, count), (block, cluster))?;
        context.pdl_prologue(&mut k)?;
        k.role(context.groups, 0..self.consumers, |k| consumer::consume(&context, k))?;
        k.role(context.groups, self.consumers..self.consumers + 1, |k| context.produce(k))?;
        if context.blocks.is_some() {
            // A block's shared memory stays while others may still arrive or copy there.
            k.add(Header::new(Kind::Sync, (), (), block).on(context.blocks))?;
        }
        k.finish_as(declared.header(block))
    }

    /// Who has a tile's sums.
    fn holders(&self) -> Holders {
        Holders { warps: 4 * self.consumers, pairs: self.registers() / PAIR }
    }

    fn check(&self) -> Result {
        let MatMul { scalar, a_transposed, b_transposed, .. } = self.matmul;
        let tf32 = scalar == Scalar::F32 && !a_transposed && !b_transposed;
        let fits = tf32 || matches!(scalar, Scalar::F16 | Scalar::Bf16);
        needs(fits, "fp16 or bf16 operands, or fp32 ones with a contiguous K", &self.matmul)?;
        OneOf(&[64, 128, 192, 256]).check("columns a tile", self.columns)?;
        MultipleOf(PANEL).check("columns of the result a tile", self.width())?;
        AtLeast(2).check("stages", self.stages)?;
        AtLeast(1).check("consumers", self.consumers)?;
        AtLeast(1).check("rows of tiles to walk together", self.raster)?;
        AtLeast(1).check("strips of 64 rows", self.strips)?;
        AtMost(192).check("accumulator registers", self.registers())?;
        let own = !self.ping_pong || (self.consumers >= 2 && self.split == 1);
        needs(own, "2 or more consumers and no split-K for ping-pong", self)?;
        Within(1, 2).check("blocks a cluster", self.cluster)?;
        Within(1, 8).check("parts of a split-K", self.split)?;
        needs(!self.prefetch || self.weights, "constant weights to prefetch", self)?;
        needs(self.split == 1 || self.cluster == 1, "no other cluster for split-K", self)?;
        let multicast = self.cluster == 1 || self.edges == Edges::Bulk;
        needs(multicast, "tensor copies for a cluster of two", self)
    }

    /// Whether the block takes no more registers than its few sums need. To move some from the producer to consumers, it
    /// would have to have nearly all of a multiprocessor's; so blocks of the next kernel can begin beside it, if there is
    /// shared memory for them.
    fn is_light(&self) -> bool {
        self.edges == Edges::Bulk && self.consumers == 1 && self.registers() <= 64
    }

    /// Registers of each thread of a consumer.
    fn budget(&self) -> i64 {
        consumer_registers(self.consumers, self.producer_registers())
    }

    /// Registers of the producer's threads: those that only issue copies need few, addresses and
    /// predicates of single elements take more.
    fn producer_registers(&self) -> i64 {
        match self.edges {
            Edges::Bulk if self.matmul.terms == 1 => 24,
            Edges::Bulk => 40,
            Edges::Moves => 80,
        }
    }

    /// Registers of each thread of a consumer that hold its sums.
    fn registers(&self) -> i64 {
        self.strips * self.columns / 2
    }

    /// Whether the first stages' B is copied before predecessors are done: where its copies are a block's own, and a block
    /// may have begun by then.
    fn has_pdl_prologue(&self) -> bool {
        self.weights && self.cluster == 1 && self.is_light()
    }

    /// Rows and columns of a stage's tile of A, and of B, or of each matrix that A is multiplied by.
    fn sizes(&self) -> [[i64; 2]; 2] {
        [[self.rows(), self.depth()], [self.depth(), self.width()]]
    }

    /// Those of a copy. Of a cluster, each block brings its share of B to both: of the depth, or of the columns.
    fn boxes(&self) -> [[i64; 2]; 2] {
        let [[rows, depth], [_, width]] = self.sizes();
        let a = [if self.matmul.a_transposed { PANEL } else { rows }, depth];
        let b = [[depth, width / self.cluster], [depth / self.cluster, PANEL]];
        [a, b[usize::from(self.matmul.b_transposed)]]
    }

    /// With as many stages as fit, at most 8: the more are on their way, the less is waited for.
    #[must_use]
    pub fn deepest(self) -> Gemm {
        let residual = self.matmul.epilogue.operands.iter().any(|input| input.span == Span::Whole);
        let panels = if residual { RESIDUAL_PANELS } else { PANELS };
        let fits = |stages: &i64| Gemm { stages: *stages, ..self.clone() }.fits(panels);
        let stages = (2..=8).rev().find(fits).unwrap_or(self.stages);
        Gemm { stages, ..self }
    }

    /// Panels of a consumer's rows of a tile.
    fn panels_of_consumer(&self) -> i64 {
        self.strips * self.width() / PANEL
    }

    /// Whether results of a type leave panel by panel.
    fn leaves_by_panels(&self, scalar: Scalar) -> bool {
        let bulk = self.matmul.result_edges(self.edges) == Edges::Bulk;
        bulk && self.split == 1 && scalar.bytes() == 2
    }

    /// Whether the stages fit into shared memory beside panels of C, rows, and what blocks hand over.
    fn fits(&self, panels: i64) -> bool {
        let MatMul { scalar, ref epilogue, .. } = self.matmul;
        let stages = self.stages * (self.rows() + self.columns) * self.depth();
        // Panels of each 16-bit type of results have buffers of their own.
        let outputs = epilogue.outputs.iter().map(|output| output.unwrap_or(scalar));
        let kinds: HashSet<_> = outputs.filter(|&scalar| self.leaves_by_panels(scalar)).collect();
        let panels = self.consumers * panels * kinds.len() as i64 * ROWS * PANEL;
        let rows = epilogue.operands.iter().map(|row| (row.span, row.scalar.unwrap_or(scalar)));
        let copied = rows.filter(|&(span, scalar)| self.copies(span, scalar));
        let row: i64 = copied.map(|(_, scalar)| scalar.bytes()).sum();
        let shared = self.consumers * self.width() * row + self.holders().bytes(self.split);
        let bytes = (stages + panels) * scalar.bytes() + shared;
        bytes + BARRIERS <= Arch::Sm90a.shared_memory()
    }

    /// Whether an operand is a row that is copied: not where results move by elements, which need not be aligned, nor of eight
    /// bytes. Such rows are read where they are needed.
    fn copies(&self, span: Span, scalar: Scalar) -> bool {
        let bulk = self.matmul.result_edges(self.edges) == Edges::Bulk;
        span == Span::Row && bulk && scalar.bytes() <= 4
    }
}
