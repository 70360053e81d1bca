//! Interpolation.

use super::helpers::Outputs;
use super::{Row, row};
use crate::dim::Dim;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{CoordinateTransform, NearestMode, Op, ResizeAttrs, ResizeMode};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("Resize", 10, |c| if c.opset() < 11 { resize_10(c) } else { resize(c) }),
    row("Upsample", 7, upsample),
];

/// Sizes are at most this many times the input's: beyond, a scale is nonsense.
const MOST: f64 = 1e9;

fn resize(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let rank = c.rank(x);
    let axes = axes(c, rank)?;
    let mode = mode(c)?;
    let transform = transform(c)?;
    let mut attrs = ResizeAttrs {
        sizes: c.shape(x),
        scales: vec![Some(1.0); rank],
        mode,
        transform,
        roi: vec![(0.0, 1.0); rank],
        extrapolation: c.float_or("extrapolation_value", 0.0),
        antialias: c.int_or("antialias", 0) != 0,
    };
    if let (CoordinateTransform::CropAndResize, Some(roi)) = (transform, c.optional(1)) {
        let roi = c.known_floats(roi)?;
        if roi.len() != 2 * axes.len() {
            return Err(c.invalid("`roi` must have two numbers an axis"));
        }
        for (i, &axis) in axes.iter().enumerate() {
            attrs.roi[axis] = (roi[i] as f32, roi[axes.len() + i] as f32);
        }
    }
    let empty = |c: &Context<'_, '_>, v: &ValueId| c.ty(*v).shape.first().is_none_or(|n| *n == 0);
    let scales = c.optional(2).filter(|v| !empty(c, v));
    let sizes = c.optional(3).filter(|v| !empty(c, v));
    match (scales, sizes) {
        (Some(scales), None) => {
            let scales = c.known_floats(scales)?;
            by_scales(c, &mut attrs, &axes, &scales)?;
        }
        (None, Some(sizes)) => {
            let sizes = c.dims(sizes)?;
            by_sizes(c, &mut attrs, &axes, &sizes)?;
        }
        _ => return Err(c.invalid("one of `scales` and `sizes` must be given")),
    }
    Ok(vec![c.add(Op::Resize(Box::new(attrs)), &[x])?])
}

/// The axes that scales, sizes and the region of interest speak of.
fn axes(c: &Context<'_, '_>, rank: usize) -> Result<Vec<usize>, OpError> {
    let Some(given) = c.ints("axes") else { return Ok((0..rank).collect()) };
    let axes: Result<Vec<usize>, OpError> = given.iter().map(|&axis| c.axis(rank, axis)).collect();
    let axes = axes?;
    let unique = axes.iter().enumerate().all(|(i, axis)| !axes[..i].contains(axis));
    if unique { Ok(axes) } else { Err(c.invalid("`axes` names an axis twice")) }
}

fn mode(c: &Context<'_, '_>) -> Result<ResizeMode, OpError> {
    Ok(match c.string("mode").unwrap_or("nearest") {
        "nearest" => ResizeMode::Nearest(match c.string("nearest_mode") {
            None | Some("round_prefer_floor") => NearestMode::RoundPreferFloor,
            Some("round_prefer_ceil") => NearestMode::RoundPreferCeil,
            Some("floor") => NearestMode::Floor,
            Some("ceil") => NearestMode::Ceil,
            Some(_) => return Err(c.invalid("`nearest_mode` is none of the known ones")),
        }),
        "linear" | "bilinear" => ResizeMode::Linear,
        "cubic" => ResizeMode::Cubic {
            a: c.float_or("cubic_coeff_a", -0.75),
            exclude_outside: c.int_or("exclude_outside", 0) != 0,
        },
        _ => return Err(c.invalid("`mode` is none of the known ones")),
    })
}

fn transform(c: &Context<'_, '_>) -> Result<CoordinateTransform, OpError> {
    Ok(match c.string("coordinate_transformation_mode") {
        None | Some("half_pixel") => CoordinateTransform::HalfPixel,
        Some("half_pixel_symmetric") => CoordinateTransform::HalfPixelSymmetric,
        Some("pytorch_half_pixel") => CoordinateTransform::PytorchHalfPixel,
        Some("align_corners") => CoordinateTransform::AlignCorners,
        Some("asymmetric") => CoordinateTransform::Asymmetric,
        Some("tf_half_pixel_for_nn") => CoordinateTransform::TfHalfPixelForNn,
        Some("tf_crop_and_resize") => CoordinateTransform::CropAndResize,
        Some(_) => return Err(c.invalid("the coordinate transformation is none of the known ones")),
    })
}

/// Sizes are the floors of the scaled ones; of the region of interest where there is one.
fn by_scales(
    c: &Context<'_, '_>,
    attrs: &mut ResizeAttrs,
    axes: &[usize],
    scales: &[f64],
) -> Result<(), OpError> {
    if scales.len() != axes.len() {
        return Err(c.invalid("`scales` must have one number an axis"));
    }
    for (&axis, &scale) in axes.iter().zip(scales) {
        let extent = match attrs.transform {
            CoordinateTransform::CropAndResize => {
                f64::from(attrs.roi[axis].1) - f64::from(attrs.roi[axis].0)
            }
            _ => 1.0,
        };
        attrs.sizes[axis] = scaled(c, &attrs.sizes[axis], scale * extent)?;
        attrs.scales[axis] = Some(scale as f32);
    }
    Ok(())
}

