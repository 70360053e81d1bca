//! Weights laid out once, when a program is compiled: what recurrent layers and fused execution's products multiply
//! by. Library execution's products take them as they lie, as a library's call does.

use super::kernels::matmul::{Matrix, Strides, widened};
use super::kernels::packed::Packed;
use super::kernels::rnn::Cell;
use crate::bind::{BoundOperand, bind_operand};
use crate::error::{Error, Result};
use crate::weight::elements;
use bytemuck::cast_slice;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::ValueId;
use graphene_frontend::op::{Op, RnnAttrs, RnnCell};
use graphene_fusion::groups::Executor;
use graphene_fusion::program::{BufferId, BufferKind, Program, Step};
use half::{bf16, f16};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Which weights are to be laid out.
pub(crate) struct Packing {
    /// Views of weights as matrices, each once, however many products read it.
    matrices: Vec<BoundOperand>,
    /// For each step and each of its inputs the numbers of its matrices.
    numbers: Vec<Vec<Vec<usize>>>,
}

/// The matrices that a step's inputs were laid out as: for each input none or one; for a recurrent layer's weights
/// some for each direction.
pub(crate) type Laid = Vec<Vec<Arc<Packed>>>;

impl Packing {
    /// What can be laid out of a program's weights.
    pub(crate) fn of(program: &Program) -> Self {
        let mut known: HashMap<BoundOperand, usize> = HashMap::new();
        let mut number = |matrix| {
            let next = known.len();
            *known.entry(matrix).or_insert(next)
        };
        let mut numbers = Vec::new();
        for step in program.steps() {
            let mut of_inputs = vec![Vec::new(); step.inputs.len()];
            for (input, matrices) in matrices(program, step) {
                of_inputs[input] = matrices.into_iter().map(&mut number).collect();
            }
            numbers.push(of_inputs);
        }
        let mut matrices: Vec<_> = known.into_iter().collect();
        matrices.sort_unstable_by_key(|&(_, number)| number);
        Self { matrices: matrices.into_iter().map(|(matrix, _)| matrix).collect(), numbers }
    }

    /// Nothing is laid out.
    pub(crate) fn none(program: &Program) -> Self {
        let numbers = program.steps().iter().map(|step| vec![Vec::new(); step.inputs.len()]);
        let numbers = numbers.collect();
        Self { matrices: Vec::new(), numbers }
    }

    /// Bytes that it takes; `u64::MAX` if they are more.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = self.matrices.iter().map(|matrix| {
            let [depth, columns] = sizes(matrix);
            Packed::bytes(depth, columns).map_or(u64::MAX, |bytes| bytes as u64)
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Lays the weights out. Those made of others are made for it, and let go of.
    ///
    /// # Errors
    /// [`Error::Memory`], and [`Error::At`] around [`Error::Eval`] for a weight that cannot be made.
    pub(crate) fn lay(&self, program: &Program) -> Result<Vec<Laid>> {
        let mut of_buffer: BTreeMap<BufferId, Vec<usize>> = BTreeMap::new();
        for (number, matrix) in self.matrices.iter().enumerate() {
            of_buffer.entry(matrix.buffer).or_default().push(number);
        }
        let lay = |(&buffer, numbers): (&BufferId, &Vec<usize>)| {
            let Some(weight) = elements(program.buffer(buffer))? else {
                return Err(Error::Shared { buffer });
            };
            let pack = |&number: &usize| {
                let packed = pack(&self.matrices[number], weight.bytes(), weight.dtype())?;
                Ok((number, Arc::new(packed)))
            };
            numbers.iter().map(pack).collect::<Result<Vec<_>>>()
        };
        let laid: Vec<_> = of_buffer.par_iter().map(lay).collect::<Result<_>>()?;
        let laid: BTreeMap<usize, Arc<Packed>> = laid.into_iter().flatten().collect();
        let of = |numbers: &Vec<usize>| numbers.iter().map(|n| Arc::clone(&laid[n])).collect();
        Ok(self.numbers.iter().map(|inputs| inputs.iter().map(of).collect()).collect())
    }
}

/// A step's inputs that products multiply by and nothing else reads, and the matrices that each of them is.
fn matrices(program: &Program, step: &Step) -> Vec<(usize, Vec<BoundOperand>)> {
    let mut places: Vec<Vec<(&Op, usize)>> = vec![Vec::new(); step.inputs.len()];
    let inputs: HashMap<ValueId, usize> =
        step.body.inputs().iter().enumerate().map(|(i, id)| (id.value(), i)).collect();
    for (_, node) in step.body.nodes() {
        for (place, value) in node.inputs().iter().enumerate() {
            if let Some(&input) = value.as_ref().and_then(|value| inputs.get(value)) {
                places[input].push((node.op(), place));
            }
        }
    }
    let own = |(input, places): (usize, &Vec<(&Op, usize)>)| {
        let weight = || weight(program, step, input);
        let is_right = |&(op, place): &(&Op, usize)| matches!((op, place), (Op::MatMul, 1));
        let matrices = match places[..] {
            [(Op::Rnn(attrs), 1)] => directions(&weight()?, &[0..cell(attrs.cell).gates()], attrs)?,
            [(Op::Rnn(attrs), 2)] => directions(&weight()?, cell(attrs.cell).parts(), attrs)?,
            [_, ..] if places.iter().all(is_right) && wants_rows(step) => vec![single(weight()?)?],
            _ => return None,
        };
        Some((input, matrices))
    };
    places.iter().enumerate().filter_map(own).collect()
}

