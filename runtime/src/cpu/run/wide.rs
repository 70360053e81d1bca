//! Floats of 16 bits as f32: kernels compute in f32, and storage is rounded once.

use super::{Io, Output, output_number};
use crate::cpu::kernels::matmul::{Half, widened};
use crate::error::{Error, Result};
use graphene_frontend::dtype::DType;
use graphene_fusion::program::Step;
use half::{bf16, f16};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use std::borrow::Cow;

/// The elements converted at a time.
const BLOCK: usize = 1 << 14;

/// Zeros.
///
/// # Errors
/// [`Error::Memory`] if the system does not give them.
pub(super) fn zeros(len: usize) -> Result<Vec<f32>> {
    let bytes = len.saturating_mul(size_of::<f32>());
    bytemuck::allocation::try_zeroed_vec(len).map_err(|()| Error::Memory { bytes })
}

pub(super) fn narrow<T: Half>(to: &mut [T], wide: &[f32]) {
    to.par_chunks_mut(BLOCK).zip(wide.par_chunks(BLOCK)).for_each(|(to, from)| {
        T::narrow(to, from);
    });
}

impl<'a> Io<'a> {
    /// A row-major input in f32, and its shape.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for elements that f32 does not hold; [`Error::Memory`].
    pub(super) fn reals(&self, i: usize) -> Result<(Cow<'a, [f32]>, &'a [usize])> {
        let (_, operand, dtype) = self.input(i)?;
        let elements = match dtype {
            DType::F32 => Cow::Borrowed(self.dense::<f32>(i)?.0),
            DType::F16 => Cow::Owned(widened::<f16>(self.dense(i)?.0)?),
            DType::BF16 => Cow::Owned(widened::<bf16>(self.dense(i)?.0)?),
            _ => return Err(Error::Unsupported { what: "an element type" }),
        };
        Ok((elements, &operand.shape))
    }
}

/// A row-major output that is written in f32.
pub(super) enum Wide<'a> {
    /// In its place.
    Place(&'a mut [f32]),
    /// Beside it.
    F16(Vec<f32>, &'a mut [f16]),
    /// Beside it.
    BF16(Vec<f32>, &'a mut [bf16]),
    /// Nothing reads it.
    Spare(Vec<f32>),
}

impl<'a> Wide<'a> {
    /// The output in f32; [`finish`](Self::finish) stores it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for elements that f32 does not hold; [`Error::Memory`].
    pub(super) fn new(output: &'a mut Output<'_>) -> Result<Self> {
        let len = output.operand.shape.iter().product();
        Ok(match output.dtype {
            DType::F32 => Self::Place(output.dense()),
            DType::F16 => Self::F16(zeros(len)?, output.dense()),
            DType::BF16 => Self::BF16(zeros(len)?, output.dense()),
            _ => return Err(Error::Unsupported { what: "an element type" }),
        })
    }

    /// All outputs of the step's operation, those that nothing reads with room for this many elements.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn all<const N: usize>(
        step: &Step,
        outputs: &'a mut [Output<'_>],
        lens: [usize; N],
    ) -> Result<[Self; N]> {
        let mut found = [const { None }; N];
        for (number, output) in outputs.iter_mut().enumerate() {
            let place = (0..N).find(|&place| output_number(step, place as u32) == Some(number));
            let place = place.ok_or(Error::Unsupported { what: "an output given twice" })?;
            found[place] = Some(Self::new(output)?);
        }
        let mut all = [const { Self::Spare(Vec::new()) }; N];
        for ((slot, found), len) in all.iter_mut().zip(found).zip(lens) {
            *slot = match found {
                Some(wide) => wide,
                None => Self::Spare(zeros(len)?),
            };
        }
        Ok(all)
    }

    /// The elements to write.
    pub(super) fn elements(&mut self) -> &mut [f32] {
        match self {
            Self::Place(elements) => elements,
            Self::F16(elements, _) | Self::BF16(elements, _) | Self::Spare(elements) => elements,
        }
    }

    /// Rounds the elements into their place.
    pub(super) fn finish(self) {
        match self {
            Self::Place(_) | Self::Spare(_) => {}
            Self::F16(wide, to) => narrow(to, &wide),
            Self::BF16(wide, to) => narrow(to, &wide),
        }
    }
}
