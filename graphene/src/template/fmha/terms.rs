//! What a mask does to scores: its elements as terms of single precision, each of which is added to
//! a score, or says whether the score stays.
//!
//! Of a mask of one element a key, all queries of a block have the same terms. On Hopper a warp beside
//! the one that brings keys makes them, once for all, and leaves them in the keys' stage; before, each
//! thread does for its own columns, whose elements it asks for before the products.

use super::context::Context;
use super::scores::{Scorer, Spot};
use super::tiles::Place;
use super::{Fmha, GROUP, Mask, WARP};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr, Var};
use crate::kernel::{Binary, Kind, Number, Operand, Ring, TensorId, Test};
use crate::layout::{Layout, Tiler};
use crate::schedule::{Units, produce};
use crate::tensor::{Memory, Scalar, View};

/// The mask of a tile of keys that has one element a key.
pub(super) enum Terms {
    /// `[eights, 2]`: the own lane's columns, as they are in memory.
    Words(Scalar, TensorId),
    /// `[keys]`: terms in shared memory.
    Made(TensorId),
}

/// Of an element that is added, this is added to log₂ of a weight as well: nothing, but for infinity.
const LEAST: f64 = f32::MIN_POSITIVE as f64;

impl Fmha {
    /// Whether the scores of forbidden keys become a finite number.
    pub(super) fn fills(&self) -> bool {
        let selects = matches!(self.mask, Mask::PerKey(Scalar::U8) | Mask::Dense(Scalar::U8));
        selects && self.fill.0.is_finite()
    }

    /// Whether scores may be added to what fills them rather than become it: less than half of its last place, they are lost in
    /// the sum. Scores of finite queries and keys are: sums of at most 256 products of numbers below 2¹⁶.
    pub(super) fn sinks(&self) -> bool {
        let small = self.scalar == Scalar::F16 && self.scale.0.abs() <= 1e6;
        self.fills() && small && matches!(self.mask, Mask::PerKey(_)) && self.fill.0 <= -1e30
    }

    /// What fills scores, in their units: it stays finite, whatever they count in.
    pub(super) fn filling(&self) -> f64 {
        let unit = if self.units() == Units::Natural { 1.0 } else { std::f64::consts::LOG2_E };
        (self.fill.0 * unit).clamp(f32::MIN.into(), f32::MAX.into())
    }
}

impl Scorer<'_> {
    /// The elements of the own lane's columns, of a mask that has one a key: they can be had before
    /// the scores are there.
    pub(super) fn fetch(&self, k: &mut Builder, spot: &Spot<'_>) -> Result<Option<Terms>> {
        let Mask::PerKey(scalar) = self.fmha.mask else { return Ok(None) };
        let view = View::buffer(&[Layout::of(self.fmha.keys / 8, 2), Layout::of(2, 1)]);
        let words = k.allocate("words", view, scalar, Memory::Registers, None)?;
        k.for_("j", 0..self.fmha.keys / 8, 1, true, |k, j| {
            k.for_("p", 0..2, 1, true, |k, p| {
                let key = self.key(spot, j, p);
                self.load(k, [&spot.place.batch, &key], Operand::at(words, [j, p]))
            })
        })?;
        Ok(Some(Terms::Words(scalar, words)))
    }

    /// The terms of a pair of columns of the own lane.
    pub(super) fn pair(
        &self,
        k: &mut Builder,
        terms: &Terms,
        spot: &Spot<'_>,
        j: &Var,
    ) -> Result<TensorId> {
        let view = View::buffer(&[Layout::of(2, 1)]);
        let pair = k.allocate("terms", view, Scalar::F32, Memory::Registers, None)?;
        match *terms {
            Terms::Words(scalar, words) => k.for_("p", 0..2, 1, true, |k, p| {
                let term = self.term(k, scalar, Operand::at(words, [j, p]))?;
                k.spec(Kind::Move, Operand::at(pair, [p]), term, self.one)
            })?,
            Terms::Made(all) => {
                let pairs = k.tile(all, "pairs", &[Tiler::Size(2)])?;
                let from = k.index(pairs, "from", [Expr::from(j) * 4 + &spot.column])?;
                k.spec(Kind::Move, pair, from, self.one)?;
            }
        }
        Ok(pair)
    }

    /// An element of the mask; beyond its edge one that forbids the key, or, where there is an element
    /// for each score, adds nothing.
    pub(super) fn load<const N: usize>(
        &self,
        k: &mut Builder,
        at: [&Expr; N],
        to: Operand,
    ) -> Result<()> {
        let mask = self.mask.expect("a kernel whose scores are masked has a mask");
        let from = k.index(mask, "element", at)?;
        let beyond = match self.fmha.mask {
            Mask::PerKey(scalar) if scalar != Scalar::U8 => f64::NEG_INFINITY,
            Mask::None | Mask::PerKey(_) | Mask::Dense(_) => 0.0,
        };
        k.spec(Kind::Init(Number(beyond)), to.clone(), (), self.one)?;
        k.if_(Test::Inside(from.into()), |k| k.spec(Kind::Move, to, from, self.one))
    }

    /// What an element of the mask adds to a score; or, where scores are filled and that is not the same, whether it is not 0.
    pub(super) fn term(&self, k: &mut Builder, scalar: Scalar, word: Operand) -> Result<Operand> {
        let term = self.register(k, "term", Scalar::F32)?;
        k.spec(Kind::Move, term, word, self.one)?;
        if scalar == Scalar::U8 {
            if !self.fmha.fills() || self.fmha.sinks() {
                let never = if self.fmha.fills() { self.fmha.filling() } else { f64::NEG_INFINITY };
                let [nothing, never] = [self.constant(k, 0.0)?, self.constant(k, never)?];
                k.spec(Kind::Select, term, [term, nothing, never], self.one)?;
            }
        } else if self.fmha.units() == Units::Powers {
            return self.of_power(k, scalar, term);
        }
        Ok(term.into())
    }

    /// A number that is added to a score, as one that is added to log₂ of a weight. A finite one stays
    /// finite: it becomes the largest that there is, or the least, if its multiple is none.
    fn of_power(&self, k: &mut Builder, scalar: Scalar, term: TensorId) -> Result<Operand> {
        let unit = self.constant(k, std::f64::consts::LOG2_E)?;
        let power = self.register(k, "power", Scalar::F32)?;
        k.spec(Kind::Binary(Binary::Mul), power, [term, unit], self.one)?;
        if scalar == Scalar::F16 {
            return Ok(power.into());
        }
        for (op, bound) in [(Binary::Max, f32::MIN), (Binary::Min, f32::MAX)] {
            let bound = self.constant(k, bound.into())?;
            k.spec(Kind::Binary(op), power, [power, bound], self.one)?;
        }
        let least = self.constant(k, LEAST)?;
        k.spec(Kind::MATMUL_ADD, power, [term, least], self.one)?;
        Ok(power.into())
    }
}

