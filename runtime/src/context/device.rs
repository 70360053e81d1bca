//! Tensors on an engine's GPU, which runs read and leave there.

use crate::device::Buffer;
use crate::engine::{Engine, Opened};
use crate::error::{Error, Result};
use graphene_frontend::dtype::DType;
use graphene_frontend::tensor::{Tensor, checked_elements};
use std::fmt;

/// A tensor on an engine's GPU, in row-major order: an input or output of runs that doesn't go by way of the host, such as
/// a decoder's keys and values from step to step. Runs that read it come behind those that write it, whatever contexts
/// they are of.
pub struct DeviceTensor {
    buffer: Buffer,
    dtype: DType,
    shape: Vec<usize>,
}

impl Engine {
    /// A tensor of zeros on the engine's GPU. It is not part of the memory limit.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the engine is not on a GPU; [`Error::TooLarge`], [`Error::DeviceMemory`] and
    /// [`Error::Device`].
    pub fn device_tensor(&self, dtype: DType, shape: &[usize]) -> Result<DeviceTensor> {
        let Opened::Cuda(cuda) = self.opened() else {
            return Err(Error::Unsupported {
                what: "a tensor on the GPU of an engine without one",
            });
        };
        let elements = checked_elements(shape);
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.size()));
        let bytes = bytes.ok_or(Error::TooLarge { what: "a tensor on a GPU" })?;
        let buffer = cuda.stream.alloc(bytes).map_err(|error| self.noted(error))?;
        Ok(DeviceTensor { buffer, dtype, shape: shape.to_vec() })
    }

    /// A tensor on the engine's GPU with these elements.
    ///
    /// # Errors
    /// As for [`device_tensor`](Self::device_tensor).
    pub fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor> {
        let made = self.device_tensor(tensor.dtype(), tensor.shape())?;
        made.buffer.write(tensor.bytes()).map_err(|error| self.noted(error))?;
        Ok(made)
    }
}

impl DeviceTensor {
    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The same memory under another shape of as many elements.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for another number of elements.
    pub fn reshaped(self, shape: &[usize]) -> Result<Self> {
        let (expected, found) = (checked_elements(&self.shape), checked_elements(shape));
        if expected != found {
            let count = |elements: Option<usize>| elements.unwrap_or(usize::MAX);
            let (expected, found) = (count(expected), count(found));
            return Err(Error::Mismatch { what: "elements of a tensor on a GPU", expected, found });
        }
        Ok(Self { shape: shape.to_vec(), ..self })
    }

    /// Its elements, when all runs that write it are done.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn download(&self) -> Result<Tensor> {
        let bytes = self.buffer.download()?;
        Ok(Tensor::new(self.dtype, self.shape.clone(), bytes.into())?)
    }

    /// Bytes of its elements.
    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} on a GPU", self.dtype, self.shape)
    }
}
