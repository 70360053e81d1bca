//! Weights that lie in files beside the model.

use crate::tensor::AlignedBytes;
use bytes::Bytes;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

mod map;
mod strip;

/// Reads data that a model keeps elsewhere.
pub trait ExternalData {
    /// `length` bytes from `offset` on (to the end without a length) of what `location` names.
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
    #[error("its data is in `{0}`, and no folder to read it from was given")]
    None(String),
    /// The location is absolute, contains `..`, or is a link that leaves the model's folder for another one than the
    /// model's own link does.
    #[error("its data is in `{0}`, outside of the model's folder")]
    Outside(String),
    /// The file cannot be opened.
    #[error("cannot read `{location}`: {kind}")]
    Io {
        /// The location.
        location: String,
        /// What the system says.
        kind: std::io::ErrorKind,
    },
    /// The range ends behind the file's end.
    #[error("`{location}` has {size} bytes, but bytes {offset} to {end} are asked for")]
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
    /// The entry that says where the data is lacks a location or holds a malformed number.
    #[error("malformed entry `{0}` of external data")]
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

/// The folder of a model file; files in it are memory-mapped once each.
#[derive(Debug)]
pub struct ModelFolder {
    folder: PathBuf,
    /// The model file, whose own weights are read from it under the name [`OWN`].
    model: Option<PathBuf>,
    /// Where the model file itself lies, if it is a link to elsewhere: a store of files, such as Hugging Face's cache, has
    /// weights beside it.
    store: Option<PathBuf>,
    files: std::sync::Mutex<std::collections::BTreeMap<PathBuf, Bytes>>,
}

/// The location of weights inside of the model file itself.
const OWN: &str = "";

/// Data at a multiple of this many bytes is used where it is mapped; other data is read into memory that is
/// aligned so.
const ALIGNMENT: usize = 8;

impl ModelFolder {
    /// The folder at this path.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), model: None, store: None, files: Default::default() }
    }

    /// The file of that name, links resolved, if it lies within the folder, or where the model's own link leads.
    fn resolve(&self, location: &str) -> Result<PathBuf, ExternalDataError> {
        if let (OWN, Some(model)) = (location, &self.model) {
            return Ok(model.clone());
        }
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
            return Err(io(location, &std::io::ErrorKind::InvalidInput.into()));
        }
        Ok(path)
    }
}

impl ExternalData for ModelFolder {
    fn read(
        &self,
        location: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Bytes, ExternalDataError> {
        let path = self.resolve(location)?;
        let mut files = self.files.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let bytes = match files.get(&path) {
            Some(bytes) => bytes.clone(),
            None => map::map(&path).map_err(|error| io(location, &error))?,
        };
        files.insert(path.clone(), bytes.clone());
        let size = bytes.len() as u64;
        let end = match length {
            Some(length) => offset.saturating_add(length),
            None => size,
        };
        if offset > end || end > size {
            let location = location.to_owned();
            return Err(ExternalDataError::Range { location, size, offset, end });
        }
        let slice = bytes.slice(offset as usize..end as usize);
        if slice.as_ptr().align_offset(ALIGNMENT) == 0 {
            return Ok(slice);
        }
        // Tensors would copy it out of the mapping, whose pages would then be in memory beside the copy.
        read_range(&path, offset, slice.len()).map_err(|error| io(location, &error))
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = self.files.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        files.keys().cloned().collect()
    }
}

/// The bytes of a model file, large weights left out, and where those and external data are read from.
///
/// # Errors
/// What the system says.
pub fn read_model(path: impl AsRef<Path>) -> std::io::Result<(Bytes, ModelFolder)> {
    let path = path.as_ref();
    let bytes = map::map(path)?;
    let mut folder = ModelFolder::new(path.parent().unwrap_or(Path::new("")));
    // A link to a pipe leads nowhere.
    if let (true, Ok(file)) = (path.is_symlink(), path.canonicalize()) {
        folder.store = file.parent().map(Path::to_owned);
    }
    // What came by a pipe cannot be read once more.
    let stripped = path.is_file().then(|| strip::strip(&bytes, OWN)).flatten();
    let Some(stripped) = stripped else { return Ok((bytes, folder)) };
    folder.model = Some(path.to_owned());
    Ok((stripped.into(), folder))
}

/// Bytes of a file, in memory of their own.
fn read_range(path: &Path, offset: u64, length: usize) -> std::io::Result<Bytes> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut aligned = AlignedBytes::zeroed(length);
    file.read_exact(aligned.bytes_mut())?;
    Ok(aligned.into())
}

fn io(location: &str, error: &std::io::Error) -> ExternalDataError {
    ExternalDataError::Io { location: location.to_owned(), kind: error.kind() }
}
