//! Elements chosen, put side by side, and put elsewhere.

use super::{Io, around, by_size, input_number, required_input, with_row_major};
use crate::cpu::kernels::copy::copy_between;
use crate::cpu::kernels::gather::gather;
use crate::cpu::kernels::place::place;
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::{nearest_sources, pad_sources};
use graphene_frontend::op::{NearestMode, PadMode, ResizeAttrs};
use graphene_fusion::program::Step;
use std::collections::BTreeMap;

pub(crate) fn run_gather(step: &Step, mut io: Io<'_>, axis: usize) -> Result<()> {
    let (from, at) = (required_input(step, 0)?, required_input(step, 1)?);
    let (_, table, dtype) = io.input(from)?;
    let indices: Vec<i64> = match io.input(at)?.2 {
        DType::I32 => io.dense::<i32>(at)?.0.iter().map(|&index| index.into()).collect(),
        _ => io.dense::<i64>(at)?.0.to_vec(),
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

pub(crate) fn run_pad(
    step: &Step,
    mut io: Io<'_>,
    mode: PadMode,
    before: &[Dim],
    bindings: &Bindings,
) -> Result<()> {
    let (_, from, dtype) = io.input(required_input(step, 0)?)?;
    let before = before.iter().map(|dim| dim.eval(bindings)).collect::<Result<Vec<_>, _>>()?;
    let to = &io.outputs[0].operand.shape;
    let sources = pad_sources(&from.shape, to, mode, &before).map_err(Box::new)?;
    let fill = input_number(step, 1)?;
    by_size!(dtype.size(), placed(step, &mut io, &sources, fill))
}

pub(crate) fn run_nearest(
    step: &Step,
    mut io: Io<'_>,
    attrs: &ResizeAttrs,
    mode: NearestMode,
) -> Result<()> {
    let (_, from, dtype) = io.input(required_input(step, 0)?)?;
    let to = &io.outputs[0].operand.shape;
    if to.contains(&0) {
        return Ok(());
    }
    if from.shape.contains(&0) {
        return Err(Error::Unsupported { what: "a resize of nothing" });
    }
    let sources = nearest_sources(&from.shape, to, attrs, mode).map_err(Box::new)?;
    let sources: Vec<Vec<Option<usize>>> =
        sources.into_iter().map(|places| places.into_iter().map(Some).collect()).collect();
    by_size!(dtype.size(), placed(step, &mut io, &sources, None))
}

/// The result's elements from those places of the first operand; of the operand of number `fill` where there is none, or 0.
fn placed<T: Pod + Default + Send + Sync>(
    step: &Step,
    io: &mut Io<'_>,
    sources: &[Vec<Option<usize>>],
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
    let distances = |(places, &stride): (&Vec<Option<usize>>, &isize)| {
        places.iter().map(|place| place.map(|place| place as isize * stride)).collect()
    };
    let tables: Vec<Vec<Option<isize>>> =
        sources.iter().zip(&from.strides).map(distances).collect();
    with_row_major(&mut io.outputs, |results| {
        for result in results {
            place(cast_slice_mut(result), source, from.offset, &tables, fill)?;
        }
        Ok(())
    })
}

pub(crate) fn run_concat(step: &Step, mut io: Io<'_>, axis: usize) -> Result<()> {
    let size = io.outputs[0].dtype.size();
    // One value may stand in several places.
    let numbers: BTreeMap<_, _> = step.body.inputs().iter().zip(0..).collect();
    let (_, node) = step.body.nodes().last().ok_or(Error::Unsupported { what: "an empty body" })?;
    let parts = node.inputs().iter().map(|value| {
        let number = value.and_then(|value| numbers.get(&value.node).copied());
        number.ok_or(Error::Unsupported { what: "a constant operand" })
    });
    let parts: Vec<usize> = parts.collect::<Result<_>>()?;
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
