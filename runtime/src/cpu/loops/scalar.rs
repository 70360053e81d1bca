//! What an operation does to one element, for every class; and the fast loops for f32.

use crate::cpu::kernels::matmul::Half;
use crate::cpu::kernels::pointwise as fast;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Binary, Unary};
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
        Unary::Swish { .. }
        | Unary::Softsign
        | Unary::Mish
        | Unary::HardSwish
        | Unary::HardSigmoid { .. }
        | Unary::LeakyRelu { .. }
        | Unary::Elu { .. }
        | Unary::Celu { .. }
        | Unary::Selu { .. }
        | Unary::ThresholdedRelu { .. }
        | Unary::Shrink { .. }
        | Unary::Not
        | Unary::BitNot
        | Unary::IsNan
        | Unary::IsInf { .. } => return None,
    })
}

/// Applies a function of real numbers to elements in place; `false` if it is none.
pub(crate) fn apply_unary(unary: Unary, x: &mut [f32]) -> bool {
    if let Some(unary) = fast_unary(unary) {
        unary.apply_in_place(x);
        return true;
    }
    let Some(real) = real_unary(unary) else { return false };
    x.iter_mut().for_each(|x| *x = real(f64::from(*x)) as f32);
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
        Binary::Mod
        | Binary::Rem
        | Binary::And
        | Binary::Or
        | Binary::Xor
        | Binary::BitAnd
        | Binary::BitOr
        | Binary::BitXor
        | Binary::ShiftLeft
        | Binary::ShiftRight
        | Binary::Equal
        | Binary::Less
        | Binary::LessOrEqual
        | Binary::Greater
        | Binary::GreaterOrEqual => return None,
    })
}

/// A real function of a real number; `None` for those that are not.
pub(super) fn real_unary(unary: Unary) -> Option<Box<dyn Fn(f64) -> f64>> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let softplus = |x: f64| if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() };
    Some(match unary {
        Unary::Abs => Box::new(f64::abs),
        Unary::Neg => Box::new(|x| -x),
        Unary::Sign => Box::new(|x| {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x
            }
        }),
        Unary::Reciprocal => Box::new(|x| 1.0 / x),
        Unary::Sqrt => Box::new(f64::sqrt),
        Unary::Exp => Box::new(f64::exp),
        Unary::Log => Box::new(f64::ln),
        Unary::Floor => Box::new(f64::floor),
        Unary::Ceil => Box::new(f64::ceil),
        Unary::Round => Box::new(f64::round_ties_even),
        Unary::Sin => Box::new(f64::sin),
        Unary::Cos => Box::new(f64::cos),
        Unary::Tan => Box::new(f64::tan),
        Unary::Asin => Box::new(f64::asin),
        Unary::Acos => Box::new(f64::acos),
        Unary::Atan => Box::new(f64::atan),
        Unary::Sinh => Box::new(f64::sinh),
        Unary::Cosh => Box::new(f64::cosh),
        Unary::Tanh => Box::new(f64::tanh),
        Unary::Asinh => Box::new(f64::asinh),
        Unary::Acosh => Box::new(f64::acosh),
        // What libm loses near -1, it does not near 1.
        Unary::Atanh => Box::new(|x: f64| x.abs().atanh().copysign(x)),
        Unary::Erf => Box::new(libm::erf),
        Unary::Sigmoid => Box::new(sigmoid),
        Unary::Relu => Box::new(|x| if x < 0.0 { 0.0 } else { x }),
        Unary::Gelu => {
            Box::new(|x| 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)))
        }
        Unary::GeluTanh => {
            let c = (2.0 / std::f64::consts::PI).sqrt();
            Box::new(move |x| 0.5 * x * (1.0 + (c * (x + 0.044715 * x * x * x)).tanh()))
        }
        Unary::Swish { alpha } => {
            let alpha = f64::from(alpha);
            Box::new(move |x| x * sigmoid(alpha * x))
        }
        Unary::Softplus => Box::new(softplus),
        Unary::Softsign => Box::new(|x| x / (1.0 + x.abs())),
        Unary::Mish => Box::new(move |x| x * softplus(x).tanh()),
        Unary::HardSwish => Box::new(|x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
        Unary::HardSigmoid { alpha, beta } => {
            let (alpha, beta) = (f64::from(alpha), f64::from(beta));
            Box::new(move |x| (alpha * x + beta).clamp(0.0, 1.0))
        }
        Unary::LeakyRelu { alpha } => {
            let alpha = f64::from(alpha);
            Box::new(move |x| if x < 0.0 { alpha * x } else { x })
        }
        Unary::Elu { alpha } => {
            let alpha = f64::from(alpha);
            Box::new(move |x| if x < 0.0 { alpha * x.exp_m1() } else { x })
        }
        Unary::Celu { alpha } => {
            let alpha = f64::from(alpha);
            Box::new(move |x| if x < 0.0 { (alpha * (x / alpha).exp_m1()).min(0.0) } else { x })
        }
        Unary::Selu { alpha, gamma } => {
            let (alpha, gamma) = (f64::from(alpha), f64::from(gamma));
            Box::new(move |x| if x > 0.0 { gamma * x } else { gamma * alpha * x.exp_m1() })
        }
        Unary::ThresholdedRelu { alpha } => {
            let alpha = f64::from(alpha);
            Box::new(move |x| if x > alpha { x } else { 0.0 })
        }
        Unary::Shrink { bias, lambda } => {
            let (bias, lambda) = (f64::from(bias), f64::from(lambda));
            Box::new(move |x| {
                if x < -lambda {
                    x + bias
                } else if x > lambda {
                    x - bias
                } else {
                    0.0
                }
            })
        }
        Unary::Not | Unary::BitNot | Unary::IsNan | Unary::IsInf { .. } => return None,
    })
}

