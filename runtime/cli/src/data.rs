//! Outputs that are expected: of folders of test data, `input_i.pb` and `output_i.pb`, as ONNX's own test suites have them,
//! and of archives.

use crate::error::Error;
use crate::inputs::Given;
use crate::npy;
use graphene_frontend::import::DeclaredInput;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::testdata::{DataSet, read_data_set};
use std::path::{Path, PathBuf};

/// The outputs that a model should give.
#[derive(Default, Debug)]
pub(crate) struct Expected {
    /// Where they are from, and the flag that says so.
    origin: Option<(&'static str, PathBuf)>,
    tensors: Vec<(String, Tensor)>,
    /// Whether their names must be those of outputs; where not, their order may tell which is which.
    by_name: bool,
}

impl Expected {
    /// The flag and the path that they are from, if there are any.
    pub(crate) fn origin(&self) -> Option<(&'static str, &Path)> {
        let origin = self.origin.as_ref().filter(|_| !self.tensors.is_empty());
        origin.map(|(flag, path)| (*flag, path.as_path()))
    }

    /// The tensors with the positions of their outputs: by name where all names match, else in order.
    ///
    /// # Errors
    /// [`Error::Data`] if there are more of them than outputs, two of one, or one whose name is no output's and has to be.
    pub(crate) fn by_position(&self, outputs: &[&String]) -> Result<Vec<(usize, &Tensor)>, Error> {
        let failed = |reason: String| {
            let path = self.origin.as_ref().map_or_else(PathBuf::new, |(_, path)| path.clone());
            Err(Error::Data { path, reason })
        };
        let place = |name: &String| outputs.iter().position(|output| *output == name);
        let named = self.tensors.iter().map(|(name, tensor)| Some((place(name)?, tensor)));
        if let Some(named) = named.collect::<Option<Vec<_>>>() {
            let repeats = |&(i, (place, _)): &(usize, &(usize, &Tensor))| {
                named[..i].iter().any(|before| before.0 == *place)
            };
            return match named.iter().enumerate().find(repeats) {
                Some((_, (place, _))) => {
                    failed(format!("output `{}` is there twice", outputs[*place]))
                }
                None => Ok(named),
            };
        }
        let unknown = self.tensors.iter().find(|(name, _)| place(name).is_none());
        if let Some((name, _)) = unknown.filter(|_| self.by_name) {
            let known: Vec<&str> = outputs.iter().map(|output| output.as_str()).collect();
            return failed(format!(
                "the model has no output `{name}`; it has {}",
                known.join(", ")
            ));
        }
        let (found, count) = (self.tensors.len(), outputs.len());
        match found > count {
            true => failed(format!("{found} outputs, but the model has {count}")),
            false => Ok(self.tensors.iter().map(|(_, tensor)| tensor).enumerate().collect()),
        }
    }

    /// What to say of outputs that there is nothing to check against.
    ///
    /// # Errors
    /// As for [`by_position`](Self::by_position).
    pub(crate) fn unchecked(&self, outputs: &[&String]) -> Result<Option<String>, Error> {
        let (Some((flag, _)), expected) = (self.origin(), self.by_position(outputs)?) else {
            return Ok(None);
        };
        let missing = |i: &usize| expected.iter().all(|(place, _)| place != i);
        let missing: Vec<&str> =
            (0..outputs.len()).filter(missing).map(|i| outputs[i].as_str()).collect();
        let said = || format!("{flag} has nothing to check {} against", missing.join(", "));
        Ok((!missing.is_empty()).then(said))
    }
}

/// Reads the outputs to expect, by name, from an archive.
///
/// # Errors
/// [`Error::Npy`], and [`Error::Data`] for one that holds none.
pub(crate) fn read_expected(path: &Path) -> Result<Expected, Error> {
    let tensors = npy::read_npz(path);
    let tensors = tensors.map_err(|source| Error::Npy { path: path.to_owned(), source })?;
    if tensors.is_empty() {
        let reason = "holds no outputs to expect".to_owned();
        return Err(Error::Data { path: path.to_owned(), reason });
    }
    Ok(Expected { origin: Some(("--expect", path.to_owned())), tensors, by_name: true })
}

/// Reads a folder: the inputs to feed and the outputs to expect.
///
/// # Errors
/// [`Error::DataSet`] if the folder has no inputs and no outputs, or a file is malformed; [`Error::Data`] if it has outputs
/// alone, of a model that has inputs.
pub(crate) fn read(folder: &Path, declared: &[DeclaredInput]) -> Result<(Given, Expected), Error> {
    let DataSet { inputs, outputs } = read_data_set(folder)?;
    if inputs.is_empty() && !declared.is_empty() {
        let reason = "there are outputs, but no inputs that they could be of".to_owned();
        return Err(Error::Data { path: folder.to_owned(), reason });
    }
    let (given, origin) = (Given::in_order(folder, inputs), Some(("--data", folder.to_owned())));
    Ok((given, Expected { origin, tensors: outputs, by_name: false }))
}
