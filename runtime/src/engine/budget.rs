//! The memory that an engine's models and contexts may have together.

use crate::error::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A limit in bytes, and what of it is reserved. Clones share both.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: u64,
    used: AtomicU64,
}

/// Bytes that are reserved until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Budget,
    bytes: u64,
}

impl Budget {
    /// A budget of so many bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self(Arc::new(Shared { limit, used: AtomicU64::new(0) }))
    }

    /// All bytes that there are.
    pub(crate) fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes that are reserved.
    pub(crate) fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> u64 {
        self.0.limit.saturating_sub(self.used())
    }

    /// Reserves bytes, before they are allocated.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] if fewer are left; nothing is reserved then.
    pub(crate) fn reserve(&self, bytes: u64, what: impl fmt::Display) -> Result<Reservation> {
        let fits = |used: u64| used.checked_add(bytes).filter(|&all| all <= self.0.limit);
        let reserved = self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        match reserved {
            Ok(_) => Ok(Reservation { budget: self.clone(), bytes }),
            Err(used) => Err(Error::MemoryLimit {
                what: what.to_string(),
                needed: bytes,
                used,
                limit: self.0.limit,
            }),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;

    #[test]
    fn what_is_dropped_can_be_reserved_again() {
        let budget = Budget::new(100);
        let first = budget.reserve(60, "an arena").expect("it fits");
        let error = budget.clone().reserve(41, "an arena").unwrap_err().to_string();
        assert_eq!(
            error,
            "an arena needs 41 bytes; the engine's memory limit is 100 bytes, of which 60 bytes are in use"
        );
        assert_eq!((budget.used(), budget.left()), (60, 40));
        drop(first);
        assert!(budget.reserve(u64::MAX, "an arena").is_err());
        assert_eq!(budget.reserve(100, "an arena").map(|_| budget.limit()), Ok(100));
        assert_eq!(budget.used(), 0);
    }
}
