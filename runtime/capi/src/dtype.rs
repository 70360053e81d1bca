//! Element types by number.

#![allow(unsafe_code)] // Exported names.

use crate::raw::numbered;
use crate::status::{Failure, Status, guard};
use graphene_runtime::DType as Type;
use std::mem::MaybeUninit;

/// The type of a tensor's elements. Numbers are those of ONNX's `TensorProto.DataType`. Types narrower than a byte take
/// one byte an element.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DType {
    /// Single precision.
    F32 = 1,
    /// Unsigned, 8 bits.
    U8 = 2,
    /// Signed, 8 bits.
    I8 = 3,
    /// Unsigned, 16 bits.
    U16 = 4,
    /// Signed, 16 bits.
    I16 = 5,
    /// Signed, 32 bits.
    I32 = 6,
    /// Signed, 64 bits.
    I64 = 7,
    /// A byte that is 0 or 1.
    Bool = 9,
    /// Half precision.
    F16 = 10,
    /// Double precision.
    F64 = 11,
    /// Unsigned, 32 bits.
    U32 = 12,
    /// Unsigned, 64 bits.
    U64 = 13,
    /// The upper half of single precision.
    Bf16 = 16,
    /// 8 bits, 4 of them exponent, without infinities.
    F8E4M3Fn = 17,
    /// The same without a negative zero.
    F8E4M3FnUz = 18,
    /// 8 bits, 5 of them exponent.
    F8E5M2 = 19,
    /// The same without infinities and a negative zero.
    F8E5M2FnUz = 20,
    /// Unsigned, 4 bits.
    U4 = 21,
    /// Signed, 4 bits.
    I4 = 22,
    /// 4 bits, 2 of them exponent.
    F4E2M1 = 23,
    /// A power of two.
    F8E8M0 = 24,
    /// Unsigned, 2 bits.
    U2 = 25,
    /// Signed, 2 bits.
    I2 = 26,
}

impl From<Type> for DType {
    fn from(dtype: Type) -> Self {
        match dtype {
            Type::F32 => Self::F32,
            Type::F64 => Self::F64,
            Type::F16 => Self::F16,
            Type::BF16 => Self::Bf16,
            Type::I8 => Self::I8,
            Type::I16 => Self::I16,
            Type::I32 => Self::I32,
            Type::I64 => Self::I64,
            Type::U8 => Self::U8,
            Type::U16 => Self::U16,
            Type::U32 => Self::U32,
            Type::U64 => Self::U64,
            Type::Bool => Self::Bool,
            Type::I4 => Self::I4,
            Type::U4 => Self::U4,
            Type::I2 => Self::I2,
            Type::U2 => Self::U2,
            Type::F8E4M3Fn => Self::F8E4M3Fn,
            Type::F8E4M3FnUz => Self::F8E4M3FnUz,
            Type::F8E5M2 => Self::F8E5M2,
            Type::F8E5M2FnUz => Self::F8E5M2FnUz,
            Type::F8E8M0 => Self::F8E8M0,
            Type::F4E2M1 => Self::F4E2M1,
        }
    }
}

/// The type of this number.
pub(crate) fn of_number(number: u32) -> Result<Type, Failure> {
    let known = i32::try_from(number).ok().and_then(Type::from_onnx);
    known.map_or_else(|| numbered(&[], number, "element type"), Ok)
}

/// Bytes of one element in memory.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_dtype_size(dtype: u32, size: Option<&mut MaybeUninit<usize>>) -> Status {
    guard(|| {
        let size = crate::raw::needed(size, "size")?;
        size.write(of_number(dtype)?.size());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::{DType, of_number};
    use graphene_runtime::DType as Type;

    #[test]
    fn numbers_are_those_of_onnx() {
        for dtype in Type::all() {
            let number = DType::from(dtype) as u32;
            assert_eq!(i32::try_from(number), Ok(dtype.onnx()), "{dtype}");
            assert!(of_number(number).is_ok_and(|found| found == dtype));
        }
        assert!(of_number(8).is_err() && of_number(u32::MAX).is_err());
    }
}
