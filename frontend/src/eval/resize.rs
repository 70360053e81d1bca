//! Resizing by interpolation, one axis after the other, by ONNX's formulas.

use super::error::EvalError;
use super::number::{
    bits, filled, from_bits, from_integers, from_reals, reals, reserve, with_bits,
};
use super::walk::{split_at_axis, strides, walk_indices};
use crate::op::{CoordinateTransform, NearestMode, ResizeAttrs, ResizeMode};
use crate::tensor::Tensor;

/// The smallest scale whose filter, which is as wide as its inverse, is written out.
const SMALLEST_SCALE: f64 = 1.0 / 65536.0;

/// Where one place of the result takes its value from. Elements past the ends are those at the ends; where there are no
/// weights, the place lies outside of the region of interest.
#[derive(Clone, PartialEq, Debug)]
pub struct Taps {
    /// The first element along the axis.
    pub first: i64,
    /// The weights from it on.
    pub weights: Vec<f64>,
}

/// [`crate::op::Op::Resize`] to these sizes.
pub(super) fn resize(
    x: &Tensor,
    sizes: &[usize],
    attrs: &ResizeAttrs,
) -> Result<Tensor, EvalError> {
    let rank = x.shape().len();
    if sizes.len() != rank || (!attrs.scales.is_empty() && attrs.scales.len() != rank) {
        return Err(EvalError::shape("a resize has an entry an axis", &[x.shape(), sizes]));
    }
    if x.is_empty() && !sizes.contains(&0) {
        return Err(EvalError::shape("nothing to interpolate", &[x.shape(), sizes]));
    }
    if sizes.contains(&0) {
        return Ok(Tensor::zeros(x.dtype(), sizes.to_vec())?);
    }
    if let ResizeMode::Nearest(mode) = attrs.mode {
        let crops = attrs.transform == CoordinateTransform::CropAndResize;
        if !crops {
            return nearest(x, sizes, attrs, mode);
        }
    }
    let (mut shape, mut values) = (x.shape().to_vec(), reals(x)?);
    for (axis, taps) in resize_taps(x.shape(), sizes, attrs)?.iter().enumerate() {
        if let Some(taps) = taps {
            let extrapolation = f64::from(attrs.extrapolation);
            (shape, values) = interpolate(&shape, &values, axis, extrapolation, taps)?;
        }
    }
    if x.dtype().is_float() {
        return from_reals(x.dtype(), shape, &values, true);
    }
    let (low, high) = <i128 as super::number::Number>::limits(x.dtype());
    let rounded: Vec<_> =
        values.iter().map(|x| (x.round_ties_even() as i128).clamp(low, high)).collect();
    from_integers(x.dtype(), shape, &rounded)
}

/// Moves bits, so that every element type can be resized.
fn nearest(
    x: &Tensor,
    sizes: &[usize],
    attrs: &ResizeAttrs,
    mode: NearestMode,
) -> Result<Tensor, EvalError> {
    let from = strides(x.shape());
    let mut sources = nearest_sources(x.shape(), sizes, attrs, mode)?;
    for (places, &stride) in sources.iter_mut().zip(&from) {
        places.iter_mut().for_each(|place| *place *= stride as usize);
    }
    with_bits!(x.dtype(), B => {
        let elements = bits::<B>(x);
        let mut values = reserve(sizes)?;
        walk_indices(sizes, |index| {
            let offset: usize = index.iter().zip(&sources).map(|(&i, places)| places[i]).sum();
            values.push(elements[offset]);
        });
        from_bits(x.dtype(), sizes.to_vec(), values)
    })
}

