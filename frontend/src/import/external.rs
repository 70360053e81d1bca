//! Weights that lie in files beside the model.

use crate::memory::{Block, shared};
use crate::visible::visible;
use bytes::Bytes;
use held::{Held, ReadError};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod held;
mod map;
mod strip;

/// Reads data that a model keeps elsewhere.
pub trait ExternalData {
    /// `length` bytes from `offset` on (to the end without a length) of what `location` names. Each weight is read once
    /// in an import; bytes that are an allocation of their own are free again as soon as the weight is dropped.
    ///
    /// # Errors
    /// [`ExternalDataError`].
    fn read(
        &self,
        location: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Bytes, ExternalDataError>;

    /// The files that were read so far, links resolved; none where data comes from elsewhere.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// Why external data cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExternalDataError {
    /// The caller gave no source of external data.
    #[error("its data is in `{}`, and no folder to read it from was given", visible(.0))]
    None(String),
    /// The location is absolute, contains `..`, or is a link that leaves the model's folder for another one than the
    /// model's own link does.
    #[error("its data is in `{}`, outside of the model's folder", visible(.0))]
    Outside(String),
    /// The file cannot be opened.
    #[error("cannot read `{}`: {kind}", visible(.location))]
    Io {
        /// The location.
        location: String,
        /// What the system says.
        kind: ErrorKind,
    },
    /// The file was truncated, written to or replaced while it was being read, so that its parts may not belong
    /// together.
    #[error(
        "`{}` was changed while it was read: load the model again when whoever writes it is done",
        visible(.0)
    )]
    Changed(String),
    /// The range ends behind the file's end.
    #[error("`{}` has {size} bytes, but bytes {offset} to {end} are asked for", visible(.location))]
    Range {
        /// The location.
        location: String,
        /// Bytes in the file.
        size: u64,
        /// First byte asked for.
        offset: u64,
        /// End of the range.
        end: u64,
    },
    /// Weights that overlap in a file take many times its bytes, as those of no model do.
    #[error("weights overlap in `{}` and come to many times its bytes", visible(.0))]
    Overlapping(String),
    /// The entry that says where the data is lacks a location or holds a malformed number.
    #[error("malformed entry `{}` of external data", visible(.0))]
    Malformed(String),
}

/// No external data: a model that has some is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoExternalData;

impl ExternalData for NoExternalData {
    fn read(
        &self,
        location: &str,
        _offset: u64,
        _length: Option<u64>,
    ) -> Result<Bytes, ExternalDataError> {
        Err(ExternalDataError::None(location.to_owned()))
    }
}

/// How the bytes of a model's files come into memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reading {
    /// They are read into memory of the process's own. Files are opened once and their descriptors kept, so that a
    /// file that takes another's name changes nothing; one that is truncated or written to while it is read gives
    /// an error, and nothing that happens to it later is seen. Each tensor has memory to itself, which is free
    /// again when the tensor is dropped.
    Owned,
    /// Files are mapped: nothing is read but what is looked at, and the system may drop it again. A file must stay
    /// as it is for as long as any of its weights is in use: one that is written to changes the weights, and one
    /// that is truncated ends the process by a signal.
    Mapped,
}

/// The folder of a model file, whose files are opened once each.
#[derive(Debug)]
pub struct ModelFolder {
    folder: PathBuf,
    reading: Reading,
    /// The model file, whose own weights are read from it under the name [`OWN`].
    model: Option<Arc<Held>>,
    /// Where the model file itself lies, if it is a link to elsewhere: a store of files, such as Hugging Face's cache, has
    /// weights beside it.
    store: Option<PathBuf>,
    /// By location, without parts that lead nowhere.
    files: Mutex<BTreeMap<PathBuf, Arc<Held>>>,
}

/// The location of weights inside of the model file itself.
const OWN: &str = "";

/// Data at a multiple of this many bytes is used where it is mapped; other data is read into memory that is
/// aligned so.
const ALIGNMENT: usize = 8;

/// Files that are held open, at most: a process may open a thousand, and some exporters write a file for each tensor.
/// Others are opened for each read, and must be what they were at the first.
const HELD: usize = 64;

impl ModelFolder {
    /// The folder at this path.
    pub fn new(folder: impl Into<PathBuf>, reading: Reading) -> Self {
        let (folder, files) = (folder.into(), Mutex::default());
        Self { folder, reading, model: None, store: None, files }
    }

    /// The file of that name, links resolved, if it lies within the folder, or where the model's own link leads.
    fn resolve(&self, location: &str) -> Result<PathBuf, ExternalDataError> {
        let outside = || ExternalDataError::Outside(location.to_owned());
        let relative = Path::new(location);
        let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if location.is_empty() || !relative.components().all(plain) {
            return Err(outside());
        }
        let canonical = |path: &Path| path.canonicalize().map_err(|error| io(location, &error));
        let folder = match self.folder.as_os_str().is_empty() {
            true => canonical(Path::new("."))?,
            false => canonical(&self.folder)?,
        };
        let path = canonical(&folder.join(relative))?;
        let stored = self.store.is_some() && path.parent() == self.store.as_deref();
        if !path.starts_with(&folder) && !stored {
            return Err(outside());
        }
        // Others, such as pipes, may never end.
        if !path.is_file() {
            return Err(io(location, &ErrorKind::InvalidInput.into()));
        }
        Ok(path)
    }

