//! Signals: windows, discrete Fourier transforms, mel filters; and determinants.

use super::fourier::{Complex, backward};
use super::helpers::Outputs;
use super::{Row, row};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Op, PadMode, ReduceOp, Unary};
use crate::tensor::Tensor;
use std::f64::consts::TAU;

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("HannWindow", 17, |c| window(c, [0.5, -0.5, 0.0])),
    row("HammingWindow", 17, |c| window(c, [25.0 / 46.0, -21.0 / 46.0, 0.0])),
    row("BlackmanWindow", 17, |c| window(c, [0.42, -0.5, 0.08])),
    row("DFT", 17, dft),
    row("STFT", 17, stft),
    row("MelWeightMatrix", 17, mel_weight_matrix),
    row("Det", 11, |c| {
        let x = c.input(0)?;
        Ok(vec![determinant(c, x)?])
    }),
];

/// More filters and bins than any model has.
const MAX_FILTERS: i64 = 1 << 24;

/// `a + b·cos(2πn/N) + d·cos(4πn/N)`, N being the size or, where not periodic, one less.
fn window(c: &mut Context<'_, '_>, coefficients: [f64; 3]) -> Outputs {
    let size = c.input(0)?;
    let size = c.dim(size)?;
    let target = c.dtype_attr("output_datatype")?.unwrap_or(DType::F32);
    let periodic = c.int_or("periodic", 1) != 0;
    let period = if periodic { size.clone() } else { &size - &Dim::from(1) };
    let steps = c.iota(size, 0, 1)?;
    let steps = c.cast(steps, DType::F64)?;
    let period = c.size(period)?;
    let period = c.cast(period, DType::F64)?;
    let mut sum = c.scalar(DType::F64, coefficients[0])?;
    for (turns, coefficient) in [(1.0, coefficients[1]), (2.0, coefficients[2])] {
        if coefficient != 0.0 {
            let angle = c.scaled(steps, TAU * turns)?;
            let angle = c.over(angle, period)?;
            let wave = c.unary(Unary::Cos, angle)?;
            let wave = c.scaled(wave, coefficient)?;
            sum = c.plus(sum, wave)?;
        }
    }
    Ok(vec![c.cast_to(sum, target)?])
}

/// The axis is an attribute before opset 20, an input from then on.
fn dft(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let rank = c.rank(x);
    let axis = match c.optional(2) {
        Some(axis) => c.known_ints(axis)?.first().copied().unwrap_or(-2),
        None if c.opset() < 20 => c.int_or("axis", 1),
        None => -2,
    };
    let axis = c.axis(rank, axis)?;
    if rank < 2 || axis + 1 == rank {
        return Err(c.invalid("the last dim holds real and imaginary parts"));
    }
    let inverse = c.int_or("inverse", 0) != 0;
    let onesided = c.int_or("onesided", 0) != 0;
    let size = c.shape(x)[axis].clone();
    let length = match c.optional(1) {
        Some(length) => c.dim(length)?,
        None if inverse && onesided => (size - Dim::from(1)) * Dim::from(2),
        None => size,
    };
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(axis, rank - 2);
    let turned = c.permute(x, perm.clone())?;
    let y = transform(c, turned, length, inverse, onesided)?;
    Ok(vec![c.permute(y, perm)?])
}

