//! Output: files that are whole or absent, and a stdout that may go away.
//!
//! Nothing that is shown here can move a terminal's cursor, retitle it or hide what follows: all text for stdout and stderr
//! passes [`shown`].

use crate::error::Error;
use graphene_frontend::visible::{is_hidden, visible};
use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The temporary file that is being written, for [`abandon`].
static PENDING: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Writes a file, and says so.
///
/// # Errors
/// As for [`replace`].
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace(path, bytes)?;
    complain(&format!("wrote {}", path.display()));
    Ok(())
}

/// Writes a file under a temporary name beside it and renames it when it is complete.
///
/// A link is followed to what it names. A device or a pipe cannot be replaced by a file: it is written to.
///
/// # Errors
/// [`Error::Write`]; no partial file is left behind then.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    let written = match Place::of(path) {
        Ok(Place::Special(path)) => {
            OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(bytes))
        }
        Ok(Place::File { path, temporary }) => {
            pend(Some(temporary.clone()));
            let written = std::fs::write(&temporary, bytes);
            let written = written.and_then(|()| std::fs::rename(&temporary, path));
            let written = written.inspect_err(|_| {
                // The error that matters is the one that brought us here.
                let _ = std::fs::remove_file(&temporary);
            });
            pend(None);
            written
        }
        Err(error) => Err(error),
    };
    written.map_err(failed)
}

/// Whether a file could be written now: nothing is left behind.
///
/// # Errors
/// [`Error::Write`] if not.
pub(crate) fn probe(path: &Path) -> Result<(), Error> {
    let tried = match Place::of(path) {
        // Opening a pipe waits for its reader.
        Ok(Place::Special(_)) => Ok(()),
        Ok(Place::File { temporary, .. }) => File::create(&temporary).and_then(|file| {
            drop(file);
            std::fs::remove_file(&temporary)
        }),
        Err(error) => Err(error),
    };
    tried.map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Makes a folder for files, if it is not there, and sees whether it takes some.
///
/// # Errors
/// [`Error::Write`] if not.
pub(crate) fn probe_folder(path: &Path) -> Result<(), Error> {
    let made = std::fs::create_dir_all(path);
    made.map_err(|source| Error::Write { path: path.to_owned(), source })?;
    probe(&path.join("probe"))
}

/// Where a file would be written.
enum Place {
    /// A device or a pipe.
    Special(PathBuf),
    /// A file, and what it is called until it is complete.
    File {
        /// The file, links followed.
        path: PathBuf,
        /// Its name until then.
        temporary: PathBuf,
    },
}

impl Place {
    fn of(path: &Path) -> std::io::Result<Self> {
        // What is not there yet gets its name below.
        let followed = path.canonicalize();
        let path = followed.as_deref().unwrap_or(path);
        match path.metadata() {
            Ok(data) if data.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Ok(data) if !data.is_file() => return Ok(Self::Special(path.to_owned())),
            Ok(_) | Err(_) => {}
        }
        let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}.tmp", std::process::id()));
        Ok(Self::File { path: path.to_owned(), temporary: path.with_file_name(temporary) })
    }
}

fn pend(path: Option<PathBuf>) {
    *PENDING.lock().unwrap_or_else(PoisonError::into_inner) = path;
}

/// Removes what is half-written, before the process ends early.
pub(crate) fn abandon() {
    if let Some(path) = PENDING.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // It may have been renamed meanwhile; then there is nothing to remove.
        let _ = std::fs::remove_file(path);
    }
}

/// Text as a terminal may get it: lines of what shows itself.
fn shown(text: &str) -> Cow<'_, str> {
    match text.contains(|c| is_hidden(c) && c != '\n') {
        true => text.split_inclusive('\n').map(line_shown).collect::<String>().into(),
        false => text.into(),
    }
}

fn line_shown(line: &str) -> String {
    match line.strip_suffix('\n') {
        Some(line) => visible(line).into_owned() + "\n",
        None => visible(line).into_owned(),
    }
}

/// Writes to stdout. A reader that went away has read enough: that is no error.
///
/// # Errors
/// [`Error::Output`] for anything else.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    printed(std::io::stdout().lock().write_all(shown(text).as_bytes()))
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
    let _ = writeln!(std::io::stderr().lock(), "{}", shown(text));
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn lines_stay_and_controls_do_not() {
        let text = "a\u{1b}[2Jb\n\u{9b}c\u{202e}\r\nd";
        assert_eq!(shown(text), "a\\u{1b}[2Jb\n\\u{9b}c\\u{202e}\\u{d}\nd");
        assert_eq!(shown("ä\n×\n"), "ä\n×\n");
    }
}
