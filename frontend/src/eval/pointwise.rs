//! Functions of one, two and three elements.

use super::error::EvalError;
use super::number::{
    bits, from_bits, from_integers, from_reals, integers, mapped, modulo, reals, reserve, with_bits,
};
use super::walk::{broadcast, broadcast_strides, walk};
use crate::dtype::DType;
use crate::op::{Binary, FunctionClass, Portable, Unary};
use crate::tensor::Tensor;

/// [`crate::op::Op::Unary`].
pub(super) fn unary(op: Unary, x: &Tensor) -> Result<Tensor, EvalError> {
    let (dtype, shape) = (x.dtype(), x.shape().to_vec());
    if let Some(f) = op.meaning::<Portable>().filter(|_| dtype.is_float()) {
        return match op.info().class {
            FunctionClass::Test => {
                from_bits(DType::Bool, shape, mapped(&reals(x)?, |v| u8::from(f(v) != 0.0))?)
            }
            _ => from_reals(dtype, shape, &mapped(&reals(x)?, f)?, true),
        };
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

/// [`crate::op::Op::Binary`].
pub(super) fn binary(op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor, EvalError> {
    let dtype = a.dtype();
    let mixed = dtype != b.dtype();
    if mixed && op != Binary::Pow {
        return Err(EvalError::Mismatch { expected: dtype, actual: b.dtype() });
    }
    let unsupported = || EvalError::Unsupported(dtype);
    if op == Binary::Pow && (dtype.is_float() || b.dtype().is_float()) {
        let (shape, values) =
            pairs(a, b, &reals(a)?, &reals(b)?, op.meaning::<Portable>().ok_or_else(unsupported)?)?;
        return from_reals(dtype, shape, &values, true);
    }
    if dtype.is_float() {
        let (x, y) = (reals(a)?, reals(b)?);
        if let Some(holds) = op.comparison::<f64>() {
            let (shape, values) = pairs(a, b, &x, &y, |x, y| u8::from(holds(&x, &y)))?;
            return from_bits(DType::Bool, shape, values);
        }
        let f = op.meaning::<Portable>().ok_or_else(unsupported)?;
        let (shape, values) = pairs(a, b, &x, &y, f)?;
        return from_reals(dtype, shape, &values, true);
    }
    let (x, y) = (integers(a)?, integers(b)?);
    if let Some(holds) = op.comparison::<i128>() {
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
