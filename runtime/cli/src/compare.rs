//! Comparing outputs.

use crate::tolerance::{Bound, Tolerance};
use graphene_frontend::dtype::DType;
use graphene_frontend::narrow;
use graphene_frontend::tensor::Tensor;
use half::{bf16, f16};

/// How two tensors differ.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Difference {
    /// They have different types or shapes.
    Type {
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// They have the same type and shape.
    Elements(Elements),
}

/// How the elements of two tensors differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Elements {
    /// How many there are.
    pub(crate) count: usize,
    /// How many are too far apart.
    pub(crate) mismatches: usize,
    /// How many are NaN on both sides, which counts as agreeing.
    pub(crate) nans: usize,
    /// How many are the same infinity on both sides.
    pub(crate) infinities: usize,
    /// The largest finite magnitude that is expected.
    pub(crate) largest: f64,
    /// The least and the largest finite number found, and those expected; none without any.
    pub(crate) ranges: [Option<(f64, f64)>; 2],
    /// Whether zeros in place of what was found would have agreed.
    pub(crate) zeros_agree: bool,
    /// The largest distance.
    pub(crate) max_error: f64,
    /// The mean distance.
    pub(crate) mean_error: f64,
    /// The cosine of the angle between the two; 1 where both are zero.
    pub(crate) cosine: f64,
    /// The first element that is too far apart, in row-major order: place, found, expected.
    pub(crate) first: Option<(usize, f64, f64)>,
}

impl Elements {
    /// The largest distance in units of the largest magnitude that is expected; `None` where all is zero.
    pub(crate) fn relative_error(&self) -> Option<f64> {
        (self.largest > 0.0).then(|| self.max_error / self.largest)
    }
}

impl Difference {
    /// Whether the tensors agree.
    pub(crate) fn agrees(&self) -> bool {
        match self {
            Self::Type { .. } => false,
            Self::Elements(elements) => elements.mismatches == 0,
        }
    }
}

