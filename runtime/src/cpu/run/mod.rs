//! Running one step: from operands to the kernels' slices.

mod attention;
mod conv;
mod indexed;
mod integers;
mod matmul;
mod numbers;
mod resize;
mod rnn;
mod rows;
mod select;
mod wide;

pub(crate) use attention::run_attention;
pub(crate) use conv::{
    conv_algorithm, run_conv, run_conv_layer, run_conv_transpose, run_integer_conv, run_pool,
};
pub(crate) use indexed::{Named, run_gather_at, run_scatter_at};
pub(crate) use integers::run_integer_layer;
pub(crate) use matmul::{run_integer_matmul, run_matmul};
pub(crate) use numbers::{run_arg_reduce, run_cumulative, run_fold, run_iota, run_size, run_top_k};
pub(crate) use resize::{AllTaps, all_taps, run_resize};
pub(crate) use rnn::run_rnn;
pub(crate) use rows::{run_norm, run_reduce, run_rows, run_softmax};
pub(crate) use select::{
    Tables, nearest_tables, pad_tables, run_concat, run_gather, run_nearest, run_pad,
};

use super::kernels::copy::copy_between;
use super::kernels::view::{check_size, row_major};
use super::memory::{Input, Io, Output, Storage};
use super::scratch::{self, Buffer, Few};
use crate::bind::BoundOperand;
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use bytes::Bytes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::Step;

/// Calls a function generic over the storage of elements of this many bytes.
macro_rules! by_size {
    ($size:expr, $call:ident ( $($argument:expr),* )) => {
        match $size {
            1 => $call::<u8>($($argument),*),
            2 => $call::<u16>($($argument),*),
            4 => $call::<u32>($($argument),*),
            _ => $call::<u64>($($argument),*),
        }
    };
}
pub(crate) use by_size;

pub(crate) fn run_copy(mut io: Io<'_>) -> Result<()> {
    let (bytes, from, dtype) = io.input(0)?;
    by_size!(dtype.size(), copy(&mut io.outputs[0], bytes, from))
}

fn copy<T: Pod + Default + Send + Sync>(
    output: &mut Output<'_>,
    bytes: &[u8],
    from: &BoundOperand,
) -> Result<()> {
    let to = output.operand;
    let (target, source) = (cast_slice_mut::<u8, T>(output.bytes), cast_slice::<u8, T>(bytes));
    copy_between(target, to.offset, &to.strides, &to.shape, source, from.offset, &from.strides)
}

/// Runs with the bytes of every output in row-major order: what lies otherwise is written beside its place
/// and moved there.
///
/// # Errors
/// What `run` says, and [`Error::Memory`].
pub(crate) fn with_row_major(
    outputs: &mut [Output<'_>],
    run: impl FnOnce(Few<&mut [u8]>) -> Result<()>,
) -> Result<()> {
    let mut beside: Few<Option<(Buffer<u8>, BoundOperand)>> = Few::new();
    for Output { operand, dtype, .. } in &*outputs {
        let same = operand.offset == 0 && lies_row_major(operand);
        let len: usize = operand.shape.iter().product();
        beside.push(match same {
            true => None,
            false => {
                let bytes = scratch::take(len * dtype.size())?;
                Some((bytes, row_major_operand(operand, &operand.shape)))
            }
        });
    }
    let mut slices = Few::new();
    for (output, beside) in outputs.iter_mut().zip(&mut beside) {
        let len: usize = output.operand.shape.iter().product();
        slices.push(match beside {
            Some((bytes, _)) => &mut **bytes,
            None => &mut output.bytes[..len * output.dtype.size()],
        });
    }
    run(slices)?;
    for (output, beside) in outputs.iter_mut().zip(&beside) {
        if let Some((bytes, from)) = beside {
            by_size!(output.dtype.size(), copy(output, bytes, from))?;
        }
    }
    Ok(())
}

/// The step's body by the reference evaluator, over copies of its inputs.
pub(crate) fn run_reference(step: &Step, mut io: Io<'_>, bindings: &Bindings) -> Result<()> {
    let mut inputs = Vec::with_capacity(io.inputs.len());
    for i in 0..io.inputs.len() {
        inputs.push(match io.inputs.get(i) {
            Some(Input::Bytes { bytes, operand, dtype }) => owned(bytes, operand, dtype)?,
            Some(Input::Overwritten { output }) => {
                // Elements of another type of the same size may be written over it.
                let Output { bytes, operand, .. } = &io.outputs[output];
                owned(bytes, operand, step.body.ty(step.body.inputs()[i].value()).dtype)?
            }
            Some(Input::Prepacked) | None => {
                return Err(Error::Unsupported { what: "a weight as it lies" });
            }
        });
    }
    let results = evaluate_with(&step.body, &inputs, bindings)?;
    io.outputs.iter_mut().zip(&results).try_for_each(|(output, result)| leave(output, result))
}

/// Writes a result where an operand views it.
pub(crate) fn leave(output: &mut Output<'_>, result: &Tensor) -> Result<()> {
    for (&expected, &found) in output.operand.shape.iter().zip(result.shape()) {
        check_size("size of a result", expected, found)?;
    }
    let from = row_major_operand(output.operand, result.shape());
    by_size!(output.dtype.size(), copy(output, result.bytes(), &from))
}

/// A row-major copy of what an operand views.
pub(crate) fn owned(bytes: &[u8], operand: &BoundOperand, dtype: DType) -> Result<Tensor> {
    let len: usize = operand.shape.iter().product();
    let mut copied = Storage::new(len * dtype.size())?;
    let to = row_major_operand(operand, &operand.shape);
    let mut output = Output { bytes: copied.bytes_mut(), operand: &to, dtype };
    by_size!(dtype.size(), copy(&mut output, bytes, operand))?;
    Ok(Tensor::new(dtype, operand.shape.clone(), Bytes::from_owner(copied))?)
}

fn row_major_operand(like: &BoundOperand, shape: &[usize]) -> BoundOperand {
    let strides = row_major(shape).into_vec();
    BoundOperand { buffer: like.buffer, offset: 0, shape: shape.to_vec(), strides }
}

/// Whether elements lie in row-major order.
fn lies_row_major(operand: &BoundOperand) -> bool {
    let strides = row_major(&operand.shape);
    let axes = strides.iter().zip(&operand.strides).zip(&operand.shape);
    axes.into_iter().all(|((a, b), &size)| size == 1 || a == b)
}

/// Sizes before, along and after an axis.
fn around(shape: &[usize], axis: usize) -> [usize; 3] {
    let outer = shape[..axis].iter().product();
    [outer, shape[axis], shape[axis + 1..].iter().product()]
}

/// The number of the step's input that its operation reads in this place, if it reads one.
///
/// # Errors
/// [`Error::Unsupported`] for a constant inside the body.
pub(crate) fn input_number(step: &Step, place: usize) -> Result<Option<usize>> {
    let (_, node) = step.body.nodes().last().ok_or(Error::Unsupported { what: "an empty body" })?;
    let Some(value) = node.inputs().get(place).copied().flatten() else { return Ok(None) };
    let number = step.body.inputs().iter().position(|input| input.value() == value);
    number.map(Some).ok_or(Error::Unsupported { what: "a constant operand" })
}

/// The number of a required input, as [`input_number`].
fn required_input(step: &Step, place: usize) -> Result<usize> {
    input_number(step, place)?.ok_or(Error::Unsupported { what: "a missing operand" })
}

/// The number of the step's output that takes this output of its operation, if something reads it.
fn output_number(step: &Step, place: u32) -> Option<usize> {
    step.body.outputs().iter().position(|(_, value)| value.output == place)
}
