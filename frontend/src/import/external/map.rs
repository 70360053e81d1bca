//! Mapping files into memory.
#![allow(unsafe_code)]

use bytes::Bytes;
use std::fs::File;
use std::io;

/// The bytes of a regular file of this length, mapped; pages are read when touched.
pub(super) fn map(file: &File, len: u64) -> io::Result<Bytes> {
    if len == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only, and is read as plain bytes. A file that another process
    // truncates meanwhile ends this one by a signal; that is the price of not copying weights, and what
    // `Reading::Owned` is for.
    let map = unsafe { memmap2::Mmap::map(file)? };
    Ok(Bytes::from_owner(map))
}
