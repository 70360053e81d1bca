//! Elements of any type as numbers of three forms, which hold all values of all types between them: real numbers as
//! `f64`, integers of up to 64 bits as `i64`, those without a sign of 64 bits as `u64`. As in the reference evaluator a
//! result is rounded once, or taken modulo its width, when it is stored.

use crate::threads::{self, chunks, chunks_mut};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use graphene_frontend::narrow;
use half::{bf16, f16};
use std::cmp::Ordering;

/// Elements that a thread converts at a time.
const CHUNK: usize = 1 << 14;

/// One of the forms.
pub(crate) trait Number: Pod + PartialOrd + Send + Sync {
    /// The type whose elements have this form in memory.
    const OWN: DType;
    const ZERO: Self;
    const ONE: Self;
    /// What means of integers are summed in: as wide as no sum is.
    type Total: Pod + Send + Sync;
    const NOTHING: Self::Total;

    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn magnitude(self) -> Self;
    fn add_to(self, total: Self::Total) -> Self::Total;
    /// A total divided by a count; integers are truncated, and nothing divided by nothing is 0 for them.
    fn mean(total: Self::Total, count: usize) -> Self;
    /// The smallest and the largest value of an element type.
    fn limits(dtype: DType) -> (Self, Self);
    /// The elements of a type as numbers.
    fn decode(dtype: DType, bytes: &[u8], numbers: &mut [Self]);
    /// Numbers as elements of a type.
    fn encode(dtype: DType, numbers: &[Self], bytes: &mut [u8]);

    fn is_nan(self) -> bool {
        self.partial_cmp(&self).is_none()
    }

    /// The smaller; NaN if either is.
    fn smaller(self, other: Self) -> Self {
        if self.is_nan() || self < other { self } else { other }
    }

    /// The larger; NaN if either is.
    fn larger(self, other: Self) -> Self {
        if self.is_nan() || self > other { self } else { other }
    }

    /// An order of all numbers, in which NaN is the largest.
    fn order(self, other: Self) -> Ordering {
        self.partial_cmp(&other).unwrap_or_else(|| self.is_nan().cmp(&other.is_nan()))
    }
}

/// Runs an expression with `$N` as the form of the elements of a type.
macro_rules! with_number {
    ($dtype:expr, $N:ident => $body:expr) => {
        match $dtype {
            dtype if dtype.is_float() => {
                type $N = f64;
                $body
            }
            graphene_frontend::dtype::DType::U64 => {
                type $N = u64;
                $body
            }
            _ => {
                type $N = i64;
                $body
            }
        }
    };
}
pub(crate) use with_number;

/// The elements of a type as numbers, by all threads.
pub(crate) fn decode<N: Number>(dtype: DType, bytes: &[u8], numbers: &mut [N]) {
    let parts = (chunks_mut(numbers, CHUNK), chunks(bytes, CHUNK * dtype.size()));
    threads::each(1, parts, |_, (numbers, bytes)| N::decode(dtype, bytes, numbers));
}

/// Numbers as elements of a type, by all threads.
pub(crate) fn encode<N: Number>(dtype: DType, numbers: &[N], bytes: &mut [u8]) {
    let parts = (chunks(numbers, CHUNK), chunks_mut(bytes, CHUNK * dtype.size()));
    threads::each(1, parts, |_, (numbers, bytes)| N::encode(dtype, numbers, bytes));
}

/// The integer of a type narrower than a byte that equals `x` modulo its width; integers of other types are as they are.
#[inline(always)]
pub(crate) fn packed(dtype: DType, x: i64) -> i64 {
    match dtype {
        DType::I4 => x << 60 >> 60,
        DType::U4 => x & 15,
        DType::I2 => x << 62 >> 62,
        DType::U2 => x & 3,
        _ => x,
    }
}

/// The smallest and the largest integer of a type.
pub(crate) fn limits(dtype: DType) -> (i128, i128) {
    let bits = dtype.file_bits();
    match dtype {
        DType::Bool => (0, 1),
        _ if dtype.is_signed_integer() => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    }
}

/// A real number truncated; what 128 bits do not hold, as infinities, is the limit of the type, and NaN zero.
pub(crate) fn truncated(dtype: DType, x: f64) -> i128 {
    if x.abs() < 2_f64.powi(127) || x.is_nan() {
        return x as i128;
    }
    let (low, high) = limits(dtype);
    if x < 0.0 { low } else { high }
}

