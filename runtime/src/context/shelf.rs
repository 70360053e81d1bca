//! Memory of outputs, which comes back to its context when nobody has them any more: a large output's pages need not be
//! had from the system anew in each run.

use super::Ordered;
use crate::cpu::Storage;
use crate::error::Result;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Smaller outputs are left to the allocator, which gives such memory fast.
const LARGE: usize = 1 << 16;

/// Memory that came back. The next run takes what fits its outputs and lets the rest go, so that no more is kept than
/// the outputs of one run.
#[derive(Default)]
pub(super) struct Shelf(Arc<Mutex<Vec<Storage>>>);

/// An output's memory.
pub(super) struct Lent {
    storage: Storage,
    len: usize,
    /// Where it goes back to, if that is still there.
    shelf: Weak<Mutex<Vec<Storage>>>,
}

impl Shelf {
    /// Memory for outputs of so many bytes; what it holds is not said.
    ///
    /// # Errors
    /// As [`Storage::new`].
    pub(super) fn take(&self, sizes: &[usize]) -> Result<Ordered<Lent>> {
        let mut free = {
            let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *free)
        };
        let mut lent = Ordered::with_capacity(sizes.len());
        for &len in sizes {
            if len < LARGE {
                lent.push(Lent { storage: Storage::new(len)?, len, shelf: Weak::new() });
                continue;
            }
            let rounded = rounded(len);
            let known = free.iter().position(|storage| storage.as_ref().len() == rounded);
            let storage = match known {
                Some(place) => free.swap_remove(place),
                None => Storage::new(rounded)?,
            };
            lent.push(Lent { storage, len, shelf: Arc::downgrade(&self.0) });
        }
        Ok(lent)
    }
}

/// An eighth more at most: an output that grows from run to run, as the keys and values of a decoder do, is seldom another
/// one.
fn rounded(len: usize) -> usize {
    let step = len.checked_next_power_of_two().map_or(1, |power| (power / 16).max(1));
    len.checked_next_multiple_of(step).unwrap_or(len)
}

impl Lent {
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage.bytes_mut()[..self.len]
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.storage.as_ref()[..self.len]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(shelf) = self.shelf.upgrade() {
            let storage = std::mem::take(&mut self.storage);
            shelf.lock().unwrap_or_else(PoisonError::into_inner).push(storage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LARGE, Shelf, rounded};

    /// What came back is had again by an output a little longer; after a run of other sizes it is gone.
    #[test]
    fn memory_comes_back() {
        let shelf = Shelf::default();
        let place = |shelf: &Shelf, sizes: &[usize]| {
            let mut lent = shelf.take(sizes).unwrap();
            lent.iter_mut().zip(sizes).for_each(|(lent, &len)| {
                assert_eq!(lent.as_ref().len(), len);
                lent.bytes_mut().fill(7);
            });
            lent[0].as_ref().as_ptr().addr()
        };
        let first = place(&shelf, &[3 * LARGE + 1, 5]);
        assert_eq!(place(&shelf, &[3 * LARGE + 65, 5]), first);
        assert_eq!(shelf.0.lock().unwrap().len(), 1);
        place(&shelf, &[100 * LARGE]);
        assert_eq!(shelf.0.lock().unwrap().len(), 1);
        let kept = shelf.take(&[100 * LARGE]).unwrap();
        drop(shelf);
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
