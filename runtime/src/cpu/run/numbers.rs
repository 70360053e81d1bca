//! Folds and orders of elements of any type, as numbers: exactly what the reference evaluator computes.

use super::{Io, Output, around, by_size, output_number, with_row_major};
use crate::cpu::kernels::arg::arg_reduce;
use crate::cpu::kernels::cumulative::{Cumulative, cumulative};
use crate::cpu::kernels::fold::fold;
use crate::cpu::kernels::indexed::gather_at;
use crate::cpu::kernels::number::{Number, decode, encode, with_number};
use crate::cpu::kernels::softmax::softmax_f64;
use crate::cpu::kernels::top_k::top_k;
use crate::cpu::kernels::view::check_size;
use crate::cpu::scratch::{self, Numbers};
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{CumulativeOp, ReduceOp};
use graphene_fusion::program::Step;

impl<'a> Io<'a> {
    /// The bytes of a row-major input, its shape and type.
    ///
    /// # Errors
    /// As [`input`](Self::input).
    pub(super) fn dense_bytes(&self, i: usize) -> Result<(&'a [u8], &'a [usize], DType)> {
        let (bytes, operand, dtype) = self.input(i)?;
        let (len, size): (usize, _) = (operand.shape.iter().product(), dtype.size());
        Ok((&bytes[operand.offset * size..][..len * size], &operand.shape, dtype))
    }

    /// A row-major input as numbers, and its shape.
    ///
    /// # Errors
    /// As [`input`](Self::input); [`Error::Memory`].
    pub(super) fn numbers<N: Number>(&self, i: usize) -> Result<(Numbers<'a, N>, &'a [usize])> {
        let (bytes, shape, dtype) = self.dense_bytes(i)?;
        if dtype == N::OWN {
            return Ok((Numbers::Lent(cast_slice(bytes)), shape));
        }
        let mut numbers = scratch::take(bytes.len() / dtype.size())?;
        decode::<N>(dtype, bytes, &mut numbers);
        Ok((Numbers::Own(numbers), shape))
    }
}

/// Runs with the numbers that become elements of a type: where these lie, or beside.
///
/// # Errors
/// What `run` says; [`Error::Memory`].
pub(super) fn with_numbers<N: Number>(
    dtype: DType,
    bytes: &mut [u8],
    run: impl FnOnce(&mut [N]) -> Result<()>,
) -> Result<()> {
    if dtype == N::OWN {
        return run(cast_slice_mut(bytes));
    }
    let mut numbers = scratch::take(bytes.len() / dtype.size())?;
    run(&mut numbers)?;
    encode::<N>(dtype, &numbers, bytes);
    Ok(())
}

