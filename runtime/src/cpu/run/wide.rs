//! Floats of 16 bits as f32: kernels compute in f32, and storage is rounded once.

use super::output_number;
use crate::cpu::kernels::matmul::{narrowed, widened};
use crate::cpu::memory::{Io, Output};
use crate::cpu::scratch::{self, Buffer, Numbers};
use crate::error::{Error, Result};
use graphene_frontend::dtype::DType;
use graphene_fusion::program::Step;
use half::{bf16, f16};

impl<'a> Io<'a> {
    /// A row-major input in f32, and its shape.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for elements that f32 does not hold; [`Error::Memory`].
    pub(super) fn reals(&self, i: usize) -> Result<(Numbers<'a, f32>, &'a [usize])> {
        let (_, operand, dtype) = self.input(i)?;
        let elements = match dtype {
            DType::F32 => Numbers::Lent(self.dense::<f32>(i)?.0),
            DType::F16 => Numbers::Own(widened::<f16>(self.dense(i)?.0)?),
            DType::BF16 => Numbers::Own(widened::<bf16>(self.dense(i)?.0)?),
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
    F16(Buffer<f32>, &'a mut [f16]),
    /// Beside it.
    BF16(Buffer<f32>, &'a mut [bf16]),
    /// Nothing reads it.
    Spare(Buffer<f32>),
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
            DType::F16 => Self::F16(scratch::zeros(len)?, output.dense()),
            DType::BF16 => Self::BF16(scratch::zeros(len)?, output.dense()),
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
        let mut found: [Option<Self>; N] = [const { None }; N];
        for (number, output) in outputs.iter_mut().enumerate() {
            let place = (0..N).find(|&place| output_number(step, place as u32) == Some(number));
            let place = place.ok_or(Error::Unsupported { what: "an output given twice" })?;
            found[place] = Some(Self::new(output)?);
        }
        for (found, len) in found.iter_mut().zip(lens) {
            if found.is_none() {
                *found = Some(Self::Spare(scratch::zeros(len)?));
            }
        }
        Ok(found.map(|wide| wide.expect("each was found or made")))
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
            Self::F16(wide, to) => narrowed(to, &wide),
            Self::BF16(wide, to) => narrowed(to, &wide),
        }
    }
}
