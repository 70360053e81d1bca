//! The folder's size limit: what is evicted, and when.
//!
//! An entry's time of modification is when it was last put or found. When entries take more bytes than the cache may,
//! the oldest go until an eighth is free again, so that not every entry that is put looks through the folder. Entries
//! that this cache has put or found stay: whoever holds it may ask for them again. Another process may lose some, and
//! compiles them.

use super::{Cache, Contents, SUFFIX, TEMPORARY};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// An entry, whole or not.
struct Entry {
    name: OsString,
    bytes: u64,
    used: SystemTime,
}

/// The entries of a folder; one that is not there yet has none, and what another process has just removed is left out.
fn entries(folder: &Path) -> io::Result<Vec<Entry>> {
    let listed = match fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut entries = Vec::new();
    for entry in listed {
        let entry = entry?;
        let name = entry.file_name();
        let Ok(data) = entry.metadata() else { continue };
        if data.is_file() && name.to_string_lossy().ends_with(SUFFIX) {
            let used = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            entries.push(Entry { name, bytes: data.len(), used });
        }
    }
    Ok(entries)
}

impl Cache {
    /// How much there is.
    ///
    /// # Errors
    /// That of reading the folder; one that is not there yet holds nothing.
    pub fn contents(&self) -> io::Result<Contents> {
        let entries = entries(&self.folder)?;
        let bytes = entries.iter().map(|entry| entry.bytes).sum();
        Ok(Contents { entries: entries.len(), bytes })
    }

    /// Evicts entries until the folder is below its limit again, if there are too many; how many bytes are left.
    pub(super) fn evict(&self, keeps: impl Fn(&str) -> bool) -> u64 {
        let mut entries = entries(&self.folder).unwrap_or_default();
        let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
        if bytes <= self.limit {
            return bytes;
        }
        // Names decide between times that are equal, so that processes agree on what goes.
        entries.sort_by(|a, b| (a.used, &a.name).cmp(&(b.used, &b.name)));
        let enough = self.limit - self.limit / 8;
        for entry in entries.iter().filter(|entry| !keeps(&entry.name.to_string_lossy())) {
            if bytes <= enough {
                break;
            }
            // What another process has removed first is gone as well; what cannot be removed stays.
            match fs::remove_file(self.folder.join(&entry.name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                _ => bytes -= entry.bytes,
            }
        }
        bytes
    }

    /// Removes temporary files of at least this age. What cannot be removed stays.
    pub(super) fn sweep(&self, age: Duration) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let modified = entry.metadata().and_then(|data| data.modified()).ok();
            let old = modified.and_then(|time| time.elapsed().ok()).is_some_and(|past| past >= age);
            if old && name.starts_with('.') && name.ends_with(TEMPORARY) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}
