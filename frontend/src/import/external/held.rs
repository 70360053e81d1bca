//! Files that are opened once: what later happens to their names changes nothing.

use super::map::map;
use crate::memory::{Block, LARGE, shared};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

/// A file whose bytes are read at their positions.
#[derive(Debug)]
pub(super) struct Held {
    path: PathBuf,
    /// The open file; `None` where too many are open already. It is opened anew for each read then.
    file: Option<File>,
    /// What it was like when it was opened first.
    stamp: Stamp,
    /// Its bytes, if they are mapped.
    map: Option<Bytes>,
    known: Mutex<Known>,
}

/// Ranges that have been read: tensors that share bytes in the file do so in memory.
#[derive(Default)]
struct Known {
    blocks: BTreeMap<(u64, u64), Weak<Block>>,
    /// Their bytes, some of which may have been dropped.
    bytes: u64,
    /// What they may come to until those that were dropped are counted off.
    most: u64,
}

/// Weights that overlap in a file take at most so many times its bytes, and [`MOST_BYTES`] beyond.
const MOST_TIMES: u64 = 4;
const MOST_BYTES: u64 = 1 << 26;

/// By what a file is known that was replaced or written to.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stamp {
    len: u64,
    written: Option<SystemTime>,
    #[cfg(unix)]
    inode: (u64, u64),
}

/// Why bytes of a file cannot be had.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The system says so.
    Io(io::Error),
    /// The file was truncated, written to or replaced since it was opened first.
    Changed,
    /// Ranges that overlap would take many times the file's bytes.
    Overlapping,
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        Self {
            len: metadata.len(),
            written: metadata.modified().ok(),
            #[cfg(unix)]
            inode: (metadata.dev(), metadata.ino()),
        }
    }
}

impl Held {
    /// Takes an open regular file at this path.
    ///
    /// # Errors
    /// What the system says; [`ErrorKind::InvalidInput`] for what is no regular file.
    pub(super) fn new(path: PathBuf, file: File, is_mapped: bool) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ErrorKind::InvalidInput.into());
        }
        let map = is_mapped.then(|| map(&file, metadata.len())).transpose()?;
        let stamp = Stamp::of(&metadata);
        Ok(Self { path, file: Some(file), stamp, map, known: Mutex::default() })
    }

    /// Closes the file until it is read again.
    pub(super) fn close(&mut self) {
        self.file = None;
    }

    /// Where it was found.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes when it was opened.
    pub(super) fn len(&self) -> u64 {
        self.stamp.len
    }

    /// Its bytes, if they are mapped.
    pub(super) fn mapped(&self) -> Option<&Bytes> {
        self.map.as_ref()
    }

    /// A range within [`len`](Self::len), in memory of the process's own.
    ///
    /// # Errors
    /// [`ReadError`]. A write that leaves length and time of the last write as they are, as some file systems allow
    /// within a few milliseconds, goes unnoticed.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Bytes, ReadError> {
        let key = (range.start, range.end);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = known.blocks.get(&key).and_then(Weak::upgrade) {
            return Ok(shared(&block));
        }
        known.evict(range.end - range.start, self.len())?;
        let len = usize::try_from(range.end - range.start).map_err(|_| ErrorKind::OutOfMemory);
        let mut block = Block::zeroed(len.map_err(io::Error::from)?)?;
        self.fill(range.start, block.bytes_mut())?;
        let block = Arc::new(block);
        known.blocks.insert(key, Arc::downgrade(&block));
        Ok(shared(&block))
    }

    /// Fills `bytes` with those of the file from `offset` on.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub(super) fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ReadError> {
        let anew;
        let file = match &self.file {
            Some(file) => file,
            None => {
                anew = File::open(&self.path)?;
                &anew
            }
        };
        let read = read_exact_at(file, bytes, offset);
        // A file that was cut ends early, which this says better.
        match Stamp::of(&file.metadata()?) == self.stamp {
            true => Ok(read?),
            false => Err(ReadError::Changed),
        }
    }
}

impl Known {
    /// Counts bytes that are about to be read of a file of `len` bytes.
    ///
    /// # Errors
    /// [`ReadError::Overlapping`] if those in memory were too many.
    fn evict(&mut self, bytes: u64, len: u64) -> Result<(), ReadError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.most {
            self.blocks.retain(|_, block| block.strong_count() > 0);
            let in_memory = self.blocks.keys().map(|(start, end)| end - start);
            self.bytes = in_memory.fold(bytes, u64::saturating_add);
            if self.bytes > len.saturating_mul(MOST_TIMES).saturating_add(MOST_BYTES) {
                return Err(ReadError::Overlapping);
            }
            // Counted so rarely, it costs next to nothing beside reading.
            self.most = self.bytes.saturating_add((len / 2).max(LARGE as u64));
        }
        Ok(())
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ranges", self.blocks.len())
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => {
                bytes = &mut bytes[read..];
                offset += read as u64;
            }
        }
    }
    Ok(())
}
