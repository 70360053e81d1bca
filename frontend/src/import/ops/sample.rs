//! Sampling of images at places that are computed.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Op, Unary};

/// How a value between elements is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Interpolation {
    Nearest,
    Linear,
    Cubic,
}

/// What stands outside of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// An image that is sampled.
pub(super) struct Sampler {
    /// `[n, c, elements]`
    pub(super) flat: ValueId,
    /// Sizes of the spatial dims.
    pub(super) sizes: Vec<Dim>,
    pub(super) interpolation: Interpolation,
    pub(super) outside: Outside,
    /// The outermost coordinates are those of the outermost elements (else: half an element further).
    pub(super) corners: bool,
}

pub(super) fn product(dims: &[Dim]) -> Dim {
    dims.iter().product::<Dim>()
}

/// A size as a number of type `dtype`, plus an offset.
pub(super) fn measure(
    c: &mut Context<'_, '_>,
    size: &Dim,
    offset: f64,
    dtype: DType,
) -> Result<ValueId, OpError> {
    let size = c.size(size.clone())?;
    let size = c.cast(size, dtype)?;
    c.shifted(size, offset)
}

impl Sampler {
    /// The image at coordinates, one value `[n, 1, o]` a spatial dim: `[n, c, o]`.
    pub(super) fn at(
        &self,
        c: &mut Context<'_, '_>,
        coordinates: &[ValueId],
    ) -> Result<ValueId, OpError> {
        let mut taps = Vec::new();
        for (axis, &coordinate) in coordinates.iter().enumerate() {
            taps.push(self.axis_taps(c, axis, coordinate)?);
        }
        let count: usize = taps.iter().map(Vec::len).product();
        let mut sum = None;
        for tap in 0..count {
            let term = self.tap(c, &taps, tap)?;
            sum = Some(match sum {
                Some(sum) => c.plus(sum, term)?,
                None => term,
            });
        }
        sum.ok_or_else(|| c.invalid("an image needs spatial dims"))
    }

    /// The weighted elements of one combination of neighbours along all axes.
    fn tap(
        &self,
        c: &mut Context<'_, '_>,
        taps: &[Vec<Tap>],
        mut which: usize,
    ) -> Result<ValueId, OpError> {
        let mut place: Option<ValueId> = None;
        let mut weight: Option<ValueId> = None;
        for (axis, choices) in taps.iter().enumerate() {
            let tap = &choices[which % choices.len()];
            which /= choices.len();
            place = Some(match place {
                Some(place) => {
                    let size = c.size(self.sizes[axis].clone())?;
                    let row = c.times(place, size)?;
                    c.plus(row, tap.index)?
                }
                None => tap.index,
            });
            weight = match (weight, tap.weight) {
                (Some(a), Some(b)) => Some(c.times(a, b)?),
                (a, b) => a.or(b),
            };
        }
        let place = place.ok_or_else(|| c.invalid("an image needs spatial dims"))?;
        let mut shape = c.shape(place);
        shape[1] = c.shape(self.flat)[1].clone();
        let place = c.expand(place, shape)?;
        let values = c.add(Op::GatherElements { axis: 2 }, &[self.flat, place])?;
        match weight {
            Some(weight) => {
                let weight = c.cast_to(weight, c.dtype(values))?;
                c.times(values, weight)
            }
            None => Ok(values),
        }
    }

    /// The neighbours of a coordinate along an axis.
    fn axis_taps(
        &self,
        c: &mut Context<'_, '_>,
        axis: usize,
        coordinate: ValueId,
    ) -> Result<Vec<Tap>, OpError> {
        if self.interpolation == Interpolation::Nearest {
            let nearest = c.unary(Unary::Round, coordinate)?;
            let nearest = self.inside(c, axis, nearest)?;
            return Ok(vec![self.element(c, axis, nearest, None)?]);
        }
        let coordinate = self.inside(c, axis, coordinate)?;
        let base = c.unary(Unary::Floor, coordinate)?;
        let t = c.minus(coordinate, base)?;
        let one = c.scalar_like(t, 1.0)?;
        let rest = c.minus(one, t)?;
        let weights = match self.interpolation {
            Interpolation::Nearest | Interpolation::Linear => vec![(0.0, rest), (1.0, t)],
            Interpolation::Cubic => {
                vec![
                    (-1.0, cubic_outer(c, t)?),
                    (0.0, cubic_inner(c, t)?),
                    (1.0, cubic_inner(c, rest)?),
                    (2.0, cubic_outer(c, rest)?),
                ]
            }
        };
        let mut taps = Vec::new();
        for (offset, weight) in weights {
            let index = c.shifted(base, offset)?;
            taps.push(self.element(c, axis, index, Some(weight))?);
        }
        Ok(taps)
    }

