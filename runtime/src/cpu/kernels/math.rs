//! Scalar f32 functions without branches, for loops that the compiler vectorises.
//!
//! Each is a range reduction by exact float arithmetic and a polynomial fitted by minimax
//! (reweighted least squares in f64). Errors are stated in units in the last place (ulp) against
//! f64; the tests of [`super::pointwise`] hold them.

use super::simd::{mul_add, polynomial};

/// 1.5 · 2²³: adding and subtracting it rounds to the nearest integer.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts, the high one so short that its products with exponents are exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// x = n ln 2 + r: returns e^r and the number whose low bits are n.
#[inline(always)]
fn exp_parts<const FMA: bool>(x: f32) -> (f32, f32) {
    let shifted = mul_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = mul_add::<FMA>(n, -LN2_HIGH, x);
    let r = mul_add::<FMA>(n, -LN2_LOW, r);
    let p = polynomial::<FMA, 5>(
        r,
        [5e-1, 1.666_651_8e-1, 4.166_620_2e-2, 8.368_97e-3, 1.395_063_1e-3],
    );
    (mul_add::<FMA>(p * r, r, r) + 1.0, shifted)
}

/// eˣ within 2 ulp for |x| ≤ 87, where the result is a normal number; NaN for NaN; for other x
/// anything.
#[inline(always)]
fn exp_normal<const FMA: bool>(x: f32) -> f32 {
    let (p, shifted) = exp_parts::<FMA>(x);
    // The shift leaves n alone of the bits; the sum with the bias is the exponent of 2ⁿ.
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
}

/// eˣ within 2 ulp for x ≤ 87; results below the normal range are 0.
#[inline(always)]
pub(crate) fn exp_flushed<const FMA: bool>(x: f32) -> f32 {
    let y = exp_normal::<FMA>(x);
    if x < -87.0 { 0.0 } else { y }
}

/// eˣ within 2 ulp, results below the normal range included.
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    // Beyond these bounds the result is 0 or ∞ anyway. The comparisons let NaN through.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -105.0 { -105.0 } else { x };
    let (p, shifted) = exp_parts::<FMA>(x);
    // The scale is applied in two halves, as 2ⁿ alone may be outside the normal range.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// 2ⁿ for `-127 < n < 128`; for other n some number.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// The natural logarithm within 2 ulp, for subnormal numbers too.
#[inline(always)]
pub(crate) fn log<const FMA: bool>(x: f32) -> f32 {
    let small = x < f32::MIN_POSITIVE;
    let scaled = if small { x * 8_388_608.0 } else { x };
    // The mantissa is taken in [√½, √2): the offset moves the exponent's border there.
    let bits = scaled.to_bits().wrapping_add(0x3F80_0000 - 0x3F35_04F3);
    let exponent = (bits >> 23) as i32 - 127 - if small { 23 } else { 0 };
    let f = f32::from_bits((bits & 0x007F_FFFF).wrapping_add(0x3F35_04F3)) - 1.0;
    let p = polynomial::<FMA, 9>(
        f,
        [
            3.333_331_3e-1,
            -2.500_001e-1,
            2.000_212_4e-1,
            -1.666_800_5e-1,
            1.421_945_2e-1,
            -1.240_534e-1,
            1.188_869_7e-1,
            -1.167_751_6e-1,
            6.747_731e-2,
        ],
    );
    let e = exponent as f32;
    let z = f * f;
    let low = mul_add::<FMA>(e, LN2_LOW, p * f * z);
    let low = mul_add::<FMA>(z, -0.5, low);
    let result = mul_add::<FMA>(e, LN2_HIGH, f + low);
    let result = if x < f32::INFINITY { result } else { x };
    let result = if x == 0.0 { f32::NEG_INFINITY } else { result };
    if x < 0.0 { f32::NAN } else { result }
}

/// The hyperbolic tangent within 3 ulp.
#[inline(always)]
pub(crate) fn tanh<const FMA: bool>(x: f32) -> f32 {
    let z = x * x;
    let p = polynomial::<FMA, 5>(
        z,
        [-3.333_328e-1, 1.333_138_3e-1, -5.373_4e-2, 2.061_813e-2, -5.679_312e-3],
    );
    let near = mul_add::<FMA>(p * z, x, x);
    // From 9.1 on the result rounds to 1.
    let a = if x.abs() > 9.1 { 9.1 } else { x.abs() };
    let far = 1.0 - 2.0 / (exp_normal::<FMA>(2.0 * a) + 1.0);
    if a < 0.625 { near } else { far.copysign(x) }
}

