//! ONNX's test data: tensors in files, and how close two tensors are.
//!
//! A data set is a folder with `input_0.pb`, `input_1.pb`, … and `output_0.pb`, …, one tensor message each, in
//! the order of the model's inputs and outputs.

use crate::dtype::DType;
use crate::eval::{EvalError, number};
use crate::import::{NoExternalData, OpError, read_tensor};
use crate::onnx::TensorProto;
use crate::tensor::Tensor;
use crate::visible::make_visible;
use bytes::Bytes;
use prost::Message;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// More tensors than any data set has.
const MAX_TENSORS: usize = 10_000;

/// The inputs and the expected outputs of a model, each with the name in its file, which may be empty.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct DataSet {
    /// In the order of the model's inputs.
    pub inputs: Vec<(String, Tensor)>,
    /// In the order of the model's outputs.
    pub outputs: Vec<(String, Tensor)>,
}

/// Why test data cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file cannot be read.
    #[error("{}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Bytes are no tensor message.
    #[error("no tensor message: {0}")]
    Decode(#[from] prost::DecodeError),
    /// A tensor is malformed, or of a type that is not supported.
    #[error("tensor `{name}`: {error}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        error: OpError,
    },
    /// A tensor of a file is malformed, or of a type that is not supported.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: Box<DataError>,
    },
    /// The folder holds no data.
    #[error("{}: holds no input_0.pb and no output_0.pb", .0.display())]
    Empty(PathBuf),
}

/// How far a tensor is from what was expected.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// The largest `|actual - expected|` where both are finite.
    pub max_abs: f64,
    /// The largest `|actual - expected| / |expected|` where both are finite and the expected is not zero.
    pub max_rel: f64,
    /// Elements outside of the tolerance.
    pub mismatches: usize,
    /// Elements compared.
    pub elements: usize,
    /// The place in row-major order, the actual and the expected value of the first mismatch.
    pub first: Option<(usize, f64, f64)>,
    /// The types or shapes, where they differ; nothing else is compared then.
    pub types: Option<String>,
}

impl Comparison {
    /// Whether types, shapes and all elements agree.
    pub fn agrees(&self) -> bool {
        self.types.is_none() && self.mismatches == 0
    }
}

/// A tensor message and the name in it.
///
/// # Errors
/// [`DataError::Decode`], [`DataError::Tensor`].
pub fn read_tensor_proto(bytes: Bytes) -> Result<(String, Tensor), DataError> {
    let mut proto = TensorProto::decode(bytes)?;
    make_visible(&mut proto.name);
    match read_tensor(&proto, &NoExternalData) {
        Ok(tensor) => Ok((proto.name, tensor)),
        Err(error) => Err(DataError::Tensor { name: proto.name, error }),
    }
}

/// The data set in a folder.
///
/// # Errors
/// [`DataError::Empty`] if there is none, [`DataError::Read`], [`DataError::File`].
pub fn read_data_set(folder: &Path) -> Result<DataSet, DataError> {
    let unread = |error| DataError::Read { path: folder.to_owned(), error };
    std::fs::read_dir(folder).map_err(unread)?;
    let set = DataSet {
        inputs: read_numbered(folder, "input")?,
        outputs: read_numbered(folder, "output")?,
    };
    if set.inputs.is_empty() && set.outputs.is_empty() {
        return Err(DataError::Empty(folder.to_owned()));
    }
    Ok(set)
}

/// `NAME_0.pb`, `NAME_1.pb`, … up to the first that is not there.
fn read_numbered(folder: &Path, name: &str) -> Result<Vec<(String, Tensor)>, DataError> {
    let mut tensors = Vec::new();
    for i in 0..MAX_TENSORS {
        let path = folder.join(format!("{name}_{i}.pb"));
        match std::fs::read(&path) {
            Ok(bytes) => match read_tensor_proto(bytes.into()) {
                Ok(tensor) => tensors.push(tensor),
                Err(error) => return Err(DataError::File { path, error: Box::new(error) }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let skipped = numbers(folder, name).any(|number| number > i);
                return if skipped { Err(DataError::Read { path, error }) } else { Ok(tensors) };
            }
            Err(error) => return Err(DataError::Read { path, error }),
        }
    }
    Ok(tensors)
}

/// The numbers of the tensors of a name that a folder holds.
fn numbers(folder: &Path, name: &str) -> impl Iterator<Item = usize> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let file = entry.file_name().into_string().ok()?;
        file.strip_prefix(name)?.strip_prefix('_')?.strip_suffix(".pb")?.parse().ok()
    })
}

