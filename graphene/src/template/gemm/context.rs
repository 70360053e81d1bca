//! What the parts of the kernel share: the stages and their barriers, and the walk over tiles.

use super::{GROUP, Gemm, ROWS, residual_tma::ResidualTma};
use crate::schedule::{OrderedBarrier, Pipeline};
use crate::template::matmul::{Declared, Edges, MatMul, Place, Walk};
use crate::template::{access::Cluster, fragments::Panels, split_k::Shares};
use crate::{Builder, Expr, Header, Kind, Result, TensorId, ThreadsId, Tiler, Var};

pub(super) struct Context<'a> {
    pub(super) gemm: &'a Gemm,
    pub(super) block: ThreadsId,
    /// The block's threads as warpgroups.
    pub(super) groups: ThreadsId,
    /// The blocks of the own cluster, which meet at the beginning and at the end; none where blocks are alone.
    pub(super) blocks: Option<ThreadsId>,
    /// The two blocks of the own cluster, and which of them the own one is; none where blocks are alone.
    pub(super) pair: Cluster,
    /// The blocks that share a tile, and what they hand over; none if each has its own.
    pub(super) shares: Option<Shares>,
    /// In which order consumers multiply (ping-pong); if they share each tile, in none.
    pub(super) order: OrderedBarrier,
    pub(super) residual_tma: Option<ResidualTma>,
    /// The block's or cluster's first tile, and the distance to its next.
    pub(super) first: Expr,
    pub(super) stride: Expr,
    /// A cluster's two tiles count as one.
    pub(super) walk: Walk,
    /// Steps along the K of each term.
    pub(super) steps: Vec<Expr>,
    pub(super) pipeline: Pipeline,
    pub(super) shared: [TensorId; 2],
    pub(super) declared: &'a Declared,
}

impl Gemm {
    /// Allocates the stages and their barriers.
    pub(super) fn context<'a>(
        &'a self,
        k: &mut Builder,
        declared: &'a Declared,
        (first, stride): (Expr, Expr),
        (block, cluster): (ThreadsId, Cluster),
    ) -> Result<Context<'a>> {
        let groups = k.tile(block, "warpgroups", &[Tiler::Size(GROUP)])?;
        let shared = [self.stages_of(k, 0)?, self.stages_of(k, 1)?];
        let filled_by = if self.edges == Edges::Bulk { 1 } else { GROUP };
        // Each warp that multiplies a stage says when it has.
        let emptied_by = self.rows() / (ROWS * self.strips) * 4 * self.cluster;
        let blocks = cluster.as_ref().map(|(blocks, _)| *blocks);
        let (pair, sharing) = if self.split == 1 { (cluster, None) } else { (None, cluster) };
        let shares = sharing.map(|of| Shares::new(k, self.split, self.holders(), of, block));
        let shares = shares.transpose()?;
        let order = OrderedBarrier::new(k, if self.ping_pong { self.consumers } else { 1 }, block)?;
        let residual_tma = ResidualTma::new(k, self, &declared.epilogue, block)?;
        let pipeline = Pipeline::new(k, self.stages, [filled_by, emptied_by], block)?;
        k.add(Header::new(Kind::Sync, (), (), block).on(blocks))?;
        let tile = [self.rows() * self.cluster, self.width()];
        Ok(Context {
            gemm: self,
            block,
            groups,
            blocks,
            pair,
            shares,
            order,
            residual_tma,
            first,
            stride,
            walk: Walk::new(declared, tile, self.raster),
            steps: declared.steps(self.depth()),
            pipeline,
            shared,
            declared,
        })
    }

    /// The stages of A: `[stages].[m,depth]`, or of B: `[stages].[depth,n]`; the contiguous side in panels of 128 bytes.
    fn stages_of(&self, k: &mut Builder, i: usize) -> Result<TensorId> {
        let MatMul { scalar, a_transposed, b_transposed, .. } = self.matmul;
        let (size, transposed) = [(self.rows(), a_transposed), (self.columns, b_transposed)][i];
        let [rows, columns] = if transposed { [self.depth(), size] } else { [size, self.depth()] };
        let panels = Panels { rows, columns, scalar };
        panels.allocate(k, ["sA", "sB"][i], &[self.stages], transposed != (i == 1))
    }
}

impl Context<'_> {
    /// The own steps along the K of a term: the first, and how many.
    pub(super) fn own_steps(&self, term: usize) -> (Expr, Expr) {
        let all = &self.steps[term];
        self.shares.as_ref().map_or((Expr::from(0), all.clone()), |shares| shares.steps(all))
    }

    /// How often a consumer multiplies stages for a tile.
    pub(super) fn all_steps(&self) -> Expr {
        (0..self.steps.len()).fold(Expr::from(0), |all, term| all + self.own_steps(term).1)
    }

    /// Goes through tiles.
    pub(super) fn each_tile(
        &self,
        k: &mut Builder,
        first: Expr,
        stride: Expr,
        body: impl FnOnce(&mut Builder, &Var, &Place) -> Result,
    ) -> Result {
        let mut end = self.walk.count();
        if self.shares.is_some() {
            // Blocks that share a tile have no other.
            end = end.min(self.first.clone() + 1);
        }
        k.for_("t", first..end, stride, false, |k, t| {
            let mut place = self.walk.place(k, t)?;
            if let Some((_, rank)) = &self.pair {
                place.m = place.m * self.gemm.cluster + rank;
            }
            body(k, t, &place)
        })
    }

    /// Which 64 rows of a tile are a consumer's first.
    pub(super) fn first_strip(&self, group: &Var) -> Expr {
        if self.gemm.ping_pong { Expr::from(0) } else { Expr::from(group) * self.gemm.strips }
    }
}
