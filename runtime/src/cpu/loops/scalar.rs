//! What an operation does to one element, for every class; and the fast loops for f32.

use crate::cpu::kernels::matmul::Half;
use crate::cpu::kernels::number::{packed, truncated as truncated_wide};
use crate::cpu::kernels::pointwise as fast;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Binary, Native, Unary};
use half::{bf16, f16};

/// The vectorised f32 loop of a function, where it has one.
pub(super) fn fast_unary(unary: Unary) -> Option<fast::Unary> {
    Some(match unary {
        Unary::Abs => fast::Unary::Abs,
        Unary::Neg => fast::Unary::Neg,
        Unary::Sign => fast::Unary::Sign,
        Unary::Reciprocal => fast::Unary::Reciprocal,
        Unary::Sqrt => fast::Unary::Sqrt,
        Unary::Exp => fast::Unary::Exp,
        Unary::Log => fast::Unary::Log,
        Unary::Floor => fast::Unary::Floor,
        Unary::Ceil => fast::Unary::Ceil,
        Unary::Round => fast::Unary::Round,
        Unary::Sin => fast::Unary::Sin,
        Unary::Cos => fast::Unary::Cos,
        Unary::Tan => fast::Unary::Tan,
        Unary::Asin => fast::Unary::Asin,
        Unary::Acos => fast::Unary::Acos,
        Unary::Atan => fast::Unary::Atan,
        Unary::Sinh => fast::Unary::Sinh,
        Unary::Cosh => fast::Unary::Cosh,
        Unary::Tanh => fast::Unary::Tanh,
        Unary::Asinh => fast::Unary::Asinh,
        Unary::Acosh => fast::Unary::Acosh,
        Unary::Atanh => fast::Unary::Atanh,
        Unary::Erf => fast::Unary::Erf,
        Unary::Sigmoid => fast::Unary::Sigmoid,
        Unary::Relu => fast::Unary::Relu,
        Unary::Gelu => fast::Unary::Gelu,
        Unary::GeluTanh => fast::Unary::GeluTanh,
        Unary::Softplus => fast::Unary::Softplus,
        Unary::Swish { alpha: 1.0 } => fast::Unary::Silu,
        Unary::HardSwish => fast::Unary::HardSwish,
        // The others compute by their meaning.
        _ => return None,
    })
}

/// Applies a function of real numbers to elements in place; `false` if it is none.
pub(crate) fn apply_unary(unary: Unary, x: &mut [f32]) -> bool {
    if let Some(unary) = fast_unary(unary) {
        unary.apply_in_place(x);
        return true;
    }
    let Some(meaning) = unary.meaning::<Native>() else { return false };
    x.iter_mut().for_each(|x| *x = meaning(f64::from(*x)) as f32);
    true
}

/// The vectorised f32 loop of a function, where it has one.
pub(super) fn fast_binary(binary: Binary) -> Option<fast::Binary> {
    Some(match binary {
        Binary::Add => fast::Binary::Add,
        Binary::Sub => fast::Binary::Sub,
        Binary::Mul => fast::Binary::Mul,
        Binary::Div => fast::Binary::Div,
        Binary::Min => fast::Binary::Min,
        Binary::Max => fast::Binary::Max,
        Binary::Pow => fast::Binary::Pow,
        _ => return None,
    })
}

/// Does something with a function of an integer, before wrapping; real functions go by way of f64.
pub(super) fn with_integer<R>(unary: Unary, run: impl FnOnce(&dyn Fn(i64) -> i64) -> R) -> R {
    match unary {
        Unary::Abs => run(&i64::wrapping_abs),
        Unary::Neg => run(&i64::wrapping_neg),
        Unary::Sign => run(&i64::signum),
        Unary::Relu => run(&|x| x.max(0)),
        Unary::BitNot => run(&|x| !x),
        Unary::Floor | Unary::Ceil | Unary::Round => run(&|x| x),
        _ => match unary.meaning::<Native>() {
            Some(real) => run(&|x| real(x as f64) as i64),
            None => run(&|x| x),
        },
    }
}

