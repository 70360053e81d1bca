//! What threads share, from the standard library, or from loom where interleavings are explored (`--cfg graphene_loom`).

#[cfg(graphene_loom)]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
#[cfg(not(graphene_loom))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