fn map<T: Pod, U: Pod>(to: &mut [u8], from: &[T], convert: impl Fn(T) -> U) {
    cast_slice_mut(to).iter_mut().zip(from).for_each(|(to, &x)| *to = convert(x));
}

/// Decodes, or encodes, by the storage of each type of integers: the same for both forms of integers.
macro_rules! integers {
    ($form:ty) => {
        fn decode(dtype: DType, bytes: &[u8], numbers: &mut [Self]) {
            let to = cast_slice_mut::<$form, u8>(numbers);
            match dtype {
                DType::I8 => map(to, cast_slice(bytes), |x: i8| x as $form),
                DType::I16 => map(to, cast_slice(bytes), |x: i16| x as $form),
                DType::I32 => map(to, cast_slice(bytes), |x: i32| x as $form),
                DType::I64 | DType::U64 => to.copy_from_slice(bytes),
                DType::U16 => map(to, cast_slice(bytes), |x: u16| x as $form),
                DType::U32 => map(to, cast_slice(bytes), |x: u32| x as $form),
                DType::Bool => map(to, bytes, |x| <$form>::from(x != 0)),
                _ => map(to, bytes, |x| packed(dtype, x.into()) as $form),
            }
        }

        fn encode(dtype: DType, numbers: &[Self], bytes: &mut [u8]) {
            match dtype.size() {
                _ if dtype == DType::Bool => map(bytes, numbers, |x| u8::from(x != 0)),
                1 => map(bytes, numbers, |x| packed(dtype, x as i64) as u8),
                2 => map(bytes, numbers, |x| x as u16),
                4 => map(bytes, numbers, |x| x as u32),
                _ => bytes.copy_from_slice(cast_slice(numbers)),
            }
        }

        const ZERO: Self = 0;
        const ONE: Self = 1;
        type Total = i128;
        const NOTHING: i128 = 0;

        fn plus(self, other: Self) -> Self {
            self.wrapping_add(other)
        }

        fn times(self, other: Self) -> Self {
            self.wrapping_mul(other)
        }

        fn add_to(self, total: i128) -> i128 {
            total.wrapping_add(self.into())
        }

        fn mean(total: i128, count: usize) -> Self {
            total.checked_div(count as i128).unwrap_or(0) as $form
        }

        fn limits(dtype: DType) -> (Self, Self) {
            let (low, high) = limits(dtype);
            (low as $form, high as $form)
        }
    };
}

impl Number for i64 {
    const OWN: DType = DType::I64;
    integers!(i64);

    fn magnitude(self) -> Self {
        self.wrapping_abs()
    }
}

impl Number for u64 {
    const OWN: DType = DType::U64;
    integers!(u64);

    fn magnitude(self) -> Self {
        self
    }
}

impl Number for f64 {
    const OWN: DType = DType::F64;
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    type Total = f64;
    const NOTHING: f64 = 0.0;

    fn plus(self, other: Self) -> Self {
        self + other
    }

    fn times(self, other: Self) -> Self {
        self * other
    }

    fn magnitude(self) -> Self {
        self.abs()
    }

    fn add_to(self, total: f64) -> f64 {
        total + self
    }

    fn mean(total: f64, count: usize) -> Self {
        total / count as f64
    }

    fn limits(_: DType) -> (Self, Self) {
        (f64::NEG_INFINITY, f64::INFINITY)
    }

