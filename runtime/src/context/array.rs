//! Inputs from arrays of the `ndarray` crate, and outputs as such.

use super::{Input, Outputs};
use crate::error::{Error, Result};
use graphene_frontend::tensor::{Element, TensorError};
use ndarray::{ArrayD, ArrayRef, ArrayViewD, Dimension};

impl<'a> Input<'a> {
    /// The elements of an array, or of a view, in standard layout: row-major and without gaps.
    ///
    /// ```
    /// # use graphene_runtime::Input;
    /// let x = ndarray::arr2(&[[1.0_f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    /// assert_eq!(format!("{:?}", Input::array(&x)?), "f32[3, 2]");
    /// assert!(Input::array(&x.t()).is_err());
    /// # Ok::<_, graphene_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotContiguous`] for another layout: `array.as_standard_layout()` makes this one.
    pub fn array<T: Element, D: Dimension>(array: &'a ArrayRef<T, D>) -> Result<Self> {
        let refused = || Error::NotContiguous { shape: array.shape().to_vec() };
        Ok(Self::new(array.as_slice().ok_or_else(refused)?, array.shape()))
    }
}

impl Outputs {
    /// The output of this name, borrowed.
    ///
    /// # Errors
    /// As for [`to_vec`](Self::to_vec).
    pub fn array_view<T: Element>(&self, name: &str) -> Result<ArrayViewD<'_, T>> {
        let unknown = || super::unknown("output", name, &self.ports);
        let tensor = self.get(name).ok_or_else(unknown)?;
        let (shape, elements) = (tensor.shape(), tensor.as_slice()?);
        // A shape whose sizes other than zero multiply beyond memory, as ndarray counts it.
        let refused = |_| Error::Tensor(TensorError::TooLarge(shape.to_vec()));
        ArrayViewD::from_shape(shape, elements).map_err(refused)
    }

    /// The output of this name, copied.
    ///
    /// # Errors
    /// As for [`to_vec`](Self::to_vec).
    pub fn array<T: Element>(&self, name: &str) -> Result<ArrayD<T>> {
        Ok(self.array_view(name)?.to_owned())
    }
}
