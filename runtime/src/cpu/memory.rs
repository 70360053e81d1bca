//! Memory of an executable: aligned storage, and the disjoint parts of it that a step works on.

use crate::bind::{Place, Plan};
use crate::error::{Error, Result};
use graphene_frontend::tensor::{Tensor, TensorError};
use graphene_fusion::program::{BufferId, Program};

/// Bytes to a cache line, to which storage is aligned.
const LINE: usize = 64;

/// Bytes aligned to a cache line.
///
/// They are words with some to spare in front: the system hands those out as untouched zero pages, which an
/// allocation of stricter alignment would have to clear.
#[derive(Default)]
pub(crate) struct Storage {
    words: Vec<u64>,
    start: usize,
    len: usize,
}

impl Storage {
    /// Zeroed bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system does not give them.
    pub(crate) fn new(len: usize) -> Result<Self> {
        let count = len.div_ceil(8) + LINE / 8;
        let words: Vec<u64> = bytemuck::allocation::try_zeroed_vec(count)
            .map_err(|()| Error::Memory { bytes: len })?;
        let start = words.as_ptr().align_offset(LINE).min(LINE / 8) * 8;
        Ok(Self { words, start, len })
    }

    /// The bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for Storage {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[self.start..self.start + self.len]
    }
}

/// A part of memory that a step works on.
pub(crate) enum Part<'a> {
    /// Read only.
    Shared(&'a [u8]),
    /// Written, and perhaps read.
    Exclusive(&'a mut [u8]),
}

/// Everything that a step's buffers lie in.
pub(crate) struct Memory<'a> {
    pub(crate) program: &'a Program,
    /// For each buffer that is a weight its elements, if a kernel reads them as they lie.
    pub(crate) weights: &'a [Option<Tensor>],
    pub(crate) plan: &'a Plan,
    pub(crate) inputs: &'a [Tensor],
    pub(crate) arena: &'a mut [u8],
    pub(crate) outputs: &'a mut [Storage],
}

impl Memory<'_> {
    /// The parts of memory of these buffers, in their order; `true` asks for writing. Each buffer is named
    /// once, and no two of them share memory: the planner sees to that, and this checks it.
    ///
    /// # Errors
    /// [`Error::Shared`] if two buffers share memory: a defect of the plan.
    pub(crate) fn parts(&mut self, buffers: &[(BufferId, bool)]) -> Result<Vec<Part<'_>>> {
        let mut in_arena: Vec<(usize, usize, usize)> = Vec::new();
        let mut in_outputs: Vec<(usize, usize)> = Vec::new();
        let mut parts: Vec<Option<Part<'_>>> = Vec::new();
        for (i, &(id, _)) in buffers.iter().enumerate() {
            let buffer = &self.plan.buffers()[id.index()];
            parts.push(match buffer.place {
                Place::Input(number) => Some(Part::Shared(self.inputs[number].bytes())),
                Place::Weight => match &self.weights[id.index()] {
                    Some(tensor) => Some(Part::Shared(tensor.bytes())),
                    None => return Err(Error::Shared { buffer: id }),
                },
                Place::Output(number) => {
                    in_outputs.push((number, i));
                    None
                }
                Place::Arena(offset) => {
                    in_arena.push((offset, buffer.bytes(), i));
                    None
                }
            });
        }
        let shared = |i: usize| Error::Shared { buffer: buffers[i].0 };
        in_arena.sort_unstable();
        let mut rest: &mut [u8] = self.arena;
        let mut start = 0;
        for (offset, len, i) in in_arena {
            let gap = offset.checked_sub(start).ok_or(shared(i))?;
            let (own, after) = rest[gap..].split_at_mut(len);
            rest = after;
            start = offset + len;
            parts[i] = Some(part(own, buffers[i].1));
        }
        in_outputs.sort_unstable();
        let (mut rest, mut start) = (&mut *self.outputs, 0);
        for (number, i) in in_outputs {
            let gap = number.checked_sub(start).ok_or(shared(i))?;
            let (own, after) = rest[gap..].split_first_mut().ok_or(shared(i))?;
            rest = after;
            start = number + 1;
            parts[i] = Some(part(own.bytes_mut(), buffers[i].1));
        }
        Ok(parts.into_iter().flatten().collect())
    }
}

fn part(bytes: &mut [u8], write: bool) -> Part<'_> {
    if write { Part::Exclusive(bytes) } else { Part::Shared(bytes) }
}

/// The outputs' storage as tensors.
///
/// # Errors
/// [`TensorError`] if the storage is not as long as the shape: a defect of the plan.
pub(crate) fn output_tensors(
    program: &Program,
    plan: &Plan,
    outputs: Vec<Storage>,
) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::with_capacity(outputs.len());
    for ((_, ty), storage) in program.outputs().iter().zip(outputs) {
        let shape = ty.bound_shape(plan.bindings())?;
        let tensor: Result<Tensor, TensorError> =
            Tensor::new(ty.dtype, shape, bytes::Bytes::from_owner(storage));
        tensors.push(tensor?);
    }
    Ok(tensors)
}
