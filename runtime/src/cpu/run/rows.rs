//! Softmax, normalisations and reductions, alone and in groups.

use super::numbers::run_softmax_f64;
use super::wide::Wide;
use super::{
    around, by_size, copy, input_number, lies_row_major, output_number, row_major_operand,
};
use crate::bind::BoundOperand;
use crate::cpu::kernels::norm::{Affine, Norm, norm};
use crate::cpu::kernels::reduce::{Reduce, reduce};
use crate::cpu::kernels::softmax::{Softmax, softmax, softmax_half};
use crate::cpu::kernels::view::row_major;
use crate::cpu::memory::{Input, Io, Output};
use crate::cpu::rows::{BoundRows, RowInput, RowProgram};
use crate::cpu::scratch::{self, Buffer, Few};
use crate::error::Result;
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::HalfType;
use graphene_fusion::program::Step;
use graphene_fusion::view::channels_last;

pub(crate) fn run_rows(program: &RowProgram, bound: &BoundRows, mut io: Io<'_>) -> Result<()> {
    let mut inputs = Few::new();
    for i in 0..io.inputs.len() {
        let (bytes, operand, dtype) = io.input(i)?;
        inputs.push(RowInput { bytes, operand, dtype });
    }
    // Outputs that do not lie in row-major order are written beside and moved.
    let mut beside: Few<Option<(Buffer<u8>, BoundOperand)>> = Few::new();
    for Output { operand, dtype, .. } in &io.outputs {
        let len: usize = operand.shape.iter().product();
        let moves = len > 0 && row_major(&operand.shape)[..] != operand.strides;
        beside.push(match moves {
            true => {
                let bytes = scratch::take(len * dtype.size())?;
                Some((bytes, row_major_operand(operand, &operand.shape)))
            }
            false => None,
        });
    }
    let outputs = io.outputs.iter_mut().zip(&mut beside).map(|(output, beside)| {
        let dtype = output.dtype;
        let bytes = match beside {
            Some((bytes, _)) => &mut **bytes,
            None => output.dense_bytes(),
        };
        (bytes, dtype)
    });
    program.run(bound, &inputs, outputs.collect())?;
    for (output, beside) in io.outputs.iter_mut().zip(&beside) {
        if let Some((bytes, dense)) = beside {
            by_size!(output.dtype.size(), copy(output, bytes, dense))?;
        }
    }
    Ok(())
}

pub(crate) fn run_softmax(mut io: Io<'_>, axis: usize, log: bool) -> Result<()> {
    if !matches!(io.input(0)?.2, DType::F32 | DType::F16 | DType::BF16) {
        return run_softmax_f64(io, axis, log);
    }
    let (source, shape) = io.reals(0)?;
    let half = HalfType::of(io.outputs[0].dtype);
    let mut y = Wide::new(&mut io.outputs[0])?;
    let shape = around(shape, axis);
    match (log, half) {
        (false, Some(half)) => softmax_half(half, y.elements(), &source, shape)?,
        (false, None) => softmax(Softmax::Plain, y.elements(), &source, shape)?,
        (true, _) => softmax(Softmax::Log, y.elements(), &source, shape)?,
    }
    y.finish();
    Ok(())
}

pub(crate) fn run_norm(
    step: &Step,
    mut io: Io<'_>,
    axis: usize,
    epsilon: f32,
    rms: bool,
) -> Result<()> {
    let (source, shape) = match io.inputs.get(0) {
        Some(Input::Overwritten { output }) if io.outputs[output].dtype == DType::F32 => {
            (None, io.inputs.shape(0))
        }
        _ => io.reals(0).map(|(elements, shape)| (Some(elements), shape))?,
    };
    let n: usize = shape[axis..].iter().product();
    let kind = if rms { Norm::Rms } else { Norm::Layer };
    let operand = |place: usize| match input_number(step, place)? {
        Some(number) => io.reals(number).map(|(elements, _)| Some(elements)),
        None => Ok(None),
    };
    let (scale, bias) = (operand(1)?, operand(2)?);
    let affine = Affine { scale: scale.as_deref(), bias: bias.as_deref(), epsilon };
    // Outputs are those of the operation that something reads: y, and rarely the statistics.
    let (rows, len) = (shape[..axis].iter().product(), shape.iter().product());
    let stats_are_read = (1..3).any(|place| output_number(step, place).is_some());
    let lens = if stats_are_read { [len, rows, rows] } else { [len, 0, 0] };
    let mut outputs = Wide::all(step, &mut io.outputs, lens)?;
    let [y, mean, inverse] = &mut outputs;
    let stats = stats_are_read.then(|| (mean.elements(), inverse.elements()));
    norm(kind, y.elements(), source.as_deref(), n, affine, stats)?;
    outputs.into_iter().for_each(Wide::finish);
    Ok(())
}

pub(crate) fn run_reduce(mut io: Io<'_>, op: Reduce, axes: &[usize]) -> Result<()> {
    let (_, operand, _) = io.input(0)?;
    let rank = operand.shape.len();
    if !lies_row_major(operand) && axes.iter().copied().eq(2..rank) {
        // Images whose channels are innermost, reduced over all pixels.
        let source = io.dense::<f32>(0)?.0;
        let shape: Few<usize> =
            channels_last(rank).iter().map(|&axis| operand.shape[axis]).collect();
        let pixels: Few<usize> = (1..rank - 1).collect();
        return reduce(op, io.outputs[0].dense(), source, &shape, &pixels);
    }
    let (source, shape) = io.reals(0)?;
    let mut y = Wide::new(&mut io.outputs[0])?;
    if axes.is_empty() {
        // Over no axes a reduction is the identity, whatever it does with a row of one.
        y.elements().copy_from_slice(&source);
    } else {
        reduce(op, y.elements(), &source, shape, axes)?;
    }
    y.finish();
    Ok(())
}
