//! Elements in the two forms that are computed with: every real type as `f64`, every integer as `i128`.
//!
//! Both hold all values of all element types. A result is rounded once, or taken modulo its width, when it
//! is encoded.

use super::error::EvalError;
use crate::dtype::DType;
use crate::narrow;
use crate::tensor::{Element, MAX_ELEMENTS, Tensor, checked_elements};
use bytes::Bytes;
use half::{bf16, f16};

/// One of the two forms.
pub(super) trait Number: Copy + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn is_nan(self) -> bool;
    /// The smallest and the largest value of an element type.
    fn limits(dtype: DType) -> (Self, Self);
    fn decode(tensor: &Tensor) -> Result<Vec<Self>, EvalError>;
    fn encode(dtype: DType, shape: Vec<usize>, values: Vec<Self>) -> Result<Tensor, EvalError>;

    /// The smaller; NaN if either is.
    fn smaller(self, other: Self) -> Self {
        if self.is_nan() || self < other { self } else { other }
    }

    /// The larger; NaN if either is.
    fn larger(self, other: Self) -> Self {
        if self.is_nan() || self > other { self } else { other }
    }
}

impl Number for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn times(self, other: Self) -> Self {
        self * other
    }
    fn is_nan(self) -> bool {
        self.is_nan()
    }
    fn limits(_: DType) -> (Self, Self) {
        (f64::NEG_INFINITY, f64::INFINITY)
    }
    fn decode(tensor: &Tensor) -> Result<Vec<Self>, EvalError> {
        reals(tensor)
    }
    fn encode(dtype: DType, shape: Vec<usize>, values: Vec<Self>) -> Result<Tensor, EvalError> {
        from_reals(dtype, shape, &values, true)
    }
}

impl Number for i128 {
    const ZERO: Self = 0;
    const ONE: Self = 1;
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    fn times(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
    fn is_nan(self) -> bool {
        false
    }
    fn limits(dtype: DType) -> (Self, Self) {
        limits(dtype)
    }
    fn decode(tensor: &Tensor) -> Result<Vec<Self>, EvalError> {
        integers(tensor)
    }
    fn encode(dtype: DType, shape: Vec<usize>, values: Vec<Self>) -> Result<Tensor, EvalError> {
        from_integers(dtype, shape, &values)
    }
}

/// Runs an expression with `$N` as the form for elements of a type.
macro_rules! with_number {
    ($dtype:expr, $N:ident => $body:expr) => {
        if $dtype.is_float() {
            type $N = f64;
            $body
        } else {
            type $N = i128;
            $body
        }
    };
}
pub(super) use with_number;

/// Runs an expression with `$B` as the unsigned integer of as many bytes.
macro_rules! with_bits {
    ($dtype:expr, $B:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $B = u8;
                $body
            }
            2 => {
                type $B = u16;
                $body
            }
            4 => {
                type $B = u32;
                $body
            }
            _ => {
                type $B = u64;
                $body
            }
        }
    };
}
pub(super) use with_bits;

/// The smallest and the largest integer of a type (0 and 1 for truth values).
fn limits(dtype: DType) -> (i128, i128) {
    let bits = dtype.file_bits();
    match dtype {
        DType::Bool => (0, 1),
        _ if dtype.is_signed_integer() => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    }
}

/// The number of elements of a shape that may be allocated.
pub(super) fn elements(shape: &[usize]) -> Result<usize, EvalError> {
    checked_elements(shape)
        .filter(|&count| count <= MAX_ELEMENTS)
        .ok_or_else(|| EvalError::Memory(shape.to_vec()))
}

/// An empty vector with capacity for the elements of a shape.
pub(super) fn reserve<T>(shape: &[usize]) -> Result<Vec<T>, EvalError> {
    let mut values = Vec::new();
    let refuse = |_| EvalError::Memory(shape.to_vec());
    values.try_reserve_exact(elements(shape)?).map_err(refuse)?;
    Ok(values)
}