/// The same for the step's only output.
fn with_result<N: Number>(
    outputs: &mut [Output<'_>],
    mut run: impl FnMut(&mut [N]) -> Result<()>,
) -> Result<()> {
    let dtype = outputs.first().ok_or(Error::Unsupported { what: "no output" })?.dtype;
    with_row_major(outputs, |results| {
        results.into_iter().try_for_each(|result| with_numbers(dtype, result, &mut run))
    })
}

pub(crate) fn run_cumulative(
    io: Io<'_>,
    op: CumulativeOp,
    axis: usize,
    kind: [bool; 2],
) -> Result<()> {
    with_number!(io.input(0)?.2, N => cumulate::<N>(io, op, axis, kind))
}

fn cumulate<N: Number>(
    mut io: Io<'_>,
    op: CumulativeOp,
    axis: usize,
    [exclusive, reverse]: [bool; 2],
) -> Result<()> {
    let (bytes, shape, dtype) = io.dense_bytes(0)?;
    let (initial, meet): (_, fn(N, N) -> N) = match op {
        CumulativeOp::Sum => (N::ZERO, N::plus),
        CumulativeOp::Prod => (N::ONE, N::times),
    };
    with_result(&mut io.outputs, |x| {
        check_size("length of running sums", bytes.len() / dtype.size(), x.len())?;
        decode(dtype, bytes, x);
        cumulative(Cumulative { initial, meet, exclusive, reverse }, x, around(shape, axis))
    })
}

/// Runs a softmax of real numbers that single precision does not stand for, or its logarithm.
pub(super) fn run_softmax_f64(mut io: Io<'_>, axis: usize, log: bool) -> Result<()> {
    let (bytes, shape, dtype) = io.dense_bytes(0)?;
    with_result(&mut io.outputs, |x: &mut [f64]| {
        check_size("length of a softmax", bytes.len() / dtype.size(), x.len())?;
        decode(dtype, bytes, x);
        softmax_f64(x, around(shape, axis), log)
    })
}

/// Reals of up to 32 bits are compared as such.
pub(crate) fn run_arg_reduce(mut io: Io<'_>, axis: usize, largest: bool, last: bool) -> Result<()> {
    match io.input(0)?.2 {
        DType::F32 | DType::F16 | DType::BF16 => {
            let (source, shape) = io.reals(0)?;
            arg_reduce_of(&mut io.outputs, &source, around(shape, axis), largest, last)
        }
        dtype => with_number!(dtype, N => {
            let (source, shape) = io.numbers::<N>(0)?;
            arg_reduce_of(&mut io.outputs, &source, around(shape, axis), largest, last)
        }),
    }
}

fn arg_reduce_of<T: Pod + PartialOrd + Send + Sync>(
    outputs: &mut [Output<'_>],
    source: &[T],
    sizes: [usize; 3],
    largest: bool,
    last: bool,
) -> Result<()> {
    with_row_major(outputs, |results| {
        results
            .into_iter()
            .try_for_each(|result| arg_reduce(cast_slice_mut(result), source, sizes, largest, last))
    })
}

/// Runs a reduction of any type over any axes.
pub(crate) fn run_fold(mut io: Io<'_>, op: ReduceOp, axes: &[usize]) -> Result<()> {
    let (bytes, _, dtype) = io.dense_bytes(0)?;
    if axes.is_empty() {
        // Over no axes a reduction is the identity.
        return with_row_major(&mut io.outputs, |results| {
            results.into_iter().try_for_each(|result| {
                check_size("bytes of a reduction", bytes.len(), result.len())?;
                result.copy_from_slice(bytes);
                Ok(())
            })
        });
    }
    match op {
        ReduceOp::L2 | ReduceOp::LogSum | ReduceOp::LogSumExp => fold_reals(io, op, axes),
        ReduceOp::Mean => with_number!(dtype, N => fold_mean::<N>(io, axes)),
        ReduceOp::Sum
        | ReduceOp::Prod
        | ReduceOp::Max
        | ReduceOp::Min
        | ReduceOp::L1
        | ReduceOp::SumSquare => with_number!(dtype, N => fold_numbers::<N>(io, op, axes)),
    }
}

fn fold_numbers<N: Number>(mut io: Io<'_>, op: ReduceOp, axes: &[usize]) -> Result<()> {
    let (x, shape) = io.numbers::<N>(0)?;
    let (lowest, highest) = N::limits(io.outputs[0].dtype);
    let (initial, meet): (N, fn(N, N) -> N) = match op {
        ReduceOp::Prod => (N::ONE, N::times),
        ReduceOp::Max => (lowest, N::larger),
        ReduceOp::Min => (highest, N::smaller),
        ReduceOp::L1 => (N::ZERO, |sum, x| sum.plus(x.magnitude())),
        ReduceOp::SumSquare => (N::ZERO, |sum, x| sum.plus(x.times(x))),
        ReduceOp::Sum | ReduceOp::Mean | ReduceOp::L2 | ReduceOp::LogSum | ReduceOp::LogSumExp => {
            (N::ZERO, N::plus)
        }
    };
    with_result(&mut io.outputs, |y| fold(y, &x, shape, axes, initial, |y, x, _| meet(y, x)))
}

fn fold_mean<N: Number>(mut io: Io<'_>, axes: &[usize]) -> Result<()> {
    let (x, shape) = io.numbers::<N>(0)?;
    let count = axes.iter().map(|&axis| shape[axis]).product();
    with_result(&mut io.outputs, |y: &mut [N]| {
        let mut totals = scratch::take(y.len())?;
        fold(&mut totals, &x, shape, axes, N::NOTHING, |total, x: N, _| x.add_to(total))?;
        y.iter_mut().zip(&*totals).for_each(|(y, &total)| *y = N::mean(total, count));
        Ok(())
    })
}

/// Reductions that compute with real numbers, whatever the type is.
fn fold_reals(mut io: Io<'_>, op: ReduceOp, axes: &[usize]) -> Result<()> {
    let (bytes, shape, dtype) = io.dense_bytes(0)?;
    let mut x = scratch::take::<f64>(bytes.len() / dtype.size())?;
    decode(dtype, bytes, &mut x);
    with_result(&mut io.outputs, |y: &mut [f64]| match op {
        ReduceOp::L2 => {
            fold(y, &x, shape, axes, 0.0, |sum, x, _| sum + x * x)?;
            y.iter_mut().for_each(|y| *y = y.sqrt());
            Ok(())
        }
        ReduceOp::LogSumExp => {
            let mut shifts = scratch::take(y.len())?;
            fold(&mut shifts, &x, shape, axes, f64::NEG_INFINITY, |a, x, _| a.larger(x))?;
            let finite = |shift: &mut f64| *shift = if shift.is_finite() { *shift } else { 0.0 };
            shifts.iter_mut().for_each(finite);
            let shifts = &*shifts;
            fold(y, &x, shape, axes, 0.0, |sum, x, place| sum + libm::exp(x - shifts[place]))?;
            y.iter_mut().zip(shifts).for_each(|(y, shift)| *y = libm::log(*y) + shift);
            Ok(())
        }
        _ => {
            fold(y, &x, shape, axes, 0.0, |sum, x, _| sum + x)?;
            y.iter_mut().for_each(|y| *y = libm::log(*y));
            Ok(())
        }
    })
}

/// Runs a choice of the largest elements along an axis, or the smallest.
pub(crate) fn run_top_k(step: &Step, mut io: Io<'_>, axis: usize, largest: bool) -> Result<()> {
    let (bytes, shape, dtype) = io.dense_bytes(0)?;
    let sizes = around(shape, axis);
    let k = io.outputs.first().map_or(0, |output| output.operand.shape[axis]);
    let [outer, size, inner] = sizes;
    let mut ranks = scratch::take::<usize>(outer * inner * k)?;
    with_number!(dtype, N => top_k(&mut ranks, &io.numbers::<N>(0)?.0, sizes, k, largest)?);
    // Ranks come column by column, results row by row.
    let mut places = scratch::take::<usize>(ranks.len())?;
    let of_row = |row: usize| (row / k * size * inner, (row / k * inner, row % k));
    let rows = places.chunks_mut(inner.max(1)).zip(0..);
    let (values, indices) = (output_number(step, 0), output_number(step, 1));
    let ranked = |(column, rank): (usize, usize), i: usize| ranks[(column + i) * k + rank];
    if values.is_some() {
        rows.for_each(|(places, row)| {
            let (block, first) = of_row(row);
            let each = places.iter_mut().enumerate();
            each.for_each(|(i, place)| *place = block + ranked(first, i) * inner + i);
        });
    }
    with_row_major(&mut io.outputs, |mut results| {
        if let Some(values) = values {
            by_size!(dtype.size(), values_at(results[values], bytes, &places))?;
        }
        if let Some(indices) = indices {
            let rows = cast_slice_mut::<u8, i64>(results[indices]).chunks_mut(inner.max(1));
            rows.zip(0..).for_each(|(indices, row)| {
                let each = indices.iter_mut().enumerate();
                each.for_each(|(i, index)| *index = ranked(of_row(row).1, i) as i64);
            });
        }
        Ok(())
    })
}

fn values_at<T: Pod + Send + Sync>(to: &mut [u8], bytes: &[u8], places: &[usize]) -> Result<()> {
    gather_at(cast_slice_mut::<u8, T>(to), cast_slice(bytes), places, 1)
}

/// Runs `0, 1, …`.
pub(crate) fn run_iota(mut io: Io<'_>) -> Result<()> {
    with_result(&mut io.outputs, |y: &mut [i64]| {
        y.iter_mut().zip(0..).for_each(|(y, i)| *y = i);
        Ok(())
    })
}

/// Runs a size that is known when shapes are bound.
pub(crate) fn run_size(mut io: Io<'_>, size: i64) -> Result<()> {
    with_result(&mut io.outputs, |y: &mut [i64]| {
        y.fill(size);
        Ok(())
    })
}
