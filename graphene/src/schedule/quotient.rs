//! Quotients by a known number, without a division.
//!
//! A division in single precision is a dozen instructions and a branch, which keeps those of one element from running beside
//! another's. By a power of two it is a multiplication. With 1/c as the sum of two numbers, of which the first is the larger one by
//! far, x/c is `fma(x, first, x·second)` (Brisebarre, Muller and Raina, "Accelerating correctly rounded floating-point division when
//! the divisor is known in advance", IEEE Transactions on Computers, 2004). Of one divisor in thirty some quotients are a unit in the
//! last place off so, and are corrected by their residual q·c − x, as on machines whose division is made of multiply-adds
//! (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", IBM Journal of Research and Development,
//! 1990).

use super::{constant, number};
use crate::{
    Binary, Builder, Function, Fused, Header, Kind, Operand, Result, Scalar, TensorId, Unary,
};

/// The bits of a significand in single precision.
const BITS: u32 = 24;

/// What takes the place of a division by c.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Reciprocal {
    /// 1/c, of a power of two.
    Exact(f32),
    /// Two numbers of one sign, whose sum is nearly 1/c.
    Sum([f32; 2]),
    /// The same, and 1/c rounded to nearest, by which residuals are corrected.
    Corrected([f32; 2], f32),
}

/// `to = x / c`, rounded once, by what [`reciprocal`] knows. Quotients below 2⁻¹⁰⁰, and those of numbers below 2⁻¹⁰², may be off by a
/// unit in the last place.
pub(super) fn quotient(
    k: &mut Builder,
    to: TensorId,
    x: &Operand,
    (c, by): (f64, Reciprocal),
) -> Result {
    let meaning = Fused::of(&(Function::input(0) / c), &[]);
    k.decompose(Header::alone(Kind::Fused(meaning), to, x.clone()), |k| {
        let known = |k: &mut Builder, name: &str, value: f32| {
            constant(k, name, Scalar::F32, f64::from(value))
        };
        let [first, second] = match by {
            Reciprocal::Exact(reciprocal) => {
                let reciprocal = known(k, "reciprocal", reciprocal)?;
                return k.binary(Binary::Mul, to, [x.clone(), reciprocal.into()]);
            }
            Reciprocal::Sum(parts) | Reciprocal::Corrected(parts, _) => parts,
        };
        let first = known(k, "reciprocal", first)?;
        let second = known(k, "low_part", second)?;
        k.binary(Binary::Mul, to, [x.clone(), second.into()])?;
        k.fma(to, [x.clone(), first.into()])?;
        let Reciprocal::Corrected(_, nearest) = by else { return Ok(()) };
        let divisor = constant(k, "divisor", Scalar::F32, c)?;
        let [most, least] = [known(k, "most", f32::MAX)?, known(k, "least", f32::MIN)?];
        let negative = known(k, "negative_reciprocal", -nearest)?;
        // q·c − x rather than x − q·c: that keeps the sign of a quotient that is zero.
        let residual = number(k, "residual", Scalar::F32)?;
        k.alone(Kind::Unary(Unary::Neg), residual, x.clone())?;
        k.fma(residual, [to, divisor])?;
        // Of an infinite quotient it is infinite or NaN.
        k.binary(Binary::Min, residual, [residual, most])?;
        k.binary(Binary::Max, residual, [residual, least])?;
        k.fma(to, [residual, negative])
    })
}

/// What to multiply by as something is divided by c; `None` for a c of extreme magnitude, and for one of a few negative ones.
///
/// The sum is off by at most 1.5·2⁻⁴⁶ of 1/c, and x·second by at most 2⁻⁴⁷ of the quotient, together 2⁻⁴⁵ of it before the result is
/// rounded: that can only go wrong where a quotient is so near to the middle between two numbers. These are few, and are
/// tried one by one.
pub(super) fn reciprocal(c: f32) -> Option<Reciprocal> {
    if !is_moderate(c) {
        return None;
    }
    if c.to_bits().trailing_zeros() >= BITS - 1 {
        return Some(Reciprocal::Exact(1.0 / c));
    }
    let [first, second] = parts(c)?;
    let seconds = [0, -1, 1].map(|by| f32::from_bits(second.to_bits().wrapping_add_signed(by)));
    let sums = seconds.map(|second| Reciprocal::Sum([first, second]));
    // Of a negative divisor the sign of a zero would be lost.
    let corrected = (c > 0.0).then(|| Reciprocal::Corrected([first, second], 1.0 / c));
    let right = |by: &Reciprocal| nearly_halfway(c).all(|x| by.quotient(x, c) == x / c);
    sums.into_iter().chain(corrected).find(right)
}

impl Reciprocal {
    /// x/c as [`quotient`] computes it.
    #[allow(clippy::manual_clamp)] // `clamp` keeps NaN; of it the kernel's minimum and maximum make a bound.
    fn quotient(&self, x: f32, c: f32) -> f32 {
        match *self {
            Self::Exact(reciprocal) => x * reciprocal,
            Self::Sum([first, second]) => x.mul_add(first, x * second),
            Self::Corrected(parts, nearest) => {
                let quotient = Self::Sum(parts).quotient(x, c);
                let residual = quotient.mul_add(c, -x).min(f32::MAX).max(f32::MIN);
                residual.mul_add(-nearest, quotient)
            }
        }
    }
}

/// Whether neither a reciprocal's parts nor quotients of moderate numbers overflow or underflow.
fn is_moderate(c: f32) -> bool {
    (2.0_f32.powi(-60)..2.0_f32.powi(60)).contains(&c.abs())
}

/// 1/c as the sum of two numbers, of which the first is 1/c rounded towards 0, so that both have one sign and
/// infinity times each is the same infinity. None is denormal, and the second is not 0, by which infinity times it would be NaN.
fn parts(c: f32) -> Option<[f32; 2]> {
    let exact = 1.0 / f64::from(c);
    let nearest = exact as f32;
    let first = if f64::from(nearest).abs() > exact.abs() {
        f32::from_bits(nearest.to_bits() - 1)
    } else {
        nearest
    };
    let second = (-f64::from(first)).mul_add(f64::from(c), 1.0) / f64::from(c);
    (second != 0.0).then_some([first, second as f32])
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
