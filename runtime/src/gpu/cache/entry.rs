//! The bytes of an entry.

use super::{HASH, Key};
use crate::device::Cubin;
use sha2::{Digest, Sha256};

/// The first bytes of an entry; the last of them is the version of its layout.
pub(super) const MAGIC: [u8; 8] = *b"GRPHCUB1";
/// Bytes before the image: magic, key, and the lengths of the image and of the log.
pub(super) const HEADER: usize = MAGIC.len() + HASH + 16;

/// An entry's bytes: magic, key, lengths, image, log, checksum.
pub(super) fn encode(key: Key, cubin: &Cubin) -> Vec<u8> {
    let (image, log) = (cubin.image(), cubin.log().text.as_bytes());
    let mut bytes = Vec::with_capacity(HEADER + image.len() + log.len() + HASH);
    bytes.extend(MAGIC);
    bytes.extend(key.0);
    bytes.extend((image.len() as u64).to_le_bytes());
    bytes.extend((log.len() as u64).to_le_bytes());
    bytes.extend(image);
    bytes.extend(log);
    let checksum = Sha256::digest(&bytes);
    bytes.extend(checksum);
    bytes
}

/// The image and the log of an entry, if it is whole and that of the key.
pub(super) fn decode(bytes: &[u8], key: Key) -> Option<(&[u8], &str)> {
    let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(HASH)?)?;
    if Sha256::digest(body)[..] != *checksum {
        return None;
    }
    let (magic, rest) = body.split_at_checked(MAGIC.len())?;
    let (of, rest) = rest.split_at_checked(HASH)?;
    let (lengths, rest) = rest.split_at_checked(16)?;
    if magic != MAGIC || of != key.0 {
        return None;
    }
    let length = |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
    let (image, log) = rest.split_at_checked(length(&lengths[..8])?)?;
    (length(&lengths[8..])? == log.len()).then_some(())?;
    Some((image, std::str::from_utf8(log).ok()?))
}
