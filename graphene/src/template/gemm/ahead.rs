//! Columns and matrices that the epilogue meets, asked for before the sums are complete: columns while a tile's products are
//! computed, and matrices panel by panel, one panel before it is needed.

use super::epilogue::{Panel, Store};
use super::{PANEL, Place};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr, Relation};
use crate::kernel::TensorId;
use crate::layout::{Layout, Tiler};
use crate::schedule::pointwise::{each, fetch_inside, widen};
use crate::template::epilogue::{Across, Run, Span};
use crate::template::product::leaf;
use crate::tensor::{Memory, View};

/// Runs of eight columns in a panel.
const EIGHTS: i64 = PANEL / 8;

/// Registers that an epilogue needs besides the sums and what is held for it; more in a cluster.
const OTHERS: [i64; 2] = [40, 64];

/// What is held of each operand; nothing of rows, of what comes by tensor copies, and where there are too few registers.
pub(super) struct Ahead(Vec<Option<Held>>);

/// Registers that hold a tile's elements of an operand, as they are in memory.
#[derive(Clone, Copy)]
struct Held {
    raw: TensorId,
    /// Of a matrix, how many panels: two, or only the one that is needed.
    panels: i64,
}

impl Store<'_> {
    /// Asks for the tile's rows and columns, and for the first panel of matrices.
    pub(super) fn ask(&self, k: &mut Builder, place: &Place) -> Result<Ahead> {
        let gemm = self.context.gemm;
        let others = OTHERS[usize::from(gemm.cluster > 1)];
        let mut spare = gemm.budget() - gemm.registers() - others;
        let mut held = Vec::new();
        self.ask_for_rows(k, place)?;
        self.ask_for_first(k, place)?;
        let copied = self.asking.as_ref().map(|asking| asking.operand);
        let operands = self.context.declared.epilogue.operands();
        for (number, &(span, from)) in operands.iter().enumerate() {
            let scalar = k.tensor_of(from)?.scalar;
            if span == Span::Row || copied == Some(number) {
                held.push(None);
                continue;
            }
            let column = span == Span::Column;
            let of = |panels: i64| match column {
                true => (vec![gemm.strips, 2], 1),
                false => (vec![panels, EIGHTS, 2], 2),
            };
            let registers = |panels: &i64| {
                let (runs, n) = of(*panels);
                runs.iter().product::<i64>() * ((n * scalar.bytes() + 3) / 4)
            };
            let fits = |panels: &i64| registers(panels) <= spare;
            let Some(panels) = [2, 1].into_iter().find(fits) else {
                held.push(None);
                continue;
            };
            spare -= registers(&panels);
            let (runs, n) = of(panels);
            let view = View::levels_of(&[packed(&runs, n), vec![leaf(n, 1)]]);
            let raw = k.allocate("held", view, scalar, Memory::Registers, None)?;
            if column {
                self.ask_for_column(k, place, from, raw)?;
            } else if panels > 1 {
                self.ask_for_panel(k, place, from, Held { raw, panels }, &Expr::from(0))?;
            }
            held.push(Some(Held { raw, panels }));
        }
        Ok(Ahead(held))
    }

    fn ask_for_column(
        &self,
        k: &mut Builder,
        place: &Place,
        from: TensorId,
        raw: TensorId,
    ) -> Result<()> {
        let terms = k.tile(from, "terms", &[Tiler::Size(1)])?;
        each(k, self.context.gemm.strips, |k, strip| {
            each(k, 2, |k, half| {
                let term = k.index(terms, "term", [self.row_of(place, &strip, &half)])?;
                let to = k.index(raw, "raw", [strip, half])?;
                self.fetch(k, to, term, 1)
            })
        })
    }

    /// The panel of this number, counting all of the consumer's rows: it takes the place of the oldest that is held.
    fn ask_for_panel(
        &self,
        k: &mut Builder,
        place: &Place,
        from: TensorId,
        Held { raw, panels: held }: Held,
        number: &Expr,
    ) -> Result<()> {
        let panels = Expr::from(self.context.gemm.columns / PANEL);
        let (strip, panel) = (number.div(&panels), number.rem(&panels));
        each(k, EIGHTS, |k, eight| {
            each(k, 2, |k, half| {
                let row = self.row_of(place, &strip, &half);
                let column = self.column_of(place, &panel, &eight);
                let run = Run { batch: place.batch.clone(), row, column, n: 2 };
                let from = run.of(k, from, "term")?;
                let to = k.index(raw, "raw", [number.rem(&held.into()), eight, half])?;
                self.fetch(k, to, from, 2)
            })
        })
    }

    fn fetch(&self, k: &mut Builder, to: TensorId, from: TensorId, n: i64) -> Result<()> {
        let epilogue = &self.context.declared.epilogue;
        fetch_inside(k, to, from, n, epilogue.wide(), self.context.one)
    }

    /// Asks for what the next panel meets of matrices, or this one where only one is held.
    pub(super) fn ask_for_next(&self, k: &mut Builder, panel: &Panel<'_>) -> Result<()> {
        let gemm = self.context.gemm;
        let panels = gemm.columns / PANEL;
        let operands = self.context.declared.epilogue.operands().iter().zip(&panel.ahead.0);
        for (&(span, from), held) in operands {
            let Some(held) = held.filter(|_| span == Span::Whole) else { continue };
            if held.panels == 1 {
                self.ask_for_panel(k, panel.place, from, held, &panel.number(panels))?;
            } else if panels * gemm.strips > 1 {
                let next = panel.number(panels) + 1;
                let last = Cond::new(next.clone(), Relation::Less, panels * gemm.strips);
                k.if_(last, |k| self.ask_for_panel(k, panel.place, from, held, &next))?;
            }
        }
        Ok(())
    }

    /// All that registers hold for one of the two rows of eight columns, the operands that are rows given.
    pub(super) fn all_held(
        &self,
        k: &mut Builder,
        panel: &Panel<'_>,
        rows: &Across,
        eight: &Expr,
        half: i64,
    ) -> Result<Across> {
        let panels = self.context.gemm.columns / PANEL;
        let operands = self.context.declared.epilogue.operands().iter().zip(&panel.ahead.0);
        let all = operands.zip(&rows.0).map(|((&(span, _), held), row)| match (span, held) {
            (Span::Column, Some(held)) => {
                let at = vec![panel.strip.clone(), half.into()];
                self.single(k, held.raw, at, 1).map(Some)
            }
            (Span::Whole, Some(held)) => {
                let which = panel.number(panels).rem(&held.panels.into());
                self.single(k, held.raw, vec![which, eight.clone(), half.into()], 2).map(Some)
            }
            (Span::Row | Span::Column | Span::Whole, _) => Ok(*row),
        });
        Ok(Across(all.collect::<Result<_>>()?))
    }

    /// Registers in single precision.
    fn single(&self, k: &mut Builder, held: TensorId, at: Vec<Expr>, n: i64) -> Result<TensorId> {
        let raw = k.index(held, "raw", at)?;
        widen(k, raw, n, self.context.one)
    }
}

impl Panel<'_> {
    /// Its number among all of the consumer's rows, which have so many panels each.
    pub(super) fn number(&self, panels: i64) -> Expr {
        self.strip.clone() * panels + &self.panel
    }
}

/// Dimensions one within the other, the innermost of runs of `n`.
fn packed(sizes: &[i64], n: i64) -> Vec<Layout<Expr>> {
    let mut stride = n;
    let mut dims = Vec::new();
    for &size in sizes.iter().rev() {
        dims.insert(0, leaf(size, stride));
        stride *= size;
    }
    dims
}
