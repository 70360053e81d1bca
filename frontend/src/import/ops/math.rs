//! Pointwise operators: [`functions`], which the table of functions tells of, and those that are more than one function.

use super::helpers::Outputs;
use super::{Row, Run, row};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Onnx, Op, Parameter, Unary};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("Selu", 1, selu),
    row("Gelu", 20, gelu),
    row("SwiGLU", 1, swiglu),
    row("Mod", 10, |c| {
        let fmod = c.int_or("fmod", 0) != 0;
        binary(c, if fmod { Binary::Rem } else { Binary::Mod })
    }),
    row("BitShift", 11, |c| match c.string("direction") {
        Some("LEFT") => shift(c, Binary::ShiftLeft),
        Some("RIGHT") => shift(c, Binary::ShiftRight),
        _ => Err(c.invalid("`direction` must be LEFT or RIGHT")),
    }),
    row("Min", 1, |c| Ok(vec![fold(c, Binary::Min)?])),
    row("Max", 1, |c| Ok(vec![fold(c, Binary::Max)?])),
    row("Sum", 1, |c| Ok(vec![fold(c, Binary::Add)?])),
    row("Mean", 1, mean),
    row("Clip", 1, clip),
    row("PRelu", 1, prelu),
];

/// The operators that are one function.
pub(super) fn functions() -> impl Iterator<Item = Row> {
    let row = |Onnx { name, since }, run| Row { domain: "", op: name, since, run };
    let unaries = Unary::ALL
        .iter()
        .filter_map(move |&function| Some(row(function.info().onnx?, Run::Unary(function))));
    let binaries = Binary::ALL
        .iter()
        .filter_map(move |&function| Some(row(function.info().onnx?, Run::Binary(function))));
    unaries.chain(binaries)
}

/// A unary operator, whose attributes are the function's parameters.
pub(super) fn unary(c: &mut Context<'_, '_>, mut function: Unary) -> Outputs {
    for (_, name, parameter) in function.parameters() {
        match parameter {
            Parameter::Number(number) => *number = c.float_or(name, *number),
            Parameter::Flag(flag) => *flag = c.int_or(name, i64::from(*flag)) != 0,
        }
    }
    c.map(function)
}

/// A binary operator; before opset 7, `axis` says where the second operand's dims stand.
pub(super) fn binary(c: &mut Context<'_, '_>, op: Binary) -> Outputs {
    let (a, mut b) = (c.input(0)?, c.input(1)?);
    if let (true, Some(axis)) = (c.opset() < 7, c.int("axis")) {
        let axis = c.axis(c.rank(a), axis)?;
        let mut shape = c.shape(b);
        let missing = c.rank(a).saturating_sub(axis + shape.len());
        shape.resize(shape.len() + missing, Dim::from(1));
        b = c.reshape(b, shape)?;
    }
    Ok(vec![c.binary(op, a, b)?])
}

/// Signed elements are shifted as unsigned ones of the same bits, negative ones to the right as their
/// complement: so the sign fills what becomes free, and a negative amount counts as one beyond the width.
fn shift(c: &mut Context<'_, '_>, op: Binary) -> Outputs {
    let (x, amount) = (c.input(0)?, c.input(1)?);
    let own = c.dtype(x);
    if !own.is_signed_integer() {
        return binary(c, op);
    }
    let unsigned = match own {
        DType::I8 => DType::U8,
        DType::I16 => DType::U16,
        DType::I32 => DType::U32,
        DType::I64 => DType::U64,
        _ => return Err(OpError::refuses(own)),
    };
    let amount = c.add(Op::BitCast(unsigned), &[amount])?;
    let shifted = |c: &mut Context<'_, '_>, x: ValueId| -> Result<ValueId, OpError> {
        let x = c.add(Op::BitCast(unsigned), &[x])?;
        let y = c.binary(op, x, amount)?;
        c.add(Op::BitCast(own), &[y])
    };
    if op == Binary::ShiftLeft {
        return Ok(vec![shifted(c, x)?]);
    }
    let zero = c.scalar_like(x, 0.0)?;
    let negative = c.binary(Binary::Less, x, zero)?;
    let complement = c.unary(Unary::BitNot, x)?;
    let magnitude = c.select(negative, complement, x)?;
    let y = shifted(c, magnitude)?;
    let complement = c.unary(Unary::BitNot, y)?;
    Ok(vec![c.select(negative, complement, y)?])
}

/// All inputs, combined from the first to the last.
fn fold(c: &mut Context<'_, '_>, op: Binary) -> Result<ValueId, OpError> {
    let mut result = c.input(0)?;
    for i in 1..c.input_count() {
        let next = c.input(i)?;
        result = c.binary(op, result, next)?;
    }
    Ok(result)
}

fn mean(c: &mut Context<'_, '_>) -> Outputs {
    let sum = fold(c, Binary::Add)?;
    let count = c.scalar_like(sum, c.input_count() as f64)?;
    Ok(vec![c.over(sum, count)?])
}

fn selu(c: &mut Context<'_, '_>) -> Outputs {
    // The defaults got more digits at opset 6.
    let (alpha, gamma) = match c.opset() {
        ..=5 => (1.6732, 1.0507),
        _ => (1.673_263_2, 1.050_701),
    };
    unary(c, Unary::Selu { alpha, gamma })
}

fn gelu(c: &mut Context<'_, '_>) -> Outputs {
    match c.string("approximate") {
        None | Some("none") => c.map(Unary::Gelu),
        Some("tanh") => c.map(Unary::GeluTanh),
        Some(_) => Err(c.invalid("`approximate` must be none or tanh")),
    }
}

fn swiglu(c: &mut Context<'_, '_>) -> Outputs {
    let (gate, linear) = (c.input(0)?, c.input(1)?);
    let gate = c.unary(Unary::Swish { alpha: c.float_or("alpha", 1.0) }, gate)?;
    Ok(vec![c.times(gate, linear)?])
}

/// Bounds are attributes before opset 11, inputs from then on.
fn clip(c: &mut Context<'_, '_>) -> Outputs {
    let mut x = c.input(0)?;
    for (i, name, op) in [(1, "min", Binary::Max), (2, "max", Binary::Min)] {
        let bound = match (c.optional(i), c.float(name)) {
            (Some(bound), _) => Some(bound),
            (None, Some(bound)) => Some(c.scalar_like(x, f64::from(bound))?),
            (None, None) => None,
        };
        if let Some(bound) = bound {
            x = c.binary(op, x, bound)?;
        }
    }
    Ok(vec![x])
}

fn prelu(c: &mut Context<'_, '_>) -> Outputs {
    let (x, mut slope) = (c.input(0)?, c.input(1)?);
    if c.opset() < 7 && c.rank(slope) == 1 && c.rank(x) > 1 && c.ty(slope).shape[0] != 1 {
        slope = c.channels(slope, c.rank(x))?;
    }
    let zero = c.scalar_like(x, 0.0)?;
    let negative = c.binary(Binary::Less, x, zero)?;
    let scaled = c.times(x, slope)?;
    Ok(vec![c.select(negative, scaled, x)?])
}