/// Compares element by element: floats agree if `|actual - expected| ≤ atol + rtol·|expected|`, both are NaN, or
/// both are the same infinity; everything else must be equal.
///
/// # Errors
/// [`EvalError`] never, unless a tensor stores elements that its type does not have.
pub fn compare(
    actual: &Tensor,
    expected: &Tensor,
    rtol: f64,
    atol: f64,
) -> Result<Comparison, EvalError> {
    let mut result = Comparison {
        max_abs: 0.0,
        max_rel: 0.0,
        mismatches: 0,
        elements: expected.len(),
        first: None,
        types: None,
    };
    if actual.dtype() != expected.dtype() || actual.shape() != expected.shape() {
        result.types = Some(format!("{actual:?}, but {expected:?} is expected"));
        return Ok(result);
    }
    if expected.dtype().is_float() {
        let (actual, expected) = (number::reals(actual)?, number::reals(expected)?);
        for (place, (&a, &e)) in actual.iter().zip(&expected).enumerate() {
            let difference = (a - e).abs();
            if difference.is_finite() {
                result.note(difference, e);
            }
            let close = difference.is_finite() && difference <= atol + rtol * e.abs();
            if !(close || a == e || a.is_nan() && e.is_nan()) {
                result.miss(place, a, e);
            }
        }
        return Ok(result);
    }
    let (actual, expected) = (exact(actual)?, exact(expected)?);
    for (place, (&a, &e)) in actual.iter().zip(&expected).enumerate() {
        if a != e {
            result.note(a.abs_diff(e) as f64, e as f64);
            result.miss(place, a as f64, e as f64);
        }
    }
    Ok(result)
}

impl Comparison {
    fn note(&mut self, difference: f64, expected: f64) {
        self.max_abs = self.max_abs.max(difference);
        if expected != 0.0 {
            self.max_rel = self.max_rel.max(difference / expected.abs());
        }
    }

    fn miss(&mut self, place: usize, actual: f64, expected: f64) {
        self.mismatches += 1;
        self.first.get_or_insert((place, actual, expected));
    }
}

/// Integers and truth values, a truth value being any byte but zero.
fn exact(tensor: &Tensor) -> Result<Vec<i128>, EvalError> {
    if tensor.dtype() == DType::Bool {
        return Ok(tensor.bytes().iter().map(|&byte| i128::from(byte != 0)).collect());
    }
    number::integers(tensor)
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(types) = &self.types {
            return f.write_str(types);
        }
        write!(f, "{} of {} elements differ", self.mismatches, self.elements)?;
        if let Some((place, actual, expected)) = self.first {
            write!(f, ", first [{place}]: {actual}, but {expected} is expected")?;
        }
        write!(f, "; largest error {:e}, relative {:e}", self.max_abs, self.max_rel)
    }
}

#[cfg(test)]
mod tests {
    use super::{compare, read_tensor_proto};
    use crate::onnx::TensorProto;
    use crate::tensor::Tensor;
    use prost::Message;

    fn floats(values: &[f32]) -> Tensor {
        Tensor::from_vec(vec![values.len()], values.to_vec()).unwrap()
    }

    #[test]
    fn nan_and_infinity_agree_with_themselves() {
        let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
        assert!(compare(&floats(&values), &floats(&values), 0.0, 0.0).unwrap().agrees());
        let other = [1.0, f32::NEG_INFINITY, 1e30, f32::NAN];
        assert_eq!(compare(&floats(&other), &floats(&values), 1.0, 1.0).unwrap().mismatches, 4);
    }

    #[test]
    fn tolerances_add() {
        let result = compare(&floats(&[10.15]), &floats(&[10.0]), 0.01, 0.06).unwrap();
        assert!(result.agrees() && (result.max_abs - 0.15).abs() < 1e-5);
        assert!(!compare(&floats(&[10.15]), &floats(&[10.0]), 0.01, 0.04).unwrap().agrees());
    }

    #[test]
    fn types_and_shapes_are_compared_first() {
        let (a, b) = (floats(&[1.0]), Tensor::scalar(1.0_f32));
        assert!(compare(&a, &b, 1.0, 1.0).unwrap().types.is_some());
        assert!(compare(&b, &Tensor::scalar(1_i32), 1.0, 1.0).unwrap().types.is_some());
    }

    #[test]
    fn tensor_messages_are_read_with_their_names() {
        let proto = TensorProto {
            name: "x".to_owned(),
            dims: vec![2],
            data_type: 1,
            float_data: vec![1.0, 2.0],
            ..TensorProto::default()
        };
        let (name, tensor) = read_tensor_proto(proto.encode_to_vec().into()).unwrap();
        assert_eq!((name.as_str(), tensor), ("x", floats(&[1.0, 2.0])));
        assert!(read_tensor_proto(bytes::Bytes::from_static(&[0xff, 0xff])).is_err());
    }
}
