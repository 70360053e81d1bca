//! Machine code on disk: what an earlier run has compiled is not compiled again.
//!
//! An entry is a file that its key names. The key is a hash of all that machine code depends on: the source, the
//! architecture, NVRTC's version and options, and the version of this layout. An entry holds its key and ends with a
//! checksum of all before it, so that one that is damaged, cut off or renamed is not trusted: the kernel is compiled,
//! and the entry replaced.
//!
//! Entries are written under a temporary name in the same folder and renamed when they are whole. So any number of
//! processes may share a folder, and one that is killed leaves a temporary file at worst, which a later one removes. A
//! cache that cannot be written is no error: [`Cache::warning`] says so, and kernels are compiled.

use crate::device::{Cubin, Library, options};
use crate::error::Result;
use graphene_ir::arch::Arch;
use sha2::{Digest, Sha256};
use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

/// The first bytes of an entry; the last of them is the version of its layout.
const MAGIC: [u8; 8] = *b"GRPHCUB1";
/// Bytes of a key and of a checksum.
const HASH: usize = 32;
/// Bytes before the image: magic, key, and the lengths of the image and of the log.
const HEADER: usize = MAGIC.len() + HASH + 16;
/// The largest entry that is read, in bytes. Kernels are some ten thousand.
const LARGEST: u64 = 1 << 28;
/// How old a temporary file is when whoever wrote it is taken to be gone.
const STALE: Duration = Duration::from_secs(3600);
/// How an entry's name ends.
const SUFFIX: &str = ".cubin";
/// How a temporary file's name ends; it begins with a dot.
const TEMPORARY: &str = ".tmp";

/// A folder of machine code. It may be shared by threads and processes.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// Why nothing more is written.
    warning: Mutex<Option<String>>,
    swept: Once,
}

/// What a compilation depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key([u8; HASH]);

/// What a cache holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Contents {
    /// Entries, whole or not.
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Key {
    /// The key of a source, compiled for `arch` by the NVRTC that is found.
    ///
    /// # Errors
    /// [`Error::MissingLibrary`](crate::Error::MissingLibrary) without NVRTC.
    pub fn new(source: &str, arch: Arch) -> Result<Self> {
        Ok(Self::with(source, arch, &Library::Nvrtc.version()?))
    }

    /// The same for NVRTC of this version.
    pub fn with(source: &str, arch: Arch, version: &str) -> Self {
        let mut hash = Sha256::new();
        let arch_name = arch.to_string();
        let options = options(arch);
        let parts = [arch_name.as_str(), version, source].into_iter();
        hash.update(MAGIC);
        // With its length before each part, no two lists of parts look alike.
        for part in parts.chain(options.iter().map(String::as_str)) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    fn name(self) -> String {
        let digits = self.0.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>() + SUFFIX
    }
}

impl Cache {
    /// A cache in a folder, which is made when something is first written.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), warning: Mutex::new(None), swept: Once::new() }
    }

    /// The folder that the environment asks for: `$GRAPHENE_CACHE`, else `$XDG_CACHE_HOME/graphene`, else
    /// `~/.cache/graphene`; `None` where there is not even a home.
    pub fn default_folder() -> Option<PathBuf> {
        chosen(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The machine code of a key, if a whole entry has it.
    pub fn get(&self, key: Key, arch: Arch) -> Option<Cubin> {
        let path = self.folder.join(key.name());
        let len = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?.len();
        let bytes = (len <= LARGEST).then(|| fs::read(&path).ok())??;
        let (image, log) = decode(&bytes, key)?;
        Some(Cubin::of(arch, image.to_vec(), log))
    }

    /// Keeps machine code for later runs. If that fails, [`warning`](Self::warning) says why, and no more is written.
    pub fn put(&self, key: Key, cubin: &Cubin) {
        self.put_by(key, cubin, |path| File::options().write(true).create_new(true).open(path));
    }

    fn put_by(&self, key: Key, cubin: &Cubin, create: impl Fn(&Path) -> io::Result<File>) {
        if self.warning().is_some() {
            return;
        }
        self.swept.call_once(|| self.sweep(STALE));
        if let Err(error) = self.write(key, cubin, create) {
            let text = format!(
                "kernels are not cached: cannot write to {}: {error}",
                self.folder.display()
            );
            let mut warning = self.warning.lock().unwrap_or_else(PoisonError::into_inner);
            warning.get_or_insert(text);
        }
    }

    fn write(
        &self,
        key: Key,
        cubin: &Cubin,
        create: impl Fn(&Path) -> io::Result<File>,
    ) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        // Numbers of processes are not enough: containers that share a folder may have the same.
        let (name, number) = (key.name(), RandomState::new().build_hasher().finish());
        let temporary = self.folder.join(format!(".{name}.{number:016x}{TEMPORARY}"));
        let bytes = encode(key, cubin);
        let written = create(&temporary).and_then(|mut file| file.write_all(&bytes));
        let renamed = written.and_then(|()| fs::rename(&temporary, self.folder.join(name)));
        renamed.inspect_err(|_| {
            // The error that matters is the one that brought us here.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Why nothing more is written, if writing failed.
    pub fn warning(&self) -> Option<String> {
        self.warning.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How much there is.
    ///
    /// # Errors
    /// That of reading the folder; one that is not there yet holds nothing.
    pub fn contents(&self) -> io::Result<Contents> {
        let mut contents = Contents::default();
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(contents),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().ends_with(SUFFIX) {
                contents.entries += 1;
                contents.bytes += entry.metadata().map_or(0, |data| data.len());
            }
        }
        Ok(contents)
    }

    /// Removes temporary files of at least this age. What cannot be removed stays.
    fn sweep(&self, age: Duration) {
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

/// The folder that variables of an environment ask for.
fn chosen(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let under = |folder: OsString, path: &str| PathBuf::from(folder).join(path);
    variable("GRAPHENE_CACHE")
        .map(PathBuf::from)
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| under(folder, "graphene")))
        .or_else(|| variable("HOME").map(|folder| under(folder, ".cache/graphene")))
}

/// An entry's bytes: magic, key, lengths, image, log, checksum.
fn encode(key: Key, cubin: &Cubin) -> Vec<u8> {
    let (image, log) = (cubin.image(), cubin.log().text.as_bytes());
    let mut bytes = Vec::with_capacity(HEADER + image.len() + log.len() + HASH);
    bytes.extend(MAGIC);
    bytes.extend(key.0);
    bytes.extend((image.len() as u64).to_le_bytes());
    bytes.extend((log.len() as u64).to_le_bytes());
    bytes.extend(image);
    bytes.extend(log);
    let checksum = Sha256::digest(&bytes);
    bytes.extend(checksum);
    bytes
}

/// The image and the log of an entry, if it is whole and that of the key.
fn decode(bytes: &[u8], key: Key) -> Option<(&[u8], &str)> {
    let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(HASH)?)?;
    if Sha256::digest(body)[..] != *checksum {
        return None;
    }
    let (magic, rest) = body.split_at_checked(MAGIC.len())?;
    let (of, rest) = rest.split_at_checked(HASH)?;
    let (lengths, rest) = rest.split_at_checked(16)?;
    if magic != MAGIC || of != key.0 {
        return None;
    }
    let length = |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
    let (image, log) = rest.split_at_checked(length(&lengths[..8])?)?;
    (length(&lengths[8..])? == log.len()).then_some(())?;
    Some((image, std::str::from_utf8(log).ok()?))
}

#[cfg(test)]
mod tests;
