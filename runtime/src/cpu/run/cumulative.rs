//! Running sums and products, of integers: those of other numbers the reference computes in more digits.

use super::{around, with_row_major};
use crate::cpu::kernels::copy::copy_strided;
use crate::cpu::kernels::cumulative::{Cumulative, cumulative};
use crate::cpu::memory::Io;
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::CumulativeOp;

pub(crate) fn run_cumulative(
    io: Io<'_>,
    op: CumulativeOp,
    axis: usize,
    [exclusive, reverse]: [bool; 2],
) -> Result<()> {
    macro_rules! run {
        ($one:expr, $zero:expr, $plus:expr, $times:expr) => {{
            let (initial, meet) = match op {
                CumulativeOp::Sum => ($zero, $plus as fn(_, _) -> _),
                CumulativeOp::Prod => ($one, $times as fn(_, _) -> _),
            };
            along(io, axis, Cumulative { initial, meet, exclusive, reverse })
        }};
    }
    match io.input(0)?.2 {
        DType::I32 => run!(1_i32, 0, i32::wrapping_add, i32::wrapping_mul),
        DType::I64 => run!(1_i64, 0, i64::wrapping_add, i64::wrapping_mul),
        _ => Err(Error::Unsupported { what: "an element type" }),
    }
}

fn along<T: Pod + Default + Send + Sync>(
    mut io: Io<'_>,
    axis: usize,
    of: Cumulative<T>,
) -> Result<()> {
    let (bytes, from, _) = io.input(0)?;
    with_row_major(&mut io.outputs, |results| {
        results.into_iter().try_for_each(|result| {
            let result = cast_slice_mut::<u8, T>(result);
            let source = cast_slice::<u8, T>(bytes);
            copy_strided(result, &from.shape, source, from.offset, &from.strides)?;
            cumulative(of, result, around(&from.shape, axis))
        })
    })
}
