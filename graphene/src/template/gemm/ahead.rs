//! Columns and matrices that the epilogue meets, asked for before the sums are complete: columns while a tile's matmuls are
//! computed, and matrices panel by panel, one panel before it is needed.

use super::epilogue::{Panel, Store};
use super::{PANEL, Place};
use crate::choose::ceil;
use crate::schedule::{WIDTH, copy, each, fetch_inside, load, neighbours, widen};
use crate::template::epilogue::{Held, Span};
use crate::template::fragments::packed;
use crate::template::matmul::{leaf, registers};
use crate::{Builder, Cond, Expr, Group, Header, Kind, Memory, Result, TensorId};

/// Runs of eight columns in a panel.
const EIGHTS: i64 = PANEL / 8;

/// Registers that an epilogue needs besides the sums and what is held for it; more in a cluster.
const OTHERS: [i64; 2] = [40, 64];

/// What is held of each operand; nothing of rows, of what comes by tensor copies, and where there are too few registers.
pub(super) struct Ahead<'a> {
    pub(super) place: &'a Place,
    held: Vec<Option<Fetched>>,
    /// How many registers are left.
    pub(super) spare: i64,
}

/// Registers that hold a tile's elements of an operand, as they are in memory.
#[derive(Clone, Copy)]
struct Fetched {
    from: TensorId,
    raw: TensorId,
    column: bool,
    /// Of a matrix, how many panels: two, or only the one that is needed.
    panels: i64,
}

impl Panel<'_> {
    /// All that registers hold for one of the two rows of eight columns, the operands that are rows given.
    pub(super) fn held(&self, k: &mut Builder, rows: &Held, at: (&Expr, i64)) -> Result<Held> {
        let (eight, half) = at;
        let all = self.ahead.held.iter().zip(rows).map(|(held, row)| {
            let Some(held) = held else { return Ok(*row) };
            let at = match held.column {
                true => vec![self.strip.clone(), half.into()],
                false => vec![self.number.rem(held.panels), eight.clone(), half.into()],
            };
            let raw = k.index(held.raw, "raw", at)?;
            widen(k, raw).map(Some)
        });
        all.collect()
    }
}

