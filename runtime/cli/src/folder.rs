//! A model's files: which of a folder's is the model, and where those beside it lie.

use crate::error::Error;
use crate::suspect;
use std::path::{Path, PathBuf};

/// What a folder's model is called, by most exporters.
const NAMES: [&str; 2] = ["model.onnx", "onnx/model.onnx"];
/// Files of Hugging Face's that stand beside a model, or above its folder `onnx`.
const BESIDE: [&str; 3] = ["tokenizer.json", "config.json", "preprocessor_config.json"];

/// The file of a model that is named: itself, or the one in a folder.
///
/// # Errors
/// [`Error::Unreadable`] for a folder that does not have one model.
pub(crate) fn model_file(named: &Path) -> Result<PathBuf, Error> {
    if !named.is_dir() {
        return Ok(named.to_owned());
    }
    if let Some(found) = NAMES.iter().map(|name| named.join(name)).find(|path| path.is_file()) {
        return Ok(found);
    }
    let files = files(named);
    let is_model = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "onnx");
    let models: Vec<&PathBuf> = files.iter().filter(is_model).collect();
    match &models[..] {
        [only] => Ok((*only).clone()),
        [] => Err(Error::Unreadable { path: named.to_owned(), reason: without_model(&files) }),
        several => {
            let names: Vec<_> = several.iter().map(|path| path.display().to_string()).collect();
            let reason = format!(
                "it has no model.onnx, but several models: name one of {}",
                names.join(", ")
            );
            Err(Error::Unreadable { path: named.to_owned(), reason })
        }
    }
}

/// The folder of what stands beside a model.
pub(crate) fn beside(model: &Path) -> PathBuf {
    let parent = match model.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let has_some = |folder: &Path| BESIDE.iter().any(|name| folder.join(name).is_file());
    let above = parent.parent().filter(|_| parent.file_name().is_some_and(|name| name == "onnx"));
    let above =
        above.map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above });
    above.filter(|above| !has_some(parent) && has_some(above)).unwrap_or(parent).to_owned()
}

/// Why a folder's files are no model.
fn without_model(files: &[PathBuf]) -> String {
    let lacks = "it holds neither model.onnx nor onnx/model.onnx";
    let told = |path: &PathBuf| {
        let name = path.file_name()?.to_string_lossy();
        Some(format!("{lacks}; {name}: {}", suspect::other_model(path)?))
    };
    match files.iter().find_map(told) {
        Some(told) => told,
        None if files.is_empty() => format!("{lacks}, nor any other file"),
        None => lacks.to_owned(),
    }
}

/// The files of a folder and of its folder `onnx`, by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    let inside = [folder.to_owned(), folder.join("onnx")];
    let entries = inside.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::beside;
    use std::path::Path;

    #[test]
    fn a_model_without_a_folder_lies_in_this_one() {
        assert_eq!(beside(Path::new("model.onnx")), Path::new("."));
        assert_eq!(beside(Path::new("nowhere/onnx/model.onnx")), Path::new("nowhere/onnx"));
    }
}