/// A real function of two real numbers; `None` for those that are not.
pub(super) fn real_binary(binary: Binary) -> Option<fn(f64, f64) -> f64> {
    Some(match binary {
        Binary::Add => |a, b| a + b,
        Binary::Sub => |a, b| a - b,
        Binary::Mul => |a, b| a * b,
        Binary::Div => |a, b| a / b,
        Binary::Mod => |a, b| {
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
        },
        Binary::Rem => |a, b| a % b,
        Binary::Pow => f64::powf,
        Binary::Min => |a, b| if a < b || a.is_nan() { a } else { b },
        Binary::Max => |a, b| if a > b || a.is_nan() { a } else { b },
        Binary::And
        | Binary::Or
        | Binary::Xor
        | Binary::BitAnd
        | Binary::BitOr
        | Binary::BitXor
        | Binary::ShiftLeft
        | Binary::ShiftRight
        | Binary::Equal
        | Binary::Less
        | Binary::LessOrEqual
        | Binary::Greater
        | Binary::GreaterOrEqual => return None,
    })
}

/// A function of an integer, before wrapping; real functions go by way of f64.
pub(super) fn integer_unary(unary: Unary) -> Box<dyn Fn(i64) -> i64> {
    match unary {
        Unary::Abs => Box::new(i64::wrapping_abs),
        Unary::Neg => Box::new(i64::wrapping_neg),
        Unary::Sign => Box::new(i64::signum),
        Unary::Relu => Box::new(|x| x.max(0)),
        Unary::BitNot => Box::new(|x| !x),
        Unary::Floor | Unary::Ceil | Unary::Round => Box::new(|x| x),
        _ => match real_unary(unary) {
            Some(real) => Box::new(move |x| real(x as f64) as i64),
            None => Box::new(|x| x),
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
        Binary::Pow => integer_power(a, b),
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
                0
            }
        }
        Binary::Equal => i64::from(a == b),
        Binary::Less => i64::from(a < b),
        Binary::LessOrEqual => i64::from(a <= b),
        Binary::Greater => i64::from(a > b),
        Binary::GreaterOrEqual => i64::from(a >= b),
    }
}

fn integer_power(base: i64, exponent: i64) -> i64 {
    match u32::try_from(exponent) {
        Ok(exponent) => base.wrapping_pow(exponent),
        // A negative power is a fraction, which truncates.
        Err(_) => match base {
            1 => 1,
            -1 => {
                if exponent % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            _ => 0,
        },
    }
}

/// A comparison; `None` for other functions.
pub(super) fn comparison<T: PartialOrd>(binary: Binary) -> Option<fn(&T, &T) -> bool> {
    Some(match binary {
        Binary::Equal => |a, b| a == b,
        Binary::Less => |a, b| a < b,
        Binary::LessOrEqual => |a, b| a <= b,
        Binary::Greater => |a, b| a > b,
        Binary::GreaterOrEqual => |a, b| a >= b,
        _ => return None,
    })
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
        _ => x,
    }
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
