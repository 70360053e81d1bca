//! Types of values: an element type and a shape of dims.

use crate::dim::{Bindings, Dim, DimError};
use crate::dtype::DType;
use crate::infer::InferError;
use crate::tensor::{MAX_ELEMENTS, Tensor};
use std::fmt;

/// More dims than any real tensor has.
pub const MAX_RANK: usize = 16;

/// The element type and shape of a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// Elements along each dimension.
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// A type of these parts.
    pub fn new(dtype: DType, shape: Vec<Dim>) -> Self {
        Self { dtype, shape }
    }

    /// The type of a tensor.
    pub fn of(tensor: &Tensor) -> Self {
        Self::new(tensor.dtype(), tensor.shape().iter().map(|&size| Dim::from(size)).collect())
    }

    /// The number of dims.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements, as an expression.
    pub fn elements(&self) -> Dim {
        self.shape.iter().fold(Dim::from(1), |product, dim| product * dim)
    }

    /// The sizes, if all are known.
    pub fn known_shape(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(|dim| usize::try_from(dim.known()?).ok()).collect()
    }

    /// The sizes under `bindings`.
    ///
    /// # Errors
    /// [`DimError`] if a symbol has no size.
    pub fn bound_shape(&self, bindings: &Bindings) -> Result<Vec<usize>, DimError> {
        let size = |dim: &Dim| Ok(usize::try_from(dim.eval(bindings)?).unwrap_or(0));
        self.shape.iter().map(size).collect()
    }

    /// Refuses negative sizes, ranks over [`MAX_RANK`] and known sizes over [`MAX_ELEMENTS`].
    ///
    /// # Errors
    /// [`InferError::Size`].
    pub fn check(&self) -> Result<(), InferError> {
        let refuse = || Err(InferError::Size(self.clone()));
        if self.rank() > MAX_RANK {
            return refuse();
        }
        let mut product = 1_i64;
        for dim in &self.shape {
            match dim.known() {
                Some(0) => {
                    return if self.shape.iter().any(|d| d.upper_bound().is_some_and(|u| u < 0)) {
                        refuse()
                    } else {
                        Ok(())
                    };
                }
                Some(size) if size < 0 => return refuse(),
                Some(size) => product = product.saturating_mul(size),
                None if dim.upper_bound().is_some_and(|bound| bound < 0) => return refuse(),
                None => {}
            }
        }
        if product > MAX_ELEMENTS as i64 { refuse() } else { Ok(()) }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, dim) in self.shape.iter().enumerate() {
            write!(f, "{}{dim}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}
