//! Machine code on disk: what an earlier run has compiled is not compiled again.
//!
//! An entry is a file that its key names. The key is a hash of all that machine code depends on: the source, the
//! architecture, NVRTC's options, the very build of NVRTC, and the version of this layout. An entry holds its key and
//! ends with a checksum of all before it, so that one that is damaged, cut off or renamed is not trusted: the kernel is
//! compiled, and the entry replaced.
//!
//! Entries are written under a temporary name in the same folder and renamed when they are whole. So any number of
//! processes may share a folder, and one that is killed leaves a temporary file at worst, which a later one removes. A
//! cache that cannot be written is no error: [`Cache::warning`] says so, and kernels are compiled.
//!
//! Beyond a number of bytes, the entries that nobody has used for longest are evicted, as `cache/evict.rs` says.

mod entry;
mod evict;

use crate::device::{Cubin, compiler, options};
use crate::error::Result;
use entry::{MAGIC, decode, encode};
use graphene_ir::arch::Arch;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Bytes of a key and of a checksum.
const HASH: usize = 32;
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
    /// Bytes that its entries may take.
    limit: u64,
    state: Mutex<State>,
}

/// What a cache has met so far.
#[derive(Debug, Default)]
struct State {
    /// Why nothing more is written.
    warning: Option<String>,
    /// The names of entries that were put or found.
    used: BTreeSet<String>,
    /// Bytes of all entries by the last look at the folder and what was put since; none before the first look.
    bytes: Option<u64>,
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
        Ok(Self::with(source, arch, compiler()?))
    }

    /// The same for an NVRTC of this version, as [`compiler`] tells it.
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
    /// Bytes that entries take at most, unless [`within`](Self::within) says otherwise: 1 GiB.
    pub const LIMIT: u64 = 1 << 30;

    /// A cache in a folder, which is made when something is first written.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), limit: Self::LIMIT, state: Mutex::default() }
    }

    /// The same with entries of `limit` bytes at most. Those that this cache puts or finds stay nevertheless.
    pub fn within(self, limit: u64) -> Self {
        Self { limit, ..self }
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine code of a key, if a whole entry has it.
    pub fn get(&self, key: Key, arch: Arch) -> Option<Cubin> {
        let name = key.name();
        let path = self.folder.join(&name);
        // To open what is no file, such as a pipe, might wait for ever.
        fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let file = File::open(&path).ok()?;
        let mut bytes = Vec::new();
        (&file).take(LARGEST + 1).read_to_end(&mut bytes).ok()?;
        let (image, log) = decode(&bytes, key)?;
        // Where this is not allowed, the entry looks older than it is.
        let _ = file.set_modified(SystemTime::now());
        self.state().used.insert(name);
        Some(Cubin::of(arch, image.to_vec(), log))
    }

    /// Keeps machine code for later runs, and evicts what was not used for longest where the folder is full. If that
    /// fails, [`warning`](Self::warning) says why, and no more is written.
    pub fn put(&self, key: Key, cubin: &Cubin) {
        self.put_by(key, cubin, |path, bytes| {
            let mut file = File::options().write(true).create_new(true).open(path)?;
            file.write_all(bytes)
        });
    }

    fn put_by(&self, key: Key, cubin: &Cubin, write: impl Fn(&Path, &[u8]) -> io::Result<()>) {
        if self.warning().is_some() {
            return;
        }
        let (name, bytes) = (key.name(), encode(key, cubin));
        if let Err(error) = self.write(&name, &bytes, write) {
            let text = format!(
                "kernels are compiled, but not kept for later runs: cannot write to {}: {error}; \
                 GRAPHENE_CACHE names another folder",
                self.folder.display()
            );
            self.state().warning.get_or_insert(text);
            return;
        }
        let mut state = self.state();
        state.used.insert(name);
        let before = match state.bytes {
            Some(before) => before.saturating_add(bytes.len() as u64),
            // The first look finds what was just put as well.
            None => {
                self.sweep(STALE);
                self.contents().map_or(0, |contents| contents.bytes)
            }
        };
        let fits = before <= self.limit;
        state.bytes =
            Some(if fits { before } else { self.evict(|name| state.used.contains(name)) });
    }

    fn write(
        &self,
        name: &str,
        bytes: &[u8],
        write: impl Fn(&Path, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let temporary = self.temporary(name);
        let written = write(&temporary, bytes);
        let renamed = written.and_then(|()| fs::rename(&temporary, self.folder.join(name)));
        renamed.inspect_err(|_| {
            // The error that matters is the one that brought us here.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Tries to write where the folder is there already, and leaves nothing.
    ///
    /// # Errors
    /// Why it cannot be written.
    pub fn probe(&self) -> io::Result<()> {
        if !self.folder.exists() {
            return Ok(());
        }
        let probe = self.temporary("probe");
        File::options().write(true).create_new(true).open(&probe)?.write_all(&[0])?;
        fs::remove_file(probe)
    }

    /// The path of a temporary file of its own. Numbers of processes are not enough: containers that share a folder may have
    /// the same.
    fn temporary(&self, name: &str) -> PathBuf {
        let number = RandomState::new().build_hasher().finish();
        self.folder.join(format!(".{name}.{number:016x}{TEMPORARY}"))
    }

    /// Why nothing more is written, if writing failed.
    pub fn warning(&self) -> Option<String> {
        self.state().warning.clone()
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

#[cfg(test)]
mod tests;
