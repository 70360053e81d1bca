//! Tensors of the Open Inference Protocol: the names of their types, and their elements on the wire.

use super::wire::{Field, fields, varint};
use crate::error::{Error, Result};
use bytes::Bytes;
use graphene_runtime::{DType, Dim, Element, Port, Tensor};

/// How elements lie in `InferTensorContents`.
#[derive(Clone, Copy)]
enum Contents {
    /// Varints of the field of this number.
    Varints(u32),
    /// Four bytes each.
    Fixed32(u32),
    /// Eight bytes each.
    Fixed64(u32),
    /// They have no field.
    None,
}

/// A row a type: its name in the protocol, its number in `DataType`, and its field in `InferTensorContents`.
const DATATYPES: [(DType, &str, i32, Contents); 13] = [
    (DType::Bool, "BOOL", 1, Contents::Varints(1)),
    (DType::U8, "UINT8", 2, Contents::Varints(4)),
    (DType::U16, "UINT16", 3, Contents::Varints(4)),
    (DType::U32, "UINT32", 4, Contents::Varints(4)),
    (DType::U64, "UINT64", 5, Contents::Varints(5)),
    (DType::I8, "INT8", 6, Contents::Varints(2)),
    (DType::I16, "INT16", 7, Contents::Varints(2)),
    (DType::I32, "INT32", 8, Contents::Varints(2)),
    (DType::I64, "INT64", 9, Contents::Varints(3)),
    (DType::F16, "FP16", 10, Contents::None),
    (DType::F32, "FP32", 11, Contents::Fixed32(6)),
    (DType::F64, "FP64", 12, Contents::Fixed64(7)),
    (DType::BF16, "BF16", 14, Contents::None),
];

fn row(dtype: DType) -> Option<&'static (DType, &'static str, i32, Contents)> {
    DATATYPES.iter().find(|row| row.0 == dtype)
}

/// A type's name in the protocol; our own for types that it has none for.
pub(super) fn name(dtype: DType) -> &'static str {
    row(dtype).map_or(dtype.name(), |row| row.1)
}

/// A type's number in `DataType`; zero, which is invalid, for types that it doesn't have.
pub(super) fn number(dtype: DType) -> i32 {
    row(dtype).map_or(0, |row| row.2)
}

/// Sizes of a port, -1 where requests choose.
pub(super) fn sizes(dims: &[Dim]) -> Vec<i64> {
    dims.iter().map(|dim| dim.known().unwrap_or(-1)).collect()
}

/// Checks that a request's name of a type is the port's.
///
/// # Errors
/// [`Error::Malformed`] for text, which no model takes, and for other types than the port's.
pub(super) fn check_datatype(port: &Port, found: &str) -> Result<()> {
    let (name, needed) = (port.name(), self::name(port.dtype()));
    if found == needed && row(port.dtype()).is_some() {
        return Ok(());
    }
    Err(Error::malformed(match found {
        "BYTES" => format!(
            "input {name:?} needs {needed}; BYTES are for models that take text, and this one does not"
        ),
        _ => format!("input {name:?} needs {needed}; its datatype is {found:?}"),
    }))
}

/// The sizes of a request's tensor.
///
/// # Errors
/// [`Error::Malformed`] for one below zero.
pub(super) fn shape(input: &str, sizes: &[i64]) -> Result<Vec<usize>> {
    let size = |(axis, &size): (usize, &i64)| {
        usize::try_from(size).map_err(|_| {
            let text =
                format!("input {input:?} has {size} along axis {axis}; sizes are zero and more");
            Error::malformed(text)
        })
    };
    sizes.iter().enumerate().map(size).collect()
}

/// A tensor over a request's bytes; they are copied only where they lie unaligned.
///
/// # Errors
/// [`Error::Malformed`] if they are not `needed` bytes, or are BOOL and not each 0 or 1.
pub(super) fn raw(
    (name, dtype): (&str, DType),
    shape: Vec<usize>,
    needed: usize,
    bytes: Bytes,
) -> Result<Tensor> {
    if bytes.len() != needed {
        return Err(Error::malformed(format!(
            "input {name:?} ({} {shape:?}) needs {needed} bytes; its raw_input_contents has {}",
            self::name(dtype),
            bytes.len()
        )));
    }
    if dtype == DType::Bool
        && let Some(other) = bytes.iter().find(|&&byte| byte > 1)
    {
        return Err(Error::malformed(format!(
            "input {name:?} is BOOL, bytes of 0 or 1; it has {other}"
        )));
    }
    tensor(name, Tensor::new(dtype, shape, bytes))
}

