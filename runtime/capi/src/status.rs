//! What functions return, and what is kept of the last error.

#![allow(unsafe_code)] // Exported names.

use graphene_runtime::{Error, ErrorKind};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The version of this interface. It grows when a declaration changes in a way that compiled callers notice.
pub const ABI_VERSION: u32 = 1;

/// Whether a call did what it was asked for, and if not, whose fault that is.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It did.
    Ok = 0,
    /// The request does not fit the model: another request may.
    Request = 1,
    /// A limit is in the way: a smaller request, or a larger limit, helps.
    Limit = 2,
    /// Too many requests wait: the same request may do later.
    Busy = 3,
    /// The caller cancelled.
    Cancelled = 4,
    /// The deadline passed.
    Deadline = 5,
    /// The model is malformed, or cannot be read.
    Model = 6,
    /// The model or the machine asks for something that is not supported.
    Unsupported = 7,
    /// The device or its libraries failed.
    Device = 8,
    /// A defect of the library.
    Bug = 9,
    /// The call breaks a rule of this interface: a null pointer, a number of no enumeration, text that is not UTF-8, a
    /// context that another thread uses.
    Misuse = 10,
}

/// Why a call failed.
pub(crate) struct Failure {
    status: Status,
    code: u32,
    message: String,
}

impl Failure {
    /// A call against the rules. Codes are those of the constructors in this crate, from 1001 on.
    pub(crate) fn misuse(code: u32, message: impl Into<String>) -> Self {
        Self { status: Status::Misuse, code, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Request => Status::Request,
            ErrorKind::Limit => Status::Limit,
            ErrorKind::Busy => Status::Busy,
            ErrorKind::Cancelled => Status::Cancelled,
            ErrorKind::Deadline => Status::Deadline,
            ErrorKind::Model => Status::Model,
            ErrorKind::Unsupported => Status::Unsupported,
            ErrorKind::Device => Status::Device,
            // The enum may grow; a kind that this interface does not know is a defect of it.
            ErrorKind::Bug | _ => Status::Bug,
        };
        Self { status, code: error.code().into(), message: error.to_string() }
    }
}

struct Last {
    status: Status,
    code: u32,
    message: CString,
}

thread_local! {
    static LAST: RefCell<Last> =
        RefCell::new(Last { status: Status::Ok, code: 0, message: CString::default() });
}

/// Does the work of an exported function: an error or a panic is kept for this thread and becomes a status.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Failure>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let message = text.unwrap_or_else(|| "no message".to_owned());
            Error::Panicked { message }.into()
        }
    };
    let Failure { status, code, message } = failure;
    let last = Last { status, code, message: c_text(&message) };
    // A thread that ends has nobody who would read it.
    let _ = LAST.try_with(|place| place.replace(last));
    status
}

/// Text as C has it: what stands after a zero byte is left out.
pub(crate) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).expect("it ends before the first zero")
}

/// Frees a handle. What panics while it is dropped is leaked, not unwound.
pub(crate) fn free<T>(handle: Option<Box<T>>) {
    // There is nobody to tell: freeing returns nothing.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(handle)));
}

/// The version of this interface in the library; it has to be `GRAPHENE_ABI_VERSION` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_abi_version() -> u32 {
    ABI_VERSION
}

/// The library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn graphene_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(text) => text,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// The status of the last call on this thread that failed.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_last_error_status() -> Status {
    LAST.with_borrow(|last| last.status)
}

/// A number for what went wrong, which stays the same from version to version: its hundreds are the status.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_last_error_code() -> u32 {
    LAST.with_borrow(|last| last.code)
}

/// What went wrong, in UTF-8; empty if nothing did. Valid until the next call on this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_last_error_message() -> *const c_char {
    LAST.with_borrow(|last| last.message.as_ptr())
}
