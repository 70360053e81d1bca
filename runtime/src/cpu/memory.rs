//! Memory of an executable: aligned storage, the disjoint parts of it that a step works on, and what it reads and writes
//! there.

use super::loops::LoopInput;
use super::scratch::Few;
use crate::bind::{BoundOperand, BoundStep, Place, Plan};
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
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

    /// So many of its bytes, and larger memory in their place where there are fewer; what they hold is not said.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(crate) fn at_least(&mut self, len: usize) -> Result<&mut [u8]> {
        if self.len < len {
            *self = Self::new(len)?;
        }
        Ok(&mut self.bytes_mut()[..len])
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

/// The parts of a step.
type Parts<'a> = Few<Option<Part<'a>>>;

/// Where what a step works on lies, found out once. Each buffer of the arena and each output is one part of memory,
/// those written first, and no two share memory: the planner sees to that, and this checks it.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// How many parts there are.
    parts: usize,
    /// Those that are written.
    written: usize,
    /// Offset, bytes and number of those in the arena, one behind the other.
    arena: Vec<(usize, usize, usize)>,
    /// The program's output and number of those that are outputs, in order.
    outputs: Vec<(usize, usize)>,
    /// What each operand is that is read.
    operands: Vec<Source>,
}

/// What an operand is that is read.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The part of this number after those that are written.
    Part(usize),
    Given(usize),
    Weight(BufferId),
    Overwritten(usize),
    Prepacked,
}

impl Access {
    /// Of a step that reads those inputs that `reads` says.
    ///
    /// # Errors
    /// [`Error::Shared`] if two buffers share memory: a defect of the plan.
    pub(crate) fn new(
        plan: &Plan,
        bound: &BoundStep,
        reads: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        let mut buffers: Vec<BufferId> = bound.outputs.iter().map(|output| output.buffer).collect();
        let written = buffers.len();
        let mut operands = Vec::with_capacity(bound.inputs.len());
        for (i, input) in bound.inputs.iter().enumerate() {
            let id = input.buffer;
            operands.push(match (bound.overwritten_by[i], plan.buffers()[id.index()].place) {
                (Some(output), _) => Source::Overwritten(output),
                (None, _) if !reads(i) => Source::Prepacked,
                (None, Place::Input(number)) => Source::Given(number),
                (None, Place::Weight) => Source::Weight(id),
                (None, Place::Output(_) | Place::Arena(_)) => {
                    let known = buffers.iter().position(|&other| other == id);
                    let known = known.unwrap_or_else(|| {
                        buffers.push(id);
                        buffers.len() - 1
                    });
                    let read = known.checked_sub(written);
                    Source::Part(read.ok_or(Error::Shared { buffer: id })?)
                }
            });
        }
        let (mut arena, mut outputs) = (Vec::new(), Vec::new());
        for (number, &id) in buffers.iter().enumerate() {
            let buffer = &plan.buffers()[id.index()];
            match buffer.place {
                Place::Input(_) | Place::Weight => return Err(Error::Shared { buffer: id }),
                Place::Output(output) => outputs.push((output, number)),
                Place::Arena(offset) => arena.push((offset, buffer.bytes(), number)),
            }
        }
        arena.sort_unstable();
        outputs.sort_unstable();
        let in_arena = arena.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0);
        let in_outputs = outputs.windows(2).find(|pair| pair[0].0 == pair[1].0);
        let shared = in_arena.map(|pair| pair[1].2).or(in_outputs.map(|pair| pair[1].1));
        match shared {
            Some(number) => Err(Error::Shared { buffer: buffers[number] }),
            None => Ok(Self { parts: buffers.len(), written, arena, outputs, operands }),
        }
    }
}

/// Everything that a run's buffers lie in, of the sizes that the plan says.
pub(crate) struct Memory<'a, 'b> {
    /// For each buffer that is a weight its elements, if a kernel reads them as they lie.
    pub(crate) weights: &'a [Option<Tensor>],
    pub(crate) inputs: &'a [&'a [u8]],
    pub(crate) arena: &'a mut [u8],
    pub(crate) outputs: &'a mut [&'b mut [u8]],
}

/// What a step reads and writes.
pub(crate) struct Io<'a> {
    pub(crate) inputs: Inputs<'a>,
    pub(crate) outputs: Few<Output<'a>>,
}

/// What a step reads: a view of bytes, memory that one of its outputs overwrites, or a weight that its kernel has in
/// another layout.
pub(crate) enum Input<'a> {
    Bytes { bytes: &'a [u8], operand: &'a BoundOperand, dtype: DType },
    Overwritten { output: usize },
    Prepacked,
}

/// What a step writes: a view of bytes.
pub(crate) struct Output<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) operand: &'a BoundOperand,
    pub(crate) dtype: DType,
}

/// What a step reads, looked up one by one.
pub(crate) struct Inputs<'a> {
    access: &'a Access,
    plan: &'a Plan,
    bound: &'a BoundStep,
    weights: &'a [Option<Tensor>],
    given: &'a [&'a [u8]],
    parts: Few<&'a [u8]>,
}