    /// A coordinate brought inside, unless what is outside is zero.
    fn inside(
        &self,
        c: &mut Context<'_, '_>,
        axis: usize,
        coordinate: ValueId,
    ) -> Result<ValueId, OpError> {
        match self.outside {
            Outside::Zeros => Ok(coordinate),
            Outside::Border => self.clamped(c, axis, coordinate),
            Outside::Reflection => self.reflected(c, axis, coordinate),
        }
    }

    fn clamped(
        &self,
        c: &mut Context<'_, '_>,
        axis: usize,
        coordinate: ValueId,
    ) -> Result<ValueId, OpError> {
        let zero = c.scalar_like(coordinate, 0.0)?;
        let last = measure(c, &self.sizes[axis], -1.0, c.dtype(coordinate))?;
        let above = c.binary(Binary::Max, coordinate, zero)?;
        c.binary(Binary::Min, above, last)
    }

    /// Mirrored at both borders until inside: a triangle wave.
    fn reflected(
        &self,
        c: &mut Context<'_, '_>,
        axis: usize,
        coordinate: ValueId,
    ) -> Result<ValueId, OpError> {
        if self.corners && self.sizes[axis] == 1 {
            return c.scaled(coordinate, 0.0);
        }
        let low = if self.corners { 0.0 } else { -0.5 };
        let offset = if self.corners { -1.0 } else { 0.0 };
        let extent = measure(c, &self.sizes[axis], offset, c.dtype(coordinate))?;
        let from_low = c.shifted(coordinate, -low)?;
        let distance = c.unary(Unary::Abs, from_low)?;
        let period = c.scaled(extent, 2.0)?;
        let phase = c.binary(Binary::Rem, distance, period)?;
        let back = c.minus(period, phase)?;
        let turned = c.binary(Binary::Min, phase, back)?;
        c.shifted(turned, low)
    }

    /// The element at a whole coordinate, which weighs nothing where it is outside and that is zero.
    fn element(
        &self,
        c: &mut Context<'_, '_>,
        axis: usize,
        whole: ValueId,
        weight: Option<ValueId>,
    ) -> Result<Tap, OpError> {
        let mut weight = weight;
        let inside = self.inside(c, axis, whole)?;
        let safe = self.clamped(c, axis, inside)?;
        if self.outside == Outside::Zeros {
            let hit = c.binary(Binary::Equal, safe, whole)?;
            let (one, zero) = (c.scalar_like(whole, 1.0)?, c.scalar_like(whole, 0.0)?);
            weight = Some(c.select(hit, weight.unwrap_or(one), zero)?);
        }
        Ok(Tap { index: c.cast(safe, DType::I64)?, weight })
    }
}

/// An element along one axis, and what it weighs (`None`: one).
struct Tap {
    index: ValueId,
    weight: Option<ValueId>,
}

/// Coefficient of the cubic kernel that the operator fixes.
const CUBIC: f64 = -0.75;

/// The cubic kernel at a distance `t` from 0 to 1: `((a+2)·t - (a+3))·t² + 1`.
fn cubic_inner(c: &mut Context<'_, '_>, t: ValueId) -> Result<ValueId, OpError> {
    let y = c.scaled(t, CUBIC + 2.0)?;
    let y = c.shifted(y, -(CUBIC + 3.0))?;
    let y = c.times(y, t)?;
    let y = c.times(y, t)?;
    c.shifted(y, 1.0)
}

/// The cubic kernel at a distance `t + 1` from 1 to 2: `((a·x - 5a)·x + 8a)·x - 4a`.
fn cubic_outer(c: &mut Context<'_, '_>, t: ValueId) -> Result<ValueId, OpError> {
    let x = c.shifted(t, 1.0)?;
    let y = c.scaled(x, CUBIC)?;
    let y = c.shifted(y, -5.0 * CUBIC)?;
    let y = c.times(y, x)?;
    let y = c.shifted(y, 8.0 * CUBIC)?;
    let y = c.times(y, x)?;
    c.shifted(y, -4.0 * CUBIC)
}

/// `[n, c, d…] → [n, c, elements]` and the spatial sizes.
pub(super) fn flattened(
    c: &mut Context<'_, '_>,
    x: ValueId,
) -> Result<(ValueId, Vec<Dim>), OpError> {
    let shape = c.shape(x);
    if shape.len() < 3 {
        return Err(c.invalid("an image has a batch, channels and spatial dims"));
    }
    let sizes = shape[2..].to_vec();
    let flat = c.reshape(x, vec![shape[0].clone(), shape[1].clone(), product(&sizes)])?;
    Ok((flat, sizes))
}
