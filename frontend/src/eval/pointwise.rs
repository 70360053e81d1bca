//! Functions of one, two and three elements.

use super::error::EvalError;
use super::number::{
    bits, from_bits, from_integers, from_reals, integers, mapped, modulo, reals, reserve, with_bits,
};
use super::walk::{broadcast, broadcast_strides, walk};
use crate::dtype::DType;
use crate::op::{Binary, Unary};
use crate::tensor::Tensor;

/// [`crate::op::Op::Unary`].
pub(super) fn unary(op: Unary, x: &Tensor) -> Result<Tensor, EvalError> {
    let (dtype, shape) = (x.dtype(), x.shape().to_vec());
    let test = |f: fn(f64) -> bool| mapped(&reals(x)?, |v| u8::from(f(v)));
    match op {
        Unary::IsNan => return from_bits(DType::Bool, shape, test(f64::is_nan)?),
        Unary::IsInf { positive, negative } => {
            let is = |v| (v == f64::INFINITY && positive) || (v == f64::NEG_INFINITY && negative);
            return from_bits(DType::Bool, shape, mapped(&reals(x)?, |v| u8::from(is(v)))?);
        }
        _ if dtype.is_float() => {
            let f = real_function(op).ok_or(EvalError::Unsupported(dtype))?;
            return from_reals(dtype, shape, &mapped(&reals(x)?, f)?, true);
        }
        _ => {}
    }
    let f: fn(i128) -> i128 = match op {
        Unary::Not if dtype == DType::Bool => |v| 1 - v,
        _ if dtype == DType::Bool => return Err(EvalError::Unsupported(dtype)),
        Unary::Abs => i128::abs,
        Unary::Neg => |v| -v,
        Unary::Sign => i128::signum,
        Unary::Relu => |v| v.max(0),
        Unary::BitNot => |v| !v,
        Unary::Floor | Unary::Ceil | Unary::Round => |v| v,
        _ => return Err(EvalError::Unsupported(dtype)),
    };
    from_integers(dtype, shape, &mapped(&integers(x)?, f)?)
}

/// A function of real numbers.
pub(super) type RealFunction = Box<dyn Fn(f64) -> f64>;

/// The function on real numbers; `None` for those on truth values and integers alone.
pub(super) fn real_function(op: Unary) -> Option<RealFunction> {
    Some(match op {
        Unary::Abs => Box::new(f64::abs),
        Unary::Neg => Box::new(|x| -x),
        Unary::Sign => Box::new(|x| if x == 0.0 || x.is_nan() { x } else { x.signum() }),
        Unary::Reciprocal => Box::new(|x| 1.0 / x),
        Unary::Sqrt => Box::new(f64::sqrt),
        Unary::Exp => Box::new(libm::exp),
        Unary::Log => Box::new(libm::log),
        Unary::Floor => Box::new(f64::floor),
        Unary::Ceil => Box::new(f64::ceil),
        Unary::Round => Box::new(f64::round_ties_even),
        Unary::Sin => Box::new(libm::sin),
        Unary::Cos => Box::new(libm::cos),
        Unary::Tan => Box::new(libm::tan),
        Unary::Asin => Box::new(libm::asin),
        Unary::Acos => Box::new(libm::acos),
        Unary::Atan => Box::new(libm::atan),
        Unary::Sinh => Box::new(libm::sinh),
        Unary::Cosh => Box::new(libm::cosh),
        Unary::Tanh => Box::new(libm::tanh),
        Unary::Asinh => Box::new(libm::asinh),
        // libm gives numbers for some below 1.
        Unary::Acosh => Box::new(|x| if x < 1.0 { f64::NAN } else { libm::acosh(x) }),
        Unary::Atanh => Box::new(libm::atanh),
        Unary::Erf => Box::new(libm::erf),
        Unary::Sigmoid => Box::new(sigmoid),
        Unary::Relu => Box::new(|x| if x < 0.0 { 0.0 } else { x }),
        Unary::Gelu => Box::new(|x| {
            let tail = libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
            if tail == 0.0 { 0.0 } else { x * 0.5 * tail }
        }),
        Unary::GeluTanh => Box::new(|x| {
            let slope = (2.0 * std::f64::consts::FRAC_1_PI).sqrt();
            0.5 * x * (1.0 + libm::tanh(slope * (x + 0.044715 * x * x * x)))
        }),
        Unary::Swish { alpha } => Box::new(move |x| x * sigmoid(f64::from(alpha) * x)),
        Unary::Softplus => Box::new(softplus),
        Unary::Softsign => Box::new(|x| x / (1.0 + x.abs())),
        Unary::Mish => Box::new(|x| x * libm::tanh(softplus(x))),
        Unary::HardSwish => Box::new(|x| x * clamped(x / 6.0 + 0.5)),
        Unary::HardSigmoid { alpha, beta } => {
            Box::new(move |x| clamped(f64::from(alpha) * x + f64::from(beta)))
        }
        Unary::LeakyRelu { alpha } => {
            Box::new(move |x| if x < 0.0 { f64::from(alpha) * x } else { x })
        }
        Unary::Elu { alpha } => {
            Box::new(move |x| if x < 0.0 { f64::from(alpha) * libm::expm1(x) } else { x })
        }
        Unary::Celu { alpha } => Box::new(move |x| {
            let alpha = f64::from(alpha);
            if x < 0.0 { (alpha * libm::expm1(x / alpha)).min(0.0) } else { x }
        }),
        Unary::Selu { alpha, gamma } => Box::new(move |x| {
            let (alpha, gamma) = (f64::from(alpha), f64::from(gamma));
            if x > 0.0 { gamma * x } else { gamma * alpha * libm::expm1(x) }
        }),
        Unary::ThresholdedRelu { alpha } => {
            Box::new(move |x| if x > f64::from(alpha) { x } else { 0.0 })
        }
        Unary::Shrink { bias, lambda } => Box::new(move |x| match f64::from(lambda) {
            lambda if x < -lambda => x + f64::from(bias),
            lambda if x > lambda => x - f64::from(bias),
            _ if x.is_nan() => x,
            _ => 0.0,
        }),
        Unary::Not | Unary::BitNot | Unary::IsNan | Unary::IsInf { .. } => return None,
    })
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// Exact for large |x| too.
fn softplus(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + libm::log1p(libm::exp(-x.abs())) }
}

