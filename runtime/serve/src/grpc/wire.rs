//! Protobuf's wire format, where messages are looked at before they are decoded, or without.

use crate::error::{Error, Result};
use prost::encoding::{WireType, decode_key, decode_varint};

/// A field of a message: its number, and what lies on the wire.
pub(super) enum Field<'a> {
    /// An integer or a truth value.
    Varint(u64),
    /// Four bytes.
    Fixed32(u32),
    /// Eight bytes.
    Fixed64(u64),
    /// Text, bytes, a message, or elements without keys of their own.
    Length(&'a [u8]),
}

/// Calls `each` with the fields of an encoded message, in their order on the wire.
///
/// # Errors
/// [`Error::Malformed`] for bytes that are no message; what `each` gives.
pub(super) fn fields<'a>(
    mut bytes: &'a [u8],
    mut each: impl FnMut(u32, Field<'a>) -> Result<()>,
) -> Result<()> {
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes).map_err(malformed)?;
        let field = match wire {
            WireType::Varint => Field::Varint(varint(&mut bytes)?),
            WireType::ThirtyTwoBit => {
                let (value, rest) = bytes.split_first_chunk().ok_or_else(cut)?;
                bytes = rest;
                Field::Fixed32(u32::from_le_bytes(*value))
            }
            WireType::SixtyFourBit => {
                let (value, rest) = bytes.split_first_chunk().ok_or_else(cut)?;
                bytes = rest;
                Field::Fixed64(u64::from_le_bytes(*value))
            }
            WireType::LengthDelimited => {
                let length = usize::try_from(varint(&mut bytes)?).map_err(|_| cut())?;
                let (value, rest) = bytes.split_at_checked(length).ok_or_else(cut)?;
                bytes = rest;
                Field::Length(value)
            }
            WireType::StartGroup | WireType::EndGroup => {
                return Err(Error::malformed(
                    "the message has a group, which none of its fields is",
                ));
            }
        };
        each(number, field)?;
    }
    Ok(())
}

/// Takes a varint off the front.
///
/// # Errors
/// [`Error::Malformed`] where it doesn't end.
pub(super) fn varint(bytes: &mut &[u8]) -> Result<u64> {
    decode_varint(bytes).map_err(malformed)
}

/// Bytes that are no message, in the decoder's words.
pub(super) fn malformed(error: prost::DecodeError) -> Error {
    Error::malformed(error.to_string())
}

fn cut() -> Error {
    Error::malformed("the message ends inside of a field")
}