/// The transform along the last but one axis, the last holding real and imaginary parts: two products with
/// matrices of cosines and sines, or a fast transform back from all frequencies.
fn transform(
    c: &mut Context<'_, '_>,
    x: ValueId,
    length: Dim,
    inverse: bool,
    onesided: bool,
) -> Result<ValueId, OpError> {
    let own = c.dtype(x);
    let x = c.widen(x)?;
    let rank = c.rank(x);
    let half = length.floor_div(&Dim::from(2))? + Dim::from(1);
    // A one-sided inverse reads half of the frequencies; all else reads and writes as many as there are.
    let back = inverse && onesided;
    let taken = if back { half.clone() } else { length.clone() };
    let given = if onesided && !inverse { half } else { length.clone() };
    let x = resized(c, x, rank - 2, taken.clone())?;
    let mut parts = Vec::new();
    for i in 0..c.known_size(x, rank - 1)?.min(3) {
        let part = c.narrow(x, rank - 1, Dim::from(i), Dim::from(1))?;
        parts.push(c.squeeze(part, rank - 1)?);
    }
    let (&[real] | &[real, _]) = parts.as_slice() else {
        return Err(c.invalid("the last dim must have one or two elements"));
    };
    let imaginary = parts.get(1).copied();
    let whole = inverse && !onesided;
    let fast = if whole { fast(c, real, imaginary, &length)? } else { None };
    let result = match fast {
        Some(result) => result,
        None => {
            let (mut cos, mut sin) = waves(c, taken.clone(), given, length.clone(), c.dtype(x))?;
            if back {
                let weights = mirror_weights(c, taken, &length, c.dtype(x))?;
                (cos, sin) = (c.times(weights, cos)?, c.times(weights, sin)?);
            }
            by_matrices(c, real, imaginary, [cos, sin], inverse)?
        }
    };
    let mut outputs = result[..if back { 1 } else { 2 }].to_vec();
    for output in &mut outputs {
        let shape: Vec<Dim> = c.shape(*output).into_iter().chain([Dim::from(1)]).collect();
        *output = c.reshape(*output, shape)?;
    }
    let mut y = c.concat(rank - 1, &outputs)?;
    if inverse {
        let length = c.size(length)?;
        let length = c.cast(length, c.dtype(y))?;
        y = c.over(y, length)?;
    }
    c.cast_to(y, own)
}

/// The fast transform back along the last axis. Its stages are the factors of the length, which must be known.
///
/// Only back: there ONNX's expected values are those of a fast transform in the operand's type, whose rounding shows
/// where frequencies cancel; forwards they are rounded once, and sums of a matrix product are nearer to that.
fn fast(
    c: &mut Context<'_, '_>,
    real: ValueId,
    imaginary: Option<ValueId>,
    length: &Dim,
) -> Result<Option<Complex>, OpError> {
    let known = length.known().ok_or_else(|| c.unknown_dim(length))?;
    let imaginary = match imaginary {
        Some(imaginary) => imaginary,
        None => {
            let zero = c.scalar_like(real, 0.0)?;
            c.expand(zero, c.shape(real))?
        }
    };
    backward(c, [real, imaginary], known)
}

/// The transform along the last axis as products: e^(iθ) = cos θ + i·sin θ, θ being negative forwards.
fn by_matrices(
    c: &mut Context<'_, '_>,
    real: ValueId,
    imaginary: Option<ValueId>,
    [cos, sin]: [ValueId; 2],
    inverse: bool,
) -> Result<Complex, OpError> {
    let mut result_real = c.mat_mul(real, cos)?;
    let mut result_imaginary = c.mat_mul(real, sin)?;
    if !inverse {
        result_imaginary = c.unary(Unary::Neg, result_imaginary)?;
    }
    if let Some(imaginary) = imaginary {
        let (across, along) = (c.mat_mul(imaginary, sin)?, c.mat_mul(imaginary, cos)?);
        let op = if inverse { Binary::Sub } else { Binary::Add };
        result_real = c.binary(op, result_real, across)?;
        result_imaginary = c.plus(result_imaginary, along)?;
    }
    Ok([result_real, result_imaginary])
}

