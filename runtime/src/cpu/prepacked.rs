//! Prepacked matrices: what weights are for the kernels that multiply by them.

use super::kernels::bf16::{self, PackedBf16};
use super::kernels::finish::Epilogue;
use super::kernels::int8::PackedIntegers;
use super::kernels::matmul::Matrix;
use super::kernels::packed::{self, Packed};
use super::kernels::tile::TileMut;
use crate::error::{Error, Result};
use std::sync::Arc;

/// The matrices that a step's inputs were prepacked as: for each input none or one; for a recurrent layer's weights
/// some for each direction.
pub(crate) type Prepacked = Vec<Vec<PackedWeight>>;

/// A prepacked matrix.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum PackedWeight {
    /// Of numbers that are multiplied in single precision.
    Reals(Arc<Packed>),
    /// Of numbers of bf16.
    Bf16(Arc<PackedBf16>),
    /// Of integers of 32 bits.
    Integers(Arc<PackedIntegers>),
}

impl PackedWeight {
    /// That of numbers in single precision.
    pub(crate) fn real(&self) -> Option<Arc<Packed>> {
        match self {
            Self::Reals(packed) => Some(Arc::clone(packed)),
            Self::Bf16(_) | Self::Integers(_) => None,
        }
    }

    /// Whether numbers in single precision are multiplied by it.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self, Self::Reals(_) | Self::Bf16(_))
    }

    /// C = A·B and what follows on the calling thread, as [`packed::multiply`], in memory of as many lines as
    /// [`memory`](Self::memory) says.
    ///
    /// # Errors
    /// As for [`packed::multiply`] and [`bf16::multiply`]; [`Error::Unsupported`] for a matrix of integers.
    pub(crate) fn multiply(
        &self,
        k: usize,
        a: Matrix<'_, f32>,
        column: usize,
        c: &mut TileMut<'_, f32>,
        memory: &mut [bf16::Line],
        epilogue: Epilogue<'_>,
    ) -> Result<()> {
        match self {
            Self::Reals(b) => packed::multiply(k, a, b, column, c, epilogue),
            Self::Bf16(b) => {
                bf16::multiply(k, a, b, column, c, memory)?;
                epilogue.apply(c);
                Ok(())
            }
            Self::Integers(_) => Err(Error::Unsupported { what: "a matrix of integers" }),
        }
    }

    /// How it is multiplied by, for profiles.
    pub(crate) fn algorithm(&self) -> Option<&'static str> {
        match self {
            Self::Reals(_) => Some(Packed::ALGORITHM),
            Self::Bf16(_) => Some(PackedBf16::algorithm()),
            Self::Integers(packed) => packed.algorithm(),
        }
    }

    /// Lines that a matmul of at most so many rows works in.
    pub(crate) fn memory(&self, rows: usize) -> usize {
        match self {
            Self::Bf16(b) => bf16::memory(rows, b),
            Self::Reals(_) | Self::Integers(_) => 0,
        }
    }

    /// That of integers.
    pub(crate) fn integers(&self) -> Option<Arc<PackedIntegers>> {
        match self {
            Self::Reals(_) | Self::Bf16(_) => None,
            Self::Integers(packed) => Some(Arc::clone(packed)),
        }
    }

    /// Its place in memory and its bytes.
    pub(crate) fn held(&self) -> (usize, u64) {
        match self {
            Self::Reals(packed) => (Arc::as_ptr(packed).addr(), packed.held_bytes()),
            Self::Bf16(packed) => (Arc::as_ptr(packed).addr(), packed.held_bytes()),
            Self::Integers(packed) => (Arc::as_ptr(packed).addr(), packed.held_bytes()),
        }
    }
}