/// For every axis of [`crate::op::Op::Resize`] to nearest elements, where each place of the result comes from. Neither
/// shape has a size of 0.
///
/// # Errors
/// [`EvalError::Attribute`] for scales that are none.
pub fn nearest_sources(
    from: &[usize],
    to: &[usize],
    attrs: &ResizeAttrs,
    mode: NearestMode,
) -> Result<Vec<Vec<usize>>, EvalError> {
    let mut sources = Vec::new();
    for (axis, (&size, &target)) in from.iter().zip(to).enumerate() {
        let coordinates = Coordinates::new(size, target, axis, attrs)?;
        let mut places = reserve(&[target])?;
        places.extend((0..target).map(|place| match coordinates.are_identity(size, target) {
            true => place,
            false => nearest_index(coordinates.source(place), size, mode),
        }));
        sources.push(places);
    }
    Ok(sources)
}

/// For every axis of [`crate::op::Op::Resize`] by interpolation, where each place of the result takes its value from: one
/// axis after the other, in their order. None for an axis that stays as it is. Neither shape has a size of 0.
///
/// # Errors
/// [`EvalError::Attribute`] for scales that are none.
pub fn resize_taps(
    from: &[usize],
    to: &[usize],
    attrs: &ResizeAttrs,
) -> Result<Vec<Option<Vec<Taps>>>, EvalError> {
    let mut all = Vec::new();
    for (axis, (&size, &target)) in from.iter().zip(to).enumerate() {
        let coordinates = Coordinates::new(size, target, axis, attrs)?;
        if coordinates.are_identity(size, target) {
            all.push(None);
            continue;
        }
        let mut taps = reserve(&[target])?;
        taps.extend((0..target).map(|place| coordinates.taps(place, attrs)));
        all.push(Some(taps));
    }
    Ok(all)
}

fn nearest_index(source: f64, size: usize, mode: NearestMode) -> usize {
    let rounded = match mode {
        NearestMode::RoundPreferFloor => (source - 0.5).ceil(),
        NearestMode::RoundPreferCeil => (source + 0.5).floor(),
        NearestMode::Floor => source.floor(),
        NearestMode::Ceil => source.ceil(),
    };
    rounded.clamp(0.0, (size - 1) as f64) as usize
}

/// How places of the result map to the input along one axis.
struct Coordinates {
    transform: CoordinateTransform,
    scale: f64,
    input: f64,
    output: f64,
    roi: (f64, f64),
}

