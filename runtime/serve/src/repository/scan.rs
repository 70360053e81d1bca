//! What lies in a folder of models.
//!
//! ```text
//! models/
//!     bert/                   a model
//!         serve.toml          its settings, if any
//!         tokenizer.json      for text
//!         1/model.onnx        versions: the largest number is served
//!         2/model.onnx        what else a version has (tokenizer.json, serve.toml) stands above the model's own
//!     resnet/model.onnx       a model without versions is version 1
//! ```

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A model that was found: its newest version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// The version's number.
    pub(super) number: u64,
    /// The model's file.
    pub(super) file: PathBuf,
    /// Where the version's other files are looked for, one folder after the other.
    pub(super) folders: Vec<PathBuf>,
    /// What its files looked like.
    pub(super) print: Fingerprint,
}

/// What files looked like: name, bytes and the time of the last change of each. Files that change while they are read look
/// different afterwards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Fingerprint(BTreeMap<PathBuf, (u64, Option<SystemTime>)>);

/// The models of a path by name: of a folder of models, a model's folder, or a model file. One of the latter two has the name
/// `given`, if there is one.
///
/// # Errors
/// [`Error::Folder`] for a path that cannot be read, or that holds no model.
pub(super) fn scan(root: &Path, given: Option<&str>) -> Result<BTreeMap<String, Found>> {
    let refused = |reason: String| Error::Folder { path: root.display().to_string(), reason };
    let unread = |error: std::io::Error| refused(error.to_string());
    let named = |path: &Path| given.map_or_else(|| name_of(path), str::to_owned);
    if fs::metadata(root).map_err(unread)?.is_file() {
        let folder = root.parent().unwrap_or(Path::new(".")).to_owned();
        let found = Found {
            number: 1,
            file: root.to_owned(),
            print: Fingerprint::of([root]),
            folders: vec![folder],
        };
        return Ok(BTreeMap::from([(named(root), found)]));
    }
    if let Some(found) = model(root) {
        let path = fs::canonicalize(root).map_err(unread)?;
        return Ok(BTreeMap::from([(named(&path), found)]));
    }
    let mut models = BTreeMap::new();
    for entry in fs::read_dir(root).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        if let Some(found) = model(&path) {
            models.insert(name_of(&path), found);
        }
    }
    Ok(models)
}

fn name_of(path: &Path) -> String {
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// The newest version in a model's folder, if it is one.
fn model(folder: &Path) -> Option<Found> {
    let versions = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| {
        let number: u64 = entry.file_name().to_str()?.parse().ok()?;
        entry.path().join(MODEL).is_file().then(|| (number, entry.path()))
    });
    let plain = || folder.join(MODEL).is_file().then(|| (1, folder.to_owned()));
    let (number, version) = versions.max().or_else(plain)?;
    let mut folders = vec![version.clone()];
    if version != folder {
        folders.push(folder.to_owned());
    }
    let print = Fingerprint::of(folders.iter().map(|folder| &**folder));
    Some(Found { number, file: version.join(MODEL), folders, print })
}

/// The name of a model's file in its folder.
const MODEL: &str = "model.onnx";

impl Fingerprint {
    /// That of files, and of the files in folders.
    fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut all = BTreeMap::new();
        let mut add = |path: PathBuf| {
            // Links are followed: what they lead to is what is read.
            if let Ok(data) = fs::metadata(&path)
                && data.is_file()
            {
                all.insert(path, (data.len(), data.modified().ok()));
            }
        };
        for path in paths {
            match fs::read_dir(path) {
                Ok(entries) => entries.flatten().for_each(|entry| add(entry.path())),
                Err(_) => add(path.to_owned()),
            }
        }
        Self(all)
    }
}

impl Found {
    /// The same as its files are now.
    pub(super) fn is_unchanged(&self) -> bool {
        let paths: Vec<&Path> = match self.folders.first() {
            Some(folder) if self.file == folder.join(MODEL) => {
                self.folders.iter().map(|folder| &**folder).collect()
            }
            _ => vec![&self.file],
        };
        Fingerprint::of(paths) == self.print
    }

    /// The first of its folders that has a file of this name.
    pub(super) fn folder_with(&self, file: &str) -> &Path {
        let has = |folder: &&PathBuf| folder.join(file).is_file();
        let found = self.folders.iter().find(has).or(self.folders.first());
        found.map_or(Path::new("."), |folder| folder)
    }
}