/// As many equal elements as a shape has.
pub(super) fn filled<T: Copy>(shape: &[usize], value: T) -> Result<Vec<T>, EvalError> {
    let mut values = reserve(shape)?;
    values.resize(elements(shape)?, value);
    Ok(values)
}

/// `f` of every element.
pub(super) fn mapped<T: Copy, U>(values: &[T], f: impl FnMut(T) -> U) -> Result<Vec<U>, EvalError> {
    let mut result = reserve(&[values.len()])?;
    result.extend(values.iter().copied().map(f));
    Ok(result)
}

/// The elements' bits.
pub(super) fn bits<B: bytemuck::Pod>(tensor: &Tensor) -> &[B] {
    if tensor.is_empty() { &[] } else { bytemuck::cast_slice(tensor.bytes()) }
}

/// A tensor of these bits.
pub(super) fn from_bits<B: bytemuck::Pod + Send>(
    dtype: DType,
    shape: Vec<usize>,
    values: Vec<B>,
) -> Result<Tensor, EvalError> {
    Ok(Tensor::new(dtype, shape, Bytes::from_owner(Bits(values)))?)
}

/// Vectors of bits as the owner of a tensor's bytes.
struct Bits<B>(Vec<B>);

impl<B: bytemuck::Pod> AsRef<[u8]> for Bits<B> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// The elements as `f64`; integers too.
pub(crate) fn reals(tensor: &Tensor) -> Result<Vec<f64>, EvalError> {
    let dtype = tensor.dtype();
    match dtype {
        DType::F32 => mapped(bits::<f32>(tensor), f64::from),
        DType::F64 => mapped(bits::<f64>(tensor), |x| x),
        DType::F16 => mapped(bits::<f16>(tensor), f64::from),
        DType::BF16 => mapped(bits::<bf16>(tensor), f64::from),
        DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => {
            let real = |x| narrow::to_f32(dtype, x).map_or(f64::NAN, f64::from);
            mapped(bits::<u8>(tensor), real)
        }
        DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::Bool
        | DType::I4
        | DType::U4
        | DType::I2
        | DType::U2 => mapped(&integers(tensor)?, |x| x as f64),
    }
}

/// An element of integers, by its number in row-major order, if a signed integer of 64 bits holds it; truth values are 0 and 1.
pub(crate) fn integer_at(tensor: &Tensor, at: usize) -> Option<i64> {
    let dtype = tensor.dtype();
    match dtype {
        DType::I8 => Some(bits::<i8>(tensor)[at].into()),
        DType::I16 => Some(bits::<i16>(tensor)[at].into()),
        DType::I32 => Some(bits::<i32>(tensor)[at].into()),
        DType::I64 => Some(bits::<i64>(tensor)[at]),
        DType::U8 => Some(bits::<u8>(tensor)[at].into()),
        DType::U16 => Some(bits::<u16>(tensor)[at].into()),
        DType::U32 => Some(bits::<u32>(tensor)[at].into()),
        DType::U64 => i64::try_from(bits::<u64>(tensor)[at]).ok(),
        DType::Bool => Some(i64::from(bits::<u8>(tensor)[at] != 0)),
        DType::I4 | DType::U4 | DType::I2 | DType::U2 => {
            i64::try_from(modulo(dtype, bits::<u8>(tensor)[at].into())).ok()
        }
        DType::F32
        | DType::F64
        | DType::F16
        | DType::BF16
        | DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => None,
    }
}

/// The elements as integers; truth values are 0 and 1.
///
/// # Errors
/// [`EvalError::Unsupported`] for real types.
pub(crate) fn integers(tensor: &Tensor) -> Result<Vec<i128>, EvalError> {
    let dtype = tensor.dtype();
    match dtype {
        DType::I8 => mapped(bits::<i8>(tensor), i128::from),
        DType::I16 => mapped(bits::<i16>(tensor), i128::from),
        DType::I32 => mapped(bits::<i32>(tensor), i128::from),
        DType::I64 => mapped(bits::<i64>(tensor), i128::from),
        DType::U8 => mapped(bits::<u8>(tensor), i128::from),
        DType::U16 => mapped(bits::<u16>(tensor), i128::from),
        DType::U32 => mapped(bits::<u32>(tensor), i128::from),
        DType::U64 => mapped(bits::<u64>(tensor), i128::from),
        DType::Bool => mapped(bits::<u8>(tensor), |x| i128::from(x != 0)),
        DType::I4 | DType::U4 | DType::I2 | DType::U2 => {
            mapped(bits::<u8>(tensor), |x| modulo(dtype, i128::from(x)))
        }
        DType::F32
        | DType::F64
        | DType::F16
        | DType::BF16
        | DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => Err(EvalError::Unsupported(dtype)),
    }
}

