//! Inputs that are given: from NumPy files, images, texts and data folders.

use crate::args::{Data, Sizes};
use crate::error::{Error, Origin};
use crate::image::{self, Images};
use crate::npy::{self, NpyError};
use crate::suspect;
use crate::text::{self, Texts};
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
    /// The texts among them.
    pub(crate) texts: Option<Texts>,
    /// The images among them.
    pub(crate) images: Images,
}

/// What a model asks for, and what stands beside it.
pub(crate) struct Asked<'a> {
    /// Its inputs.
    pub(crate) declared: &'a [DeclaredInput],
    /// The folder with its other files; a model of the zoo has none.
    pub(crate) folder: Option<PathBuf>,
    /// Sizes of dims that flags give.
    pub(crate) sizes: &'a Sizes,
}

impl Given {
    /// Tensors of a folder, in the order of the model's inputs; their names count if the model knows them all.
    pub(crate) fn in_order(folder: &Path, tensors: Vec<(String, Tensor)>) -> Self {
        Self { folder: folder.to_owned(), ordered: tensors, ..Self::default() }
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

    /// Gives an input a tensor.
    ///
    /// # Errors
    /// [`Error::RepeatedInput`].
    pub(crate) fn add(
        &mut self,
        name: String,
        tensor: Tensor,
        origin: Origin,
    ) -> Result<(), Error> {
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

/// Reads the inputs that `--input`, `--inputs` and `--text` give a model.
///
/// # Errors
/// [`Error::Npy`] and [`Error::Data`] for files that cannot be read, [`Error::RepeatedInput`], [`Error::Flag`] for texts that
/// the model does not take.
pub(crate) fn read(data: &Data, asked: &Asked<'_>) -> Result<Given, Error> {
    let mut given = Given::default();
    for (name, path) in &data.input {
        let tensor = match image::is_image(path) {
            true => given.images.read(name, path, asked)?,
            false => npy::read_npy(path).map_err(|source| unread(path, source))?,
        };
        given.add(name.clone(), tensor, Origin::File(path.clone()))?;
    }
    if let Some(path) = &data.inputs {
        if path.is_dir() {
            let reason = "is a folder, not a .npz archive; --data DIR reads a folder's input_i.pb";
            return Err(Error::flag("--inputs", format!("{} {reason}", path.display())));
        }
        let tensors = npy::read_npz(path).map_err(|source| unread(path, source))?;
        for (name, tensor) in tensors {
            given.add(name, tensor, Origin::File(path.clone()))?;
        }
    }
    text::read(data, asked, &mut given)?;
    Ok(given)
}

/// Why a file of tensors is none: what it is instead, where that shows.
fn unread(path: &Path, source: NpyError) -> Error {
    let path = path.to_owned();
    let is_archive = path.extension().is_some_and(|ending| ending == "npz");
    match (&source, suspect::cause(&path)) {
        (NpyError::Magic | NpyError::Zip(_), Some(reason)) => Error::Data { path, reason },
        (NpyError::Magic, None) if is_archive => {
            Error::Data { path, reason: "archives are given by --inputs".to_owned() }
        }
        _ => Error::Npy { path, source },
    }
}
