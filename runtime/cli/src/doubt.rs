//! Comparisons that say little: outputs that agree, and would agree with much else.

use crate::compare::Elements;
use crate::human::error;

/// Why the agreement of an output says little.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Doubt {
    /// There is nothing to compare.
    Empty,
    /// So many of its elements are NaN on both sides.
    Nan(usize),
    /// So many of its elements are the same infinity on both sides.
    Infinite(usize),
    /// All its elements are zero, on one side at least.
    Zero,
    /// All its elements are this number, on one side at least.
    Constant(f64),
    /// Zeros in its place would agree: no element, of which this is the largest, is larger than the tolerance.
    Vanishing(f64),
    /// It is off by this part of its largest element, which a tolerance of few bits allows.
    Far(f64),
}

/// The part of the largest element from which on an error is doubted although it is within the tolerance.
const FAR: f64 = 0.05;

/// What makes one doubt the comparison of an output.
pub(crate) fn doubts(elements: &Elements) -> Vec<Doubt> {
    let Elements { count, nans, infinities, ranges, zeros_agree, largest, .. } = elements;
    let mut doubts = Vec::new();
    doubts.extend((*count == 0).then_some(Doubt::Empty));
    doubts.extend((*nans > 0).then_some(Doubt::Nan(*nans)));
    doubts.extend((*infinities > 0).then_some(Doubt::Infinite(*infinities)));
    let mut constants = ranges.iter().flatten().filter(|(low, high)| low == high);
    // What is no number is told of already.
    let finite = count - nans - infinities;
    match constants.next() {
        Some((number, _)) if *number == 0.0 => doubts.push(Doubt::Zero),
        Some((number, _)) if finite > 1 => doubts.push(Doubt::Constant(*number)),
        _ if *zeros_agree && finite > 0 => doubts.push(Doubt::Vanishing(*largest)),
        _ => {}
    }
    if doubts.is_empty() && elements.mismatches == 0 {
        doubts.extend(elements.relative_error().filter(|&off| off > FAR).map(Doubt::Far));
    }
    doubts
}

impl Doubt {
    /// What to say of an output of so many elements.
    pub(crate) fn said(self, count: usize) -> String {
        match self {
            Self::Empty => "it has no elements".to_owned(),
            Self::Nan(nans) => format!("{nans} of {count} elements are NaN on both sides"),
            Self::Infinite(many) => {
                format!("{many} of {count} elements are infinite on both sides")
            }
            Self::Zero => "all its elements are zero".to_owned(),
            Self::Constant(number) => format!("all its elements are {number}"),
            Self::Vanishing(largest) => {
                let largest = error(largest);
                format!(
                    "zeros would agree as well: its largest value, {largest}, is within the tolerance"
                )
            }
            Self::Far(part) => {
                let percent = 100.0 * part;
                format!(
                    "it is up to {percent:.0} % of its largest value off, as far as values of few bits may be; \
                     --bisect shows in which step that begins"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Doubt, doubts};
    use crate::compare::compare_numbers;
    use crate::tolerance::Bound;

    #[track_caller]
    fn check(found: &[f64], expected: &[f64], wanted: &[Doubt]) {
        let elements = compare_numbers(found, expected, Bound { rtol: 1e-3, atol: 1e-4 });
        assert_eq!(elements.mismatches, 0, "{elements:?}");
        assert_eq!(doubts(&elements), wanted, "{found:?} {expected:?}");
    }

    #[test]
    fn what_tells_little_is_doubted() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        check(&[1.0, 2.0], &[1.0, 2.0], &[]);
        check(&[], &[], &[Doubt::Empty]);
        check(&[nan, nan], &[nan, nan], &[Doubt::Nan(2)]);
        check(&[nan, 1.0, 2.0], &[nan, 1.0, 2.0], &[Doubt::Nan(1)]);
        check(&[inf, -inf, 2.0], &[inf, -inf, 2.0], &[Doubt::Infinite(2)]);
        check(&[0.0, 0.0], &[0.0, -0.0], &[Doubt::Zero]);
        check(&[0.0], &[0.0], &[Doubt::Zero]);
        check(&[3.0, 3.0], &[3.0, 3.0], &[Doubt::Constant(3.0)]);
        // A scalar is one number.
        check(&[3.0], &[3.0], &[]);
        check(&[nan, 3.0, 3.0], &[nan, 3.0, 3.0], &[Doubt::Nan(1), Doubt::Constant(3.0)]);
        // Within the tolerance, one side may be what the other is not.
        check(&[0.0, 0.0], &[0.00005, -0.00002], &[Doubt::Zero]);
        check(&[1.0, 1.0], &[1.0, 1.0005], &[Doubt::Constant(1.0)]);
        check(&[1e-9, 2e-9], &[3e-9, 5e-5], &[Doubt::Vanishing(5e-5)]);
        check(&[1e-9, 1.0], &[3e-9, 1.0], &[]);
    }

    #[test]
    fn errors_that_only_a_wide_tolerance_allows_are_doubted() {
        let doubted = |found: f64| {
            doubts(&compare_numbers(&[found, 0.5], &[1.0, 0.5], Bound { rtol: 0.2, atol: 0.0 }))
        };
        assert_eq!(doubted(1.125), [Doubt::Far(0.125)]);
        assert_eq!((doubted(1.03), doubted(1.25)), (vec![], vec![]));
    }
}