/// Cosines and sines of `2π·i·k/length` for `rows × columns` of i and k.
pub(super) fn waves(
    c: &mut Context<'_, '_>,
    rows: Dim,
    columns: Dim,
    length: Dim,
    dtype: DType,
) -> Result<(ValueId, ValueId), OpError> {
    let (i, k) = (c.iota(rows, 0, 2)?, c.iota(columns, 1, 2)?);
    let turns = c.times(i, k)?;
    let length = c.size(length)?;
    // Whole turns are dropped while they are integers, so that the angle is exact.
    let turns = c.binary(Binary::Mod, turns, length)?;
    let turns = c.cast(turns, DType::F64)?;
    let length = c.cast(length, DType::F64)?;
    let turns = c.over(turns, length)?;
    let angle = c.scaled(turns, TAU)?;
    let (cos, sin) = (c.unary(Unary::Cos, angle)?, c.unary(Unary::Sin, angle)?);
    Ok((c.cast_to(cos, dtype)?, c.cast_to(sin, dtype)?))
}

/// How often each of the first frequencies occurs in a real signal: twice, but once for the first and, of an
/// even length, for the middle one. A column.
fn mirror_weights(
    c: &mut Context<'_, '_>,
    taken: Dim,
    length: &Dim,
    dtype: DType,
) -> Result<ValueId, OpError> {
    let k = c.iota(taken, 0, 2)?;
    let doubled = c.scaled(k, 2.0)?;
    let length = c.size(length.clone())?;
    let place = c.binary(Binary::Mod, doubled, length)?;
    let zero = c.scalar(DType::I64, 0.0)?;
    let alone = c.binary(Binary::Equal, place, zero)?;
    let (one, two) = (c.scalar(dtype, 1.0)?, c.scalar(dtype, 2.0)?);
    c.select(alone, one, two)
}

/// An axis cut, or lengthened by zeros, to a size.
fn resized(
    c: &mut Context<'_, '_>,
    x: ValueId,
    axis: usize,
    size: Dim,
) -> Result<ValueId, OpError> {
    let shape = c.shape(x);
    if shape[axis] == size {
        return Ok(x);
    }
    let before = vec![Dim::from(0); shape.len()];
    let mut after = before.clone();
    after[axis] = size - &shape[axis];
    c.add(Op::Pad { mode: PadMode::Constant, before, after }, &[x])
}

/// Frames of the signal, weighted by the window and transformed.
fn stft(c: &mut Context<'_, '_>) -> Outputs {
    let (mut signal, step, window) = (c.input(0)?, c.input(1)?, c.optional(2));
    if c.rank(signal) == 2 {
        // Real samples without a dim for their only part.
        signal = c.unsqueeze(signal, &[2])?;
    }
    let shape = c.shape(signal);
    let [_, samples, _] = shape.as_slice() else {
        return Err(c.invalid(format!(
            "needs a signal [batch, samples], or with a last dim of one part (real) or two (complex); got {} dims",
            shape.len()
        )));
    };
    let step = c.dim(step)?;
    let length = match (c.optional(3), window) {
        (Some(length), _) => c.dim(length)?,
        (None, Some(window)) => c.shape(window).first().cloned().unwrap_or(Dim::from(0)),
        (None, None) => return Err(c.invalid("a window or the length of a frame is required")),
    };
    if step.known().is_some_and(|step| step <= 0) {
        return Err(c.invalid("the step of frames must be positive"));
    }
    let frames = (samples - &length).floor_div(&step)? + Dim::from(1);
    let starts = c.iota(frames, 0, 2)?;
    let step = c.size(step)?;
    let starts = c.times(starts, step)?;
    let offsets = c.iota(length.clone(), 1, 2)?;
    let places = c.plus(starts, offsets)?;
    let mut framed = c.add(Op::Gather { axis: 1 }, &[signal, places])?;
    if let Some(window) = window {
        if c.shape(window) != [length.clone()] {
            return Err(c.unsupported("a window that is shorter than a frame"));
        }
        let column = c.reshape(window, vec![length.clone(), Dim::from(1)])?;
        framed = c.times(framed, column)?;
    }
    let onesided = c.int_or("onesided", 1) != 0;
    Ok(vec![transform(c, framed, length, false, onesided)?])
}

