//! How the result leaves.

use super::ROWS;
use super::consumer::Consumer;
use super::context::Context;
use super::tiles::Place;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{Fence, Group, Kind, Operand, TensorId, ThreadsId};
use crate::layout::{IntTuple, Tiler};
use crate::template::product::leaf;
use crate::tensor::{Memory, View};

/// How a warpgroup's rows leave: through a shared buffer and tensor copies.
pub(super) struct Store<'a> {
    context: &'a Context<'a>,
    consumer: &'a Consumer,
    /// `[group].[64, dim]`.
    buffers: TensorId,
    /// O in panels of 64 rows.
    panels: TensorId,
    /// Which of 2×2 matrices, and which row of it, the own lane points to.
    address: [Expr; 3],
}

impl<'a> Store<'a> {
    pub(super) fn new(
        k: &mut Builder,
        context: &'a Context<'a>,
        consumer: &'a Consumer,
    ) -> Result<Store<'a>> {
        let fmha = context.fmha;
        let dim = fmha.value_width();
        let view = View::levels_of(&[
            vec![leaf(fmha.consumers, ROWS * dim)],
            vec![leaf(ROWS, fmha.panel(dim)), fmha.panels(ROWS, dim)],
        ]);
        let swizzle = Some(fmha.swizzle(dim)?);
        let buffers = k.allocate("sO", view, fmha.scalar, Memory::Shared, swizzle)?;
        let tiles = [1, 1, ROWS, fmha.panel(dim)].map(Tiler::Size);
        let panels = k.tile(context.operands[3], "gO", &tiles)?;
        // Lane 8i + r holds the address of row r of the i-th of 2×2 matrices.
        let eights = k.tile(consumer.warp, "eights", &[Tiler::Size(8)])?;
        let grouped = k.reshape(eights, "matrices", 0, &[&[(2, 2)], &[(2, 1)]])?;
        let address = k.indices(grouped, ["matrix_m", "matrix_n", "matrix_row"])?;
        let address = address.map(Expr::from);
        Ok(Store { context, consumer, buffers, panels, address })
    }

    /// A tile's rows.
    pub(super) fn tile(&self, k: &mut Builder, acc: TensorId, place: &Place) -> Result<()> {
        let Context { one, fmha, operands, .. } = *self.context;
        let own = self.consumer.own;
        let dim = fmha.value_width();
        let m = place.m.clone() * fmha.consumers + Expr::from(&self.consumer.group);
        let rows = place.rows(k, &operands, 3, ROWS, &m)?;
        k.decompose(Header::new(Kind::Move, rows, acc, own), |k| {
            let buffer = k.index(self.buffers, "buffer", [&self.consumer.group])?;
            // The store of the tile before has been read.
            self.first(k, own, |k| k.spec(Kind::WaitGroup(Group::Bulk, 0, true), (), (), one))?;
            k.spec(Kind::Sync, (), (), own)?;
            let strips = k.tile(buffer, "strips", &[Tiler::Size(16), Tiler::Size(16)])?;
            k.for_("strip", 0..dim / 16, 1, true, |k, strip| {
                let fragment =
                    View::levels_of(&[vec![leaf(2, 4), leaf(2, 2)], vec![leaf(1, 0), leaf(2, 1)]]);
                let scalar = fmha.scalar;
                let halves = k.allocate("halves", fragment, scalar, Memory::Registers, None)?;
                for (half, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let at = [Expr::from(half), Expr::from(strip) * 2 + j];
                    let sums = Operand::at(acc, at);
                    k.spec(Kind::Move, Operand::at(halves, [half, j]), sums, one)?;
                }
                let at = [self.consumer.warp_in_group.clone(), strip.into()];
                let strip = k.index(strips, "strip", at)?;
                let matrices = k.tile(strip, "matrices", &[Tiler::Size(8), Tiler::Size(8)])?;
                let [matrix_m, matrix_n, row] = &self.address;
                let matrix = k.index(matrices, "matrix", [matrix_m, matrix_n])?;
                let rows = k.tile(matrix, "rows", &[Tiler::Size(1), Tiler::Size(8)])?;
                let row = k.index(rows, "row", [row.clone(), Expr::from(0)])?;
                k.spec(Kind::Move, row, halves, self.consumer.warp)
            })?;
            k.spec(Kind::Fence(Fence::Proxy), (), (), own)?;
            k.spec(Kind::Sync, (), (), own)?;
            self.first(k, own, |k| {
                let from =
                    k.tile(buffer, "leaving", &[Tiler::Whole, Tiler::Size(fmha.panel(dim))])?;
                for i in 0..dim / fmha.panel(dim) {
                    let at = [place.batch.clone(), place.head.clone(), m.clone(), Expr::from(i)];
                    let to = Operand { tensor: self.panels, index: IntTuple::list(at) };
                    let from = Operand::at(from, [0, i]);
                    k.add(Header::new(Kind::Move, to, from, one).async_())?;
                }
                k.spec(Kind::Commit(Group::Bulk), (), (), one)
            })
        })
    }

    /// What is still being read out of shared memory must not outlive the block.
    pub(super) fn finish(&self, k: &mut Builder) -> Result<()> {
        let one = self.context.one;
        self.first(k, self.consumer.own, |k| {
            k.spec(Kind::WaitGroup(Group::Bulk, 0, true), (), (), one)
        })
    }

    /// What the warpgroup's first thread does.
    fn first(
        &self,
        k: &mut Builder,
        own: ThreadsId,
        body: impl FnOnce(&mut Builder) -> Result<()>,
    ) -> Result<()> {
        k.role(own, 0..1, body)
    }
}
