//! Folders of test data: `input_i.pb` and `output_i.pb`, as ONNX's own test suites have them.

use crate::error::Error;
use crate::inputs::Given;
use graphene_frontend::import::DeclaredInput;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::testdata::{DataSet, read_data_set};
use std::path::{Path, PathBuf};

/// The outputs that a model should give.
#[derive(Default, Debug)]
pub(crate) struct Expected {
    folder: Option<PathBuf>,
    tensors: Vec<(String, Tensor)>,
}

impl Expected {
    /// The folder that they are from, if there are any.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref().filter(|_| !self.tensors.is_empty())
    }

    /// The tensors with the positions of their outputs: by name where all names match, else in order.
    ///
    /// # Errors
    /// [`Error::Data`] if there are more of them than outputs, or two of one.
    pub(crate) fn by_position(&self, outputs: &[&String]) -> Result<Vec<(usize, &Tensor)>, Error> {
        let named = self.tensors.iter().map(|(name, tensor)| {
            Some((outputs.iter().position(|output| *output == name)?, tensor))
        });
        if let Some(named) = named.collect::<Option<Vec<_>>>() {
            let repeats = |&(i, (place, _)): &(usize, &(usize, &Tensor))| {
                named[..i].iter().any(|before| before.0 == *place)
            };
            return match (named.iter().enumerate().find(repeats), &self.folder) {
                (Some((_, (place, _))), Some(folder)) => Err(Error::Data {
                    path: folder.clone(),
                    reason: format!("output `{}` is there twice", outputs[*place]),
                }),
                _ => Ok(named),
            };
        }
        let (found, count) = (self.tensors.len(), outputs.len());
        match &self.folder {
            Some(folder) if found > count => Err(Error::Data {
                path: folder.clone(),
                reason: format!("{found} outputs, but the model has {count}"),
            }),
            _ => Ok(self.tensors.iter().map(|(_, tensor)| tensor).enumerate().collect()),
        }
    }
}

/// What to say of outputs that a folder has nothing to check against.
pub(crate) fn unchecked(outputs: &[&String], expected: &[(usize, &Tensor)]) -> Option<String> {
    let missing = |i: &usize| expected.iter().all(|(place, _)| place != i);
    let missing: Vec<&str> =
        (0..outputs.len()).filter(missing).map(|i| outputs[i].as_str()).collect();
    let some = !expected.is_empty() && !missing.is_empty();
    some.then(|| format!("--data has nothing to check {} against", missing.join(", ")))
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
    let given = Given::in_order(folder, inputs);
    Ok((given, Expected { folder: Some(folder.to_owned()), tensors: outputs }))
}
