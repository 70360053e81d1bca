//! Pointwise operators.

use super::helpers::Outputs;
use super::{Row, row};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Op, Unary};

/// A row for an operator that is one unary function without attributes.
macro_rules! unary {
    ($name:literal, $unary:ident) => {
        row($name, 1, |c| c.map(Unary::$unary))
    };
}

/// A row for an operator that is one binary function.
macro_rules! binary {
    ($name:literal, $binary:ident) => {
        row($name, 1, |c| binary(c, Binary::$binary))
    };
}

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    unary!("Abs", Abs),
    unary!("Neg", Neg),
    unary!("Sign", Sign),
    unary!("Reciprocal", Reciprocal),
    unary!("Sqrt", Sqrt),
    unary!("Exp", Exp),
    unary!("Log", Log),
    unary!("Floor", Floor),
    unary!("Ceil", Ceil),
    unary!("Round", Round),
    unary!("Sin", Sin),
    unary!("Cos", Cos),
    unary!("Tan", Tan),
    unary!("Asin", Asin),
    unary!("Acos", Acos),
    unary!("Atan", Atan),
    unary!("Sinh", Sinh),
    unary!("Cosh", Cosh),
    unary!("Tanh", Tanh),
    unary!("Asinh", Asinh),
    unary!("Acosh", Acosh),
    unary!("Atanh", Atanh),
    unary!("Erf", Erf),
    unary!("Sigmoid", Sigmoid),
    unary!("Relu", Relu),
    unary!("Softplus", Softplus),
    unary!("Softsign", Softsign),
    unary!("Mish", Mish),
    unary!("HardSwish", HardSwish),
    unary!("Not", Not),
    unary!("BitwiseNot", BitNot),
    unary!("IsNaN", IsNan),
    row("Elu", 1, |c| c.map(Unary::Elu { alpha: c.float_or("alpha", 1.0) })),
    row("Celu", 12, |c| c.map(Unary::Celu { alpha: c.float_or("alpha", 1.0) })),
    row("LeakyRelu", 1, |c| c.map(Unary::LeakyRelu { alpha: c.float_or("alpha", 0.01) })),
    row("ThresholdedRelu", 10, |c| {
        c.map(Unary::ThresholdedRelu { alpha: c.float_or("alpha", 1.0) })
    }),
    row("Swish", 24, |c| c.map(Unary::Swish { alpha: c.float_or("alpha", 1.0) })),
    row("Selu", 1, selu),
    row("HardSigmoid", 1, |c| {
        c.map(Unary::HardSigmoid { alpha: c.float_or("alpha", 0.2), beta: c.float_or("beta", 0.5) })
    }),
    row("Shrink", 9, |c| {
        c.map(Unary::Shrink { bias: c.float_or("bias", 0.0), lambda: c.float_or("lambd", 0.5) })
    }),
    row("Gelu", 20, gelu),
    row("IsInf", 10, |c| {
        c.map(Unary::IsInf {
            positive: c.int_or("detect_positive", 1) != 0,
            negative: c.int_or("detect_negative", 1) != 0,
        })
    }),
    row("SwiGLU", 1, swiglu),
    binary!("Add", Add),
    binary!("Sub", Sub),
    binary!("Mul", Mul),
    binary!("Div", Div),
    binary!("Pow", Pow),
    binary!("And", And),
    binary!("Or", Or),
    binary!("Xor", Xor),
    binary!("BitwiseAnd", BitAnd),
    binary!("BitwiseOr", BitOr),
    binary!("BitwiseXor", BitXor),
    binary!("Equal", Equal),
    binary!("Less", Less),
    binary!("LessOrEqual", LessOrEqual),
    binary!("Greater", Greater),
    binary!("GreaterOrEqual", GreaterOrEqual),
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

/// A binary operator; before opset 7, `axis` says where the second operand's dims stand.
fn binary(c: &mut Context<'_, '_>, op: Binary) -> Outputs {
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
    let alpha = c.float_or("alpha", alpha);
    let gamma = c.float_or("gamma", gamma);
    c.map(Unary::Selu { alpha, gamma })
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
