//! Of `schedule::quotient`, whose items are private to the crate.

use super::{Reciprocal, nearly_halfway, parts, reciprocal};

/// Divisors as quantisation has them, of all orders of magnitude that are taken, from a fixed sequence.
fn divisors() -> impl Iterator<Item = f32> {
    let bits = (0_u32..4_000).map(|i| i.wrapping_mul(0x9e37_79b9));
    bits.map(|bits| f32::from_bits(bits & 0x807f_ffff | (127 - 59 + (bits >> 23) % 118) << 23))
}

#[test]
fn quotients_of_all_significands_round_as_divisions_do() {
    let all = divisors().filter_map(|c| Some((c, reciprocal(c)?)));
    let is_corrected = |by: &Reciprocal| matches!(by, Reciprocal::Corrected(..));
    let (corrected, sums): (Vec<_>, Vec<_>) = all.partition(|(_, by)| is_corrected(by));
    assert!(corrected.len() >= 12, "{}", corrected.len());
    for (c, by) in sums.into_iter().take(12).chain(corrected.into_iter().take(12)) {
        for x in (1 << 23..1 << 24).map(|x: u32| x as f32) {
            assert_eq!(by.quotient(x, c), x / c, "{x} / {c}");
        }
    }
}

/// The few significands that are tried are all that can fail.
#[test]
fn what_is_tried_before_is_all_that_can_fail() {
    let fails = |c: f32, x: f32| {
        parts(c).is_some_and(|parts| Reciprocal::Sum(parts).quotient(x, c) != x / c)
    };
    let failing = divisors().filter(|&c| nearly_halfway(c).any(|x| fails(c, x)));
    for c in failing.take(4).chain(divisors().take(4)) {
        let tried: Vec<f32> = nearly_halfway(c).collect();
        let missed =
            (1 << 23..1 << 24).map(|x: u32| x as f32).find(|&x| fails(c, x) && !tried.contains(&x));
        assert_eq!(missed, None, "{c}");
    }
}

#[test]
fn infinities_and_signs_of_zeros_stay() {
    for c in divisors() {
        let Some(by) = reciprocal(c) else { continue };
        for x in [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0, -0.0] {
            assert_eq!(by.quotient(x, c).to_bits(), (x / c).to_bits(), "{x} / {c}");
        }
        assert!(by.quotient(f32::NAN, c).is_nan());
        let least = 1.37 * 2.0_f32.powi(-102);
        assert!(c.abs() > 0.125 || by.quotient(least, c) == least / c, "{least} / {c}");
    }
}

#[test]
fn positive_divisors_are_taken_but_for_extreme_ones() {
    for c in divisors().map(f32::abs) {
        assert!(reciprocal(c).is_some(), "{c}");
    }
    for c in [1.0, 0.5, -8.0] {
        assert_eq!(reciprocal(c), Some(Reciprocal::Exact(1.0 / c)));
    }
    for c in [0.0, 1e-30, 1e30, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN] {
        assert_eq!(reciprocal(c), None, "{c}");
    }
}