/// A tensor of an encoded `InferTensorContents`. Elements are counted before memory is taken for them.
///
/// # Errors
/// [`Error::Malformed`] for types that have no field there, for elements in another type's field, for a number of them
/// other than the shape's, and for values beyond the type.
pub(super) fn contents(
    (input, dtype): (&str, DType),
    shape: Vec<usize>,
    bytes: &[u8],
) -> Result<Tensor> {
    let given = Given { input, dtype, shape, bytes };
    match dtype {
        DType::Bool => {
            let bytes = given.elements(|bits| Some(u8::from(bits != 0)))?;
            tensor(input, Tensor::new(DType::Bool, given.shape, bytes.into()))
        }
        DType::U8 => given.tensor(|bits| u8::try_from(bits).ok()),
        DType::U16 => given.tensor(|bits| u16::try_from(bits).ok()),
        DType::U32 => given.tensor(|bits| u32::try_from(bits).ok()),
        DType::U64 => given.tensor(Some),
        DType::I8 => given.tensor(|bits| i8::try_from(bits.cast_signed()).ok()),
        DType::I16 => given.tensor(|bits| i16::try_from(bits.cast_signed()).ok()),
        DType::I32 => given.tensor(|bits| i32::try_from(bits.cast_signed()).ok()),
        DType::I64 => given.tensor(|bits| Some(bits.cast_signed())),
        DType::F32 => given.tensor(|bits| u32::try_from(bits).ok().map(f32::from_bits)),
        DType::F64 => given.tensor(|bits| Some(f64::from_bits(bits))),
        other => Err(Error::malformed(format!(
            "input {:?} is {}, whose elements come in raw_input_contents only",
            input,
            name(other)
        ))),
    }
}

/// The elements that a request gives for an input.
struct Given<'a> {
    input: &'a str,
    dtype: DType,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

