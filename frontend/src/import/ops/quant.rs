//! Quantisation: values as small integers (or floats) with a scale and a zero point.

use super::conv::conv_attrs;
use super::helpers::Outputs;
use super::{Row, microsoft, row};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Op, ReduceOp, Unary};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("QuantizeLinear", 10, quantize_linear),
    microsoft("QuantizeLinear", 1, quantize_linear),
    row("DequantizeLinear", 10, dequantize_linear),
    microsoft("DequantizeLinear", 1, dequantize_linear),
    row("DynamicQuantizeLinear", 11, dynamic_quantize_linear),
    row("MatMulInteger", 10, mat_mul_integer),
    row("ConvInteger", 10, conv_integer),
    row("QLinearMatMul", 10, q_linear_mat_mul),
    row("QLinearConv", 10, q_linear_conv),
    microsoft("QGemm", 1, q_gemm),
    microsoft("MatMulIntegerToFloat", 1, mat_mul_integer_to_float),
    microsoft("DynamicQuantizeMatMul", 1, dynamic_quantize_mat_mul),
    microsoft("QLinearAdd", 1, |c| q_linear_binary(c, Binary::Add)),
    microsoft("QLinearMul", 1, |c| q_linear_binary(c, Binary::Mul)),
    microsoft("QLinearSigmoid", 1, |c| q_linear_unary(c, Unary::Sigmoid)),
    microsoft("QLinearLeakyRelu", 1, |c| {
        q_linear_unary(c, Unary::LeakyRelu { alpha: c.float_or("alpha", 0.01) })
    }),
    microsoft("QLinearGlobalAveragePool", 1, q_linear_global_average_pool),
];

/// Smallest and largest element of an integer type that values are quantised to.
fn range(dtype: DType) -> Option<(f64, f64)> {
    let (low, high) = match dtype {
        DType::I8 => (-128.0, 127.0),
        DType::U8 => (0.0, 255.0),
        DType::I16 => (-32768.0, 32767.0),
        DType::U16 => (0.0, 65535.0),
        DType::I4 => (-8.0, 7.0),
        DType::U4 => (0.0, 15.0),
        DType::I2 => (-2.0, 1.0),
        DType::U2 => (0.0, 3.0),
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::F32
        | DType::F64
        | DType::F16
        | DType::BF16
        | DType::I64
        | DType::U32
        | DType::U64
        | DType::Bool
        | DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => return None,
    };
    Some((low, high))
}

/// A scale or zero point in a shape that broadcasts to `x`: one element, one an index of the axis, or one a
/// block of `block_size` indices of it.
fn spread(c: &mut Context<'_, '_>, v: ValueId, x: ValueId) -> Result<ValueId, OpError> {
    let (rank, own) = (c.rank(x), c.shape(v));
    if own.iter().all(|dim| *dim == 1) {
        return c.reshape(v, Vec::new());
    }
    let axis = c.axis(rank, c.int_or("axis", 1))?;
    let block = c.int_or("block_size", 0);
    if block == 0 {
        if own.len() != 1 {
            return Err(c.invalid("scales of more than one dim need `block_size`"));
        }
        let mut shape = vec![Dim::from(1); rank];
        shape[axis] = own[0].clone();
        return c.reshape(v, shape);
    }
    if own.len() != rank || block < 0 {
        return Err(c.invalid("scales of blocks must have as many dims as the input"));
    }
    let indices = c.iota(c.shape(x)[axis].clone(), 0, 1)?;
    let block = c.scalar(DType::I64, block as f64)?;
    let indices = c.over(indices, block)?;
    c.add(Op::Gather { axis }, &[v, indices])
}

/// The element type that an attribute names.
pub(super) fn named_dtype(c: &Context<'_, '_>, name: &str) -> Result<Option<DType>, OpError> {
    let Some(number) = c.int(name).filter(|&number| number != 0) else { return Ok(None) };
    let dtype = i32::try_from(number).ok().and_then(DType::from_onnx);
    dtype.map(Some).ok_or_else(|| c.unsupported("this element type"))
}