impl Coordinates {
    fn new(
        size: usize,
        target: usize,
        axis: usize,
        attrs: &ResizeAttrs,
    ) -> Result<Self, EvalError> {
        let (input, output) = (size as f64, target as f64);
        let given = attrs.scales.get(axis).copied().flatten().map(f64::from);
        let scale = given.unwrap_or(output / input);
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(EvalError::Attribute("a resize's scales are above zero"));
        }
        if attrs.antialias && scale < SMALLEST_SCALE {
            return Err(EvalError::Attribute("the filter is larger than any real one"));
        }
        let roi = attrs.roi.get(axis).map_or((0.0, 1.0), |&(a, b)| (f64::from(a), f64::from(b)));
        Ok(Self { transform: attrs.transform, scale, input, output, roi })
    }

    fn are_identity(&self, size: usize, target: usize) -> bool {
        let whole = self.transform != CoordinateTransform::CropAndResize || self.roi == (0.0, 1.0);
        size == target && self.scale == 1.0 && whole
    }

    /// The coordinate in the input of a place of the result.
    fn source(&self, place: usize) -> f64 {
        let (place, scale, input) = (place as f64, self.scale, self.input);
        let output = scale * input;
        match self.transform {
            CoordinateTransform::HalfPixel => (place + 0.5) / scale - 0.5,
            CoordinateTransform::HalfPixelSymmetric => {
                let offset = input / 2.0 * (1.0 - self.output / output);
                offset + (place + 0.5) / scale - 0.5
            }
            CoordinateTransform::PytorchHalfPixel if output == 1.0 => -0.5,
            CoordinateTransform::PytorchHalfPixel => (place + 0.5) / scale - 0.5,
            CoordinateTransform::AlignCorners if output == 1.0 => 0.0,
            CoordinateTransform::AlignCorners => place * (input - 1.0) / (output - 1.0),
            CoordinateTransform::Asymmetric => place / scale,
            CoordinateTransform::TfHalfPixelForNn => (place + 0.5) / scale,
            CoordinateTransform::CropAndResize => {
                let (start, end) = self.roi;
                let inside = match output == 1.0 {
                    true => (end - start) * (input - 1.0) / 2.0,
                    false => place * (end - start) * (input - 1.0) / (output - 1.0),
                };
                inside + start * (input - 1.0)
            }
        }
    }

    /// No weights where the place lies outside of the region of interest.
    fn taps(&self, place: usize, attrs: &ResizeAttrs) -> Taps {
        let source = self.source(place);
        let crops = self.transform == CoordinateTransform::CropAndResize;
        if crops && !(0.0..=self.input - 1.0).contains(&source) {
            return Taps { first: 0, weights: Vec::new() };
        }
        // Far outside, all elements are the one at the end.
        let source = source.clamp(-1e15, 1e15);
        let shrink = if attrs.antialias { self.scale.min(1.0) } else { 1.0 };
        let mut taps = match attrs.mode {
            ResizeMode::Nearest(mode) => {
                let index = nearest_index(source, self.input as usize, mode);
                return Taps { first: index as i64, weights: vec![1.0] };
            }
            ResizeMode::Linear => {
                window(source, 1.0 / shrink, |d| (1.0 - (d * shrink).abs()).max(0.0))
            }
            ResizeMode::Cubic { a, .. } => {
                window(source, 2.0 / shrink, |d| cubic(d * shrink, f64::from(a)))
            }
        };
        let outside = |i: usize| !(0.0..self.input).contains(&((taps.first + i as i64) as f64));
        let excludes = matches!(attrs.mode, ResizeMode::Cubic { exclude_outside: true, .. });
        let weights = taps.weights.iter().enumerate();
        taps.weights =
            weights.map(|(i, &w)| if excludes && outside(i) { 0.0 } else { w }).collect();
        let sum: f64 = taps.weights.iter().sum();
        let rescale = (excludes || attrs.antialias) && sum != 0.0;
        if rescale {
            taps.weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        taps
    }
}

/// The weights of the elements nearer than `radius` to `source`.
fn window(source: f64, radius: f64, weight: impl Fn(f64) -> f64) -> Taps {
    let first = (source - radius).floor() as i64 + 1;
    let end = (source + radius).ceil() as i64;
    let weights = (first..end.max(first)).map(|i| weight(i as f64 - source)).collect();
    Taps { first, weights }
}

/// The cubic convolution kernel of Keys with coefficient a.
fn cubic(distance: f64, a: f64) -> f64 {
    let x = distance.abs();
    if x <= 1.0 {
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    }
    if x < 2.0 {
        return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    }
    0.0
}

/// The tensor with one axis replaced by weighted sums along it.
fn interpolate(
    shape: &[usize],
    values: &[f64],
    axis: usize,
    extrapolation: f64,
    taps: &[Taps],
) -> Result<(Vec<usize>, Vec<f64>), EvalError> {
    let (mut to, target) = (shape.to_vec(), taps.len());
    to[axis] = target;
    let mut result = filled(&to, 0.0)?;
    let (outer, size, inner) = split_at_axis(shape, axis);
    let last = size as i64 - 1;
    for (place, taps) in taps.iter().enumerate() {
        for block in 0..outer {
            let row = &mut result[(block * target + place) * inner..][..inner];
            if taps.weights.is_empty() {
                row.fill(extrapolation);
            }
            for (i, &weight) in taps.weights.iter().enumerate() {
                let source = (taps.first + i as i64).clamp(0, last) as usize;
                let from = &values[(block * size + source) * inner..][..inner];
                for (sum, &value) in row.iter_mut().zip(from) {
                    *sum += weight * value;
                }
            }
        }
    }
    Ok((to, result))
}
