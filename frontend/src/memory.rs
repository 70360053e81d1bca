//! Memory for what is large and lives long, such as weights.
//!
//! A weight has memory to itself, so that dropping it gives that memory back. Large pieces are anonymous pages, which
//! go back to the system at once: an allocator may keep them for later, and the more the larger they are.

use crate::tensor::AlignedBytes;
use bytes::Bytes;
use memmap2::MmapMut;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// From this many bytes on, weights have pages to themselves.
pub const LARGE: usize = 1 << 20;

/// Bytes on anonymous pages: aligned to a page, and given back to the system when dropped.
pub struct Pages(MmapMut);

impl Pages {
    /// `len` zeros.
    ///
    /// # Errors
    /// What the system says if it does not give the memory, or if `len` is 0.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        let pages = MmapMut::map_anon(len)?;
        // Large pages where the system has them: what is read from end to end finds its place faster. It may refuse.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage);
        Ok(Self(pages))
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages[{}]", self.len())
    }
}

/// Bytes of the process's own, aligned for every element type.
pub(crate) enum Block {
    /// From the allocator.
    Small(AlignedBytes),
    /// Pages to itself.
    Large(Pages),
}

impl Block {
    /// `len` zeros.
    ///
    /// # Errors
    /// What the system says if it does not give the memory.
    pub(crate) fn zeroed(len: usize) -> io::Result<Self> {
        Ok(match len < LARGE {
            true => Self::Small(AlignedBytes::zeroed(len)),
            false => Self::Large(Pages::zeroed(len)?),
        })
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Small(bytes) => bytes.bytes_mut(),
            Self::Large(pages) => pages,
        }
    }
}

/// A share of a block.
struct Share(Arc<Block>);

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        match &*self.0 {
            Block::Small(bytes) => bytes.bytes(),
            Block::Large(pages) => pages,
        }
    }
}

/// The block's bytes; the block lives as long as any of them.
pub(crate) fn shared(block: &Arc<Block>) -> Bytes {
    Bytes::from_owner(Share(Arc::clone(block)))
}