/// How `found` differs from `expected`. NaN agrees with NaN, an infinity with itself; integers and truth values
/// agree only if equal.
pub(crate) fn compare(found: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Difference {
    if found.dtype() != expected.dtype() || found.shape() != expected.shape() {
        return Difference::Type { expected: format!("{expected:?}"), found: format!("{found:?}") };
    }
    let bound = match found.dtype().is_float() {
        true => tolerance.of(|| numbers(expected)),
        false => Bound { rtol: 0.0, atol: 0.0 },
    };
    let mut sums = Sums::of(numbers(found).zip(numbers(expected)), bound);
    // Whole numbers of 64 bits and bits of narrow types do not all fit a real number: ask the bytes as well.
    let same_bytes = found.bytes() == expected.bytes();
    if !found.dtype().is_float() && !same_bytes && sums.mismatches == 0 {
        sums.mismatches = 1;
    }
    Difference::Elements(sums.finish(found.len()))
}

#[derive(Default)]
struct Sums {
    mismatches: usize,
    nans: usize,
    infinities: usize,
    largest: f64,
    ranges: [Option<(f64, f64)>; 2],
    /// Elements that zero is too far from.
    beyond_zero: usize,
    max: f64,
    total: f64,
    dot: f64,
    squares: [f64; 2],
    first: Option<(usize, f64, f64)>,
}

/// How numbers differ from those expected, of which there are as many.
pub(crate) fn compare_numbers(found: &[f64], expected: &[f64], bound: Bound) -> Elements {
    let pairs = found.iter().copied().zip(expected.iter().copied());
    Sums::of(pairs, bound).finish(found.len())
}

impl Sums {
    fn of(pairs: impl Iterator<Item = (f64, f64)>, bound: Bound) -> Self {
        let mut sums = Self::default();
        pairs.enumerate().for_each(|(place, (a, b))| sums.add(place, a, b, bound));
        sums
    }

    fn add(&mut self, place: usize, a: f64, b: f64, bound: Bound) {
        let nans = a.is_nan() && b.is_nan();
        self.nans += usize::from(nans);
        self.infinities += usize::from(a == b && a.is_infinite());
        for (range, number) in self.ranges.iter_mut().zip([a, b]) {
            if number.is_finite() {
                let (low, high) = range.get_or_insert((number, number));
                (*low, *high) = (low.min(number), high.max(number));
            }
        }
        if b.is_finite() {
            self.largest = self.largest.max(b.abs());
        }
        self.beyond_zero += usize::from(b.abs() > bound.atol + bound.rtol * b.abs());
        let same = a == b || nans;
        // A NaN or an infinity on one side only is infinitely far away.
        let error = if same {
            0.0
        } else {
            Some((a - b).abs()).filter(|e| e.is_finite()).unwrap_or(f64::INFINITY)
        };
        if error.is_infinite() || error > bound.atol + bound.rtol * b.abs() {
            self.mismatches += 1;
            self.first.get_or_insert((place, a, b));
        }
        self.max = self.max.max(error);
        self.total += error;
        if a.is_finite() && b.is_finite() {
            self.dot += a * b;
            self.squares[0] += a * a;
            self.squares[1] += b * b;
        }
    }

    fn finish(self, count: usize) -> Elements {
        let length = (self.squares[0] * self.squares[1]).sqrt();
        let cosine = match self.squares {
            [a, b] if a == 0.0 && b == 0.0 => 1.0,
            _ if length == 0.0 => 0.0,
            _ => self.dot / length,
        };
        Elements {
            count,
            mismatches: self.mismatches,
            nans: self.nans,
            infinities: self.infinities,
            largest: self.largest,
            ranges: self.ranges,
            zeros_agree: self.beyond_zero == 0,
            max_error: self.max,
            mean_error: self.total / count.max(1) as f64,
            cosine,
            first: self.first,
        }
    }
}

/// The elements as real numbers.
pub(crate) fn numbers(tensor: &Tensor) -> Box<dyn Iterator<Item = f64> + '_> {
    macro_rules! elements {
        ($ty:ty, $to:expr) => {{
            let to: fn(&$ty) -> f64 = $to;
            // The type has just been matched.
            Box::new(tensor.as_slice::<$ty>().unwrap_or_default().iter().map(to))
        }};
    }
    match tensor.dtype() {
        DType::F32 => elements!(f32, |x| f64::from(*x)),
        DType::F64 => elements!(f64, |x| *x),
        DType::F16 => elements!(f16, |x| x.to_f64()),
        DType::BF16 => elements!(bf16, |x| x.to_f64()),
        DType::I8 => elements!(i8, |x| f64::from(*x)),
        DType::I16 => elements!(i16, |x| f64::from(*x)),
        DType::I32 => elements!(i32, |x| f64::from(*x)),
        DType::I64 => elements!(i64, |x| *x as f64),
        DType::U8 => elements!(u8, |x| f64::from(*x)),
        DType::U16 => elements!(u16, |x| f64::from(*x)),
        DType::U32 => elements!(u32, |x| f64::from(*x)),
        DType::U64 => elements!(u64, |x| *x as f64),
        DType::Bool | DType::U4 | DType::U2 => {
            Box::new(tensor.bytes().iter().map(|&byte| f64::from(byte)))
        }
        // One byte each, the sign extended.
        DType::I4 | DType::I2 => {
            Box::new(tensor.bytes().iter().map(|&byte| f64::from(byte.cast_signed())))
        }
        DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => {
            let number =
                |&byte: &u8| narrow::to_f32(tensor.dtype(), byte).map_or(f64::NAN, f64::from);
            Box::new(tensor.bytes().iter().map(number))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Difference, Elements, compare};
    use crate::tolerance::{Bound, Tolerance};
    use graphene_frontend::tensor::{Element, Tensor};

    const TOLERANCE: Tolerance = Tolerance::Stated(Bound { rtol: 1e-3, atol: 1e-4 });

    fn elements<T: Element>(a: &[T], b: &[T]) -> Elements {
        let tensor = |x: &[T]| Tensor::from_vec(vec![x.len()], x.to_vec()).unwrap();
        match compare(&tensor(a), &tensor(b), TOLERANCE) {
            Difference::Elements(elements) => elements,
            other @ Difference::Type { .. } => panic!("{other:?}"),
        }
    }

    #[test]
    fn tolerance_is_absolute_and_relative() {
        let found = elements(&[1000.9_f32, 0.000_09, 1.0], &[1000.0, 0.0, 1.0]);
        assert_eq!(found.mismatches, 0);
        let found = elements(&[1002.0_f32, 0.000_2, 1.0], &[1000.0, 0.0, 1.0]);
        assert_eq!((found.mismatches, found.first.unwrap().0), (2, 0));
        assert_eq!(found.max_error, 2.0);
    }

    #[test]
    fn odd_numbers_agree_with_themselves_only() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert_eq!(elements(&[nan, inf, -inf], &[nan, inf, -inf]).mismatches, 0);
        assert_eq!(elements(&[nan, 1.0, inf, -inf], &[1.0, nan, 1.0, inf]).mismatches, 4);
        assert_eq!(elements(&[1_f32], &[inf]).mismatches, 1);
        // At other places they differ, however many there are on each side.
        let found = elements(&[nan, 1.0, nan], &[1.0, nan, nan]);
        assert_eq!((found.mismatches, found.nans), (2, 1));
        assert_eq!(elements(&[nan; 3], &[0.0; 3]).mismatches, 3);
    }

    #[test]
    fn whole_numbers_are_exact() {
        assert_eq!(elements(&[1_000_000_i64], &[1_000_001]).mismatches, 1);
        assert_eq!(elements(&[i64::MAX], &[i64::MAX - 1]).mismatches, 1);
        assert_eq!(elements(&[i64::MAX], &[i64::MAX]).mismatches, 0);
    }

    #[test]
    fn types_and_shapes_must_be_equal() {
        let a = Tensor::from_vec(vec![2, 1], vec![0_f32; 2]).unwrap();
        let b = Tensor::from_vec(vec![1, 2], vec![0_f32; 2]).unwrap();
        assert!(!compare(&a, &b, TOLERANCE).agrees());
    }

    #[test]
    fn errors_are_told_in_units_of_the_largest_value() {
        let found = elements(&[100.5_f32, -200.0, 0.0], &[100.0, -200.0, 0.0]);
        assert_eq!((found.max_error, found.largest), (0.5, 200.0));
        assert_eq!(found.relative_error(), Some(0.0025));
        assert_eq!(elements(&[0.0_f32; 2], &[0.0; 2]).relative_error(), None);
    }

    #[test]
    fn cosine_is_that_of_the_angle() {
        assert_eq!(elements(&[0_f32; 2], &[0.0; 2]).cosine, 1.0);
        assert_eq!(elements(&[1_f32, 0.0], &[0.0, 1.0]).cosine, 0.0);
        assert!((elements(&[1_f32, 2.0], &[2.0, 4.0]).cosine - 1.0).abs() < 1e-12);
    }
}
