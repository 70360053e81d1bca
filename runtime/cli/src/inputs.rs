//! Inputs that are given: from NumPy files and data folders.

use crate::args::Data;
use crate::error::{Error, Origin};
use crate::npy;
use graphene_frontend::import::DeclaredInput;
use graphene_frontend::tensor::Tensor;
use graphene_runtime::RequestedSizes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Tensors for the model's inputs.
#[derive(Default, Debug)]
pub(crate) struct Given {
    named: BTreeMap<String, (Tensor, Origin)>,
    /// Where the tensors of [`Given::ordered`] are from.
    folder: PathBuf,
    /// Tensors with names that the model may not know, in the order of its inputs.
    ordered: Vec<(String, Tensor)>,
}

impl Given {
    /// Tensors of a folder, in the order of the model's inputs; their names count if the model knows them all.
    pub(crate) fn in_order(folder: &Path, tensors: Vec<(String, Tensor)>) -> Self {
        Self { named: BTreeMap::new(), folder: folder.to_owned(), ordered: tensors }
    }

    /// The tensor for an input and where it was read.
    pub(crate) fn get(&self, name: &str) -> Option<(&Tensor, Origin)> {
        if let Some((tensor, origin)) = self.named.get(name) {
            return Some((tensor, origin.clone()));
        }
        let (_, tensor) = self.ordered.iter().find(|(known, _)| known == name)?;
        Some((tensor, Origin::File(self.folder.clone())))
    }

    /// What an import may know of them.
    pub(crate) fn for_import(
        &self,
        declared: &[DeclaredInput],
        sizes: RequestedSizes,
    ) -> graphene_runtime::Given {
        let mut given = graphene_runtime::Given { sizes, ..Default::default() };
        for DeclaredInput { name, ty } in declared {
            let Some((tensor, _)) = self.get(name) else { continue };
            given.values.insert(name.clone(), tensor.clone());
            if ty.is_none() {
                given.shapes.insert(name.clone(), tensor.shape().to_vec());
            }
        }
        given
    }

    fn add(&mut self, name: String, tensor: Tensor, origin: Origin) -> Result<(), Error> {
        if self.named.contains_key(&name) {
            return Err(Error::RepeatedInput(name));
        }
        self.named.insert(name, (tensor, origin));
        Ok(())
    }

    /// Gives each tensor the name of its input.
    ///
    /// # Errors
    /// [`Error::UnknownInput`] for a tensor that has no input, [`Error::MissingInput`] for an input that a folder
    /// has nothing for.
    pub(crate) fn resolve(&mut self, inputs: &[DeclaredInput]) -> Result<(), Error> {
        let known = |name: &str| inputs.iter().any(|input| input.name == name);
        if !self.ordered.iter().all(|(name, _)| known(name)) {
            let (found, count) = (self.ordered.len(), inputs.len());
            if found > count {
                let reason = format!("{found} inputs, but the model has {count}");
                return Err(Error::Data { path: self.folder.clone(), reason });
            }
            for ((name, _), input) in self.ordered.iter_mut().zip(inputs) {
                input.name.clone_into(name);
            }
        }
        if let Some(name) = self.named.keys().find(|name| !known(name)) {
            let known = inputs.iter().map(|input| input.name.clone()).collect();
            return Err(Error::UnknownInput { name: name.clone(), known });
        }
        let missing = inputs.iter().find(|input| self.get(&input.name).is_none());
        match missing.filter(|_| !self.ordered.is_empty()) {
            Some(input) => Err(Error::MissingInput {
                name: input.name.clone(),
                expected: input.ty.as_ref().map_or("of any shape".to_owned(), ToString::to_string),
                folder: self.folder.clone(),
            }),
            None => Ok(()),
        }
    }
}

/// Reads the inputs that `--input` and `--inputs` name.
///
/// # Errors
/// [`Error::Npy`] for files that cannot be read, [`Error::RepeatedInput`].
pub(crate) fn read(data: &Data) -> Result<Given, Error> {
    let mut given = Given::default();
    for (name, path) in &data.input {
        let tensor = npy::read_npy(path);
        let tensor = tensor.map_err(|source| Error::Npy { path: path.clone(), source })?;
        given.add(name.clone(), tensor, Origin::File(path.clone()))?;
    }
    if let Some(path) = &data.inputs {
        if path.is_dir() {
            let reason = "is a folder, not a .npz archive; --data DIR reads a folder's input_i.pb";
            return Err(Error::flag("--inputs", format!("{} {reason}", path.display())));
        }
        let tensors = npy::read_npz(path);
        let tensors = tensors.map_err(|source| Error::Npy { path: path.clone(), source })?;
        for (name, tensor) in tensors {
            given.add(name, tensor, Origin::File(path.clone()))?;
        }
    }
    Ok(given)
}