/// The error function within 4 ulp.
#[inline(always)]
pub(crate) fn erf<const FMA: bool>(x: f32) -> f32 {
    let z = x * x;
    let p = polynomial::<FMA, 7>(
        z,
        [
            1.283_791_7e-1,
            -3.761_263_5e-1,
            1.128_369_9e-1,
            -2.685_954e-2,
            5.201_305e-3,
            -8.145_079e-4,
            8.377_594e-5,
        ],
    );
    let near = mul_add::<FMA>(p, x, x);
    // From 0.92 on, 1 - e^(-g) with g a polynomial; from 3.95 on the result rounds to 1.
    let a = x.abs();
    let a = if a > 3.95 { 3.95 } else { a };
    let g = polynomial::<FMA, 8>(
        a,
        [
            -1.746_832e-4,
            1.129_514_9,
            6.333_469e-1,
            1.082_800_7e-1,
            -2.511_941_6e-2,
            4.171_058_5e-3,
            -4.344_616_6e-4,
            2.109_496_4e-5,
        ],
    );
    let far = 1.0 - exp_normal::<FMA>(-g);
    if a < 0.92 { near } else { far.copysign(x) }
}

/// 1 / (1 + e⁻ˣ) within 4 ulp.
#[inline(always)]
pub(crate) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    // The exponential of -|x| cannot overflow, and keeps small results exact.
    let e = exp::<FMA>(-x.abs());
    let s = 1.0 / (1.0 + e);
    if x < 0.0 { e * s } else { s }
}

/// 2ᵗ within 2 ulp for |t| ≤ 126; for other t anything.
#[inline(always)]
fn exp2_normal<const FMA: bool>(t: f32) -> f32 {
    let shifted = t + ROUND;
    let r = t - (shifted - ROUND);
    let p = polynomial::<FMA, 6>(
        r,
        [1.0, 6.931_469_4e-1, 2.402_212e-1, 5.550_713e-2, 9.675_541e-3, 1.327_647_1e-3],
    );
    f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// x, or `zero` if x is negative, less |x| · `part`; NaN for NaN. From |x| = 5.6 on, `part` is taken as 0.
#[inline(always)]
fn less_part<const FMA: bool>(x: f32, zero: f32, part: f32) -> f32 {
    let above = if x < 0.0 { zero } else { x };
    if x.abs() < 5.6 { mul_add::<FMA>(-x.abs(), part, above) } else { above }
}

/// x Φ(x) = ½ x (1 + erf(x / √2)), with Φ the normal distribution; 0 at -∞.
#[inline(always)]
pub(crate) fn gelu<const FMA: bool>(x: f32) -> f32 {
    // log₂ Φ(-a) for 0 ≤ a ≤ 5.6. Even and odd powers are added up side by side.
    let (a, z) = (x.abs(), x * x);
    let even = [-1.0, -4.592_144e-1, 6.989_972e-3, -2.445_807_6e-4, -7.059_665e-6];
    let odd = [-1.151_104_9, -5.246_396e-2, -4.929_175e-5, 6.114_75e-5, 3.310_843e-7];
    let odd = polynomial::<FMA, 5>(z, odd);
    less_part::<FMA>(
        x,
        0.0,
        exp2_normal::<FMA>(mul_add::<FMA>(odd, a, polynomial::<FMA, 5>(z, even))),
    )
}

/// ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))); NaN at -∞.
#[inline(always)]
pub(crate) fn gelu_tanh<const FMA: bool>(x: f32) -> f32 {
    // 1 - tanh(u) is 2 e / (1 + e) with e = exp(-2u).
    let e = exp2_normal::<FMA>(x.abs() * mul_add::<FMA>(x * x, -1.029_432_4e-1, -2.302_208_2));
    less_part::<FMA>(x, 0.0 * x, e / (1.0 + e))
}

/// log(1 + eˣ), without overflow.
#[inline(always)]
pub(crate) fn softplus<const FMA: bool>(x: f32) -> f32 {
    let above = if x < 0.0 { 0.0 } else { x };
    // log1p(e) by the correction term (u - 1 - e) / u for the rounding of u = 1 + e.
    let e = exp::<FMA>(-x.abs());
    let u = 1.0 + e;
    above + (log::<FMA>(u) - ((u - 1.0) - e) / u)
}
