//! How tiles of pixels come into shared memory: `[depth, pixels]`, a row for each element of a window in
//! each channel.
//!
//! Every thread has the same pixels in all tiles, so that it finds out only once where they are.

use super::operands::Sizes;
use super::{Conv, Convolution};
use crate::build::{Builder, Header};
use crate::error::{Error, Result};
use crate::index::{Cond, Expr};
use crate::kernel::{Kind, Number, Operand, TensorId, Test};
use crate::schedule::pointwise::{WIDTH, copy, vector};
use crate::template::access::product;
use crate::template::stage::{Movers, Side};
use crate::tensor::Tile;

/// A thread's part of each tile.
pub(super) struct Gather<'a> {
    convolution: &'a Convolution,
    side: Side,
    movers: Movers<'a>,
    x: TensorId,
    group: Expr,
    /// Whether a run's elements are neighbours in memory: then it is one place there.
    flat: bool,
    /// Neighbouring pixels that a thread moves at once.
    run: i64,
    /// The places of the own run's pixels.
    places: Vec<Place>,
    /// The own run in a row of a tile.
    own: Expr,
    /// The first row that the thread moves, and how many rows all threads move at once.
    row: Expr,
    rows: i64,
}

/// A pixel of a result, or a run of them.
pub(super) struct Place {
    pub(super) image: Expr,
    /// Along each spatial axis.
    pub(super) at: Vec<Expr>,
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
        let run = if flat { WIDTH } else { 4 } / side.scalar.bytes();
        let row = side.size / run;
        if side.size % run != 0 || movers.threads % row != 0 {
            let message = format!("{} threads do not share rows of {row} runs", movers.threads);
            return Err(Error::Kernel(message));
        }
        let thread = Expr::from(movers.thread);
        let own = thread.rem(&Expr::from(row));
        let first = tile.clone() * row + &own;
        let mut places = Vec::new();
        let runs = || vec![sizes.pixels.div(&Expr::from(run))];
        let out = if flat { runs() } else { sizes.out.clone() };
        for pixel in 0..if flat { 1 } else { run } {
            let number = if flat { first.clone() } else { first.clone() * run + pixel };
            places.push(Place::of(k, &number, &out)?);
        }
        Ok(Gather {
            convolution: &conv.convolution,
            side,
            movers,
            x,
            group: group.clone(),
            flat,
            run,
            places,
            own,
            row: thread.div(&Expr::from(row)),
            rows: movers.threads / row,
        })
    }

    /// Fills a stage for a step along K; zeros where there is nothing.
    pub(super) fn fill(&self, k: &mut Builder, step: &Expr, stage: TensorId) -> Result<()> {
        let depth = self.side.depth;
        let to = k.tile(stage, "to_runs", &self.side.pieces(self.run))?;
        let count = (depth + self.rows - 1) / self.rows;
        k.for_("e", 0..count, 1, count <= 16, |k, e| {
            let row = Expr::from(e) * self.rows + &self.row;
            let body = |k: &mut Builder| {
                let to = k.index(to, "to", [row.clone(), self.own.clone()])?;
                let to = k.reshape(to, "to", 0, &[&[(self.run, 1)]])?;
                self.bring(k, step.clone() * depth + &row, to)
            };
            if depth % self.rows == 0 {
                body(k)
            } else {
                k.if_(Cond::less(row.clone(), depth), body)
            }
        })
    }

    /// Brings the own run of a row.
    fn bring(&self, k: &mut Builder, row: Expr, to: TensorId) -> Result<()> {
        let one = self.movers.one;
        if self.flat {
            let tiles = [1, 1, 1, self.run].map(Tile::of);
            let runs = k.tile(self.x, "from_runs", &tiles)?;
            let from = k.index(runs, "from", self.seen(&self.places[0], &row))?;
            let from = k.reshape(from, "from", 0, &[&[(self.run, 1)]])?;
            return k.add(Header::new(Kind::Move, to, from, one).async_());
        }
        let from = self.places.iter().map(|place| Operand::at(self.x, self.seen(place, &row)));
        let from: Vec<Operand> = from.collect();
        if let [from] = &from[..] {
            return k
                .add(Header::new(Kind::Move, Operand::at(to, [0]), from.clone(), one).async_());
        }
        // No copy is as narrow as these elements: they go through registers.
        let words = vector(k, "words", self.run, self.side.scalar)?;
        for (i, from) in from.into_iter().enumerate() {
            let word = Operand::at(words, [i as i64]);
            k.spec(Kind::Init(Number(0.0)), word.clone(), (), one)?;
            k.if_(Test::Inside(from.clone()), |k| k.spec(Kind::Move, word, from, one))?;
        }
        copy(k, to, words, self.run, true, one)
    }

    /// The coordinates in x of what a pixel sees in a row: of the row's element of the window, in its
    /// channel. They may lie outside.
    fn seen(&self, place: &Place, row: &Expr) -> Vec<Expr> {
        let taps = Expr::from(self.convolution.taps());
        let mut seen = vec![place.image.clone(), self.group.clone(), row.div(&taps)];
        if self.flat {
            seen.extend(place.at.clone());
            return seen;
        }
        seen.extend(self.convolution.seen(&place.at, &row.rem(&taps)));
        seen
    }
}

impl Place {
    /// The place with this number among those of all images, of these sizes.
    pub(super) fn of(k: &mut Builder, number: &Expr, sizes: &[Expr]) -> Result<Place> {
        let all = product(sizes);
        let image = k.let_("image", number.div(&all))?.into();
        let mut rest = Expr::from(k.let_("pixel", number.rem(&all))?);
        let mut at = Vec::new();
        for size in sizes.iter().skip(1).rev() {
            at.push(k.let_("at", rest.rem(size))?.into());
            rest = k.let_("rest", rest.div(size))?.into();
        }
        at.push(rest);
        at.reverse();
        Ok(Place { image, at })
    }
}
