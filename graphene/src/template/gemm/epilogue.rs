//! What becomes of the sums, and how they leave.

use super::residual_tma::{RESIDUAL_PANELS, ResidualTma};
use super::{Context, PANEL, PANELS, Place, ROWS, ahead::Ahead};
use crate::schedule::{each, widen};
use crate::template::epilogue::{Held, Run};
use crate::template::fragments::{
    Lane, Matrices, Panels, await_tma, leave_by_tma, matrix_fragment,
};
use crate::template::matmul::{Declared, leaf, tiled};
use crate::{
    Builder, Expr, Header, Kind, Memory, Operand, Result, Ring, Scalar, TensorId, ThreadsId, Tiler,
    Var,
};

/// How a warpgroup's rows leave: results of 16 bits panel by panel through shared buffers and tensor copies; others, where
/// elements move alone, and where blocks share a tile, of which each finishes some warps' part, straight from registers.
pub(super) struct Store<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) own: ThreadsId,
    pub(super) group: Var,
    pub(super) by_panels: Vec<ByPanels>,
    /// Of each operand that is a row, where its part is: `[consumer].[columns]`.
    pub(super) rows: Held,
    /// How an addend's panels come.
    pub(super) asking: Option<&'a ResidualTma>,
    /// Numbers of the results that leave from registers.
    pub(super) by_runs: Vec<usize>,
    pub(super) lane: Lane,
    matrices: Matrices,
}

/// 64 columns of a consumer's 64 rows.
pub(super) struct Panel<'a> {
    /// The sums of the rows.
    pub(super) acc: TensorId,
    /// Which of the consumer's rows.
    pub(super) strip: Expr,
    /// Which of the tile's columns.
    pub(super) panel: Expr,
    /// Its number among all of the consumer's rows.
    pub(super) number: Expr,
    /// What registers hold of operands that are rows.
    pub(super) rows: Held,
    pub(super) ahead: &'a Ahead<'a>,
}

/// A result that leaves by tensor copies.
pub(super) struct ByPanels {
    result: usize,
    scalar: Scalar,
    /// The result in panels.
    to: TensorId,
    /// `[group, buffer].[64, 64]`, and their state.
    pub(super) buffers: TensorId,
    pub(super) ring: Ring,
}

