//! Flags that end runs from another thread.

#![allow(unsafe_code)] // Exported names.

use crate::raw::needed;
use crate::status::{Status, free, guard};
use graphene_runtime as rt;
use std::mem::MaybeUninit;

/// A flag that ends runs from another thread. Any thread may use it, several at a time.
pub struct Cancel(pub(crate) rt::Cancel);

/// A flag that is not set. It is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_cancel_new(cancel: Option<&mut MaybeUninit<*mut Cancel>>) -> Status {
    guard(|| {
        let place = needed(cancel, "cancel")?;
        place.write(Box::into_raw(Box::new(Cancel(rt::Cancel::new()))));
        Ok(())
    })
}

/// Sets it, for good: runs with it end with `GRAPHENE_STATUS_CANCELLED` before their next step.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_cancel_set(cancel: Option<&Cancel>) -> Status {
    guard(|| {
        needed(cancel, "cancel")?.0.set();
        Ok(())
    })
}

/// Frees a flag; null is nothing. No call that was given it may still be going on.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_cancel_free(cancel: Option<Box<Cancel>>) {
    free(cancel);
}