fn quantize_linear(c: &mut Context<'_, '_>) -> Outputs {
    let (x, scale, zero_point) = (c.input(0)?, c.input(1)?, c.optional(2));
    let target = match zero_point {
        Some(zero_point) => c.dtype(zero_point),
        None => named_dtype(c, "output_dtype")?.unwrap_or(DType::U8),
    };
    let saturate = c.int_or("saturate", 1) != 0;
    let common = match named_dtype(c, "precision")? {
        Some(precision) => precision,
        None if c.dtype(x).is_float() => c.dtype(x),
        None => DType::F32,
    };
    let wide = c.cast_to(x, common)?;
    let scale = spread(c, scale, x)?;
    let scale = c.cast_to(scale, common)?;
    let quotient = c.over(wide, scale)?;
    let zero_point = zero_point.map(|zero_point| spread(c, zero_point, x)).transpose()?;
    Ok(vec![quantized(c, quotient, zero_point, target, saturate)?])
}

/// A quotient rounded, moved by the zero point and clamped into an integer type, or converted to a float.
fn quantized(
    c: &mut Context<'_, '_>,
    quotient: ValueId,
    zero_point: Option<ValueId>,
    target: DType,
    saturate: bool,
) -> Result<ValueId, OpError> {
    if target.is_float() {
        return c.add(Op::Cast { to: target, saturate }, &[quotient]);
    }
    let (low, high) = range(target).ok_or_else(|| c.unsupported("this quantised type"))?;
    let rounded = c.unary(Unary::Round, quotient)?;
    let mut y = c.widen(rounded)?;
    if let Some(zero_point) = zero_point {
        let zero_point = c.cast_to(zero_point, c.dtype(y))?;
        y = c.plus(y, zero_point)?;
    }
    let (low, high) = (c.scalar_like(y, low)?, c.scalar_like(y, high)?);
    let y = c.binary(Binary::Max, y, low)?;
    let y = c.binary(Binary::Min, y, high)?;
    c.cast(y, target)
}

fn dequantize_linear(c: &mut Context<'_, '_>) -> Outputs {
    let (x, scale, zero_point) = (c.input(0)?, c.input(1)?, c.optional(2));
    let target = named_dtype(c, "output_dtype")?.unwrap_or(c.dtype(scale));
    let difference = match zero_point.filter(|_| c.dtype(x).is_integer()) {
        // Integers are subtracted as integers: an i32 does not fit into f32.
        Some(zero_point) => {
            let zero_point = spread(c, zero_point, x)?;
            let zero_point = c.cast_to(zero_point, DType::I32)?;
            let wide = c.cast_to(x, DType::I32)?;
            c.minus(wide, zero_point)?
        }
        None => x,
    };
    let wide = c.cast_to(difference, DType::F32)?;
    let scale = spread(c, scale, x)?;
    let scale = c.cast_to(scale, DType::F32)?;
    let y = c.times(wide, scale)?;
    Ok(vec![c.cast_to(y, target)?])
}

fn dynamic_quantize_linear(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    Ok(dynamically_quantized(c, x)?.to_vec())
}

/// x as `u8` over the range of its elements and zero, with its scale and zero point.
pub(super) fn dynamically_quantized(
    c: &mut Context<'_, '_>,
    x: ValueId,
) -> Result<[ValueId; 3], OpError> {
    let axes: Vec<usize> = (0..c.rank(x)).collect();
    let zero = c.scalar_like(x, 0.0)?;
    let top = c.scalar_like(x, 255.0)?;
    let low = c.reduce(ReduceOp::Min, x, axes.clone(), false)?;
    let low = c.binary(Binary::Min, low, zero)?;
    let high = c.reduce(ReduceOp::Max, x, axes, false)?;
    let high = c.binary(Binary::Max, high, zero)?;
    let extent = c.minus(high, low)?;
    let scale = c.over(extent, top)?;
    let offset = c.over(low, scale)?;
    let offset = c.minus(zero, offset)?;
    let offset = c.binary(Binary::Max, offset, zero)?;
    let offset = c.binary(Binary::Min, offset, top)?;
    let offset = c.unary(Unary::Round, offset)?;
    let zero_point = c.cast(offset, DType::U8)?;
    let quotient = c.over(x, scale)?;
    let y = quantized(c, quotient, Some(zero_point), DType::U8, true)?;
    Ok([y, scale, zero_point])
}