impl<'a> Inputs<'a> {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.access.operands.len()
    }

    /// The shape of the input of this number, wherever it lies; that of a scalar if there is none.
    pub(crate) fn shape(&self, number: usize) -> &'a [usize] {
        self.bound.inputs.get(number).map_or(&[], |operand| &operand.shape)
    }

    /// The input of this number; `None` if there is none, or no memory for it: a defect of the plan.
    pub(crate) fn get(&self, number: usize) -> Option<Input<'a>> {
        let bytes = match *self.access.operands.get(number)? {
            Source::Overwritten(output) => return Some(Input::Overwritten { output }),
            Source::Prepacked => return Some(Input::Prepacked),
            Source::Part(part) => *self.parts.get(part)?,
            Source::Given(input) => *self.given.get(input)?,
            Source::Weight(id) => self.weights[id.index()].as_ref()?.bytes(),
        };
        let operand = &self.bound.inputs[number];
        let dtype = self.plan.buffers()[operand.buffer.index()].dtype;
        Some(Input::Bytes { bytes, operand, dtype })
    }

    /// An input as a loop reads it.
    pub(crate) fn of_loop(&self, i: usize) -> LoopInput<'a> {
        match self.get(i) {
            Some(Input::Bytes { bytes, .. }) => LoopInput::Bytes(bytes),
            Some(Input::Overwritten { output }) => LoopInput::Overwritten(output),
            Some(Input::Prepacked) | None => LoopInput::Bytes(&[]),
        }
    }

    /// An input that no output overwrites. Only loops, norms and the reference take others.
    pub(crate) fn bytes(&self, i: usize) -> Result<(&'a [u8], &'a BoundOperand, DType)> {
        match self.get(i) {
            Some(Input::Bytes { bytes, operand, dtype }) => Ok((bytes, operand, dtype)),
            Some(Input::Overwritten { .. }) | None => {
                Err(Error::Unsupported { what: "an input in place" })
            }
            Some(Input::Prepacked) => Err(Error::Unsupported { what: "a weight as it lies" }),
        }
    }
}

impl<'a> Io<'a> {
    /// An input that no output overwrites. Only loops, norms and the reference take others.
    pub(crate) fn input(&self, i: usize) -> Result<(&'a [u8], &'a BoundOperand, DType)> {
        self.inputs.bytes(i)
    }

    /// An input whose elements lie in row-major order.
    pub(crate) fn dense<T: Pod>(&self, i: usize) -> Result<(&'a [T], &'a [usize])> {
        let (bytes, operand, _) = self.input(i)?;
        let len: usize = operand.shape.iter().product();
        Ok((&cast_slice(bytes)[operand.offset..operand.offset + len], &operand.shape))
    }
}

impl Output<'_> {
    /// The bytes of an output whose elements lie in row-major order.
    pub(crate) fn dense_bytes(&mut self) -> &mut [u8] {
        let (len, size): (usize, _) = (self.operand.shape.iter().product(), self.dtype.size());
        &mut self.bytes[self.operand.offset * size..][..len * size]
    }

    pub(crate) fn dense<T: Pod>(&mut self) -> &mut [T] {
        let len: usize = self.operand.shape.iter().product();
        &mut cast_slice_mut(self.bytes)[self.operand.offset..self.operand.offset + len]
    }
}

impl Memory<'_, '_> {
    fn parts(&mut self, access: &Access) -> Parts<'_> {
        let mut parts: Parts<'_> = (0..access.parts).map(|_| None).collect();
        let part = |bytes, number| match number < access.written {
            true => Part::Exclusive(bytes),
            false => Part::Shared(bytes),
        };
        let (mut rest, mut start): (&mut [u8], usize) = (self.arena, 0);
        for &(offset, len, number) in &access.arena {
            let (own, after) = rest[offset - start..].split_at_mut(len);
            rest = after;
            start = offset + len;
            parts[number] = Some(part(own, number));
        }
        let (mut rest, mut start) = (&mut *self.outputs, 0);
        for &(output, number) in &access.outputs {
            let Some((own, after)) = rest[output - start..].split_first_mut() else { break };
            rest = after;
            start = output + 1;
            parts[number] = Some(part(own, number));
        }
        parts
    }

    /// What a step reads and writes.
    ///
    /// # Errors
    /// [`Error::Shared`] for a buffer that is not there: a defect of the plan.
    pub(crate) fn io<'a>(
        &'a mut self,
        access: &'a Access,
        plan: &'a Plan,
        bound: &'a BoundStep,
    ) -> Result<Io<'a>> {
        let (weights, given) = (self.weights, self.inputs);
        let mut parts = self.parts(access).into_iter();
        let mut outputs = Few::new();
        for operand in &bound.outputs {
            let Some(Some(Part::Exclusive(bytes))) = parts.next() else {
                return Err(Error::Shared { buffer: operand.buffer });
            };
            let dtype = plan.buffers()[operand.buffer.index()].dtype;
            outputs.push(Output { bytes, operand, dtype });
        }
        let read = |part| match part {
            Some(Part::Shared(bytes)) => bytes,
            Some(Part::Exclusive(bytes)) => &*bytes,
            None => &[],
        };
        let parts = parts.map(read).collect();
        Ok(Io { inputs: Inputs { access, plan, bound, weights, given, parts }, outputs })
    }
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