/// `⌊size · scale⌋`; a symbol takes the scale as an exact fraction, which every float is.
fn scaled(c: &Context<'_, '_>, size: &Dim, scale: f64) -> Result<Dim, OpError> {
    if !(0.0..MOST).contains(&scale) {
        return Err(c.invalid("a scale must be positive and finite"));
    }
    if let Some(known) = size.known() {
        return Ok(Dim::from((known as f64 * scale).floor() as i64));
    }
    let (mut numerator, mut denominator) = (scale, 1_i64);
    while numerator.fract() != 0.0 {
        numerator *= 2.0;
        denominator = denominator
            .checked_mul(2)
            .filter(|&d| d < 1 << 24)
            .ok_or_else(|| c.unknown_dim(size))?;
    }
    Ok((size * &Dim::from(numerator as i64)).floor_div(&Dim::from(denominator))?)
}

/// Sizes as given, or the largest (smallest) of the same proportions within (around) them.
fn by_sizes(
    c: &Context<'_, '_>,
    attrs: &mut ResizeAttrs,
    axes: &[usize],
    sizes: &[Dim],
) -> Result<(), OpError> {
    if sizes.len() != axes.len() {
        return Err(c.invalid("`sizes` must have one number an axis"));
    }
    let policy = c.string("keep_aspect_ratio_policy").unwrap_or("stretch");
    if policy == "stretch" {
        for (&axis, size) in axes.iter().zip(sizes) {
            attrs.scales[axis] = if *size == attrs.sizes[axis] { Some(1.0) } else { None };
            attrs.sizes[axis] = size.clone();
        }
        return Ok(());
    }
    let known = |dim: &Dim| dim.known().ok_or_else(|| c.unknown_dim(dim));
    let mut scale: Option<f64> = None;
    for (&axis, size) in axes.iter().zip(sizes) {
        let ratio = known(size)? as f64 / known(&attrs.sizes[axis])? as f64;
        scale = Some(match (scale, policy) {
            (None, _) => ratio,
            (Some(scale), "not_larger") => scale.min(ratio),
            (Some(scale), "not_smaller") => scale.max(ratio),
            (Some(_), _) => return Err(c.invalid("`keep_aspect_ratio_policy` is not known")),
        });
    }
    let scale = scale.unwrap_or(1.0);
    for &axis in axes {
        let size = known(&attrs.sizes[axis])? as f64 * scale;
        attrs.sizes[axis] = Dim::from((size + 0.5).floor() as i64);
        attrs.scales[axis] = Some(scale as f32);
    }
    Ok(())
}

/// Opset 10: scales are the second input, coordinates are not moved.
fn resize_10(c: &mut Context<'_, '_>) -> Outputs {
    let (x, scales) = (c.input(0)?, c.input(1)?);
    let scales = c.known_floats(scales)?;
    plain(c, x, &scales)
}

/// Scales are an attribute at opset 7, an input at 9.
fn upsample(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let scales = match (c.floats("scales"), c.optional(1)) {
        (Some(scales), _) => scales.iter().map(|&scale| f64::from(scale)).collect(),
        (None, Some(scales)) => c.known_floats(scales)?,
        (None, None) => return Err(c.invalid("`scales` is missing")),
    };
    plain(c, x, &scales)
}

/// The interpolation of the first opsets: `asymmetric`, the nearest element being the one before when
/// growing and the one after when shrinking.
fn plain(c: &mut Context<'_, '_>, x: ValueId, scales: &[f64]) -> Outputs {
    let rank = c.rank(x);
    let mode = match c.string("mode") {
        None | Some("nearest") if scales.iter().all(|&scale| scale >= 1.0) => {
            ResizeMode::Nearest(NearestMode::Floor)
        }
        None | Some("nearest") if scales.iter().all(|&scale| scale <= 1.0) => {
            ResizeMode::Nearest(NearestMode::Ceil)
        }
        None | Some("nearest") => {
            return Err(c.unsupported("growing one axis while shrinking another"));
        }
        Some("linear" | "bilinear") => ResizeMode::Linear,
        Some(_) => return Err(c.invalid("`mode` is none of the known ones")),
    };
    let mut attrs = ResizeAttrs {
        sizes: c.shape(x),
        scales: vec![Some(1.0); rank],
        mode,
        transform: CoordinateTransform::Asymmetric,
        roi: vec![(0.0, 1.0); rank],
        extrapolation: 0.0,
        antialias: false,
    };
    let axes: Vec<usize> = (0..rank).collect();
    by_scales(c, &mut attrs, &axes, scales)?;
    Ok(vec![c.add(Op::Resize(Box::new(attrs)), &[x])?])
}
