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

#[cfg(test)]
mod tests {
    use super::Scalar;

    #[test]
    fn rounding_is_to_nearest_even() {
        let rows = [
            (Scalar::F16, 2049.0, 2048.0),
            (Scalar::F16, 2051.0, 2052.0),
            (Scalar::F16, 2049.0 + 1e-9, 2050.0),
            (Scalar::F16, 65519.0, 65504.0),
            (Scalar::F16, 65520.0, f64::INFINITY),
            (Scalar::F16, 2f64.powi(-25), 0.0),
            (Scalar::F16, 2f64.powi(-25) * 1.5, 2f64.powi(-24)),
            (Scalar::F16, -1.0 / 3.0, -0.333_251_953_125),
            (Scalar::Bf16, 257.0, 256.0),
            (Scalar::Bf16, 259.0, 260.0),
            (Scalar::F32, 16_777_217.0, 16_777_216.0),
            (Scalar::I32, -7.0, -7.0),
            (Scalar::I64, -7.5, -7.0),
            (Scalar::U8, 255.0, 255.0),
        ];
        for (scalar, value, rounded) in rows {
            assert_eq!(scalar.round(value), rounded, "{value} as {scalar}");
        }
        assert!(Scalar::F16.round(f64::NAN).is_nan());
    }
}
