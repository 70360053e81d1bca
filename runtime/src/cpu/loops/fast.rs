//! Loops over integers for the machine's vector unit, and conversions between integers and `f32`.

use super::{Elements, Scalar};
use crate::cpu::kernels::simd::{Kernel, dispatch};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Binary, Unary};
use pulp::Simd;

/// Runs a body with a name for the type of integers, whose elements compute as `i64`.
macro_rules! with_type {
    ($dtype:expr, $name:ident => $body:expr) => {
        match $dtype {
            DType::I8 => {
                type $name = i8;
                $body
            }
            DType::I16 => {
                type $name = i16;
                $body
            }
            DType::I32 => {
                type $name = i32;
                $body
            }
            DType::U8 => {
                type $name = u8;
                $body
            }
            DType::U16 => {
                type $name = u16;
                $body
            }
            DType::U32 => {
                type $name = u32;
                $body
            }
            _ => {
                type $name = i64;
                $body
            }
        }
    };
}

struct Map<'a, T, U, F>(&'a mut [T], &'a [U], F);

impl<T: Copy, U: Copy, F: Fn(U) -> T> Kernel for Map<'_, T, U, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        self.0.iter_mut().zip(self.1).for_each(|(y, &x)| *y = self.2(x));
    }
}

struct Zip<'a, T, F>(&'a mut [T], &'a [T], &'a [T], F);

impl<T: Copy, F: Fn(T, T) -> T> Kernel for Zip<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let pairs = self.1.iter().zip(self.2);
        self.0.iter_mut().zip(pairs).for_each(|(y, (&a, &b))| *y = self.3(a, b));
    }
}

/// `to[i] = function(from[i])`.
pub(super) fn map<T: Copy, U: Copy>(to: &mut [T], from: &[U], function: impl Fn(U) -> T) {
    dispatch(Map(to, from, function));
}

/// A function with parameters of few operations, in double precision where that is not exact; `false` if it is another.
pub(super) fn simple(unary: Unary, to: &mut [f32], from: &[f32]) -> bool {
    match unary {
        Unary::HardSigmoid { alpha, beta } => {
            let (alpha, beta) = (f64::from(alpha), f64::from(beta));
            map(to, from, |x: f32| (alpha * f64::from(x) + beta).clamp(0.0, 1.0) as f32);
        }
        Unary::LeakyRelu { alpha } => {
            map(to, from, |x: f32| if x < 0.0 { alpha * x } else { x });
        }
        Unary::ThresholdedRelu { alpha } => {
            map(to, from, |x: f32| if x > alpha { x } else { 0.0 });
        }
        Unary::Softsign => {
            map(to, from, |x: f32| {
                let x = f64::from(x);
                (x / (1.0 + x.abs())) as f32
            });
        }
        Unary::Shrink { bias, lambda } => {
            let bias = f64::from(bias);
            map(to, from, |x: f32| {
                let wide = f64::from(x);
                let moved = if x < -lambda { wide + bias } else { wide - bias };
                if x < -lambda || x > lambda || x.is_nan() { moved as f32 } else { 0.0 }
            });
        }
        _ => return false,
    }
    true
}

/// Whether all numbers are less than 2³¹ in magnitude.
struct AreSmall<'a>(&'a [f32]);

impl Kernel for AreSmall<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) -> bool {
        self.0.iter().fold(true, |small, x| small & (x.abs() < 2_147_483_648.0))
    }
}

/// Numbers truncated, modulo the width of the type; `false` if some are too large for that.
#[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // One of the types is i64.
pub(super) fn truncate(dtype: DType, to: &mut [i64], from: &[f32]) -> bool {
    if !dispatch(AreSmall(from)) {
        return false;
    }
    with_type!(dtype, T => map(to, from, |x| i64::from(x as i32 as T)));
    true
}

/// Integers modulo the width of the type.
#[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // One of the types is i64.
pub(super) fn wrap_all(dtype: DType, to: &mut [i64], from: &[i64]) {
    with_type!(dtype, T => map(to, from, |x| i64::from(x as T)));
}

/// A sum, a difference or a multiplication, modulo the width of the type; `false` if the function is another.
#[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // One of the types is i64.
pub(super) fn arithmetic(
    binary: Binary,
    dtype: DType,
    to: &mut [i64],
    a: Elements<'_>,
    b: Elements<'_>,
) -> bool {
    macro_rules! apply {
        ($function:ident) => {
            with_type!(dtype, T => {
                let function = |a: i64, b: i64| i64::from(a.$function(b) as T);
                match (a, b) {
                    (Elements::I64(a), Elements::I64(b)) => dispatch(Zip(to, a, b, function)),
                    (Elements::I64(a), Elements::Scalar(Scalar::I64(b))) => {
                        map(to, a, |a| function(a, b));
                    }
                    (Elements::Scalar(Scalar::I64(a)), Elements::I64(b)) => {
                        map(to, b, |b| function(a, b));
                    }
                    _ => return false,
                }
            })
        };
    }
    match binary {
        Binary::Add => apply!(wrapping_add),
        Binary::Sub => apply!(wrapping_sub),
        Binary::Mul => apply!(wrapping_mul),
        Binary::Div
        | Binary::Rem
        | Binary::Mod
        | Binary::Pow
        | Binary::Min
        | Binary::Max
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
        | Binary::GreaterOrEqual => return false,
    }
    true
}
