//! The own rows of X and of the results: how they come to registers, and leave.

use super::PANEL;
use super::consumer::{Consumer, EIGHTS, Part, each_panel};
use crate::schedule::load_inside;
use crate::template::fragments::{ROWS, leave_by_tma};
use crate::template::{epilogue::Run, matmul::tile_of};
use crate::{Builder, Expr, Header, Kind, Operand, Result, TensorId, Tiler, Var};

impl Consumer<'_> {
    /// The own rows of X: from shared memory, or from global memory where they are yet to be rounded.
    pub(super) fn begin(&self, k: &mut Builder, to: &[Part]) -> Result {
        let copied = self.near.rows.filter(|_| self.shared.mlp.copies()[0]);
        if copied.is_none() {
            self.round_rows(k, to)?;
        }
        self.near.begun.begin(k, "using_rows")?.consumer_wait(k, self.own)?;
        let Some(buffers) = copied else { return Ok(()) };
        each_panel(to, |part, panel| {
            let buffer =
                k.index(buffers, "buffer", [&self.group, &Expr::from(part.first + panel)])?;
            let rows = self.panel(k, part.rows, panel)?;
            k.decompose(Header::new(Kind::Move, rows, buffer, self.own), |k| {
                let to = k.tile(rows, "a", &[Tiler::Whole, Tiler::Size(2)])?;
                let strips = k.tile(buffer, "strips", &[Tiler::Size(16), Tiler::Size(16)])?;
                k.unroll("strip", PANEL / 16, |k, strip| {
                    let strip = Expr::from(strip);
                    let tile = k.index(strips, "strip", [&self.lane.number, &strip])?;
                    let row = self.matrices.row(k, tile, false)?;
                    k.spec(Kind::Move, Operand::at(to, [0.into(), strip]), row, self.lane.warp)
                })
            })
        })
    }

    /// The own rows of X in single precision, pair by pair.
    pub(super) fn round_rows(&self, k: &mut Builder, to: &[Part]) -> Result {
        let x = self.shared.x;
        each_panel(to, |part, panel| {
            let number = part.first + panel;
            let (rows, from) = (self.panel(k, part.rows, panel)?, self.rows_of(k, x, number)?);
            k.decompose(Header::new(Kind::Move, rows, from, self.own), |k| {
                k.unroll("j", EIGHTS, |k, j| {
                    for half in 0..2 {
                        let from = self.run(number, j, half).of(k, x, "pair")?;
                        let pair = load_inside(k, from, true)?;
                        let to = Operand::at(rows, [Expr::from(half), j.into()]);
                        k.move_(to, pair)?;
                    }
                    Ok(())
                })
            })
        })
    }

    /// A panel of the own rows of X or of the result.
    pub(super) fn rows_of(&self, k: &mut Builder, of: TensorId, panel: i64) -> Result<TensorId> {
        let panels = [ROWS, PANEL].map(Tiler::Size);
        tile_of(k, of, "own_rows", &panels, [&self.m, &panel.into()])
    }

    /// The own lane's pair of a panel's eight columns, in the first of its two rows or in the second.
    pub(super) fn run(&self, panel: i64, eight: &Var, half: i64) -> Run {
        let row = self.m.clone() * ROWS + self.lane.number.clone() * 16 + &self.lane.row + half * 8;
        let column = (Expr::from(eight) + panel * EIGHTS) * 4 + &self.lane.column;
        Run { batch: None, row, column, n: 2, held: Vec::new() }
    }

    /// The last layer's rows leave: through shared memory and tensor copies.
    pub(super) fn leave(&self, k: &mut Builder, parts: &[Part], buffers: TensorId) -> Result {
        let own = self.own;
        let result = self.shared.given[self.shared.given.len() - 1].results[0];
        each_panel(parts, |part, panel| {
            let number = part.first + panel;
            let (rows, to) = (self.panel(k, part.rows, panel)?, self.rows_of(k, result, number)?);
            let buffer = k.index(buffers, "buffer", [&self.group, &number.into()])?;
            k.decompose(Header::new(Kind::Move, to, rows, own), |k| {
                let a = k.tile(rows, "a", &[Tiler::Whole, Tiler::Size(2)])?;
                self.matrices.store(k, &self.lane, buffer, PANEL, |k, strip, _| {
                    k.index(a, "a", [&0.into(), strip])
                })?;
                leave_by_tma(k, own, |k| k.add(Header::alone(Kind::Move, to, buffer).async_()))
            })
        })
    }
}
