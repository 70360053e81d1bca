//! A pool of output buffers. When a caller drops an output, its memory returns to the context that allocated it, so the next
//! run does not ask the system for the pages of a large output again.

use super::Ordered;
use crate::cpu::Storage;
use crate::error::Result;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The least bytes of a pooled output: of smaller ones, the allocator is as fast.
const LARGE: usize = 1 << 16;

/// Returned buffers. The next run takes those that fit its outputs and frees the others: what is kept is never more than the
/// outputs of one run.
#[derive(Default)]
pub(super) struct BufferPool(Arc<Mutex<Vec<Storage>>>);

/// An output's buffer. Dropping it returns its memory to the pool.
pub(super) struct PooledBuffer {
    storage: Storage,
    len: usize,
    /// Dangling for a small output, and once the context is gone.
    pool: Weak<Mutex<Vec<Storage>>>,
}

impl BufferPool {
    /// Buffers of these sizes in bytes. Their contents are unspecified.
    ///
    /// # Errors
    /// As [`Storage::new`].
    pub(super) fn take(&self, sizes: &[usize]) -> Result<Ordered<PooledBuffer>> {
        let mut free = {
            let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *free)
        };
        let mut buffers = Ordered::with_capacity(sizes.len());
        for &len in sizes {
            if len < LARGE {
                buffers.push(PooledBuffer { storage: Storage::new(len)?, len, pool: Weak::new() });
                continue;
            }
            let rounded = rounded(len);
            let known = free.iter().position(|storage| storage.as_ref().len() == rounded);
            let storage = match known {
                Some(place) => free.swap_remove(place),
                None => Storage::new(rounded)?,
            };
            buffers.push(PooledBuffer { storage, len, pool: Arc::downgrade(&self.0) });
        }
        Ok(buffers)
    }
}

/// Up to an eighth more, so that an output which grows from run to run, as a decoder's keys and values do, mostly fits the
/// buffer of the run before.
fn rounded(len: usize) -> usize {
    let step = len.checked_next_power_of_two().map_or(1, |power| (power / 16).max(1));
    len.checked_next_multiple_of(step).unwrap_or(len)
}

impl PooledBuffer {
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage.bytes_mut()[..self.len]
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.storage.as_ref()[..self.len]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            let storage = std::mem::take(&mut self.storage);
            pool.lock().unwrap_or_else(PoisonError::into_inner).push(storage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BufferPool, LARGE, rounded};

    /// A returned buffer serves a slightly larger output; a run of other sizes frees it.
    #[test]
    fn memory_comes_back() {
        let pool = BufferPool::default();
        let place = |pool: &BufferPool, sizes: &[usize]| {
            let mut buffers = pool.take(sizes).unwrap();
            for (buffer, &len) in buffers.iter_mut().zip(sizes) {
                assert_eq!(buffer.as_ref().len(), len);
                buffer.bytes_mut().fill(7);
            }
            buffers[0].as_ref().as_ptr().addr()
        };
        let first = place(&pool, &[3 * LARGE + 1, 5]);
        assert_eq!(place(&pool, &[3 * LARGE + 65, 5]), first);
        assert_eq!(pool.0.lock().unwrap().len(), 1);
        place(&pool, &[100 * LARGE]);
        assert_eq!(pool.0.lock().unwrap().len(), 1);
        let kept = pool.take(&[100 * LARGE]).unwrap();
        drop(pool);
        assert_eq!(kept[0].as_ref()[9], 7);
    }

    #[test]
    fn little_is_added() {
        for len in [1, 15, 17, 1000, LARGE, LARGE + 1, 3 * LARGE - 1, usize::MAX] {
            let rounded = rounded(len);
            assert!(rounded >= len && rounded - len <= len / 8, "{len} {rounded}");
        }
    }
}