/// A function of two integers, before wrapping; `bits` is their width.
pub(super) fn integer_binary(binary: Binary, a: i64, b: i64, bits: u32) -> i64 {
    match binary {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div => {
            if b == 0 {
                0
            } else {
                a.wrapping_div(b)
            }
        }
        Binary::Rem => {
            if b == 0 {
                0
            } else {
                a.wrapping_rem(b)
            }
        }
        Binary::Mod => {
            let rest = if b == 0 { 0 } else { a.wrapping_rem(b) };
            if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
        }
        Binary::Pow => integer_power(a.into(), b.into()) as i64,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::And | Binary::BitAnd => a & b,
        Binary::Or | Binary::BitOr => a | b,
        Binary::Xor | Binary::BitXor => a ^ b,
        Binary::ShiftLeft => {
            if (0..i64::from(bits)).contains(&b) {
                a << b
            } else {
                0
            }
        }
        Binary::ShiftRight => {
            if (0..i64::from(bits)).contains(&b) {
                a >> b
            } else {
                // Only the sign is left.
                a >> 63
            }
        }
        Binary::Equal => i64::from(a == b),
        Binary::Less => i64::from(a < b),
        Binary::LessOrEqual => i64::from(a <= b),
        Binary::Greater => i64::from(a > b),
        Binary::GreaterOrEqual => i64::from(a >= b),
    }
}

/// A power modulo 2⁶⁴.
pub(super) fn integer_power(base: i128, exponent: i128) -> u64 {
    match (base, exponent) {
        (1, _) => return 1,
        (-1, _) => return if exponent % 2 == 0 { 1 } else { u64::MAX },
        // A negative power is a fraction, which truncates.
        (_, ..0) => return 0,
        _ => {}
    }
    let (mut result, mut square, mut left) = (1_u64, base as u64, exponent);
    while left > 0 {
        if left % 2 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left /= 2;
    }
    result
}

/// A function of an integer without a sign; real functions go by way of f64.
pub(super) fn unsigned_unary(unary: Unary, x: u64) -> u64 {
    match unary {
        Unary::Neg => x.wrapping_neg(),
        Unary::Sign => x.min(1),
        Unary::BitNot => !x,
        Unary::Abs | Unary::Relu | Unary::Floor | Unary::Ceil | Unary::Round => x,
        _ => match unary.meaning::<Native>() {
            Some(real) => truncated_wide(DType::U64, real(x as f64)) as u64,
            None => x,
        },
    }
}

/// A function of two integers without a sign; powers are [`integer_power`].
pub(super) fn unsigned_binary(binary: Binary, a: u64, b: u64) -> u64 {
    match binary {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div => a.checked_div(b).unwrap_or(0),
        Binary::Rem | Binary::Mod => a.checked_rem(b).unwrap_or(0),
        Binary::Pow => integer_power(a.into(), b.into()),
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::And | Binary::BitAnd => a & b,
        Binary::Or | Binary::BitOr => a | b,
        Binary::Xor | Binary::BitXor => a ^ b,
        Binary::ShiftLeft => u32::try_from(b).ok().and_then(|b| a.checked_shl(b)).unwrap_or(0),
        Binary::ShiftRight => u32::try_from(b).ok().and_then(|b| a.checked_shr(b)).unwrap_or(0),
        Binary::Equal => u64::from(a == b),
        Binary::Less => u64::from(a < b),
        Binary::LessOrEqual => u64::from(a <= b),
        Binary::Greater => u64::from(a > b),
        Binary::GreaterOrEqual => u64::from(a >= b),
    }
}

/// An integer modulo the width of its type.
pub(super) fn wrap(dtype: DType, x: i64) -> i64 {
    match dtype {
        DType::I8 => i64::from(x as i8),
        DType::I16 => i64::from(x as i16),
        DType::I32 => i64::from(x as i32),
        DType::U8 => i64::from(x as u8),
        DType::U16 => i64::from(x as u16),
        DType::U32 => i64::from(x as u32),
        _ => packed(dtype, x),
    }
}

/// A real number truncated, modulo the width of the type; what 128 bits do not hold, as infinities, becomes the limit of
/// the type, and NaN zero.
pub(super) fn truncated(dtype: DType, x: f64) -> i64 {
    if x.abs() < 2_f64.powi(63) || x.is_nan() {
        return wrap(dtype, x as i64);
    }
    wrap(dtype, truncated_wide(dtype, x) as i64)
}

/// Rounds elements as if they were stored in their type.
pub(crate) fn round(dtype: DType, block: &mut [f32]) {
    match dtype {
        DType::F16 => round_by::<f16>(block),
        DType::BF16 => round_by::<bf16>(block),
        _ => {}
    }
}

fn round_by<T: Half>(block: &mut [f32]) {
    let mut narrow = [T::default(); 256];
    for part in block.chunks_mut(narrow.len()) {
        let narrow = &mut narrow[..part.len()];
        T::narrow(narrow, part);
        T::widen(part, narrow);
    }
}
