//! Quotients by a known number: a multiplication and a multiply-add in place of a division.
//!
//! A division in single precision is a dozen instructions and a branch, which keeps those of one element from running beside
//! another's. With 1/c as the sum of two numbers, of which the first is the larger one by far, x/c is `fma(x, first, x·second)`
//! (Brisebarre, Muller and Raina, "Accelerating correctly rounded floating-point division when the divisor is known in
//! advance", IEEE Transactions on Computers, 2004).

use super::constant;
use crate::{Binary, Builder, Function, Fused, Header, Kind, Operand, Result, Scalar, TensorId};

/// The bits of a significand in single precision.
const BITS: u32 = 24;

/// `to = x / c`, rounded once, of the parts of 1/c that [`reciprocal`] knows. Quotients below 2⁻¹⁰⁰ may be off by a unit in the last
/// place.
pub(super) fn quotient(
    k: &mut Builder,
    to: TensorId,
    x: &Operand,
    (c, parts): (f64, [f32; 2]),
) -> Result {
    let meaning = Fused::of(&(Function::input(0) / c), &[]);
    k.decompose(Header::alone(Kind::Fused(meaning), to, x.clone()), |k| {
        let [first, second] = parts.map(f64::from);
        let first = constant(k, "reciprocal", Scalar::F32, first)?;
        let second = constant(k, "rest", Scalar::F32, second)?;
        k.binary(Binary::Mul, to, [x.clone(), second.into()])?;
        k.fma(to, [x.clone(), first.into()])
    })
}

/// 1/c as the sum of two numbers of one sign by which x is multiplied as it is divided by c; `None` where there are none.
///
/// The sum is off by at most 1.5·2⁻⁴⁶ of 1/c, and x·second by at most 2⁻⁴⁷ of the quotient, together 2⁻⁴⁵ of it before the result is
/// rounded: that can only go wrong where a quotient is so near to the middle between two numbers. These are few, and are
/// tried one by one.
pub(super) fn reciprocal(c: f32) -> Option<[f32; 2]> {
    let [first, second] = parts(c)?;
    let seconds = [0, -1, 1].map(|by| f32::from_bits(second.to_bits().wrapping_add_signed(by)));
    let right = |parts: &[f32; 2]| nearly_halfway(c).all(|x| multiplied(x, *parts) == x / c);
    seconds.into_iter().map(|second| [first, second]).find(right)
}

/// 1/c as the sum of two numbers, of which the first is 1/c rounded towards 0, so that both have one sign and
/// infinity times each is the same infinity. None is denormal, and the second is not 0, by which infinity times it would be NaN.
fn parts(c: f32) -> Option<[f32; 2]> {
    let moderate = (2.0_f32.powi(-60)..2.0_f32.powi(60)).contains(&c.abs());
    let exact = 1.0 / f64::from(c);
    let nearest = exact as f32;
    let first = if f64::from(nearest).abs() > exact.abs() {
        f32::from_bits(nearest.to_bits() - 1)
    } else {
        nearest
    };
    let second = (-f64::from(first)).mul_add(f64::from(c), 1.0) / f64::from(c);
    (moderate && second != 0.0).then_some([first, second as f32])
}

fn multiplied(x: f32, [first, second]: [f32; 2]) -> f32 {
    x.mul_add(first, x * second)
}

/// The significands x for which x/c is within 2⁻⁴⁵ of itself of the middle between two numbers, and perhaps some more.
///
/// With x and c as integers of 24 bits, the middle is an odd integer of 25 bits: x·2ˢ and middle·c differ by 1 to 16, for s = 24
/// where x ≥ c and 25 where it is less. So middle·c is known modulo 2ˢ.
fn nearly_halfway(c: f32) -> impl Iterator<Item = f32> {
    let c = u64::from(c.to_bits() & 0x7f_ffff) | 1 << (BITS - 1);
    let zeros = c.trailing_zeros();
    let inverse = inverse(c >> zeros);
    let differences = (-16_i64..=16).filter(|&difference| difference != 0);
    let at = differences.flat_map(|difference| [BITS, BITS + 1].map(|shift| (difference, shift)));
    at.filter(move |(difference, _)| difference.trailing_zeros() >= zeros).flat_map(
        move |(difference, shift)| {
            let period = 1_u64 << (shift - zeros);
            let least = ((difference >> zeros) as u64).wrapping_mul(inverse) % period;
            let middles = (0..1 << (zeros + 1)).map(move |turn| least + turn * period);
            let of = move |middle: u64| (middle * c).wrapping_sub(difference as u64) >> shift;
            middles.map(of).filter(|x| (1 << (BITS - 1)..1 << BITS).contains(x)).map(|x| x as f32)
        },
    )
}

/// The inverse of an odd number modulo 2⁶⁴ by Newton's iteration, which doubles the 3 bits that the number itself has right.
fn inverse(odd: u64) -> u64 {
    (0..5).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))))
}

#[cfg(test)]
#[path = "../../tests/units/quotient.rs"]
mod tests;