/// Triangular filters whose corners are evenly spaced in mel.
fn mel_weight_matrix(c: &mut Context<'_, '_>) -> Outputs {
    let mut sizes = [0_i64; 3];
    let mut edges = [0.0_f64; 2];
    for (i, size) in sizes.iter_mut().enumerate() {
        let value = c.input(i)?;
        *size = c.known_ints(value)?.first().copied().unwrap_or(0);
    }
    for (i, edge) in edges.iter_mut().enumerate() {
        let value = c.input(3 + i)?;
        *edge = c.known_floats(value)?.first().copied().unwrap_or(0.0);
    }
    let [filters, length, rate] = sizes;
    let bins = length / 2 + 1;
    let fits = filters > 0 && length > 0 && rate > 0;
    if !fits || filters.saturating_mul(bins) > MAX_FILTERS {
        return Err(c.invalid("the numbers of filters and bins are not reasonable"));
    }
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(edges[1]) - mel(edges[0])) / (filters + 2) as f64;
    let corner = |i: i64| {
        let mel = mel(edges[0]) + step * i as f64;
        let hertz = 700.0 * (10.0_f64.powf(mel / 2595.0) - 1.0);
        ((length + 1) as f64 * hertz / rate as f64).floor() as i64
    };
    let mut weights = vec![0.0_f64; (filters * bins) as usize];
    for filter in 0..filters {
        let [low, center, high] = [corner(filter), corner(filter + 1), corner(filter + 2)];
        let mut put = |bin: i64, weight: f64| {
            if (0..bins).contains(&bin) {
                weights[(bin * filters + filter) as usize] = weight;
            }
        };
        if low == center {
            put(center, 1.0);
        }
        for bin in low.max(0)..=center.min(bins - 1) {
            if low < center {
                put(bin, (bin - low) as f64 / (center - low) as f64);
            }
        }
        for bin in center.max(0)..high.min(bins) {
            put(bin, (high - bin) as f64 / (high - center) as f64);
        }
    }
    let target = c.dtype_attr("output_datatype")?.unwrap_or(DType::F32);
    let tensor = Tensor::from_vec(vec![bins as usize, filters as usize], weights)?;
    let matrix = c.constant(tensor);
    Ok(vec![c.cast_to(matrix, target)?])
}

/// The determinant of small matrices `[…, n, n]`, by the first row.
fn determinant(c: &mut Context<'_, '_>, x: ValueId) -> Result<ValueId, OpError> {
    let rank = c.rank(x);
    if rank < 2 {
        return Err(c.invalid("a matrix has two dims"));
    }
    let size = c.known_size(x, rank - 1)?;
    if c.known_size(x, rank - 2)? != size {
        return Err(c.invalid("a determinant is of square matrices"));
    }
    match size {
        1 => {
            let axes = vec![rank - 2, rank - 1];
            return c.reduce(ReduceOp::Sum, x, axes, false);
        }
        2..=4 => {}
        _ => return Err(c.unsupported("determinants of more than four rows")),
    }
    let below = c.narrow(x, rank - 2, Dim::from(1), Dim::from(size - 1))?;
    let mut sum = None;
    for column in 0..size {
        let factor = c.narrow(x, rank - 2, Dim::from(0), Dim::from(1))?;
        let factor = c.narrow(factor, rank - 1, Dim::from(column), Dim::from(1))?;
        let factor = c.reduce(ReduceOp::Sum, factor, vec![rank - 2, rank - 1], false)?;
        let left = c.narrow(below, rank - 1, Dim::from(0), Dim::from(column))?;
        let rest = size - 1 - column;
        let right = c.narrow(below, rank - 1, Dim::from(column + 1), Dim::from(rest))?;
        let minor = c.concat(rank - 1, &[left, right])?;
        let minor = determinant(c, minor)?;
        let term = c.times(factor, minor)?;
        sum = Some(match sum {
            None => term,
            Some(sum) if column % 2 == 1 => c.minus(sum, term)?,
            Some(sum) => c.plus(sum, term)?,
        });
    }
    sum.ok_or_else(|| c.invalid("a matrix without elements"))
}
