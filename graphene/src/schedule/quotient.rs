//! Quotients by a known number: a multiplication and a multiply-add in place of a division.
//!
//! A division in single precision is a dozen instructions and a branch, which keeps those of one element from running beside
//! another's. With 1/c as the sum of two numbers, of which the first is the larger one by far, x/c is `fma(x, first, x·second)`
//! (Brisebarre, Muller and Raina, "Accelerating correctly rounded floating-point division when the divisor is known in
//! advance", IEEE Transactions on Computers, 2004).

use super::{constant, number};
use crate::{
    Binary, Builder, Function, Fused, Header, Kind, Operand, Result, Scalar, TensorId, Unary,
};

/// The bits of a significand in single precision.
const BITS: u32 = 24;

/// By what a division is replaced.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Reciprocal {
    /// Two numbers of one sign, whose sum is nearly 1/c.
    parts: [f32; 2],
    /// 1/c, where some quotients by the parts are a unit in the last place off: they are corrected by what they leave of x.
    nearest: Option<f32>,
}

/// `to = x / c`, rounded once, by what [`reciprocal`] knows. Quotients below 2⁻¹⁰⁰ may be off by a unit in the last place.
pub(super) fn quotient(
    k: &mut Builder,
    to: TensorId,
    x: &Operand,
    (c, by): (f64, Reciprocal),
) -> Result {
    let meaning = Fused::of(&(Function::input(0) / c), &[]);
    k.decompose(Header::alone(Kind::Fused(meaning), to, x.clone()), |k| {
        let [first, second] = by.parts.map(f64::from);
        let first = constant(k, "reciprocal", Scalar::F32, first)?;
        let second = constant(k, "rest", Scalar::F32, second)?;
        k.binary(Binary::Mul, to, [x.clone(), second.into()])?;
        k.fma(to, [x.clone(), first.into()])?;
        let Some(nearest) = by.nearest else { return Ok(()) };
        let mut known = |name: &str, value: f64| constant(k, name, Scalar::F32, value);
        let divisor = known("divisor", c)?;
        let most = known("most", f32::MAX.into())?;
        let least = known("least", f32::MIN.into())?;
        let nearest = known("nearest", -f64::from(nearest))?;
        let excess = number(k, "excess", Scalar::F32)?;
        k.alone(Kind::Unary(Unary::Neg), excess, x.clone())?;
        k.fma(excess, [to, divisor])?;
        // Of an infinite quotient it is infinite, or no number.
        k.binary(Binary::Min, excess, [excess, most])?;
        k.binary(Binary::Max, excess, [excess, least])?;
        k.fma(to, [excess, nearest])
    })
}

/// 1/c as the sum of two numbers of one sign by which x is multiplied as it is divided by c, or nearly; `None` where there are none.
///
/// The sum is off by at most 1.5·2⁻⁴⁶ of 1/c, and x·second by at most 2⁻⁴⁷ of the quotient, together 2⁻⁴⁵ of it before the result is
/// rounded: that can only go wrong where a quotient is so near to the middle between two numbers. These are few, and are
/// tried one by one. Of one divisor in thirty some go wrong: those quotients are corrected as on machines whose division is made of
/// multiply-adds (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", IBM Journal of Research
/// and Development, 1990).
pub(super) fn reciprocal(c: f32) -> Option<Reciprocal> {
    let [first, second] = parts(c)?;
    let seconds = [0, -1, 1].map(|by| f32::from_bits(second.to_bits().wrapping_add_signed(by)));
    let right = |by: &Reciprocal| nearly_halfway(c).all(|x| by.multiplied(x, c) == x / c);
    let simple = seconds.map(|second| Reciprocal { parts: [first, second], nearest: None });
    // The sign of zero is lost where c is negative.
    let nearest = (c > 0.0).then_some(1.0 / c);
    let corrected = Reciprocal { parts: [first, second], nearest };
    simple.into_iter().chain(nearest.map(|_| corrected)).find(right)
}

impl Reciprocal {
    /// x/c as [`quotient`] computes it.
    fn multiplied(&self, x: f32, c: f32) -> f32 {
        let [first, second] = self.parts;
        let quotient = x.mul_add(first, x * second);
        self.nearest.map_or(quotient, |nearest| {
            let excess = quotient.mul_add(c, -x).min(f32::MAX).max(f32::MIN);
            excess.mul_add(-nearest, quotient)
        })
    }
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
