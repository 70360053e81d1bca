//! Element types.

use half::{bf16, f16};
use std::fmt;
use std::str::FromStr;

/// The type of a tensor's elements.
///
/// Types narrower than a byte (`i4`, `u2`, `f4e2m1`, …) take one byte an element in memory; only files
/// pack them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs)] // The names say it all; `TABLE` holds the facts.
pub enum DType {
    F32,
    F64,
    F16,
    BF16,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    I4,
    U4,
    I2,
    U2,
    F8E4M3Fn,
    F8E4M3FnUz,
    F8E5M2,
    F8E5M2FnUz,
    F8E8M0,
    F4E2M1,
}

/// A row a type: name in text forms, `TensorProto.DataType`, bytes an element in memory, bits in a file.
const TABLE: [(DType, &str, i32, usize, usize); 23] = [
    (DType::F32, "f32", 1, 4, 32),
    (DType::F64, "f64", 11, 8, 64),
    (DType::F16, "f16", 10, 2, 16),
    (DType::BF16, "bf16", 16, 2, 16),
    (DType::I8, "i8", 3, 1, 8),
    (DType::I16, "i16", 5, 2, 16),
    (DType::I32, "i32", 6, 4, 32),
    (DType::I64, "i64", 7, 8, 64),
    (DType::U8, "u8", 2, 1, 8),
    (DType::U16, "u16", 4, 2, 16),
    (DType::U32, "u32", 12, 4, 32),
    (DType::U64, "u64", 13, 8, 64),
    (DType::Bool, "bool", 9, 1, 8),
    (DType::I4, "i4", 22, 1, 4),
    (DType::U4, "u4", 21, 1, 4),
    (DType::I2, "i2", 26, 1, 2),
    (DType::U2, "u2", 25, 1, 2),
    (DType::F8E4M3Fn, "f8e4m3fn", 17, 1, 8),
    (DType::F8E4M3FnUz, "f8e4m3fnuz", 18, 1, 8),
    (DType::F8E5M2, "f8e5m2", 19, 1, 8),
    (DType::F8E5M2FnUz, "f8e5m2fnuz", 20, 1, 8),
    (DType::F8E8M0, "f8e8m0", 24, 1, 8),
    (DType::F4E2M1, "f4e2m1", 23, 1, 4),
];

impl DType {
    /// All types, in the order of their definition.
    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|row| row.0)
    }

    /// The name in text forms, for example `f32`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The number in ONNX's `TensorProto.DataType`.
    pub fn onnx(self) -> i32 {
        self.row().2
    }

    /// The type of that number in ONNX's `TensorProto.DataType`, if it is one of ours.
    pub fn from_onnx(number: i32) -> Option<Self> {
        TABLE.iter().find(|row| row.2 == number).map(|row| row.0)
    }

    /// Bytes of one element in memory.
    pub fn size(self) -> usize {
        self.row().3
    }

    /// Bits of one element in a file; less than eight are packed.
    pub fn file_bits(self) -> usize {
        self.row().4
    }

    /// Whether elements are real numbers.
    pub fn is_float(self) -> bool {
        use DType::{
            BF16, Bool, F4E2M1, F8E4M3Fn, F8E4M3FnUz, F8E5M2, F8E5M2FnUz, F8E8M0, F16, F32, F64,
            I2, I4, I8, I16, I32, I64, U2, U4, U8, U16, U32, U64,
        };
        match self {
            F32 | F64 | F16 | BF16 | F8E4M3Fn | F8E4M3FnUz | F8E5M2 | F8E5M2FnUz | F8E8M0
            | F4E2M1 => true,
            I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64 | Bool | I4 | U4 | I2 | U2 => false,
        }
    }

    /// Whether elements are integers, `bool` not among them.
    pub fn is_integer(self) -> bool {
        !self.is_float() && self != Self::Bool
    }

    /// Whether elements are integers with a sign.
    pub fn is_signed_integer(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64 | Self::I4 | Self::I2)
    }

    /// The largest finite number, of the real numbers that are computed with: those of eight bits and fewer are only stored.
    pub fn largest(self) -> Option<f64> {
        match self {
            Self::F64 => Some(f64::MAX),
            Self::F32 => Some(f32::MAX.into()),
            Self::F16 => Some(f16::MAX.into()),
            Self::BF16 => Some(bf16::MAX.into()),
            _ => None,
        }
    }

    fn row(self) -> &'static (DType, &'static str, i32, usize, usize) {
        &TABLE[self as usize]
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Text that names no element type.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no element type")]
pub struct ParseDTypeError(String);

impl FromStr for DType {
    type Err = ParseDTypeError;
    fn from_str(text: &str) -> Result<Self, ParseDTypeError> {
        TABLE
            .iter()
            .find(|row| row.1 == text)
            .map(|row| row.0)
            .ok_or_else(|| ParseDTypeError(text.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::{DType, TABLE};

    #[test]
    fn table_rows_stand_in_order() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, i, "{}", row.1);
            assert_eq!(row.1.parse(), Ok(row.0));
            assert_eq!(DType::from_onnx(row.2), Some(row.0));
        }
    }
}