/// Between 0 and 1; NaN stays.
fn clamped(x: f64) -> f64 {
    x.clamp(0.0, 1.0)
}

/// [`crate::op::Op::Binary`].
pub(super) fn binary(op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor, EvalError> {
    let dtype = a.dtype();
    let mixed = dtype != b.dtype();
    if mixed && op != Binary::Pow {
        return Err(EvalError::Mismatch { expected: dtype, actual: b.dtype() });
    }
    let unsupported = || EvalError::Unsupported(dtype);
    if op == Binary::Pow && (dtype.is_float() || b.dtype().is_float()) {
        let (shape, values) = pairs(a, b, &reals(a)?, &reals(b)?, libm::pow)?;
        return from_reals(dtype, shape, &values, true);
    }
    if dtype.is_float() {
        let (x, y) = (reals(a)?, reals(b)?);
        if let Some(holds) = comparison::<f64>(op) {
            let (shape, values) = pairs(a, b, &x, &y, |x, y| u8::from(holds(&x, &y)))?;
            return from_bits(DType::Bool, shape, values);
        }
        let f = real_operation(op).ok_or_else(unsupported)?;
        let (shape, values) = pairs(a, b, &x, &y, f)?;
        return from_reals(dtype, shape, &values, true);
    }
    let (x, y) = (integers(a)?, integers(b)?);
    if let Some(holds) = comparison::<i128>(op) {
        let (shape, values) = pairs(a, b, &x, &y, |x, y| u8::from(holds(&x, &y)))?;
        return from_bits(DType::Bool, shape, values);
    }
    let logical = matches!(op, Binary::And | Binary::Or | Binary::Xor);
    let extremum = matches!(op, Binary::Min | Binary::Max);
    if !extremum && logical != (dtype == DType::Bool) {
        return Err(unsupported());
    }
    let width = dtype.file_bits() as i128;
    let inside = |by: &i128| (0..width).contains(by);
    let (shape, values) = match op {
        Binary::ShiftLeft => pairs(a, b, &x, &y, |x, y| if inside(&y) { x << y } else { 0 })?,
        // Past the width only the sign is left.
        Binary::ShiftRight => pairs(a, b, &x, &y, |x, y| x >> if inside(&y) { y } else { width })?,
        Binary::Pow => pairs(a, b, &x, &y, |x, y| integer_power(x, y, dtype))?,
        _ => pairs(a, b, &x, &y, integer_operation(op).ok_or_else(unsupported)?)?,
    };
    from_integers(dtype, shape, &values)
}

/// `f` of the elements of `a` and `b`, given decoded, under the broadcast shape.
fn pairs<T: Copy, U>(
    a: &Tensor,
    b: &Tensor,
    x: &[T],
    y: &[T],
    f: impl Fn(T, T) -> U,
) -> Result<(Vec<usize>, Vec<U>), EvalError> {
    let refuse = || EvalError::shape("operands do not broadcast", &[a.shape(), b.shape()]);
    let shape = broadcast(&[a.shape(), b.shape()]).ok_or_else(refuse)?;
    let left = broadcast_strides(a.shape(), &shape).ok_or_else(refuse)?;
    let right = broadcast_strides(b.shape(), &shape).ok_or_else(refuse)?;
    let mut values = reserve(&shape)?;
    walk(&shape, [&left, &right], [0, 0], |[i, j]| values.push(f(x[i], y[j])));
    Ok((shape, values))
}

fn comparison<T: PartialOrd>(op: Binary) -> Option<fn(&T, &T) -> bool> {
    match op {
        Binary::Equal => Some(T::eq),
        Binary::Less => Some(T::lt),
        Binary::LessOrEqual => Some(T::le),
        Binary::Greater => Some(T::gt),
        Binary::GreaterOrEqual => Some(T::ge),
        _ => None,
    }
}

fn real_operation(op: Binary) -> Option<fn(f64, f64) -> f64> {
    Some(match op {
        Binary::Add => |a, b| a + b,
        Binary::Sub => |a, b| a - b,
        Binary::Mul => |a, b| a * b,
        Binary::Div => |a, b| a / b,
        Binary::Mod => |a, b| match libm::fmod(a, b) {
            0.0 => 0.0_f64.copysign(b),
            rest if (rest < 0.0) != (b < 0.0) => rest + b,
            rest => rest,
        },
        Binary::Rem => libm::fmod,
        Binary::Min => |a, b| if a < b || a.is_nan() { a } else { b },
        Binary::Max => |a, b| if a > b || a.is_nan() { a } else { b },
        _ => return None,
    })
}

fn integer_operation(op: Binary) -> Option<fn(i128, i128) -> i128> {
    Some(match op {
        Binary::Add => i128::wrapping_add,
        Binary::Sub => i128::wrapping_sub,
        Binary::Mul => i128::wrapping_mul,
        Binary::Div => |a, b| a.checked_div(b).unwrap_or(0),
        Binary::Mod => |a, b| match a.checked_rem(b).unwrap_or(0) {
            rest if rest != 0 && (rest < 0) != (b < 0) => rest + b,
            rest => rest,
        },
        Binary::Rem => |a, b| a.checked_rem(b).unwrap_or(0),
        Binary::Min => i128::min,
        Binary::Max => i128::max,
        Binary::And | Binary::BitAnd => |a, b| a & b,
        Binary::Or | Binary::BitOr => |a, b| a | b,
        Binary::Xor | Binary::BitXor => |a, b| a ^ b,
        _ => return None,
    })
}

/// `base ^ exponent` modulo the width of the type; a fraction is cut to zero.
fn integer_power(base: i128, exponent: i128, dtype: DType) -> i128 {
    match (base, exponent) {
        (1, _) => return 1,
        (-1, _) => return if exponent % 2 == 0 { 1 } else { -1 },
        (_, exponent) if exponent < 0 => return 0,
        _ => {}
    }
    let (mut result, mut square, mut left) = (1_i128, base, exponent);
    while left > 0 {
        if left % 2 == 1 {
            result = modulo(dtype, result.wrapping_mul(square));
        }
        square = modulo(dtype, square.wrapping_mul(square));
        left /= 2;
    }
    result
}

/// [`crate::op::Op::Select`].
pub(super) fn select(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor, EvalError> {
    if condition.dtype() != DType::Bool {
        return Err(EvalError::Mismatch { expected: DType::Bool, actual: condition.dtype() });
    }
    if a.dtype() != b.dtype() {
        return Err(EvalError::Mismatch { expected: a.dtype(), actual: b.dtype() });
    }
    let shapes = [condition.shape(), a.shape(), b.shape()];
    let refuse = || EvalError::shape("operands do not broadcast", &shapes);
    let shape = broadcast(&shapes).ok_or_else(refuse)?;
    let mut strides = Vec::new();
    for from in shapes {
        strides.push(broadcast_strides(from, &shape).ok_or_else(refuse)?);
    }
    let holds = condition.bytes();
    with_bits!(a.dtype(), B => {
        let (x, y) = (bits::<B>(a), bits::<B>(b));
        let mut values = reserve(&shape)?;
        walk(&shape, [&strides[0], &strides[1], &strides[2]], [0; 3], |[c, i, j]| {
            values.push(if holds[c] != 0 { x[i] } else { y[j] });
        });
        from_bits(a.dtype(), shape, values)
    })
}

/// [`crate::op::Op::Cast`].
pub(super) fn cast(x: &Tensor, to: DType, saturate: bool) -> Result<Tensor, EvalError> {
    let shape = x.shape().to_vec();
    if x.dtype() == to {
        return Ok(x.clone());
    }
    if let Some(wide) = widened(x, to) {
        return wide;
    }
    let narrow_real = to.is_float() && to.size() == 1;
    if x.dtype().is_float() || narrow_real {
        return from_reals(to, shape, &reals(x)?, saturate);
    }
    from_integers(to, shape, &integers(x)?)
}

/// Bytes as larger numbers, none of which is rounded.
fn widened(x: &Tensor, to: DType) -> Option<Result<Tensor, EvalError>> {
    macro_rules! each {
        ($from:ty, $to:ty) => {{
            let elements = x.as_slice::<$from>().ok()?.iter().map(|&x| <$to>::from(x)).collect();
            Some(Tensor::from_vec::<$to>(x.shape().to_vec(), elements).map_err(EvalError::from))
        }};
    }
    match (x.dtype(), to) {
        (DType::I8, DType::I32) => each!(i8, i32),
        (DType::U8, DType::I32) => each!(u8, i32),
        (DType::I8, DType::F32) => each!(i8, f32),
        (DType::U8, DType::F32) => each!(u8, f32),
        _ => None,
    }
}
