//! Tensors of ONNX files.

use super::error::{OpError, Reason};
use super::external::{ExternalData, ExternalDataError, own_copy};
use crate::dtype::DType;
use crate::onnx::{DataLocation, TensorProto};
use crate::tensor::{Tensor, checked_elements};
use bytes::Bytes;

/// Reads a tensor. Elements that lie in the message are copied out of it: one tensor that is in use must not keep a
/// whole model's bytes in memory.
pub(super) fn read_tensor(
    proto: &TensorProto,
    weights: &dyn ExternalData,
) -> Result<Tensor, OpError> {
    let dtype = DType::from_onnx(proto.data_type).ok_or_else(|| OpError::dtype(proto.data_type))?;
    let shape = shape_of(&proto.dims)?;
    let elements = checked_elements(&shape)
        .filter(|&n| n <= crate::tensor::MAX_ELEMENTS)
        .ok_or_else(|| crate::tensor::TensorError::TooLarge(shape.clone()))?;
    if proto.data_location == DataLocation::External as i32 {
        let bytes = read_external(proto, weights).map_err(|error| {
            OpError::from(super::ImportError::External { name: proto.name.clone(), error })
        })?;
        return from_raw(dtype, shape, elements, bytes);
    }
    match &proto.raw_data {
        Some(bytes) if !bytes.is_empty() => from_raw(dtype, shape, elements, own_copy(bytes)),
        _ => from_typed(proto, dtype, shape, elements),
    }
}

/// Sizes as they stand in a file.
pub(super) fn shape_of(dims: &[i64]) -> Result<Vec<usize>, Reason> {
    let size = |&dim: &i64| usize::try_from(dim).map_err(|_| Reason::NegativeSize(dim));
    dims.iter().map(size).collect()
}

fn read_external(
    proto: &TensorProto,
    weights: &dyn ExternalData,
) -> Result<Bytes, ExternalDataError> {
    let entry = |key: &str| {
        proto.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
    };
    let number = |key: &str| match entry(key) {
        Some(text) => text.trim().parse::<u64>().map(Some),
        None => Ok(None),
    };
    let malformed = |key: &str| ExternalDataError::Malformed(key.to_owned());
    let location = entry("location").ok_or_else(|| malformed("location"))?;
    let offset = number("offset").map_err(|_| malformed("offset"))?.unwrap_or(0);
    let length = number("length").map_err(|_| malformed("length"))?;
    weights.read(location, offset, length)
}

fn from_raw(
    dtype: DType,
    shape: Vec<usize>,
    elements: usize,
    bytes: Bytes,
) -> Result<Tensor, OpError> {
    if dtype.file_bits() < 8 {
        return unpacked(dtype, shape, elements, &bytes);
    }
    if dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
        let normal: Bytes = bytes.iter().map(|&byte| u8::from(byte != 0)).collect();
        return Ok(Tensor::new(dtype, shape, normal)?);
    }
    Ok(Tensor::new(dtype, shape, bytes)?)
}

/// One element a byte from several in one, the first in the lowest bits.
fn unpacked(
    dtype: DType,
    shape: Vec<usize>,
    elements: usize,
    bytes: &[u8],
) -> Result<Tensor, OpError> {
    let bits = dtype.file_bits();
    let per_byte = 8 / bits;
    let expected = elements.div_ceil(per_byte);
    if bytes.len() != expected {
        let actual = bytes.len();
        return Err(crate::tensor::TensorError::Length { shape, dtype, expected, actual }.into());
    }
    let unused = 8 - bits;
    let element = |i: usize| {
        let raw = (bytes[i / per_byte] >> (i % per_byte * bits)) << unused;
        if dtype.is_signed_integer() { ((raw as i8) >> unused) as u8 } else { raw >> unused }
    };
    Ok(Tensor::new(dtype, shape, (0..elements).map(element).collect())?)
}

/// Elements from the field that holds those of this type.
fn from_typed(
    proto: &TensorProto,
    dtype: DType,
    shape: Vec<usize>,
    elements: usize,
) -> Result<Tensor, OpError> {
    let ints = &proto.int32_data;
    Ok(match dtype {
        DType::F32 => Tensor::from_vec(shape, proto.float_data.clone())?,
        DType::F64 => Tensor::from_vec(shape, proto.double_data.clone())?,
        DType::I64 => Tensor::from_vec(shape, proto.int64_data.clone())?,
        DType::U64 => Tensor::from_vec(shape, proto.uint64_data.clone())?,
        DType::U32 => {
            Tensor::from_vec(shape, proto.uint64_data.iter().map(|&x| x as u32).collect())?
        }
        DType::I32 => Tensor::from_vec(shape, ints.clone())?,
        DType::I16 => Tensor::from_vec(shape, ints.iter().map(|&x| x as i16).collect())?,
        DType::U16 => Tensor::from_vec(shape, ints.iter().map(|&x| x as u16).collect())?,
        DType::F16 | DType::BF16 => {
            let bits: Vec<u16> = ints.iter().map(|&x| x as u16).collect();
            let bytes = bits.iter().flat_map(|x| x.to_le_bytes()).collect();
            Tensor::new(dtype, shape, bytes)?
        }
        DType::Bool => Tensor::from_bools(shape, ints.iter().map(|&x| x != 0).collect())?,
        DType::I8
        | DType::U8
        | DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0 => Tensor::new(dtype, shape, ints.iter().map(|&x| x as u8).collect())?,
        DType::I4 | DType::U4 | DType::I2 | DType::U2 | DType::F4E2M1 => {
            let bytes: Vec<u8> = ints.iter().map(|&x| x as u8).collect();
            unpacked(dtype, shape, elements, &bytes)?
        }
    })
}