/// Whether a step's products are for this crate's kernel: those of fused execution, but for one that is written
/// through strides and nothing else.
fn wants_rows(step: &Step) -> bool {
    let operations = step.body.len() - step.body.inputs().len();
    let row_major = step.outputs.iter().all(|output| output.view.is_contiguous());
    step.executor == Executor::Template && (operations > 1 || row_major)
}

/// A step's input, if it is a weight of numbers that are multiplied in single precision, each of which lies in a
/// place of its own.
fn weight(program: &Program, step: &Step, input: usize) -> Option<BoundOperand> {
    let operand = &step.inputs[input];
    let buffer = program.buffer(operand.buffer);
    let number = matches!(buffer.dtype, DType::F32 | DType::F16 | DType::BF16);
    if !number || !matches!(buffer.kind, BufferKind::Weight(_)) {
        return None;
    }
    let weight = bind_operand(operand, &Bindings::default()).ok()?;
    let mut axes = weight.shape.iter().zip(&weight.strides);
    axes.all(|(&size, &stride)| size <= 1 || stride != 0).then_some(weight)
}

/// A weight as one matrix, if it is one.
fn single(mut weight: BoundOperand) -> Option<BoundOperand> {
    let lead = weight.shape.len().checked_sub(2)?;
    weight.strides.drain(..lead);
    let one = weight.shape.drain(..lead).all(|size| size == 1);
    one.then_some(weight)
}

/// The kernel's cell.
pub(crate) fn cell(cell: RnnCell) -> Cell {
    match cell {
        RnnCell::Lstm { input_forget } => Cell::Lstm { input_forget },
        RnnCell::Gru { linear_before_reset } => Cell::Gru { linear_before_reset },
        RnnCell::Plain => Cell::Plain,
    }
}

/// A recurrent layer's weights `[d, gates·h, k]` as matrices `[k, columns]`, one for each direction and range of
/// gates; `None` for other shapes.
pub(crate) fn directions(
    weight: &BoundOperand,
    parts: &[Range<usize>],
    attrs: &RnnAttrs,
) -> Option<Vec<BoundOperand>> {
    let (&[count, rows, depth], &[apart, down, across]) = (&weight.shape[..], &weight.strides[..])
    else {
        return None;
    };
    if rows != cell(attrs.cell).gates() * attrs.hidden {
        return None;
    }
    let of = |direction: usize, gates: &Range<usize>| {
        let first = direction as isize * apart + (gates.start * attrs.hidden) as isize * down;
        BoundOperand {
            buffer: weight.buffer,
            offset: (weight.offset as isize + first) as usize,
            shape: vec![depth, gates.len() * attrs.hidden],
            strides: vec![across, down],
        }
    };
    let each = |direction| parts.iter().map(move |gates| of(direction, gates));
    Some((0..count).flat_map(each).collect())
}

fn sizes(matrix: &BoundOperand) -> [usize; 2] {
    [matrix.shape[0], matrix.shape[1]]
}

/// Lays a matrix out; `bytes` are those of its buffer.
///
/// # Errors
/// As [`Packed::new`], and [`Error::Unsupported`] for elements that are not multiplied in single precision.
pub(crate) fn pack(matrix: &BoundOperand, bytes: &[u8], dtype: DType) -> Result<Packed> {
    let span = matrix.span();
    let start = span.start;
    let elements: Cow<'_, [f32]> = match dtype {
        DType::F32 => Cow::Borrowed(&cast_slice(bytes)[span]),
        DType::F16 => Cow::Owned(widened::<f16>(&cast_slice(bytes)[span])?),
        DType::BF16 => Cow::Owned(widened::<bf16>(&cast_slice(bytes)[span])?),
        _ => return Err(Error::Unsupported { what: "an element type" }),
    };
    let [depth, columns] = sizes(matrix);
    let [row, column] = [matrix.strides[0], matrix.strides[1]];
    let offset = matrix.offset.saturating_sub(start);
    let at = Strides { offset, batch: &[], row, column };
    Packed::new(Matrix { data: &elements, at }, depth, columns)
}

#[cfg(test)]
mod tests;
