//! What becomes of the sums, and how they leave; `places`: which elements are whose.

mod places;

use super::ahead::Ahead;
use super::residual_tma::Asking;
use super::rows::Rows;
use super::smem_budget::PANELS;
use super::{Context, PANEL, Place, ROWS};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Fence, Group, Kind, Operand, Ring, TensorId, ThreadsId};
use crate::layout::{IntTuple, Tiler};
use crate::schedule::pointwise::each;
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};

/// How a warpgroup's rows leave: results of 16 bits panel by panel through shared buffers and
/// tensor copies; others, where elements move alone, and where blocks share a tile, of which each finishes some warps' part,
/// straight from registers.
pub(super) struct Store<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) own: ThreadsId,
    pub(super) group: Var,
    by_panels: Vec<Panels>,
    /// Rows for each consumer's tile.
    pub(super) rows: Rows,
    /// How an addend's panels come.
    pub(super) asking: Option<Asking>,
    /// Numbers of the results that leave from registers.
    pub(super) by_runs: Vec<usize>,
    pub(super) warp: ThreadsId,
    /// The own warp's number in its group, the own lane's row and column of fragments.
    pub(super) warp_in_group: Expr,
    row: Expr,
    pub(super) column: Expr,
    /// Which of 2×2 matrices, and which row of it, the own lane points to.
    address: [Expr; 3],
}

/// 64 columns of a consumer's 64 rows.
pub(super) struct Panel<'a> {
    /// The sums of the rows.
    pub(super) acc: TensorId,
    /// Which of the consumer's rows.
    pub(super) strip: Expr,
    /// Which of the tile's columns.
    pub(super) panel: Expr,
    pub(super) place: &'a Place,
    pub(super) ahead: &'a Ahead,
}

/// A result that leaves by tensor copies.
struct Panels {
    result: usize,
    scalar: Scalar,
    /// The result in panels.
    to: TensorId,
    /// `[group, buffer].[64, 64]`, and whose turn it is.
    buffers: TensorId,
    turn: Ring,
}

