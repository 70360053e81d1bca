//! Dense tensors: a type, a shape, and elements in row-major order.
//!
//! The bytes are shared and may belong to a memory-mapped file, so a clone is cheap and a weight is
//! held by reference until something needs it.

use crate::dtype::DType;
use bytes::Bytes;
use half::{bf16, f16};
use std::fmt;

/// No tensor has more elements than this; whatever asks for more is refused before it allocates.
pub const MAX_ELEMENTS: usize = 1 << 36;

/// A dense tensor in row-major order. Cloning shares the elements.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    /// `elements × dtype.size()` bytes, aligned to the element.
    bytes: Bytes,
}

/// Why bytes and a shape make no tensor.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TensorError {
    /// The shape has more elements than [`MAX_ELEMENTS`].
    #[error("a tensor of shape {0:?} is too large")]
    TooLarge(Vec<usize>),
    /// The shape does not have as many elements as were given.
    #[error("shape {shape:?} of {dtype} takes {expected} bytes, but {actual} were given")]
    Length {
        /// The shape asked for.
        shape: Vec<usize>,
        /// Its element type.
        dtype: DType,
        /// Bytes that it takes.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// The elements are of another type than the one asked for.
    #[error("expected elements of {expected}, found {actual}")]
    Type {
        /// The type asked for.
        expected: DType,
        /// The tensor's own.
        actual: DType,
    },
}

/// A Rust type that stores elements of one [`DType`].
pub trait Element: bytemuck::Pod + Send + Sync + fmt::Debug + PartialEq {
    /// The type that it stores.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
// Types without a Rust type of their own (bool, i4, f8…) are read as bytes by `Tensor::bytes`.
elements! {
    f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}

impl Tensor {
    /// A tensor over `bytes`, elements in row-major order, little-endian; copied only if not aligned.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`], [`TensorError::Length`].
    pub fn new(dtype: DType, shape: Vec<usize>, bytes: Bytes) -> Result<Self, TensorError> {
        let expected = byte_length(dtype, &shape)?;
        if bytes.len() != expected {
            return Err(TensorError::Length { shape, dtype, expected, actual: bytes.len() });
        }
        let aligned = bytes.as_ptr().align_offset(dtype.size()) == 0;
        let bytes = if aligned { bytes } else { aligned_copy(&bytes) };
        Ok(Self { dtype, shape, bytes })
    }

    /// A tensor of these elements.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`], [`TensorError::Length`].
    pub fn from_vec<T: Element>(shape: Vec<usize>, data: Vec<T>) -> Result<Self, TensorError> {
        Self::new(T::DTYPE, shape, Bytes::from_owner(OwnedElements(data)))
    }

    /// A tensor of truth values.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`], [`TensorError::Length`].
    pub fn from_bools(shape: Vec<usize>, data: Vec<bool>) -> Result<Self, TensorError> {
        Self::new(DType::Bool, shape, data.into_iter().map(u8::from).collect())
    }

    /// A tensor without dimensions.
    pub fn scalar<T: Element>(value: T) -> Self {
        let bytes = Bytes::from_owner(OwnedElements(vec![value]));
        Self { dtype: T::DTYPE, shape: Vec::new(), bytes }
    }

    /// A tensor of zero bytes.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`].
    pub fn zeros(dtype: DType, shape: Vec<usize>) -> Result<Self, TensorError> {
        let bytes = AlignedBytes::zeroed(byte_length(dtype, &shape)?).into();
        Ok(Self { dtype, shape, bytes })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        // Not the product of the sizes: beside a zero, the others may be huge.
        self.bytes.len() / self.dtype.size()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as bytes, aligned to the element; a byte each for `bool` and the narrow types.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements as shared bytes.
    pub fn shared_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The elements.
    ///
    /// # Errors
    /// [`TensorError::Type`] if they are of another type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        if T::DTYPE != self.dtype {
            return Err(TensorError::Type { expected: T::DTYPE, actual: self.dtype });
        }
        Ok(bytemuck::cast_slice(&self.bytes))
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// [`TensorError::Length`] if the number of elements differs.
    pub fn reshaped(&self, shape: Vec<usize>) -> Result<Self, TensorError> {
        Self::new(self.dtype, shape, self.bytes.clone())
    }
}

/// Bytes of a tensor, or why it is refused.
fn byte_length(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
    let elements = checked_elements(shape).filter(|&n| n <= MAX_ELEMENTS);
    let elements = elements.ok_or_else(|| TensorError::TooLarge(shape.to_vec()))?;
    Ok(elements * dtype.size())
}

/// The product of the sizes, if it fits; zero sizes count even beside huge ones.
pub fn checked_elements(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))
}

fn aligned_copy(bytes: &[u8]) -> Bytes {
    let mut aligned = AlignedBytes::zeroed(bytes.len());
    aligned.bytes_mut().copy_from_slice(bytes);
    aligned.into()
}

/// Bytes under construction, aligned for every element type.
pub(crate) struct AlignedBytes {
    words: Vec<u64>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(8)], len }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    /// The bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

impl From<AlignedBytes> for Bytes {
    fn from(aligned: AlignedBytes) -> Self {
        Bytes::from_owner(OwnedElements(aligned.words)).slice(..aligned.len)
    }
}

/// A vector of elements seen as bytes.
struct OwnedElements<T>(Vec<T>);

impl<T: bytemuck::Pod> AsRef<[u8]> for OwnedElements<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}
