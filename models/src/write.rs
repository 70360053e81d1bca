//! Writing a model to files, whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use graphene_frontend::onnx::{Inline, encode};

use crate::error::ZooError;
use crate::weights::Weights;
use crate::wire::relocated;
use crate::zoo::ZooModel;

/// From this many bytes of weights on, a single file comes too near protobuf's limit of 2 GiB.
const INLINE_LIMIT: u64 = 1_500_000_000;
/// Weights are made and written in pieces of this many bytes.
const PIECE: usize = 1 << 24;

/// Where a written model keeps its weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// Inside the model below 1.5 GB of weights, else beside it.
    #[default]
    Auto,
    /// In a file beside the model, called as the model with `.data` after it.
    External,
}

impl ZooModel {
    /// Writes the model to `path`, its weights inside below 1.5 GB and beside it otherwise.
    ///
    /// Files appear under their names only when they are complete; an existing one is replaced.
    ///
    /// # Errors
    /// When `path` names no file or writing fails.
    pub fn write(&self, path: &Path) -> Result<(), ZooError> {
        self.write_as(path, Storage::Auto, &mut |_, _| ())
    }

    /// Writes the model as [`ZooModel::write`] does, its weights where `storage` says, and calls
    /// `progress` with the bytes of weights written and their total.
    ///
    /// # Errors
    /// When `path` names no file, or a device or a pipe, or writing fails.
    pub fn write_as(
        &self,
        path: &Path,
        storage: Storage,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), ZooError> {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(ZooError::NotAFile(path.to_owned()));
        };
        // A device or a pipe would be replaced by the file.
        if path.metadata().is_ok_and(|data| !data.is_file() && !data.is_dir()) {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
            return Err(ZooError::Write { path: path.to_owned(), source });
        }
        let external = match storage {
            Storage::Auto => self.weights().length() >= INLINE_LIMIT,
            Storage::External => true,
        };
        if !external {
            return Draft::new(path, |file| self.write_inline(file, progress))?.publish();
        }
        let location = format!("{name}.data");
        let weights = self.weights();
        let data = Draft::new(&path.with_file_name(&location), |file| {
            let mut written = Written { done: 0, total: weights.length(), progress };
            copy_weights(weights, 0, weights.length(), file, &mut written)
        })?;
        let model = encode(&relocated(self.model(), &location));
        let model = Draft::new(path, |file| file.write_all(&model))?;
        // Both are complete before either gets its name, the data first since the model refers to it.
        data.publish()?;
        model.publish()
    }

    fn write_inline(
        &self,
        file: &mut dyn Write,
        progress: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        let weights = self.weights();
        let lengths: Vec<u64> = weights.iter().map(|weight| weight.length()).collect();
        let inline = Inline::new(self.model(), &lengths);
        let mut written = Written { done: 0, total: lengths.iter().sum(), progress };
        file.write_all(&inline.head)?;
        for (weight, head) in weights.iter().zip(&inline.tensors) {
            file.write_all(head)?;
            copy_weights(weights, weight.offset(), weight.length(), file, &mut written)?;
        }
        Ok(())
    }
}

/// How far the writing of weights has come.
struct Written<'a> {
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

fn copy_weights(
    weights: &Weights,
    mut offset: u64,
    length: u64,
    file: &mut dyn Write,
    written: &mut Written,
) -> io::Result<()> {
    let end = offset + length;
    let mut piece = vec![0; length.min(PIECE as u64) as usize];
    while offset < end {
        let bytes = piece.len().min((end - offset) as usize);
        weights.fill(offset, &mut piece[..bytes]);
        file.write_all(&piece[..bytes])?;
        offset += bytes as u64;
        written.done += bytes as u64;
        (written.progress)(written.done, written.total);
    }
    Ok(())
}

/// Drafts begun by this process.
static DRAFTS: AtomicU64 = AtomicU64::new(0);

/// A complete file under a temporary name beside its own; removed unless it is published.
struct Draft {
    temporary: PathBuf,
    path: PathBuf,
    published: bool,
}

impl Draft {
    fn new(
        path: &Path,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Self, ZooError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Unique among processes and among the threads of this one.
        let (process, draft) = (std::process::id(), DRAFTS.fetch_add(1, Ordering::Relaxed));
        let temporary = path.with_file_name(format!(".{name}.{process}-{draft}.tmp"));
        let failed = |source| ZooError::Write { path: path.to_owned(), source };
        let file = File::create(&temporary).map_err(failed)?;
        let draft = Self { temporary, path: path.to_owned(), published: false };
        let mut file = BufWriter::new(file);
        fill(&mut file).and_then(|()| file.flush()).map_err(failed)?;
        Ok(draft)
    }

    fn publish(mut self) -> Result<(), ZooError> {
        fs::rename(&self.temporary, &self.path)
            .map_err(|source| ZooError::Write { path: self.path.clone(), source })?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            // The error that led here is the one to report.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