impl Given<'_> {
    fn tensor<T: Element>(self, element: impl Fn(u64) -> Option<T>) -> Result<Tensor> {
        let elements = self.elements(element)?;
        tensor(self.input, Tensor::from_vec(self.shape, elements))
    }

    fn elements<T>(&self, element: impl Fn(u64) -> Option<T>) -> Result<Vec<T>> {
        let (name, dtype) = (self.input, self.dtype);
        let field = row(dtype).map_or(Contents::None, |row| row.3);
        let (found, needed) = (self.count(field)?, self.shape.iter().product::<usize>());
        if found != needed {
            return Err(Error::malformed(format!(
                "input {name:?} ({} {:?}) needs {needed} elements; its contents has {found}",
                self::name(dtype),
                self.shape
            )));
        }
        let mut elements = Vec::with_capacity(needed);
        each(self.bytes, field, |bits| {
            let beyond = || {
                Error::malformed(format!(
                    "input {name:?} has an element beyond {}",
                    self::name(dtype)
                ))
            };
            elements.push(element(bits).ok_or_else(beyond)?);
            Ok(())
        })?;
        Ok(elements)
    }

    /// How many elements there are, none of which is in the field of another type.
    fn count(&self, field: Contents) -> Result<usize> {
        let (Contents::Varints(own) | Contents::Fixed32(own) | Contents::Fixed64(own)) = field
        else {
            return Ok(0);
        };
        fields(self.bytes, |number, _| match number {
            1..=8 if number != own => Err(Error::malformed(format!(
                "input {:?} is {}, but its contents is of another type",
                self.input,
                name(self.dtype)
            ))),
            _ => Ok(()),
        })?;
        let mut count = 0;
        each(self.bytes, field, |_| {
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }
}

/// Calls `element` with the bits of every element, whether or not it has a key of its own.
fn each(bytes: &[u8], field: Contents, mut element: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let cut = || Error::malformed("the contents of an input end inside of an element");
    fields(bytes, |number, found| match (field, found) {
        (Contents::Varints(own), Field::Varint(bits)) if own == number => element(bits),
        (Contents::Fixed32(own), Field::Fixed32(bits)) if own == number => element(bits.into()),
        (Contents::Fixed64(own), Field::Fixed64(bits)) if own == number => element(bits),
        (Contents::Varints(own), Field::Length(mut packed)) if own == number => {
            while !packed.is_empty() {
                element(varint(&mut packed)?)?;
            }
            Ok(())
        }
        (Contents::Fixed32(own), Field::Length(packed)) if own == number => {
            let (all, rest) = packed.as_chunks();
            all.iter().try_for_each(|bits| element(u32::from_le_bytes(*bits).into()))?;
            if rest.is_empty() { Ok(()) } else { Err(cut()) }
        }
        (Contents::Fixed64(own), Field::Length(packed)) if own == number => {
            let (all, rest) = packed.as_chunks();
            all.iter().try_for_each(|bits| element(u64::from_le_bytes(*bits)))?;
            if rest.is_empty() { Ok(()) } else { Err(cut()) }
        }
        _ => Ok(()),
    })
}

fn tensor(
    input: &str,
    made: std::result::Result<Tensor, graphene_runtime::TensorError>,
) -> Result<Tensor> {
    made.map_err(|error| Error::malformed(format!("input {input:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::{DType, contents, name, number, raw};
    use prost::Message;

    /// The published message.
    #[derive(Clone, PartialEq, Message)]
    struct InferTensorContents {
        #[prost(bool, repeated, tag = "1")]
        bools: Vec<bool>,
        #[prost(int32, repeated, tag = "2")]
        ints: Vec<i32>,
        #[prost(int64, repeated, tag = "3")]
        longs: Vec<i64>,
        #[prost(uint32, repeated, tag = "4")]
        uints: Vec<u32>,
        #[prost(uint64, repeated, tag = "5")]
        ulongs: Vec<u64>,
        #[prost(float, repeated, tag = "6")]
        floats: Vec<f32>,
        #[prost(double, repeated, tag = "7")]
        doubles: Vec<f64>,
        #[prost(bytes = "vec", repeated, tag = "8")]
        texts: Vec<Vec<u8>>,
    }

    type All = InferTensorContents;

    fn bytes<const N: usize>(elements: &[[u8; N]]) -> Vec<u8> {
        elements.concat()
    }

    #[test]
    fn contents_become_elements_of_every_type() {
        let rows: [(DType, All, Vec<u8>); 11] = [
            (DType::Bool, All { bools: vec![true, false], ..All::default() }, vec![1, 0]),
            (DType::U8, All { uints: vec![0, 255], ..All::default() }, vec![0, 255]),
            (
                DType::U16,
                All { uints: vec![1, 65535], ..All::default() },
                bytes(&[1_u16, 65535].map(u16::to_le_bytes)),
            ),
            (
                DType::U32,
                All { uints: vec![1, u32::MAX], ..All::default() },
                bytes(&[1, u32::MAX].map(u32::to_le_bytes)),
            ),
            (
                DType::U64,
                All { ulongs: vec![1, u64::MAX], ..All::default() },
                bytes(&[1, u64::MAX].map(u64::to_le_bytes)),
            ),
            (
                DType::I8,
                All { ints: vec![-128, 127], ..All::default() },
                bytes(&[-128_i8, 127].map(i8::to_le_bytes)),
            ),
            (
                DType::I16,
                All { ints: vec![-32768, 1], ..All::default() },
                bytes(&[-32768_i16, 1].map(i16::to_le_bytes)),
            ),
            (
                DType::I32,
                All { ints: vec![i32::MIN, 1], ..All::default() },
                bytes(&[i32::MIN, 1].map(i32::to_le_bytes)),
            ),
            (
                DType::I64,
                All { longs: vec![i64::MIN, 1], ..All::default() },
                bytes(&[i64::MIN, 1].map(i64::to_le_bytes)),
            ),
            (
                DType::F32,
                All { floats: vec![-0.0, 1.5], ..All::default() },
                bytes(&[-0.0_f32, 1.5].map(f32::to_le_bytes)),
            ),
            (
                DType::F64,
                All { doubles: vec![f64::NAN, 1e300], ..All::default() },
                bytes(&[f64::NAN, 1e300].map(f64::to_le_bytes)),
            ),
        ];
        for (dtype, message, expected) in rows {
            let tensor = contents(("x", dtype), vec![2], &message.encode_to_vec()).unwrap();
            assert_eq!((tensor.dtype(), tensor.bytes()), (dtype, &expected[..]), "{dtype}");
            let short = contents(("x", dtype), vec![3], &message.encode_to_vec()).unwrap_err();
            assert!(short.to_string().contains("needs 3 elements; its contents has 2"), "{short}");
            let text = All { texts: vec![b"a".to_vec(); 2], ..All::default() };
            let other = contents(("x", dtype), vec![2], &text.encode_to_vec()).unwrap_err();
            assert!(other.to_string().contains("of another type"), "{other}");
        }
    }

    #[test]
    fn elements_beyond_their_type_are_refused() {
        let rows = [
            (DType::U8, All { uints: vec![256], ..All::default() }),
            (DType::U16, All { uints: vec![65536], ..All::default() }),
            (DType::I8, All { ints: vec![-129], ..All::default() }),
            (DType::I16, All { ints: vec![32768], ..All::default() }),
        ];
        for (dtype, message) in rows {
            let beyond = contents(("x", dtype), vec![1], &message.encode_to_vec()).unwrap_err();
            let expected = format!("input \"x\" has an element beyond {}", name(dtype));
            assert_eq!(beyond.to_string(), expected);
        }
        for dtype in [DType::F16, DType::BF16, DType::I4] {
            let refused = contents(("x", dtype), vec![0], &[]).unwrap_err();
            assert!(refused.to_string().contains("raw_input_contents only"), "{refused}");
        }
        let two = raw(("x", DType::Bool), vec![2], 2, vec![1, 2].into()).unwrap_err();
        assert!(two.to_string().contains("it has 2"), "{two}");
    }

    #[test]
    fn types_have_their_published_names() {
        let rows = [
            (DType::F16, "FP16", 10),
            (DType::BF16, "BF16", 14),
            (DType::Bool, "BOOL", 1),
            (DType::I4, "i4", 0),
        ];
        for (dtype, text, of) in rows {
            assert_eq!((name(dtype), number(dtype)), (text, of));
        }
    }
}