/// x minus its zero point, in i32; a vector of zero points belongs to the axis counted from the end.
pub(super) fn centered(
    c: &mut Context<'_, '_>,
    x: ValueId,
    zero_point: Option<ValueId>,
    axis_from_end: usize,
) -> Result<ValueId, OpError> {
    let wide = c.cast_to(x, DType::I32)?;
    let Some(zero_point) = zero_point else { return Ok(wide) };
    let zero_point = c.cast_to(zero_point, DType::I32)?;
    let zero_point = from_end(c, zero_point, axis_from_end)?;
    c.minus(wide, zero_point)
}

/// A vector placed at an axis counted from the end (1: the last); what is no vector stays, and one element
/// stands for all.
fn from_end(c: &mut Context<'_, '_>, v: ValueId, axis_from_end: usize) -> Result<ValueId, OpError> {
    let mut shape = c.shape(v);
    if shape.iter().all(|dim| *dim == 1) {
        return c.reshape(v, Vec::new());
    }
    if shape.len() == 1 && axis_from_end > 1 {
        shape.resize(axis_from_end, Dim::from(1));
        return c.reshape(v, shape);
    }
    Ok(v)
}

fn mat_mul_integer(c: &mut Context<'_, '_>) -> Outputs {
    let (a, b) = (c.input(0)?, c.input(1)?);
    let a = centered(c, a, c.optional(2), 2)?;
    let b = centered(c, b, c.optional(3), 1)?;
    Ok(vec![c.mat_mul(a, b)?])
}

fn conv_integer(c: &mut Context<'_, '_>) -> Outputs {
    let (x, w) = (c.input(0)?, c.input(1)?);
    let attrs = conv_attrs(c, x, w)?;
    let x = centered(c, x, c.optional(2), 1)?;
    let rank = c.rank(w);
    let w = centered(c, w, c.optional(3), rank)?;
    c.add_optional(Op::Conv(attrs), &[Some(x), Some(w)])
}

/// An exact sum of products in i32, scaled by the quotient of the scales and quantised.
fn requantized(
    c: &mut Context<'_, '_>,
    accumulated: ValueId,
    [a_scale, b_scale, y_scale]: [ValueId; 3],
    zero_point: ValueId,
) -> Result<ValueId, OpError> {
    let accumulated = c.cast(accumulated, DType::F32)?;
    let a_scale = c.cast_to(a_scale, DType::F32)?;
    let b_scale = c.cast_to(b_scale, DType::F32)?;
    let y_scale = c.cast_to(y_scale, DType::F32)?;
    let scale = c.times(a_scale, b_scale)?;
    let scale = c.over(scale, y_scale)?;
    let scaled = c.times(accumulated, scale)?;
    let target = c.dtype(zero_point);
    quantized(c, scaled, Some(zero_point), target, true)
}

fn q_linear_mat_mul(c: &mut Context<'_, '_>) -> Outputs {
    let (a, b) = (c.input(0)?, c.input(3)?);
    let a = centered(c, a, c.optional(2), 2)?;
    let b = centered(c, b, c.optional(5), 1)?;
    let matmul = c.mat_mul(a, b)?;
    let (a_scale, b_scale, y_scale) = (c.input(1)?, c.input(4)?, c.input(6)?);
    let a_scale = from_end(c, a_scale, 2)?;
    let b_scale = from_end(c, b_scale, 1)?;
    let y_scale = from_end(c, y_scale, 2)?;
    let zero_point = c.input(7)?;
    let zero_point = from_end(c, zero_point, 2)?;
    Ok(vec![requantized(c, matmul, [a_scale, b_scale, y_scale], zero_point)?])
}