impl<'a> Store<'a> {
    pub(super) fn new(
        k: &mut Builder,
        context: &'a Context<'a>,
        own: ThreadsId,
        group: &Var,
    ) -> Result<Store<'a>> {
        let (mut by_panels, mut by_runs): (Vec<ByPanels>, _) = (Vec::new(), Vec::new());
        for (result, &tensor) in context.declared.epilogue.results.iter().enumerate() {
            let scalar = k.tensor_of(tensor)?.scalar;
            if !context.gemm.leaves_by_panels(scalar) {
                by_runs.push(result);
                continue;
            }
            let (buffers, ring) = match by_panels.iter().find(|known| known.scalar == scalar) {
                Some(known) => (known.buffers, known.ring.clone()),
                None => {
                    let each = context.gemm.consumers;
                    let panels = context.residual_tma.as_ref().map_or(PANELS, |_| RESIDUAL_PANELS);
                    let ring = k.ring("leaving", panels)?;
                    let layout = Panels { rows: ROWS, columns: PANEL, scalar };
                    (layout.allocate(k, "sC", &[each, panels], false)?, ring)
                }
            };
            let to = tiled(k, tensor, "gC", [ROWS, PANEL])?;
            by_panels.push(ByPanels { result, scalar, to, buffers, ring });
        }
        let (asking, group) = (context.residual_tma.as_ref(), group.clone());
        let lane = Lane::new(k, own)?;
        let matrices = Matrices::new(k, lane.warp)?;
        let (consumers, columns) = (context.gemm.consumers, context.gemm.width());
        let rows = context.declared.epilogue.operands.iter().map(|&(span, tensor)| {
            let scalar = k.tensor_of(tensor)?.scalar;
            if !context.gemm.copies(span, scalar) {
                return Ok(None);
            }
            let levels = [vec![leaf(consumers, columns)], vec![leaf(columns, 1)]];
            k.allocate("row", levels, scalar, Memory::Shared, None).map(Some)
        });
        let rows = rows.collect::<Result<_>>()?;
        Ok(Store { context, own, group, by_panels, rows, asking, by_runs, lane, matrices })
    }

    /// A tile's rows, panel by panel.
    pub(super) fn tile(&self, k: &mut Builder, acc: TensorId, ahead: &Ahead<'_>) -> Result {
        let Context { gemm, declared, shares, .. } = self.context;
        let strips = k.tile(acc, "strips", &[Tiler::Whole, Tiler::Size(gemm.columns / 8)])?;
        each(k, gemm.strips, |k, strip| {
            let acc = k.index(strips, "strip", [Expr::from(0), strip.clone()])?;
            let m = self.strip_of(ahead.place, &strip);
            // 64 rows, of which a warp has 16 if it finishes them alone.
            let (rows, m, threads) = match shares {
                Some(_) => (ROWS / 4, m * 4 + &self.lane.number, self.lane.warp),
                None => (ROWS, m, self.own),
            };
            let place = Place { m, ..ahead.place.clone() };
            let part = declared.part(k, [rows, gemm.width()], &place)?;
            let sums = gemm.matmul.sums(k, acc, 1)?;
            k.decompose(part.epilogue(&sums, threads), |k| {
                k.unroll("panel", gemm.width() / PANEL, |k, panel| {
                    let panel = Expr::from(panel);
                    let number = strip.clone() * (gemm.width() / PANEL) + &panel;
                    let rows = self.rows_of(k, &panel, ahead.spare)?;
                    let panel = Panel { acc, strip, panel, number, rows, ahead };
                    self.ask_for_next(k, &panel)?;
                    self.asking.map_or(Ok(()), |asking| asking.beyond(k, self, &panel))?;
                    let mut by_panels = self.by_panels.iter();
                    by_panels.try_for_each(|panels| self.panel(k, &panel, panels))?;
                    if self.by_runs.is_empty() {
                        return Ok(());
                    }
                    // Each lane writes its elements that lie within the results.
                    k.unroll("e", PANEL / 8, |k, e| {
                        self.each_half(k, &panel, &e.into(), None, |k, _, sums, run| {
                            let outs = declared.epilogue.finished(k, sums, run, &self.by_runs)?;
                            let mut outs = self.by_runs.iter().zip(outs);
                            outs.try_for_each(|(&of, out)| declared.epilogue.put(k, of, out, run))
                        })
                    })
                })
            })
        })?;
        self.leave_rows(k)
    }

    fn panel(&self, k: &mut Builder, panel: &Panel<'_>, panels: &ByPanels) -> Result {
        let ByPanels { result, scalar, to, buffers, ring } = panels;
        let name = if self.asking.is_some() { "addend" } else { "buffer" };
        let buffer = k.index(*buffers, name, [&self.group, &ring.stage()])?;
        match &self.asking {
            // The addend has come where the buffer's last store has been read.
            Some(asking) => asking.wait(k, self)?,
            None => {
                // The buffer's last store has been read: of the two, it is the older.
                await_tma(k, self.own, PANELS - 1)?;
                k.spec(Kind::Sync, (), (), self.own)?;
            }
        }
        self.matrices.store(k, &self.lane, buffer, PANEL, |k, strip, row| {
            let come = self.asking.map(|_| matrix_fragment(k, "come", *scalar)).transpose()?;
            if let Some(come) = come {
                k.spec(Kind::Move, come, row, self.lane.warp)?;
            }
            let narrow = matrix_fragment(k, "halves", *scalar)?;
            for j in 0..2 {
                let eight = strip.clone() * 2 + j;
                let come = come.map(|come| (come, j));
                self.each_half(k, panel, &eight, come, |k, half, sums, run| {
                    let epilogue = &self.context.declared.epilogue;
                    let outs = epilogue.finished(k, sums, run, &[*result])?;
                    k.move_(Operand::at(narrow, [half, j]), outs[0])
                })?;
            }
            Ok(narrow)
        })?;
        leave_by_tma(k, self.own, |k| {
            let to = Operand::at(*to, self.at(panel.ahead.place, &panel.strip, &panel.panel));
            k.add(Header::alone(Kind::Move, to, buffer).async_())
        })?;
        k.advance(ring)
    }

    /// A lane's pairs of sums in eight columns of a panel: of two rows, eight apart. `come`: a fragment of the addend that
    /// has come, and which eight of its columns these are.
    fn each_half(
        &self,
        k: &mut Builder,
        panel: &Panel<'_>,
        eight: &Expr,
        come: Option<(TensorId, i64)>,
        body: impl Fn(&mut Builder, i64, TensorId, &Run) -> Result,
    ) -> Result {
        let Context { gemm, declared: Declared { epilogue, .. }, .. } = self.context;
        let rows = self.rows_at(k, panel, eight)?;
        let column = self.column_of(panel.ahead.place, &panel.panel, eight);
        let rows = epilogue.across(k, rows, (&column, 2))?;
        (0..2).try_for_each(|half| {
            let row = self.row_of(panel.ahead.place, &panel.strip, &half.into());
            let mut held = panel.held(k, &rows, (eight, half))?;
            if let (Some(asking), Some((come, j))) = (&self.asking, come) {
                let raw = k.index(come, "raw", [half, j])?;
                let raw = k.reshape(raw, "raw", 0, &[&[(2, 1)]])?;
                held[asking.operand] = Some(widen(k, raw)?);
            }
            let at = panel.panel.clone() * (PANEL / 8) + eight;
            let sums = k.index(panel.acc, "sums", [Expr::from(half), at.clone()])?;
            for matrix in 1..gemm.matmul.matrices() {
                let at = at.clone() + matrix * (gemm.width() / 8);
                held.push(Some(k.index(panel.acc, "sums", [Expr::from(half), at])?));
            }
            let (batch, column) = (panel.ahead.place.batch.clone(), column.clone());
            body(k, half, sums, &Run { batch, row, column, n: 2, held })
        })
    }

    /// The panel of C, in panels.
    pub(super) fn at(&self, place: &Place, strip: &Expr, panel: &Expr) -> Vec<Expr> {
        let of_tile = self.context.gemm.width() / PANEL;
        let column = place.n.clone() * of_tile + panel;
        place.at([self.strip_of(place, strip), column])
    }

    /// Which 64 rows of C a tile's are.
    fn strip_of(&self, place: &Place, strip: &Expr) -> Expr {
        let of_tile = self.context.gemm.rows() / ROWS;
        place.m.clone() * of_tile + self.context.first_strip(&self.group) + strip
    }

    /// The own lane's row of C.
    pub(super) fn row_of(&self, place: &Place, strip: &Expr, half: &Expr) -> Expr {
        let row = self.lane.number.clone() * 16 + &self.lane.row + half.clone() * 8;
        self.strip_of(place, strip) * ROWS + row
    }

    /// The own lane's column of C, in pairs.
    pub(super) fn column_of(&self, place: &Place, panel: &Expr, eight: &Expr) -> Expr {
        let gemm = self.context.gemm;
        let eight = panel.clone() * (PANEL / 8) + eight;
        place.n.clone() * (gemm.width() / 2) + eight * 4 + &self.lane.column
    }
}
