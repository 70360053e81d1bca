//! Elements of buffers as f32, and back.

use crate::bind::BoundOperand;
use crate::cpu::kernels::real::Real;
use crate::cpu::loops::Domain;
use crate::cpu::scratch::{self, Buffer, Numbers};
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use half::{bf16, f16};

/// What a program reads.
#[derive(Clone, Copy)]
pub(crate) struct RowInput<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) operand: &'a BoundOperand,
    pub(crate) dtype: DType,
}

/// Elements of a domain's only input from `start` on, as many as there is room for.
pub(super) fn read(domain: &Domain, start: usize, bytes: &[u8], dtype: DType, to: &mut [f32]) {
    match dtype {
        DType::F16 => read_as::<f16>(domain, start, bytes, to),
        DType::BF16 => read_as::<bf16>(domain, start, bytes, to),
        _ => read_as::<f32>(domain, start, bytes, to),
    }
}

fn read_as<T: Real + Pod>(domain: &Domain, start: usize, bytes: &[u8], to: &mut [f32]) {
    let elements: &[T] = cast_slice(bytes);
    let mut at = 0;
    for (from, stride, len) in domain.walk(0, start, to.len()) {
        let to = &mut to[at..at + len];
        match stride {
            1 => T::widen(to, &elements[from..from + len]),
            _ => to.iter_mut().enumerate().for_each(|(i, y)| {
                *y = elements[from.wrapping_add_signed(i as isize * stride)].to_f32();
            }),
        }
        at += len;
    }
}

/// Writes elements in their type.
pub(super) fn write(dtype: DType, to: &mut [u8], elements: &[f32]) {
    match dtype {
        DType::F16 => f16::narrow(cast_slice_mut(to), elements),
        DType::BF16 => bf16::narrow(cast_slice_mut(to), elements),
        _ => cast_slice_mut(to).copy_from_slice(elements),
    }
}

/// All elements of an input, which lie as the domain says.
pub(super) fn whole<'a>(input: &RowInput<'a>, domain: &Domain) -> Result<Numbers<'a, f32>> {
    if domain.len == 0 {
        return Ok(Numbers::Lent(&[]));
    }
    if let (DType::F32, Some((from, 1))) = (input.dtype, domain.run(0, 0, domain.len)) {
        return Ok(Numbers::Lent(&cast_slice(input.bytes)[from..from + domain.len]));
    }
    let mut elements = scratch::take(domain.len)?;
    read(domain, 0, input.bytes, input.dtype, &mut elements);
    Ok(Numbers::Own(elements))
}

/// For each row the row of the table that its index names, where the domain says.
///
/// # Errors
/// [`Error::Index`] for the first index outside the table.
pub(super) fn table_rows(
    table: &RowInput<'_>,
    indices: &RowInput<'_>,
    domain: &Domain,
) -> Result<Buffer<usize>> {
    let mut rows = scratch::take(domain.len)?;
    if domain.len == 0 {
        return Ok(rows);
    }
    let len = table.operand.shape.first().copied().unwrap_or(0);
    let mut to = rows.iter_mut();
    for (from, stride, count) in domain.walk(0, 0, domain.len) {
        for (i, to) in to.by_ref().take(count).enumerate() {
            let at = from.wrapping_add_signed(i as isize * stride);
            let index = match indices.dtype {
                DType::I32 => i64::from(cast_slice::<u8, i32>(indices.bytes)[at]),
                _ => cast_slice::<u8, i64>(indices.bytes)[at],
            };
            *to = row(index, len)?;
        }
    }
    Ok(rows)
}

/// The row that an index names; negative ones count from the end.
fn row(index: i64, len: usize) -> Result<usize> {
    let size = i64::try_from(len).unwrap_or(i64::MAX);
    let row = if index < 0 { index.checked_add(size) } else { Some(index) };
    let row = row.filter(|row| (0..size).contains(row));
    row.map(|row| row as usize).ok_or(Error::Index { index, size: len })
}
