//! Pointers of callers as references, checked as far as they can be.
//!
//! Every `unsafe` function here asks for the same: a pointer that is not null is valid for reads (or writes) of what it
//! is said to point at, for as long as the call lasts, and nobody writes there meanwhile.

#![allow(unsafe_code)] // This is the thin layer that reads a caller's memory.

use crate::status::Failure;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::slice;

/// Something that must not be null.
pub(crate) fn needed<T>(given: Option<T>, what: &str) -> Result<T, Failure> {
    given.ok_or_else(|| null(what))
}

/// Writes what a function gives, once all else has succeeded.
pub(crate) fn put<T>(place: Option<&mut MaybeUninit<T>>, value: T) {
    if let Some(place) = place {
        place.write(value);
    }
}

fn null(what: &str) -> Failure {
    Failure::misuse(1001, format!("{what} must not be null"))
}

/// Elements of an array.
pub(crate) unsafe fn list<'a, T>(
    data: *const T,
    count: usize,
    what: &str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    checked(data, count, what)?;
    // SAFETY: it is neither null nor misaligned, no longer than an object can be, and the caller vouches for the rest.
    Ok(unsafe { slice::from_raw_parts(data, count) })
}

/// Bytes of untyped memory.
pub(crate) unsafe fn bytes<'a>(
    data: *const c_void,
    count: usize,
    what: &str,
) -> Result<&'a [u8], Failure> {
    // SAFETY: as the caller vouches for.
    unsafe { list(data.cast(), count, what) }
}

/// Bytes of untyped memory, to write to.
pub(crate) unsafe fn bytes_mut<'a>(
    data: *mut c_void,
    count: usize,
    what: &str,
) -> Result<&'a mut [u8], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    checked(data.cast::<u8>(), count, what)?;
    // SAFETY: as in `list`; nobody else has it, which the caller of this function has checked or been told.
    Ok(unsafe { slice::from_raw_parts_mut(data.cast(), count) })
}

fn checked<T>(data: *const T, count: usize, what: &str) -> Result<(), Failure> {
    if data.is_null() {
        return Err(null(what));
    }
    if !data.is_aligned() {
        return Err(Failure::misuse(1002, format!("{what} is misaligned")));
    }
    let len = count.checked_mul(size_of::<T>()).filter(|&len| isize::try_from(len).is_ok());
    let end = len.and_then(|len| data.addr().checked_add(len));
    if end.is_none() {
        return Err(Failure::misuse(1003, format!("{what} is longer than memory can be")));
    }
    Ok(())
}

/// Text that may be left out.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not null, and the caller vouches that it ends with a zero byte.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str();
    text.map(Some).map_err(|_| Failure::misuse(1004, format!("{what} is not UTF-8")))
}

/// Text that must be there.
pub(crate) unsafe fn needed_text<'a>(given: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: as the caller vouches for.
    needed(unsafe { text(given, what) }?, what)
}

/// What a pointer within a struct points at, if at anything.
pub(crate) unsafe fn shared<'a, T>(given: *const T) -> Option<&'a T> {
    // SAFETY: null becomes `None`, and the caller vouches for the rest.
    unsafe { given.as_ref() }
}

/// A number of an enumeration of this interface.
pub(crate) fn numbered<T: Copy>(all: &[T], number: u32, what: &str) -> Result<T, Failure> {
    let found = usize::try_from(number).ok().and_then(|number| all.get(number));
    found.copied().ok_or_else(|| Failure::misuse(1005, format!("{number} is no {what}")))
}
