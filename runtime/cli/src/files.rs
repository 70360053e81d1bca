//! Output: files that are whole or absent, and a stdout that may go away.

use crate::error::Error;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The temporary file that is being written, for [`abandon`].
static PENDING: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Writes a file under a temporary name beside it and renames it when it is complete.
///
/// A link is followed to what it names. A device or a pipe cannot be replaced by a file: it is written to.
///
/// # Errors
/// [`Error::Write`]; no partial file is left behind then.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    // What is not there yet gets its name below.
    let followed = path.canonicalize();
    let path = followed.as_deref().unwrap_or(path);
    if path.metadata().is_ok_and(|data| !data.is_file() && !data.is_dir()) {
        let opened = std::fs::OpenOptions::new().write(true).open(path);
        return opened.and_then(|mut file| file.write_all(bytes)).map_err(failed);
    }
    let name = path.file_name().ok_or_else(|| failed(ErrorKind::InvalidInput.into()))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
    *pending = Some(temporary.clone());
    drop(pending);
    let written = std::fs::write(&temporary, bytes)
        .and_then(|()| std::fs::rename(&temporary, path))
        .inspect_err(|_| {
            // The error that matters is the one that brought us here.
            let _ = std::fs::remove_file(&temporary);
        });
    *PENDING.lock().unwrap_or_else(PoisonError::into_inner) = None;
    written.map_err(failed)
}

/// Removes what is half-written, before the process ends early.
pub(crate) fn abandon() {
    if let Some(path) = PENDING.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // It may have been renamed meanwhile; then there is nothing to remove.
        let _ = std::fs::remove_file(path);
    }
}

/// Writes to stdout. A reader that went away has read enough: that is no error.
///
/// # Errors
/// [`Error::Output`] for anything else.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    printed(std::io::stdout().lock().write_all(text.as_bytes()))
}

/// Ends what was written to stdout.
///
/// # Errors
/// As for [`print()`].
pub(crate) fn printed(written: std::io::Result<()>) -> Result<(), Error> {
    match written.and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::Output(error)),
        _ => Ok(()),
    }
}

/// Writes a line to stderr, if there is something to say and anybody still reads it.
pub(crate) fn complain(text: &str) {
    if text.is_empty() {
        return;
    }
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
