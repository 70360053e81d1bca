//! Mapping files into memory.
#![allow(unsafe_code)]

use bytes::Bytes;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// The file's bytes, mapped; pages are read when touched.
pub(super) fn map(path: &Path) -> std::io::Result<Bytes> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        // A pipe says not how long it is.
        let mut bytes = Vec::new();
        { file }.read_to_end(&mut bytes)?;
        return Ok(bytes.into());
    }
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only, and is read as plain bytes. A file that another process
    // truncates meanwhile ends this one by a signal; that is the price of not copying weights.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    Ok(Bytes::from_owner(map))
}
