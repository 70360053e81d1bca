//! Elements as bytes, and numbers that look random.

use graphene_ir::tensor::Scalar;
use half::{bf16, f16};

/// The bytes of `values` as a type, rounded to nearest.
pub(crate) fn encode(values: &[f64], scalar: Scalar) -> Vec<u8> {
    let each = |value: &f64| -> Vec<u8> {
        match scalar {
            Scalar::F16 => f16::from_f64(*value).to_le_bytes().to_vec(),
            Scalar::Bf16 => bf16::from_f64(*value).to_le_bytes().to_vec(),
            Scalar::F32 => (*value as f32).to_le_bytes().to_vec(),
            Scalar::I32 => (*value as i32).to_le_bytes().to_vec(),
            Scalar::I64 => (*value as i64).to_le_bytes().to_vec(),
            Scalar::U32 => (*value as u32).to_le_bytes().to_vec(),
            Scalar::U8 => vec![*value as u8],
            Scalar::I8 => (*value as i8).to_le_bytes().to_vec(),
            Scalar::Mbar => (*value as u64).to_le_bytes().to_vec(),
        }
    };
    values.iter().flat_map(each).collect()
}

/// The values of bytes.
pub(crate) fn decode(bytes: &[u8], scalar: Scalar) -> Vec<f64> {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    bytes
        .chunks_exact(scalar.bytes() as usize)
        .map(|bytes| match scalar {
            Scalar::F16 => f16::from_bits(word(bytes) as u16).to_f64(),
            Scalar::Bf16 => bf16::from_bits(word(bytes) as u16).to_f64(),
            Scalar::F32 => f64::from(f32::from_bits(word(bytes) as u32)),
            Scalar::I32 => f64::from(word(bytes) as u32 as i32),
            Scalar::I64 => word(bytes) as i64 as f64,
            Scalar::U32 => f64::from(word(bytes) as u32),
            Scalar::U8 => f64::from(word(bytes) as u8),
            Scalar::I8 => f64::from(word(bytes) as u8 as i8),
            Scalar::Mbar => word(bytes) as f64,
        })
        .collect()
}

/// A generator of numbers (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number in `low..=high`.
    pub(crate) fn within(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    /// A number that fits a type exactly: small integers, or fractions of sixteenths in [-2, 2].
    pub(crate) fn element(&mut self, scalar: Scalar) -> f64 {
        let small = (self.next() % 65) as f64;
        match scalar {
            Scalar::F16 | Scalar::Bf16 | Scalar::F32 => (small - 32.0) / 16.0,
            Scalar::I32 | Scalar::I64 | Scalar::I8 => small - 32.0,
            Scalar::U32 | Scalar::U8 | Scalar::Mbar => small,
        }
    }

    pub(crate) fn elements(&mut self, count: usize, scalar: Scalar) -> Vec<f64> {
        (0..count).map(|_| self.element(scalar)).collect()
    }

    /// Numbers of about a standard normal distribution, rounded to a type; `outliers`: one in a
    /// thousand is a hundred times as large.
    pub(crate) fn normal(&mut self, count: usize, scalar: Scalar, outliers: bool) -> Vec<f64> {
        let mut unit = || (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let values: Vec<f64> = (0..count)
            .map(|_| {
                let sum: f64 = (0..4).map(|_| unit()).sum();
                let large = outliers && unit() < 1e-3;
                (sum - 2.0) * if large { 173.0 } else { 1.73 }
            })
            .collect();
        decode(&encode(&values, scalar), scalar)
    }
}
