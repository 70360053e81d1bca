//! Real numbers of a byte and less: their bits to `f32` and back.
//!
//! The formats are those of ONNX: the OCP types `f8e4m3fn`, `f8e5m2`, `f8e8m0`, `f4e2m1` and the two `fnuz`
//! variants, which have one zero, one NaN (0x80) and no infinity.

use crate::dtype::DType;

/// What a format with a sign, an exponent and a mantissa looks like.
struct Format {
    mantissa_bits: u32,
    bias: i32,
    sign: u8,
    /// The largest finite number.
    highest: u8,
    /// What stands for a number past the largest.
    overflow: u8,
    /// What stands for "not a number"; the `f4` has none and takes -0.
    nan: u8,
    /// Zero has no sign.
    one_zero: bool,
}

/// A row a format. Infinity and NaN are signed except in the `fnuz` types.
const FORMATS: [(DType, Format); 5] = [
    (DType::F8E4M3Fn, format(3, 7, 0x80, 0x7e, 0x7f, 0x7f, false)),
    (DType::F8E4M3FnUz, format(3, 8, 0x80, 0x7f, 0x80, 0x80, true)),
    (DType::F8E5M2, format(2, 15, 0x80, 0x7b, 0x7c, 0x7e, false)),
    (DType::F8E5M2FnUz, format(2, 16, 0x80, 0x7f, 0x80, 0x80, true)),
    (DType::F4E2M1, format(1, 1, 0x08, 0x07, 0x07, 0x08, false)),
];

const fn format(
    mantissa_bits: u32,
    bias: i32,
    sign: u8,
    highest: u8,
    overflow: u8,
    nan: u8,
    one_zero: bool,
) -> Format {
    Format { mantissa_bits, bias, sign, highest, overflow, nan, one_zero }
}

fn format_of(dtype: DType) -> Option<&'static Format> {
    FORMATS.iter().find(|row| row.0 == dtype).map(|row| &row.1)
}

/// The number that `bits` stand for, exactly; `None` if `dtype` is no real type of a byte or less.
pub fn to_f32(dtype: DType, bits: u8) -> Option<f32> {
    if dtype == DType::F8E8M0 {
        let power = i32::from(bits) - 127;
        return Some(if bits == 0xff { f32::NAN } else { libm::scalbn(1.0, power) as f32 });
    }
    let format = format_of(dtype)?;
    let magnitude = bits & (format.sign - 1);
    let negative = bits & format.sign != 0;
    let special = if format.one_zero { bits == format.nan } else { magnitude > format.highest };
    if special {
        let infinite = magnitude == format.overflow && format.overflow != format.nan;
        return Some(match (infinite, negative) {
            (true, true) => f32::NEG_INFINITY,
            (true, false) => f32::INFINITY,
            (false, _) => f32::NAN,
        });
    }
    let exponent = i32::from(magnitude >> format.mantissa_bits);
    let mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
    let implicit = if exponent > 0 { 1 << format.mantissa_bits } else { 0 };
    let power = exponent.max(1) - format.bias - format.mantissa_bits as i32;
    let value = libm::scalbn(f64::from(mantissa + implicit), power) as f32;
    Some(if negative { -value } else { value })
}

/// The bits of the nearest number, ties to even; `None` if `dtype` is no real type of a byte or less.
///
/// Past the largest number stands the largest if `saturate`, else infinity or NaN. `f8e8m0` has powers of
/// two only: it rounds up and drops the sign, as ONNX's Cast does by default.
pub fn from_f64(dtype: DType, value: f64, saturate: bool) -> Option<u8> {
    if dtype == DType::F8E8M0 {
        return Some(power_of_two(value, saturate));
    }
    let format = format_of(dtype)?;
    if value.is_nan() {
        return Some(format.nan);
    }
    let magnitude = magnitude_bits(format, value.abs());
    let magnitude = match magnitude {
        Some(bits) => bits,
        None if saturate => format.highest,
        None => format.overflow,
    };
    let negative = value.is_sign_negative() && !(format.one_zero && magnitude == 0);
    Some(if negative { magnitude | format.sign } else { magnitude })
}