fn q_linear_conv(c: &mut Context<'_, '_>) -> Outputs {
    let (x, w) = (c.input(0)?, c.input(3)?);
    let attrs = conv_attrs(c, x, w)?;
    let rank = c.rank(w);
    let x = centered(c, x, c.optional(2), 1)?;
    let w = centered(c, w, c.optional(5), rank)?;
    let accumulated = c.add_optional(Op::Conv(attrs), &[Some(x), Some(w), c.optional(8)])?[0];
    let (x_scale, w_scale, y_scale) = (c.input(1)?, c.input(4)?, c.input(6)?);
    let x_scale = from_end(c, x_scale, 1)?;
    let w_scale = from_end(c, w_scale, rank - 1)?;
    let y_scale = from_end(c, y_scale, 1)?;
    let zero_point = c.input(7)?;
    let zero_point = from_end(c, zero_point, 1)?;
    Ok(vec![requantized(c, accumulated, [x_scale, w_scale, y_scale], zero_point)?])
}

/// The `i32` matmul of quantised operands times their scales, plus a bias, in the type of the scales.
pub(super) fn scaled_matmul(
    c: &mut Context<'_, '_>,
    [a, b]: [ValueId; 2],
    [a_zero, b_zero]: [Option<ValueId>; 2],
    [a_scale, b_scale]: [ValueId; 2],
    bias: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let a = centered(c, a, a_zero, 2)?;
    let b = centered(c, b, b_zero, 1)?;
    let matmul = c.mat_mul(a, b)?;
    let a_scale = from_end(c, a_scale, 2)?;
    let b_scale = from_end(c, b_scale, 1)?;
    let own = c.dtype(b_scale);
    // A sum may be larger than fp16 holds.
    let matmul = c.cast(matmul, DType::F32)?;
    let (a_scale, b_scale) = (c.cast_to(a_scale, DType::F32)?, c.cast_to(b_scale, DType::F32)?);
    let scale = c.times(a_scale, b_scale)?;
    let mut y = c.times(matmul, scale)?;
    if let Some(bias) = bias {
        let bias = c.cast_to(bias, DType::F32)?;
        y = c.plus(y, bias)?;
    }
    c.cast_to(y, own)
}

/// `alpha · (A · B + C)` of quantised operands, C in the scale of the matmul; quantised again if the result has a scale.
fn q_gemm(c: &mut Context<'_, '_>) -> Outputs {
    let (mut a, mut b) = (c.input(0)?, c.input(3)?);
    if c.rank(a) != 2 || c.rank(b) != 2 {
        return Err(c.invalid("both operands must be matrices"));
    }
    if c.int_or("transA", 0) != 0 {
        a = c.transposed(a)?;
    }
    if c.int_or("transB", 0) != 0 {
        b = c.transposed(b)?;
    }
    let a = centered(c, a, c.optional(2), 2)?;
    let b = centered(c, b, c.optional(5), 1)?;
    let mut matmul = c.mat_mul(a, b)?;
    if let Some(bias) = c.optional(6) {
        matmul = c.plus(matmul, bias)?;
    }
    let (a_scale, b_scale) = (c.input(1)?, c.input(4)?);
    let a_scale = from_end(c, a_scale, 2)?;
    let b_scale = from_end(c, b_scale, 1)?;
    let a_scale = c.scaled(a_scale, f64::from(c.float_or("alpha", 1.0)))?;
    let mut scale = c.times(a_scale, b_scale)?;
    let matmul = c.cast(matmul, DType::F32)?;
    let (y_scale, zero_point) = match (c.optional(7), c.optional(8)) {
        (Some(y_scale), Some(zero_point)) => (y_scale, zero_point),
        (None, None) => return Ok(vec![c.times(matmul, scale)?]),
        _ => return Err(c.invalid("`y_scale` and `y_zero_point` must both be given, or neither")),
    };
    let y_scale = from_end(c, y_scale, 2)?;
    let zero_point = from_end(c, zero_point, 2)?;
    scale = c.over(scale, y_scale)?;
    let scaled = c.times(matmul, scale)?;
    let target = c.dtype(zero_point);
    Ok(vec![quantized(c, scaled, Some(zero_point), target, true)?])
}