impl<'a> Store<'a> {
    pub(super) fn new(
        k: &mut Builder,
        context: &'a Context<'a>,
        own: ThreadsId,
        group: &Var,
    ) -> Result<Store<'a>> {
        let (mut by_panels, mut by_runs): (Vec<Panels>, _) = (Vec::new(), Vec::new());
        for (result, &tensor) in context.declared.epilogue.results.iter().enumerate() {
            let scalar = k.tensor_of(tensor)?.scalar;
            if !context.gemm.leaves_by_panels(scalar) {
                by_runs.push(result);
                continue;
            }
            let (buffers, turn) = match by_panels.iter().find(|known| known.scalar == scalar) {
                Some(known) => (known.buffers, known.turn.clone()),
                None => {
                    let turn = k.ring("leaving", context.panel_buffers())?;
                    (context.buffers(k, scalar)?, turn)
                }
            };
            let to = context.tiled(k, tensor, "gC", [ROWS, PANEL])?;
            by_panels.push(Panels { result, scalar, to, buffers, turn });
        }
        let asking = match &by_panels[..] {
            [Panels { buffers, turn, .. }] => Asking::new(k, context, *buffers, turn)?,
            _ => None,
        };
        let warps = k.tile(own, "warps", &[Tiler::Size(32)])?;
        let quads = k.reshape(warps, "quads", 1, &[&[(4, 1)], &[(8, 4)]])?;
        let [warp_in_group, column, row] = k.indices(quads, ["warp", "quad", "fragment"])?;
        let warp = k.index(warps, "warp", [&warp_in_group])?;
        // Lane 8i + r holds the address of row r of the i-th of 2×2 matrices.
        let eights = k.tile(warp, "eights", &[Tiler::Size(8)])?;
        let grouped = k.reshape(eights, "matrices", 0, &[&[(2, 2)], &[(2, 1)]])?;
        let address = k.indices(grouped, ["matrix_m", "matrix_n", "matrix_row"])?;
        Ok(Store {
            context,
            own,
            group: group.clone(),
            by_panels,
            rows: Rows::new(k, context)?,
            asking,
            by_runs,
            warp,
            warp_in_group: warp_in_group.into(),
            row: row.into(),
            column: column.into(),
            address: address.map(Expr::from),
        })
    }

    /// A tile's rows, panel by panel.
    pub(super) fn tile(
        &self,
        k: &mut Builder,
        acc: TensorId,
        place: &Place,
        ahead: &Ahead,
    ) -> Result<()> {
        let gemm = self.context.gemm;
        let strips = k.tile(acc, "strips", &[Tiler::Whole, Tiler::Size(gemm.columns / 8)])?;
        each(k, gemm.strips, |k, strip| {
            let acc = k.index(strips, "strip", [Expr::from(0), strip.clone()])?;
            let header = self.strip(k, acc, place, &strip)?;
            k.decompose(header, |k| {
                k.for_("panel", 0..gemm.columns / PANEL, 1, true, |k, panel| {
                    let panel = Panel { acc, strip, panel: panel.into(), place, ahead };
                    self.ask_for_next(k, &panel)?;
                    self.ask_beyond(k, &panel)?;
                    for panels in &self.by_panels {
                        self.panel(k, &panel, panels)?;
                    }
                    if self.by_runs.is_empty() { Ok(()) } else { self.runs(k, &panel) }
                })
            })
        })?;
        self.leave_rows(k)
    }

    /// What becomes of the sums of a strip: 64 rows, of which a warp has 16 if it finishes them alone.
    fn strip(&self, k: &mut Builder, acc: TensorId, place: &Place, strip: &Expr) -> Result<Header> {
        let Context { gemm, declared, shares, .. } = self.context;
        let m = self.strip_of(place, strip);
        let (rows, m, threads) = match shares {
            Some(_) => (ROWS / 4, m * 4 + &self.warp_in_group, self.warp),
            None => (ROWS, m, self.own),
        };
        let place = Place { batch: place.batch.clone(), m, n: place.n.clone() };
        let part = declared.part(k, [rows, gemm.columns], &place)?;
        Ok(part.epilogue(declared.epilogue.kind(), acc, threads))
    }

    /// What is still being read out of shared memory must not outlive the block.
    pub(super) fn finish(&self, k: &mut Builder) -> Result<()> {
        if self.by_panels.is_empty() {
            return Ok(());
        }
        let one = self.context.one;
        k.role(self.own, 0..1, |k| k.spec(Kind::WaitGroup(Group::Bulk, 0, true), (), (), one))
    }

    fn panel(
        &self,
        k: &mut Builder,
        panel: &Panel<'_>,
        Panels { result, scalar, to, buffers, turn }: &Panels,
    ) -> Result<()> {
        let one = self.context.one;
        let at = [&self.group, &turn.stage()];
        let name = if self.asking.is_some() { "addend" } else { "buffer" };
        let buffer = k.index(*buffers, name, at)?;
        match &self.asking {
            // The addend has come where the buffer's last store has been read.
            Some(asking) => asking.wait(k, &self.group, self.own)?,
            None => {
                // The buffer's last store has been read: of the two, it is the older.
                let read = Kind::WaitGroup(Group::Bulk, PANELS - 1, true);
                k.role(self.own, 0..1, |k| k.spec(read, (), (), one))?;
                k.spec(Kind::Sync, (), (), self.own)?;
            }
        }
        let strips = k.tile(buffer, "strips", &[Tiler::Size(16), Tiler::Size(16)])?;
        k.for_("strip", 0..PANEL / 16, 1, true, |k, strip| {
            let at = k.index(strips, "strip", [self.warp_in_group.clone(), strip.into()])?;
            let matrices = k.tile(at, "matrices", &[Tiler::Size(8), Tiler::Size(8)])?;
            let [matrix_m, matrix_n, row] = &self.address;
            let matrix = k.index(matrices, "matrix", [matrix_m, matrix_n])?;
            let rows = k.tile(matrix, "rows", &[Tiler::Size(1), Tiler::Size(8)])?;
            let row = k.index(rows, "row", [row.clone(), Expr::from(0)])?;
            let fragment = |k: &mut Builder, name| {
                let view =
                    View::levels_of(&[vec![leaf(2, 4), leaf(2, 2)], vec![leaf(1, 0), leaf(2, 1)]]);
                k.allocate(name, view, *scalar, Memory::Registers, None)
            };
            let come = match self.asking {
                Some(_) => Some(fragment(k, "come")?),
                None => None,
            };
            if let Some(come) = come {
                k.spec(Kind::Move, come, row, self.warp)?;
            }
            let halves = fragment(k, "halves")?;
            for j in 0..2 {
                let eight = Expr::from(strip) * 2 + j;
                let come = come.map(|come| (come, j));
                self.each_half(k, panel, &eight, come, |k, half, sums, run, across| {
                    let epilogue = &self.context.declared.epilogue;
                    let outs = epilogue.finished(k, sums, run, across, &[*result], one)?;
                    k.spec(Kind::Move, Operand::at(halves, [half, j]), outs[0], one)
                })?;
            }
            k.spec(Kind::Move, row, halves, self.warp)
        })?;
        k.spec(Kind::Fence(Fence::Proxy), (), (), self.own)?;
        k.spec(Kind::Sync, (), (), self.own)?;
        k.role(self.own, 0..1, |k| {
            let at = self.at(panel.place, &panel.strip, &panel.panel);
            let to = Operand { tensor: *to, index: IntTuple::list(at) };
            k.add(Header::new(Kind::Move, to, buffer, one).async_())?;
            k.spec(Kind::Commit(Group::Bulk), (), (), one)
        })?;
        k.advance(turn)
    }
}