    /// Integers too.
    fn decode(dtype: DType, bytes: &[u8], numbers: &mut [Self]) {
        let to = cast_slice_mut::<f64, u8>(numbers);
        match dtype {
            DType::F32 => map(to, cast_slice(bytes), |x: f32| f64::from(x)),
            DType::F64 => to.copy_from_slice(bytes),
            DType::F16 => map(to, cast_slice(bytes), |x: f16| x.to_f64()),
            DType::BF16 => map(to, cast_slice(bytes), |x: bf16| x.to_f64()),
            DType::F8E4M3Fn
            | DType::F8E4M3FnUz
            | DType::F8E5M2
            | DType::F8E5M2FnUz
            | DType::F8E8M0
            | DType::F4E2M1 => {
                map(to, bytes, |x| narrow::to_f32(dtype, x).map_or(f64::NAN, f64::from));
            }
            DType::I8 => map(to, cast_slice(bytes), |x: i8| f64::from(x)),
            DType::I16 => map(to, cast_slice(bytes), |x: i16| f64::from(x)),
            DType::I32 => map(to, cast_slice(bytes), |x: i32| f64::from(x)),
            DType::I64 => map(to, cast_slice(bytes), |x: i64| x as f64),
            DType::U16 => map(to, cast_slice(bytes), |x: u16| f64::from(x)),
            DType::U32 => map(to, cast_slice(bytes), |x: u32| f64::from(x)),
            DType::U64 => map(to, cast_slice(bytes), |x: u64| x as f64),
            DType::Bool => map(to, bytes, |x| f64::from(u8::from(x != 0))),
            DType::U8 | DType::I4 | DType::U4 | DType::I2 | DType::U2 => {
                map(to, bytes, |x| packed(dtype, x.into()) as f64);
            }
        }
    }

    /// Integer types truncate.
    fn encode(dtype: DType, numbers: &[Self], bytes: &mut [u8]) {
        match dtype {
            DType::F32 => map(bytes, numbers, |x| x as f32),
            DType::F64 => bytes.copy_from_slice(cast_slice(numbers)),
            DType::F16 => map(bytes, numbers, f16::from_f64),
            DType::BF16 => map(bytes, numbers, bf16::from_f64),
            DType::F8E4M3Fn
            | DType::F8E4M3FnUz
            | DType::F8E5M2
            | DType::F8E5M2FnUz
            | DType::F8E8M0
            | DType::F4E2M1 => {
                map(bytes, numbers, |x| narrow::from_f64(dtype, x, true).unwrap_or(0));
            }
            DType::Bool => map(bytes, numbers, |x| u8::from(x != 0.0)),
            DType::I64 | DType::U64 => map(bytes, numbers, |x| truncated(dtype, x) as i64),
            DType::I32 | DType::U32 => map(bytes, numbers, |x| truncated(dtype, x) as i32),
            DType::I16 | DType::U16 => map(bytes, numbers, |x| truncated(dtype, x) as i16),
            DType::I8 | DType::U8 | DType::I4 | DType::U4 | DType::I2 | DType::U2 => {
                map(bytes, numbers, |x| packed(dtype, truncated(dtype, x) as i64) as u8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Number, decode, encode};
    use graphene_frontend::dtype::DType;

    /// Whether elements that are decoded and encoded are what they were.
    fn returns(dtype: DType) -> bool {
        let bytes: Vec<u64> = vec![0x0180_7f02_0103_0001, 0x4048_f5c3_3f80_0000];
        let bytes: &[u8] = bytemuck::cast_slice(&bytes);
        let len = bytes.len() / dtype.size();
        let mut back = [0_u64; 2];
        with_number!(dtype, N => {
            let mut numbers = vec![N::ZERO; len];
            decode(dtype, bytes, &mut numbers);
            encode(dtype, &numbers, bytemuck::cast_slice_mut(&mut back));
            let mut again = vec![N::ZERO; len];
            decode(dtype, bytemuck::cast_slice(&back), &mut again);
            numbers.iter().zip(&again).all(|(&a, &b)| a == b || a.is_nan() && b.is_nan())
        })
    }

    #[test]
    fn elements_of_all_types_are_numbers() {
        for dtype in DType::all() {
            assert!(returns(dtype), "{dtype}");
        }
    }

    #[test]
    fn integers_are_kept_modulo_their_width() {
        let stored = |dtype, number: i64| {
            let mut byte = [0];
            i64::encode(dtype, &[number], &mut byte);
            byte[0]
        };
        assert_eq!(stored(DType::I4, 9), 0xf9);
        assert_eq!(stored(DType::U4, -1), 15);
        assert_eq!(stored(DType::I2, 2), 0xfe);
        assert_eq!(stored(DType::U8, 257), 1);
        assert_eq!(stored(DType::Bool, 256), 1);
        let mut real = [0];
        f64::encode(DType::I8, &[f64::INFINITY], &mut real);
        assert_eq!(real, [127]);
        assert!(f64::NAN.smaller(1.0).is_nan() && 1.0.larger(f64::NAN).is_nan());
        assert!(f64::NAN.order(1.0).is_gt() && f64::NAN.order(f64::NAN).is_eq());
    }
}