impl Store<'_> {
    /// Asks for the tile's rows and columns, and for the first panel of matrices.
    pub(super) fn ask<'p>(&self, k: &mut Builder, place: &'p Place) -> Result<Ahead<'p>> {
        let gemm = self.context.gemm;
        let others = OTHERS[usize::from(gemm.cluster > 1)];
        let (mut spare, mut held) = (gemm.budget() - gemm.registers() - others, Vec::new());
        self.ask_for_rows(k, place)?;
        let copied = self.asking.map(|asking| asking.operand);
        self.asking.map_or(Ok(()), |asking| asking.first(k, self, place))?;
        let epilogue = &self.context.declared.epilogue;
        for (number, &(span, from)) in epilogue.operands.iter().enumerate() {
            let scalar = k.tensor_of(from)?.scalar;
            let (own, column) = (copied != Some(number), span.is_of_rows());
            let n = if column { 1 } else { 2 };
            let words = ceil(n * scalar.bytes(), 4);
            let runs = |panels: i64| match column {
                true => vec![gemm.strips, 2],
                false => vec![panels, EIGHTS, 2],
            };
            let registers = |panels: i64| runs(panels).iter().product::<i64>() * words;
            let fits = |&panels: &i64| own && span != Span::Row && registers(panels) <= spare;
            let Some(panels) = [2, 1].into_iter().find(fits) else {
                held.push(None);
                continue;
            };
            spare -= registers(panels);
            let levels = [packed(&runs(panels), n), vec![leaf(n, 1)]];
            let raw = k.allocate("held", levels, scalar, Memory::Registers, None)?;
            let fetched = Fetched { from, raw, column, panels };
            if column {
                each(k, gemm.strips, |k, strip| {
                    each(k, 2, |k, half| {
                        let row = self.row_of(place, &strip, &half);
                        let term = neighbours(k, from, [row], 1, "term")?;
                        let to = k.index(raw, "raw", [strip, half])?;
                        fetch_inside(k, to, term, epilogue.wide)
                    })
                })?;
            } else if panels > 1 {
                self.ask_for_panel(k, place, fetched, &Expr::from(0))?;
            }
            held.push(Some(fetched));
        }
        Ok(Ahead { place, held, spare })
    }

    /// The panel of this number, counting all of the consumer's rows: it takes the place of the oldest that is held.
    fn ask_for_panel(&self, k: &mut Builder, place: &Place, of: Fetched, number: &Expr) -> Result {
        let panels = self.context.gemm.width() / PANEL;
        let (strip, panel) = (number.div(panels), number.rem(panels));
        each(k, EIGHTS, |k, eight| {
            each(k, 2, |k, half| {
                let row = self.row_of(place, &strip, &half);
                let column = self.column_of(place, &panel, &eight);
                let from = neighbours(k, of.from, place.at([row, column]), 2, "term")?;
                let to = k.index(of.raw, "raw", [number.rem(of.panels), eight, half])?;
                fetch_inside(k, to, from, self.context.declared.epilogue.wide)
            })
        })
    }

    /// Asks for what the next panel meets of matrices, or this one where only one is held.
    pub(super) fn ask_for_next(&self, k: &mut Builder, panel: &Panel<'_>) -> Result {
        let panels = self.context.gemm.panels_of_consumer();
        let Ahead { place, held, .. } = panel.ahead;
        for &held in held.iter().flatten().filter(|held| !held.column) {
            if held.panels == 1 {
                self.ask_for_panel(k, place, held, &panel.number)?;
            } else if panels > 1 {
                let next = panel.number.clone() + 1;
                let within = Cond::less(next.clone(), panels);
                k.if_(within, |k| self.ask_for_panel(k, place, held, &next))?;
            }
        }
        Ok(())
    }

    fn has_rows(&self) -> bool {
        self.rows.iter().any(Option::is_some)
    }

    /// Begins to copy the tile's rows. The last tile's are no longer read.
    pub(super) fn ask_for_rows(&self, k: &mut Builder, place: &Place) -> Result {
        if !self.has_rows() {
            return Ok(());
        }
        let [thread] = k.indices(self.own, ["copier"])?;
        let operands = &self.context.declared.epilogue.operands;
        for (&(_, from), row) in operands.iter().zip(&self.rows) {
            let &Some(row) = row else { continue };
            let run = WIDTH / k.tensor_of(from)?.scalar.bytes();
            let runs = self.context.gemm.width() / run;
            let to = k.index(row, "row", [&self.group])?;
            k.role(self.own, 0..runs, |k| {
                let at = place.n.clone() * runs + &thread;
                let from = neighbours(k, from, [at], run, "run")?;
                let to = neighbours(k, to, [(&thread).into()], run, "run")?;
                k.add(Header::alone(Kind::Move, to, from).async_())
            })?;
        }
        k.alone(Kind::Commit(Group::Copy), (), ())
    }

    /// Waits until the consumer's threads have copied them.
    pub(super) fn await_rows(&self, k: &mut Builder) -> Result {
        if !self.has_rows() {
            return Ok(());
        }
        k.alone(Kind::WaitGroup(Group::Copy, 0, false), (), ())?;
        k.spec(Kind::Sync, (), (), self.own)
    }

    /// Lets the next tile's rows take their place. A panel that leaves does so too, since threads meet once they have computed
    /// it: unless runs read rows after the last one.
    pub(super) fn leave_rows(&self, k: &mut Builder) -> Result {
        // Blocks that share a tile have no other.
        let last = self.context.shares.is_some();
        let read_last = !last && self.has_rows() && !self.by_runs.is_empty();
        if read_last { k.spec(Kind::Sync, (), (), self.own) } else { Ok(()) }
    }

    /// The own lane's pairs of rows in a panel, `[eight].[2]`: asked for together, where there are registers for them.
    pub(super) fn rows_of(&self, k: &mut Builder, panel: &Expr, mut spare: i64) -> Result<Held> {
        let rows = self.rows.iter().map(|row| {
            let &Some(row) = row else { return Ok(None) };
            let scalar = k.tensor_of(row)?.scalar;
            let taken = EIGHTS * ceil(2 * scalar.bytes(), 4);
            if taken > spare {
                return Ok(None);
            }
            spare -= taken;
            let held = registers(k, "held", &[&[(EIGHTS, 2)], &[(2, 1)]], scalar)?;
            each(k, EIGHTS, |k, eight| {
                let pair = self.pair_of(k, row, [panel, &eight])?;
                let held = k.index(held, "pair", [eight])?;
                copy(k, held, pair, true)
            })?;
            Ok(Some(held))
        });
        rows.collect()
    }

    /// The own lane's pair in eight columns of a panel of a row.
    fn pair_of(&self, k: &mut Builder, row: TensorId, at: [&Expr; 2]) -> Result<TensorId> {
        let [panel, eight] = at;
        let row = k.index(row, "row", [&self.group])?;
        let at = (panel.clone() * EIGHTS + eight) * 4 + &self.lane.column;
        neighbours(k, row, [at], 2, "pair")
    }

    /// The own lane's pairs of rows in eight columns of a panel, in single precision.
    pub(super) fn rows_at(&self, k: &mut Builder, panel: &Panel<'_>, eight: &Expr) -> Result<Held> {
        let rows = self.rows.iter().zip(&panel.rows).map(|(row, held)| match (row, held) {
            (_, &Some(held)) => {
                let pair = k.index(held, "pair", [eight])?;
                widen(k, pair).map(Some)
            }
            (&Some(row), None) => {
                let pair = self.pair_of(k, row, [&panel.panel, eight])?;
                load(k, pair, true).map(Some)
            }
            (None, None) => Ok(None),
        });
        rows.collect()
    }
}