/// The integer of a type that equals `value` modulo its width.
pub(super) fn modulo(dtype: DType, value: i128) -> i128 {
    let unused = 128 - dtype.file_bits();
    if dtype.is_signed_integer() {
        (value << unused) >> unused
    } else {
        (((value as u128) << unused) >> unused) as i128
    }
}

/// Truncated; what is beyond all integers, as infinities are, becomes the limit of the type, and NaN zero.
fn truncated(dtype: DType, value: f64) -> i128 {
    if value.abs() >= 2f64.powi(127) {
        let (low, high) = limits(dtype);
        return if value < 0.0 { low } else { high };
    }
    value as i128
}

/// A tensor of real numbers, each rounded once; integer types truncate, truth is what is not zero.
/// `saturate` as in [`narrow::from_f64`].
pub(crate) fn from_reals(
    dtype: DType,
    shape: Vec<usize>,
    values: &[f64],
    saturate: bool,
) -> Result<Tensor, EvalError> {
    match dtype {
        DType::F32 => typed(shape, mapped(values, |x| x as f32)?),
        DType::F64 => typed(shape, mapped(values, |x| x)?),
        DType::F16 => typed(shape, mapped(values, f16::from_f64)?),
        DType::BF16 => typed(shape, mapped(values, bf16::from_f64)?),
        DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => {
            let narrow = |x| narrow::from_f64(dtype, x, saturate).unwrap_or(0);
            from_bits(dtype, shape, mapped(values, narrow)?)
        }
        DType::Bool => from_bits(dtype, shape, mapped(values, |x| u8::from(x != 0.0))?),
        DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::I4
        | DType::U4
        | DType::I2
        | DType::U2 => from_integers(dtype, shape, &mapped(values, |x| truncated(dtype, x))?),
    }
}

/// A tensor of integers, each modulo the width; truth is what is not zero, reals are rounded once.
pub(crate) fn from_integers(
    dtype: DType,
    shape: Vec<usize>,
    values: &[i128],
) -> Result<Tensor, EvalError> {
    match dtype {
        DType::I8 => typed(shape, mapped(values, |x| x as i8)?),
        DType::I16 => typed(shape, mapped(values, |x| x as i16)?),
        DType::I32 => typed(shape, mapped(values, |x| x as i32)?),
        DType::I64 => typed(shape, mapped(values, |x| x as i64)?),
        DType::U8 => typed(shape, mapped(values, |x| x as u8)?),
        DType::U16 => typed(shape, mapped(values, |x| x as u16)?),
        DType::U32 => typed(shape, mapped(values, |x| x as u32)?),
        DType::U64 => typed(shape, mapped(values, |x| x as u64)?),
        DType::Bool => from_bits(dtype, shape, mapped(values, |x| u8::from(x != 0))?),
        DType::I4 | DType::U4 | DType::I2 | DType::U2 => {
            from_bits(dtype, shape, mapped(values, |x| modulo(dtype, x) as u8)?)
        }
        // Not through f64: that would round twice.
        DType::F32 => typed(shape, mapped(values, |x| x as f32)?),
        DType::F64
        | DType::F16
        | DType::BF16
        | DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => from_reals(dtype, shape, &mapped(values, |x| x as f64)?, true),
    }
}

fn typed<T: Element>(shape: Vec<usize>, values: Vec<T>) -> Result<Tensor, EvalError> {
    Ok(Tensor::from_vec(shape, values)?)
}
