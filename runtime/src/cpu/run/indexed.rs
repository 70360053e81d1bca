//! Elements at places that indices name.

use super::numbers::with_numbers;
use super::{Io, by_size, required_input, with_row_major};
use crate::cpu::kernels::indexed::{element_places, gather_at, scatter_at, slice_places};
use crate::cpu::kernels::number::{Number, with_number};
use crate::cpu::scratch::{self, Buffer};
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::op::Combine;
use graphene_fusion::program::Step;

/// What indices name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// An element along this axis, for each index.
    Elements { axis: usize },
    /// A slice behind so many axes that indices share with the tensor, for each row of indices.
    Slices { batch: usize },
}

/// Places in the first operand of the operation that its second one names, and how many elements lie at each.
fn places(step: &Step, io: &Io<'_>, named: Named) -> Result<(Buffer<usize>, usize)> {
    let (_, from, _) = io.dense_bytes(required_input(step, 0)?)?;
    let (indices, shape) = io.numbers::<i64>(required_input(step, 1)?)?;
    match named {
        Named::Elements { axis } => {
            let mut places = scratch::take(indices.len())?;
            element_places(&mut places, &indices, shape, from, axis)?;
            Ok((places, 1))
        }
        Named::Slices { batch } => {
            let named_by = shape.split_last();
            let (&depth, rows) = named_by.ok_or(Error::Unsupported { what: "no indices" })?;
            let mut places = scratch::take(rows.iter().product())?;
            let inner = slice_places(&mut places, &indices, depth, from, batch)?;
            Ok((places, inner))
        }
    }
}

/// Runs a gather of what indices name.
pub(crate) fn run_gather_at(step: &Step, mut io: Io<'_>, named: Named) -> Result<()> {
    let (places, inner) = places(step, &io, named)?;
    let (source, _, dtype) = io.dense_bytes(required_input(step, 0)?)?;
    with_row_major(&mut io.outputs, |results| {
        results.into_iter().try_for_each(|result| {
            by_size!(dtype.size(), gather_bits(result, source, &places, inner))
        })
    })
}

fn gather_bits<T: Pod + Send + Sync>(
    result: &mut [u8],
    source: &[u8],
    places: &[usize],
    inner: usize,
) -> Result<()> {
    gather_at(cast_slice_mut::<u8, T>(result), cast_slice(source), places, inner)
}

/// Runs a combination of updates with what indices name. Like in the reference evaluator, numbers are rounded once, when
/// all updates are in.
pub(crate) fn run_scatter_at(
    step: &Step,
    mut io: Io<'_>,
    named: Named,
    combine: Combine,
) -> Result<()> {
    let (places, inner) = places(step, &io, named)?;
    let places = (&*places, inner);
    let (x, _, dtype) = io.dense_bytes(required_input(step, 0)?)?;
    let updates = required_input(step, 2)?;
    if combine == Combine::Replace {
        let (updates, ..) = io.dense_bytes(updates)?;
        return with_row_major(&mut io.outputs, |results| {
            results
                .into_iter()
                .try_for_each(|result| by_size!(dtype.size(), replace(result, x, updates, places)))
        });
    }
    with_number!(dtype, N => {
        let updates = io.numbers::<N>(updates)?.0;
        let x = io.numbers::<N>(required_input(step, 0)?)?.0;
        with_row_major(&mut io.outputs, |results| {
            results.into_iter().try_for_each(|result| {
                with_numbers(dtype, result, |y| combine_at(y, &x, &updates, places, combine))
            })
        })
    })
}

fn replace<T: Pod + Send + Sync>(
    result: &mut [u8],
    x: &[u8],
    updates: &[u8],
    places: (&[usize], usize),
) -> Result<()> {
    let result = cast_slice_mut::<u8, T>(result);
    scatter_at(result, cast_slice(x), cast_slice(updates), places, |_, new| new)
}

fn combine_at<N: Number>(
    result: &mut [N],
    x: &[N],
    updates: &[N],
    places: (&[usize], usize),
    combine: Combine,
) -> Result<()> {
    match combine {
        Combine::Replace => scatter_at(result, x, updates, places, |_, new| new),
        Combine::Add => scatter_at(result, x, updates, places, N::plus),
        Combine::Mul => scatter_at(result, x, updates, places, N::times),
        Combine::Min => scatter_at(result, x, updates, places, N::smaller),
        Combine::Max => scatter_at(result, x, updates, places, N::larger),
    }
}