/// The exact sum over all spatial axes, scaled to the mean and quantised.
fn q_linear_global_average_pool(c: &mut Context<'_, '_>) -> Outputs {
    let (x, x_scale, y_scale) = (c.input(0)?, c.input(1)?, c.input(3)?);
    let (rank, own) = (c.rank(x), c.dtype(x));
    if rank < 3 {
        return Err(c.invalid("the input must have a batch, channels and spatial dims"));
    }
    let axes: Vec<usize> = match c.int_or("channels_last", 0) {
        0 => (2..rank).collect(),
        _ => (1..rank - 1).collect(),
    };
    let shape = c.shape(x);
    let count = axes.iter().map(|&axis| &shape[axis]).product::<Dim>();
    let centered = centered(c, x, c.optional(2), 1)?;
    let sum = c.reduce(ReduceOp::Sum, centered, axes, true)?;
    let sum = c.cast(sum, DType::F32)?;
    let (x_scale, y_scale) = (from_end(c, x_scale, 1)?, from_end(c, y_scale, 1)?);
    let count = c.size(count)?;
    let count = c.cast(count, DType::F32)?;
    let divisor = c.times(y_scale, count)?;
    let scale = c.over(x_scale, divisor)?;
    let scaled = c.times(sum, scale)?;
    let zero_point = match c.optional(4) {
        Some(zero_point) => Some(from_end(c, zero_point, 1)?),
        None => None,
    };
    Ok(vec![quantized(c, scaled, zero_point, own, true)?])
}

fn mat_mul_integer_to_float(c: &mut Context<'_, '_>) -> Outputs {
    let (operands, scales) = ([c.input(0)?, c.input(1)?], [c.input(2)?, c.input(3)?]);
    let (zeros, bias) = ([c.optional(4), c.optional(5)], c.optional(6));
    Ok(vec![scaled_matmul(c, operands, zeros, scales, bias)?])
}

fn dynamic_quantize_mat_mul(c: &mut Context<'_, '_>) -> Outputs {
    let (a, b, b_scale) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (b_zero, bias) = (c.optional(3), c.optional(4));
    let [a, a_scale, a_zero] = dynamically_quantized(c, a)?;
    Ok(vec![scaled_matmul(c, [a, b], [Some(a_zero), b_zero], [a_scale, b_scale], bias)?])
}

/// A function of two quantised operands, computed in f32: a, its scale and zero point, b, its own, the result's.
fn q_linear_binary(c: &mut Context<'_, '_>, op: Binary) -> Outputs {
    let mut operands = [c.input(0)?, c.input(3)?];
    for (i, operand) in operands.iter_mut().enumerate() {
        let scale = c.input(3 * i + 1)?;
        let whole = centered(c, *operand, c.optional(3 * i + 2), 1)?;
        let whole = c.cast(whole, DType::F32)?;
        *operand = c.times(whole, scale)?;
    }
    let y = c.binary(op, operands[0], operands[1])?;
    let own = c.dtype(c.input(0)?);
    requantize(c, y, 6, own)
}

/// A function of a quantised operand, computed in f32: x, its scale and zero point, the result's.
fn q_linear_unary(c: &mut Context<'_, '_>, op: Unary) -> Outputs {
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let own = c.dtype(x);
    let whole = centered(c, x, c.optional(2), 1)?;
    let whole = c.cast(whole, DType::F32)?;
    let x = c.times(whole, scale)?;
    let y = c.unary(op, x)?;
    requantize(c, y, 3, own)
}

/// Quantised by the scale at input `at` and the zero point after it.
fn requantize(c: &mut Context<'_, '_>, y: ValueId, at: usize, own: DType) -> Outputs {
    let scale = c.input(at)?;
    let quotient = c.over(y, scale)?;
    Ok(vec![quantized(c, quotient, c.optional(at + 1), own, true)?])
}
