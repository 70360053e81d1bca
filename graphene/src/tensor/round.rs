//! Values as elements hold them.

use super::Scalar;

impl Scalar {
    /// A value rounded to the type: to nearest, ties to even; integers towards 0.
    pub fn round(self, value: f64) -> f64 {
        match self {
            Scalar::F32 => f64::from(value as f32),
            Scalar::F16 => round_to(value, 10, -14, 65504.0),
            Scalar::Bf16 => round_to(value, 7, -126, f64::from(f32::from_bits(0x7f7f_0000))),
            Scalar::I32 => f64::from(value as i64 as i32),
            Scalar::I64 => value.trunc(),
            Scalar::U32 => f64::from(value as i64 as u32),
            Scalar::U8 => f64::from(value as i64 as u8),
            Scalar::Mbar => value,
        }
    }

    /// Half a unit in the last place, relative: the most that rounding moves a normal number by. Integers are as single
    /// precision, in which functions compute them.
    pub fn unit(self) -> f64 {
        match self {
            Scalar::F16 => power(-11),
            Scalar::Bf16 => power(-8),
            _ => power(-24),
        }
    }
}

/// To `bits` bits after the leading one, of exponents from `least` on.
fn round_to(value: f64, bits: i32, least: i32, max: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let unit = power(exponent.max(least) - bits);
    let rounded = (value / unit).round_ties_even() * unit;
    if rounded.abs() > max { f64::INFINITY.copysign(value) } else { rounded }
}

/// 2 to an exponent of normal numbers.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
