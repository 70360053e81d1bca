//! Elements chosen and put side by side.

use super::{Io, around, by_size};
use crate::cpu::kernels::copy::copy_between;
use crate::cpu::kernels::gather::gather;
use crate::error::Result;
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;

pub(crate) fn run_gather(mut io: Io<'_>, axis: usize) -> Result<()> {
    let (_, table, dtype) = io.input(0)?;
    let indices: Vec<i64> = match io.input(1)?.2 {
        DType::I32 => io.dense::<i32>(1)?.0.iter().map(|&index| index.into()).collect(),
        _ => io.dense::<i64>(1)?.0.to_vec(),
    };
    let sizes = around(&table.shape, axis);
    by_size!(dtype.size(), gather_of(&mut io, sizes, &indices))
}

fn gather_of<T: Pod + Send + Sync>(
    io: &mut Io<'_>,
    sizes: [usize; 3],
    indices: &[i64],
) -> Result<()> {
    let (source, _) = io.dense::<T>(0)?;
    gather(io.outputs[0].dense::<T>(), source, sizes, indices)
}

pub(crate) fn run_concat(mut io: Io<'_>, axis: usize) -> Result<()> {
    let size = io.outputs[0].dtype.size();
    by_size!(size, concat_of(&mut io, axis))
}

fn concat_of<T: Pod + Default + Send + Sync>(io: &mut Io<'_>, axis: usize) -> Result<()> {
    let to = io.outputs[0].operand;
    let mut at = 0;
    for i in 0..io.inputs.len() {
        let (bytes, from, _) = io.input(i)?;
        let offset = to.offset + at * to.strides[axis].unsigned_abs();
        let target = cast_slice_mut::<u8, T>(io.outputs[0].bytes);
        let source = cast_slice::<u8, T>(bytes);
        copy_between(target, offset, &to.strides, &from.shape, source, from.offset, &from.strides)?;
        at += from.shape[axis];
    }
    Ok(())
}
