//! The text of functions of numbers in CUDA C++, of registers of these names, and of numbers. The table in `kind/function.rs` says
//! how exact it is in single precision.

use crate::{Binary, Unary};

pub(super) fn unary_text(op: Unary, x: &str) -> String {
    match op {
        Unary::Neg => format!("-{x}"),
        Unary::Abs => format!("fabsf({x})"),
        Unary::Sign => format!("{x} > 0.0f ? 1.0f : {x} < 0.0f ? -1.0f : {x}"),
        Unary::Exp => format!("expf({x})"),
        Unary::Exp2 => format!("exp2_approx({x})"),
        Unary::Log => format!("logf({x})"),
        Unary::Rcp => format!("__frcp_rn({x})"),
        Unary::Rsqrt => format!("rsqrtf({x})"),
        Unary::Sqrt => format!("__fsqrt_rn({x})"),
        Unary::Floor => format!("floorf({x})"),
        Unary::Ceil => format!("ceilf({x})"),
        Unary::Round => format!("rintf({x})"),
        Unary::Sin => format!("sinf({x})"),
        Unary::Cos => format!("cosf({x})"),
        Unary::Tan => format!("tanf({x})"),
        Unary::Asin => format!("asinf({x})"),
        Unary::Acos => format!("acosf({x})"),
        Unary::Atan => format!("atanf({x})"),
        Unary::Sinh => format!("sinhf({x})"),
        Unary::Cosh => format!("coshf({x})"),
        Unary::Tanh => format!("tanhf({x})"),
        Unary::Asinh => format!("asinhf({x})"),
        Unary::Acosh => format!("acoshf({x})"),
        Unary::Atanh => format!("atanhf({x})"),
        Unary::Erf => format!("erff({x})"),
        Unary::Sigmoid => format!("__fdividef(1.0f, 1.0f + __expf(-{x}))"),
        Unary::Log1p => format!("log1pf({x})"),
        Unary::Expm1 => format!("expm1f({x})"),
        Unary::Relu => format!("{x} < 0.0f ? 0.0f : {x}"),
        Unary::Gelu => format!("gelu({x})"),
        Unary::GeluHalf => format!("gelu_half({x})"),
        Unary::Silu => format!("__fdividef({x}, 1.0f + __expf(-{x}))"),
        Unary::IsNan => format!("{x} != {x} ? 1.0f : 0.0f"),
        Unary::Tf32 => format!("to_tf32({x})"),
    }
}

pub(super) fn binary_text(op: Binary, x: &str, y: &str) -> String {
    match op {
        Binary::Add => format!("{x} + {y}"),
        Binary::Sub => format!("{x} - {y}"),
        Binary::Mul => format!("{x} * {y}"),
        Binary::Div => format!("__fdiv_rn({x}, {y})"),
        Binary::Max => format!("fmaxf({x}, {y})"),
        Binary::Min => format!("fminf({x}, {y})"),
        Binary::MaxNan => format!("max_nan({x}, {y})"),
        Binary::MinNan => format!("min_nan({x}, {y})"),
        Binary::Pow => format!("powf({x}, {y})"),
        Binary::Rem => format!("fmodf({x}, {y})"),
        Binary::CopySign => format!("copysignf({x}, {y})"),
        Binary::Less => format!("{x} < {y} ? 1.0f : 0.0f"),
        Binary::AtMost => format!("{x} <= {y} ? 1.0f : 0.0f"),
        Binary::Equal => format!("{x} == {y} ? 1.0f : 0.0f"),
        Binary::Unequal => format!("{x} != {y} ? 1.0f : 0.0f"),
    }
}

/// The value of integers of 64 bits in CUDA C++, which wraps; `None` if there is no such function.
pub(super) fn whole_unary_text(op: Unary, x: &str) -> Option<String> {
    match op {
        Unary::Neg => Some(format!("(long long)(0ull - (unsigned long long){x})")),
        Unary::Abs => Some(format!("{x} < 0 ? (long long)(0ull - (unsigned long long){x}) : {x}")),
        Unary::Sign => Some(format!("({x} > 0) - ({x} < 0)")),
        Unary::Relu => Some(format!("{x} < 0 ? 0 : {x}")),
        _ => None,
    }
}

/// Likewise of two integers.
pub(super) fn whole_binary_text(op: Binary, x: &str, y: &str) -> Option<String> {
    let wrapping =
        |sign: &str| format!("(long long)((unsigned long long){x} {sign} (unsigned long long){y})");
    let truth = |relation: &str| format!("{x} {relation} {y} ? 1 : 0");
    Some(match op {
        Binary::Add => wrapping("+"),
        Binary::Sub => wrapping("-"),
        Binary::Mul => wrapping("*"),
        Binary::Div => format!("{x} / {y}"),
        Binary::Rem => format!("{x} % {y}"),
        Binary::Max | Binary::MaxNan => format!("{x} > {y} ? {x} : {y}"),
        Binary::Min | Binary::MinNan => format!("{x} < {y} ? {x} : {y}"),
        Binary::Less => truth("<"),
        Binary::AtMost => truth("<="),
        Binary::Equal => truth("=="),
        Binary::Unequal => truth("!="),
        Binary::Pow | Binary::CopySign => return None,
    })
}

pub(super) fn float_text(value: f64) -> String {
    match value {
        f64::INFINITY => "__int_as_float(0x7f800000)".to_owned(),
        f64::NEG_INFINITY => "__int_as_float(0xff800000)".to_owned(),
        _ => format!("{value:?}f"),
    }
}
