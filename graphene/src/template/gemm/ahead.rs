//! Columns and matrices that the epilogue meets, asked for before the sums are complete: columns while a tile's matmuls are
//! computed, and matrices panel by panel, one panel before it is needed.

use super::epilogue::{Panel, Store};
use super::{Context, Gemm, PANEL, Place};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Cond, Expr, Relation};
use crate::kernel::{Group, Kind, TensorId};
use crate::layout::Tiler;
use crate::schedule::pointwise::{WIDTH, each, fetch_inside, load, widen};
use crate::schedule::vectors::neighbours;
use crate::template::epilogue::{Held, Span};
use crate::template::fragments::packed;
use crate::template::matmul::leaf;
use crate::tensor::{Memory, View};

/// Runs of eight columns in a panel.
const EIGHTS: i64 = PANEL / 8;

/// Registers that an epilogue needs besides the sums and what is held for it; more in a cluster.
const OTHERS: [i64; 2] = [40, 64];

/// What is held of each operand; nothing of rows, of what comes by tensor copies, and where there are too few registers.
pub(super) struct Ahead(Vec<Option<Fetched>>);

/// Registers that hold a tile's elements of an operand, as they are in memory.
#[derive(Clone, Copy)]
struct Fetched {
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
        let copied = self.asking.as_ref().map(|asking| asking.operand);
        if let Some(asking) = &self.asking {
            asking.first(k, self, place)?;
        }
        let operands = &self.context.declared.epilogue.operands;
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
                self.ask_for_panel(k, place, from, Fetched { raw, panels }, &Expr::from(0))?;
            }
            held.push(Some(Fetched { raw, panels }));
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
                self.fetch(k, to, term)
            })
        })
    }

    /// The panel of this number, counting all of the consumer's rows: it takes the place of the oldest that is held.
    fn ask_for_panel(
        &self,
        k: &mut Builder,
        place: &Place,
        from: TensorId,
        Fetched { raw, panels: held }: Fetched,
        number: &Expr,
    ) -> Result<()> {
        let panels = Expr::from(self.context.gemm.columns / PANEL);
        let (strip, panel) = (number.div(&panels), number.rem(&panels));
        each(k, EIGHTS, |k, eight| {
            each(k, 2, |k, half| {
                let row = self.row_of(place, &strip, &half);
                let column = self.column_of(place, &panel, &eight);
                let from = neighbours(k, from, place.at([row, column]), 2, "term")?;
                let to = k.index(raw, "raw", [number.rem(&held.into()), eight, half])?;
                self.fetch(k, to, from)
            })
        })
    }

    fn fetch(&self, k: &mut Builder, to: TensorId, from: TensorId) -> Result<()> {
        let epilogue = &self.context.declared.epilogue;
        fetch_inside(k, to, from, epilogue.wide)
    }

    /// Asks for what the next panel meets of matrices, or this one where only one is held.
    pub(super) fn ask_for_next(&self, k: &mut Builder, panel: &Panel<'_>) -> Result<()> {
        let gemm = self.context.gemm;
        let panels = gemm.columns / PANEL;
        let operands = self.context.declared.epilogue.operands.iter().zip(&panel.ahead.0);
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
        rows: &Held,
        eight: &Expr,
        half: i64,
    ) -> Result<Held> {
        let panels = self.context.gemm.columns / PANEL;
        let operands = self.context.declared.epilogue.operands.iter().zip(&panel.ahead.0);
        let all = operands.zip(rows).map(|((&(span, _), held), row)| match (span, held) {
            (Span::Column, Some(held)) => {
                let at = vec![panel.strip.clone(), half.into()];
                self.single(k, held.raw, at).map(Some)
            }
            (Span::Whole, Some(held)) => {
                let which = panel.number(panels).rem(&held.panels.into());
                self.single(k, held.raw, vec![which, eight.clone(), half.into()]).map(Some)
            }
            (Span::Row | Span::Column | Span::Whole, _) => Ok(*row),
        });
        all.collect()
    }

    /// Registers in single precision.
    fn single(&self, k: &mut Builder, held: TensorId, at: Vec<Expr>) -> Result<TensorId> {
        let raw = k.index(held, "raw", at)?;
        widen(k, raw)
    }

    /// Begins to copy the tile's rows. The last tile's are no longer read.
    pub(super) fn ask_for_rows(&self, k: &mut Builder, place: &Place) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let [thread] = k.indices(self.own, ["copier"])?;
        let operands = &self.context.declared.epilogue.operands;
        for (&(_, from), row) in operands.iter().zip(&self.rows.0) {
            let &Some(row) = row else { continue };
            let run = WIDTH / k.tensor_of(from)?.scalar.bytes();
            let runs = self.context.gemm.columns / run;
            let from = k.tile(from, "runs", &[Tiler::Size(run)])?;
            let to = k.index(row, "row", [&self.group])?;
            let to = k.tile(to, "runs", &[Tiler::Size(run)])?;
            k.role(self.own, 0..runs, |k| {
                let from = k.index(from, "run", [place.n.clone() * runs + &thread])?;
                let to = k.index(to, "run", [&thread])?;
                k.add(Header::alone(Kind::Move, to, from).async_())
            })?;
        }
        k.alone(Kind::Commit(Group::Copy), (), ())
    }

    /// Waits until the consumer's threads have copied them.
    pub(super) fn await_rows(&self, k: &mut Builder) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        k.alone(Kind::WaitGroup(Group::Copy, 0, false), (), ())?;
        k.spec(Kind::Sync, (), (), self.own)
    }

    /// Lets the next tile's rows take their place. A panel that leaves does so too, since threads meet once they have computed
    /// it: unless runs read rows after the last one.
    pub(super) fn leave_rows(&self, k: &mut Builder) -> Result<()> {
        // Blocks that share a tile have no other.
        let last = self.context.shares.is_some();
        if last || self.rows.is_empty() || self.by_runs.is_empty() {
            return Ok(());
        }
        k.spec(Kind::Sync, (), (), self.own)
    }

    /// The own lane's pairs in eight columns of a panel, in single precision.
    pub(super) fn rows_at(
        &self,
        k: &mut Builder,
        panel: &Panel<'_>,
        eight: &Expr,
    ) -> Result<Vec<Option<TensorId>>> {
        let eight = panel.panel.clone() * (PANEL / 8) + eight;
        let mut rows = Vec::new();
        for row in &self.rows.0 {
            let &Some(row) = row else {
                rows.push(None);
                continue;
            };
            let row = k.index(row, "row", [&self.group])?;
            let pairs = k.tile(row, "pairs", &[Tiler::Size(2)])?;
            let pair = k.index(pairs, "pair", [eight.clone() * 4 + &self.lane.column])?;
            rows.push(Some(load(k, pair, true)?));
        }
        Ok(rows)
    }
}

impl Panel<'_> {
    /// Its number among all of the consumer's rows, which have so many panels each.
    pub(super) fn number(&self, panels: i64) -> Expr {
        self.strip.clone() * panels + &self.panel
    }
}

/// Of each operand that is a row, where its part is: `[consumer].[columns]`.
pub(super) struct Rows(Vec<Option<TensorId>>);

impl Rows {
    pub(super) fn new(k: &mut Builder, context: &Context<'_>) -> Result<Rows> {
        let Gemm { consumers, columns, .. } = *context.gemm;
        let operands = context.declared.epilogue.operands.iter();
        let rows = operands.map(|&(span, tensor)| {
            let scalar = k.tensor_of(tensor)?.scalar;
            if !context.gemm.copies(span, scalar) {
                return Ok(None);
            }
            let view = View::levels_of(&[vec![leaf(consumers, columns)], vec![leaf(columns, 1)]]);
            k.allocate("row", view, scalar, Memory::Shared, None).map(Some)
        });
        Ok(Rows(rows.collect::<Result<_>>()?))
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}
