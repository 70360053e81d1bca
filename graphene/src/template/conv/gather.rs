//! How tiles of pixels come into shared memory: `[depth, pixels]`, a row for each element of a window in each channel.
//!
//! Every thread has the same pixels in all tiles, so that it finds out only once where they are.

use super::Conv;
use super::convolution::{Place, Sizes};
use crate::choose::ceil;
use crate::schedule::{WIDTH, begin_copy, copy, copying, neighbours};
use crate::template::matmul::registers;
use crate::template::stage::{Movers, Side};
use crate::{
    Builder, Cond, Expr, Fused, Header, Kind, Operand, Result, TensorId, Test, Var, needs,
};

/// A thread's part of each tile.
pub(super) struct Gather<'a> {
    conv: &'a Conv,
    side: Side,
    movers: Movers<'a>,
    x: TensorId,
    /// What the tile's pixels see.
    pub(super) columns: Fused,
    group: Expr,
    /// Neighbouring pixels that a thread moves at once; where they are flat, as one place in memory.
    run: i64,
    /// The places of the own run's pixels.
    places: Vec<Place>,
    /// The own run in a row of a tile.
    own: Expr,
    /// The first row that the thread moves, and how many rows all threads move at once.
    row: Expr,
    rows: i64,
    /// What no copy brings, as it is too narrow: `[own rows of a tile].[run]`.
    pub(super) words: Option<TensorId>,
}

impl Gather<'_> {
    /// For the tile of a group's pixels that has this number.
    pub(super) fn new<'a>(
        k: &mut Builder,
        conv: &'a Conv,
        sizes: &Sizes,
        x: TensorId,
        side: Side,
        [group, tile]: [&Expr; 2],
        movers: Movers<'a>,
    ) -> Result<Gather<'a>> {
        let flat = conv.is_flat();
        let columns = conv.columns(sizes).slice(0, group.clone(), 1);
        let columns = columns.slice(2, tile.clone() * side.size, side.size);
        let run = if flat { WIDTH } else { 4 } / side.scalar.bytes();
        let row = side.size / run;
        let shared = side.size % run == 0 && movers.threads % row == 0;
        needs(shared, "rows of runs that threads share", (row, run, movers.threads))?;
        let thread = Expr::from(movers.thread);
        let own = thread.rem(row);
        let first = tile.clone() * row + &own;
        let places = if flat {
            vec![Place::of(k, &first, &[sizes.pixels.div(run)])?]
        } else {
            let place = |pixel| Place::of(k, &(first.clone() * run + pixel), &sizes.out);
            (0..run).map(place).collect::<Result<_>>()?
        };
        let rows = movers.threads / row;
        let own_rows = (ceil(side.depth, rows), run);
        let held = || registers(k, "words", &[&[own_rows], &[(run, 1)]], side.scalar);
        let words = (!flat && run > 1).then(held).transpose()?;
        let (row, group) = (thread.div(row), group.clone());
        Ok(Gather { conv, side, movers, x, columns, group, run, places, own, row, rows, words })
    }

    /// Begins to copy a step along K to its stage; zeros where there is nothing.
    pub(super) fn fetch(&self, k: &mut Builder, step: &Expr, to: TensorId, stage: &Var) -> Result {
        let first = step.clone() * self.side.depth;
        if let Some(words) = self.words {
            return k.decompose(self.header(words.into(), step), |k| {
                self.each_row(k, |k, e, row| {
                    let words = k.index(words, "word", [e])?;
                    let row = first.clone() + row;
                    (0..).zip(&self.places).try_for_each(|(i, place)| {
                        let word = Operand::at(words, [i]);
                        let from = Operand::at(self.x, self.seen(place, &row));
                        k.init(word.clone(), 0.0)?;
                        k.if_(Test::Inside(from.clone()), |k| k.move_(word, from))
                    })
                })
            });
        }
        let header = copying(k, self.header(Operand::at(to, [stage]), step));
        k.decompose(header, |k| {
            let to = k.index(to, "stage", [stage])?;
            self.each_row(k, |k, _, row| {
                let to = self.run_of(k, to, row)?;
                let seen = self.seen(&self.places[0], &(first.clone() + row));
                let from = neighbours(k, self.x, seen, self.run, "from")?;
                begin_copy(k, to, from)
            })
        })
    }

    /// Stores a step that came through registers.
    pub(super) fn settle(&self, k: &mut Builder, to: TensorId, stage: &Var) -> Result {
        let Some(words) = self.words else { return Ok(()) };
        let header = Header::new(Kind::Move, Operand::at(to, [stage]), words, self.movers.block);
        k.decompose(header, |k| {
            let to = k.index(to, "stage", [stage])?;
            self.each_row(k, |k, e, row| {
                let to = self.run_of(k, to, row)?;
                let words = k.index(words, "word", [e])?;
                copy(k, to, words, true)
            })
        })
    }

    /// What a step's stage, or its words, are of the image.
    fn header(&self, to: Operand, step: &Expr) -> Header {
        let depth = self.side.depth;
        let part = self.columns.clone().slice(1, step.clone() * depth, depth);
        Header::new(Kind::Fused(part), to, self.x, self.movers.block)
    }

    /// Goes through the rows of a tile of which the thread moves a run.
    fn each_row(
        &self,
        k: &mut Builder,
        body: impl Fn(&mut Builder, &Expr, &Expr) -> Result,
    ) -> Result {
        let depth = self.side.depth;
        let count = ceil(depth, self.rows);
        // Registers have numbers that the compiler knows.
        let unroll = count <= 16 || self.words.is_some();
        k.for_("e", 0..count, 1, unroll, |k, e| {
            let e = Expr::from(e);
            let row = e.clone() * self.rows + &self.row;
            let inside = Cond::less(row.clone(), depth);
            let body = |k: &mut Builder| body(k, &e, &row);
            if depth % self.rows == 0 { body(k) } else { k.if_(inside, body) }
        })
    }

    /// The own run of a stage's row.
    fn run_of(&self, k: &mut Builder, stage: TensorId, row: &Expr) -> Result<TensorId> {
        self.side.piece_of(k, stage, self.run, [row.clone(), self.own.clone()])
    }

    /// The coordinates in x of what a pixel sees in a row: of the row's element of the window, in its
    /// channel. They may lie outside.
    fn seen(&self, place: &Place, row: &Expr) -> Vec<Expr> {
        let taps = self.conv.convolution.taps();
        let at = match self.conv.is_flat() {
            true => place.at.clone(),
            false => self.conv.convolution.seen(&place.at, &row.rem(taps)),
        };
        [place.image.clone(), self.group.clone(), row.div(taps)].into_iter().chain(at).collect()
    }
}