/// The bits nearest to a number ≥ 0; `None` past the largest.
fn magnitude_bits(format: &Format, value: f64) -> Option<u8> {
    if value.is_infinite() {
        return None;
    }
    let exponent = exponent_of(value).max(1 - format.bias);
    let mantissa_bits = format.mantissa_bits as i32;
    let quanta = libm::scalbn(value, mantissa_bits - exponent).round_ties_even();
    // The leading bit of `quanta` and a carry out of it both count one in the exponent field.
    let field = f64::from((exponent + format.bias - 1) << mantissa_bits);
    let bits = field + quanta;
    (bits <= f64::from(format.highest)).then_some(bits as u8)
}

/// ⌊log₂ value⌋ for a normal value > 0, and less than any exponent of a narrow type for the rest.
fn exponent_of(value: f64) -> i32 {
    ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

fn power_of_two(value: f64, saturate: bool) -> u8 {
    let bits = (value as f32).to_bits();
    let exponent = ((bits >> 23) & 0xff) as u8;
    let fraction = bits & 0x7f_ffff;
    match (exponent, fraction != 0) {
        (0xff, _) => 0xff,
        (0xfe, true) if saturate => 0xfe,
        // Below the normal numbers there is one power that the type has.
        (0, _) => u8::from(fraction > 0x40_0000),
        (exponent, true) => exponent + 1,
        (exponent, false) => exponent,
    }
}

#[cfg(test)]
mod tests {
    use super::{FORMATS, from_f64, to_f32};
    use crate::dtype::DType;

    #[test]
    fn every_number_comes_back() {
        for (dtype, format) in &FORMATS {
            for bits in 0..=(format.sign - 1) | format.sign {
                let value = to_f32(*dtype, bits).unwrap();
                if value.is_nan() {
                    let nan = from_f64(*dtype, f64::NAN, true).unwrap();
                    assert!(to_f32(*dtype, nan).unwrap().is_nan(), "{dtype} {bits:#x}");
                } else {
                    let back = from_f64(*dtype, f64::from(value), false);
                    assert_eq!(back, Some(bits), "{dtype} {bits:#x} {value}");
                }
            }
        }
        for bits in 0..=0xfe {
            let value = to_f32(DType::F8E8M0, bits).unwrap();
            assert_eq!(from_f64(DType::F8E8M0, f64::from(value), true), Some(bits));
        }
        assert_eq!(to_f32(DType::F32, 0), None);
        assert_eq!(from_f64(DType::I4, 0.0, true), None);
    }

    /// Rows: type, number, bits when saturating, bits when not.
    #[test]
    fn numbers_round_to_the_nearest() {
        use DType::{F4E2M1, F8E4M3Fn, F8E4M3FnUz, F8E5M2, F8E5M2FnUz, F8E8M0};
        let rows = [
            (F8E4M3Fn, 464.0, 0x7e, 0x7e),
            (F8E4M3Fn, 465.0, 0x7e, 0x7f),
            (F8E4M3Fn, -1e6, 0xfe, 0xff),
            (F8E4M3Fn, f64::INFINITY, 0x7e, 0x7f),
            (F8E4M3Fn, -1e-10, 0x80, 0x80),
            (F8E4M3FnUz, 247.0, 0x7f, 0x7f),
            (F8E4M3FnUz, 248.0, 0x7f, 0x80),
            (F8E4M3FnUz, -1e-10, 0x00, 0x00),
            (F8E5M2, 61439.0, 0x7b, 0x7b),
            (F8E5M2, 61440.0, 0x7b, 0x7c),
            (F8E5M2, f64::NEG_INFINITY, 0xfb, 0xfc),
            (F8E5M2, 464.0, 95, 95),
            (F8E5M2, 480.0, 96, 96),
            (F8E5M2FnUz, 61440.0, 0x7f, 0x80),
            (F4E2M1, 0.25, 0, 0),
            (F4E2M1, 0.75, 2, 2),
            (F4E2M1, 1.75, 4, 4),
            (F4E2M1, 5.0, 6, 6),
            (F4E2M1, -1e6, 15, 15),
            (F8E8M0, 448.0, 136, 136),
            (F8E8M0, 5.0, 130, 130),
            (F8E8M0, -4.0, 129, 129),
            (F8E8M0, 3.0e38, 0xfe, 0xff),
            (F8E8M0, f64::NAN, 0xff, 0xff),
        ];
        for (dtype, value, saturated, plain) in rows {
            assert_eq!(from_f64(dtype, value, true), Some(saturated), "{dtype} {value}");
            assert_eq!(from_f64(dtype, value, false), Some(plain), "{dtype} {value}");
        }
    }
}