    /// The file of that name, opened at the first call.
    fn file(&self, location: &str) -> Result<Arc<Held>, ExternalDataError> {
        if let (OWN, Some(model)) = (location, &self.model) {
            return Ok(Arc::clone(model));
        }
        let named = |part: &Component<'_>| !matches!(part, Component::CurDir);
        let key: PathBuf = Path::new(location).components().filter(named).collect();
        if let Some(file) = self.files().get(&key) {
            return Ok(Arc::clone(file));
        }
        let path = self.resolve(location)?;
        let is_mapped = self.reading == Reading::Mapped;
        let opened = File::open(&path).and_then(|file| Held::new(path, file, is_mapped));
        let mut held = opened.map_err(|error| io(location, &error))?;
        let mut files = self.files();
        if files.len() >= HELD {
            held.close();
        }
        // Somebody else may have been faster; all have the same file.
        Ok(Arc::clone(files.entry(key).or_insert_with(|| Arc::new(held))))
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<Held>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExternalData for ModelFolder {
    fn read(
        &self,
        location: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Bytes, ExternalDataError> {
        let file = self.file(location)?;
        let size = file.len();
        let end = match length {
            Some(length) => offset.saturating_add(length),
            None => size,
        };
        if offset > end || end > size {
            let location = location.to_owned();
            return Err(ExternalDataError::Range { location, size, offset, end });
        }
        if let Some(bytes) = file.mapped() {
            let slice = bytes.slice(offset as usize..end as usize);
            if slice.as_ptr().align_offset(ALIGNMENT) == 0 {
                return Ok(slice);
            }
            // Tensors would copy it out of the mapping, whose pages would then be in memory beside the copy.
        }
        let name = || match location {
            OWN => file.path().display().to_string(),
            location => location.to_owned(),
        };
        file.read(offset..end).map_err(|error| match error {
            ReadError::Io(error) => io(&name(), &error),
            ReadError::Changed => ExternalDataError::Changed(name()),
            ReadError::Overlapping => ExternalDataError::Overlapping(name()),
        })
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = self.files();
        let paths = files.values().chain(&self.model).map(|file| file.path().to_owned());
        paths.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// The bytes of a model file, large weights left out, and where those and external data are read from.
///
/// With [`Reading::Owned`] no more of the file is read than these bytes; a model without large weights, and one that
/// comes by a pipe, is read as a whole.
///
/// # Errors
/// What the system says; [`ErrorKind::InvalidData`] for a file that is changed meanwhile.
pub fn read_model(path: impl AsRef<Path>, reading: Reading) -> io::Result<(Bytes, ModelFolder)> {
    let path = path.as_ref();
    let mut file = File::open(path)?;
    let mut folder = ModelFolder::new(path.parent().unwrap_or(Path::new("")), reading);
    // A link to a pipe leads nowhere.
    if let (true, Ok(file)) = (path.is_symlink(), path.canonicalize()) {
        folder.store = file.parent().map(Path::to_owned);
    }
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        // A pipe does not say how long it is, and what came by it cannot be read once more.
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        return Ok((bytes.into(), folder));
    }
    let file = Held::new(path.to_owned(), file, reading == Reading::Mapped)?;
    let (bytes, stripped) = match file.mapped() {
        Some(bytes) => (Some(bytes.clone()), strip::strip(&bytes[..], OWN)),
        None => (None, strip::strip(&file, OWN)),
    };
    if let Some(stripped) = stripped.map_err(unread)? {
        folder.model = Some(Arc::new(file));
        return Ok((stripped.into(), folder));
    }
    let whole = bytes.map_or_else(|| file.read(0..file.len()), Ok);
    Ok((whole.map_err(unread)?, folder))
}

/// A copy in memory of its own.
pub(super) fn own_copy(bytes: &Bytes) -> Bytes {
    let Ok(mut block) = Block::zeroed(bytes.len()) else { return bytes.clone() };
    block.bytes_mut().copy_from_slice(bytes);
    shared(&Arc::new(block))
}

fn unread(error: ReadError) -> io::Error {
    match error {
        ReadError::Io(error) => error,
        ReadError::Overlapping => ErrorKind::OutOfMemory.into(),
        ReadError::Changed => {
            let what =
                "it was changed while it was read: load it again when whoever writes it is done";
            io::Error::new(ErrorKind::InvalidData, what)
        }
    }
}

fn io(location: &str, error: &io::Error) -> ExternalDataError {
    ExternalDataError::Io { location: location.to_owned(), kind: error.kind() }
}
