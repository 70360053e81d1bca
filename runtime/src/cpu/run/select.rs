//! Elements chosen and put side by side.

use super::{Io, around, by_size, required_input};
use crate::cpu::kernels::copy::copy_between;
use crate::cpu::kernels::gather::gather;
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
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
