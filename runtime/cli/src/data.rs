//! Folders of test data: `input_i.pb` and `output_i.pb`, as ONNX's own test suites have them.

use crate::error::Error;
use crate::inputs::Given;
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
    /// [`Error::Data`] if there are more of them than outputs.
    pub(crate) fn by_position(&self, outputs: &[&String]) -> Result<Vec<(usize, &Tensor)>, Error> {
        let named = self.tensors.iter().map(|(name, tensor)| {
            Some((outputs.iter().position(|output| *output == name)?, tensor))
        });
        if let Some(named) = named.collect::<Option<Vec<_>>>() {
            return Ok(named);
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

/// Reads a folder: the inputs to feed and the outputs to expect.
///
/// # Errors
/// [`Error::DataSet`] if the folder has no inputs and no outputs, or a file is malformed.
pub(crate) fn read(folder: &Path) -> Result<(Given, Expected), Error> {
    let DataSet { inputs, outputs } = read_data_set(folder)?;
    let given = Given::in_order(folder, inputs);
    Ok((given, Expected { folder: Some(folder.to_owned()), tensors: outputs }))
}