impl Context<'_> {
    /// What the warp does that follows the one which brings keys: with each tile of them, its terms.
    pub(super) fn produce_terms(&self, k: &mut Builder) -> Result<()> {
        let (Mask::PerKey(scalar), Some(terms)) = (self.fmha.mask, self.terms) else {
            return Ok(());
        };
        let first = GROUP * self.fmha.consumers + WARP;
        k.role(self.block, first..first + WARP, |k| {
            let [thread] = k.indices(self.block, ["masker"])?;
            let lane = Expr::from(thread).rem(&Expr::from(WARP));
            let ring = k.ring("filling_m", self.fmha.stages)?;
            self.each_tile(k, |k, place| {
                k.for_("step", Expr::from(0)..place.steps.clone(), 1, false, |k, step| {
                    let tile = k.let_("tile", place.tile(step))?.into();
                    self.fill_terms(k, &ring, place, &tile, (scalar, terms), &lane)
                })
            })
        })
    }

    /// All elements are asked for before the first is used.
    fn fill_terms(
        &self,
        k: &mut Builder,
        ring: &Ring,
        place: &Place,
        tile: &Expr,
        (scalar, terms): (Scalar, TensorId),
        lane: &Expr,
    ) -> Result<()> {
        let (keys, scorer) = (self.fmha.keys, self.scorer());
        let count = (keys + WARP - 1) / WARP;
        produce(k, &self.pipelines[1], ring, self.one, |k, full, stage| {
            let view = View::buffer(&[Layout::of(count, 1)]);
            let words = k.allocate("words", view, scalar, Memory::Registers, None)?;
            k.for_("i", 0..count, 1, true, |k, i| {
                let key = tile.clone() * keys + Expr::from(i) * WARP + lane;
                scorer.load(k, [&place.batch, &key], Operand::at(words, [i]))
            })?;
            let to = k.index(terms, "stage", [stage])?;
            k.for_("i", 0..count, 1, true, |k, i| {
                let at = Expr::from(i) * WARP + lane;
                let body = |k: &mut Builder| {
                    let term = scorer.term(k, scalar, Operand::at(words, [i]))?;
                    k.spec(Kind::Move, Operand::at(to, [at.clone()]), term, self.one)
                };
                if keys % WARP == 0 { body(k) } else { k.if_(Cond::less(at.clone(), keys), body) }
            })?;
            k.spec(Kind::Arrive(None), full, (), self.one)
        })
    }
}
