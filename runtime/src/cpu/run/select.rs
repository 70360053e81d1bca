//! Elements chosen, put side by side, and put elsewhere.

use super::{around, by_size, input_number, required_input, with_row_major};
use crate::bind::{BoundOperand, BoundStep};
use crate::cpu::kernels::copy::copy_between;
use crate::cpu::kernels::gather::gather;
use crate::cpu::kernels::place::place;
use crate::cpu::memory::Io;
use crate::cpu::scratch::{self, Few, Numbers};
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::{nearest_sources, pad_sources};
use graphene_frontend::graph::ValueId;
use graphene_frontend::op::{NearestMode, PadMode, ResizeAttrs};
use graphene_fusion::program::Step;

pub(crate) fn run_gather(step: &Step, mut io: Io<'_>, axis: usize) -> Result<()> {
    let (from, at) = (required_input(step, 0)?, required_input(step, 1)?);
    let (_, table, dtype) = io.input(from)?;
    let indices = match io.input(at)?.2 {
        DType::I32 => {
            let narrow = io.dense::<i32>(at)?.0;
            let mut wide = scratch::take::<i64>(narrow.len())?;
            wide.iter_mut().zip(narrow).for_each(|(to, &index)| *to = index.into());
            Numbers::Own(wide)
        }
        _ => Numbers::Lent(io.dense::<i64>(at)?.0),
    };
    let sizes = around(&table.shape, axis);
    by_size!(dtype.size(), gather_of(&mut io, from, sizes, &indices))
}

fn gather_of<T: Pod + Send + Sync>(
    io: &mut Io<'_>,
    from: usize,
    sizes: [usize; 3],
    indices: &[i64],
) -> Result<()> {
    let (source, _) = io.dense::<T>(from)?;
    gather(io.outputs[0].dense::<T>(), source, sizes, indices)
}

/// For each axis of a result the distances of its sources from the operand's first element; none where there is none.
pub(crate) type Tables = Vec<Vec<Option<isize>>>;

/// Where the elements of a padded tensor come from.
///
/// # Errors
/// As the reference has them for such sizes.
pub(crate) fn pad_tables(
    step: &Step,
    bound: &BoundStep,
    mode: PadMode,
    before: &[Dim],
    bindings: &Bindings,
) -> Result<Tables> {
    let from = &bound.inputs[required_input(step, 0)?];
    let before = before.iter().map(|dim| dim.eval(bindings)).collect::<Result<Vec<_>, _>>()?;
    let to = &bound.outputs[0].shape;
    let sources = pad_sources(&from.shape, to, mode, &before).map_err(Box::new)?;
    Ok(tables(sources, from))
}

/// Where the elements of a resized tensor come from; nowhere if there are none.
///
/// # Errors
/// [`Error::Unsupported`] for a resize of nothing to something.
pub(crate) fn nearest_tables(
    step: &Step,
    bound: &BoundStep,
    attrs: &ResizeAttrs,
    mode: NearestMode,
) -> Result<Tables> {
    let (from, to) = (&bound.inputs[required_input(step, 0)?], &bound.outputs[0].shape);
    if to.contains(&0) {
        return Ok(to.iter().map(|&size| vec![None; size]).collect());
    }
    if from.shape.contains(&0) {
        return Err(Error::Unsupported { what: "a resize of nothing" });
    }
    let sources = nearest_sources(&from.shape, to, attrs, mode).map_err(Box::new)?;
    Ok(tables(sources.into_iter().map(|places| places.into_iter().map(Some).collect()), from))
}

fn tables(sources: impl IntoIterator<Item = Vec<Option<usize>>>, from: &BoundOperand) -> Tables {
    let distances = |(places, &stride): (Vec<Option<usize>>, &isize)| {
        places.into_iter().map(|place| place.map(|place| place as isize * stride)).collect()
    };
    sources.into_iter().zip(&from.strides).map(distances).collect()
}

/// Runs padding: what comes from nowhere is the second operand, or 0.
pub(crate) fn run_pad(step: &Step, io: Io<'_>, tables: &Tables) -> Result<()> {
    let fill = input_number(step, 1)?;
    run_placed(step, io, tables, fill)
}

/// Runs a resize to nearest elements.
pub(crate) fn run_nearest(step: &Step, io: Io<'_>, tables: &Tables) -> Result<()> {
    run_placed(step, io, tables, None)
}

fn run_placed(step: &Step, mut io: Io<'_>, tables: &Tables, fill: Option<usize>) -> Result<()> {
    let (_, _, dtype) = io.input(required_input(step, 0)?)?;
    by_size!(dtype.size(), placed(step, &mut io, tables, fill))
}

/// The result's elements from those places of the first operand; of the operand of number `fill` where there is none, or 0.
fn placed<T: Pod + Default + Send + Sync>(
    step: &Step,
    io: &mut Io<'_>,
    tables: &Tables,
    fill: Option<usize>,
) -> Result<()> {
    let (bytes, from, _) = io.input(required_input(step, 0)?)?;
    let source = cast_slice::<u8, T>(bytes);
    let fill = match fill {
        Some(number) => {
            let (bytes, operand, _) = io.input(number)?;
            cast_slice::<u8, T>(bytes)[operand.offset]
        }
        None => T::default(),
    };
    with_row_major(&mut io.outputs, |results| {
        for result in results {
            place(cast_slice_mut(result), source, from.offset, tables, fill)?;
        }
        Ok(())
    })
}

pub(crate) fn run_concat(step: &Step, mut io: Io<'_>, axis: usize) -> Result<()> {
    let size = io.outputs[0].dtype.size();
    let (_, node) = step.body.nodes().last().ok_or(Error::Unsupported { what: "an empty body" })?;
    let parts = node.inputs().iter().map(|value| {
        // One value may stand in several places.
        let own = |value: ValueId| step.body.inputs().iter().position(|id| *id == value.node);
        let number = value.and_then(own);
        number.ok_or(Error::Unsupported { what: "a constant operand" })
    });
    let parts: Few<usize> = parts.collect::<Result<_>>()?;
    by_size!(size, concat_of(&mut io, &parts, axis))
}

fn concat_of<T: Pod + Default + Send + Sync>(
    io: &mut Io<'_>,
    parts: &[usize],
    axis: usize,
) -> Result<()> {
    let to = io.outputs[0].operand;
    let mut at = 0;
    for &i in parts {
        let (bytes, from, _) = io.input(i)?;
        let offset = to.offset + at * to.strides[axis].unsigned_abs();
        let target = cast_slice_mut::<u8, T>(io.outputs[0].bytes);
        let source = cast_slice::<u8, T>(bytes);
        copy_between(target, offset, &to.strides, &from.shape, source, from.offset, &from.strides)?;
        at += from.shape[axis];
    }
    Ok(())
}
