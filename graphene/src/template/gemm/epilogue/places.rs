//! Which of C's elements a lane's sums are.

use super::{Panel, Store};
use crate::build::Builder;
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::TensorId;
use crate::schedule::pointwise::widen;
use crate::template::epilogue::{Across, Run};
use crate::template::gemm::{PANEL, Place, ROWS};

impl Store<'_> {
    /// A lane's pairs of sums in eight columns of a panel: of two rows, eight apart. `come`: a fragment of the addend that
    /// has come, and which eight of its columns these are.
    pub(super) fn each_half(
        &self,
        k: &mut Builder,
        panel: &Panel<'_>,
        eight: &Expr,
        come: Option<(TensorId, i64)>,
        body: impl Fn(&mut Builder, i64, TensorId, &Run, &Across) -> Result<()>,
    ) -> Result<()> {
        let epilogue = &self.context.declared.epilogue;
        let rows = self.rows_at(k, panel, eight)?;
        let column = self.column_of(panel.place, &panel.panel, eight);
        let rows = epilogue.across_but(k, rows, &column, 2, self.context.one)?;
        for half in 0..2 {
            let row = self.row_of(panel.place, &panel.strip, &half.into());
            let run = Run { batch: panel.place.batch.clone(), row, column: column.clone(), n: 2 };
            let mut across = self.all_held(k, panel, &rows, eight, half)?;
            if let (Some(asking), Some((come, j))) = (&self.asking, come) {
                let raw = k.index(come, "raw", [half, j])?;
                let raw = k.reshape(raw, "raw", 0, &[&[(2, 1)]])?;
                across.0[asking.operand] = Some(widen(k, raw, 2, self.context.one)?);
            }
            let at = panel.panel.clone() * (PANEL / 8) + eight;
            let sums = k.index(panel.acc, "sums", [Expr::from(half), at])?;
            body(k, half, sums, &run, &across)?;
        }
        Ok(())
    }

    /// Each lane writes its elements that lie within the results.
    pub(super) fn runs(&self, k: &mut Builder, panel: &Panel<'_>) -> Result<()> {
        k.for_("e", 0..PANEL / 8, 1, true, |k, e| {
            self.each_half(k, panel, &e.into(), None, |k, _, sums, run, across| {
                let epilogue = &self.context.declared.epilogue;
                epilogue.leave(k, sums, run, across, &self.by_runs, self.context.one)
            })
        })
    }

    /// The panel of C, in panels.
    pub(in super::super) fn at(&self, place: &Place, strip: &Expr, panel: &Expr) -> Vec<Expr> {
        let of_tile = self.context.gemm.columns / PANEL;
        let column = place.n.clone() * of_tile + panel;
        place.at(self.strip_of(place, strip), column)
    }

    /// Which 64 rows of C a tile's are.
    pub(super) fn strip_of(&self, place: &Place, strip: &Expr) -> Expr {
        let of_tile = self.context.gemm.rows() / ROWS;
        place.m.clone() * of_tile + self.context.first_strip(&self.group) + strip
    }

    /// The own lane's row of C.
    pub(in super::super) fn row_of(&self, place: &Place, strip: &Expr, half: &Expr) -> Expr {
        self.strip_of(place, strip) * ROWS
            + self.warp_in_group.clone() * 16
            + &self.row
            + half.clone() * 8
    }

    /// The own lane's column of C, in pairs.
    pub(in super::super) fn column_of(&self, place: &Place, panel: &Expr, eight: &Expr) -> Expr {
        let gemm = self.context.gemm;
        let eight = panel.clone() * (PANEL / 8) + eight;
        place.n.clone() * (gemm.columns / 2) + eight * 4 + &self.column
    }
}
